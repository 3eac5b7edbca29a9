"""Boxes whose bins move, and quadrangles."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.op_case import check

RNG = np.random.RandomState(0)
# Image 0: two boxes, one of a pixel; image 1: one that reaches beyond it.
CORNERS = np.array([[1, 2, 9, 7], [4, 4, 4, 4], [-3, 3, 13, 14]], "float32")


def lod(rows, lengths=(2, 1)):
    return fluid.create_lod_tensor(np.asarray(rows, "float32"), [list(lengths)], fluid.CPUPlace())


def between(plane, y, x):
    rows, columns = (np.maximum(1 - np.abs(v - np.arange(n)), 0) for v, n in zip((y, x), plane.shape))
    return rows @ plane.astype("float64") @ columns


def moved_bins(x, trans, dim, group, part, samples, std, no_trans):
    """Two rows and two columns of bins, at half the size of the image."""
    out, counts = np.zeros((3, dim, 2, 2), "float32"), np.zeros((3, dim, 2, 2), "float32")
    few = dim if no_trans else dim // (trans.shape[1] // 2)
    for r, c, i, j in np.ndindex(out.shape):
        low, high = np.floor(CORNERS[r] + 0.5).reshape(2, 2) + [[0, 0], [1, 1]]
        start = low / 2 - 0.5
        size = np.maximum(high / 2 - 0.5 - start, 0.1)
        places = np.array([j, i])
        corner = start + places * size / 2
        if not no_trans:
            row, column = i * part[0] // 2, j * part[1] // 2
            kind = c // few
            corner = corner + trans[r, 2 * kind : 2 * kind + 2, row, column] * std * size
        plane = x[r // 2, (c * group[0] + i * group[0] // 2) * group[1] + j * group[1] // 2]
        found = []
        for a, b in np.ndindex(samples, samples):
            at, down = corner + np.array([b, a]) * size / 2 / samples
            if -0.5 <= at <= plane.shape[1] - 0.5 and -0.5 <= down <= plane.shape[0] - 0.5:
                at, down = np.clip(at, 0, plane.shape[1] - 1), np.clip(down, 0, plane.shape[0] - 1)
                found.append(between(plane, down, at))
        out[r, c, i, j], counts[r, c, i, j] = np.mean(found or [0]), len(found)
    return out, counts


@pytest.mark.parametrize("no_trans", [False, True])
def test_deformable_psroi_pooling(no_trans):
    """Two classes of offsets, channels by place, offsets of three rows for two of bins."""
    x = RNG.rand(2, 4, 4, 5).astype("float32")
    trans = RNG.uniform(-1, 1, (3, 4, 3, 1)).astype("float32")
    sizes = {"group_size": [1, 2], "part_size": [3, 1], "sample_per_part": 2, "trans_std": 0.3}
    out, counts = moved_bins(x, trans, 2, *sizes.values(), no_trans)
    attrs = {"pooled_height": 2, "pooled_width": 2, "spatial_scale": 0.5, "output_dim": 2}
    check(
        "deformable_psroi_pooling",
        {"Input": x, "ROIs": lod(CORNERS), "Trans": trans},
        {**attrs, **sizes, "no_trans": no_trans},
        expect={"Output": out, "TopCount": counts},
        grad=("Input",) if no_trans else ("Input", "Trans"),
        rows=("Input", "ROIs"),
        rtol=1e-4,
    )


# A parallelogram, one that reaches beyond its image, and one that is a point.
QUADS = np.array([[1, 1, 9, 2, 10, 8, 2, 7], [3, 3, 12, 1, 14, 9, 5, 11], [2, 2, 2, 2, 2, 2, 2, 2]], "float32")


def rectified(x, height, width):
    """Points by solving for the transformation that leads corners to corners."""
    out, mask = np.zeros((3, x.shape[1], height, width)), np.zeros((3, 1, height, width), "int32")
    for r, quad in enumerate((QUADS / 2).astype("float64")[:2]):
        points = quad.reshape(4, 2)
        sides = np.linalg.norm(points - np.roll(points, -1, 0), axis=1)
        columns = int(np.round((sides[0] + sides[2]) * (height - 1) / (sides[1] + sides[3]))) + 1
        columns = max(2, min(columns, width))
        ends = [(0, 0), (columns - 1, 0), (columns - 1, height - 1), (0, height - 1)]
        rows, target = [], []
        for (u, v), (a, b) in zip(ends, points):
            rows += [[u, v, 1, 0, 0, 0, -u * a, -v * a], [0, 0, 0, u, v, 1, -u * b, -v * b]]
            target += [a, b]
        matrix = np.append(np.linalg.solve(rows, target), 1).reshape(3, 3)
        for i, j in np.ndindex(height, width):
            at, down, scale = matrix @ [j, i, 1]
            at, down = at / scale, down / scale
            inside = j < columns and -0.5 < at < x.shape[3] - 0.5 and -0.5 < down < x.shape[2] - 0.5
            if inside:
                mask[r, 0, i, j] = 1
                at, down = np.clip(at, 0, x.shape[3] - 1), np.clip(down, 0, x.shape[2] - 1)
                out[r, :, i, j] = [between(plane, down, at) for plane in x[r // 2]]
    return out, mask


def test_roi_perspective_transform():
    x = RNG.rand(2, 2, 5, 6).astype("float32")
    out, mask = rectified(x, 3, 5)
    mask[2], out[2] = 1, x[1, :, 1, 1, None, None]  # all of a point is the point
    attrs = {"transformed_height": 3, "transformed_width": 5, "spatial_scale": 0.5}
    outputs = {"Out": lod(out), "Mask": mask, "TransformMatrix": None}
    check(
        "roi_perspective_transform",
        {"X": x, "ROIs": lod(QUADS)},
        attrs,
        expect={**outputs, "Out2InIdx": None, "Out2InWeights": None},
        rtol=1e-3,
        atol=1e-4,
        rows=("ROIs",),
        grad=("X",),
    )


@pytest.mark.usefixtures("interpreted_steps")
def test_layers():
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main):
        x = fluid.data("x", [-1, 4, 5, 6])
        boxes, quads = (fluid.data(n, [-1, k], lod_level=1) for n, k in (("boxes", 4), ("quads", 8)))
        trans = fluid.data("trans", [-1, 2, 2, 2])
        outs = [
            layers.deformable_roi_pooling(x, boxes, trans, False, 0.5, pooled_height=2, pooled_width=2),
            layers.deformable_roi_pooling(x, boxes, trans, True, 0.5, [2, 2], 2, 2, [2, 2], 2, position_sensitive=True),
            *layers.roi_perspective_transform(x, quads, 3, 5, 0.5),
        ]
        with pytest.raises(errors.ShapeError, match="need 16 channels, found 4"):
            layers.deformable_roi_pooling(x, boxes, trans, group_size=[2, 2])
        with pytest.raises(errors.ShapeError, match=r"expected Trans \[boxes, 2 \* classes, 1, 1\]"):
            layers.deformable_roi_pooling(x, boxes, trans)
        with pytest.raises(errors.ShapeError, match=r"ROIs \[boxes, 8\]"):
            layers.roi_perspective_transform(x, boxes, 3, 5)
    x = RNG.rand(2, 4, 5, 6).astype("float32")
    feed = {
        "x": x,
        "boxes": lod(CORNERS),
        "quads": lod(QUADS),
        "trans": np.zeros((3, 2, 2, 2), "float32"),
    }
    found = fluid.Executor(fluid.CPUPlace()).run(main, feed=feed, fetch_list=outs, return_numpy=False)
    shapes = [(3, 4, 2, 2), (3, 1, 2, 2), (3, 4, 3, 5), (3, 1, 3, 5), (3, 9)]
    assert [np.array(v).shape for v in found] == shapes and found[2].lod() == [[0, 2, 3]]
    none = {**feed, "boxes": lod(np.zeros((0, 4)), (0, 0)), "quads": lod(np.zeros((0, 8)), (0, 0))}
    none["trans"] = feed["trans"][:0]
    found = fluid.Executor(fluid.CPUPlace()).run(main, feed=none, fetch_list=outs, return_numpy=False)
    assert [np.array(v).shape for v in found] == [(0, *s[1:]) for s in shapes]
