"""Names that are unique within a generator, as Fluid numbers them: `fc_0`, `fc_1`, ..."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator

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


def switch(new_generator: UniqueNameGenerator | None = None) -> UniqueNameGenerator:
    """Make `new_generator` (a new one if None) the current generator; returns the one that it
    replaces.
    """
    global _generator
    old, _generator = _generator, new_generator or UniqueNameGenerator()
    return old


@contextlib.contextmanager
def guard(new_generator: str | bytes | UniqueNameGenerator | None = None) -> Iterator[None]:
    """A context in which names are counted anew; a string is put before every name made there."""
    if isinstance(new_generator, bytes):
        new_generator = new_generator.decode()
    if isinstance(new_generator, str):
        new_generator = UniqueNameGenerator(new_generator)
    old = switch(new_generator)
    try:
        yield
    finally:
        switch(old)
