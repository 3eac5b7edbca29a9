"""Segments with shapes that follow from values: the values are evaluated, then the segment is compiled.

Fluid's programs may compute a bound of a slice, a shape, a depth. A number that follows from shapes and
constants is known while the segment is traced. For a number that is fed or computed from data, tracing
raises `Unknown`: the operators that compute the number then run first, by themselves. The segment is compiled once for
each combination of values, as for each combination of shapes.
"""

import bisect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid.compile.lowering.control import COUNTER, NOT_COUNTING, Counting
from jfluid.compile.lowering.lower import LONGEST, Path, known_part
from jfluid.compile.lowering.plan import Item, before
from jfluid.compile.lowering.trace import First
from jfluid.compile.runtime import padding, slots
from jfluid.compile.runtime.executable_cache import DiskEntry
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.placement import Function, Placement
from jfluid.compile.runtime.refused import Refusals
from jfluid.ir.block import reads_of
from jfluid.ops.refusals import TABLE
from jfluid.ops.static_values import Unknown
from jfluid.printable import printable

MOST = 32  # combinations of values for which a segment is kept compiled

Known = dict[Path, dict[str, Any]]


@dataclass(frozen=True, order=True)
class Need:
    """Value of a variable, or number of a loop's iterations, that must be known before an operator.

    Attributes:
        path: path of the operator (see `lower.Path`).
        name: name of the variable; for a loop its `control.counter`.
    """

    path: Path
    name: str

    @property
    def counts(self) -> bool:
        """True if the value is a loop's number of iterations."""
        return self.name.startswith(COUNTER)


class Specialized:
    """Function of a segment, `(donated, kept, key) -> results`, compiled for the values that shapes depend on.

    Args:
        at: the segment's number in the placement's plan.
        function: returns the pure function for known values.
        names: names of the donated arguments, and of the kept arguments.
        entry: cache entry of the function without known values, from which the entries for known values follow; None
            without a cache.

    Attributes:
        plain: the function without known values.
    """

    plain: Function

    def __init__(
        self,
        at: int,
        placement: Placement,
        function: Callable[[Known], Function],
        names: tuple[Sequence[str], Sequence[str]],
        name: str,
        entry: DiskEntry | None = None,
    ):
        self._at, self._placement, self._function = at, placement, function
        self._names, self._name, self._entry = [*names[0], *names[1]], name, entry
        self._items = placement.plan.segments[at].ops
        self._refusals = Refusals(self._items) or None
        reads = self._refusals.reads if self._refusals else set()
        # a fed value may hold several variables (`slots.Joined`)
        wanted = reads | set(placement.plan.feeds)
        self._refused_by = [(i, n) for i, n in enumerate(self._names) if reads and n in wanted]
        self.plain = placement.executables(at, lambda: function({}), entry)
        self._needs: list[Need] = []
        self._compiled, self._firsts = LruCache[Function](MOST), LruCache[Function](MOST)
        self._most: dict[Need, int] = {}  # iterations of loops for which arrays had room
        self._seen: set[Any] = set()

    @property
    def refuses(self) -> bool:
        """True if operators refuse values, which are checked before the step."""
        return self._refusals is not None

    def lower(self, *arguments: Any) -> Any:
        """Return the lowered function, which is passed to XLA. Raises Unknown if shapes depend on values."""
        return self.plain.lower(*arguments)  # type: ignore[attr-defined]  # of Executables

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        if not self._needs:
            try:
                if self._refusals:
                    self._check({}, (*donated, *kept), key)
                return self.plain(donated, kept, key)
            except Unknown as need:
                self._add(need)
        kept = slots.opened_arguments(self._names[len(donated) :], kept)
        while True:
            known = self._evaluated((*donated, *kept), key)
            try:
                if self._refusals:
                    self._check(known, (*donated, *kept), key)
                return self._for(known)(donated, kept, key)
            except Unknown as need:
                self._add(need)

    def _add(self, error: Unknown) -> None:
        if error.name is None:
            raise error
        need = Need(error.path, error.name)
        if need in self._needs:
            raise error
        bisect.insort(self._needs, need)

    def _for(self, known: Known) -> Function:
        key = _hashable(known)
        if key not in self._seen and len(self._seen) <= MOST:
            self._seen.add(key)
            if len(self._seen) == MOST + 1 and not all(n.counts for n in self._needs):
                self._warn()

        def made() -> Function:
            entry = self._entry and self._entry.same("known", key)
            return self._placement.executables(self._at, lambda: self._function(known), entry)

        return self._compiled.get_or_make(key, made)

    def _warn(self) -> None:
        needed = dict.fromkeys(n.name for n in self._needs if not n.counts)
        names = printable(", ".join(needed), lines=False)
        warnings.warn(
            f"this program is compiled anew for each value of {names}, on which shapes depend, and "
            f"there were more than {MOST} different ones: feed few different values, or pad to few "
            "sizes",
            RuntimeWarning,
            stacklevel=2,
        )

    def _evaluated(self, values: tuple[Any, ...], key: Any) -> Known:
        """Return the values that must be known, each evaluated for the earlier values."""
        known: Known = {}
        for need in self._needs:
            number = (self._count if need.counts else self._value)(need, known, values, key)
            known.setdefault(need.path, {})[need.name] = number
        return known

    def _operator(self, position: int) -> Item:
        return next(item for item in self._items if item[0] == position)

    def _value(self, need: Need, known: Known, values: tuple[Any, ...], key: Any) -> np.ndarray:
        position, *inside = need.path
        if inside:
            op = self._operator(position)
            items = [*before(self._items, position, reads_of(op[1])), op]
        else:
            items = before(self._items, position, {need.name.removeprefix(LONGEST)})
        if items or need.name.startswith(LONGEST):
            # also for fed sequences: the longest sequence differs by replica
            value = self._first(need, items, known, values, key)
            return self._placement.known(self._at, need.name, value, True)
        value = known_part(dict(zip(self._names, values))[need.name])
        return self._placement.known(self._at, need.name, value, False)

    def _count(self, need: Need, known: Known, values: tuple[Any, ...], key: Any) -> int:
        """Return a bound of a loop's iterations.

        A loop that writes arrays runs with a small capacity first, and again if the capacity was too small.
        """
        loop = self._operator(need.path[0])
        items = [*before(self._items, need.path[0], reads_of(loop[1])), loop]
        while True:
            most = self._most.get(need, padding.SMALLEST)
            value = self._first(need, items, known, values, key, Counting(need.name, most))
            count = int(self._placement.everywhere(self._at, value).max())
            if count <= most:
                return padding.ladder(count)
            self._most[need] = padding.ladder(2 * count)

    def _check(self, known: Known, values: tuple[Any, ...], key: Any) -> None:
        """Raise OperandError where an operator refuses values."""
        refusals = self._refusals
        assert refusals is not None
        given = [
            (n, v)
            for i, n in self._refused_by
            if (v := values[i]) is not None and (n in refusals.reads or isinstance(v, slots.Joined))
        ]
        first = First(refusals.items, TABLE, refusals=refusals.rows)
        table = self._run_first(first, TABLE, given, known, key)
        refusals.check(self._placement.everywhere(self._at, table))

    def _first(
        self,
        need: Need,
        items: list[Item],
        known: Known,
        values: tuple[Any, ...],
        key: Any,
        counting: Counting = NOT_COUNTING,
    ) -> Any:
        """Run the operators that compute a value, or count a loop's iterations."""
        read = {n for _, op, _ in items for n in reads_of(op)}
        if not items:
            read.add(need.name.removeprefix(LONGEST))
        there = [(n, v) for n, v in zip(self._names, values) if n in read and v is not None]
        until = need.path if len(need.path) > 1 else ()
        first = First(items, need.name, until, counting)
        return self._run_first(first, (need, counting), there, known, key)

    def _run_first(self, first: First, kind: Any, given: list[tuple[str, Any]], known: Known, key: Any) -> Any:
        """Run operators by themselves; return the value that the operators compute.

        Args:
            kind: key of the compiled function.
            given: values by name that the operators read.
        """
        names = tuple([n for n, _ in given])
        earlier = {p: dict(v) for p, v in known.items()}

        def make() -> Function:
            def run(donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
                env = slots.opened(dict(zip(names, kept)))
                self._placement.lower(self._at, env, key, None, earlier, first)
                return (known_part(env[first.name]),)

            run.__name__ = run.__qualname__ = f"{self._name}_{first.name}"
            return run

        form = kind, names, _hashable(known)

        def made() -> Function:
            entry = self._entry and self._entry.of("first", form)
            return self._placement.executables(self._at, make, entry)

        function = self._firsts.get_or_make(form, made)
        return self._placement.unpacked(function((), tuple([v for _, v in given]), key))[0]


def _hashable(known: Mapping[Path, Mapping[str, Any]]) -> Any:
    return tuple(
        (path, name, np.asarray(v).tobytes(), np.shape(v), str(np.asarray(v).dtype))
        for path, values in known.items()
        for name, v in values.items()
    )
