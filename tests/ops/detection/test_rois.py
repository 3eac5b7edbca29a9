"""Pooling of regions of interest, held against loops over bins, samples and pixels."""

import math

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.op_case import check

X = np.random.RandomState(0).permutation(60).reshape(2, 1, 5, 6).astype("float32") / 10
# Image 0: a box inside, one of less than a pixel; image 1: beyond the image, and outside of it.
CORNERS = [[1.1, 2.3, 9.1, 7.3], [4.4, 4.6, 4.8, 4.9], [-7, -3, 20, 14], [30, 30, 40, 50]]
BINS = {"pooled_height": 2, "pooled_width": 3, "spatial_scale": 0.5}


def boxes(corners=CORNERS, lengths=(2, 2)):
    array = np.array(corners, "float32").reshape(-1, 4)
    return fluid.create_lod_tensor(array, [list(lengths)], fluid.CPUPlace())


def pooled(x, of_bin, channels=1, image=(0, 0, 1, 1)):
    """What `of_bin(plane, box, row, column)` gives for each bin, of plane c or, where there are
    more, of the one that the bin has.
    """
    out = np.zeros((len(CORNERS), channels, 2, 3), "float32")
    for r, c, i, j in np.ndindex(out.shape):
        plane = x[image[r], c if x.shape[1] == channels else (c * 2 + i) * 3 + j]
        out[r, c, i, j] = of_bin(plane.astype("float64"), np.array(CORNERS[r]), i, j)
    return out


def interpolated(plane, y, x, outside=0.0):
    """The value between pixels; those around the plane are `outside`."""
    total = 0.0
    for i, j in np.ndindex(2, 2):
        row, column = math.floor(y) + i, math.floor(x) + j
        inside = 0 <= row < plane.shape[0] and 0 <= column < plane.shape[1]
        value = plane[row, column] if inside else outside
        total += value * (1 - abs(y - row)) * (1 - abs(x - column))
    return total


def mean_of_samples(ratio):
    def of_bin(plane, box, i, j):
        (left, top), (right, bottom) = box[:2] / 2, box[2:] / 2
        step = max(bottom - top, 1) / 2, max(right - left, 1) / 3
        count = [ratio if ratio > 0 else math.ceil(s) for s in step]
        total = 0.0
        for k, m in np.ndindex(*count):
            y, x = (
                start + (bin_ + (n + 0.5) / c) * s
                for start, bin_, n, c, s in zip((top, left), (i, j), (k, m), count, step)
            )
            if -1 <= y <= plane.shape[0] and -1 <= x <= plane.shape[1]:
                y, x = np.clip(y, 0, plane.shape[0] - 1), np.clip(x, 0, plane.shape[1] - 1)
                total += interpolated(plane, y, x)
        return total / math.prod(count)

    return of_bin


@pytest.mark.parametrize("ratio", [-1, 2])
def test_roi_align(ratio):
    check(
        "roi_align",
        {"X": X, "ROIs": boxes()},
        {**BINS, "sampling_ratio": ratio},
        expect={"Out": pooled(X, mean_of_samples(ratio))},
        grad=("X",) if ratio > 0 else (),
    )


def cells(begin, end):
    """The stretches between whole numbers from begin to end: (middle, length)."""
    cuts = [begin, *range(math.floor(begin) + 1, math.ceil(end)), end]
    return [((a + b) / 2, b - a) for a, b in zip(cuts, cuts[1:])]


def integral(plane, box, i, j):
    """The mean over the bin: between whole numbers a bilinear function has that of its middle."""
    (left, top), (right, bottom) = box[:2] / 2, box[2:] / 2
    tall, wide = (bottom - top) / 2, (right - left) / 3
    total = sum(
        interpolated(plane, y, x) * height * width
        for y, height in cells(top + i * tall, top + (i + 1) * tall)
        for x, width in cells(left + j * wide, left + (j + 1) * wide)
    )
    return total / (tall * wide)


def test_prroi_pool():
    expect = {"Out": pooled(X, integral)}
    check("prroi_pool", {"X": X, "ROIs": boxes()}, BINS, expect=expect, grad=("X", "ROIs"))


def rounded(x):
    return math.floor(abs(x) + 0.5) * (1 if x >= 0 else -1)


def region(plane, edges):
    (top, bottom), (left, right) = edges
    return plane[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]


def mean_of_pixels(plane, box, i, j):
    low, high = [rounded(v) / 2 for v in box[:2]], [(rounded(v) + 1) / 2 for v in box[2:]]
    edges = []
    for axis, place, count in ((1, i, 2), (0, j, 3)):
        step = max(high[axis] - low[axis], 0.1) / count
        begin, end = (low[axis] + p * step for p in (place, place + 1))
        edges.append((math.floor(begin), math.ceil(end)))
    found = region(plane, edges)
    return found.mean() if found.size else 0


def test_psroi_pool():
    x = np.random.RandomState(1).rand(2, 12, 3, 4).astype("float32")
    expect = {"Out": pooled(x, mean_of_pixels, channels=2)}
    inputs = {"X": x, "ROIs": boxes()}
    check("psroi_pool", inputs, {**BINS, "output_channels": 2}, expect=expect, grad=("X",))


def pixels(plane, box, i, j):
    edges = []
    for axis, place, count in ((1, i, 2), (0, j, 3)):
        begin, end = rounded(box[axis] / 2), rounded(box[axis + 2] / 2)
        length = max(end - begin + 1, 1)
        edges.append((begin + place * length // count, begin - (-(place + 1) * length // count)))
    return region(plane, edges)


def largest(plane, box, i, j):
    found = pixels(plane, box, i, j)
    return found.max() if found.size else 0


def its_place(plane, box, i, j):
    found = pixels(plane, box, i, j)
    return int(np.flatnonzero(plane.ravel() == found.max())[0]) if found.size else -1


def test_roi_pool():
    expect = {"Out": pooled(X, largest), "Argmax": pooled(X, its_place).astype("int64")}
    check("roi_pool", {"X": X, "ROIs": boxes()}, BINS, expect=expect, grad=("X",))


@pytest.mark.usefixtures("interpreted_steps")
def test_bins_have_the_pixels_that_single_precision_gives_them():
    """Three times a third of seven is seven: an eighth pixel would be another maximum."""
    x = np.arange(8, dtype="float32").reshape(1, 1, 1, 8)
    main = fluid.Program()
    with fluid.program_guard(main):
        image, lod = fluid.data("x", [1, 1, 1, 8]), fluid.data("boxes", [-1, 4], lod_level=1)
        of_bins = layers.expand(image, [1, 3, 1, 1])
        outs = [
            layers.roi_pool(image, lod, 1, 3),
            layers.psroi_pool(of_bins, lod, 1, 1.0, 1, 3),
        ]
    feed = {"x": x, "boxes": boxes([[0, 0, 6, 0]], [1])}
    largest, mean = fluid.Executor(fluid.CPUPlace()).run(main, feed=feed, fetch_list=outs)
    assert largest.ravel()[-1] == 6 and mean.ravel()[-1] == 5


@pytest.mark.usefixtures("interpreted_steps")
def test_layers():
    """Each layer once; boxes by LoD, by offsets and by counts; and a batch without a box."""
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main):
        x = fluid.data("x", [-1, 1, 5, 6])
        plane = fluid.data("plane", [-1, 4])
        offsets, counts = fluid.data("offsets", [-1], "int64"), fluid.data("counts", [-1], "int64")
        lod = fluid.data("lod", [-1, 4], lod_level=1)
        outs = [
            layers.roi_align(x, lod, 2, 3, 0.5, 2),
            layers.roi_align(x, plane, 2, 3, 0.5, 2, rois_lod=offsets),
            layers.roi_pool(x, lod, 2, 3, 0.5),
            layers.roi_pool(x, plane, 2, 3, 0.5, rois_lod=offsets),
            layers.prroi_pool(x, lod, 0.5, 2, 3),
            layers.prroi_pool(x, plane, 0.5, 2, 3, batch_roi_nums=counts),
            layers.psroi_pool(x, lod, 1, 0.5, 1, 1),
        ]
    assert outs[0].shape == (-1, 1, 2, 3) and outs[0].lod_level == 0
    feed = {"x": X, "plane": np.array(CORNERS, "float32"), "lod": boxes()}
    feed |= {"offsets": np.array([0, 2, 4]), "counts": np.array([2, 2])}
    run = fluid.Executor(fluid.CPUPlace()).run
    found = run(main, feed=feed, fetch_list=outs)
    for by_lod, by_tensor in zip(found[:6:2], found[1:6:2]):
        np.testing.assert_array_equal(by_lod, by_tensor)
    none = {**feed, "lod": boxes([], [0, 0])}
    for by_lod in run(main, feed=none, fetch_list=outs[::2]):
        assert by_lod.shape[0] == 0
    with pytest.raises(errors.ShapeError, match="boxes are of 1 images, but X has 2"):
        run(main, feed={**feed, "lod": boxes(lengths=[4])}, fetch_list=outs[:1])


@pytest.mark.usefixtures("interpreted_steps")
def test_what_is_no_number_stays_in_its_bins():
    """A box of one bin and one of many: the pixels of the first beyond the second reach nothing."""
    x = np.ones((1, 1, 6, 6), "float32")
    x[..., 3:, 3:] = [np.nan, np.inf, -np.inf]
    two = boxes([[0, 0, 1.5, 1.5], [0, 0, 6, 6]], [2])
    main = fluid.Program()
    with fluid.program_guard(main):
        image, lod = fluid.data("x", [1, 1, 6, 6]), fluid.data("boxes", [-1, 4], lod_level=1)
        image.stop_gradient = lod.stop_gradient = False
        outs = [
            layers.roi_align(image, lod),
            layers.prroi_pool(image, lod),
            layers.psroi_pool(image, lod, 1, 1.0, 1, 1),
            layers.roi_pool(image, lod),
        ]
        (grad,) = fluid.gradients([outs[1]], [lod])
    run = fluid.Executor(fluid.CPUPlace()).run
    feed = {"x": x, "boxes": two}
    *found, moved = run(main, feed=feed, fetch_list=[*outs, grad], return_numpy=False)
    np.testing.assert_allclose([np.array(v)[0].item() for v in found], 1, rtol=1e-6)
    np.testing.assert_allclose(np.array(moved)[0], 0, atol=1e-6)


def test_what_does_not_fit():
    with fluid.program_guard(fluid.Program()):
        x, box = fluid.data("x", [2, 5, 6, 6]), fluid.data("boxes", [-1, 4], lod_level=1)
        with pytest.raises(errors.ShapeError, match=r"expected X \[N, C, H, W\] and ROIs"):
            layers.roi_align(x, fluid.data("five", [-1, 5], lod_level=1))
        with pytest.raises(errors.ShapeError, match="need 12 channels of X, found 5"):
            layers.psroi_pool(x, box, 2, 1.0, 2, 3)
        with pytest.raises(errors.ShapeError, match="must be positive, found 0"):
            layers.roi_pool(x, box, 0)
        with pytest.raises(errors.ShapeError, match="X must be float32 or float64, found int64"):
            layers.prroi_pool(fluid.data("whole", [2, 5, 6, 6], "int64"), box)
