"""Arrays of tensors, and the tables that rank sequences by length."""

from typing import Any, cast

from jfluid import errors
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, emit

__all__ = [
    "array_length",
    "array_read",
    "array_write",
    "create_array",
    "reorder_lod_tensor_by_rank",
    "tensor_array_to_tensor",
]


def _check_array(layer: str, value: Any) -> None:
    if not isinstance(value, Variable) or value.type != VarType.LOD_TENSOR_ARRAY:
        found = value.type.name if isinstance(value, Variable) else type(value).__name__
        raise TypeError(f"{layer}, array: expected an array made by layers.create_array or array_write, found {found}")


def _check_index(layer: str, value: Any) -> None:
    if not isinstance(value, Variable) or value.dtype not in (VarType.INT64, VarType.INT32):
        raise TypeError(
            f"{layer}, i: expected an integer Variable of one element, found "
            + (value.dtype.name if isinstance(value, Variable) else type(value).__name__)
        )
    if any(d not in (1, -1) for d in value.shape):
        raise errors.ShapeError(f"{layer}, i: expected one element, found shape {list(value.shape)}")


def create_array(dtype: Any) -> Any:
    """Create an empty tensor array of `dtype`: a Python list in dygraph mode."""
    if default_main_program().eager:
        return []
    helper = LayerHelper("array")
    return helper.block.create_var(name=f"{helper.name}.out", type=VarType.LOD_TENSOR_ARRAY, dtype=var_type(dtype))


def array_write(x: Variable, i: Variable, array: Any = None) -> Any:
    """Write `x` at an index of an array, and return the array.

    Args:
        x: the Variable to write.
        i: an integer Variable of one element, at most the length of the array.
        array: a new variable when None. Inside a loop all elements of an array have the same shape.

    Raises TypeError for arguments of other kinds.
    """
    _check_index("array_write", i)
    if default_main_program().eager:
        return _written(x, i, [] if array is None else array)
    helper = LayerHelper("array_write")
    if array is None:
        array = helper.block.create_var(name=f"{helper.name}.out", type=VarType.LOD_TENSOR_ARRAY, dtype=x.dtype)
    _check_array("array_write", array)
    helper.append_op(type="write_to_array", inputs={"X": [x], "I": [i]}, outputs={"Out": [array]})
    return array


def _written(x: Variable, i: Any, array: Any) -> list[Variable]:
    """Write `x` at an index of a list."""
    at = int(i)
    if not isinstance(array, list):
        raise TypeError(
            "array_write, array: expected a list, which layers.create_array gives in dygraph mode, "
            f"found {type(array).__name__}"
        )
    if not 0 <= at <= len(array):
        raise IndexError(f"array_write, i: expected 0 to {len(array)}, found {at}")
    array[at : at + 1] = [x]
    return array


def array_read(array: Any, i: Variable) -> Variable:
    """Return the element of `array` at index `i`, an integer Variable of one element."""
    if isinstance(array, list) and default_main_program().eager:
        _check_index("array_read", i)
        element: Variable = array[int(cast(Any, i))]
        return element
    _check_array("array_read", array)
    _check_index("array_read", i)
    return emit("read_from_array", {"X": array, "I": i}, layer="array_read")


def array_length(array: Any) -> Any:
    """Return the number of elements: int64 [1], a Python integer in dygraph mode."""
    if isinstance(array, list) and default_main_program().eager:
        return len(array)
    _check_array("array_length", array)
    return emit("lod_array_length", {"X": array}, layer="array_length", stop_gradient=True)


def tensor_array_to_tensor(
    input: Variable, axis: int = 1, name: str | None = None, use_stack: bool = False
) -> tuple[Variable, Variable]:
    """Join the elements of an array; returns (the tensor, the size of each element along `axis`, int32).

    The number of elements must follow from constants: XLA needs it when the step is compiled.

    Args:
        input: the array.
        axis: the dimension to join along.
        name: see `jfluid.layers`.
        use_stack: stack the elements along a new dimension `axis` instead.
    """
    _check_array("tensor_array_to_tensor", input)
    out, index = emit(
        "tensor_array_to_tensor",
        {"X": input},
        {"axis": axis, "use_stack": use_stack},
        outs=("Out", "OutIndex"),
        name=name,
    )
    return out, index


def is_array(inputs: list[Any], layer: str) -> bool:
    """Return True if the only input of a layer that joins tensors is a tensor array.

    Raises TypeError for a tensor array among several inputs.
    """
    arrays = [isinstance(v, Variable) and v.type == VarType.LOD_TENSOR_ARRAY for v in inputs]
    if any(arrays) and len(inputs) > 1:
        raise TypeError(
            f"layers.{layer}: expected one array, or tensors alone, found {len(inputs)} inputs including an array"
        )
    return any(arrays)


def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """Return the rank table of the sequences of `x` on a level of the LoD: longest sequence first."""
    helper = LayerHelper("lod_rank_table")
    table = helper.create_variable(type=VarType.LOD_RANK_TABLE, name=helper.name)
    table.lod_level = level  # its arrays have the levels below
    helper.append_op(type="lod_rank_table", inputs={"X": x}, outputs={"Out": table}, attrs={"level": level})
    return table


def max_sequence_len(rank_table: Variable) -> Variable:
    """Return the length of the longest sequence of a table: int64 [1]."""
    return emit("max_sequence_len", {"RankTable": rank_table}, layer="max_seqence_length", stop_gradient=True)


def lod_tensor_to_array(x: Variable, table: Variable) -> Variable:
    """Split `x` by time steps: element t has row t of each sequence longer than t, in the order of the table."""
    helper = LayerHelper("lod_tensor_to_array")
    array = helper.create_variable(name=helper.name, type=VarType.LOD_TENSOR_ARRAY, dtype=x.dtype)
    helper.append_op(type="lod_tensor_to_array", inputs={"X": x, "RankTable": table}, outputs={"Out": array})
    return array


def array_to_lod_tensor(x: Variable, table: Variable) -> Variable:
    """Return the rows with a LoD that `lod_tensor_to_array` made this array of."""
    return emit("array_to_lod_tensor", {"X": x, "RankTable": table})


def shrink_memory(x: Variable, i: Variable, table: Variable) -> Variable:
    """Return the leading rows of `x`, in the order of `table`, for sequences longer than step `i`."""
    return emit("shrink_rnn_memory", {"X": x, "I": i, "RankTable": table}, layer="shrink_memory")


def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """Reorder the rows (the sequences of an `x` with a LoD) by the rank table."""
    return emit("reorder_lod_tensor_by_rank", {"X": [x], "RankTable": [rank_table]})


def split_lod_tensor(input: Variable, mask: Variable, level: int = 0) -> tuple[Variable, Variable]:
    """Split `input` by `mask` [rows, 1]: (rows where it is true, rows where it is false).

    If `input` has a LoD, sequences are split instead of rows.
    """
    true, false = emit("split_lod_tensor", {"X": input, "Mask": mask}, {"level": level}, outs=("OutTrue", "OutFalse"))
    return true, false


def merge_lod_tensor(in_true: Variable, in_false: Variable, x: Variable, mask: Variable, level: int = 0) -> Variable:
    """Merge two results of `split_lod_tensor`.

    Args:
        in_true: the rows for which `mask` is true.
        in_false: the rows for which `mask` is false.
        x: the input of `split_lod_tensor`.
        mask: bool [rows, 1].
        level: the level of the LoD that was split.
    """
    return emit("merge_lod_tensor", {"X": x, "Mask": mask, "InTrue": in_true, "InFalse": in_false}, {"level": level})
