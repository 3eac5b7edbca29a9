"""LLVM kernels of max-pooling over sequences and its gradient."""

from typing import Any

import numpy as np
from llvmlite import ir

from jfluid.machine_code import processor, xla_tasks
from jfluid.machine_code.extents import Array, Extents, KernelGroup, parts
from jfluid.machine_code.llvm_writer import FLOAT, I32, I64, Function, Module
from jfluid.machine_code.processor import LANES
from jfluid.machine_code.vector_functions import Vectors

FORWARD, BACKWARD = "jfluid_pool_forward", "jfluid_pool_backward"
# The numbers of a call, see `xla_tasks.py` for the first two. There are `batches` of arrays, each of
# `number` sequences in `rows` rows of `columns` numbers, at least a vector. A chunk is `group` sequences.
GEOMETRY = "chunks memory batches rows number columns group".split()
_ROWS = ir.VectorType(I32, LANES)


def write(module: Module) -> None:
    """Write all kernels."""
    xla_tasks.define(module, FORWARD, _forward(module), given=2, made=2)
    xla_tasks.define(module, BACKWARD, _backward(module), given=3, made=1)


def extents(name: str, n: Any) -> Extents:
    """Return the extents of a kernel for the geometry `n`."""
    rows = Array(n.batches * n.rows * n.columns)
    best, where = (Array(n.batches * n.number * n.columns, kind) for kind in (np.float32, np.int32))
    offsets = Array(n.batches * (n.number + 1), np.int32)
    holds = [
        ("columns for a vector", n.columns >= LANES),
        ("a chunk for each group", n.chunks == n.batches * parts(n.number, n.group)),
    ]
    if name == FORWARD:
        return Extents([rows, offsets], [best, where], holds=holds)
    return Extents([best, where, offsets], [rows], holds=holds)


KERNELS = KernelGroup((FORWARD, BACKWARD), GEOMETRY, write, extents, bits=processor.AVX2)


def _chunk(module: Module, name: str, arrays: str, of_rows: str) -> tuple[Function, Any, Any]:
    """Begin the kernel of a chunk; return the kernel, the chunk's first sequence, and the end of the sequences.

    Args:
        of_rows: the array that has `rows` rows; every other array except "offsets" has `number`.
    """
    f = xla_tasks.begin_chunk(module, name, arrays.split(), GEOMETRY)
    v, b = f.v, f.b
    batch, v["part"] = b.srem(v["chunk"], v["batches"]), b.sdiv(v["chunk"], v["batches"])
    for array in arrays.split():
        if array == "offsets":
            size = f.product(batch, f.sum(v["number"], I64(1)))
        else:
            size = f.product(batch, v["rows" if array == of_rows else "number"], v["columns"])
        v[array] = f.at(v[array], size)
    first = f.product(v["part"], v["group"])
    return f, first, f.least(f.sum(first, v["group"]), v["number"])


def _offset(f: Function, sequence: Any) -> Any:
    return f.b.sext(f.load(f.at(f.v["offsets"], sequence, kind=I32), I32), I64)


def _forward(module: Module) -> Any:
    """Write the kernel that finds the maximum of each column of each sequence, and its first row.

    It reads x [rows, columns] and offsets [number + 1]; it writes the maximum and its row in int32, [number, columns].
    NaN counts as the maximum. A sequence without rows has 0 and -1.
    """
    f, first, end = _chunk(module, FORWARD, "x offsets out where", "x")
    v, b, vectors = f.v, f.b, Vectors(f)
    parts = b.sdiv(f.sum(v["columns"], I64(LANES - 1)), I64(LANES))
    with f.loop(end, first) as sequence, f.loop(parts) as part:
        # The last overlaps with the one before.
        column = f.least(f.product(part, I64(LANES)), b.sub(v["columns"], I64(LANES)))
        start, stop = _offset(f, sequence), _offset(f, f.sum(sequence, I64(1)))
        best = f.variable(ir.VectorType(FLOAT, LANES), vectors.number(0.0))
        where = f.variable(_ROWS, ir.Constant(_ROWS, [-1] * LANES))
        with b.if_then(b.icmp_signed(">", stop, start)):
            x = f.at(v["x"], f.product(start, v["columns"]), column)
            b.store(vectors.load(x), best)
            b.store(f.spread(b.trunc(start, I32), _ROWS), where)
        with f.loop(stop, f.sum(start, I64(1))) as row:
            x = vectors.load(f.at(v["x"], f.product(row, v["columns"]), column))
            before = vectors.load(best)
            none = b.and_(b.fcmp_unordered("uno", x, x), b.fcmp_ordered("ord", before, before))
            larger = b.or_(b.fcmp_ordered(">", x, before), none)
            b.store(b.select(larger, x, before), best)
            rows = f.spread(b.trunc(row, I32), _ROWS)
            b.store(b.select(larger, rows, f.load(where, _ROWS)), where)
        place = f.sum(f.product(sequence, v["columns"]), column)
        vectors.store(vectors.load(best), f.at(v["out"], place))
        b.store(f.load(where, _ROWS), f.at(v["where"], place), align=4)
    return f.end()


def _backward(module: Module) -> Any:
    """Write the kernel of the gradient: it scatters the result's gradient to the rows of the maxima.

    It reads grad and int32 rows [number, columns], and offsets [number + 1]; it writes out [rows, columns], zero
    elsewhere. A row outside the sequence is ignored.
    """
    f, first, end = _chunk(module, BACKWARD, "grad where offsets out", "out")
    v, b = f.v, f.b

    def clear(start: Any, stop: Any) -> None:
        size = f.product(b.sub(stop, start), v["columns"], I64(4))
        f.c("memset", f.at(v["out"], f.product(start, v["columns"])), I32(0), size)

    with f.loop(end, first) as sequence:
        start, stop = _offset(f, sequence), _offset(f, f.sum(sequence, I64(1)))
        clear(start, stop)
        with b.if_then(b.icmp_signed(">", stop, start)), f.loop(v["columns"]) as column:
            place = f.sum(f.product(sequence, v["columns"]), column)
            row = b.sext(f.load(f.at(v["where"], place, kind=I32), I32), I64)
            # of no other sequence, whatever is written there
            inside = b.and_(b.icmp_signed(">=", row, start), b.icmp_signed("<", row, stop))
            with b.if_then(inside):
                out = f.at(v["out"], f.product(row, v["columns"]), column)
                b.store(f.load(f.at(v["grad"], place), FLOAT), out)
    with b.if_then(b.icmp_signed("==", v["part"], I64(0))):
        clear(I64(0), _offset(f, I64(0)))
        clear(_offset(f, v["number"]), v["rows"])
    return f.end()
