"""`paddle.sysconfig`: where the headers and libraries of Fluid's C++ lie."""

from jfluid.errors import UnsupportedError

__all__ = ["get_include", "get_lib"]


def get_include() -> str:
    """Raise UnsupportedError: there are no headers."""
    raise UnsupportedError(_WHY.format("get_include"))


def get_lib() -> str:
    """Raise UnsupportedError: there is no library."""
    raise UnsupportedError(_WHY.format("get_lib"))


_WHY = (
    "paddle.sysconfig.{}: operators in C++ cannot be built against this package; register a JAX function with "
    "jfluid.ops.registry.op (CONTRIBUTING.md shows how)"
)
