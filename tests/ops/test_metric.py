"""Metrics computed inside a program."""

import numpy as np
import pytest

from jfluid import errors
from tests.op_case import check

PREDICT = np.array([[0.9, 0.1], [0.2, 0.8], [0.35, 0.65], [0.5, 0.5], [0.7, 0.3], [0, 1]], "float32")
LABEL = np.array([[0], [1], [1], [0], [1], [1]])
# Scores times 8, cut to integers, counted by class.
POSITIVE, NEGATIVE = np.array([0, 0, 1, 0, 0, 1, 1, 0, 1]), np.array([1, 0, 0, 0, 1, 0, 0, 0, 0])
# of the 8 pairs of a positive and a negative row, one stands in the wrong order
AREA = np.array([7 / 8])


def test_accuracy():
    indices = np.array([[0, 1], [0, 2], [3, 3]])
    check(
        "accuracy",
        {
            "Out": np.zeros((3, 2), "float32"),
            "Indices": indices,
            "Label": np.array([[1], [1], [3]]),
        },
        expect={
            "Accuracy": np.array([2 / 3], "float32"),
            "Correct": np.array([2], "int32"),
            "Total": np.array([3], "int32"),
        },
    )
    with pytest.raises(errors.ShapeError, match="expected labels of shape"):
        check(
            "accuracy",
            {"Out": np.zeros((3, 2), "float32"), "Indices": indices, "Label": np.array([1, 1, 3])},
            expect={"Accuracy": None},
        )


def auc(positive, negative, area=None, predict=PREDICT, label=LABEL, stats=None, **attrs):
    start = np.zeros((1, 9), "int64") if stats is None else stats
    return check(
        "auc",
        {"Predict": predict, "Label": label, "StatPos": start, "StatNeg": start},
        {"num_thresholds": 8, "slide_steps": 0} | attrs,
        infer=False,
        expect={"AUC": area, "StatPosOut": positive, "StatNegOut": negative},
    )


def test_auc_of_all_batches():
    auc(POSITIVE[None], NEGATIVE[None], AREA)
    auc(POSITIVE[None], NEGATIVE[None], AREA, curve="PR")
    auc(POSITIVE[None], NEGATIVE[None], AREA, predict=PREDICT[:, 1:], label=2 * LABEL)
    auc(POSITIVE[None] + 1, NEGATIVE[None] + 1, stats=np.ones((1, 9), "int64"))
    auc(None, None, np.zeros(1), label=0 * LABEL)
    # Fluid's layer gives one element too many when nothing slides.
    auc(np.append(POSITIVE, 0), np.append(NEGATIVE, 0), AREA, stats=np.zeros(10, "int64"))


def test_auc_of_the_last_batches():
    old = [np.arange(9), np.full(9, 2)]
    # two batches; the sixth replaces the second
    stats = np.concatenate([*old, old[0] + old[1], [5]])
    out = auc(
        np.concatenate([old[0], POSITIVE, old[0] + POSITIVE, [6]]),
        np.concatenate([old[0], NEGATIVE, old[0] + NEGATIVE, [6]]),
        stats=stats,
        slide_steps=2,
    )
    positive, negative = (old[0] + POSITIVE)[::-1], (old[0] + NEGATIVE)[::-1]
    above = np.cumsum(positive) - positive / 2
    np.testing.assert_allclose(out["AUC"][0], [(negative * above).sum() / positive.sum() / negative.sum()])


def test_auc_of_wrong_scores_is_nan_and_wrong_buffers_raise():
    for wrong in (1.1, -0.1, np.nan):
        predict = PREDICT.copy()
        predict[2, 1] = wrong
        with np.errstate(invalid="ignore"):
            auc(None, None, np.full(1, np.nan), predict=predict)
    with pytest.raises(errors.ShapeError, match="expected 28 elements in StatPos"):
        auc(None, None, slide_steps=2)


def test_precision_recall():
    inputs = {
        "MaxProbs": np.zeros((4, 1), "float32"),
        "Indices": np.array([[0], [1], [2], [1]], "int32"),
        "Labels": np.array([[0], [2], [2], [1]], "int32"),
    }
    states = np.array([[1, 0, 3, 0], [1, 1, 2, 0], [1, 0, 2, 1], [0, 0, 4, 0]], "float32")
    metrics = np.array([0.875, 0.875, 0.875, 0.75, 0.75, 0.75])
    check(
        "precision_recall",
        inputs,
        {"class_number": 4},
        expect={"BatchMetrics": metrics, "AccumMetrics": metrics, "AccumStatesInfo": states},
    )
    # Numbers of Fluid 1.8.5.
    before = np.arange(16, dtype="float32").reshape(4, 4)
    weighted = inputs | {
        "Weights": np.array([[1], [2], [0.5], [1]], "float32"),
        "StatesInfo": before,
    }
    after = [[1, 1, 5.5, 3], [5, 7, 7.5, 7], [8.5, 9, 12, 13], [12, 13, 18.5, 15]]
    check(
        "precision_recall",
        weighted,
        {"class_number": 4},
        infer=False,
        expect={
            "BatchMetrics": np.array([0.833333373, 0.800000012, 0.816326499, 0.555555582, 0.555555582, 0.555555582]),
            "AccumMetrics": np.array([0.470595241, 0.376614988, 0.418392539, 0.469026536, 0.4108527, 0.438016504]),
            "AccumStatesInfo": np.array(after, "float32"),
        },
    )


def test_mean_iou():
    inputs = {
        "Predictions": np.array([0, 1, 2, 1, 4], "int32"),
        "Labels": np.array([0, 2, 2, 1, 1], "int32"),
    }
    wrong, correct = np.array([0, 2, 1, 0, 1], "int32"), np.array([1, 1, 1, 0, 0], "int32")
    check(
        "mean_iou",
        inputs,
        {"num_classes": 5},
        expect={
            "OutMeanIou": np.array([(1 + 1 / 3 + 1 / 2) / 4], "float32"),
            "OutWrong": wrong,
            "OutCorrect": correct,
        },
    )
    means = [np.array([v], "float32") for v in (1, 2)]
    more = {"InWrongs": [wrong, wrong], "InCorrects": [correct], "InMeanIou": means}
    check(
        "mean_iou",
        inputs | more,
        {"num_classes": 5},
        infer=False,
        expect={
            "OutMeanIou": np.array([3 + (1 + 1 / 4 + 2 / 5) / 4], "float32"),
            "OutWrong": 3 * wrong,
            "OutCorrect": 2 * correct,
        },
    )
    check(
        "mean_iou",
        {"Predictions": np.array([7]), "Labels": np.array([-1])},
        {"num_classes": 2},
        expect={
            "OutMeanIou": np.zeros(1, "float32"),
            "OutWrong": np.zeros(2, "int32"),
            "OutCorrect": np.zeros(2, "int32"),
        },
    )


def test_positive_negative_pair():
    r = np.random.RandomState(1)
    score, weight = r.randint(0, 3, (9, 2)).astype("float32"), r.rand(9, 1).astype("float32")
    label, query = r.randint(0, 3, (9, 1)).astype("float32"), r.randint(0, 2, (9, 1))
    counts = {"PositivePair": 0.0, "NegativePair": 0.0, "NeutralPair": 0.0}
    for i in range(9):
        for j in range(i):
            if query[i] == query[j] and label[i] != label[j]:
                gain, pair = score[i, 1] - score[j, 1], (weight[i, 0] + weight[j, 0]) / 2
                right = gain * (label[i, 0] - label[j, 0]) > 0
                counts["PositivePair" if right else "NegativePair"] += pair
                counts["NeutralPair"] += pair * (gain == 0)
    inputs = {"Score": score, "Label": label, "QueryID": query, "Weight": weight}
    check(
        "positive_negative_pair",
        inputs | {f"Accumulate{name}": np.array([2.0], "float32") for name in counts},
        {"column": -1},
        expect={name: np.array([v + 2]) for name, v in counts.items()},
        ragged=("Score", "Label", "QueryID", "Weight"),
        rows=(),
    )
    with pytest.raises(errors.ShapeError, match="Score has 2 columns"):
        check("positive_negative_pair", inputs, {"column": 2}, expect={"PositivePair": None})
