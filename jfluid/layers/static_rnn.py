"""StaticRNN: a block that runs once for each step of dense sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jfluid import errors
from jfluid.ir import unique_name
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.blocks import Inside, captured
from jfluid.layers.helper import LayerHelper

__all__ = ["StaticRNN"]


@dataclass
class _Memory:
    init: Variable
    before: Variable
    after: Variable | None = None


class StaticRNN:
    """Recurrent network over sequences of equal length, [time, batch, ...], defined by the operators of one step.

        rnn = layers.StaticRNN()
        with rnn.step():
            word = rnn.step_input(words)
            state = rnn.memory(shape=[-1, width], batch_ref=word)
            new = layers.fc([word, state], size=width, act="tanh")
            rnn.update_memory(state, new)
            rnn.step_output(new)
        states = rnn()

    Raises ProgramError when its methods are called in a different order than this.
    """

    BEFORE_RNN_BLOCK, IN_RNN_BLOCK, AFTER_RNN_BLOCK = range(3)

    def __init__(self, name: str | None = None):
        self.helper = LayerHelper("static_rnn", name=name)
        self.memories: dict[str, _Memory] = {}
        self.inputs: list[Variable] = []
        self.outputs: list[Variable] = []
        self.status = StaticRNN.BEFORE_RNN_BLOCK
        self.seq_len: int | None = None
        self.is_reverse = False

    def step(self) -> "_Step":
        """Return the context in which the operators of one step are built."""
        return _Step(self)

    def _only_inside(self, method: str) -> None:
        if self.status != StaticRNN.IN_RNN_BLOCK:
            raise errors.ProgramError(f"StaticRNN.{method}: call it inside of `with rnn.step():`")

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Variable | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Variable:
        """Return a state that goes from step to step.

        Args:
            init: its first value; or
            shape: its shape, where -1 is the batch.
            batch_ref: a Variable that has the batch.
            init_value: the number that it is filled with.
            init_batch_dim_idx: which dimension of the state is the batch.
            ref_batch_dim_idx: which dimension of `batch_ref` is the batch, as it is outside of the
                step, time first.
        """
        self._only_inside("memory")
        if init is None:
            if shape is None or batch_ref is None:
                raise errors.ProgramError("StaticRNN.memory: give init, or shape and batch_ref")
            outside = self._parent()
            name = unique_name.generate(f"{self.helper.name}@memory_boot")
            init = outside.create_var(name=name, shape=shape, dtype=batch_ref.dtype, persistable=False)
            reference = outside.var_recursive(batch_ref.name)
            outside.append_op(
                "fill_constant_batch_size_like",
                {"Input": [reference]},
                {"Out": [init]},
                {
                    "value": init_value,
                    "shape": list(init.shape),
                    "dtype": int(init.dtype),
                    "input_dim_idx": ref_batch_dim_idx,
                    "output_dim_idx": init_batch_dim_idx,
                },
            )
        before = self.helper.create_variable(
            name=unique_name.generate(f"{self.helper.name}@mem"), dtype=init.dtype, shape=init.shape
        )
        self.memories[before.name] = _Memory(init, before)
        return before

    def step_input(self, x: Variable) -> Variable:
        """Return one step, [batch, ...], of the sequences `x` [time, batch, ...]."""
        self._only_inside("step_input")
        if not isinstance(x, Variable):
            raise TypeError(f"StaticRNN.step_input, x: expected a Variable, found {type(x).__name__}")
        if self.seq_len is None:
            self.seq_len = x.shape[0]
        elif x.shape[0] != -1 and self.seq_len != x.shape[0]:
            raise errors.ShapeError(
                f"StaticRNN.step_input: sequences of {self.seq_len} steps are needed, found {x.shape[0]}"
            )
        step = self.helper.create_variable(name=x.name, dtype=x.dtype, shape=list(x.shape[1:]), type=x.type)
        self.inputs.append(step)
        return step

    def step_output(self, o: Variable) -> None:
        """Collect `o` of all steps as a result [time, batch, ...]."""
        self._only_inside("step_output")
        copy = self.helper.create_variable_for_type_inference(dtype=o.dtype)
        self.helper.append_op(
            type="rnn_memory_helper", inputs={"X": [o]}, outputs={"Out": copy}, attrs={"dtype": int(o.dtype)}
        )
        shape = [-1 if self.seq_len is None else self.seq_len, *copy.shape]
        self.outputs.append(self._parent().create_var(name=copy.name, shape=shape, dtype=copy.dtype))

    def output(self, *outputs: Variable) -> None:
        """Collect each Variable as a result, like `step_output`."""
        for each in outputs:
            self.step_output(each)

    def update_memory(self, mem: Variable, var: Variable) -> None:
        """Set the state `mem` of the next step to `var`."""
        if not isinstance(mem, Variable) or not isinstance(var, Variable):
            raise TypeError("StaticRNN.update_memory: expected two Variables")
        if mem.name not in self.memories:
            raise errors.ProgramError(f"StaticRNN.update_memory: {mem.name} is no memory of this StaticRNN")
        self.memories[mem.name].after = var

    def _parent(self) -> Any:
        block = self.helper.main_program.current_block().parent
        assert block is not None  # the step's block is nested
        return block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results: a Variable, or a list of Variables.

        Raises ProgramError before the step is complete.
        """
        if self.status != StaticRNN.AFTER_RNN_BLOCK:
            raise errors.ProgramError("StaticRNN: the results are there after `with rnn.step():`")
        if not self.outputs:
            raise errors.ProgramError("StaticRNN: the step has no output; call step_output in it")
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs


class _Step(Inside):
    def __init__(self, rnn: StaticRNN):
        super().__init__(rnn.helper.main_program)
        self.rnn = rnn

    def __enter__(self) -> Any:
        self.rnn.status = StaticRNN.IN_RNN_BLOCK
        return super().__enter__()

    def close(self) -> None:
        rnn, inside = self.rnn, self.inside
        rnn.status = StaticRNN.AFTER_RNN_BLOCK
        if not rnn.inputs:
            raise errors.ProgramError("StaticRNN: the step needs an input; call step_input in it")
        states = []
        for memory in rnn.memories.values():
            if memory.after is None:
                raise errors.ProgramError(
                    f"StaticRNN: memory {memory.before.name} is never updated; call update_memory"
                )
            state = inside.create_var(name=unique_name.generate(f"{rnn.helper.name}.tmp"), dtype=memory.after.dtype)
            inside.append_op(
                "rnn_memory_helper", {"X": [memory.after]}, {"Out": [state]}, {"dtype": int(memory.after.dtype)}
            )
            states.append(state.name)
        names = [v.name for v in rnn.inputs]
        reads, _ = captured(inside)
        scope = self.outside.create_var(type=VarType.STEP_SCOPES)
        self.outside.append_op(
            "recurrent",
            {
                "inputs": names,
                "initial_states": [m.init for m in rnn.memories.values()],
                "parameters": [n for n in reads if n not in names],
            },
            {"outputs": rnn.outputs, "step_scopes": [scope]},
            {
                "has_states": bool(states),
                "ex_states": [m.before.name for m in rnn.memories.values()],
                "states": states,
                "sub_block": inside,
                "reverse": rnn.is_reverse,
            },
        )
