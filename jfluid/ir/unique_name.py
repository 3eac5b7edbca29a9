"""Names that are unique within a generator, as Fluid numbers them: `fc_0`, `fc_1`, ..."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

__all__ = ["generate", "guard", "switch"]


class UniqueNameGenerator:
    """Counts the uses of each key; names begin with a common prefix."""

    def __init__(self, prefix: str = ""):
        self.prefix = prefix
        self.ids: dict[str, int] = defaultdict(int)

    def __call__(self, key: str) -> str:
        number = self.ids[key]
        self.ids[key] += 1
        return f"{self.prefix}{key}_{number}"


_generator = UniqueNameGenerator()


def generate(key: str) -> str:
    """Return `key` with the next number after it."""
    return _generator(key)


class Replaced(NamedTuple):
    """What `switch` replaces; give it back to `switch` to return to it."""

    generator: UniqueNameGenerator
    para_name_checker: Any


# parameters of imperative mode that are alive, by name: those of one generator differ in their names
_parameters: WeakValueDictionary[str, Any] = WeakValueDictionary()


def parameters() -> WeakValueDictionary[str, Any]:
    """Return the parameters of imperative mode that were named since the last `switch`."""
    return _parameters


def switch(
    new_generator: UniqueNameGenerator | Replaced | None = None, new_para_name_checker: Any = None
) -> Replaced:
    """Make `new_generator` (a new one if None) the current generator.

    Args:
        new_generator: a generator, or what `switch` returned.
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
    """Return a context in which names are counted anew; a string is put before every name made
    there.
    """
    if isinstance(new_generator, bytes):
        new_generator = new_generator.decode()
    if isinstance(new_generator, str):
        new_generator = UniqueNameGenerator(new_generator)
    old = switch(new_generator)
    try:
        yield
    finally:
        switch(old)
