"""What was made lately, by what it was made for."""
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


class LruCache(OrderedDict[Hashable, T]):
    """What was made for the `most` keys that were asked for last."""

    def __init__(self, most: int = 32):
        super().__init__()
        self._most = most

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for a key, or is made now."""
        with contextlib.suppress(KeyError):  # of two threads the other may drop it
            self.move_to_end(key)
            return self[key]
        made = self[key] = make()
        if len(self) > self._most:
            self.popitem(last=False)
        return made
