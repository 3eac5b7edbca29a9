"""LLVM kernels that reduce the rows of a matrix for each column: channels of images with channels last.

The reductions are the mean, the squared deviations and the two sums of a normalisation's gradient.
A chunk of the rows fits a core's cache: the second pass, over deviations from the chunk's mean, reads no memory.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from jfluid.machine_code import processor, xla_tasks
from jfluid.machine_code.extents import Array, Extents, KernelGroup
from jfluid.machine_code.llvm_writer import FLOAT, I64, Function, Module
from jfluid.machine_code.processor import LANES

# The kinds of functions, and the arrays that each is given.
KINDS = {"moments": ("x",), "products": ("x", "y", "means")}
WIDTHS = (2 * LANES, LANES)  # channels that are summed at a time
_SUMS = LANES // 2  # vectors of each sum, which wait for one another
# The numbers of a call, see `xla_tasks.py` for the first two; the last is how many chunks a group of rows has.
GEOMETRY = "chunks memory rows channels each".split()
_FLOATS = ir.VectorType(FLOAT, LANES)
_ZERO = ir.Constant(_FLOATS, [0.0] * LANES)
Add = Callable[[Any, list[list[Any]]], None]


def name(kind: str, width: int) -> str:
    """Return the name of the kernel of a kind for `width` channels at a time."""
    return f"jfluid_channel_{kind}_{width}"


def write(module: Module) -> None:
    """Write all kernels."""
    for kind, part in zip(KINDS, (_moments, _products)):
        for width in WIDTHS:
            chunk = _chunk(module, kind, width, part)
            xla_tasks.define(module, name(kind, width), chunk, len(KINDS[kind]))


def extents(name_: str, n: Any) -> Extents:
    """Return the extents of a kernel for the geometry `n`."""
    kind, width = next((k, w) for k in KINDS for w in WIDTHS if name(k, w) == name_)
    groups = n.chunks // n.each if n.each else 0
    sizes = {"x": n.rows * n.channels, "y": n.rows * n.channels, "means": groups * n.channels}
    holds = [
        ("channels for a vector", n.channels >= width),
        ("chunks of whole groups", n.each > 0 and n.chunks == groups * n.each),
        ("rows for each chunk", n.rows >= n.chunks),
    ]
    given = [Array(sizes[array]) for array in KINDS[kind]]
    return Extents(given, [Array(n.chunks * 2 * n.channels)], holds=holds)


KERNELS = KernelGroup(
    tuple(name(kind, width) for kind in KINDS for width in WIDTHS), GEOMETRY, write, extents, bits=processor.AVX2
)


def _chunk(module: Module, kind: str, width: int, part: Any) -> Any:
    """Write the kernel that reduces a chunk of the rows into out [chunks, 2, channels]."""
    f = xla_tasks.begin_chunk(module, name(kind, width), (*KINDS[kind], "out"), GEOMETRY)
    v, b = f.v, f.b
    v["first"], v["end"] = (
        b.sdiv(f.product(v["rows"], c), v["chunks"]) for c in (v["chunk"], f.sum(v["chunk"], I64(1)))
    )
    parts = b.sdiv(f.sum(v["channels"], I64(width - 1)), I64(width))
    with f.loop(parts) as i:
        # The last overlap with those before.
        column = f.least(f.product(i, I64(width)), b.sub(v["channels"], I64(width)))
        out = f.at(v["out"], f.product(v["chunk"], I64(2), v["channels"]), column)
        for at, sums in enumerate(part(f, column, width // LANES)):
            for j, total in enumerate(sums):
                place = f.at(out, f.product(I64(at), v["channels"]), I64(LANES * j))
                b.store(total, place, align=4)
    return f.end()


def _over_rows(f: Function, count: int, vectors: int, add: Add) -> list[list[Any]]:
    """Return `count` accumulators of `vectors` vectors; `add` adds a row to the accumulators."""
    v, b = f.v, f.b
    lines = _SUMS // vectors
    sums = [[[f.variable(_FLOATS, _ZERO) for _ in range(vectors)] for _ in range(count)] for _ in range(lines)]
    for each in [place for line in sums for of_sum in line for place in of_sum]:
        b.store(_ZERO, each)  # it may be that of the part before
    rows = b.sub(v["end"], v["first"])
    whole = b.sdiv(rows, I64(lines))
    with f.loop(whole) as i:
        for line, places in enumerate(sums):
            add(f.sum(v["first"], f.product(i, I64(lines)), I64(line)), places)
    with f.loop(rows, f.product(whole, I64(lines))) as i:
        add(f.sum(v["first"], i), sums[0])

    def total(at: int, j: int) -> Any:
        found = f.load(sums[0][at][j], _FLOATS)
        for line in sums[1:]:
            found = b.fadd(found, f.load(line[at][j], _FLOATS))
        return found

    return [[total(at, j) for j in range(vectors)] for at in range(count)]


def _row(f: Function, array: str, row: Any, column: Any, vectors: int) -> list[Any]:
    place = f.at(f.v[array], f.product(row, f.v["channels"]), column)
    return [f.load(f.at(place, I64(LANES * j)), _FLOATS) for j in range(vectors)]


def _add(f: Function, place: Any, value: Any) -> None:
    f.b.store(f.b.fadd(f.load(place, _FLOATS), value), place)


def _moments(f: Function, column: Any, vectors: int) -> list[list[Any]]:
    """Compute the mean of the chunk's rows of x, and the sums of squared deviations from the mean."""
    b = f.b

    def values(row: Any, sums: list[list[Any]]) -> None:
        for place, x in zip(sums[0], _row(f, "x", row, column, vectors)):
            _add(f, place, x)

    rows = b.sitofp(b.sub(f.v["end"], f.v["first"]), FLOAT)
    (totals,) = _over_rows(f, 1, vectors, values)
    means = [b.fdiv(total, f.spread(rows, _FLOATS)) for total in totals]

    def squares(row: Any, sums: list[list[Any]]) -> None:
        for place, x, mean in zip(sums[0], _row(f, "x", row, column, vectors), means):
            difference = b.fsub(x, mean)
            _add(f, place, b.fmul(difference, difference))

    return [means, _over_rows(f, 1, vectors, squares)[0]]


def _products(f: Function, column: Any, vectors: int) -> list[list[Any]]:
    """Compute the sums of y and of y * (x - mean)."""
    b = f.b
    group = f.product(b.sdiv(f.v["chunk"], f.v["each"]), f.v["channels"])
    given = f.at(f.v["means"], group, column)
    means = [f.load(f.at(given, I64(LANES * j)), _FLOATS) for j in range(vectors)]

    def both(row: Any, sums: list[list[Any]]) -> None:
        x, y = (_row(f, array, row, column, vectors) for array in "xy")
        for j, mean in enumerate(means):
            _add(f, sums[0][j], y[j])
            _add(f, sums[1][j], b.fmul(y[j], b.fsub(x[j], mean)))

    return _over_rows(f, 2, vectors, both)
