"""Numbers that are counted for each of many keys, within a bound."""

from collections.abc import Mapping


class Counts:
    """Use counts of keys, with a bounded number of keys.

    Above the bound, the keys with the smaller counts are evicted together. New keys then start at the largest
    evicted count, so that no key has a count twice.

    Args:
        most: the bound on the number of keys.
    """

    def __init__(self, most: int):
        self._most = most
        self._counts: dict[str, int] = {}
        self._first = 0

    def __len__(self) -> int:
        return len(self._counts)

    def clear(self) -> None:
        """Count from 0 again."""
        self._counts, self._first = {}, 0

    def number(self, key: str) -> int:
        """Return how often a key was used so far, and count one more."""
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= self._most:
                self._forget()
            found = self._first
        self._counts[key] = found + 1
        return found

    def as_dict(self) -> dict[str, int]:
        """Return how often each key was used that is not forgotten."""
        return dict(self._counts)

    def update(self, counts: Mapping[str, int]) -> None:
        """Count on from other counts of some keys."""
        self._counts.update(counts)
        if len(self._counts) > self._most:
            self._forget()

    def copy(self) -> "Counts":
        """Return an independent copy."""
        twin = Counts(self._most)
        twin._counts, twin._first = dict(self._counts), self._first
        return twin

    def _forget(self) -> None:
        """Forget at least half of the keys."""
        counts = sorted(self._counts.values())
        self._first = max(self._first, counts[len(counts) // 2])
        self._counts = {k: n for k, n in self._counts.items() if n > self._first}
