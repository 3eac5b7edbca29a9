"""The memory of this process that is freed and used again: settings of glibc's allocator.

glibc gives large blocks back to the system when they are freed. A step of a program frees what it
computed with and the next one takes as much again; the system then maps and clears it anew, a page
fault for every 4 KB. Fluid's own allocator keeps memory, too.
"""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

from jfluid import environment

# Numbers of <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MESSAGE_BYTES = 4 << 20
MOST_KEPT = 1 << 30  # bytes of the largest block that the heap keeps
# Of the heap, so much is to be of huge pages: less than what makes the allocator give free memory back.
_HEAP_BYTES = 3 << 28
_HUGE_PAGE = 2 << 20
_APART_BYTES, _FENCE_BYTES = 64 << 20, 1 << 12
_HUGE_PAGES = 14  # MADV_HUGEPAGE of <sys/mman.h>
# With one of these a user has chosen, and the choice stays.
_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)
# The container's limit, by version 2 and 1 of Linux's control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int:
    """Return the bytes of memory of the machine or container."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _LIMITS:
        try:
            found.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # there is no such group, or "max"
            continue
    return min(found)


def keep_for_messages() -> None:
    """Keep freed memory of a server's messages (up to 4 MB) in the heap.

    A call of 13000 rows took 1.4 times as long when each message asked the system for memory.
    """
    _set({_MMAP_THRESHOLD: _MESSAGE_BYTES, _TRIM_THRESHOLD: 16 * _MESSAGE_BYTES})


def keep_for_steps() -> None:
    """Keep blocks of up to 1 GiB, which XLA takes and frees in each step on a CPU.

    Threads that start after this share the heap of the main thread: heaps of their own are too
    small for such blocks. So this is for before JAX starts; later it does less, but no harm.
    """
    if not any(environment.text(name) for name in _VARIABLES):
        _set({_MMAP_THRESHOLD: MOST_KEPT, _TRIM_THRESHOLD: MOST_KEPT, _ARENA_MAX: 1})
        _want_huge_pages()


def give_back() -> None:
    """Return free heap memory to the system, as after a compilation: steps can reuse little of it."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    if not any(environment.text(name) for name in _VARIABLES):
        _want_huge_pages()  # the heap grows anew


def set_apart() -> None:
    """Have a free block of 64 MB, which no step uses, serve what comes between steps.

    Else an array of a feed would take the first bytes of the block that the intermediate results of a step leave free,
    and the next step would take a second block. Only addresses are reserved, no memory.
    """
    if any(environment.text(name) for name in _VARIABLES) or not sys.platform.startswith("linux"):
        return
    if _addresses_are_limited():
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL("libc.so.6")
        library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        library.realloc.restype, library.realloc.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
        library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
        # Both at the end of the heap: blocks that shrink stay where they are.
        apart = library.realloc(library.malloc(_HEAP_BYTES), _APART_BYTES)
        library.realloc(library.malloc(_HEAP_BYTES - _APART_BYTES), _FENCE_BYTES)  # kept: the block joins no other
        library.free(apart)


def _want_huge_pages() -> None:
    """Have the heap grow in huge pages, where `transparent_hugepage` is `madvise` or `always`.

    Huge pages save TLB misses. Only addresses are reserved, no memory.
    """
    if not sys.platform.startswith("linux") or _addresses_are_limited():
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL("libc.so.6")
        library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
        library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        block = library.malloc(_HEAP_BYTES)
        if block:
            start = -(-block // _HUGE_PAGE) * _HUGE_PAGE
            pages = (block + _HEAP_BYTES - start) // _HUGE_PAGE
            library.madvise(start, pages * _HUGE_PAGE, _HUGE_PAGES)
            library.free(block)


def _addresses_are_limited() -> bool:
    import resource  # not on Windows

    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits)


def _set(options: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in options.items():
            mallopt(option, value)
