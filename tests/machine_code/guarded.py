"""Machine code between pages that nobody may touch: every array that a function is given or makes, its numbers and
the memory of its threads end, or begin, where such a page does. What reads or writes beside them ends the process.

`calls()` has steps run functions so, and compares what they make of two runs: with arrays that end at such a page and
with arrays that begin there, filled beforehand in two ways. What depends on that was read or left by nobody.
"""

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jfluid.machine_code import calls as machine_calls
from jfluid.machine_code import ffi_runtime, kernel_registry, llvm_writer, row_kernels

PAGE = mmap.PAGESIZE
HEADER = ffi_runtime._HEADER
_NOBODY, _READ_WRITE, _PRIVATE_ANONYMOUS = 0, mmap.PROT_READ | mmap.PROT_WRITE, 0x22
_FILLS = (0xFF, 0x5A)  # bytes: numbers that are none, and large ones
# Where the names of functions that ran are written, and what runs now: its process may end there.
RAN, RUNS = "ran", "runs"

_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_C.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Buffer:
    """So many bytes between two pages that nobody may touch.

    Args:
        at_end: the bytes end where the second one begins; else they begin where the first one ends.

    Attributes:
        address: of the first byte.
        bytes: all of them, as an array.
    """

    def __init__(self, size: int, at_end: bool):
        room = -(-size // PAGE) * PAGE
        self._size = room + 2 * PAGE
        self._base = _C.mmap(None, self._size, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        assert self._base not in (None, ctypes.c_void_p(-1).value), "no memory for guards"
        for page in (self._base, self._base + PAGE + room):
            assert _C.mprotect(page, PAGE, _NOBODY) == 0, "pages cannot be guarded"
        self.address = self._base + PAGE + (room - size if at_end else 0)
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))

    def close(self) -> None:
        _C.munmap(self._base, self._size)


@functools.cache
def _function(name: str, pointers: int) -> Any:
    """The function that does a chunk."""
    machine_code = kernel_registry.object_file(name.split("_")[1])
    (address,) = llvm_writer.load(machine_code, [ffi_runtime.chunk_of(name)])
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * pointers, ctypes.c_int64)(address)


class Guards:
    """Runs functions between guards.

    Args:
        folder: where it is noted what runs.

    Attributes:
        ran: names of the functions that have run.
    """

    def __init__(self, folder: Path | None = None):
        self.ran: set[str] = set()
        self._folder = folder

    def run(
        self,
        name: str,
        numbers: np.ndarray,
        given: Sequence[np.ndarray],
        made: Sequence[Any],
        aliases: Mapping[int, int],
    ) -> list[np.ndarray]:
        """Return what a function makes of arrays."""
        self._note(name, numbers)
        first, second = (
            self._once(name, numbers, given, made, aliases, at_end, fill) for at_end, fill in zip((True, False), _FILLS)
        )
        known = dict(zip(kernel_registry.group_of(name).geometry, numbers.tolist()))
        for one, other in zip(*(_written(name, found) for found in (first, second))):
            np.testing.assert_array_equal(
                _bytes(one),
                _bytes(other),
                f"{name} {known}: results depend on what was in memory before",
            )
        return first

    def _once(
        self,
        name: str,
        numbers: np.ndarray,
        given: Sequence[np.ndarray],
        made: Sequence[Any],
        aliases: Mapping[int, int],
        at_end: bool,
        fill: int,
    ) -> list[np.ndarray]:
        with contextlib.ExitStack() as open_:

            def buffer(size: int, content: np.ndarray | None = None) -> Buffer:
                found = Buffer(size, at_end)
                open_.callback(found.close)
                found.bytes[...] = fill if content is None else _bytes(content)
                return found

            inputs = [buffer(array.nbytes, array) for array in given]
            over = {result: inputs[i] for i, result in aliases.items()}
            outputs = [
                over.get(i) or buffer(int(np.prod(m.shape)) * np.dtype(m.dtype).itemsize) for i, m in enumerate(made)
            ]
            geometry = buffer(numbers.nbytes, numbers)
            chunks, memory = numbers[:2].tolist()
            threads = [buffer(HEADER + 4 * memory) for _ in range(2)]
            for thread in threads:
                thread.bytes[HEADER - ffi_runtime._HOLDS : HEADER] = 0  # as a call begins
            arrays = [*inputs, *outputs, geometry]
            function = _function(name, len(arrays) + 1)
            for at, chunk in enumerate(np.random.RandomState(chunks).permutation(chunks)):
                scratch = threads[at % 2].address + HEADER
                function(*(b.address for b in arrays), scratch, int(chunk))
            for i, (array, held) in enumerate(zip(given, inputs)):
                if i not in aliases:
                    np.testing.assert_array_equal(held.bytes, _bytes(array), f"{name} has written to what it was given")
            return [held.bytes.copy().view(np.dtype(m.dtype)).reshape(m.shape) for m, held in zip(made, outputs)]

    def _note(self, name: str, numbers: np.ndarray) -> None:
        if self._folder is not None:
            (self._folder / RUNS).write_text(f"{name} {numbers.tolist()}")
            if name not in self.ran:
                with (self._folder / RAN).open("a") as file:
                    file.write(f"{name}\n")
        self.ran.add(name)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _written(name: str, found: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """What a function has to write: rows that were not asked for are anybody's."""
    if name == row_kernels.MERGE:
        once, sums, count = found
        return once, sums[: int(count[0])], count
    return found


@contextlib.contextmanager
def calls(folder: Path | None = None) -> Iterator[Guards]:
    """A context in which steps that are traced run machine code between guards; `Guards` has what ran."""
    guards, real = Guards(folder), jax.ffi.ffi_call

    def ffi_call(name: str, results: Sequence[Any], **options: Any) -> Any:
        aliases = options.get("input_output_aliases") or {}

        def host(*arrays: Any) -> list[np.ndarray]:
            *given, numbers = map(np.asarray, arrays)
            return guards.run(name, numbers, given, results, aliases)

        def call(*arrays: Any) -> Any:
            if any(isinstance(a, jax.core.Tracer) for a in arrays):
                method = options.get("vmap_method")
                return jax.pure_callback(host, list(results), *arrays, vmap_method=method)
            return host(*arrays)

        return call

    jax.ffi.ffi_call = ffi_call
    try:
        yield guards
    finally:
        jax.ffi.ffi_call = real


assert machine_calls.jax is jax  # it asks `jax.ffi.ffi_call` for each call
