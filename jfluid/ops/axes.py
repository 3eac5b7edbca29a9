"""Resolution of attributes such as `axis` to dimensions, and the common dtype of tensors."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors


def check_one_dtype(tensors: Sequence[Any], what: str) -> None:
    """Raise DtypeError, naming the operator `what`, if the tensors have several dtypes."""
    first = tensors[0].dtype
    for x in tensors[1:]:
        if x.dtype != first:
            raise errors.DtypeError(
                f"{what}: all tensors need one dtype, found {first} and {x.dtype}; cast one with layers.cast"
            )


def dimension(axis: int, ndim: int, what: str) -> int:
    """Return the dimension that `axis` names, counted from the front; a negative one is counted from the end.

    Raises ShapeError, naming the operator `what`, if it is missing.
    """
    if not -ndim <= axis < ndim:
        raise errors.ShapeError(f"{what}: axis {axis} of a tensor of {ndim} dimensions")
    return axis % ndim
