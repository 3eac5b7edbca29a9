"""Loop rerolling: find the loops of a script that were unrolled into a step.

A step that calls a cell for each word of a sentence, or each step of an episode, records one copy of the cell for each
word. A different length is a different record. This module finds the repeated part, forward and backward. The record
becomes an outline of calls and loops that is equal for all lengths.

An iteration consists of the same calls upon inputs of the same kinds. Each input is the same in all iterations, comes
from the same place of this iteration or of the iteration before, or is an element of a row: inputs of the step, outputs
of the iterations of an earlier loop, or the parts of a divided array.

A call that joins a row (`stack` of the states of a loop) takes the whole row, whatever its length. A call that divides
an array (the gradient of `stack`) gives a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FEWEST = 3  # iterations of a loop, and elements of a row
_EDGE = 3  # places from an end of a row that have a name
_MOST_PERIODS = 6  # distances to calls of the same kind that are tried
_WIDEST = 4  # calls, of which a loop is worth it even in a long step

# A name of a value: ("leaf", number), ("out", call, place), ("row", row, place from an end), or None.
Name = tuple[Any, ...] | None
# Values one after the other: ("one", name), ("leaves", number), ("part", row, step, left out, left out).
Stretch = tuple[Any, ...]
# A row: ("loop", place of its count, output of an iteration), or ("parts", place of its count).
Row = tuple[Any, ...]


class CannotReroll(Exception):
    """Raised for a step without an outline that is independent of lengths."""


class RowCall(NamedTuple):
    """A call that joins a row, or divides an array into a row.

    Attributes:
        type: type of the operator.
        kind: kind of the call, whatever the length of the row.
        places: inputs that are elements of the row; of a call that divides an array, the array's place.
        divides: True for a call that divides an array.
    """

    type: str
    kind: int
    places: range
    divides: bool


class Op(NamedTuple):
    """A call of a step.

    Attributes:
        kind: kind of the call, without the numbers that differ between iterations.
        inputs: numbers of outputs from 0, of inputs of the step by -1 and less; None for a missing input.
        forms: shape and dtype of each input, by number.
        first: number of the first output.
        outputs: number of outputs.
        numbers: attributes that may differ between iterations and lengths: starts of a slice, a factor.
        row: the call as a call of a whole row; None for other calls.
        draw: place of the random numbers; -1 for none.
    """

    kind: int
    inputs: tuple[int | None, ...]
    forms: tuple[Any, ...]
    first: int
    outputs: int
    numbers: tuple[float, ...] = ()
    row: RowCall | None = None
    draw: int = -1

    @property
    def row_kind(self) -> int:
        """Kind that is the same for all lengths of a row."""
        return self.row.kind if self.row else self.kind


class Span(NamedTuple):
    """Position of a loop: its first call, calls per iteration, and number of iterations."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.times


class CallNode(NamedTuple):
    """A call outside of loops.

    Attributes:
        inputs: names; for a call that joins a row, stretches.
        row: type of a call that joins a row or divides an array; "" for other calls.
        divides: True for a call that divides an array.
        numbers: True for a call with numbers.
    """

    kind: int
    inputs: tuple[Any, ...]
    row: str
    divides: bool
    numbers: bool
    draws: bool

    @property
    def joins(self) -> bool:
        """True for a call that joins a row."""
        return bool(self.row) and not self.divides


class LoopNode(NamedTuple):
    """Loop that replaces the repeated calls of a step.

    Attributes:
        kinds: kinds of the calls of an iteration.
        inputs: of each call: ("own", output), ("before", number), ("same", number), ("each", number), or None.
        carried: output and first value of each value that an iteration takes from the iteration before.
        same: names of the values that all iterations read.
        rows: stretches of the values of which each iteration reads an element.
        numbers: calls with numbers.
        draws: calls that draw random numbers.
    """

    kinds: tuple[int, ...]
    inputs: tuple[tuple[Any, ...], ...]
    carried: tuple[tuple[int, Name], ...]
    same: tuple[Name, ...]
    rows: tuple[tuple[Stretch, ...], ...]
    numbers: tuple[int, ...]
    draws: tuple[int, ...]


@dataclass
class Outline:
    """A step without lengths, and the values that depend on the lengths.

    Attributes:
        nodes: calls and loops in order.
        results: name of each result, or the row of a loop if all its elements are results.
        places: place of each call, or of the first call of each loop.
        leaves: inputs of the step that are read by name.
        stacks: inputs that form a row, for each row.
        numbers: numbers of each call with numbers; of a loop in order of the iterations.
        draws: places of random numbers, likewise.
        counts: number of iterations of each loop, and of parts of each divided array.
        held: numbers of the outputs in each result.
    """

    nodes: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    stacks: list[list[int]] = field(default_factory=list)
    numbers: list[list[tuple[float, ...]]] = field(default_factory=list)
    draws: list[list[int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    held: list[list[int]] = field(default_factory=list)

    @property
    def key(self) -> Any:
        """Key that is equal for steps that differ in lengths alone."""
        return tuple(self.nodes), tuple(self.results), len(self.leaves), len(self.stacks)


def spans_of(ops: Sequence[Op]) -> list[Span]:
    """Return the loops of a step in order."""
    numbers: dict[Any, int] = {}
    tokens = [numbers.setdefault((op.kind, op.forms), len(numbers)) for op in ops]
    after = _next_ones(tokens)
    found, at = [], 0
    while at < len(tokens):
        best = max(_spans_at(tokens, after, at), key=_worth, default=None)
        if best is None:
            at += 1
        else:
            found.append(best)
            at = best.end
    return found


def _next_ones(tokens: Sequence[int]) -> list[int]:
    """Return for each place the next place with the same token; -1 for none."""
    after, last = [-1] * len(tokens), dict[int, int]()
    for at in range(len(tokens) - 1, -1, -1):
        after[at] = last.get(tokens[at], -1)
        last[tokens[at]] = at
    return after


def _worth(span: Span) -> tuple[int, int]:
    return span.period * span.times, -span.period


def _spans_at(tokens: Sequence[int], after: Sequence[int], at: int) -> list[Span]:
    found, other = [], at
    for _ in range(_MOST_PERIODS):
        other = after[other]
        if other < 0:
            break
        period, same = other - at, 0
        while other + same < len(tokens) and tokens[at + same] == tokens[other + same]:
            same += 1
        count = same // period + 1
        if count >= FEWEST and period * count >= _WIDEST:
            found.append(Span(at, period, count))
    return found


def form_of(ops: Sequence[Op], spans: Sequence[Span]) -> Any:
    """Return a key that is equal for steps that may share an outline.

    The key has the kinds of the calls, and the kinds of a loop's calls once.
    """
    found: list[Any] = []
    at = 0
    for span in spans:
        found += [op.row_kind for op in ops[at : span.start]]
        body = ops[span.start : span.start + span.period]
        found.append(tuple([op.kind for op in body]))
        at = span.end
    found += [op.row_kind for op in ops[at:]]
    return tuple(found)


def outline_of(ops: Sequence[Op], spans: Sequence[Span], live: Sequence[int]) -> Outline | None:
    """Return the outline of a step with loops, or None if the iterations differ.

    Args:
        ops: calls of the step.
        spans: loops among the calls.
        live: numbers of the results.
    """
    for first, last in ((0, 0), (1, 0), (0, 1), (1, 1)):  # iterations at an end that may differ
        own = [Span(s.start + first * s.period, s.period, s.times - first - last) for s in spans]
        if any(span.times < FEWEST for span in own):
            break
        try:
            return Reroller(ops, own, live).outline
        except CannotReroll:
            continue
    return None


class Reroller:
    """Derives the outline of a step.

    Args:
        ops: the calls.
        spans: loops among the calls.
        live: numbers of the results.

    Raises CannotReroll for a loop with iterations that differ.
    """

    def __init__(self, ops: Sequence[Op], spans: Sequence[Span], live: Sequence[int]):
        self._ops, self._spans = ops, spans
        self._leaves: dict[int, int] = {}
        self._homes: dict[int, tuple[Any, ...]] = {}  # of outputs: (row, place), or ("out", call, place)
        self.outline = Outline()
        at = 0
        for span in spans:
            for i in range(at, span.start):
                self._call(i)
            self._loop(span)
            at = span.end
        for i in range(at, len(ops)):
            self._call(i)
        self._results(live)
        self.outline.leaves = list(self._leaves)

    # ---- names --------------------------------------------------------------------------------------

    def _leaf(self, number: int) -> Name:
        return "leaf", self._leaves.setdefault(number, len(self._leaves))

    def _name(self, source: int | None) -> Name:
        """Return the name of a value."""
        if source is None:
            return None
        if source < 0:
            return self._leaf(source)
        home = self._homes[source]
        if home[0] == "out":
            return home
        row, place = home
        return "row", row, self._from_an_end(row, place)

    def _length(self, row: Row) -> int:
        return self.outline.counts[row[1]]

    def _from_an_end(self, row: Row, place: int) -> int:
        left = self._length(row) - place
        if min(left - 1, place) >= _EDGE:
            raise CannotReroll("an iteration in the middle of a loop that is read alone")
        return place if place < left - 1 else -left

    def _stretches(self, sources: Sequence[int | None]) -> tuple[Stretch, ...]:
        """Return a sequence of values as stretches: rows of earlier loops, inputs, single values."""
        found: list[Stretch] = []
        at = 0
        while at < len(sources):
            row, step, end = self._stretch(sources, at)
            if sources[at] is None:
                raise CannotReroll("a row with missing values")
            part = None if row is None or end - at < 2 else self._part(row, step, sources[at:end])
            if part is not None:
                found.append(part)
            elif end - at >= FEWEST and row is None:
                stacks = self.outline.stacks
                stacks.append([-1 - s for s in sources[at:end] if s is not None])
                found.append(("leaves", len(stacks) - 1))
            elif end - at >= FEWEST:
                raise CannotReroll("a part of a loop")
            else:
                found.append(("one", self._name(sources[at])))
                end = at + 1
            at = end
        return tuple(found)

    def _part(self, row: Row, step: int, sources: Sequence[int | None]) -> Stretch | None:
        """Return the stretch of neighbours in a row, or None if it leaves out more than the ends of the row."""
        first, last = (self._homes[sources[i]][1] for i in (0, -1))  # type: ignore[index]
        before, behind = min(first, last), self._length(row) - 1 - max(first, last)
        return None if max(before, behind) >= _EDGE else ("part", row, step, before, behind)

    def _stretch(self, sources: Sequence[int | None], at: int) -> tuple[Row | None, int, int]:
        """Return row, direction and end of the stretch that begins at a place.

        The row is None for inputs of the step.
        """
        first, end = sources[at], at + 1
        if first is None:
            return None, 0, end
        if first < 0:
            while end < len(sources) and (other := sources[end]) is not None and other < 0:
                end += 1
            return None, 0, end
        home, step = self._homes[first], 0
        if home[0] == "out":
            return None, 0, end
        while end < len(sources) and (other := sources[end]) is not None and other >= 0:
            own = self._homes[other]
            if own[0] != home[0]:
                break
            moved = own[1] - home[1]
            if step == 0 and moved in (-1, 1):
                step = moved
            if not step or moved != step * (end - at):
                break
            end += 1
        return home[0], step, end

    # ---- calls --------------------------------------------------------------------------------------

    def _call(self, at: int) -> None:
        op, outline = self._ops[at], self.outline
        number = len(outline.nodes)
        row = op.row
        divides = row is not None and row.divides
        given: tuple[Any, ...] = () if row is None or divides else self._joined(op, row)
        if row is None or not (divides or given):
            row, given = None, tuple([self._name(source) for source in op.inputs])
        elif divides:
            given = tuple([self._name(op.inputs[i]) for i in row.places])
        kind = op.kind if row is None else row.kind
        outline.nodes.append(CallNode(kind, given, row.type if row else "", divides, bool(op.numbers), op.draw >= 0))
        outline.places.append(at)
        if op.numbers:
            outline.numbers.append([op.numbers])
        if op.draw >= 0:
            outline.draws.append([op.draw])
        if divides:
            outline.counts.append(op.outputs)
        for i in range(op.outputs):
            self._homes[op.first + i] = (("parts", len(outline.counts) - 1), i) if divides else ("out", number, i)

    def _joined(self, op: Op, row: RowCall) -> tuple[Stretch, ...]:
        """Return the elements that a call joins as stretches, of a sum in any order; empty for a list without a row."""
        own = [s for i in row.places if (s := op.inputs[i]) is not None]
        if len({op.forms[i] for i in row.places}) > 1 or len(own) < len(row.places):
            return ()
        if row.type == "sum":
            own.sort(key=self._rank)
        stacks = len(self.outline.stacks)
        found = self._stretches(own)
        if all(stretch[0] == "one" for stretch in found):
            del self.outline.stacks[stacks:]
            return ()
        return found

    def _rank(self, source: int) -> Any:
        if source < 0:
            return 0, -source, 0
        home = self._homes[source]
        return (1, source, 0) if home[0] == "out" else (2, str(home[0]), home[1])

    # ---- loops --------------------------------------------------------------------------------------

    def _loop(self, span: Span) -> None:
        outline = self.outline
        body = [self._ops[span.start + k * span.period : span.start + (k + 1) * span.period] for k in range(span.times)]
        firsts = [ops[0].first for ops in body]
        stride = firsts[1] - firsts[0]
        loop = _Loop(self, firsts, stride)
        inputs = tuple(
            [
                tuple([loop.input([ops[j].inputs[i] for ops in body]) for i in range(len(op.inputs))])
                for j, op in enumerate(body[0])
            ]
        )
        numbers = [j for j, op in enumerate(body[0]) if op.numbers]
        draws = [j for j, op in enumerate(body[0]) if op.draw >= 0]
        outline.numbers += [[ops[j].numbers for ops in body] for j in numbers]
        outline.draws += [[ops[j].draw for ops in body] for j in draws]
        number = len(outline.counts)  # the place of its count
        outline.counts.append(span.times)
        outline.nodes.append(
            LoopNode(
                tuple([op.kind for op in body[0]]),
                inputs,
                tuple(loop.carried),
                tuple(loop.same),
                tuple(loop.rows),
                tuple(numbers),
                tuple(draws),
            )
        )
        outline.places.append(span.start)
        for q in range(stride):
            row: Row = ("loop", number, q)
            for k, first in enumerate(firsts):
                self._homes[first + q] = (row, k)

    # ---- results ------------------------------------------------------------------------------------

    def _results(self, live: Sequence[int]) -> None:
        rows: dict[Row, list[int]] = {}
        single = []
        for number in sorted(live):
            home = self._homes[number]
            if home[0] == "out":
                single.append(number)
            else:
                rows.setdefault(home[0], []).append(number)
        for row, numbers in rows.items():
            if len(numbers) == self._length(row):
                numbers.sort(key=lambda n: int(self._homes[n][1]))
                self.outline.results.append(("whole", row))
                self.outline.held.append(numbers)
            else:
                single += numbers
        for number in sorted(single):
            self.outline.results.append(self._name(number))
            self.outline.held.append([number])


class _Loop:
    """Inputs of the iterations of a loop.

    Args:
        roller: the roller.
        firsts: number of the first output of each iteration.
        stride: number of outputs of an iteration.
    """

    def __init__(self, roller: Reroller, firsts: Sequence[int], stride: int):
        self._roller, self._firsts, self._stride = roller, firsts, stride
        self.carried: list[tuple[int, Name]] = []
        self.same: list[Name] = []
        self.rows: list[tuple[Stretch, ...]] = []
        self._known: dict[tuple[int | None, ...], Any] = {}

    def input(self, sources: Sequence[int | None]) -> Any:
        """Return the form of a call's input, from its sources in all iterations."""
        key = tuple(sources)
        if key not in self._known:
            self._known[key] = self._input(key)
        return self._known[key]

    def _input(self, sources: tuple[int | None, ...]) -> Any:
        first, second = sources[:2]
        if second is None or first is None:
            if any(s is not None for s in sources):
                raise CannotReroll("an input that some iterations have")
            return None
        if all(s == first for s in sources):
            if first >= self._firsts[0]:
                raise CannotReroll("a value of the first iteration in later iterations")
            return self._add(self.same, "same", self._roller._name(first))
        if all(self._place(s, k) == self._place(first, 0) is not None for k, s in enumerate(sources)):
            return "own", self._place(first, 0)
        place = self._place(second, 0)
        if place is not None:
            if any(self._place(s, k - 1) != place for k, s in enumerate(sources) if k):
                raise CannotReroll("iterations that differ in their reads of earlier iterations")
            if first >= self._firsts[0]:
                raise CannotReroll("a value of an iteration before the last one")
            return self._add(self.carried, "before", (place, self._roller._name(first)))
        if any(s is None or s >= self._firsts[0] for s in sources):
            raise CannotReroll("iterations that differ in their reads")
        return self._add(self.rows, "each", self._roller._stretches(sources))

    def _place(self, source: int | None, iteration: int) -> int | None:
        """Return the place of a value among an iteration's outputs, or None for other values."""
        if source is None:
            return None
        place = source - self._firsts[iteration]
        return place if 0 <= place < self._stride else None

    def _add(self, values: list[Any], kind: str, value: Any) -> Any:
        values.append(value)
        return kind, len(values) - 1
