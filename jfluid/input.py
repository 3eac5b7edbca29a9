"""`fluid.data`, `fluid.embedding` and `fluid.one_hot`: as in `layers`, but shapes are given as a whole."""

from collections.abc import Sequence
from typing import Any

from jfluid.ir.variable import Variable
from jfluid.layers import argument_types
from jfluid.layers.embedding import hot, look_up
from jfluid.layers.io import declare

__all__ = ["data", "embedding", "one_hot"]


def data(name: str, shape: Sequence[int | None], dtype: str = "float32", lod_level: int = 0) -> Variable:
    """Declare a variable that is fed. Every feed is compared with its shape and dtype.

    Args:
        name: the name to feed it by.
        shape: all dimensions, the batch included; None or -1 where they vary.
        dtype: the element type.
        lod_level: how many levels of sequences the feed has; 0 for none.
    """
    return declare(name, [-1 if d is None else int(d) for d in shape], dtype, lod_level)


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: str = "float32",
) -> Variable:
    """Look up rows of a table by the ids `input`: the result has the shape of `input` with size[1] appended.

    For arguments and errors see `layers.embedding`.
    """
    return look_up("lookup_table_v2", input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Return a float32 one-hot vector of length `depth` for each id, appended to the shape of `input`.

    For arguments and errors see `layers.one_hot`.
    """
    return hot("one_hot_v2", input, depth, allow_out_of_range, stop_gradient=False)


argument_types.install(globals())
