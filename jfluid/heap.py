"""The memory of this process that is freed and used again: settings of glibc's allocator.

glibc gives large blocks back to the system when they are freed. A step of a program frees what it
computed with and the next one takes as much again; the system then maps and clears it anew, a page
fault for every 4 KB. Fluid's own allocator keeps memory, too.
"""

import contextlib
import ctypes

from jfluid import environment

# Numbers of <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MESSAGE_BYTES = 4 << 20
_STEP_BYTES = 1 << 30
# With one of these a user has chosen, and the choice stays.
_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)


def keep_for_messages() -> None:
    """Keep the memory of a server's messages (up to 4 MB): asking the system for it each time, a
    call of 13000 rows took 1.4 times as long.
    """
    _set({_MMAP_THRESHOLD: _MESSAGE_BYTES, _TRIM_THRESHOLD: 16 * _MESSAGE_BYTES})


def keep_for_steps() -> None:
    """Keep blocks of up to 1 GiB, which XLA takes and frees in each step on a CPU.

    Threads that start after this share the heap of the main thread: heaps of their own are too
    small for such blocks. So this is for before JAX starts; later it does less, but no harm.
    """
    if not any(environment.text(name) for name in _VARIABLES):
        _set({_MMAP_THRESHOLD: _STEP_BYTES, _TRIM_THRESHOLD: _STEP_BYTES, _ARENA_MAX: 1})


def give_back() -> None:
    """Give the system what is free, as after a compilation: little of it fits what steps ask for."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _set(options: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in options.items():
            mallopt(option, value)
