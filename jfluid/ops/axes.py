"""Resolution of attributes such as `axis` to dimensions."""

from jfluid import errors


def dimension(axis: int, ndim: int, what: str) -> int:
    """Return the dimension that `axis` names, counted from the front; a negative one is counted from the end.

    Raises ShapeError, naming the operator `what`, if it is missing.
    """
    if not -ndim <= axis < ndim:
        raise errors.ShapeError(f"{what}: axis {axis} of a tensor of {ndim} dimensions")
    return axis % ndim
