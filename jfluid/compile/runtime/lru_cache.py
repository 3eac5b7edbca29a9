"""A bounded cache that drops the least recently used entry."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


class LruCache(OrderedDict[Hashable, T]):
    """Cache of the most recently used keys.

    Args:
        most: most keys.
        size: returns the size of a value; older values are dropped while all values have more than `most_size`.
    """

    def __init__(
        self,
        most: int = 32,
        size: Callable[[T], int] | None = None,
        most_size: Callable[[], int] = lambda: 0,
    ):
        super().__init__()
        self._most, self._size, self._most_size = most, size, most_size

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; `make` creates it if it is absent."""
        with contextlib.suppress(KeyError):  # a second thread may drop it
            self.move_to_end(key)
            return self[key]
        made = self[key] = make()
        if len(self) > self._most:
            self.popitem(last=False)
        if self._size is not None:
            sizes = list(map(self._size, list(self.values())))
            left = sum(sizes) - self._most_size()
            for size in sizes[:-1]:
                if left <= 0:
                    break
                self.popitem(last=False)
                left -= size
        return made
