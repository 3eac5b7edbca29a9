"""What replicas of a step share: the name of their axis."""
from typing import Any

from jax import lax

AXIS = "replica"


def among_replicas() -> bool:
    """Whether what is being traced runs in each of several replicas."""
    try:
        lax.axis_index(AXIS)
    except NameError:
        return False
    return True


def total(x: Any) -> Any:
    """The sum of `x` over all replicas."""
    return lax.psum(x, AXIS)
