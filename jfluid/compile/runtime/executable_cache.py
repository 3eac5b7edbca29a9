"""Cache of executables on disk, for segments and for steps of imperative mode: a hit needs no tracing.

JAX's own cache is keyed by the traced program, and for most programs tracing takes longer than
loading. The files here are keyed by all that tracing depends on: the operators, the inputs and
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
from typing import Any, NamedTuple, Protocol

import jax
import jaxlib.version
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from jfluid import environment, flags
from jfluid.caches import kept_files
from jfluid.compile.lowering.plan import Item, Plan
from jfluid.compile.runtime import library_fusions
from jfluid.compile.runtime.executable_prefetch import ExecutablePrefetch
from jfluid.host import collector, heap
from jfluid.ir import schema
from jfluid.ir.program import named
from jfluid.ops import registry

_LONG = 0.15  # seconds of tracing and compiling, after which there is memory to be given back
MOST_FILES = 4096  # the most recently used files stay
THREAD = "jfluid-keep"
_ADDRESS = " at 0x"  # in the `repr` of an object without an identity beyond the process
_ENABLED = "jax_enable_compilation_cache"


class TraceResults(Protocol):
    """Results of tracing besides the executable, stored in the same file."""

    def noted(self) -> Any:
        """Return the results after tracing, to be pickled."""

    def learn(self, noted: Any) -> None:
        """Take the results from a file, in place of tracing."""


class JoinedTraceResults:
    """Results of several objects besides one executable."""

    def __init__(self, parts: Sequence[TraceResults]):
        self._parts = parts

    def noted(self) -> Any:
        """See `TraceResults`."""
        return [part.noted() for part in self._parts]

    def learn(self, noted: Any) -> None:
        """See `TraceResults`."""
        for part, own in zip(self._parts, noted, strict=True):
            part.learn(own)


class DiskEntry:
    """Cache entry of a function, which may have a file or not.

    Args:
        identity: values with a `repr` that identifies the function, besides its arguments.
        devices: devices that the function runs on.
        options: XLA's options.
        beside: further contents of the file.
    """

    def __init__(
        self,
        folder: Path,
        identity: Sequence[Any],
        devices: Sequence[jax.Device],
        options: Mapping[str, Any],
        beside: TraceResults | None = None,
    ):
        self._folder, self._devices, self._options = folder, devices, options
        self._identity, self._beside = tuple(identity), beside

    def of(self, *more: Any, beside: TraceResults | None = None) -> "DiskEntry":
        """Return the entry of a different function of the same operators.

        Args:
            more: values that identify the function among the functions of the operators.
        """
        identity = (*self._identity, *more)
        return DiskEntry(self._folder, identity, self._devices, self._options, beside)

    def same(self, *more: Any) -> "DiskEntry":
        """Return the entry of a different form of the same function, with the same results besides the executable."""
        return self.of(*more, beside=self._beside)

    def with_part(self, part: TraceResults, *more: Any) -> "DiskEntry":
        """Return the entry of a different function, as `of`, with further results besides the executable."""
        return self.of(*more, beside=part if self._beside is None else JoinedTraceResults([self._beside, part]))

    def prepare(self, trace: Callable[[], Any], arguments: Sequence[Any]) -> Callable[[], Any] | None:
        """Return a function that loads or compiles the executable for arguments, or None without a cache key.

        The function holds no arguments, and starts a thread that writes a new executable to the file. Arguments without
        a textual form have no cache key.

        Args:
            trace: returns the traced function.
            arguments: arguments of the function; the first tuple is donated.
        """
        path = self._path(arguments)
        if path is None:
            return None
        starts = not jax.tree.leaves(arguments[:2])
        structure = jax.tree.structure((tuple(arguments), {}))

        def load_or_compile() -> Any:
            loaded = self._loaded(path, starts)
            if loaded is not None:
                return loaded
            start = time.perf_counter()
            with collector.paused(settle=True):
                traced = trace()
                with _JAX_CACHE.unused():
                    compiled = library_fusions.compiled(traced)
            noted = None if self._beside is None else self._beside.noted()
            if time.perf_counter() - start > _LONG:
                schema.current().keep()
                heap.give_back()
                heap.give_back_code()
            _save(_File(path, [device.id for device in self._devices], structure, noted), compiled)
            return compiled

        return load_or_compile

    def load(self, arguments: Sequence[Any]) -> Any:
        """Return the executable of the file, or None without a file."""
        path = self._path(arguments)
        return None if path is None else self._loaded(path, not jax.tree.leaves(arguments[:2]))

    def _loaded(self, path: Path, starts: bool) -> Any:
        """Return the executable of a file, or None without a file; `starts` is True for a startup program."""
        if starts:
            _AHEAD.begin(path, self._devices)
            found = _load(path, self._devices)
        else:
            found = _AHEAD.load(path, self._devices)
        if found is None:
            return None
        if self._beside is not None:
            self._beside.learn(found.noted)
        return found.run

    def noted_sizes(self) -> list[Any]:
        """Return the sizes of kept executables that `note_sizes` has noted."""
        path = self._named("sizes")
        body = None if path is None else kept_files.read(path)
        return [] if body is None else list(pickle.loads(body))

    def note_sizes(self, sizes: list[Any]) -> None:
        """Note the sizes of kept executables, for later processes."""
        path = self._named("sizes")
        if path is not None:
            kept_files.write(path, pickle.dumps(sizes), MOST_FILES)

    def _path(self, arguments: Sequence[Any]) -> Path | None:
        """Return the file for arguments, or None for arguments without a textual form."""
        leaves, structure = jax.tree.flatten(tuple(arguments))
        forms = [_form(v) for v in leaves]
        return None if None in forms else self._named("step", structure, forms)

    def _named(self, kind: str, *more: Any) -> Path | None:
        """Return a file of the function, or None if a value without a textual form identifies the function."""
        devices = [(d.platform, d.device_kind, d.id) for d in self._devices]
        text = repr((self._identity, sorted(self._options.items()), devices, *more, _settings()))
        return None if _ADDRESS in text else self._folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()}"


def entry(
    plan: Plan,
    at: int,
    identity: Sequence[Any],
    devices: Sequence[jax.Device],
    options: Any,
    beside: TraceResults | None = None,
) -> DiskEntry | None:
    """Return the entry of segment `at` of a plan, or None if the segment is not cached.

    Args:
        identity: values that identify the function among the functions of the segment.
        beside: as of `DiskEntry`.
    """
    folder = kept_files.folder()
    if folder is None:
        return None
    program = plan.block.program
    definitions = (registry.find(op.type) for block in program.blocks for op in block.ops)
    if not all(d is None or registry.is_built_in(d) for d in definitions):
        return None  # nothing says when the user's own function changes
    operators = [(i, op.type, op.inputs, op.outputs) for i, op, _ in plan.segments[at].ops]
    whole = (program.fingerprint, plan.block.idx, at, operators, identity)
    return DiskEntry(folder, whole, devices, options, beside)


def entry_of_items(
    items: Sequence[Item],
    identity: Sequence[Any],
    device: jax.Device,
    options: Mapping[str, Any],
    beside: TraceResults | None = None,
) -> DiskEntry | None:
    """Return the entry of operators outside of any program, or None if the operators are not cached.

    Args:
        identity: values that identify the function, besides the operators' names and attributes.
        beside: as of `DiskEntry`.
    """
    folder = kept_files.folder()
    if folder is None:
        return None
    definitions = [registry.find(op.type) for _, op, _ in items]
    if not all(d is not None and registry.is_built_in(d) for d in definitions):
        return None  # an operator of the user, or a declared function
    operators = [
        (op.type, op.inputs, op.outputs, sorted((n, named(v)) for n, v in op.attrs.items())) for _, op, _ in items
    ]
    return DiskEntry(folder, (operators, *identity), [device], options, beside)


class _JaxCache:
    """Switch of JAX's own cache.

    XLA writes an executable that it has loaded from JAX's cache without its code: such a file fails when it runs. In
    addition, JAX takes 0.1 seconds to write an executable that is written here.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._was = threading.Lock(), 0, True

    @contextlib.contextmanager
    def unused(self) -> Iterator[None]:
        """Switch it off, for all threads: there is no public setting of one thread."""
        with self._lock:
            if not self._users:
                self._was = bool(jax.config.jax_enable_compilation_cache)  # type: ignore[attr-defined]
                self._set(False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._set(self._was)

    def _set(self, enabled: bool) -> None:
        jax.config.update(_ENABLED, enabled)
        compilation_cache.reset_cache()  # JAX reads the setting at the first compilation only


_JAX_CACHE = _JaxCache()


def _form(value: Any) -> Any:
    """Return the properties of an array that an executable depends on, or None for any other value."""
    if isinstance(value, jax.Array):
        where = str(value.sharding) if value.committed and len(value.devices()) > 1 else ""
        return value.shape, str(value.dtype), bool(value.aval.weak_type), value.committed, where
    return (value.shape, str(value.dtype)) if isinstance(value, np.ndarray) else None


def _settings() -> tuple[Any, ...]:
    """Return the settings that tracing and compiling depend on, besides the program."""
    return kept_files.settings(), environment.text("XLA_FLAGS", ""), _machine()


@functools.cache
def _machine() -> tuple[Any, ...]:
    """Return the versions of Python and jaxlib, and the processors."""
    lines: set[str] = set()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        lines = {line for line in file if line.startswith(("model name", "flags", "Features"))}
    return (
        platform.python_version(),
        platform.machine(),
        jaxlib.version.__version__,
        sorted(lines) or platform.processor(),  # which starts a process
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    )


class CachedExecutable(NamedTuple):
    """Contents of a file: an executable, and further results of tracing."""

    run: Any
    noted: Any


def _load(path: Path, devices: Sequence[jax.Device]) -> CachedExecutable | None:
    """Read a file; return None if it does not exist or is damaged."""
    if (writing := _WRITING.get(path)) is not None:
        writing.join()
    body = kept_files.read(path)
    if body is None:
        return None
    wanted = [name for name in flags.CPU_KERNELS if f"jfluid_{name}".encode() in body]
    if wanted:
        from jfluid.machine_code import kernel_registry  # LLVM, which not all programs need

        if not all(map(kernel_registry.is_on, wanted)):
            return None
    try:
        numbers, arguments, results, noted, payload = pickle.loads(body)
        if numbers != [device.id for device in devices]:
            return None  # the next program may run on more devices than the startup program
        run = serialize_executable.deserialize_and_load(
            payload,
            jax.tree.structure(arguments),
            jax.tree.structure(results),
            backend=devices[0].client,
            execution_devices=devices,
        )
    except (jax.errors.JaxRuntimeError, pickle.UnpicklingError, ValueError):
        return None  # written by an XLA of a different version, or for different processors
    return CachedExecutable(run, noted)


_AHEAD = ExecutablePrefetch(_load)
_WRITING: dict[Path, threading.Thread] = {}  # the files that are being written


class _File(NamedTuple):
    """File to be written.

    Attributes:
        devices: numbers of the executable's devices.
        arguments: the structure of the arguments.
        noted: results of tracing besides the executable.
    """

    path: Path
    devices: list[int]
    arguments: Any
    noted: Any


def _save(file: _File, compiled: Any) -> None:
    """Start a thread that writes an executable to a file, if XLA can serialize it. The process ends after the thread.

    An executable with a sort can be serialized only before its first run.
    """
    try:
        payload = serialize_executable.serialize(compiled)[0]
    except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError, pickle.PicklingError):
        return  # it holds arrays that it was traced with
    # Trees of numbers in place of the structures, which cannot be pickled if they have sequences.
    structures = file.arguments, compiled.out_tree
    trees = [jax.tree.unflatten(s, range(s.num_leaves)) for s in structures]

    def write() -> None:
        try:
            with contextlib.suppress(pickle.PicklingError):
                kept_files.write(file.path, pickle.dumps((file.devices, *trees, file.noted, payload)), MOST_FILES)
        finally:
            _WRITING.pop(file.path, None)  # a second thread may have written the file

    _WRITING[file.path] = threading.Thread(target=write, name=THREAD)
    _WRITING[file.path].start()
