"""`fluid.evaluator`: metrics whose counts are variables of the program. Fluid recommends
`fluid.metrics` instead.
"""

from collections.abc import Sequence

import numpy as np

from jfluid import layers
from jfluid.executor import Executor
from jfluid.ir import unique_name
from jfluid.ir.program import Program, program_guard
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper

__all__ = ["ChunkEvaluator"]


class ChunkEvaluator:
    """Precision, recall and F1 of chunks over all batches since the last `reset`, which has to be
    called first.

    Args:
        input, label, chunk_scheme, num_chunk_types, excluded_chunk_types: as those of
            `layers.chunk_eval`, for rows with a LoD.

    Attributes:
        metrics: the Variables of precision, recall and F1 of the batch, to be fetched.
        states: the int64 [1] Variables of the chunks counted so far: predicted, labelled, correct.
    """

    def __init__(
        self,
        input: Variable,
        label: Variable,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: Sequence[int] | None = None,
    ):
        self.helper = LayerHelper("chunk_eval")
        self.states: list[Variable] = []
        for what in ("infer", "label", "correct"):
            name = f"{unique_name.generate(self.helper.name)}_num_{what}_chunks"
            self.states.append(
                self.helper.create_variable(name=name, persistable=True, dtype="int64", shape=[1])
            )
        self.num_infer_chunks, self.num_label_chunks, self.num_correct_chunks = self.states
        *self.metrics, inferred, labelled, right = layers.chunk_eval(
            input, label, chunk_scheme, num_chunk_types, excluded_chunk_types
        )
        for state, count in zip(self.states, (inferred, labelled, right), strict=True):
            layers.sums([state, count], out=state)

    def reset(self, executor: Executor, reset_program: Program | None = None) -> None:
        """Set the counts to 0."""
        program = reset_program or Program()
        with program_guard(program):
            for state in self.states:
                layers.fill_constant(
                    shape=[1], dtype="int64", value=0, out=self._in(program, state)
                )
        executor.run(program)

    def eval(
        self, executor: Executor, eval_program: Program | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (precision, recall, F1), float32 [1] each, of what was counted; 0 where there were
        no chunks.
        """
        program = eval_program or Program()
        counts = executor.run(
            program, fetch_list=[self._in(program, state) for state in self.states]
        )
        inferred, labelled, right = (int(c[0]) for c in counts)
        precision, recall = right / max(inferred, 1), right / max(labelled, 1)
        score = 2 * precision * recall / (precision + recall) if right else 0
        return (
            np.array([precision], np.float32),
            np.array([recall], np.float32),
            np.array([score], np.float32),
        )

    @staticmethod
    def _in(program: Program, state: Variable) -> Variable:
        return program.global_block().create_var(
            name=state.name, shape=state.shape, dtype=state.dtype, persistable=True
        )
