"""Deformable region-of-interest pooling: bins move by learnt offsets (arXiv:1703.06211)."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops.bilinear import between_pixels
from jfluid.ops.detection.rois import by_channel, check_boxes, images_of, of_boxes, rounded
from jfluid.ops.ragged import Value, resized, rows_of
from jfluid.ops.registry import Ints, op


@op(
    "deformable_psroi_pooling",
    ins=("Input", "ROIs", "Trans"),
    outs=("Output", "TopCount"),
    nograd=("ROIs",),
    rows="sequence",
)
def deformable_psroi_pooling(
    x: Value,
    boxes: Value,
    offsets: Value,
    *,
    no_trans: bool,
    spatial_scale: float,
    output_dim: int,
    group_size: Ints,
    pooled_height: int,
    pooled_width: int,
    part_size: Ints,
    sample_per_part: int,
    trans_std: float,
) -> tuple[Value, Value]:
    """Average the samples inside the image in each bin of each box, and return their count.

    Bins move by offsets [boxes, 2 * classes, *part_size] (across, then down), times trans_std and
    the size of the box. Each place of a grid of group_size has channels of its own, of which a bin
    takes those of the place that it lies in.
    """
    x, op_type = rows_of(x), "deformable_psroi_pooling"
    corners = check_boxes(op_type, x, boxes, pooled_height, pooled_width, spatial_scale)
    moves = resized(rows_of(offsets), corners.shape[0])
    classes = 1 if no_trans else moves.shape[1] // 2
    _check(op_type, x, moves, output_dim, classes, group_size, part_size, no_trans)
    bins = np.array([pooled_height, pooled_width])
    corner = (rounded(corners[:, 1::-1])) * spatial_scale - 0.5  # of each box: y, x
    size = jnp.maximum((rounded(corners[:, :1:-1]) + 1) * spatial_scale - 0.5 - corner, 0.1)
    # Of each bin, by row and column: the part whose offset it takes, the place in the grid.
    part, place = ([np.arange(n) * m // n for n, m in zip(bins, sizes)] for sizes in (part_size, group_size))
    group = (place[0][:, None] * group_size[1] + place[1]).astype(np.int32)
    samples, inside = [], []
    for axis in (0, 1):
        bin_size = (size[:, axis] / bins[axis]).reshape(-1, 1, 1, 1, 1)
        start = corner[:, axis].reshape(-1, 1, 1, 1, 1)
        if not no_trans:
            move = moves[:, 1 - axis :: 2][:, :, part[0][:, None], part[1]][..., None]
            start = start + move * trans_std * size[:, axis].reshape(-1, 1, 1, 1, 1)
        number = jnp.arange(bins[axis], dtype=x.dtype).reshape([-1, 1, 1] if axis == 0 else [-1, 1])
        step = jnp.arange(sample_per_part, dtype=x.dtype) / sample_per_part
        at = start + number * bin_size + step * bin_size  # [boxes, classes, rows, columns, samples]
        limit = x.shape[2 + axis]
        inside.append((at >= -0.5) & (at <= limit - 0.5))
        samples.append(jnp.clip(at, 0, limit - 1))
    y, across = jnp.broadcast_arrays(samples[0][..., :, None], samples[1][..., None, :])
    planes = x.reshape(x.shape[0], classes, -1, group_size[0] * group_size[1], *x.shape[2:])
    planes = planes.transpose(0, 3, 1, 4, 5, 2)  # [images, groups, classes, height, width, channels]
    image = images_of(op_type, x, boxes, None)[:, None, None, None]
    index = (image * planes.shape[1] + group) * classes + np.arange(classes)[:, None, None]
    found = between_pixels(planes.reshape(-1, *planes.shape[3:]), index[..., None, None].astype(jnp.int32), y, across)
    counted = (inside[0][..., :, None] & inside[1][..., None, :])[..., None]
    count = counted.sum((4, 5), dtype=x.dtype)
    mean = jnp.where(counted, found, 0).sum((4, 5)) / jnp.maximum(count, 1)
    out, counts = (
        v.transpose(0, 2, 3, 1, 4).reshape(corners.shape[0], *bins, -1)
        for v in (mean, jnp.broadcast_to(count, mean.shape))
    )
    return of_boxes(boxes, by_channel(out)), of_boxes(boxes, by_channel(counts))


def _check(
    op_type: str,
    x: Array,
    moves: Array,
    output_dim: int,
    classes: int,
    group_size: Ints,
    part_size: Ints,
    no_trans: bool,
) -> None:
    if len(group_size) != 2 or len(part_size) != 2 or min(*group_size, *part_size) < 1:
        raise errors.AttributeTypeError(
            f"{op_type}: group_size and part_size are two positive numbers each, found "
            f"{list(group_size)} and {list(part_size)}"
        )
    if x.shape[1] != output_dim * group_size[0] * group_size[1]:
        raise errors.ShapeError(
            f"{op_type}: {output_dim} output channels in groups of {list(group_size)} need "
            f"{output_dim * group_size[0] * group_size[1]} channels, found {x.shape[1]}"
        )
    if no_trans:
        return
    if moves.ndim != 4 or moves.shape[1] % 2 or moves.shape[2:] != tuple(part_size):
        raise errors.ShapeError(
            f"{op_type}: expected Trans [boxes, 2 * classes, {part_size[0]}, {part_size[1]}], found {list(moves.shape)}"
        )
    if classes < 1 or output_dim % classes:
        raise errors.ShapeError(f"{op_type}: offsets of {classes} classes do not divide {output_dim} output channels")
