"""Match matrices of the words of two texts, and convolutions over match matrices.

Sequence i holds an image [channels, heights of i, widths of i], flattened to rows of one number. Entries
are moved by index between these rows and a dense array, in which all images have the size of the largest.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import refusals, static_values
from jfluid.ops.ragged import Level, Ragged, Value, moved, need, offsets_of, positions
from jfluid.ops.registry import op


class FlatImages:
    """Index maps between flattened images of different sizes and a dense array.

    Args:
        channels: number of channels of every image.
        heights: int32 [number].
        widths: int32 [number].
        highest: a bound on the heights, known while tracing.
        widest: a bound on the widths, known while tracing.
    """

    def __init__(self, channels: int, heights: Array, widths: Array, highest: int, widest: int):
        self.channels, self.heights, self.widths = channels, heights, widths
        self.full = (heights.shape[0], channels, highest, widest)
        self.offsets = offsets_of(channels * heights * widths)

    def level(self, count: Any) -> Level:
        """Return the level that groups the rows by picture."""
        return Level(self.offsets, max(self.channels * self.full[2] * self.full[3], 1), count=count)

    def _of_rows(self, capacity: int) -> tuple[Array, Array]:
        """Return for each row its place in the flattened dense array, and whether it is real."""
        _, channels, highest, widest = self.full
        picture, position, real = positions(self.level(None), capacity)
        widths = jnp.maximum(self.widths[picture], 1)
        heights = jnp.maximum(self.heights[picture], 1)
        line, across = position // widths, position % widths
        channel, down = line // heights, line % heights
        place = ((picture * channels + channel) * highest + down) * widest + across
        return jnp.where(real, place, 0), real

    def _of_places(self) -> tuple[Array, Array]:
        """Return for each place of the flattened dense array its row, and whether it has one."""
        number, channels, highest, widest = self.full
        place = jnp.arange(number * channels * highest * widest, dtype=jnp.int32)
        line, across = place // max(widest, 1), place % max(widest, 1)
        column, down = line // max(highest, 1), line % max(highest, 1)
        picture, channel = column // channels, column % channels
        heights, widths = self.heights[picture], self.widths[picture]
        row = self.offsets[picture] + (channel * heights + down) * widths + across
        return row, (down < heights) & (across < widths)

    def dense(self, rows: Array) -> Array:
        """Return [number, channels, highest, widest] from rows [capacity], with zeros outside."""
        index, inside = self._of_places()
        back, real = self._of_rows(rows.shape[0])
        values = moved(rows, index, back, real) if index.size else rows[:0]
        return jnp.where(inside, values, 0).reshape(self.full)

    def rows(self, dense: Array, count: Any) -> Ragged:
        """Return the entries [capacity, 1] of [number, channels, highest, widest] as ragged rows."""
        flat = dense.reshape(-1)
        if not flat.size:
            return Ragged(jnp.zeros((1, 1), dense.dtype), (self.level(count),))
        source, _ = self._of_rows(flat.size)
        back, inside = self._of_places()
        return Ragged(moved(flat, source, back, inside)[:, None], (self.level(count),))


def _paired(op_type: str, *given: tuple[Value, str]) -> list[Ragged]:
    found = [need(v, op_type, slot) for v, slot in given]
    numbers = {x.last.number for x in found}
    if len(numbers) > 1 and static_values.placeholder() is None:
        raise errors.ShapeError(
            f"{op_type}: {', '.join(s for _, s in given)} need one number of sequences, "
            f"found {[x.last.number for x in found]}"
        )
    return found


@op("match_matrix_tensor", ins=("X", "Y", "W"), outs=("Out", "Tmp"), rows="sequence")
def match_matrix_tensor(x: Value, y: Value, w: Array, *, dim_t: int = 1) -> tuple[Value, Value]:
    """Return x W y for each pair of words of two texts and each channel: images [channels, words, words].

    Also return x W of all words, flattened.
    """
    x, y = _paired("match_matrix_tensor", (x, "X"), (y, "Y"))
    if w.shape != (x.shape[1], dim_t, y.shape[1]):
        raise errors.ShapeError(
            "match_matrix_tensor: W is [width of X, dim_t, width of Y], expected "
            f"{[x.shape[1], dim_t, y.shape[1]]}, found {list(w.shape)}"
        )
    projected = jnp.einsum("rh,htk->rtk", x.zeroed(), w)
    left, right = x.like(projected).pad(), y.pad()
    dense = jnp.einsum("nltk,nmk->ntlm", left, right)
    pictures = FlatImages(dim_t, x.last.lengths, y.last.lengths, x.last.longest, y.last.longest)
    tmp = projected.reshape(-1, 1)
    size = dim_t * y.shape[1]
    return (
        pictures.rows(dense, x.last.count),
        tmp if x.exact else Ragged(tmp, (), jnp.maximum(x.count() * size, 1)).refilled(),
    )


@op(
    "var_conv_2d",
    ins=("X", "ROW", "COLUMN", "W"),
    outs=("Out", "Col"),
    nograd=("ROW", "COLUMN"),
    rows="sequence",
    refuses=(refusals.pictures("InputChannel"),),
)
def var_conv_2d(
    x: Value,
    row: Value,
    column: Value,
    w: Array,
    *,
    InputChannel: int = 1,
    OutputChannel: int = 1,
    KernelH: int = 1,
    KernelW: int = 1,
    StrideH: int = 1,
    StrideW: int = 1,
) -> tuple[Value, Value | None]:
    """Convolve images of different sizes, given by ROW and COLUMN, with zeros around each.

    W is [output channels, input channels * kernel]. Of n rows (columns) (n - 1) // stride + 1 are
    left. `Col`, in which Fluid unfolds pictures for a matrix product, is not made.
    """
    x, row, column = _paired("var_conv_2d", (x, "X"), (row, "ROW"), (column, "COLUMN"))
    kernel, strides = (KernelH, KernelW), (StrideH, StrideW)
    if w.shape != (OutputChannel, InputChannel * KernelH * KernelW):
        raise errors.ShapeError(
            "var_conv_2d: W is [OutputChannel, InputChannel * KernelH * KernelW], expected "
            f"{[OutputChannel, InputChannel * KernelH * KernelW]}, found {list(w.shape)}"
        )
    sizes, bounds = (row.last.lengths, column.last.lengths), (row.last.longest, column.last.longest)
    left = [jnp.where(n > 0, (n - 1) // s + 1, 0) for n, s in zip(sizes, strides)]
    most = [(n - 1) // s + 1 if n else 0 for n, s in zip(bounds, strides)]
    dense = FlatImages(InputChannel, sizes[0], sizes[1], *bounds).dense(x.values.reshape(-1))
    pads = [(k // 2, max((m - 1) * s + k - n - k // 2, 0)) for n, m, k, s in zip(bounds, most, kernel, strides)]
    out = lax.conv_general_dilated(dense, w.reshape(OutputChannel, InputChannel, *kernel), strides, pads)
    found = FlatImages(OutputChannel, left[0], left[1], *most)
    return found.rows(out[:, :, : most[0], : most[1]], x.last.count), None
