"""DynamicRNN: a block that runs once for each step of sequences of different lengths."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from jfluid import errors
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import Variable
from jfluid.layers.arrays import array_read, array_to_lod_tensor, array_write, shrink_memory
from jfluid.layers.control_flow import While
from jfluid.layers.creation import fill_constant
from jfluid.layers.helper import LayerHelper
from jfluid.layers.logic import less_than
from jfluid.layers.tensor import increment

__all__ = ["DynamicRNN"]


class DynamicRNN:
    """Recurrent network over sequences of different lengths, defined by the operators of one step.

        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(sentence)
            state = rnn.memory(shape=[width])
            new = layers.fc([word, state], size=width, act="tanh")
            rnn.update_memory(state, new)
            rnn.output(new)
        states = rnn()  # with the LoD of `sentence`

    A sequence that has ended takes no part in later steps. Raises ProgramError when its methods are
    called in a different order.
    """

    BEFORE_RNN, IN_RNN, AFTER_RNN = range(3)

    def __init__(self, name: str | None = None):
        self.helper = LayerHelper("dynamic_rnn", name=name)
        self.status = DynamicRNN.BEFORE_RNN
        self.lod_rank_table: Variable | None = None
        self.max_seq_len: Variable | None = None
        self.step_idx: Variable | None = None
        self.zero_idx: Variable | None = None
        self.mem_dict: dict[str, Variable] = {}
        self.output_array: list[Variable] = []
        self.outputs: list[Variable] = []
        self.cond = self.helper.create_variable_for_type_inference(dtype="bool")
        self.while_op = While(self.cond)
        self.input_array: list[Variable] = []
        self.mem_link: list[tuple[Variable, Variable]] = []

    def _only_inside(self, method: str) -> None:
        if self.status != DynamicRNN.IN_RNN:
            raise errors.ProgramError(f"DynamicRNN.{method}: call it inside of `with rnn.block():`")

    def _table(self, method: str) -> Variable:
        if self.lod_rank_table is None:
            raise errors.ProgramError(
                f"DynamicRNN.{method}: call step_input first; it tells the lengths of the sequences"
            )
        return self.lod_rank_table

    def _step(self) -> Variable:
        assert self.step_idx is not None  # `block` makes it
        return self.step_idx

    def _parent(self) -> Block:
        block = self.helper.main_program.current_block().parent
        assert block is not None  # the step's block is nested
        return block

    def _outside(self, name: str, dtype: Any, type: VarType = VarType.LOD_TENSOR) -> Variable:
        return self._parent().create_var(name=unique_name.generate(name), type=type, dtype=dtype)

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """Return a step of the sequences `x`: a row (or sub-sequence) of each sequence, longest first.

        Sequences that have ended are left out. The first call also sets the number of steps.

        Args:
            x: rows [rows, ...] with a LoD of one level below `level`, or of two.
            level: the level of the sequences that are stepped through.
        """
        self._only_inside("step_input")
        if not isinstance(x, Variable):
            raise TypeError(f"DynamicRNN.step_input, x: expected a Variable, found {type(x).__name__}")
        parent = self._parent()
        if self.lod_rank_table is None:
            self.lod_rank_table = self._outside("lod_rank_table", None, VarType.LOD_RANK_TABLE)
            self.lod_rank_table.lod_level = level  # its arrays have the levels below
            parent.append_op("lod_rank_table", {"X": x}, {"Out": self.lod_rank_table}, {"level": level})
            self.max_seq_len = self._outside("dynamic_rnn_max_seq_len", "int64")
            parent.append_op("max_sequence_len", {"RankTable": self.lod_rank_table}, {"Out": self.max_seq_len})
            parent.append_op(
                "less_than", {"X": self.step_idx, "Y": self.max_seq_len}, {"Out": self.cond}, {"force_cpu": True}
            )
        array = self._outside("dynamic_rnn_input_array", x.dtype, VarType.LOD_TENSOR_ARRAY)
        self.input_array.append(array)
        parent.append_op("lod_tensor_to_array", {"X": x, "RankTable": self.lod_rank_table}, {"Out": array})
        return array_read(array, self._step())

    def static_input(self, x: Variable) -> Variable:
        """Return row (or sequence) i of `x` as a whole in each step of sequence i of the step inputs."""
        self._only_inside("static_input")
        if not isinstance(x, Variable):
            raise TypeError(f"DynamicRNN.static_input, x: expected a Variable, found {type(x).__name__}")
        table = self._table("static_input")
        moved = self._outside("dynamic_rnn_static_input_reordered", x.dtype)
        self._parent().append_op("reorder_lod_tensor_by_rank", {"X": [x], "RankTable": [table]}, {"Out": [moved]})
        return shrink_memory(moved, self._step(), table)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Build the operators of one step in this context."""
        if self.status != DynamicRNN.BEFORE_RNN:
            raise errors.ProgramError("DynamicRNN.block: it can be entered once")
        self.step_idx = fill_constant(shape=[1], dtype="int64", value=0, force_cpu=True)
        self.step_idx.stop_gradient = False
        self.status = DynamicRNN.IN_RNN
        with self.while_op.block():
            yield
            if self.max_seq_len is None:
                raise errors.ProgramError("DynamicRNN: the step needs an input; call step_input in it")
            increment(self.step_idx, value=1.0, in_place=True)
            for new, array in self.mem_link:
                array_write(new, i=self.step_idx, array=array)
            less_than(self.step_idx, self.max_seq_len, force_cpu=True, cond=self.cond)
        self.status = DynamicRNN.AFTER_RNN
        for array in self.output_array:
            self.outputs.append(array_to_lod_tensor(array, self._table("block")))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results: a Variable with the LoD of the step input, or a list of Variables."""
        if self.status != DynamicRNN.AFTER_RNN:
            raise errors.ProgramError("DynamicRNN: the results are there after `with rnn.block():`")
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Variable:
        """Return a state that goes from step to step.

        Args:
            init: its first value, a row for each sequence; or
            shape: the shape of a row.
            value: the number that rows are filled with.
            need_reorder: bring `init` into the order of the steps, in which the longest sequence comes first.
            dtype: dtype of the rows.
        """
        self._only_inside("memory")
        table, parent = self._table("memory"), self._parent()
        if self.zero_idx is None:
            self.zero_idx = self._outside("zero_idx", "int64")
            parent.append_op(
                "fill_constant",
                {},
                {"Out": [self.zero_idx]},
                {"shape": [1], "dtype": int(VarType.INT64), "value": 0.0, "force_cpu": True},
            )
        if init is None:
            if shape is None:
                raise errors.ProgramError("DynamicRNN.memory: give init, or shape")
            init, first = (self._outside("mem_init", dtype), self._outside("in0", self.input_array[0].dtype))
            parent.append_op("read_from_array", {"X": [self.input_array[0]], "I": [self.zero_idx]}, {"Out": [first]})
            parent.append_op(
                "fill_constant_batch_size_like",
                {"Input": [first]},
                {"Out": [init]},
                {"shape": [-1, *shape], "value": float(value), "dtype": int(var_type(dtype))},
            )
        elif not isinstance(init, Variable):
            raise TypeError(f"DynamicRNN.memory, init: expected a Variable, found {type(init).__name__}")
        elif need_reorder:
            moved = self._outside("dynamic_rnn_mem_init_reordered", init.dtype)
            parent.append_op("reorder_lod_tensor_by_rank", {"X": [init], "RankTable": [table]}, {"Out": [moved]})
            init = moved
        array = self._outside("dynamic_rnn_mem_array", init.dtype, VarType.LOD_TENSOR_ARRAY)
        parent.append_op("write_to_array", {"X": init, "I": self.zero_idx}, {"Out": array})
        state = shrink_memory(array_read(array, self._step()), self._step(), table)
        self.mem_dict[state.name] = array
        return state

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        """Set the state `ex_mem` of the next step to `new_mem`."""
        self._only_inside("update_memory")
        if not isinstance(ex_mem, Variable) or not isinstance(new_mem, Variable):
            raise TypeError("DynamicRNN.update_memory: expected two Variables")
        array = self.mem_dict.get(ex_mem.name)
        if array is None:
            raise errors.ProgramError(f"DynamicRNN.update_memory: {ex_mem.name} is no memory of this DynamicRNN")
        self.mem_link.append((new_mem, array))

    def output(self, *outputs: Variable) -> None:
        """Collect these Variables of all steps as results."""
        self._only_inside("output")
        for each in outputs:
            name = "_".join([self.helper.name, "output_array", each.name])
            array = self._parent().create_var(
                name=unique_name.generate(name), type=VarType.LOD_TENSOR_ARRAY, dtype=each.dtype
            )
            array_write(each, i=self._step(), array=array)
            self.output_array.append(array)
