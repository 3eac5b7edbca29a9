"""LLVM kernels of an LSTM and its gradient over sequences of any lengths."""

from typing import Any

from jfluid.machine_code import ffi_runtime, processor, sequence_kernels, vector_functions
from jfluid.machine_code.extents import Array, Extents, KernelGroup
from jfluid.machine_code.llvm_writer import I64, Module
from jfluid.machine_code.sequence_kernels import Group

FORWARD, BACKWARD = "jfluid_lstm_forward", "jfluid_lstm_backward"
# The numbers of a call. `pitch` and `panel` are those of the weights, see `vector_functions.product`; the
# last three are activations.
GEOMETRY = [*sequence_kernels.GEOMETRY, *"pitch panel gate cell candidate".split()]
_GATES = 4  # of each row: candidate, input, forget, output
_PEEPHOLES = 3  # behind the gates' biases: of input, forget, output
MEMORY = _GATES + 2  # float32 of it for each number of the state of a group


def write(module: Module) -> None:
    """Write all kernels."""
    multiply = vector_functions.product(module)
    ffi_runtime.define(module, FORWARD, _forward(module, multiply), given=6, made=3)
    ffi_runtime.define(module, BACKWARD, _backward(module, multiply), given=10, made=5)


def extents(name: str, n: Any) -> Extents:
    """Return the extents of a kernel for the geometry `n`."""
    rows, states, sums, places = sequence_kernels.sizes(n, _GATES + _PEEPHOLES)
    weight, bias = Array(_GATES * n.width**2), Array((_GATES + _PEEPHOLES) * n.width)
    shape = (n.width, _GATES * n.width) if name == FORWARD else (_GATES * n.width, n.width)
    holds = [
        *sequence_kernels.holds(n),
        vector_functions.fits("weight", shape, n.pitch, n.panel),
    ]
    given = [rows(_GATES), weight, bias, states, states, places]
    made = [rows(1), rows(1), rows(_GATES)]
    if name == BACKWARD:
        given = [rows(_GATES), rows(1), rows(1), *given[1:5], rows(1), rows(1), places]
        made = [rows(_GATES), rows(1), sums, states, states]
    return Extents(given, made, sequence_kernels.memory(n, MEMORY), holds)


KERNELS = KernelGroup((FORWARD, BACKWARD), GEOMETRY, write, extents, bits=processor.AVX2)


class _Lstm(Group):
    """Group of sequences of an LSTM, with gates and states in scratch memory.

    Attributes:
        gates: [group, 4 width].
        h, c: [group, width].
    """

    def __init__(self, module: Module, name: str, arrays: str, of_rows: dict[str, int], of_sequences: str):
        super().__init__(module, name, arrays, of_rows, of_sequences, GEOMETRY)
        self.gates, self.h, self.c = (self.memory(n) for n in (_GATES, 1, 1))


def _forward(module: Module, multiply: Any) -> Any:
    """Write the forward kernel.

    It reads x [rows, 4 width], weight [width, 4 width], bias [7 width], h0 and c0 [number, width]; it writes hidden
    and cells [rows, width] and gates [rows, 4 width]. Padding rows of hidden and cells copy a row; padding rows of
    gates are zero.
    """
    arrays = "x weight bias h0 c0 places hidden cells gates"
    of_rows = {"x": _GATES, "hidden": 1, "cells": 1, "gates": _GATES}
    group = _Lstm(module, FORWARD, arrays, of_rows, "h0 c0")
    f, v = group.f, group.f.v
    with f.loop(group.count) as row:
        for state, start in ((group.h, "h0"), (group.c, "c0")):
            group.copy(group.of_row(state, row), group.of_sequence(v[start], row))
    with group.steps() as (step, active):
        sizes = (v["width"], f.product(v["width"], I64(_GATES)), v["pitch"], v["panel"])
        f.call(multiply, group.h, v["weight"], group.gates, active, *sizes)
        with f.loop(active) as row:
            here, _, _ = group.at_step(row, step, from_end=False)
            with group.columns() as column:
                _cell(group, row, column, here)
    group.copy_to_padding(v["hidden"], v["cells"])
    group.clear_padding({"gates": _GATES})
    return f.end()


def _cell(group: _Lstm, row: Any, column: Any, here: Any) -> None:
    """Compute a vector of a sequence's new state from products, inputs and peepholes."""
    f, v, b, vectors = group.f, group.f.v, group.f.b, group.vectors
    load = vectors.load
    x, gates = (group.of_row(v[name], here, _GATES) for name in ("x", "gates"))
    inputs = group.parts(x, column, _GATES)
    products = group.parts(group.of_row(group.gates, row, _GATES), column, _GATES)
    *biases, by_input, by_forget, by_output = group.parts(v["bias"], column, _GATES + _PEEPHOLES)
    pre = [b.fadd(b.fadd(load(i), load(bias)), load(p)) for i, bias, p in zip(inputs, biases, products)]
    c = load(f.at(group.of_row(group.c, row), column))
    candidate = vectors.activated(v["candidate"], pre[0])
    i = vectors.activated(v["gate"], vectors.fma(load(by_input), c, pre[1]))
    forget = vectors.activated(v["gate"], vectors.fma(load(by_forget), c, pre[2]))
    new = vectors.fma(forget, c, b.fmul(i, candidate))
    o = vectors.activated(v["gate"], vectors.fma(load(by_output), new, pre[3]))
    h = b.fmul(o, vectors.activated(v["cell"], new))
    for value, place in zip((candidate, i, forget, o), group.parts(gates, column, _GATES)):
        vectors.store(value, place)
    for value, state, kept in ((h, group.h, "hidden"), (new, group.c, "cells")):
        vectors.store(value, f.at(group.of_row(state, row), column))
        vectors.store(value, f.at(group.of_row(v[kept], here), column))


def _backward(module: Module, multiply: Any) -> Any:
    """Write the backward kernel.

    It reads gates, cells and hidden as the forward kernel wrote them, the transposed weight, biases and peepholes, h0,
    c0, and the gradients of hidden and cells. It writes the gradient of x, the hidden states before each row, sums of
    the bias's gradients [chunks, 7 width], and the gradients of h0 and c0. Padding is zero.
    """
    arrays = "gates cells hidden weight bias h0 c0 grad_hidden grad_cells places"
    arrays += " grad_x before sums grad_h0 grad_c0"
    of_rows = dict.fromkeys("cells hidden grad_hidden grad_cells before".split(), 1)
    of_rows |= {"gates": _GATES, "grad_x": _GATES}
    group = _Lstm(module, BACKWARD, arrays, of_rows, "h0 c0 grad_h0 grad_c0")
    f, v = group.f, group.f.v
    sums = f.product(v["width"], I64(_GATES + _PEEPHOLES))
    v["sums"] = f.at(v["sums"], f.product(v["chunk"], sums))
    group.clear(v["sums"], sums)
    for state in (group.h, group.c):  # gradients of them
        group.clear(state, f.product(v["group"], v["width"]))
    with group.steps() as (step, active):
        with f.loop(active) as row:
            here, before = group.states_before(row, step, {"hidden": "h0", "cells": "c0"})
            group.copy(group.of_row(v["before"], here), before["hidden"])
            with group.columns() as column:
                _cell_gradient(group, row, column, here, before["cells"])
        sizes = (f.product(v["width"], I64(_GATES)), v["width"], v["pitch"], v["panel"])
        f.call(multiply, group.gates, v["weight"], group.h, active, *sizes)
    with f.loop(group.count) as row:
        for state, name in ((group.h, "grad_h0"), (group.c, "grad_c0")):
            group.copy(group.of_sequence(v[name], row), group.of_row(state, row))
    group.clear_padding({"grad_x": _GATES, "before": 1})
    return f.end()


def _cell_gradient(group: _Lstm, row: Any, column: Any, here: Any, c_before: Any) -> None:
    """Compute a vector of a sequence's gradients in a step from the gradients of the next step."""
    f, v, b, vectors = group.f, group.f.v, group.f.b, group.vectors
    load, times = vectors.load, b.fmul

    def of(name: str) -> Any:
        return load(f.at(group.of_row(v[name], here), column))

    kept = group.of_row(v["gates"], here, _GATES)
    a, i, forget, o = map(load, group.parts(kept, column, _GATES))
    *_, by_input, by_forget, by_output = group.parts(v["bias"], column, _GATES + _PEEPHOLES)
    c, before = of("cells"), load(f.at(c_before, column))
    out = vectors.activated(v["cell"], c)
    dh_place, dc_place = (f.at(group.of_row(s, row), column) for s in (group.h, group.c))
    dh = b.fadd(load(dh_place), of("grad_hidden"))
    dc = b.fadd(load(dc_place), of("grad_cells"))
    grad_o = times(dh, times(out, vectors.slope(v["gate"], o)))
    dc = vectors.fma(dh, times(o, vectors.slope(v["cell"], out)), dc)
    dc = vectors.fma(grad_o, load(by_output), dc)
    grad_a = times(dc, times(i, vectors.slope(v["candidate"], a)))
    grad_i = times(dc, times(a, vectors.slope(v["gate"], i)))
    grad_f = times(dc, times(before, vectors.slope(v["gate"], forget)))
    through = vectors.fma(grad_i, load(by_input), times(dc, forget))
    vectors.store(vectors.fma(grad_f, load(by_forget), through), dc_place)
    grads = (grad_a, grad_i, grad_f, grad_o)
    for base in (group.of_row(v["grad_x"], here, 4), group.of_row(group.gates, row, 4)):
        for value, place in zip(grads, group.parts(base, column, _GATES)):
            vectors.store(value, place)
    sums = group.parts(v["sums"], column, _GATES + _PEEPHOLES)
    for value, place in zip(grads, sums):
        vectors.store(b.fadd(load(place), value), place)
    for value, factor, place in zip((grad_i, grad_f, grad_o), (before, before, c), sums[_GATES:]):
        vectors.store(vectors.fma(value, factor, load(place)), place)
