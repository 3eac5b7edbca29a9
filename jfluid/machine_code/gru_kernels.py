"""LLVM kernels of a GRU and its gradient over sequences of any lengths."""

from typing import Any

from jfluid.machine_code import ffi_runtime, processor, sequence_kernels, vector_functions
from jfluid.machine_code.extents import Array, Extents, KernelGroup
from jfluid.machine_code.llvm_writer import I64, Module
from jfluid.machine_code.sequence_kernels import Group

FORWARD, BACKWARD = "jfluid_gru_forward", "jfluid_gru_backward"
# The numbers of a call. Pitches and panels are those of the weights of gates and candidate, see
# `vector_functions.product`; then two activations, and whether the update gate keeps the old state.
GEOMETRY = [
    *sequence_kernels.GEOMETRY,
    *"pitch panel candidate_pitch candidate_panel gate candidate origin".split(),
]
_GATES = 2  # of each row: update, reset; behind them is the candidate
_ALL = _GATES + 1
MEMORY = _GATES + 4  # float32 of it for each number of the state of a group


def write(module: Module) -> None:
    """Write all kernels."""
    multiply = vector_functions.product(module)
    ffi_runtime.define(module, FORWARD, _forward(module, multiply), given=6, made=2)
    ffi_runtime.define(module, BACKWARD, _backward(module, multiply), given=7, made=7)


def extents(name: str, n: Any) -> Extents:
    """Return the extents of a kernel for the geometry `n`."""
    rows, states, sums, places = sequence_kernels.sizes(n, _ALL)
    weights = [Array(_GATES * n.width**2), Array(n.width**2)]
    shape = (n.width, _GATES * n.width) if name == FORWARD else (_GATES * n.width, n.width)
    holds = [
        *sequence_kernels.holds(n),
        vector_functions.fits("weight", shape, n.pitch, n.panel),
        vector_functions.fits("candidate", (n.width, n.width), n.candidate_pitch, n.candidate_panel),
    ]
    given = [rows(_ALL), *weights, Array(_ALL * n.width), states, places]
    made = [rows(1), rows(_ALL)]
    if name == BACKWARD:
        given = [rows(_ALL), rows(1), *weights, states, rows(1), places]
        made = [rows(_ALL), rows(_GATES), rows(1), rows(1), rows(1), sums, states]
    return Extents(given, made, sequence_kernels.memory(n, MEMORY), holds)


KERNELS = KernelGroup((FORWARD, BACKWARD), GEOMETRY, write, extents, bits=processor.AVX2)


class _Gru(Group):
    """Group of sequences of a GRU, with gates and states in scratch memory.

    Attributes:
        gates: [group, 2 width].
        h, others: [group, width].
    """

    def __init__(self, module: Module, name: str, arrays: str, of_rows: dict[str, int], of_sequences: str):
        super().__init__(module, name, arrays, of_rows, of_sequences, GEOMETRY)
        self.gates, self.h, *self.others = (self.memory(n) for n in (_GATES, 1, 1, 1, 1))
        self.origin = self.f.b.icmp_signed("!=", self.f.v["origin"], I64(0))

    def shares(self, u: Any) -> tuple[Any, Any]:
        """Return the factors of the old state and of the candidate, for an update gate."""
        b = self.f.b
        rest = b.fsub(self.vectors.number(1.0), u)
        return b.select(self.origin, u, rest), b.select(self.origin, rest, u)

    def multiply(self, function: Any, x: Any, name: str, out: Any, active: Any, turned: bool) -> None:
        """Multiply states by the weights of the gates or of the candidate; `turned` means transposed weights."""
        f, v = self.f, self.f.v
        wide = f.product(v["width"], I64(1 if name else _GATES))
        sizes = (wide, v["width"]) if turned else (v["width"], wide)
        pitches = v[f"{name}pitch"], v[f"{name}panel"]
        f.call(function, x, v[f"{name}weight"], out, active, *sizes, *pitches)


def _forward(module: Module, multiply: Any) -> Any:
    """Write the forward kernel.

    It reads x [rows, 3 width], weights [width, 2 width] and [width, width], bias [3 width], h0 [number, width]; it
    writes hidden [rows, width] and gates with candidates [rows, 3 width]. Padding rows of hidden copy a row; padding
    rows of gates are zero.
    """
    arrays = "x weight candidate_weight bias h0 places hidden gates"
    of_rows = {"x": _ALL, "hidden": 1, "gates": _ALL}
    group = _Gru(module, FORWARD, arrays, of_rows, "h0")
    f, v, b, vectors = group.f, group.f.v, group.f.b, group.vectors
    load, (reset, products, *_) = vectors.load, group.others
    with f.loop(group.count) as row:
        group.copy(group.of_row(group.h, row), group.of_sequence(v["h0"], row))

    def activated(part: int, row: Any, here: Any, column: Any, product: Any) -> Any:
        """Compute a vector of a gate or a candidate, and store it for the backward kernel."""
        x, bias = (
            load(group.parts(base, column, _ALL)[part]) for base in (group.of_row(v["x"], here, _ALL), v["bias"])
        )
        pre = b.fadd(b.fadd(x, bias), load(product))
        found = vectors.activated(v["gate" if part < _GATES else "candidate"], pre)
        kept = group.of_row(v["gates"], here, _ALL)
        vectors.store(found, group.parts(kept, column, _ALL)[part])
        return found

    with group.steps() as (step, active):
        group.multiply(multiply, group.h, "", group.gates, active, False)
        with f.loop(active) as row:
            here, _, _ = group.at_step(row, step, from_end=False)
            with group.columns() as column:
                gates = group.parts(group.of_row(group.gates, row, _GATES), column, _GATES)
                _, r = (activated(i, row, here, column, gates[i]) for i in range(_GATES))
                h = load(f.at(group.of_row(group.h, row), column))
                vectors.store(b.fmul(r, h), f.at(group.of_row(reset, row), column))
        group.multiply(multiply, reset, "candidate_", products, active, False)
        with f.loop(active) as row:
            here, _, _ = group.at_step(row, step, from_end=False)
            with group.columns() as column:
                product = f.at(group.of_row(products, row), column)
                c = activated(_GATES, row, here, column, product)
                u = load(f.at(group.of_row(v["gates"], here, _ALL), column))
                place = f.at(group.of_row(group.h, row), column)
                kept, new = group.shares(u)
                h = vectors.fma(kept, load(place), b.fmul(new, c))
                for target in (place, f.at(group.of_row(v["hidden"], here), column)):
                    vectors.store(h, target)
    group.copy_to_padding(v["hidden"])
    group.clear_padding({"gates": _ALL})
    return f.end()


def _backward(module: Module, multiply: Any) -> Any:
    """Write the backward kernel.

    It reads gates and hidden as the forward kernel wrote them, the transposed weights, h0, and the gradient of hidden.
    It writes the gradients of x, of the gates [rows, 2 width] and of the candidates; the state before each row, and
    this state times the reset gate; sums of the bias's gradients [chunks, 3 width]; and the gradient of h0. Padding is
    zero.
    """
    arrays = "gates hidden weight candidate_weight h0 grad_hidden places"
    arrays += " grad_x grad_gates grad_candidates before reset sums grad_h0"
    of_rows = dict.fromkeys("hidden grad_hidden grad_candidates before reset".split(), 1)
    of_rows |= {"gates": _ALL, "grad_x": _ALL, "grad_gates": _GATES}
    group = _Gru(module, BACKWARD, arrays, of_rows, "h0 grad_h0")
    f, v, b = group.f, group.f.v, group.f.b
    candidates, resets, products = group.others
    sums = f.product(v["width"], I64(_ALL))
    v["sums"] = f.at(v["sums"], f.product(v["chunk"], sums))
    group.clear(v["sums"], sums)
    # The gradient of a state is what comes straight from the step after, and what comes by its gates.
    for state in (group.h, products):
        group.clear(state, f.product(v["group"], v["width"]))
    with group.steps() as (step, active):
        for cell, given, name, out in (
            (_candidate_gradient, candidates, "candidate_", resets),
            (_gates_gradient, group.gates, "", products),
        ):
            with f.loop(active) as row:
                here, before = group.states_before(row, step, {"hidden": "h0"})
                with group.columns() as column:
                    cell(group, row, column, here, before["hidden"])
            group.multiply(multiply, given, name, out, active, True)
    with f.loop(group.count) as row, group.columns() as column:
        places = (f.at(group.of_row(state, row), column) for state in (group.h, products))
        total = b.fadd(*map(group.vectors.load, places))
        group.vectors.store(total, f.at(group.of_sequence(v["grad_h0"], row), column))
    made = {"grad_x": _ALL, "grad_gates": _GATES}
    group.clear_padding(made | dict.fromkeys(("grad_candidates", "before", "reset"), 1))
    return f.end()


def _candidate_gradient(group: _Gru, row: Any, column: Any, here: Any, h_before: Any) -> None:
    """Compute a vector of the gradient of a candidate, and of the gradient of the new state, kept in the group."""
    f, v, b, vectors = group.f, group.f.v, group.f.b, group.vectors
    load = vectors.load
    u, _, c = map(load, group.parts(group.of_row(v["gates"], here, _ALL), column, _ALL))
    place, product = (f.at(group.of_row(state, row), column) for state in (group.h, group.others[2]))
    given = load(f.at(group.of_row(v["grad_hidden"], here), column))
    dh = b.fadd(b.fadd(load(place), load(product)), given)
    vectors.store(dh, place)
    grad = b.fmul(dh, b.fmul(group.shares(u)[1], vectors.slope(v["candidate"], c)))
    x = group.parts(group.of_row(v["grad_x"], here, _ALL), column, _ALL)[_GATES]
    alone = f.at(group.of_row(v["grad_candidates"], here), column)
    for target in (x, alone, f.at(group.of_row(group.others[0], row), column)):
        vectors.store(grad, target)
    total = group.parts(v["sums"], column, _ALL)[_GATES]
    vectors.store(b.fadd(load(total), grad), total)


def _gates_gradient(group: _Gru, row: Any, column: Any, here: Any, h_before: Any) -> None:
    """Compute a vector of the gradients of the gates, and the part of the state's gradient that bypasses the gates."""
    f, v, b, vectors = group.f, group.f.v, group.f.b, group.vectors
    load, times = vectors.load, b.fmul
    u, r, c = map(load, group.parts(group.of_row(v["gates"], here, _ALL), column, _ALL))
    place, reset = (f.at(group.of_row(s, row), column) for s in (group.h, group.others[1]))
    dh, d_reset, before = load(place), load(reset), load(f.at(h_before, column))
    difference = b.fsub(before, c)
    difference = b.select(group.origin, difference, b.fneg(difference))
    grad_u = times(dh, times(difference, vectors.slope(v["gate"], u)))
    grad_r = times(d_reset, times(before, vectors.slope(v["gate"], r)))
    vectors.store(vectors.fma(d_reset, r, times(dh, group.shares(u)[0])), place)
    for value, name in ((before, "before"), (times(r, before), "reset")):
        vectors.store(value, f.at(group.of_row(v[name], here), column))
    bases = (
        group.of_row(v["grad_x"], here, _ALL),
        group.of_row(v["grad_gates"], here, _GATES),
        group.of_row(group.gates, row, _GATES),
    )
    for base in bases:
        for value, target in zip((grad_u, grad_r), group.parts(base, column, _GATES)):
            vectors.store(value, target)
    for value, total in zip((grad_u, grad_r), group.parts(v["sums"], column, _GATES)):
        vectors.store(b.fadd(load(total), value), total)
