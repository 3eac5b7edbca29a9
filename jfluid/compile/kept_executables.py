"""Executables of segments, kept on disk: a later process runs them without tracing the segment.

JAX's own cache is keyed by what tracing gives, and for most programs tracing takes longer than
loading. These files are keyed by all that tracing depends on: the program, the segment's inputs and
outputs with shapes and dtypes, the source files of this package, the versions of JAX and jaxlib,
JAX's configuration, flags, XLA's options and the processors.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax.experimental import serialize_executable

from jfluid import collector, environment, heap, kept_files
from jfluid.compile import library_fusions
from jfluid.compile.loaded_ahead import LoadedAhead
from jfluid.compile.plan import Plan
from jfluid.ir import schema
from jfluid.ops import registry

# Seconds to trace and compile from which on an executable is worth a file.
WORTH_KEEPING = 0.15
MOST_FILES = 500  # the oldest go first
# How names of machine code begin, and what of `functions.py` makes it known.
_MACHINE_CODE = {
    b"jfluid_direct_convolution": "images_registered",
    b"jfluid_direct_channel": "images_registered",
    b"jfluid_direct_overlap": "images_registered",
    b"jfluid_direct_windows": "windows_registered",
    b"jfluid_direct_product": "products_registered",
    b"jfluid_loop_": "loops_registered",
    b"jfluid_rows_": "rows_registered",
}
THREAD = "jfluid-keep"
_ENABLED = "jax_enable_compilation_cache"


class Entry:
    """A segment's executable on disk, whether it is there or not.

    Args:
        identity: what the segment is, beside the values that it is called with.
        options: XLA's.
    """

    def __init__(
        self,
        folder: Path,
        identity: Sequence[Any],
        device: jax.Device,
        options: Mapping[str, Any],
    ):
        self._folder, self._device = folder, device
        self._identity = (*identity, sorted(options.items()), device.platform, device.id)

    def load_or_compile(
        self, fresh: Callable[[], Any], arguments: Sequence[Any]
    ) -> tuple[Any, Callable[[Any], None]] | None:
        """Return what runs the segment, the executable of the file or a new one, and what is to be told the results of
        its first run: then it is written to the file, if it took long. None for arguments or results that are more
        than arrays.

        Args:
            fresh: gives the jitted function anew, which goes with what was traced.
            arguments: donated ones, others, and a random key.
        """
        path = self._path(arguments)
        if path is None:
            return None
        loaded = self.load(arguments)
        if loaded is not None:
            return loaded, lambda results: None
        start = time.perf_counter()
        with collector.paused(settle=True):
            traced = fresh().trace(*arguments)
            with _JAX_CACHE.unused():
                compiled = library_fusions.compiled(traced)
        if time.perf_counter() - start < WORTH_KEEPING:
            return compiled, lambda results: None
        schema.current().keep()
        heap.give_back()
        structure = jax.tree.structure((tuple(arguments), {}))
        return compiled, lambda results: _save_after(results, path, structure, compiled)

    def load(self, arguments: Sequence[Any]) -> Any:
        """Return the executable of the file; None where there is none."""
        path = self._path(arguments)
        if path is None:
            return None
        if arguments[0] or arguments[1]:
            return _AHEAD.load(path, self._device)
        # a startup program
        _AHEAD.begin(path, self._device)
        return _load(path, self._device)

    def _path(self, arguments: Sequence[Any]) -> Path | None:
        """Return the file for arguments; None for arguments that are more than arrays."""
        donated, others, key = arguments
        forms = [_form(v) for v in (*donated, *others, key)]
        if None in forms:
            return None
        text = repr((self._identity, [len(donated), len(others)], forms, _settings()))
        return self._folder / f"step-{hashlib.sha256(text.encode()).hexdigest()}"


def entry(
    plan: Plan, at: int, names: Sequence[Sequence[str]], device: jax.Device, options: Any
) -> Entry | None:
    """Return the entry of segment `at` of a plan; None where none is kept.

    Args:
        names: of its inputs and outputs.
    """
    folder = kept_files.folder()
    if folder is None:
        return None
    program = plan.block.program
    definitions = (registry.find(op.type) for block in program.blocks for op in block.ops)
    if not all(d is None or registry.is_built_in(d) for d in definitions):
        return None  # nothing says when the user's own function changes
    operators = [(i, op.type, op.inputs, op.outputs) for i, op, _ in plan.segments[at].ops]
    identity = (program.fingerprint, plan.block.idx, at, operators, [list(n) for n in names])
    return Entry(folder, identity, device, options)


class _JaxCache:
    """JAX's own cache, which spends a tenth of a second to write what is written here."""

    def __init__(self) -> None:
        self._lock, self._users, self._was = threading.Lock(), 0, True

    @contextlib.contextmanager
    def unused(self) -> Iterator[None]:
        """Switch it off, for all threads: there is no public setting of one thread."""
        with self._lock:
            if not self._users:
                self._was = bool(jax.config.jax_enable_compilation_cache)  # type: ignore[attr-defined]  # a field made by JAX's import
                jax.config.update(_ENABLED, False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    jax.config.update(_ENABLED, self._was)


_JAX_CACHE = _JaxCache()


def _form(value: Any) -> Any:
    """What an executable depends on of an argument; None for one that is no array."""
    if value is None:
        return "absent"
    if isinstance(value, jax.Array):
        return value.shape, str(value.dtype), bool(value.aval.weak_type), value.committed
    return (value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else None


def _settings() -> tuple[Any, ...]:
    """What tracing and compiling depends on beside the program."""
    return kept_files.settings(), environment.text("XLA_FLAGS", ""), _machine()


@functools.cache
def _machine() -> tuple[Any, ...]:
    """The versions of what compiles, and the processors it compiles for."""
    lines: set[str] = set()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        lines = {line for line in file if line.startswith(("model name", "flags", "Features"))}
    return (
        platform.python_version(),
        platform.machine(),
        jaxlib.version.__version__,
        sorted(lines) or platform.processor(),  # which asks a process of its own
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    )


def _plain(count: int) -> Any:
    """The structure of a segment's results that are arrays, `count` of them."""
    return jax.tree.structure(((0,) * count, ()))


def _load(path: Path, device: jax.Device) -> Any:
    """The executable in a file; None if there is none, or it is damaged."""
    if (writing := _WRITING.get(path)) is not None:
        writing.join()
    body = kept_files.read(path)
    if body is None:
        return None
    wanted = dict.fromkeys(known for name, known in _MACHINE_CODE.items() if name in body)
    if wanted:
        from jfluid.machine_code import functions  # LLVM, which not all programs need

        if not all(getattr(functions, known)() for known in wanted):
            return None
    try:
        arguments, results, payload = pickle.loads(body)
        return serialize_executable.deserialize_and_load(
            payload, arguments, results, backend=device.client, execution_devices=[device]
        )
    except (jax.errors.JaxRuntimeError, pickle.UnpicklingError, ValueError):
        return None  # another XLA wrote it, or for other processors


_AHEAD = LoadedAhead(_load)
_WRITING: dict[Path, threading.Thread] = {}  # the files that are being written


def _save_after(results: Any, path: Path, arguments: Any, compiled: Any) -> None:
    """Have a thread write an executable to a file when it has run. The process ends after that."""

    def save() -> None:
        try:
            with contextlib.suppress(
                RuntimeError
            ):  # the next run has taken them, or the run failed
                jax.block_until_ready(results)
            _save(path, arguments, compiled)
        finally:
            _WRITING.pop(path, None)  # another thread may have written the same

    _WRITING[path] = threading.Thread(target=save, name=THREAD)
    _WRITING[path].start()


def _save(path: Path, arguments: Any, compiled: Any) -> None:
    """Write an executable to a file, if it can be, with the structures of its arguments and results."""
    results = compiled.out_tree
    if results != _plain(results.num_leaves):
        return
    try:
        payload = serialize_executable.serialize(compiled)[0]
    except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError, pickle.PicklingError):
        return  # it holds arrays that it was traced with
    kept_files.write(path, pickle.dumps((arguments, results, payload)), MOST_FILES)
