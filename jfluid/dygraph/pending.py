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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import ref

import jax
import numpy as np
from jax.extend import core

from jfluid import errors
from jfluid.compile import trace
from jfluid.compile.early_results import Divided, divide
from jfluid.compile.lru_cache import LruCache
from jfluid.compile.options import options
from jfluid.compile.plan import Item
from jfluid.dygraph import donation
from jfluid.dygraph.calls import Call
from jfluid.dygraph.values import Aval, Value, aval_of, constant
from jfluid.ir.operator import Operator
from jfluid.ir.variable import EMPTY_NAME

logger = logging.getLogger(__name__)

# An input of a record: an output of an earlier one (from 0), a leaf (-1 is the first), or none.
_NONE = 1 << 40
_MOST_PENDING = 20_000  # operators; then they run, though nobody asks
_MOST_NEW = 12  # of the last 16 records, for which operators are compiled one by one
_SMALL = 24  # operators; a record as short as this is compiled whole in any case


@dataclass(slots=True)
class Record:
    """One call that is pending.

    Attributes:
        inputs: for each value of the call its source (see `_NONE`).
        outputs: for each output slot the number of its output among those of all calls, None, or a
            list of these.
        draw: the place of its random numbers among those of all calls; -1 for none.
    """

    call: Call
    inputs: tuple[int, ...]
    outputs: list[Any]
    draw: int

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all outputs."""
        for out in self.outputs:
            yield from (n for n in (out if type(out) is list else (out,)) if n is not None)


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


Seeds = tuple[np.ndarray, ...]  # of the random numbers of all calls: one array, or none
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
            pending.run(value)
    if value.array is None:
        raise errors.OpError("the operator that gives this value has failed before")
    return value.array


class Pending:
    """What is pending on one device.

    Args:
        device: runs the operators.
    """

    def __init__(self, device: jax.Device):
        self.device = device
        self.compiled = 0  # functions for whole records
        self._whole = LruCache[tuple[_Key, Any]](256)
        self._single = LruCache[Any](8192)
        self.walks = LruCache[Any](32)  # backward passes by the kind of their tapes
        self._seen = LruCache[bool](4096)
        self._recent: list[bool] = []  # whether the latest records were new
        self._one_by_one = False
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
                named.append(_NONE)
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
        self.records.append(Record(call, sources, numbers, place))
        self._key.append((call.number, sources))
        if len(self.records) >= _MOST_PENDING:
            self.run()
        return values

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

    def run(self, awaited: Value | None = None) -> None:
        """Run all that is pending, as far as somebody still holds its results.

        Args:
            awaited: what the caller waits for. A step of training that is new is compiled so that
                this comes first, and the rest is computed while the caller goes on.
        """
        first = self._place_of(awaited) if self.ends else -1
        records, leaves, outs, draws, key = (
            self.records,
            self._leaves,
            self._outs,
            self._draws,
            self._key,
        )
        if not records:
            return
        self._begin()
        holders = {
            i: v for i, held in enumerate(outs) if (v := held()) is not None and v.array is None
        }
        if not holders:
            leaves.clear()
            return
        live = tuple(holders)
        kinds = tuple([v.aval.number for v in leaves])
        arrays = [v.array for v in leaves]
        donated = donation.donated(leaves, list(holders.values()))
        first = live.index(first) if first in holders else -1
        # without `first`: a loop that reads a number in some of its steps compiles them once
        whole_key = _Key((tuple(key), live, kinds, donated))
        seeds = _seeds(draws)
        known = self._whole.get(whole_key)
        with jax.enable_x64(True), jax.default_device(self.device):
            if self._goes_one_by_one(whole_key, known is not None, len(records)):
                results = self._singly(records, arrays, seeds, live)
            else:
                given = [arrays[i] for i in donated]
                taken = set(donated)
                kept = [a for i, a in enumerate(arrays) if i not in taken]
                if known is None:
                    function = self._compile(records, donated, holders, first, (given, kept, seeds))
                    known = self._whole.get_or_make(whole_key, lambda: (whole_key, function))
                else:
                    self._whole.move_to_end(
                        known[0]
                    )  # the same object: keys are not compared again
                del arrays
                results = known[1](given, kept, seeds)
        for value, result in zip(holders.values(), results, strict=True):
            value.array = result

    def _place_of(self, value: Value | None) -> int:
        """Return the place of a value among the outputs of all calls; -1 for one that is not."""
        return value.slot if value is not None and value.owner is self._leaves else -1

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

    def _compile(
        self,
        records: Sequence[Record],
        donated: Sequence[int],
        holders: Mapping[int, Value],
        first: int,
        arguments: tuple[list[Any], list[Any], Seeds],
    ) -> Any:
        """Return the function of records.

        Args:
            donated: the places of leaves that it overwrites.
            holders: its results, by their numbers.
            first: the place among them of that which is computed first; -1 for none.
            arguments: the first ones it is called with.
        """
        self.compiled += 1
        items, drawing, constants = _program(records)
        given, kept, _ = arguments
        places = [*donated, *(i for i in range(len(given) + len(kept)) if i not in set(donated))]
        order = donation.beside(
            [(f"l{i}", aval_of(v).number) for i, v in zip(donated, given)],
            [(f"v{i}", v.aval.number) for i, v in holders.items()],
            donation.replaced(items),
        )
        live = list(holders)
        on_gpus = False if self.device.platform == "cpu" else None

        def function(given: list[Any], kept: list[Any], seeds: Seeds) -> list[Any]:
            env = {f"l{i}": v for i, v in zip(places, [*given, *kept])}
            env.update(constants)
            keys = {at: _key_of(seeds[0][place]) for at, place in drawing}
            found = trace.lower(items, env, keys=keys, on_gpus=on_gpus)
            return [found[f"v{live[i]}"] for i in order]

        if first >= 0 and all(v.plain for v in map(aval_of, [*given, *kept])):
            traced, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
            one_each = len(jax.tree.leaves(results)) == len(live)
            if one_each and (divided := divide(traced, order.index(first))) is not None:
                return self._in_two(divided, order, len(donated))
        whole = self._jit(function, donate_argnums=(0,))
        back = sorted(range(len(order)), key=order.__getitem__)

        def called(given: list[Any], kept: list[Any], seeds: Seeds) -> list[Any]:
            made = whole(given, kept, seeds)
            return [made[i] for i in back]

        return called

    def _in_two(self, divided: Divided, order: Sequence[int], donated: int) -> Any:
        """Return a function that calls both parts, of which neither waits.

        Args:
            order: which results the parts give, early and late ones together.
            donated: how many of the first arguments are overwritten.
        """
        first = self._jit(core.jaxpr_as_fun(divided.first))
        second = self._jit(core.jaxpr_as_fun(divided.second), donate_argnums=tuple(range(donated)))
        early = [order[i] for i in divided.early]
        late = [place for i, place in enumerate(order) if i not in set(divided.early)]

        def function(given: list[Any], kept: list[Any], seeds: Seeds) -> list[Any]:
            found: list[Any] = [None] * len(order)
            made = first(*given, *kept, *seeds)
            for place, value in zip(early, made):
                found[place] = value
            others = second(*given, *kept, *seeds, *[made[i] for i in divided.handed])
            for place, value in zip(late, others, strict=True):
                found[place] = value
            return found

        return function

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
            inputs = [None if i == _NONE else found[i] for i in record.inputs]
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
            return call(inputs, None if seed is None else _key_of(seed))

        return self._jit(function)

    def _jit(self, function: Any, **wishes: Any) -> Any:
        """Compile for the device, wherever JAX takes its arguments to lie: else it would compile once
        for first values, which lie nowhere in particular, and again for those that a step gave.
        """
        there = jax.sharding.SingleDeviceSharding(self.device)
        return jax.jit(
            function,
            in_shardings=there,
            out_shardings=there,
            compiler_options=options(self.device),
            **wishes,
        )


def _seeds(draws: Sequence[tuple[int, int]]) -> Seeds:
    """Return an array of what `_key_of` takes for each (seed, number), if there is any: to hand over an
    empty one takes longer than one of numbers.
    """
    if not draws:
        return ()
    return (np.array([(s & 0xFFFFFFFF, s >> 32 & 0xFFFFFFFF, n) for s, n in draws], np.uint32),)


def _key_of(seed: Any) -> Any:
    """Return the JAX key of (low bits of the seed, high bits, number of the call)."""
    return jax.random.fold_in(trace.random_key(seed[:2]), seed[2])


def _program(
    records: Sequence[Record],
) -> tuple[list[Item], list[tuple[int, int]], dict[str, Any]]:
    """Return the operators of records, those that draw with the place of their key, and known
    numbers by name.
    """
    items: list[Item] = []
    drawing: list[tuple[int, int]] = []
    constants: dict[str, Any] = {}
    for at, record in enumerate(records):
        call, definition = record.call, record.call.definition
        names = []
        for i, source in enumerate(record.inputs):
            if i in call.constants:
                name = f"c{call.number}_{i}"
                constants[name] = call.constants[i]
            elif source == _NONE:
                name = EMPTY_NAME
            else:
                name = f"v{source}" if source >= 0 else f"l{-1 - source}"
            names.append(name)
        it = iter(names)
        inputs = {}
        for slot, n in zip(definition.ins, call.layout):
            given = [next(it) for _ in range(abs(n))]
            if n > 0 or (n < 0 and given != [EMPTY_NAME]):
                inputs[slot.name] = given
        outputs = {
            slot.name: [
                EMPTY_NAME if n is None else f"v{n}"
                for n in (number if type(number) is list else [number])
            ]
            for slot, number in zip(definition.outs, record.outputs)
            if number is not None
        }
        op = Operator(call.op.block, definition.type, inputs, outputs, call.attrs, callsite=False)
        if definition.wants_shared and definition.fn is not None:
            definition = replace(
                definition, wants_shared=False, fn=_shared(definition.fn, call.shared)
            )
        if record.draw >= 0:
            drawing.append((at, record.draw))
        items.append((at, op, definition))
    return items, drawing, constants


def _shared(function: Any, shared: bool) -> Any:
    return lambda *values, **attrs: function(*values, shared=shared, **attrs)
