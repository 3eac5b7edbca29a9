"""An LSTM over sequences of any lengths on CPUs, and its gradient, as loops over time, for LLVM.

Sequences do not depend on one another: a chunk of the work is a group of them through all its steps,
whose state stays in a core's cache. Sequences come the longest first, so that those of a group that
are not over are always its first. Rows of a sequence are read and written where they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jfluid.compile import llvm_writer, vector_functions, xla_tasks
from jfluid.compile.llvm_writer import I32, I64, POINTER, VOID, Function, Module
from jfluid.compile.vector_functions import LANES, Vectors

FORWARD, BACKWARD = "jfluid_direct_lstm_forward", "jfluid_direct_lstm_backward"
# The numbers of a call, see `xla_tasks.py` for the first two. There are `batches` of arrays, which share
# weights, each of `number` sequences in `rows` rows. A group has `group` sequences; a row follows
# another of its sequence `stride` rows later. `pitch` and `panel` are those of the weights, see
# `vector_functions.product`; the last three are activations.
GEOMETRY = (
    "chunks memory batches rows number width group stride backwards pitch panel gate cell candidate"
).split()
# What is known of the sequences of a batch, int32 [3 number + 1]: for each, the longest first, its number;
# then its first row; then its length; at last how many rows there are, behind which is padding.
_GATES = 4  # of each row: candidate, input, forget, output
_PEEPHOLES = 3  # behind the gates' biases: of input, forget, output
# float32 of memory for each number of the state of a group
MEMORY = _GATES + 2
ALIGNED = 16
_LINE = 64  # bytes


def names() -> list[str]:
    """Return the names of the functions; none where this code is not known to be faster than XLA's."""
    return [FORWARD, BACKWARD] if llvm_writer.has_wide_vectors() else []


def write(module: Module) -> None:
    """Write down the functions of all names."""
    multiply = vector_functions.product(module)
    xla_tasks.define(module, FORWARD, _forward(module, multiply), given=6, made=3)
    xla_tasks.define(module, BACKWARD, _backward(module, multiply), given=10, made=5)


class _Group:
    """Writes what a chunk does: the loops over the steps of a group and over its rows.

    Args:
        shared: names of the arrays that all batches share.
        arrays: of the others, the numbers in a row: of each row, or of each sequence.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        order: str,
        widths: dict[str, int],
        of_sequences: str,
    ):
        pointers = dict.fromkeys((*order.split(), "geometry", "scratch"), POINTER)
        self.f = Function(module, name, VOID, **pointers, chunk=I64)
        f, v, b = self.f, self.f.v, self.f.b
        for i, number in enumerate(GEOMETRY):
            v[number] = b.sext(f.load(f.at(v["geometry"], I64(i), kind=I32), I32), I64)
        self.vectors = Vectors(f)
        self.gates = f.product(v["width"], I64(_GATES))  # numbers of them in a row
        batch = b.srem(v["chunk"], v["batches"])
        self.part = b.sdiv(v["chunk"], v["batches"])
        for array, numbers in widths.items():
            count = v["number"] if array in of_sequences.split() else v["rows"]
            size = f.product(batch, count, v["width"], I64(numbers))
            v[array] = f.at(v[array], size)
        known = f.sum(f.product(v["number"], I64(3)), I64(1))
        places = f.at(v["places"], f.product(batch, known), kind=I32)
        self.first = f.product(self.part, v["group"])
        self.count = f.least(v["group"], b.sub(v["number"], self.first))
        self.places = places
        self.total = self._known(f.product(v["number"], I64(3)))
        self.longest = self._of(2, I64(0))
        scratch = b.ptrtoint(v["scratch"], I64)
        aligned = b.inttoptr(b.and_(f.sum(scratch, I64(_LINE - 1)), I64(-_LINE)), POINTER)
        held = f.product(v["group"], v["width"])
        # [group, 4 width], [group, width], [group, width]
        self.pre = aligned
        self.h = f.at(aligned, f.product(held, I64(_GATES)))
        self.c = f.at(self.h, held)

    def _known(self, at: Any) -> Any:
        return self.f.b.sext(self.f.load(self.f.at(self.places, at, kind=I32), I32), I64)

    def _of(self, what: int, row: Any) -> Any:
        """What is known of a sequence of the group."""
        f = self.f
        return self._known(f.sum(f.product(f.v["number"], I64(what)), self.first, row))

    def of_sequence(self, array: Any, row: Any) -> Any:
        """The place of a sequence of the group in an array [number, width]."""
        return self.f.at(array, self.f.product(self._of(0, row), self.f.v["width"]))

    def of_row(self, array: Any, row: Any, numbers: int = 1) -> Any:
        """The place of a row in an array [rows, numbers width]."""
        return self.f.at(array, self.f.product(row, self.f.v["width"], I64(numbers)))

    def state(self, array: Any, row: Any, numbers: int = 1) -> Any:
        """The place of a sequence of the group in an array of its states."""
        return self.of_row(array, row, numbers)

    def copy(self, target: Any, source: Any) -> None:
        self.f.c("memcpy", target, source, self.f.product(self.f.v["width"], I64(4)))

    @contextmanager
    def steps(self) -> Iterator[tuple[Any, Any]]:
        """A loop over the steps of the longest sequence: (step, how many are not over)."""
        f, b = self.f, self.f.b
        active = f.variable(I64, self.count)
        with f.loop(self.longest) as step:
            with f.repeat() as leave:
                last = b.sub(f.load(active, I64), I64(1))
                leave(b.icmp_signed(">", self._of(2, last), step))
                b.store(last, active)
            yield step, f.load(active, I64)

    def at_step(self, row: Any, step: Any, from_end: bool) -> tuple[Any, Any, Any]:
        """(row of the arrays, that of the step before, whether there is one) of a sequence."""
        f, v, b = self.f, self.f.v, self.f.b
        length = self._of(2, row)
        left = b.sub(b.sub(length, I64(1)), step)
        backwards = b.icmp_signed("!=", v["backwards"], I64(0))
        time = b.select(backwards, *((step, left) if from_end else (left, step)))
        here = f.sum(self._of(1, row), f.product(time, v["stride"]))
        before = b.select(backwards, f.sum(here, v["stride"]), b.sub(here, v["stride"]))
        is_first = left if from_end else step
        return here, before, b.icmp_signed("!=", is_first, I64(0))

    @contextmanager
    def columns(self) -> Iterator[Any]:
        """A loop over the vectors of the width."""
        with self.f.loop(self.f.b.sdiv(self.f.v["width"], I64(LANES))) as i:
            yield self.f.product(i, I64(LANES))

    def gates_at(self, base: Any, column: Any) -> list[Any]:
        """The places of vectors of all gates in a row of them, or of their biases and peepholes."""
        f = self.f
        return [
            f.at(base, f.product(f.v["width"], I64(i)), column) for i in range(_GATES + _PEEPHOLES)
        ]

    @contextmanager
    def padding(self) -> Iterator[Any]:
        """A loop over the rows that are no sequence's, which one group does."""
        with self.f.b.if_then(self.f.b.icmp_signed("==", self.part, I64(0))):
            with self.f.loop(self.f.v["rows"], self.total) as row:
                yield row


def _forward(module: Module, multiply: Any) -> Any:
    """x [rows, 4 width], weight [width, 4 width], bias [7 width], h0 and c0 [number, width]; makes hidden
    and cells [rows, width] and gates [rows, 4 width]. Padding is a copy of some row.
    """
    of_rows = {"x": 4, "hidden": 1, "cells": 1, "gates": 4}
    group = _Group(
        module,
        "lstm_forward_chunk",
        "x weight bias h0 c0 places hidden cells gates",
        {**of_rows, "h0": 1, "c0": 1},
        "h0 c0",
    )
    f, v, b = group.f, group.f.v, group.f.b
    with f.loop(group.count) as row:
        group.copy(group.state(group.h, row), group.of_sequence(v["h0"], row))
        group.copy(group.state(group.c, row), group.of_sequence(v["c0"], row))
    with group.steps() as (step, active):
        sizes = (active, v["width"], group.gates, v["pitch"], v["panel"])
        f.call(multiply, group.h, v["weight"], group.pre, *sizes)
        with f.loop(active) as row:
            here, _, _ = group.at_step(row, step, from_end=False)
            x, gates = (group.of_row(v[n], here, 4) for n in ("x", "gates"))
            with group.columns() as column:
                _cell(group, row, column, x, gates, here)
    empty = b.icmp_signed("==", group.longest, I64(0))
    size = f.product(v["width"], I64(4))
    with group.padding() as row, b.if_else(empty) as (nothing, something):
        with nothing:
            for name in ("hidden", "cells"):
                f.c("memset", group.of_row(v[name], row), I32(0), size)
        with something:
            for name in ("hidden", "cells"):
                group.copy(group.of_row(v[name], row), group.of_row(v[name], group._of(1, I64(0))))
    return f.end()


def _cell(group: _Group, row: Any, column: Any, x: Any, gates: Any, here: Any) -> None:
    """A vector of the state of a sequence in a step, from products and inputs."""
    f, v, b, vectors = group.f, group.f.v, group.f.b, group.vectors
    load = vectors.load
    inputs, products = (
        group.gates_at(base, column)[:_GATES] for base in (x, group.state(group.pre, row, 4))
    )
    *biases, by_input, by_forget, by_output = group.gates_at(v["bias"], column)
    pre = [
        b.fadd(b.fadd(load(i), load(bias)), load(p)) for i, bias, p in zip(inputs, biases, products)
    ]
    place = f.at(group.state(group.c, row), column)
    c = load(place)
    candidate = vectors.activated(v["candidate"], pre[0])
    i = vectors.activated(v["gate"], vectors.fma(load(by_input), c, pre[1]))
    forget = vectors.activated(v["gate"], vectors.fma(load(by_forget), c, pre[2]))
    new = vectors.fma(forget, c, b.fmul(i, candidate))
    o = vectors.activated(v["gate"], vectors.fma(load(by_output), new, pre[3]))
    h = b.fmul(o, vectors.activated(v["cell"], new))
    for value, place in zip((candidate, i, forget, o), group.gates_at(gates, column)):
        vectors.store(value, place)
    for value, state, kept in ((h, group.h, "hidden"), (new, group.c, "cells")):
        vectors.store(value, f.at(group.state(state, row), column))
        vectors.store(value, f.at(group.of_row(v[kept], here), column))


def _backward(module: Module, multiply: Any) -> Any:
    """gates, cells and hidden as the forward function made them, the weight turned round, its biases and
    peepholes, h0, c0, and the gradients of hidden and cells; makes the gradients of x, the hidden
    states before each row, sums of the gradients of the bias [chunks, 7 width], and those of h0 and
    c0. Padding is zero.
    """
    of_rows = {"gates": 4, "cells": 1, "hidden": 1, "grad_hidden": 1, "grad_cells": 1}
    of_rows |= {"grad_x": 4, "before": 1}
    of_sequences = "h0 c0 grad_h0 grad_c0"
    group = _Group(
        module,
        "lstm_backward_chunk",
        "gates cells hidden weight bias h0 c0 grad_hidden grad_cells places "
        "grad_x before sums grad_h0 grad_c0",
        {**of_rows, **dict.fromkeys(of_sequences.split(), 1)},
        of_sequences,
    )
    f, v, b = group.f, group.f.v, group.f.b
    sums = f.product(v["width"], I64(_GATES + _PEEPHOLES))
    v["sums"] = f.at(v["sums"], f.product(v["chunk"], sums))
    f.c("memset", v["sums"], I32(0), f.product(sums, I64(4)))
    size = f.product(v["width"], I64(4))
    # the gradients of both states
    f.c("memset", group.h, I32(0), f.product(v["group"], size, I64(2)))
    with group.steps() as (step, active):
        with f.loop(active) as row:
            here, earlier, any_earlier = group.at_step(row, step, from_end=True)
            before = {
                name: b.select(
                    any_earlier,
                    group.of_row(v[name], earlier),
                    group.of_sequence(v[start], row),
                )
                for name, start in (("hidden", "h0"), ("cells", "c0"))
            }
            group.copy(group.of_row(v["before"], here), before["hidden"])
            with group.columns() as column:
                _cell_gradient(group, row, column, here, before["cells"])
        sizes = (active, group.gates, v["width"], v["pitch"], v["panel"])
        f.call(multiply, group.pre, v["weight"], group.h, *sizes)
    with f.loop(group.count) as row:
        group.copy(group.of_sequence(v["grad_h0"], row), group.state(group.h, row))
        group.copy(group.of_sequence(v["grad_c0"], row), group.state(group.c, row))
    with group.padding() as row:
        f.c("memset", group.of_row(v["grad_x"], row, 4), I32(0), f.product(size, I64(_GATES)))
        f.c("memset", group.of_row(v["before"], row), I32(0), size)
    return f.end()


def _cell_gradient(group: _Group, row: Any, column: Any, here: Any, c_before: Any) -> None:
    """A vector of the gradients of a sequence in a step, from those of the step after."""
    f, v, b, vectors = group.f, group.f.v, group.f.b, group.vectors
    load, one = vectors.load, b.fmul

    def of(name: str) -> Any:
        return load(f.at(group.of_row(v[name], here), column))

    a, i, forget, o = map(load, group.gates_at(group.of_row(v["gates"], here, 4), column)[:_GATES])
    peepholes = list(map(load, group.gates_at(v["bias"], column)[_GATES:]))
    c, before = of("cells"), load(f.at(c_before, column))
    out = vectors.activated(v["cell"], c)
    dh_place, dc_place = (f.at(group.state(s, row), column) for s in (group.h, group.c))
    dh = b.fadd(load(dh_place), of("grad_hidden"))
    dc = b.fadd(load(dc_place), of("grad_cells"))
    grad_o = one(dh, one(out, vectors.slope(v["gate"], o)))
    dc = vectors.fma(dh, one(o, vectors.slope(v["cell"], out)), dc)
    dc = vectors.fma(grad_o, peepholes[2], dc)
    grad_a = one(dc, one(i, vectors.slope(v["candidate"], a)))
    grad_i = one(dc, one(a, vectors.slope(v["gate"], i)))
    grad_f = one(dc, one(before, vectors.slope(v["gate"], forget)))
    kept = one(dc, forget)
    kept = vectors.fma(grad_i, peepholes[0], kept)
    vectors.store(vectors.fma(grad_f, peepholes[1], kept), dc_place)
    grads = (grad_a, grad_i, grad_f, grad_o)
    for base in (group.of_row(v["grad_x"], here, 4), group.state(group.pre, row, 4)):
        for value, place in zip(grads, group.gates_at(base, column)):
            vectors.store(value, place)
    factors = (*[None] * _GATES, before, before, c)
    sums = group.gates_at(v["sums"], column)
    for value, factor, place in zip((*grads, grad_i, grad_f, grad_o), factors, sums):
        total = load(place)
        total = b.fadd(total, value) if factor is None else vectors.fma(value, factor, total)
        vectors.store(total, place)
