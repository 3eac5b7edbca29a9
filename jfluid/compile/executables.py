"""Executables in memory: a function is compiled for each form of its arguments, and what was used least recently goes
first when all of them together take more than a number of bytes.

`jax.jit` would keep beside each executable what it was traced and lowered to, of a small one seven eighths of its memory
(1.2 MB). So each is compiled ahead of time, by a jitted function of its own, which goes then.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import ref

import jax
import numpy as np

from jfluid import flags, heap, record
from jfluid.compile import jax_caches, library_fusions
from jfluid.compile.lru_cache import LruCache
from jfluid.compile.numpy_steps.beside import Beside

FLAG = "FLAGS_compiled_max_bytes"
# Native memory, measured on CPUs: of any executable, and for each byte in which XLA describes where its values are. Of
# code XLA itself knows the size on GPUs only.
_EACH, _FOR_PLACES = 200 << 10, 300
_FEW = 8  # the latest ones stay, however large they are: a step needs its own
_WORTH_GIVING_BACK = 32 << 20
_MOST_BEGUN = 8  # forms of arguments that are interpreted
_MOST_INTERPRETED = 256 << 20  # bytes of arguments, of which a few copies are made
# Code and data of an executable lie in 4 to 200 mappings of memory, of which Linux gives a process 65,530. How many
# there are is looked up each so many executables.
_LOOK_AT_MAPPINGS = 16
_MAPPINGS, _MOST_MAPPINGS = "/proc/self/maps", "/proc/sys/vm/max_map_count"

Arguments = Sequence[Any]
# Shape and dtype of an array; None for no value; of a sequence the forms of its values.
Form = Any
Place = tuple[int, int]  # of a value: which argument, and which of its values; -1 for an argument that is no sequence


class Entry(Protocol):
    """Where executables of a function are kept longer than in memory."""

    def load_or_compile(
        self, fresh: Callable[[], Any], arguments: Arguments
    ) -> tuple[Any, Callable[[Any], None]] | None:
        """Return an executable, and what takes the results of its first run; None for arguments for which none is kept."""

    def load(self, arguments: Arguments) -> Any:
        """Return the executable that is kept; None where there is none."""


def most_bytes() -> int:
    """Return the limit that was set, or a thirty-second of the memory, and 512 MiB where that is no more than a
    quarter of it.
    """
    memory = heap.memory_bytes()
    return int(flags.get(FLAG)) or max(memory // 32, min(512 << 20, memory // 4))


class Executable:
    """What a function was compiled to for one form of its arguments.

    Attributes:
        run: calls it.
        bytes: of memory that it takes, about.
        used: whether it was called again since memory was short.
    """

    __slots__ = ("__weakref__", "bytes", "forms", "owner", "places", "run", "used")

    def __init__(self, run: Any, arguments: Arguments, owner: "ref[Executables]"):
        self.run, self.owner, self.used = run, owner, False
        self.forms, self.places = _forms(arguments), _places(arguments)
        stats = run.memory_analysis()
        described = len(getattr(stats, "serialized_buffer_assignment_proto", b""))
        code = int(getattr(stats, "generated_code_size_in_bytes", 0))
        self.bytes = _EACH + code + _FOR_PLACES * described


class Kept:
    """All executables of this process. They belong to their functions, and go with them. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[ref[Executable]] = []  # the oldest first
        self._added = 0

    def __iter__(self) -> Iterator[Executable]:
        """Yield those that are there."""
        return (found for held in self._held if (found := held()) is not None)

    @property
    def bytes(self) -> int:
        """How many they take together."""
        return sum(found.bytes for found in self)

    def add(self, new: Executable) -> None:
        """Add one. Those go for which there is no room: the oldest, of those that were called once first."""
        with self._lock:
            self._held = [*map(ref, self), ref(new)]
            gone = self._make_room()
        if gone >= _WORTH_GIVING_BACK:
            heap.give_back()

    def _make_room(self) -> int:
        """Return how many bytes have gone: if any, then more than have to, so that this comes seldom."""
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


class Executables:
    """A function, compiled for each form of its arguments, when it is called with the first of that form.

    Args:
        fresh: gives `jax.jit` of the function, anew each time: what it has traced goes with it.
        entry: where executables are kept longer.
        interprets: the device on which the function is interpreted until it is compiled; None to wait for its
            compilation.
    """

    def __init__(
        self,
        fresh: Callable[[], Any],
        entry: Entry | None = None,
        interprets: jax.Device | None = None,
    ):
        self._fresh, self._entry, self._interprets = fresh, entry, interprets
        self._begun = LruCache[Beside](_MOST_BEGUN)
        self._all: dict[Form, Executable] = {}
        self._only: Executable | None = None  # if there is one
        # where the forms of several differ, and each of them by what it has there
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
            except (TypeError, ValueError):  # it has not run: the arguments are not its own
                if found.forms == _forms(arguments):
                    self.forget(found)  # they lie elsewhere
        return self._run_other(arguments)

    def trace(self, *arguments: Any) -> Any:
        """Return the function as JAX traces it."""
        return self._fresh().trace(*arguments)

    def lower(self, *arguments: Any) -> Any:
        """Return the function as it is passed to XLA."""
        return self.trace(*arguments).lower()

    def count(self) -> int:
        """Return for how many forms of arguments the function is compiled."""
        return len(self._all)

    def begin(self, arguments: Arguments) -> bool:
        """Begin to compile the function for arguments beside the steps.

        Returns False while the arguments have no executable yet; True once they have one, and where steps wait for it.
        """
        forms = _forms(arguments)
        if self._interprets is None or forms in self._all:
            return True
        begun = self._beside(forms, arguments)
        return begun is None or begun.begin(arguments)

    def forget(self, old: Executable) -> None:
        """Drop an executable. It is compiled again when it is called."""
        if self._all.get(old.forms) is old:
            del self._all[old.forms]
            self._arrange()

    def _run_other(self, arguments: Arguments) -> Any:
        """Run the executable of arguments that none of `_found` seems to be for, or is for."""
        forms = _forms(arguments)
        found = self._all.get(forms)
        if found is not None:
            found.used = True
            return found.run(*arguments)
        if self._interprets is not None:
            results = self._interpreted(forms, arguments)
            if results is not None:
                return results
        begun = self._begun.pop(forms, None)
        start = time.perf_counter()
        run, keep = begun.compiled(arguments) if begun else self._compile(self._fresh, arguments)
        seconds = time.perf_counter() - start
        found = Executable(run, arguments, ref(self))
        self._all[found.forms] = found
        self._arrange()
        KEPT.add(found)
        record.compiled(seconds, [_form(_at(arguments, place)) for place in self._differ])
        results = run(*arguments)
        keep(results)
        jax_caches.look()
        return results

    def _compile(self, fresh: Callable[[], Any], arguments: Arguments) -> Any:
        """Return an executable, and what takes the results of its first run."""
        with jax_caches.not_kept():
            kept = self._entry.load_or_compile(fresh, arguments) if self._entry else None
            if kept:
                return kept
            return library_fusions.compiled(fresh().trace(*arguments)), lambda results: None

    def _interpreted(self, forms: Form, arguments: Arguments) -> Any:
        """Return what the interpreter gives; None where the compiled function is to run."""
        begun = self._beside(forms, arguments)
        return None if begun is None else begun.run(arguments)

    def _beside(self, forms: Form, arguments: Arguments) -> Beside | None:
        """Return the compilation beside the steps; None where the compiled function is to run."""
        begun = self._begun.get(forms)
        if begun is not None:
            return begun
        if _bytes(arguments) > _MOST_INTERPRETED:
            return None
        if self._entry is not None and self._entry.load(arguments) is not None:
            return None
        traced = _Traced(self._fresh().trace(*arguments))
        return self._begun.get_or_make(
            forms, lambda: Beside(traced.traced, partial(self._compile, lambda: traced), self._interprets)
        )

    def _arrange(self) -> None:
        """Find what tells the executables from each other."""
        every, found = list(self._all.values()), {}
        if len(every) > 1 and all(one.places == every[0].places for one in every):
            forms = [one.forms for one in every]
            self._differ = [place for place in every[0].places if len({_at(f, place) for f in forms}) > 1]
            found = {tuple([_at(one.forms, p) for p in self._differ]): one for one in every}
        self._only, self._found = every[0] if len(every) == 1 else None, found


class _Traced:
    """A function that was traced, in place of `jax.jit` of it."""

    def __init__(self, traced: Any):
        self.traced = traced

    def trace(self, *arguments: Any) -> Any:
        """Return the function as JAX traces it."""
        return self.traced


def _few_mappings_are_left() -> bool:
    """Whether fewer than a quarter of this process's mappings of memory are left."""
    try:
        with open(_MOST_MAPPINGS) as most, open(_MAPPINGS) as there:
            return sum(1 for _ in there) > int(most.read()) * 3 // 4
    except OSError:
        return False  # another system


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
