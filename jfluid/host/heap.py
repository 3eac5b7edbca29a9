"""The memory of this process that is freed and used again: settings of glibc's allocator.

glibc gives large blocks back to the system when they are freed. A step of a program frees what it
computed with and the next one takes as much again; the system then maps and clears it anew, a page
fault for every 4 KB. Fluid's own allocator keeps memory, too.
"""

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jfluid import environment

# Numbers of <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MESSAGE_BYTES = 4 << 20
MOST_KEPT = 1 << 30  # bytes of the largest block that the heap keeps
# Bytes of the heap with huge pages: less than the bound above which the allocator returns free memory.
_HEAP_BYTES = 3 << 28
_HUGE_PAGE = 2 << 20
_APART_BYTES, _FENCE_BYTES = 64 << 20, 1 << 12
_HUGE_PAGES, _NOT_NEEDED = 14, 4  # MADV_HUGEPAGE and MADV_DONTNEED of <sys/mman.h>
_COMPILERS = ("/libjax_common.so", "/libllvmlite.so")  # libraries with LLVM
_SMAPS = "/proc/self/smaps"
_BETWEEN = 0.5  # seconds from one return of free memory to the next during a compilation
_LARGE_BYTES = 2 << 20  # of a block that is no part of the heap during a compilation
_USED = 7  # the field `uordblks` of `mallinfo2`
_SAMPLES = 32  # pages of a block that `holds_free` looks at
# Variables with which a user chooses; the choice stays.
_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)
_settings: dict[int, int] = {}  # the allocator's options, by their numbers
# The container's limit, by version 2 and 1 of Linux's control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class _Info(ctypes.Structure):
    """Result of `mallinfo2`."""

    _fields_ = (("numbers", ctypes.c_size_t * 10),)


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


@contextlib.contextmanager
def kept_small() -> Iterator[None]:
    """Return free heap memory to the system twice a second inside the context, which is a compilation.

    The passes of XLA free hundreds of megabytes before LLVM's code of each kernel takes as much again in smaller
    blocks, which fit the free ones only in part. Large arrays of steps beside the compilation are no part of the heap:
    the compilation would fill a part of each place that such an array leaves.
    """
    ended = threading.Event()

    def trim() -> None:
        library, keeps = _allocator(), keeps_blocks()
        while not ended.wait(_BETWEEN):
            if keeps:
                _set({_MMAP_THRESHOLD: _LARGE_BYTES})
            library.malloc_trim(0)
        if keeps:
            _set({_MMAP_THRESHOLD: MOST_KEPT})

    thread = threading.Thread(target=trim, name="jfluid-trim", daemon=True)
    if _trims():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def give_back_code() -> None:
    """Take the compilers' machine code out of the resident memory, 130 MiB after a compilation.

    Linux keeps the pages of the files in its cache, and maps pages again where the code runs. Code that a debugger
    has changed stays.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        madvise = _allocator().madvise
        for start, size in _code_of_compilers():
            madvise(start, size, _NOT_NEEDED)


def _code_of_compilers() -> list[tuple[int, int]]:
    """Return the address and the size of each mapping of the compilers' code that is as in its file."""
    found, place = [], None
    with open(_SMAPS) as file:
        for line in file:
            words = line.split()
            if line.startswith("Anonymous:"):
                if place is not None and words[1] == "0":
                    found.append(place)
            elif len(words) >= 5 and not words[0].endswith(":"):
                first, _, last = words[0].partition("-")
                is_code = words[1] == "r-xp" and words[-1].endswith(_COMPILERS)
                place = (int(first, 16), int(last, 16) - int(first, 16)) if is_code else None
    return found


def _trims() -> bool:
    """Return True if the C library can return free memory to the system."""
    try:
        return hasattr(_allocator(), "malloc_trim")
    except OSError:  # another C library
        return False


def keeps_blocks() -> bool:
    """Return True if the heap keeps blocks of up to `MOST_KEPT` bytes: it is glibc's, with the settings of steps."""
    return _settings.get(_MMAP_THRESHOLD) == MOST_KEPT


def used_bytes() -> int:
    """Return the bytes of the heap that are in use; 0 if the C library does not tell."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        return int(_allocator().mallinfo2().numbers[_USED])
    return 0


def holds_free(size: int) -> bool:
    """Return True if the heap would serve a block from resident memory; False if the block would be new memory."""
    library, page = _allocator(), os.sysconf("SC_PAGE_SIZE")
    block = library.malloc(size)
    library.free(block)  # at once: a different thread may take what lies behind the block
    if not block:
        return False
    first, pages = -(-block // page), size // page - 1
    state, resident = ctypes.create_string_buffer(1), 0
    for i in range(_SAMPLES):
        address = (first + i * pages // _SAMPLES) * page
        resident += library.mincore(address, page, state) == 0 and state.raw[0] & 1
    return resident > _SAMPLES // 2


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
        library = _allocator()
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
        library = _allocator()
        block = library.malloc(_HEAP_BYTES)
        if block:
            start = -(-block // _HUGE_PAGE) * _HUGE_PAGE
            pages = (block + _HEAP_BYTES - start) // _HUGE_PAGE
            library.madvise(start, pages * _HUGE_PAGE, _HUGE_PAGES)
            library.free(block)


@functools.cache
def _allocator() -> Any:
    """Return the C library with the types of its functions for memory."""
    library = ctypes.CDLL("libc.so.6")
    address, size = ctypes.c_void_p, ctypes.c_size_t
    library.malloc.restype, library.malloc.argtypes = address, [size]
    library.realloc.restype, library.realloc.argtypes = address, [address, size]
    library.free.restype, library.free.argtypes = None, [address]
    library.madvise.argtypes = [address, size, ctypes.c_int]
    library.mincore.argtypes = [address, size, ctypes.c_char_p]
    with contextlib.suppress(AttributeError):  # before glibc 2.33
        library.mallinfo2.restype = _Info
    return library


def _addresses_are_limited() -> bool:
    import resource  # not on Windows

    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits)


def _set(options: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in options.items():
            mallopt(option, value)
            _settings[option] = value
