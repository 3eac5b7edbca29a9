"""Python's collector of garbage, paused where very many objects are made that stay."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused(settle: bool = False) -> Iterator[None]:
    """Pause the collection of garbage.

    Args:
        settle: what there is afterwards stays as long as the process: count it among the old objects, which
            are seldom looked through, without looking through it first.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if settle and not _script_freezes():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_frozen = False


def _script_freezes() -> bool:
    """Return True if the script has ever frozen objects, which stay frozen: to count them takes a walk through them."""
    global _frozen
    _frozen = _frozen or gc.get_freeze_count() > 0
    return _frozen


def settle() -> None:
    """Collect garbage, then leave all objects out of later collections.

    A collection of the objects of JAX takes a fifth of a second, in which no thread of Python runs. Objects that were
    left out before are looked through again.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


_SELDOM = 50_000  # objects


def seldom() -> int:
    """Raise the threshold of young garbage collections while many short-lived objects are made.

    Returns the argument of `often`. A collector that is off, or already as slow, stays as it is.
    """
    before, *others = gc.get_threshold()
    if 0 < before < _SELDOM:
        gc.set_threshold(_SELDOM, *others)
    return before


def often(before: int) -> None:
    """End `seldom`, unless the script has set the collector since."""
    now, *others = gc.get_threshold()
    if now == _SELDOM:
        gc.set_threshold(before, *others)
