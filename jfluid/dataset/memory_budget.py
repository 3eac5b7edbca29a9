"""The memory that the records of a dataset may take: more is refused before it is allocated."""

import threading

from jfluid import errors, flags
from jfluid.host.heap import memory_bytes

FLAG = "FLAGS_dataset_max_bytes"


def most_bytes() -> int:
    """Return the limit that was set, or three quarters of the memory of the machine or container."""
    return int(flags.get(FLAG)) or memory_bytes() * 3 // 4


class MemoryBudget:
    """A number of bytes that may be allocated. Safe for threads.

    Args:
        what: the method that allocates, for error messages.
        used: how many are allocated already.
    """

    def __init__(self, what: str, used: int = 0):
        self._what, self._used, self._most = what, used, most_bytes()
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Reserve `size` bytes before an allocation.

        Raises DataError if the budget is exceeded.
        """
        with self._lock:
            if self._used + size > self._most:
                raise errors.DataError(
                    f"{self._what}: the records and their copies would take {self._used + size:,} bytes of memory, "
                    f"and may take {self._most:,} ({FLAG}; by default three quarters of the machine's): "
                    "give each trainer fewer files, more memory, or use QueueDataset, which keeps no records"
                )
            self._used += size
