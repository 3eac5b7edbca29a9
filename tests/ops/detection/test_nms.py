"""Non-maximum suppression, held against plain loops over boxes."""

import time

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.lod_tensor import LoDTensor
from tests.op_case import check

ATTRS = {
    "background_label": 0,
    "score_threshold": 0.3,
    "nms_top_k": 6,
    "nms_threshold": 0.3,
    "keep_top_k": 5,
    "nms_eta": 1.0,
    "normalized": True,
}


def boxes(rng, *shape, scale=1.0):
    corner, size = rng.rand(*shape, 2), rng.rand(*shape, 2) * 0.6
    return (np.concatenate([corner, corner + size], -1) * scale).astype("float32")


def box_overlap(a, b, normalized=True):
    """Intersection over union, from the lengths of shared intervals."""
    extra = 0.0 if normalized else 1.0
    shared, areas = 1.0, [1.0, 1.0]
    for axis in (0, 1):
        length = min(a[axis + 2], b[axis + 2]) - max(a[axis], b[axis])
        if length < 0:
            return 0.0
        shared *= length + extra
        areas = [n * (x[axis + 2] - x[axis] + extra) for n, x in zip(areas, (a, b))]
    return shared / (sum(areas) - shared)


def polygon_overlap(a, b, normalized=True):
    """Intersection over union, counted on a fine grid of points."""
    y, x = np.mgrid[0:1:400j, 0:1:400j] + 1e-4
    inside = []
    for points in (np.reshape(a, (-1, 2)), np.reshape(b, (-1, 2))):
        hits = np.zeros(x.shape, bool)
        for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, 0)):
            if y0 != y1:
                crossed = (y < y0) != (y < y1)
                hits ^= crossed & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
        inside.append(hits)
    return (inside[0] & inside[1]).sum() / (inside[0] | inside[1]).sum()


def suppressed(found, scores, overlap, attrs):
    """The numbers of the boxes that stay, the best first."""
    order = [i for i in np.argsort(-scores, kind="stable") if scores[i] > attrs["score_threshold"]]
    allowed, stay = attrs["nms_threshold"], []
    for i in order if attrs["nms_top_k"] < 0 else order[: attrs["nms_top_k"]]:
        if all(overlap(found[i], found[j], attrs["normalized"]) <= allowed for j in stay):
            stay.append(i)
            allowed *= attrs["nms_eta"] if allowed > 0.5 else 1
    return stay


def multiclass(found, scores, attrs, overlap=box_overlap):
    """(rows, numbers of boxes, lengths) of images: found [classes or 1, boxes, size] and scores
    [classes, boxes] of each.
    """
    rows, numbers, lengths, start = [], [], [], 0
    for image, by_class in zip(found, scores):
        every = []
        for c, s in enumerate(by_class):
            if c != attrs["background_label"]:
                own = image[c % len(image)]
                stay = suppressed(own, s, overlap, attrs)
                if len(image) > 1:
                    stay.sort()
                every += [(c, s[i], *own[i], start + i) for i in stay]
        if 0 <= attrs["keep_top_k"] < len(every):
            top = sorted(range(len(every)), key=lambda i: -every[i][1])[: attrs["keep_top_k"]]
            every = [every[i] for i in sorted(top)]
        rows += [e[:-1] for e in every]
        numbers += [[e[-1] * len(image) + e[0] if len(image) > 1 else e[-1]] for e in every]
        lengths.append(len(every))
        start += by_class.shape[1]
    lod = [np.concatenate([[0], np.cumsum(lengths)]).tolist()]
    return np.array(rows, "float32"), np.array(numbers, "int32"), lod


def check_multiclass(found, scores, overlap=box_overlap, **changed):
    attrs = {**ATTRS, **changed}
    rows, numbers, lod = multiclass(found[:, None], scores, attrs, overlap)
    assert len(rows)
    expect = {"Out": LoDTensor(rows, lod), "Index": LoDTensor(numbers, lod)}
    check("multiclass_nms2", {"BBoxes": found, "Scores": scores}, attrs, expect=expect)


def test_boxes_of_one_class_that_overlap_a_better_one_are_dropped():
    rng = np.random.RandomState(0)
    found, scores = boxes(rng, 2, 20), rng.rand(2, 3, 20).astype("float32")
    scores[0, 1, 3] = scores[0, 1, 7] = 0.9  # equal ones: the first is the better
    scores[1, 2, 0] = np.nan
    check_multiclass(found, scores)
    found, scores = boxes(rng, 1, 150), rng.rand(1, 2, 150).astype("float32")  # many candidates
    check_multiclass(
        found * 9,
        scores,
        normalized=False,
        nms_eta=0.8,
        nms_threshold=0.7,
        background_label=1,
        nms_top_k=-1,
        keep_top_k=-1,
    )


def test_polygons():
    rng = np.random.RandomState(1)
    corner = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * 0.15
    turn = rng.rand(1, 8) * 6
    spin = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    found = np.einsum("pc,cdnm->nmpd", corner, spin) + rng.uniform(0.3, 0.7, (1, 8, 1, 2))
    found[0, ::2] = found[0, ::2, ::-1]  # in the other direction
    scores = rng.rand(1, 1, 8).astype("float32")
    check_multiclass(found.reshape(1, 8, 8).astype("float32"), scores, polygon_overlap, background_label=-1)


def test_a_box_for_each_class_in_rows_with_a_lod():
    rng = np.random.RandomState(2)
    lod, ends = [[0, 9, 9, 14]], (0, 9, 9, 14)
    found, scores = boxes(rng, 14, 3), rng.rand(14, 3).astype("float32")
    parts = [slice(a, b) for a, b in zip(ends, ends[1:])]
    rows, numbers, out_lod = multiclass([found[p].swapaxes(0, 1) for p in parts], [scores[p].T for p in parts], ATTRS)
    check(
        "multiclass_nms2",
        {"BBoxes": LoDTensor(found, lod), "Scores": LoDTensor(scores, lod)},
        ATTRS,
        expect={"Out": LoDTensor(rows, out_lod), "Index": LoDTensor(numbers, out_lod)},
    )


def test_nothing_found():
    boxes, scores = np.zeros((2, 20, 4), "float32"), np.zeros((2, 3, 20), "float32")
    none = LoDTensor(np.zeros((0, 6), "float32"), [[0, 0, 0]])
    inputs, index = {"BBoxes": boxes, "Scores": scores}, None
    check("multiclass_nms2", inputs, ATTRS, expect={"Out": none, "Index": index})
    inputs["Scores"] = scores + 0.5
    # boxes without area overlap in no measurable way: one of each class stays
    rows = LoDTensor(np.array([[c, 0.5, 0, 0, 0, 0] for c in (1, 2)] * 2, "float32"), [[0, 2, 4]])
    check("multiclass_nms2", inputs, ATTRS, expect={"Out": rows, "Index": index})
    none_kept = {**ATTRS, "nms_top_k": 0, "keep_top_k": 0, "background_label": -1}
    check("multiclass_nms2", inputs, none_kept, expect={"Out": none})


def test_scores_fall_with_better_boxes_that_overlap():
    rng = np.random.RandomState(3)
    found, scores = boxes(rng, 2, 7), rng.rand(2, 3, 7).astype("float32")
    found[0, 3] = found[0, 1]  # the same box twice
    attrs = {
        "background_label": 1,
        "score_threshold": 0.1,
        "post_threshold": 0.2,
        "nms_top_k": 5,
        "keep_top_k": 6,
        "use_gaussian": False,
        "gaussian_sigma": 2.0,
        "normalized": True,
    }
    for gaussian in (False, True):
        attrs["use_gaussian"] = gaussian
        rows, numbers, lengths = [], [], [0]
        for n in range(2):
            every = []
            for c in (0, 2):
                order = [i for i in np.argsort(-scores[n, c]) if scores[n, c, i] > 0.1][:5]
                worst = []
                for place, i in enumerate(order):
                    ious = [box_overlap(found[n, i], found[n, j]) for j in order[:place]]
                    factors = [
                        np.exp(2 * (m * m - o * o)) if gaussian else (1 - o) / (1 - m)
                        for o, m in zip(ious, worst)
                        if gaussian or m < 1
                    ]
                    worst.append(max(ious, default=0))
                    score = scores[n, c, i] * min([1, *factors])
                    if score > 0.2:
                        every.append((score, c, i))
            every = sorted(every, reverse=True)[:6]
            rows += [(c, score, *found[n, i]) for score, c, i in every]
            numbers += [[n * 7 + i] for _, _, i in every]
            lengths.append(len(rows))
        expect = {
            "Out": LoDTensor(np.array(rows, "float32"), [lengths]),
            "Index": LoDTensor(np.array(numbers, "int32"), [lengths]),
        }
        check("matrix_nms", {"BBoxes": found, "Scores": scores}, attrs, expect=expect)


def test_neighbours_that_overlap_are_merged():
    rng = np.random.RandomState(4)
    found, scores = boxes(rng, 2, 9), rng.rand(2, 2, 9).astype("float32")
    found[:, 1::3] = found[:, ::3] + 0.02
    found[0, 2] = found[0, 1] + 0.02
    attrs = {**ATTRS, "background_label": -1, "keep_top_k": -1, "nms_top_k": -1}
    rows, lengths = [], [0]
    for own, by_class in zip(found.copy(), scores.copy()):
        stays = []
        for s in by_class:
            head, heads = 0, [0]
            for i in range(1, 9):
                if box_overlap(own[i], own[head]) > attrs["nms_threshold"]:
                    own[head] = (own[i] * s[i] + own[head] * s[head]) / (s[i] + s[head])
                    s[head] += s[i]
                else:
                    head = i
                    heads.append(i)
            kept = suppressed(own[heads], s[heads], box_overlap, attrs)
            stays.append([heads[k] for k in kept])
        rows += [(c, by_class[c][i], *own[i]) for c, kept in enumerate(stays) for i in kept]
        lengths.append(len(rows))
    expect = {"Out": LoDTensor(np.array(rows, "float32"), [lengths])}
    check("locality_aware_nms", {"BBoxes": found, "Scores": scores}, attrs, expect=expect)


def test_objects_of_the_levels_of_retinanet():
    rng = np.random.RandomState(5)
    sizes, attrs = (5, 3), {"score_threshold": 0.5, "nms_top_k": 6, "nms_threshold": 0.6}
    attrs |= {"nms_eta": 0.8, "keep_top_k": 7}
    anchors = [np.round(boxes(rng, n, scale=20)) for n in sizes]
    moves = [rng.randn(2, n, 4).astype("float32") * 0.2 for n in sizes]
    scores = [rng.rand(2, n, 2).astype("float32") for n in sizes]
    for s in scores:
        s[1] = 0
    info = np.array([[30, 24, 1.5], [20, 20, 1]], "float32")
    found = {0: [], 1: []}
    for level, (anchor, move, score) in enumerate(zip(anchors, moves, scores)):
        best = sorted(np.ndindex(sizes[level], 2), key=lambda at: -score[0][at])[:6]
        for i, c in best:
            if score[0, i, c] > (0 if level else 0.5):
                size = anchor[i, 2:] - anchor[i, :2] + 1
                middle = anchor[i, :2] + size / 2 + move[0, i, :2] * size
                size = size * np.exp(move[0, i, 2:])
                corners = np.array([middle - size / 2, middle + size / 2 - 1]) / 1.5
                box = np.clip(corners, 0, [24 / 1.5 - 1, 30 / 1.5 - 1]).ravel()
                found[c].append((score[0, i, c], box))
    rows = []
    for c, every in found.items():
        values, own = np.array([v for v, _ in every]), [b for _, b in every]
        limits = {**ATTRS, **attrs, "score_threshold": 0, "nms_top_k": -1, "normalized": False}
        rows += [(c + 1, values[i], *own[i]) for i in suppressed(own, values, box_overlap, limits)]
    rows = np.array(sorted(rows, key=lambda row: -row[1])[:7], "float32")
    check(
        "retinanet_detection_output",
        {"BBoxes": moves, "Scores": scores, "Anchors": anchors, "ImInfo": info},
        attrs,
        expect={"Out": LoDTensor(rows, [[0, len(rows), len(rows)]])},
        rows=(),
    )


@pytest.mark.parametrize("width, count", [(5, 3), (4, 2)])
def test_shapes_that_do_not_fit(width, count):
    with fluid.program_guard(fluid.Program()):
        found = fluid.data("found", [2, 3, width])
        scores = fluid.data("scores", [2, 2, count])
        with pytest.raises(errors.ShapeError, match="multiclass_nms: "):
            fluid.layers.multiclass_nms(found, scores, 0.1, 10, 10)


def test_too_many_classes_are_an_error_at_once():
    layers = fluid.layers
    boxes = layers.fill_constant([1, 4, 4], "float32", 0.5)
    scores = layers.fill_constant([1, 3, 4], "float32", 0.6)
    kept = layers.multiclass_nms(boxes, scores, 0.1, 10, 5)
    scores.op.attrs["shape"] = [1, 2**31 - 1, 4]
    begin = time.process_time()
    with pytest.raises(errors.JFluidError, match="2147483647"):
        fluid.Executor(fluid.CPUPlace()).run(fetch_list=[kept], return_numpy=False)
    assert time.process_time() - begin < 10
