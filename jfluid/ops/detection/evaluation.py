"""Mean average precision of detections, run on the host: its state grows with every batch.

A mark is a row (score, 1 or 0) for a detection that counts.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np

from jfluid import errors
from jfluid.lod_tensor import LoDTensor
from jfluid.ops import unrolled
from jfluid.ops.registry import Int, op

_MOST_CLASSES = 1 << 16


@op(
    "detection_map",
    ins=("DetectRes", "Label", "HasState?", "PosCount?", "TruePos?", "FalsePos?"),
    outs=("AccumPosCount", "AccumTruePos", "AccumFalsePos", "MAP"),
    grad=False,
    host=True,
    reaches=None,
    rows="sequence",
)
def detection_map(
    detections: LoDTensor,
    truth: LoDTensor,
    has_state: LoDTensor | None,
    counts: LoDTensor | None,
    right: LoDTensor | None,
    wrong: LoDTensor | None,
    *,
    ctx: SimpleNamespace,
    class_num: Int,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    evaluate_difficult: bool = True,
    ap_type: str = "integral",
) -> tuple[np.ndarray, LoDTensor | np.ndarray, LoDTensor | np.ndarray, np.ndarray]:
    """Return class counts, true and false positives by class, and the mean average precision [1].

    With HasState, the results include all earlier batches (Everingham et al., PASCAL VOC, 2010).
    """
    if ap_type not in _AVERAGES:
        raise errors.AttributeTypeError(f"detection_map: ap_type: expected one of {list(_AVERAGES)}, found {ap_type!r}")
    unrolled.times("detection_map", "class_num", class_num, _MOST_CLASSES)
    number = np.zeros(class_num, np.int64)
    none = np.zeros((0, 2), np.float32)
    marks = [[none] * class_num, [none] * class_num]
    if has_state is not None and np.any(np.asarray(has_state)):
        if counts is None or right is None or wrong is None:
            raise errors.OpError("detection_map: HasState needs PosCount, TruePos and FalsePos")
        number += np.asarray(counts).reshape(-1)
        marks = [_kept(right, "TruePos", class_num, ctx), _kept(wrong, "FalsePos", class_num, ctx)]
    found, labelled = _images(detections, "DetectRes", (6, 1)), _images(truth, "Label", (5, 6))
    if len(found) != len(labelled):
        raise errors.ShapeError(f"detection_map: DetectRes has {len(found)} images, Label {len(labelled)}")
    for rows, boxes in zip(found, labelled):
        if boxes.shape[1] == 5:  # no box is said to be difficult
            boxes = np.insert(boxes, 1, 0, axis=1)
        counting = boxes if evaluate_difficult else boxes[boxes[:, 1] == 0]
        for label in _labels(counting[:, 0], class_num, "Label"):
            number[label] += 1
        _labels(rows[:, 0], class_num, "DetectRes")
        for label, score, hit in _judged(rows, boxes, overlap_threshold, evaluate_difficult):
            for side, mark in zip(marks, (hit, ~hit)):
                side[label] = np.concatenate([side[label], np.stack([score, mark], 1)])
    mean = _mean_precision(number, marks, background_label, _AVERAGES[ap_type])
    return (
        number.astype(np.int32)[:, None],
        _by_class(marks[0], ctx, "AccumTruePos"),
        _by_class(marks[1], ctx, "AccumFalsePos"),
        np.array([mean], np.float32),
    )


def _images(tensor: LoDTensor, slot: str, widths: tuple[int, int]) -> list[np.ndarray]:
    """Return the rows of each image.

    A single number in each row, which Fluid's suppression gives for no box at all, is no detection.
    """
    rows, lod = np.asarray(tensor), tensor.lod()
    if len(lod) != 1 or rows.ndim != 2 or rows.shape[1] not in widths:
        raise errors.ShapeError(
            f"detection_map: expected {slot} [rows, {widths[0]}] with a LoD of one level, found {list(rows.shape)} "
            f"with {len(lod)}"
        )
    if rows.shape[1] == 1:
        return [np.zeros((0, 6), np.float32)] * (len(lod[0]) - 1)
    return [rows[start:end] for start, end in zip(lod[0], lod[0][1:])]


def _labels(column: np.ndarray, classes: int, slot: str) -> np.ndarray:
    labels = column.astype(np.int64)
    if np.any((labels < 0) | (labels >= classes)):
        raise errors.OpError(
            f"detection_map: {slot} has classes {sorted(set(labels.tolist()))}; class_num is {classes}"
        )
    return labels


def _kept(state: LoDTensor, slot: str, classes: int, ctx: SimpleNamespace) -> list[np.ndarray]:
    """Return the marks of the batches before, by class. Of a state the Scope has the LoD."""
    rows, lod = np.asarray(state), state.lod()
    if not lod:
        variable = ctx.scope.find_var(ctx.op.input(slot)[0])
        lod = variable.get_tensor().lod() if variable is not None else []
    if len(lod) != 1 or len(lod[0]) != classes + 1 or lod[0][-1] != len(rows):
        raise errors.ShapeError(
            f"detection_map: {slot} of a state has a sequence for each of {classes} classes, found lod {lod}"
        )
    return [rows[start:end] for start, end in zip(lod[0], lod[0][1:])]


def _by_class(marks: list[np.ndarray], ctx: SimpleNamespace, slot: str) -> LoDTensor | np.ndarray:
    """Concatenate the marks of all classes to a tensor with a LoD by class.

    A state is returned as an array, since the Scope keeps its LoD.
    """
    rows = np.concatenate(marks).astype(np.float32)
    lod = [[0, *np.cumsum([len(m) for m in marks]).tolist()]]
    variable = ctx.scope.find_var(ctx.op.output(slot)[0])
    if variable is None:
        return LoDTensor(rows, lod)
    tensor = variable.get_tensor()
    tensor.value = rows  # which the offsets are held against
    tensor.set_lod(lod)
    return rows


def _judged(
    rows: np.ndarray, boxes: np.ndarray, threshold: float, difficult: bool
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (class, scores, True for true positives) for each class of an image's detections.

    Detections are (label, score, box). Each ground truth box is found once, by the detection with the highest
    score of all detections that overlap it most. Ignored detections are left out.
    """
    for label in np.unique(rows[:, 0].astype(np.int64)):
        own = rows[rows[:, 0].astype(np.int64) == label]
        truth = boxes[boxes[:, 0].astype(np.int64) == label]
        if not len(truth):
            yield label, own[:, 1], np.zeros(len(own), bool)
            continue
        own = own[np.argsort(-own[:, 1], kind="stable")]
        overlap = _overlaps(np.clip(own[:, 2:], 0, 1), truth[:, 2:])
        nearest, near = overlap.argmax(axis=1), overlap.max(axis=1) > threshold
        counts = ~near | difficult | (truth[nearest, 1] == 0)
        hit, seen = np.zeros(len(own), bool), set()
        for i in np.flatnonzero(near & counts):
            hit[i] = nearest[i] not in seen
            seen.add(nearest[i])
        yield label, own[counts, 1], hit[counts]


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return [rows of a, rows of b], intersections over unions."""
    a, b = a[:, None], b[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = np.where((sides > 0).all(-1), sides.prod(-1), 0)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - common
    return common / np.where(common > 0, union, 1)


def _mean_precision(
    number: np.ndarray,
    marks: list[list[np.ndarray]],
    background: int,
    average: Callable[[np.ndarray, np.ndarray], float],
) -> float:
    """Return the mean of the average precisions of all classes that have boxes.

    Fluid leaves out the classes that have as many boxes as `background` says, whichever they are.
    """
    found = []
    for boxes, right, wrong in zip(number, *marks):
        if boxes in (0, background):
            continue
        order = np.argsort(-right[:, 0], kind="stable")
        rights, wrongs = np.cumsum(right[order, 1]), np.cumsum(wrong[order, 1])
        found.append(average(rights / (rights + wrongs), rights / boxes) if len(right) else 0.0)
    return float(np.mean(found)) if found else 0.0


def _integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the area under the steps of precision over recall."""
    return float((precision * np.diff(recall, prepend=0)).sum())


def _eleven_points(precision: np.ndarray, recall: np.ndarray) -> float:
    """Return the mean of the best precisions at a recall of at least 0, 0.1, ... 1."""
    return float(np.mean([precision[recall >= j / 10].max(initial=0) for j in range(11)]))


_AVERAGES = {"integral": _integral, "11point": _eleven_points}
