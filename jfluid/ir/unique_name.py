"""Unique names, numbered by a generator as in Fluid: `fc_0`, `fc_1`, ..."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from jfluid.ir.counts import Counts

__all__ = ["generate", "guard", "switch"]


_MOST_KEYS = 1 << 18  # of a generator, of about 150 bytes: keys made of names (`fc_7.w`) are as many


class UniqueNameGenerator:
    """Generator of names with use counts of each key in `counts`, and a common prefix."""

    def __init__(self, prefix: str = ""):
        self.prefix = prefix
        self.counts = Counts(_MOST_KEYS)

    def __call__(self, key: str) -> str:
        return f"{self.prefix}{key}_{self.counts.number(key)}"


_generator = UniqueNameGenerator()


def generate(key: str) -> str:
    """Return `key` with the next number after it."""
    return _generator(key)


class Replaced(NamedTuple):
    """State that `switch` replaced; pass it to `switch` to restore it."""

    generator: UniqueNameGenerator
    para_name_checker: Any


# live parameters of imperative mode by name; a generator's names are unique
_parameters: WeakValueDictionary[str, Any] = WeakValueDictionary()


def parameters() -> WeakValueDictionary[str, Any]:
    """Return the parameters of imperative mode that were named since the last `switch`."""
    return _parameters


def switch(new_generator: UniqueNameGenerator | Replaced | None = None, new_para_name_checker: Any = None) -> Replaced:
    """Set the current generator to `new_generator` (a new generator if None).

    Args:
        new_generator: a generator, or the result of `switch`.
        new_para_name_checker: the parameters of imperative mode whose names are taken, as `switch`
            returned them; none if None.

    Returns:
        The pair (generator, checker) that was replaced.
    """
    global _generator, _parameters
    if isinstance(new_generator, tuple):
        new_generator, new_para_name_checker = new_generator
    old = Replaced(_generator, _parameters)
    _generator = new_generator or UniqueNameGenerator()
    _parameters = WeakValueDictionary() if new_para_name_checker is None else new_para_name_checker
    return old


@contextlib.contextmanager
def guard(new_generator: str | bytes | UniqueNameGenerator | None = None) -> Iterator[None]:
    """Return a context with a new generator of names; a string is a prefix of all names."""
    if isinstance(new_generator, bytes):
        new_generator = new_generator.decode()
    if isinstance(new_generator, str):
        new_generator = UniqueNameGenerator(new_generator)
    old = switch(new_generator)
    try:
        yield
    finally:
        switch(old)
