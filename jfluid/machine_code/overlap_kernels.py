"""LLVM kernel that adds overlapping windows to images (col2im): the gradient of a convolution's images."""

from typing import Any

from llvmlite import ir

from jfluid.machine_code import processor, xla_tasks
from jfluid.machine_code.extents import Array, Extents, KernelGroup
from jfluid.machine_code.llvm_writer import FLOAT, I32, I64, Function, Module
from jfluid.machine_code.processor import LANES

NAME = "jfluid_overlap"
_LANES = (LANES, 4, 1)  # channels that are added at a time
# The numbers of a call, see `xla_tasks.py` for the first two. x is [images, rows, columns, window_height,
# window_width, channels], out [images, height, width, channels]; a chunk is an image.
GEOMETRY = ("chunks memory height width channels rows columns window_height window_width top left").split()


def write(module: Module) -> None:
    """Write all kernels."""
    xla_tasks.define(module, NAME, _chunk(module))


def extents(name: str, n: Any) -> Extents:
    """Return the extents of the kernel for the geometry `n`."""
    window = n.window_height * n.window_width * n.channels
    given = Array(n.chunks * n.rows * n.columns * window)
    made = Array(n.chunks * n.height * n.width * n.channels)
    return Extents([given, given], [made], signed=("top", "left"))


KERNELS = KernelGroup((NAME,), GEOMETRY, write, extents, bits=processor.AVX2)


def _chunk(module: Module) -> Any:
    f = xla_tasks.begin_chunk(module, NAME, ("x", "y", "out"), GEOMETRY)
    v, b, zero = f.v, f.b, I64(0)
    size = f.product(v["height"], v["width"], v["channels"])
    out = f.at(v["out"], f.product(v["chunk"], size))
    f.c("memset", out, I32(0), f.product(size, I64(4)))
    window = f.product(v["window_height"], v["window_width"], v["channels"])
    x = f.at(v["x"], f.product(v["chunk"], v["rows"], v["columns"], window))

    def most(one: Any, other: Any) -> Any:
        return b.select(b.icmp_signed(">", one, other), one, other)

    with f.loop(v["rows"]) as row, f.loop(v["window_height"]) as down:
        target = b.sub(f.sum(row, down), v["top"])
        with b.if_then(b.icmp_unsigned("<", target, v["height"])):
            with f.loop(v["window_width"]) as across:
                # Of one place in the windows after the other: neighbours of these do not overlap.
                shift = b.sub(across, v["left"])
                first = most(zero, b.sub(zero, shift))
                end = f.least(v["columns"], b.sub(v["width"], shift))
                with f.loop(end, first) as column:
                    at = f.sum(f.product(row, v["columns"]), column)
                    place = f.sum(f.product(down, v["window_width"]), across)
                    part = f.sum(f.product(at, window), f.product(place, v["channels"]))
                    pixel = f.sum(f.product(target, v["width"]), column, shift)
                    _add(f, f.at(out, f.product(pixel, v["channels"])), f.at(x, part))
    return f.end()


def _add(f: Function, out: Any, part: Any) -> None:
    """Add the channels of a window's part to the channels of a pixel."""
    done: Any = I64(0)
    for lanes in _LANES:
        vector = ir.VectorType(FLOAT, lanes)
        times = f.b.sdiv(f.b.sub(f.v["channels"], done), I64(lanes))
        with f.loop(times) as i:
            channel = f.sum(done, f.product(i, I64(lanes)))
            place = f.at(out, channel)
            added = f.b.fadd(f.load(place, vector), f.load(f.at(part, channel), vector))
            f.b.store(added, place, align=4)
        done = f.sum(done, f.product(times, I64(lanes)))
