"""Names of `fluid.initializer` before 1.6: initialization of parameters on the CPU."""

import contextlib
from collections.abc import Iterator

__all__ = ["force_init_on_cpu", "init_on_cpu"]


def force_init_on_cpu() -> bool:
    """Return False: where a parameter is initialized is XLA's affair."""
    return False


@contextlib.contextmanager
def init_on_cpu() -> Iterator[None]:
    """No effect: parameters are initialized on the Executor's device."""
    yield
