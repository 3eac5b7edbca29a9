"""Executables in memory: one for each form of a function's arguments, within a limit of bytes for the process.

The least recently used executables are dropped first. `jax.jit` would keep the trace and the lowered module of each
executable, seven eighths of a small executable's memory (1.2 MB). So each executable is compiled ahead of time, by a
jitted function that is dropped afterwards.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol
from weakref import ref

import jax
import numpy as np
from jax.extend import core

from jfluid import errors, flags, record
from jfluid.compile.numpy_steps.beside import Beside, interpreted
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.compile.runtime import jax_caches, large_runs, library_fusions, memory
from jfluid.compile.runtime.covers import Covers, Notes, Sized
from jfluid.compile.runtime.large_runs import LargeRun
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.wider_slots import Layouts, fit, layouts_of, offsets_of, widened
from jfluid.host import collector, heap

FLAG = "FLAGS_compiled_max_bytes"
# Native memory, measured on CPUs: of any executable, and for each byte in which XLA describes where its values are. Of
# code XLA itself knows the size on GPUs only.
_EACH, _FOR_PLACES = 200 << 10, 300
_FEW = 8  # number of latest executables that always stay: a running step needs its executables
_WORTH_GIVING_BACK = 32 << 20
# XLA:CPU compiles 4,000 dependent products in 5 seconds, 8,000 in 64, and 50,000 would take hours.
_MOST_OPERATIONS = 50_000
_TIMED = 3  # measured runs of an executable, which steps wait for
_MOST_BEGUN = 8  # forms of arguments that are interpreted
_MOST_INTERPRETED = 256 << 20  # most bytes of arguments to interpret: the interpreter copies arguments
# Code and data of an executable lie in 4 to 200 mappings of memory, and Linux gives a process 65,530. The number
# in use is looked up after each `_LOOK_AT_MAPPINGS` executables.
_LOOK_AT_MAPPINGS = 16
_MAPPINGS, _MOST_MAPPINGS = "/proc/self/maps", "/proc/sys/vm/max_map_count"

Arguments = Sequence[Any]
# Shape and dtype of an array; None for no value; of a sequence the forms of its values.
Form = Any
Place = tuple[int, int]  # of a value: which argument, and which of its values; -1 for an argument that is no sequence


class ExecutableStorage(Notes, Protocol):
    """Storage of a function's executables beyond the memory of the process."""

    def prepare(self, trace: Callable[[], Any], arguments: Arguments) -> Callable[[], Any] | None:
        """Return a function that makes an executable and stores it; None to store none."""

    def load(self, arguments: Arguments) -> Any:
        """Return the stored executable, or None."""


def most_bytes() -> int:
    """Return the limit of bytes: the flag's, or a thirty-second of the memory.

    The limit is at least 512 MiB, if that is at most a quarter of the memory.
    """
    memory = heap.memory_bytes()
    return int(flags.get(FLAG)) or max(memory // 32, min(512 << 20, memory // 4))


class Executable:
    """Compiled function for arguments of one form.

    Attributes:
        run: calls the executable.
        bytes: approximate memory of the executable.
        used: True if it was called again since memory was short.
        layouts, seconds: see `covers.Sized`.
    """

    __slots__ = ("__weakref__", "bytes", "forms", "layouts", "owner", "places", "run", "seconds", "timed", "used")

    def __init__(self, run: Any, arguments: Arguments, owner: "ref[Executables]"):
        self.owner, self.used = owner, False
        self.forms, self.places = _forms(arguments), _places(arguments)
        self.layouts, self.seconds, self.timed = layouts_of(arguments), math.inf, 0
        stats = run.memory_analysis()
        temporary = int(getattr(stats, "temp_size_in_bytes", 0))
        self.run = LargeRun(run, temporary) if temporary >= large_runs.LARGE else run
        described = len(getattr(stats, "serialized_buffer_assignment_proto", b""))
        code = int(getattr(stats, "generated_code_size_in_bytes", 0))
        self.bytes = _EACH + code + _FOR_PLACES * described

    def run_timed(self, arguments: Arguments) -> Any:
        """Run the executable for a batch of smaller sizes; the first runs are measured."""
        self.used = True
        if self.timed >= _TIMED:
            return self.run(*arguments)
        start = time.perf_counter()
        results = jax.block_until_ready(self.run(*arguments))
        self.seconds, self.timed = min(self.seconds, time.perf_counter() - start), self.timed + 1
        return results


class Kept:
    """All executables of this process, by weak references: executables belong to their functions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[ref[Executable]] = []  # the oldest first
        self._added = 0

    def __iter__(self) -> Iterator[Executable]:
        """Yield the executables that still exist."""
        return (found for held in self._held if (found := held()) is not None)

    @property
    def bytes(self) -> int:
        """Memory of all executables in bytes."""
        return sum(found.bytes for found in self)

    def add(self, new: Executable) -> None:
        """Add an executable. If memory is short, drop the oldest executables, first the ones that were called once."""
        with self._lock:
            self._held = [*map(ref, self), ref(new)]
            gone = self._make_room()
        if gone >= _WORTH_GIVING_BACK:
            heap.give_back()

    def _make_room(self) -> int:
        """Drop executables over the limit, and an eighth of the limit more; return the bytes that were dropped."""
        total, most, gone = self.bytes, most_bytes(), 0
        self._added += 1
        if self._added % _LOOK_AT_MAPPINGS == 0 and _few_mappings_are_left():
            most = min(most, total - 1)
        if total <= most:
            return 0
        every = list(self)
        latest, others = every[-_FEW:], sorted(every[:-_FEW], key=lambda found: found.used)
        while total - gone > most - most // 8 and others:
            old = others.pop(0)
            owner = old.owner()
            if owner is not None:
                owner.forget(old)
            gone += old.bytes
        stay = others + latest
        for found in stay:
            found.used = False
        self._held = list(map(ref, stay))
        return gone


KEPT = Kept()


class WaitedCall:
    """Base of calls of several devices or processes, which wait for their compilation."""

    def begin(self, arguments: Arguments, at_once: bool = True) -> bool:
        """Return True: the call waits for its compilation."""
        return True


class Executables:
    """Function that is compiled for each form of arguments, at the first call with the form.

    Args:
        fresh: returns `jax.jit` of the function anew; its traces go away together with the jitted function.
        entry: storage of executables beyond this process.
        interprets: the device on which the function is interpreted until it is compiled; None to wait for its
            compilation.
        widens: True if sequences may be padded to larger sizes, which another batch has led to.
    """

    def __init__(
        self,
        fresh: Callable[[], Any],
        entry: ExecutableStorage | None = None,
        interprets: jax.Device | None = None,
        widens: bool = True,
    ):
        self._fresh, self._entry, self._interprets, self._widens = fresh, entry, interprets, widens
        self._begun = LruCache[Beside](_MOST_BEGUN)
        self._covers = Covers(entry)
        self._traced: dict[Form, Layouts] = {}  # layouts of slots by the forms of `_begun`
        self._loaded: tuple[Form, Any] | None = None  # from a file, for the next call
        self._missing = LruCache[None](_MOST_BEGUN)  # forms without a file
        self._all: dict[Form, Executable] = {}
        self._only: Executable | None = None  # if there is one
        # the places where the forms differ, and the executables by their forms at these places
        self._differ: list[Place] = []
        self._found: dict[Form, Executable] = {}

    def __call__(self, *arguments: Any) -> Any:
        found = self._only
        if found is None and self._found:
            found = self._found.get(tuple([_form(_at(arguments, p)) for p in self._differ]))
        if found is not None:
            found.used = True
            try:
                return found.run(*arguments)
            except (TypeError, ValueError):  # it has not run: the arguments have a different form
                if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(arguments)):
                    raise  # it has run, and lost the other processes
                if found.forms == _forms(arguments):
                    self.forget(found)  # the arguments are on a different device
        return self._run_other(arguments)

    @property
    def interprets(self) -> bool:
        """True if steps are interpreted until they are compiled."""
        return self._interprets is not None

    def trace(self, *arguments: Any) -> Any:
        """Return the function as JAX traces it. Raises UnsupportedError for more operations than XLA can compile."""
        traced = self._fresh().trace(*arguments)
        _check_operations(traced.jaxpr.jaxpr)
        return traced

    def lower(self, *arguments: Any) -> Any:
        """Return the lowered function, which is passed to XLA."""
        return self.trace(*arguments).lower()

    def count(self) -> int:
        """Return the number of executables."""
        return len(self._all)

    def begin(self, arguments: Arguments, at_once: bool = True) -> bool:
        """Begin to compile the function for arguments beside the steps.

        Returns False while the arguments have no executable yet; True once they have one, and where steps wait for it.

        Args:
            at_once: False to begin nothing, and only look for an executable in memory and on disk.
        """
        forms = _forms(arguments)
        if self._interprets is None or forms in self._all:
            return True
        begun = self._begun.get(forms)
        if begun is None and not at_once:
            return _bytes(arguments) > _MOST_INTERPRETED or self._is_loaded(forms, arguments)
        begun = begun or self._beside(forms, arguments)
        return begun is None or (begun.begin() if at_once else begun.done)

    def interpret(self, listing: Listing, arguments: Arguments) -> list[jax.Array]:
        """Return the results of a listing that stands for the function, on the function's device."""
        assert self._interprets is not None  # `begin` returns False
        return interpreted(listing, arguments, self._interprets)

    def forget(self, old: Executable) -> None:
        """Drop an executable. It is compiled again when it is called."""
        if self._all.get(old.forms) is old:
            del self._all[old.forms]
            self._arrange()

    def _run_other(self, arguments: Arguments) -> Any:
        """Run the executable for arguments that `_found` does not have, or that it failed for."""
        forms = _forms(arguments)
        found = self._all.get(forms)
        if found is not None:
            found.used = True
            return found.run(*arguments)
        if self._interprets is not None:
            arguments = self._covered(forms, arguments) if self._widens else arguments
            forms = _forms(arguments)
            if (cover := self._all.get(forms)) is not None:
                return cover.run_timed(arguments)
            results = self._interpreted(forms, arguments)
            if results is not None:
                return results
        begun = self._begun.pop(forms, None)
        start = time.perf_counter()
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded[0] == forms:
            run = loaded[1]
        elif begun:
            run = begun.compiled()
        else:
            run = self._compilation(lambda: self.trace(*arguments), arguments)()
        seconds = time.perf_counter() - start
        found = Executable(run, arguments, ref(self))
        if found.layouts is not None and loaded is None and self._interprets is not None:
            self._covers.note(found.layouts, begun.seconds if begun else seconds)
        self._all[found.forms] = found
        self._arrange()
        KEPT.add(found)
        record.compiled(seconds, [_form(_at(arguments, place)) for place in self._differ])
        results = found.run(*arguments)
        jax_caches.look()
        return results

    def _covered(self, forms: Form, arguments: Arguments) -> Arguments:
        """Return the arguments, with slots at larger sizes that are compiled, kept in a file, or traced."""
        own, begun = layouts_of(arguments), self._begun.get(forms)
        if own is None or (begun is not None and begun.done):
            return arguments
        cover: Sized | None = self._covers.least(own, self._all.values())
        if cover is not None and cover.layouts is not None:
            if begun is None and self._covers.pays(own, cover):
                begun = self._beside(forms, arguments)
                if begun is None or begun.begin():
                    return arguments
            return widened(arguments, cover.layouts)
        if self._is_loaded(forms, arguments):
            return arguments
        for layouts in self._covers.noted():
            if fit(own, layouts) and self._is_loaded(_forms(wide := widened(arguments, layouts)), wide):
                return wide
        return widened(arguments, self._covers.traced(own, offsets_of(arguments), self._begun, self._traced))

    def _compilation(self, trace: Callable[[], Any], arguments: Arguments) -> Callable[[], Any]:
        """Return a function that compiles: it returns the executable.

        The function does not hold the arguments, unless `trace` does: a step may overwrite these meanwhile.
        """
        kept = self._entry.prepare(trace, arguments) if self._entry else None

        def compile() -> Any:
            LargeRun.give_back()
            with jax_caches.not_kept(), heap.kept_small():
                return kept() if kept else library_fusions.compiled(trace())

        return compile

    def _interpreted(self, forms: Form, arguments: Arguments) -> Any:
        """Return the results of the interpreter, or None to run the compiled function."""
        begun = self._beside(forms, arguments)
        return None if begun is None else begun.run(arguments)

    def _beside(self, forms: Form, arguments: Arguments) -> Beside | None:
        """Return the compilation beside the steps, or None to run the compiled function."""
        begun = self._begun.get(forms)
        if begun is not None:
            return begun
        if _bytes(arguments) > _MOST_INTERPRETED:
            return None
        if self._is_loaded(forms, arguments):
            return None
        start = time.perf_counter()
        with collector.paused(settle=True):
            traced = self.trace(*arguments)
        seconds = time.perf_counter() - start
        compile, spent = self._compilation(lambda: traced, arguments), 0.0
        layouts = layouts_of(arguments)
        if layouts is not None:
            spent = self._give_up(layouts)
            self._traced[forms] = layouts
        begun = Beside(traced, seconds, compile, self._interprets, spent)
        begun.is_guess = layouts is not None and self._covers.is_guess
        return self._begun.get_or_make(forms, lambda: begun)

    def _give_up(self, layouts: Layouts) -> float:
        """Give up compilations, not begun yet, that new sizes replace; return the seconds of their steps."""
        traced = {f: own for f, own in self._traced.items() if f in self._begun}
        replaced = [f for f, own in traced.items() if fit(own, layouts) or self._begun[f].is_guess]
        given_up = [f for f in replaced if self._begun[f].give_up()]
        spent = sum(self._begun.pop(f).interpreting for f in given_up)
        self._traced = {f: own for f, own in self._traced.items() if f in self._begun}
        return spent

    def _is_loaded(self, forms: Form, arguments: Arguments) -> bool:
        """Return True if the next call gets its executable from a file, which is looked for once."""
        if self._loaded is not None and self._loaded[0] == forms:
            return True
        if self._entry is None or forms in self._missing:
            return False
        loaded = self._entry.load(arguments)
        if loaded is None:
            self._missing.get_or_make(forms, lambda: None)
            return False
        self._loaded = forms, loaded
        return True

    def _arrange(self) -> None:
        """Find the places at which the forms of the executables differ."""
        every, found = list(self._all.values()), {}
        if len(every) > 1 and all(one.places == every[0].places for one in every):
            forms = [one.forms for one in every]
            self._differ = [place for place in every[0].places if len({_at(f, place) for f in forms}) > 1]
            found = {tuple([_at(one.forms, p) for p in self._differ]): one for one in every}
        self._only, self._found = every[0] if len(every) == 1 else None, found


def _check_operations(jaxpr: Any) -> None:
    """Raise an error for a trace that XLA cannot compile, bodies of loops included.

    It is UnsupportedError for more than `_MOST_OPERATIONS` operations, and OutOfMemoryError for a value whose bytes XLA
    cannot count.
    """
    waiting, count = [jaxpr], 0
    while waiting:
        equations = waiting.pop().eqns
        count += len(equations)
        for equation in equations:
            for out in equation.outvars:
                memory.check(f"a value within the step ({equation.primitive})", out.aval)
        waiting += [inner for equation in equations for inner in core.jaxprs_in_params(equation.params)]
    if count > _MOST_OPERATIONS:
        raise errors.UnsupportedError(
            f"the step has {count} operations, expected at most {_MOST_OPERATIONS}: XLA would compile it for hours. "
            "Run the program in parts, each with its own fetch list, or write repeated layers as a loop"
        )


def _few_mappings_are_left() -> bool:
    """Return True if fewer than a quarter of this process's memory mappings are left."""
    try:
        with open(_MOST_MAPPINGS) as most, open(_MAPPINGS) as there:
            return sum(1 for _ in there) > int(most.read()) * 3 // 4
    except OSError:
        return False  # not Linux


def _bytes(arguments: Arguments) -> int:
    return sum(getattr(v, "nbytes", 0) for v in jax.tree.leaves(arguments))


def _form(value: Any) -> Form:
    if isinstance(value, (np.ndarray, jax.Array)):
        return value.shape, value.dtype
    if value is None:
        return None
    if type(value) in (tuple, list):
        return tuple(map(_form, value))
    leaves, structure = jax.tree.flatten(value)
    return structure, tuple([(np.shape(v), getattr(v, "dtype", type(v))) for v in leaves])


def _forms(arguments: Arguments) -> tuple[Form, ...]:
    return tuple(map(_form, arguments))


def _places(arguments: Arguments) -> list[Place]:
    """Return the places of all values."""
    return [
        (i, j)
        for i, argument in enumerate(arguments)
        for j in (range(len(argument)) if type(argument) in (tuple, list) else (-1,))
    ]


def _at(arguments: Arguments, place: Place) -> Any:
    i, j = place
    return arguments[i] if j < 0 else arguments[i][j]
