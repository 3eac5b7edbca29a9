"""A bounded cache that drops the least recently used entry."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


class LruCache(OrderedDict[Hashable, T]):
    """The values of the `most` keys that were used last."""

    def __init__(self, most: int = 32):
        super().__init__()
        self._most = most

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key; `make` creates it if it is absent."""
        with contextlib.suppress(KeyError):  # another thread may drop it
            self.move_to_end(key)
            return self[key]
        made = self[key] = make()
        if len(self) > self._most:
            self.popitem(last=False)
        return made
