"""Operators that were called and have not run yet.

A call in dygraph mode only records its operator: shapes are known, numbers are not. When a number
is asked for, or a step of an optimizer ends, all that is pending runs. The record (operators,
attributes, which output is whose input, shapes, which results anybody still holds) is the key of a
compiled function: a loop whose body repeats finds it again, so that its step is one call of XLA, as
in a static program, or two where the script waits for the loss of each step. Nothing has to be
guarded: a step that differs is another key.

A record that was not seen before is compiled whole, too. Where nearly every one is new (attributes
or shapes that change all the time), operators are compiled and run one by one instead, until
records repeat again.
"""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

import jax
import numpy as np

from jfluid import collector, errors
from jfluid.compile.lru_cache import LruCache
from jfluid.dygraph import donation
from jfluid.dygraph.ahead import Ahead
from jfluid.dygraph.calls import Call
from jfluid.dygraph.step import (
    NONE,
    Kind,
    Record,
    Seeds,
    Step,
    hold_filters,
    jitted,
    key_of,
    seeds_of,
)
from jfluid.dygraph.values import Aval, Value, constant, in_order

logger = logging.getLogger(__name__)

_MOST_PENDING = 20_000  # operators; then they run, though nobody asks
_MOST_NEW = 12  # of the last 16 records, for which operators are compiled one by one
_SMALL = 24  # operators; a record as short as this is compiled whole in any case


class Sizes(NamedTuple):
    """How much is pending at a moment."""

    records: list[Record]  # itself: another one when all that was pending has run
    calls: int
    leaves: int
    outputs: int
    draws: int


class _Key:
    """A key of which the hash is computed once."""

    __slots__ = ("hash", "parts")

    def __init__(self, parts: tuple[Any, ...]):
        self.parts, self.hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.hash == other.hash and self.parts == other.parts


_DEAD = ref(Value.__new__(Value))  # to an output that nobody holds
_pending: dict[jax.Device, "Pending"] = {}


def pending_on(device: jax.Device) -> "Pending":
    """Return what is pending on a device."""
    found = _pending.get(device)
    if found is None:
        found = _pending[device] = Pending(device)
    return found


def array_of(value: Value) -> Any:
    """Return the array of a value, after all that is pending has run if it has none."""
    if value.array is None:
        for pending in _pending.values():
            pending.run()
    if value.array is None:
        raise errors.OpError("the operator that gives this value has failed before")
    return in_order(value.array, value.order)


class Pending:
    """What is pending on one device.

    Args:
        device: runs the operators.
    """

    def __init__(self, device: jax.Device):
        self.device = device
        self.compiled = 0  # functions for whole records
        self._whole = LruCache[tuple[_Key, Step]](256)
        self._single = LruCache[Any](8192)
        self.walks = LruCache[Any](32)  # backward passes by the kind of their tapes
        self._seen = LruCache[bool](4096)
        self._recent: list[bool] = []  # whether the latest records were new
        self._one_by_one = False
        self._ahead = Ahead()
        self._collects = 0  # how often objects were collected before those of the records were made
        self._begin()

    def _begin(self) -> None:
        self.records: list[Record] = []
        self._key: list[Any] = []
        self._leaves: list[Value] = []
        self._outs: list[ref[Value]] = []
        self._draws: list[tuple[int, int]] = []  # (seed, number) of each random operator
        self.initializes = False  # whether all of it gives first values
        self.ends = False  # whether a step of training has ended, which runs before the next begins

    def add(
        self,
        call: Call,
        outputs: Sequence[Any],
        inputs: Sequence[Value | None],
        draw: tuple[int, int] | None,
    ) -> list[Any]:
        """Record a call; returns its outputs, one entry for each slot.

        Args:
            outputs: what `Call.outputs` says of such inputs.
            draw: (seed, number) of the random numbers of an operator that draws some.
        """
        leaves, outs = self._leaves, self._outs
        named = []
        for v in inputs:
            if v is None:
                named.append(NONE)
            elif v.owner is leaves:
                named.append(v.source)
            else:
                named.append(self._source(v))
                if self._leaves is not leaves:  # it was pending on another device: all has run
                    return self.add(call, outputs, inputs, draw)
        sources = tuple(named)
        values: list[Any] = []
        numbers: list[Any] = []
        for out in outputs:
            if type(out) is Aval:
                number = len(outs)
                value = Value(out, None, number, leaves)
                outs.append(ref(value))
                values.append(value)
                numbers.append(number)
            elif type(out) is list:
                made = [self._output(o) for o in out]
                values.append(made)
                numbers.append([None if v is None else v.slot for v in made])
            else:
                known = self._output(out)
                values.append(known)
                numbers.append(None if known is None else known.slot)
        place = -1
        if draw is not None:
            place = len(self._draws)
            self._draws.append(draw)
        if not self.records:
            self._collects = collector.seldom()
        self.records.append(Record(call, sources, numbers, place))
        self._key.append((call.number, sources))
        if len(self.records) >= _MOST_PENDING:
            self.run()
        return values

    def give(self, value: Value, draw: tuple[int, int]) -> None:
        """Note an array that the script gives, as a batch: the step that reads it may begin.

        Args:
            draw: the seed and number of the next random operator.
        """
        forecast = self._ahead.give(value, self.ends)
        if forecast is not None and tuple(self._key) == forecast.calls[: len(self._key)]:
            with jax.enable_x64(True):
                self._ahead.begin(forecast, self._draws[0] if self._draws else draw)

    def has(self, value: Value) -> bool:
        """Whether the operator that gives a value is pending here."""
        return value.array is None and value.owner is self._leaves

    def slot_of(self, outputs: Iterable[Sequence[Value | None]]) -> int:
        """Return the slot of the first output of a call that is pending here; -1 where none is."""
        for given in outputs:
            for value in given:
                if value is not None:
                    return value.slot if value.array is None and value.owner is self._leaves else -1
        return -1

    def recorded(self) -> Any:
        """Return what is equal for the same calls upon values of the same kinds."""
        return tuple(self._key), tuple([v.aval.number for v in self._leaves])

    def sizes(self) -> Sizes:
        """Return how much is pending now."""
        counts = len(self.records), len(self._leaves), len(self._outs), len(self._draws)
        return Sizes(self.records, *counts)

    def since(
        self, before: Sizes
    ) -> tuple[Sequence[Record], Sequence[tuple[int, int]], int] | None:
        """Return the records, the random numbers and the number of outputs that were added after a
        moment; None where something has run since, or other inputs were added.
        """
        if self.records is not before.records or len(self._leaves) != before.leaves:
            return None
        outputs = len(self._outs) - before.outputs
        return self.records[before.calls :], self._draws[before.draws :], outputs

    def repeat(
        self,
        records: Sequence[Record],
        outputs: int,
        held: Mapping[int, Value],
        draws: Sequence[tuple[int, int]],
    ) -> None:
        """Add what `since` has returned, where as much is pending as at that moment.

        Args:
            held: of the outputs, by number, those that somebody holds; they get their place here.
        """
        refs = [_DEAD] * outputs
        for number, value in held.items():
            value.owner, value.source = self._leaves, number
            refs[number - len(self._outs)] = ref(value)
        self._outs += refs
        self._draws += draws
        self.records += records
        self._key += [(r.call.number, r.inputs) for r in records]
        if len(self.records) >= _MOST_PENDING:
            self.run()

    def _source(self, value: Value) -> int:
        """Return how a value that is not an input or output of what is pending is named from now on."""
        if value.array is None:
            array_of(value)  # it is pending on another device, or has failed
        value.owner, value.source = self._leaves, -1 - len(self._leaves)
        self._leaves.append(value)
        return value.source

    def _output(self, out: Aval | np.ndarray | None) -> Value | None:
        if out is None:
            return None
        if type(out) is Aval:
            value = Value(out, None, len(self._outs), self._leaves)
        else:
            value = constant(out, known=True)
            value.slot = len(self._outs)
        self._outs.append(ref(value))
        return value

    def run(self) -> None:
        """Run all that is pending, as far as somebody still holds its results."""
        if not self.records:
            self._ahead.distrust()
            return
        try:
            self._run()
        finally:
            collector.often(self._collects)  # what was recorded has gone

    def _run(self) -> None:
        records, leaves, outs, draws, key = (
            self.records,
            self._leaves,
            self._outs,
            self._draws,
            self._key,
        )
        self._begin()
        holders = {
            i: v for i, held in enumerate(outs) if (v := held()) is not None and v.array is None
        }
        if not holders:
            leaves.clear()
            self._ahead.forget()
            return
        sources = self._ahead.sources(leaves)
        arrays, kinds = [v.array for v in leaves], [(v.aval, v.order) for v in leaves]
        donated = donation.donated(leaves, list(holders.values()))
        calls = tuple(key)

        def whole_key() -> _Key:
            numbers = tuple([a.number if o is None else (a.number, o) for a, o in kinds])
            return _Key((calls, tuple(holders), numbers, donated))

        at = whole_key()
        known = self._whole.get(at)
        message, sent = None, None
        orders: Sequence[tuple[int, Any]] = ()
        if self._goes_one_by_one(at, known is not None, len(records)):
            given = [in_order(v, order) for v, (_, order) in zip(arrays, kinds)]
            self._ahead.forget()
            with jax.enable_x64(True), jax.default_device(self.device):
                results = self._singly(records, given, seeds_of(draws), list(holders))
        else:
            if known is None:
                with jax.enable_x64(True), jax.default_device(self.device):
                    if hold_filters(records, arrays, kinds, self.device):
                        at = whole_key()
                    known = self._whole.get_or_make(
                        at, lambda: (at, self._step(records, kinds, donated, holders))
                    )
            else:
                # the same object: keys are not compared again
                self._whole.move_to_end(known[0])
            step = known[1]
            made = self._ahead.take(step, arrays, draws)
            if made is None:
                with jax.enable_x64(True):
                    made = step.run(arrays, seeds_of(draws))
            self._ahead.ran(step, calls, sources, draws, [outs[i] for i in holders])
            (results, message), sent, orders = made, step.sent, step.orders
        values = list(holders.values())
        for value, result in zip(values, results, strict=True):
            value.array = result
        for place, order in orders:
            values[place].order = order
        if sent is not None:
            values[sent].message = message

    def _step(
        self,
        records: Sequence[Record],
        kinds: Sequence[Kind],
        donated: Sequence[int],
        holders: Mapping[int, Value],
    ) -> Step:
        self.compiled += 1
        results = {number: value.aval for number, value in holders.items()}
        return Step(records, kinds, donated, results, self.device)

    def _goes_one_by_one(self, key: _Key, known: bool, size: int) -> bool:
        """Whether operators of a record run one by one.

        Args:
            known: whether it was compiled.
        """
        if not known:
            known = key in self._seen
            self._seen.get_or_make(key, lambda: True)
        self._recent = [*self._recent[-15:], not known]
        often = sum(self._recent) >= _MOST_NEW
        if often != self._one_by_one:
            self._one_by_one = often
            logger.warning(
                "dygraph: %s",
                "nearly every step differs from those before (operators, attributes, shapes): their "
                "operators are compiled and run one by one until steps repeat"
                if often
                else "steps repeat: each is compiled as a whole again",
            )
        return often and not known and size > _SMALL

    def _singly(
        self, records: Sequence[Record], arrays: list[Any], seeds: Seeds, live: Sequence[int]
    ) -> list[Any]:
        """Run operators one by one, without those whose results nobody needs."""
        needed, used = set(live), []
        for record in reversed(records):
            if not needed.isdisjoint(record.numbers()):
                used.append(record)
                needed.update(i for i in record.inputs if i >= 0)
        used.reverse()
        last = {i: at for at, record in enumerate(used) for i in record.inputs}
        found: dict[int, Any] = {-1 - i: a for i, a in enumerate(arrays)}
        kept = set(live)
        for at, record in enumerate(used):
            call = record.call
            inputs = [None if i == NONE else found[i] for i in record.inputs]
            function = self._single.get_or_make(call.number, functools.partial(self._jitted, call))
            outs = function(inputs, seeds[0][record.draw] if record.draw >= 0 else None)
            for number, out in zip(record.outputs, outs, strict=True):
                if type(number) is list:
                    found.update(
                        (n, o) for n, o in zip(number, out) if n is not None and o is not None
                    )
                elif number is not None:
                    found[number] = out
            for i in record.inputs:
                if last.get(i) == at and i not in kept and i >= 0:
                    found.pop(i, None)
        return [found[i] for i in live]

    def _jitted(self, call: Call) -> Any:
        def function(inputs: list[Any], seed: Any) -> Any:
            return call(inputs, None if seed is None else key_of(seed))

        return jitted(function, self.device)
