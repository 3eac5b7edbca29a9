"""`fluid.embedding` and `fluid.one_hot`: as in `layers`, for ids without a last dimension of 1."""
from collections.abc import Sequence
from typing import Any

from jfluid.ir.variable import Variable
from jfluid.layers.embedding import hot, look_up

__all__ = ["embedding", "one_hot"]


def embedding(input: Variable, size: Sequence[int], is_sparse: bool = False, is_distributed: bool = False,
              padding_idx: int | None = None, param_attr: Any = None, dtype: str = "float32") -> Variable:
    """Rows of a table at the ids `input`: the shape of `input` with size[1] appended.

    Arguments and errors are those of `layers.embedding`.
    """
    return look_up("lookup_table_v2", input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """float32 vectors of length `depth` with a 1 at each id, appended to the shape of `input`.

    Arguments and errors are those of `layers.one_hot`.
    """
    return hot("one_hot_v2", input, depth, allow_out_of_range, stop_gradient=False)
