"""fluid.metrics and fluid.average. Numbers are worked out by hand or are Fluid 1.8.5's."""

import numpy as np
import pytest

from jfluid import errors, metrics
from jfluid.average import WeightedAverage

PREDS = np.array([[0.1], [0.7], [0.8], [0.9], [0.2], [0.5]])
LABELS = np.array([[0], [1], [1], [0], [1], [1]])


def test_metric_base_knows_its_states():
    class Mine(metrics.MetricBase):
        def __init__(self):
            super().__init__("mine")
            self.count, self.mean, self.sums, self.note, self._hidden = 3, 2.5, np.ones(3), "a", 1

    metric = Mine()
    config = metric.get_config()
    assert str(metric) == config["name"] == "mine" and set(config["states"]) == {
        "count",
        "mean",
        "sums",
        "note",
    }
    metric.reset()
    assert (metric.count, metric.mean, metric.sums.tolist(), metric.note, metric._hidden) == (
        0,
        0.0,
        [0] * 3,
        None,
        1,
    )
    assert config["states"]["count"] == 3
    for call in (lambda: metric.update(1, 2), metric.eval):
        with pytest.raises(NotImplementedError, match="Mine"):
            call()


def test_precision_and_recall_together():
    both = metrics.CompositeMetric()
    for metric in (metrics.Precision(), metrics.Recall("r")):
        both.add_metric(metric)
    assert both.eval() == [0.0, 0.0]
    both.update(PREDS, LABELS)
    assert both.eval() == [2 / 3, 1 / 2]  # 0.5 is no positive
    both.update(PREDS, LABELS)
    assert both.eval() == [2 / 3, 1 / 2]
    both.reset()
    assert both.eval() == [0.0, 0.0]
    with pytest.raises(errors.ProgramError, match="expected a MetricBase, found int"):
        both.add_metric(3)
    with pytest.raises(ValueError, match="expected a numpy array, found list"):
        metrics.Precision().update([1], LABELS)
    with pytest.raises(ValueError, match="6 predictions, but 5 labels"):
        metrics.Recall().update(PREDS, LABELS[:5])


def test_accuracy():
    metric = metrics.Accuracy()
    with pytest.raises(ValueError, match="no batch was counted"):
        metric.eval()
    metric.update(np.array([0.5]), 2)
    metric.update(0.2, 4)
    np.testing.assert_allclose(metric.eval(), [0.3])
    for value, weight, message in (("x", 2, "value"), (0.1, "x", "weight"), (0.1, -1, "from 0 on")):
        with pytest.raises(ValueError, match=message):
            metric.update(value, weight)


def test_chunk_evaluator():
    metric = metrics.ChunkEvaluator()
    assert metric.eval() == (0, 0, 0)
    metric.update(10, 9, 8)
    np.testing.assert_allclose(metric.eval(), (0.8, 8 / 9, 16 / 19))
    metric.update(np.array([1]), np.array([2]), np.array([1]))
    np.testing.assert_allclose(metric.eval(), np.full((3, 1), 9 / 11))
    with pytest.raises(ValueError, match="num_infer_chunks"):
        metric.update("a", 1, 1)


def test_edit_distance():
    metric = metrics.EditDistance("distance")
    with pytest.raises(ValueError, match="no sequence was counted"):
        metric.eval()
    metric.update(np.array([[0.0], [2.0], [1.0]]), np.array([3]))
    np.testing.assert_allclose(metric.eval(), [[1], [2 / 3]])
    metric.update(np.array([1.0]), 1)
    np.testing.assert_allclose(metric.eval(), [[1], [3 / 4]])
    with pytest.raises(ValueError, match="distances: expected a numpy array"):
        metric.update([1.0], 1)


@pytest.mark.parametrize("curve", ["ROC", "PR"])
def test_auc(curve):
    preds = np.array([[0.9, 0.1], [0.2, 0.8], [0.35, 0.65], [0.5, 0.5], [0.7, 0.3], [0.0, 1.0]])
    metric = metrics.Auc("auc", curve, num_thresholds=8)
    assert metric.eval() == 0.0
    metric.update(preds[:3], LABELS[[0, 1, 1]])
    metric.update(preds[3:], np.array([0, 1, 1]))
    assert metric.eval() == 7 / 8
    metric.reset()
    assert metric.eval() == 0.0
    assert metrics.Auc.trapezoid_area(1, 3, 2, 4) == 6


def test_auc_refuses_what_is_no_score():
    metric = metrics.Auc("auc")
    good = np.array([[0.5, 0.5]])
    for preds, labels, message in (
        (good + 0.6, LABELS[:1], r"scores in \[0, 1\]"),
        (good[:, 1:], LABELS[:1], "rows, 2"),
        (good, LABELS, "1 predictions, but 6 labels"),
        ([[0.5, 0.5]], LABELS[:1], "array"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.update(preds, labels)
    with pytest.raises(ValueError, match="'ROC' or 'PR', found 'XX'"):
        metrics.Auc("auc", curve="XX")


def test_detection_map_needs_the_number_of_classes():
    with pytest.raises(ValueError, match="class_num"):
        metrics.DetectionMAP(None, None, None)


def test_weighted_average():
    average = WeightedAverage()
    with pytest.raises(ValueError, match="no value was added"):
        average.eval()
    average.add(2.0, 1)
    average.add(4.0, 2)
    assert average.eval() == 10 / 3
    average.reset()
    values = np.array([1.0, 2.0])
    average.add(values, 2)
    average.add(values * 4, 1)
    np.testing.assert_allclose(average.eval(), [2, 4])
    assert values.tolist() == [1, 2]
    for value, weight in (("a", 1), (1.0, "a")):
        with pytest.raises(ValueError, match="expected a number or an array, found str"):
            average.add(value, weight)
