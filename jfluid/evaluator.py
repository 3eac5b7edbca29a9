"""Metrics with counts in variables of the program: `fluid.evaluator`.

Fluid recommends `fluid.metrics` instead.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from jfluid import layers, metrics
from jfluid.executor import Executor
from jfluid.ir import unique_name
from jfluid.ir.program import Program, program_guard
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper

__all__ = ["ChunkEvaluator", "DetectionMAP", "EditDistance"]


class _Evaluator:
    """States of the program with totals over batches.

    Attributes:
        states: the Variables of totals since the last `reset`.
        metrics: the Variables of the batch, to be fetched.
    """

    def __init__(self, name: str):
        self.helper = LayerHelper(name)
        self.states: list[Variable] = []
        self.metrics: list[Variable] = []

    def _add_up(self, counts: Mapping[str, Variable]) -> None:
        """Create a state [1] for each name, to which its Variable is added."""
        for suffix, count in counts.items():
            state = self.helper.create_variable(
                name=f"{unique_name.generate(self.helper.name)}_{suffix}",
                persistable=True,
                dtype=count.dtype,
                shape=[1],
            )
            self.states.append(state)
            layers.sums([state, count], out=state)

    def reset(self, executor: Executor, reset_program: Program | None = None) -> None:
        """Set the counts to 0."""
        program = reset_program or Program()
        with program_guard(program):
            for state in self.states:
                layers.fill_constant(shape=[1], dtype=state.dtype, value=0, out=self._in(program, state))
        executor.run(program)

    def _counted(self, executor: Executor, eval_program: Program | None) -> list[np.ndarray]:
        """Return the values of the states."""
        program = eval_program or Program()
        return executor.run(program, fetch_list=[self._in(program, state) for state in self.states])

    @staticmethod
    def _in(program: Program, state: Variable) -> Variable:
        return program.global_block().create_var(
            name=state.name, shape=state.shape, dtype=state.dtype, persistable=True
        )


class ChunkEvaluator(_Evaluator):
    """Precision, recall and F1 of chunks over all batches since `reset`.

    Call `reset` first.

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
        super().__init__("chunk_eval")
        *self.metrics, inferred, labelled, right = layers.chunk_eval(
            input, label, chunk_scheme, num_chunk_types, excluded_chunk_types
        )
        self._add_up({"num_infer_chunks": inferred, "num_label_chunks": labelled, "num_correct_chunks": right})
        self.num_infer_chunks, self.num_label_chunks, self.num_correct_chunks = self.states

    def eval(
        self, executor: Executor, eval_program: Program | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (precision, recall, F1), float32 [1] each, of all counted chunks; 0 without chunks."""
        inferred, labelled, right = (int(c[0]) for c in self._counted(executor, eval_program))
        precision, recall = right / max(inferred, 1), right / max(labelled, 1)
        score = 2 * precision * recall / (precision + recall) if right else 0
        return (np.array([precision], np.float32), np.array([recall], np.float32), np.array([score], np.float32))


class EditDistance(_Evaluator):
    """Mean edit distance, and fraction of inexact sequences, over all batches since `reset`.

    Call `reset` first.

    Args:
        input: int64 rows [rows, 1] with a LoD; see `layers.edit_distance`.
        label: int64 rows [rows, 1] with a LoD.
        ignored_tokens: ids that are removed from both.

    Attributes:
        metrics: the Variables of the batch: the sum of the distances, float32 [1], and the number
            of inexact sequences, int64 [1].
        states: the [1] Variables of the totals: distances, sequences, inexact sequences.
    """

    def __init__(self, input: Variable, label: Variable, ignored_tokens: Sequence[int] | None = None):
        super().__init__("edit_distance")
        distances, number = layers.edit_distance(input, label, ignored_tokens=ignored_tokens)
        zero = layers.fill_constant(shape=[1], value=0.0, dtype="float32")
        exact = layers.reduce_sum(layers.cast(layers.equal(distances, zero), "int64"))
        inexact = layers.elementwise_sub(number, exact)
        total = layers.reduce_sum(distances)
        self._add_up({"total_distance": total, "seq_num": number, "instance_error": inexact})
        self.total_distance, self.seq_num, self.instance_error = self.states
        self.metrics = [total, inexact]

    def eval(self, executor: Executor, eval_program: Program | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return (mean distance, fraction of inexact sequences), float32 [1] each; NaN before any sequence."""
        total, number, inexact = self._counted(executor, eval_program)
        with np.errstate(invalid="ignore"):
            return total / number.astype(np.float32), inexact.astype(np.float32) / number.astype(np.float32)


class DetectionMAP(metrics.DetectionMAP):
    """Alias of `fluid.metrics.DetectionMAP`."""
