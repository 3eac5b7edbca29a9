"""Recorded operators, compiled as one XLA executable."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jfluid.compile.lowering import trace
from jfluid.compile.lowering.plan import Item
from jfluid.compile.numpy_steps.beside import device_of_interpreter
from jfluid.compile.rewrites.traced_value import Order
from jfluid.compile.runtime import executable_cache, filter_layouts, memory
from jfluid.compile.runtime.executables import Executables
from jfluid.compile.runtime.options import options
from jfluid.dygraph import donation
from jfluid.dygraph.calls import Call
from jfluid.dygraph.lazy_values import Aval, in_order
from jfluid.ir.operator import Operator
from jfluid.ir.variable import EMPTY_NAME

# An input of a record: an output of an earlier one (from 0), a leaf (-1 is the first), or none.
NONE = 1 << 40
# Of an array: its shape and dtype, and the order its dimensions are held in; None for the variable's.
Kind = tuple[Aval, Order | None]
_BYTES = 10 << 10  # of Python objects for each record
Seeds = tuple[np.ndarray, ...]  # of the random numbers of all calls: one array, or none


@dataclass(slots=True)
class Record:
    """A recorded operator.

    Attributes:
        inputs: source of each value of the call (see `NONE`).
        outputs: by output slot the number of the output among all outputs of the trace, None, or a list of these.
        draw: place of the operator's random numbers among all random numbers of the trace; -1 for none.
    """

    call: Call
    inputs: tuple[int, ...]
    outputs: list[Any]
    draw: int

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all outputs."""
        for out in self.outputs:
            yield from (n for n in (out if type(out) is list else (out,)) if n is not None)


class _Noted:
    """Facts from tracing that are saved with an executable (see `executable_cache.TraceResults`)."""

    def __init__(self, step: "weakref.ref[CompiledTrace]"):
        self._step = step

    def noted(self) -> Any:
        """Return True if the results of the trace are waited for."""
        step = self._step()
        return step is not None and step.is_large

    def learn(self, noted: Any) -> None:
        """Set the facts that an earlier process saved."""
        step = self._step()
        if step is not None:
            step.is_large = step.is_large or noted


class CompiledTrace:
    """Executable of a list of records.

    Args:
        records: recorded operators.
        leaves: kinds of the inputs.
        donated: places of inputs that results may overwrite.
        results: number and kind of each result.
        device: device of the executable.

    Attributes:
        leaves: as given.
        is_large: True if a run waits for its results.
        bytes: approximate size of the Python objects and the records.
        orders: layout of each result that is not in the variable's layout, by place.
    """

    def __init__(
        self,
        records: Sequence[Record],
        leaves: Sequence[Kind],
        donated: Sequence[int],
        results: Mapping[int, Aval],
        device: jax.Device,
    ):
        self.leaves, self.bytes = leaves, _BYTES * len(records)
        self._items, self._drawing, self._constants = program(records)
        self._device, self._live = device, list(results)
        replaced = donation.replaced(self._items)
        held = {f"l{i}": order for i, (_, order) in enumerate(leaves) if order is not None}
        held |= {new: held[old] for old, new in replaced.items() if old in held}
        self._held: dict[str, Order] = held
        self.orders = [(at, held[f"v{i}"]) for at, i in enumerate(self._live) if f"v{i}" in held]
        made = [(f"v{i}", (aval.number, held.get(f"v{i}"))) for i, aval in results.items()]
        given = [(f"l{i}", (leaves[i][0].number, leaves[i][1])) for i in donated]
        given = donation.usable(given, made)
        self._donated = [int(name[1:]) for name, _ in given]
        self._kept = [i for i in range(len(leaves)) if i not in set(self._donated)]
        self._order = donation.match_outputs(given, made, replaced)
        self._back = sorted(range(len(made)), key=self._order.__getitem__)
        self.is_large = False  # whether it is waited for (see `memory.LARGE`); known from tracing
        own = weakref.ref(self)  # no reference cycle: garbage is freed at once

        def fresh() -> Any:
            def step(*arguments: Any) -> list[Any]:
                made = own()
                assert made is not None  # it runs
                return made._trace(*arguments)

            return jitted(step, device, donate_argnums=(0,))

        self._function = Executables(fresh, self._entry(), device_of_interpreter(device))

    def _entry(self) -> executable_cache.DiskEntry | None:
        """Return the entry of the executable on disk, or None if it is not saved."""
        identity = (
            "step",
            outline(self._items, self._drawing, self._constants),
            (self._donated, self._kept, self._live, self._order),
            sorted(self._held.items()),
        )
        return executable_cache.entry_of_items(
            self._items, identity, self._device, options(self._device), _Noted(weakref.ref(self))
        )

    def run(self, arrays: Sequence[Any], seeds: Seeds) -> list[Any]:
        """Start the executable, and return the results without waiting."""
        given, kept = [arrays[i] for i in self._donated], [arrays[i] for i in self._kept]
        made = self._function(given, kept, seeds)
        if self.is_large:
            jax.block_until_ready(made)
        return [made[i] for i in self._back]

    def _trace(self, given: list[Any], kept: list[Any], seeds: Seeds) -> list[Any]:
        env = {f"l{i}": v for i, v in zip([*self._donated, *self._kept], [*given, *kept])}
        env.update(self._constants)
        keys = {at: key_of(seeds[0][place]) for at, place in self._drawing}
        on_gpus = False if self._device.platform == "cpu" else None
        wanted = [f"v{i}" for i in self._live]
        found = trace.lower(self._items, env, keys=keys, on_gpus=on_gpus, held=self._held, wanted=wanted)
        self.is_large = self.is_large or memory.is_large(found.values())
        return [found[f"v{self._live[i]}"] for i in self._order]


def outline(items: Sequence[Item], drawing: Sequence[tuple[int, int]], constants: Mapping[str, Any]) -> list[Any]:
    """Return the part of the disk cache key that names and attributes do not determine.

    Args:
        items, drawing, constants: as `program` returns these.
    """
    known = [(n, str(v.dtype), v.shape, v.tobytes()) for n, v in sorted(constants.items())]
    shared = [getattr(d.fn, "shared", None) for _, _, d in items]
    return [list(drawing), known, shared]


def hold_filters(records: Sequence[Record], arrays: list[Any], kinds: list[Kind], device: jax.Device) -> bool:
    """Transpose trained filters and their optimizer state to the kernels' layout.

    Returns True if an array changed.

    Args:
        records: recorded operators of the step.
        arrays, kinds: arrays and kinds of the leaves, changed in place.
        device: device of the step.
    """
    shapes = {f"l{i}": aval.shape for i, (aval, _) in enumerate(kinds)}
    ops = [op for _, op, _ in program(records)[0]]
    trained = {name for op in ops for name in op.inputs.get("Param", ())}
    convolutions = [op for op in ops if not trained.isdisjoint(op.inputs.get("Filter", ()))]
    updates = [op for op in ops if "Param" in op.inputs]
    orders = filter_layouts.wanted(convolutions + updates, shapes.get, device)
    changed = False
    for i, (aval, held) in enumerate(kinds):
        order = orders.get(f"l{i}", held)
        if order != held and order is not None and isinstance(arrays[i], jax.Array):
            arrays[i] = filter_layouts.turned(in_order(arrays[i], held), order)
            kinds[i], changed = (aval, order), True
    return changed


def jitted(function: Any, device: jax.Device, **wishes: Any) -> Any:
    """Compile a function for a device, wherever JAX assumes that the arguments lie.

    Without the shardings JAX compiles a step twice: for uncommitted first values, and for results of a step.
    """
    there = jax.sharding.SingleDeviceSharding(device)
    return jax.jit(
        function,
        in_shardings=there,
        out_shardings=there,
        compiler_options=options(device),
        **wishes,
    )


def seeds_of(draws: Sequence[tuple[int, int]]) -> Seeds:
    """Return an array with a row for `key_of` for each (seed, number), or an empty tuple.

    An empty tuple is a faster argument of a jitted function than an empty array.
    """
    if not draws:
        return ()
    return (np.array([(s & 0xFFFFFFFF, s >> 32 & 0xFFFFFFFF, n) for s, n in draws], np.uint32),)


def key_of(seed: Any) -> Any:
    """Return the JAX key of (low bits of the seed, high bits, number of the call)."""
    return jax.random.fold_in(trace.random_key(seed[:2]), seed[2])


def program(
    records: Sequence[Record],
) -> tuple[list[Item], list[tuple[int, int]], dict[str, Any]]:
    """Return operators, places of random operators with their keys, and known numbers by name."""
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
            elif source == NONE:
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
            slot.name: [EMPTY_NAME if n is None else f"v{n}" for n in (number if type(number) is list else [number])]
            for slot, number in zip(definition.outs, record.outputs)
            if number is not None
        }
        op = Operator(call.op.block, definition.type, inputs, outputs, call.attrs, callsite=False)
        if definition.wants_shared and definition.fn is not None:
            definition = replace(definition, wants_shared=False, fn=_Shared(definition.fn, call.shared))
        if record.draw >= 0:
            drawing.append((at, record.draw))
        items.append((at, op, definition))
    return items, drawing, constants


class _Shared:
    """Function of an operator that depends on in-place use.

    Attributes:
        shared: True if input and output are the same variable.
    """

    def __init__(self, function: Any, shared: bool):
        self._function, self.shared = function, shared

    def __call__(self, *values: Any, **attrs: Any) -> Any:
        return self._function(*values, shared=self.shared, **attrs)
