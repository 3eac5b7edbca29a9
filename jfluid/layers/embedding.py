"""Embedding lookups and one-hot vectors for ids [..., 1].

`jfluid.input` has the functions for ids of any shape.
"""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["embedding", "get_tensor_from_selected_rows", "hash", "merge_selected_rows", "one_hot"]


def look_up(
    op_type: str,
    input: Variable,
    size: Sequence[int],
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int | None,
    param_attr: Any,
    dtype: str,
) -> Variable:
    """Create the table, and append the lookup operator `op_type`.

    For the other arguments see `embedding`.
    """
    check_variable(input, "embedding", "input")
    if len(size) != 2:
        raise errors.ShapeError(f"embedding, size: expected [rows, width], found {list(size)}")
    if padding_idx is not None and not -size[0] <= padding_idx < size[0]:
        raise errors.ProgramError(
            f"embedding, padding_idx: expected a number from {-size[0]} to {size[0] - 1}, found {padding_idx}"
        )
    helper = LayerHelper("embedding", param_attr=param_attr)
    table = helper.create_parameter(attr=helper.param_attr, shape=list(size), dtype=dtype)
    out = helper.create_variable_for_type_inference(dtype)
    padding = -1 if padding_idx is None else padding_idx % size[0]
    helper.append_op(
        type=op_type,
        inputs={"Ids": input, "W": table},
        outputs={"Out": out},
        attrs={
            "is_sparse": is_sparse,
            "is_distributed": is_distributed,
            "remote_prefetch": is_sparse and not is_distributed,
            "padding_idx": padding,
        },
    )
    return out


def hot(
    op_type: str, input: Variable, depth: int | Variable, allow_out_of_range: bool, stop_gradient: bool
) -> Variable:
    """Append the one-hot operator `op_type`; for the other arguments see `one_hot`."""
    inputs = {"X": input, "depth_tensor": depth if isinstance(depth, Variable) else None}
    attrs = {"depth": None if isinstance(depth, Variable) else int(depth), "allow_out_of_range": allow_out_of_range}
    return emit(op_type, inputs, attrs, stop_gradient=stop_gradient)


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: str = "float32",
) -> Variable:
    """Look up rows of a table [size[0], size[1]], a parameter that this layer makes, by the ids `input`.

    Args:
        input: int64 ids [..., 1]; `fluid.embedding` takes ids of any shape. An id
            outside the table gives a row of NaN.
        size: the rows and the width of the table.
        is_sparse: make the gradient hold only the rows that were looked up. SGD, Adagrad and lazy
            Adam then update only those: a step costs by the rows that it touches, not by the table.
            As in Fluid, the padding row is then trained too.
        is_distributed: keep the table on parameter servers. Such a program runs after
            DistributeTranspiler only, and needs `is_sparse`.
        padding_idx: an id that reads as zeros and gets no gradient; negative numbers count
            from the end.
        param_attr: ParamAttr of the table: its name, initializer and so on.
        dtype: of the table.

    Returns:
        The rows: the shape of `input` with size[1] in place of the last 1.

    Raises:
        ShapeError: the last dimension of `input` is not 1, or `size` is not a pair.
        ProgramError: `padding_idx` is outside the table, or `is_distributed` stands without
            `is_sparse`.
    """
    return look_up("lookup_table", input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Return a float32 one-hot vector of length `depth` for each id.

    Args:
        input: int ids [..., 1]; the last dimension becomes `depth`; `fluid.one_hot` takes ids
            without it.
        depth: a number, or a Variable [1] computed from shapes and constants.
        allow_out_of_range: ids outside [0, depth) give zeros; otherwise they give NaN, because a
            compiled step cannot raise.
    """
    return hot("one_hot", input, depth, allow_out_of_range, stop_gradient=True)


def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """Hash each row of integers to `num_hash` numbers below `hash_size` by xxHash, with seeds 0, 1, ...

    Source: https://github.com/Cyan4973/xxHash.

    Args:
        input: int32 or int64 [rows, width]; the bytes of a row are hashed together.
        hash_size: a number above 0.
        num_hash: number of hashes of each row.
        name: see `jfluid.layers`.

    Returns:
        [rows, num_hash, 1] with the dtype and LoD of `input`.
    """
    attrs = {"num_hash": num_hash, "mod_by": hash_size}
    return emit("hash", {"X": input}, attrs, name=name, stop_gradient=True)


def merge_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """Merge duplicate rows of a SelectedRows by summing their values.

    A SelectedRows is, for instance, the gradient of an embedding with `is_sparse`.
    """
    return emit("merge_selected_rows", {"X": x}, name=name)


def get_tensor_from_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """Return the values of a SelectedRows as a dense tensor [rows, ...], without their row numbers."""
    return emit("get_tensor_from_selected_rows", {"X": x}, name=name)
