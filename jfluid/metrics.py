"""`fluid.metrics`: metrics that accumulate, in Python, the results of batches."""

import copy
from numbers import Number
from typing import Any

import numpy as np

from jfluid import errors, layers
from jfluid.executor import Executor
from jfluid.ir import unique_name
from jfluid.ir.program import Program, program_guard
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper

__all__ = [
    "Accuracy",
    "Auc",
    "ChunkEvaluator",
    "CompositeMetric",
    "DetectionMAP",
    "EditDistance",
    "MetricBase",
    "Precision",
    "Recall",
]


def _array(value: Any, what: str) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        raise errors.ProgramError(f"{what}: expected a numpy array, found {type(value).__name__}")
    return value


def _number(value: Any, what: str) -> Any:
    if not isinstance(value, (Number, np.ndarray)):
        raise errors.ProgramError(f"{what}: expected a number or a numpy array, found {type(value).__name__}")
    return value


def _zero(value: Any) -> Any:
    """Return the value to which `reset` sets `value`."""
    if isinstance(value, (bool, int)):
        return 0
    if isinstance(value, float):
        return 0.0
    return np.zeros_like(value) if isinstance(value, (np.ndarray, np.generic)) else None


class MetricBase:
    """Base class of metrics.

    Attributes without a leading underscore are the metric's state.

    Args:
        name: is shown by `str`; the class's name when None.
    """

    def __init__(self, name: str | None):
        self._name = name if name is not None else type(self).__name__

    def __str__(self) -> str:
        return self._name

    def _states(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def reset(self) -> None:
        """Reset the state: numbers and arrays to zero, anything else to None."""
        for name, value in self._states().items():
            setattr(self, name, _zero(value))

    def get_config(self) -> dict[str, Any]:
        """Return {"name": the name, "states": a copy of the state}."""
        return {"name": self._name, "states": copy.deepcopy(self._states())}

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Count a batch. Each metric defines the arguments."""
        raise NotImplementedError(f"{type(self).__name__}.update: a metric has to define it")

    def eval(self) -> Any:
        """Return the metric over all batches so far."""
        raise NotImplementedError(f"{type(self).__name__}.eval: a metric has to define it")


class CompositeMetric(MetricBase):
    """Several metrics with common predictions and labels."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self._metrics: list[MetricBase] = []

    def add_metric(self, metric: MetricBase) -> None:
        """Add a metric. Raises ValueError for anything else than a metric."""
        if not isinstance(metric, MetricBase):
            raise errors.ProgramError(
                f"CompositeMetric.add_metric: expected a MetricBase, found {type(metric).__name__}"
            )
        self._metrics.append(metric)

    def reset(self) -> None:
        """Reset every metric."""
        for metric in self._metrics:
            metric.reset()

    def update(self, preds: np.ndarray, labels: np.ndarray) -> None:
        """Count a batch in every metric."""
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        """Return the values of all metrics, in the order of `add_metric`."""
        return [metric.eval() for metric in self._metrics]


def _binary(preds: np.ndarray, labels: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions rounded to 0 or 1, and labels, both as vectors of integers."""
    predicted = np.rint(_array(preds, f"{what}, preds")).astype("int32").ravel()
    actual = _array(labels, f"{what}, labels").astype("int32").ravel()
    if predicted.size != actual.size:
        raise errors.ProgramError(f"{what}: {predicted.size} predictions, but {actual.size} labels")
    return predicted, actual


class Precision(MetricBase):
    """Precision of binary predictions: true positives / (true positives + false positives)."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.tp = 0
        self.fp = 0

    def update(self, preds: np.ndarray, labels: np.ndarray) -> None:
        """Count a batch.

        Args:
            preds: scores [rows, 1] or [rows]; scores above 0.5 are positive.
            labels: 0 or 1, of the same number of rows.
        """
        predicted, actual = _binary(preds, labels, "Precision.update")
        self.tp += int(((predicted == 1) & (actual == 1)).sum())
        self.fp += int(((predicted == 1) & (actual != 1)).sum())

    def eval(self) -> float:
        """Return the precision; 0.0 without positive predictions."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(MetricBase):
    """Recall of binary predictions: true positives / (true positives + false negatives)."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.tp = 0
        self.fn = 0

    def update(self, preds: np.ndarray, labels: np.ndarray) -> None:
        """Count a batch.

        Args:
            preds: scores [rows, 1] or [rows]; scores above 0.5 are positive.
            labels: 0 or 1, of the same number of rows.
        """
        predicted, actual = _binary(preds, labels, "Recall.update")
        self.tp += int(((predicted == 1) & (actual == 1)).sum())
        self.fn += int(((predicted != 1) & (actual == 1)).sum())

    def eval(self) -> float:
        """Return the recall; 0.0 without positive labels."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Accuracy(MetricBase):
    """Weighted mean of the accuracies of batches, from `layers.accuracy`."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.value: float | np.ndarray = 0.0
        self.weight: float | np.ndarray = 0.0

    def update(self, value: float | np.ndarray, weight: float | np.ndarray) -> None:
        """Count a batch.

        Args:
            value: its accuracy.
            weight: its number of rows.
        """
        _number(value, "Accuracy.update, value")
        if np.any(np.asarray(_number(weight, "Accuracy.update, weight")) < 0):
            raise errors.ProgramError(f"Accuracy.update, weight: expected a number from 0 on, found {weight}")
        self.value = self.value + value * weight
        self.weight = self.weight + weight

    def eval(self) -> float | np.ndarray:
        """Return the mean accuracy. Raises ValueError when no batch was counted."""
        if np.all(self.weight == 0):
            raise errors.ProgramError(
                "Accuracy.eval: no batch was counted; call update with the result of layers.accuracy"
            )
        return self.value / self.weight


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunks, from the counts that `layers.chunk_eval` gives for batches."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.num_infer_chunks = 0
        self.num_label_chunks = 0
        self.num_correct_chunks = 0

    def update(
        self,
        num_infer_chunks: int | np.ndarray,
        num_label_chunks: int | np.ndarray,
        num_correct_chunks: int | np.ndarray,
    ) -> None:
        """Count a batch by its numbers of predicted, labelled and correct chunks."""
        self.num_infer_chunks += _number(num_infer_chunks, "ChunkEvaluator.update, num_infer_chunks")
        self.num_label_chunks += _number(num_label_chunks, "ChunkEvaluator.update, num_label_chunks")
        self.num_correct_chunks += _number(num_correct_chunks, "ChunkEvaluator.update, num_correct_chunks")

    def eval(self) -> tuple[Any, Any, Any]:
        """Return (precision, recall, F1); each is 0 for a zero denominator."""
        correct = self.num_correct_chunks
        precision = correct / self.num_infer_chunks if self.num_infer_chunks else 0
        recall = correct / self.num_label_chunks if self.num_label_chunks else 0
        return precision, recall, 2 * precision * recall / (precision + recall) if correct else 0


class EditDistance(MetricBase):
    """Mean edit distance of sequences, and fraction of inexact sequences."""

    def __init__(self, name: str | None):
        super().__init__(name)
        self.total_distance = 0.0
        self.seq_num: int | np.ndarray = 0
        self.instance_error: int | np.ndarray = 0

    def update(self, distances: np.ndarray, seq_num: int | np.ndarray) -> None:
        """Count a batch.

        Args:
            distances: the distance of each sequence.
            seq_num: the number of sequences.
        """
        _array(distances, "EditDistance.update, distances")
        self.seq_num += _number(seq_num, "EditDistance.update, seq_num")
        self.total_distance += float(distances.sum())
        self.instance_error += seq_num - int((distances == 0).sum())

    def eval(self) -> tuple[Any, Any]:
        """Return (the mean distance, the share of inexact sequences).

        Raises ValueError when no sequence was counted.
        """
        if np.all(self.seq_num == 0):
            raise errors.ProgramError(
                "EditDistance.eval: no sequence was counted; call update with the result of layers.edit_distance"
            )
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class Auc(MetricBase):
    """Area under the ROC curve, from histograms of the scores.

    Args:
        curve: "ROC" or "PR"; as in Fluid the area is that of the ROC curve for both.
        num_thresholds: the number of steps of the histograms.
    """

    def __init__(self, name: str | None, curve: str = "ROC", num_thresholds: int = 4095):
        super().__init__(name)
        if curve not in ("ROC", "PR"):
            raise errors.ProgramError(f"Auc, curve: expected 'ROC' or 'PR', found {curve!r}")
        self._curve = curve
        self._num_thresholds = num_thresholds
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._stat_pos = np.zeros(self._num_thresholds + 1, np.int64)
        self._stat_neg = np.zeros(self._num_thresholds + 1, np.int64)

    def update(self, preds: np.ndarray, labels: np.ndarray) -> None:
        """Count a batch.

        Args:
            preds: scores in [0, 1] of both classes, [rows, 2].
            labels: [rows, 1] or [rows]; 0 is negative, all else positive.

        Raises:
            ValueError: the shapes differ from these or a score is outside [0, 1].
        """
        if _array(preds, "Auc.update, preds").ndim != 2 or preds.shape[1] != 2:
            raise errors.ProgramError(f"Auc.update, preds: expected shape [rows, 2], found {list(preds.shape)}")
        positive = _array(labels, "Auc.update, labels").ravel().astype(bool)
        scores = preds[:, 1].astype(np.float64)
        if scores.size != positive.size:
            raise errors.ProgramError(f"Auc.update: {scores.size} predictions, but {positive.size} labels")
        if not np.all((scores >= 0) & (scores <= 1)):
            raise errors.ProgramError("Auc.update, preds: expected scores in [0, 1]")
        buckets = (scores * self._num_thresholds).astype(np.int64)
        size = self._num_thresholds + 1
        self._stat_pos += np.bincount(buckets[positive], minlength=size)
        self._stat_neg += np.bincount(buckets[~positive], minlength=size)

    @staticmethod
    def trapezoid_area(x1: float, x2: float, y1: float, y2: float) -> float:
        """Return the area under the line from (x1, y1) to (x2, y2)."""
        return abs(x1 - x2) * (y1 + y2) / 2.0

    def eval(self) -> float:
        """Return the area, 0.0 while a class has not been seen."""
        positive, negative = self._stat_pos[::-1], self._stat_neg[::-1]
        total = float(positive.sum()) * float(negative.sum())
        above = np.cumsum(positive) - positive / 2
        return float((negative * above).sum() / total) if total else 0.0


class DetectionMAP:
    """Mean average precision of detections: of a batch, and of all batches since the last `reset`.

    It appends operators to the default main program.

    Args:
        input: rows (class, score, left, top, right, bottom) with a LoD, from
            `layers.detection_output`.
        gt_label: the classes of the truth [rows, 1] with a LoD of as many images.
        gt_box: its boxes [rows, 4].
        gt_difficult: [rows, 1]: 1 for boxes that are difficult to find.
        class_num: the number of classes; must be given.
        background_label, overlap_threshold, evaluate_difficult, ap_version: as those of
            `layers.detection.detection_map`.

    Attributes:
        cur_map, accum_map: float32 [1] Variables: of the batch, and of all batches.
        states: Variables of the Scope: boxes of each class, and marks of right and wrong detections.
        has_state: the int32 [1] Variable that is 0 after `reset`.
    """

    def __init__(
        self,
        input: Variable,
        gt_label: Variable,
        gt_box: Variable,
        gt_difficult: Variable | None = None,
        class_num: int | None = None,
        background_label: int = 0,
        overlap_threshold: float = 0.5,
        evaluate_difficult: bool = True,
        ap_version: str = "integral",
    ):
        if not isinstance(class_num, int) or class_num < 1:
            raise errors.AttributeTypeError(
                f"metrics.DetectionMAP, class_num: expected the number of classes, found {class_num!r}"
            )
        columns = [gt_label, gt_box] if gt_difficult is None else [gt_label, gt_difficult, gt_box]
        columns = [layers.cast(c, gt_box.dtype) for c in columns[:-1]] + columns[-1:]
        labels = layers.concat(columns, axis=1)
        settings: dict[str, Any] = {
            "class_num": class_num,
            "background_label": background_label,
            "overlap_threshold": overlap_threshold,
            "evaluate_difficult": evaluate_difficult,
            "ap_version": ap_version,
        }
        self.helper = LayerHelper("map_eval")
        self.cur_map = layers.detection_map(input, labels, **settings)
        self.states = [
            self._state("accum_pos_count", "int32", [class_num, 1]),
            self._state("accum_true_pos", "float32", [0, 2]),
            self._state("accum_false_pos", "float32", [0, 2]),
        ]
        self.has_state = self._state("has_state", "int32", [1])
        self.accum_map = layers.detection_map(
            input, labels, has_state=self.has_state, input_states=self.states, out_states=self.states, **settings
        )
        layers.fill_constant(shape=[1], value=1, dtype="int32", out=self.has_state)

    def _state(self, suffix: str, dtype: str, shape: list[int]) -> Variable:
        """Create a state of `shape` zeros; a 0 in the shape is a dimension that grows with batches."""
        state: Variable = self.helper.create_variable(
            name=f"{unique_name.generate(self.helper.name)}_{suffix}",
            persistable=True,
            dtype=dtype,
            shape=[n or -1 for n in shape],
        )
        block = self.helper.startup_program.global_block()
        block.create_var(name=state.name, shape=state.shape, dtype=dtype, persistable=True)
        block.append_op(
            type="fill_constant",
            outputs={"Out": [state.name]},
            attrs={"shape": shape, "dtype": state.dtype, "value": 0.0},
        )
        return state

    def get_map_var(self) -> tuple[Variable, Variable]:
        """Return the Variables to be fetched: of the batch, and of all batches."""
        return self.cur_map, self.accum_map

    def reset(self, executor: Executor, reset_program: Program | None = None) -> None:
        """Forget the batches before.

        Args:
            executor: runs `reset_program`.
            reset_program: the Program that the operators are appended to; None for a new one.
        """
        program = reset_program or Program()
        with program_guard(program):
            state = program.global_block().create_var(
                name=self.has_state.name, shape=[1], dtype="int32", persistable=True
            )
            layers.fill_constant(shape=[1], value=0, dtype="int32", out=state)
        executor.run(program)
