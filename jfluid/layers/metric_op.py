"""Metrics computed inside the program."""

from jfluid import errors
from jfluid.initializer import Constant
from jfluid.ir import unique_name
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["accuracy", "auc", "mean_iou"]


def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: Variable | None = None, total: Variable | None = None
) -> Variable:
    """Return the fraction of rows with the label among the `k` highest scores: float32 [1].

    Args:
        input: scores [rows, classes].
        label: class numbers (int64) [rows, 1].
        k: number of highest scores.
        correct: int32 Variable that gets the number of these rows.
        total: int32 Variable that gets the number of all rows.
    """
    values, indices = emit("top_k", {"X": input}, {"k": k}, outs=("Out", "Indices"), stop_gradient=True)
    helper = LayerHelper("accuracy")
    out = helper.create_variable_for_type_inference("float32")
    correct = helper.create_variable_for_type_inference("int32") if correct is None else correct
    total = helper.create_variable_for_type_inference("int32") if total is None else total
    helper.append_op(
        type="accuracy",
        inputs={"Out": values, "Indices": indices, "Label": label},
        outputs={"Accuracy": out, "Correct": correct, "Total": total},
    )
    return out


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """Return the area under the ROC curve of scores, from histograms over thresholds that live in the Scope.

    Args:
        input: scores in [0, 1], [rows, 2]; the last column is that of the positive class. Any other
            score makes the area NaN.
        label: [rows, 1]; 0 is negative, all else positive.
        curve: "ROC" or "PR"; Fluid's operator, and so this one, computes the ROC area for both.
        num_thresholds: the number of steps of the histograms.
        topk: must be 1.
        slide_steps: how many batches the second result covers; 0 for all.

    Returns:
        (the area over all batches, the area over the last `slide_steps` batches, both float64 [1];
            a list of the histograms: positives and negatives of the last batches, positives and
            negatives of all).

    Raises ProgramError for another `curve` or `topk`, or a negative `slide_steps`.
    """
    if curve not in ("ROC", "PR"):
        raise errors.ProgramError(f"auc, curve: expected 'ROC' or 'PR', found {curve!r}")
    if topk != 1 or slide_steps < 0:
        raise errors.ProgramError(
            f"auc: expected topk=1 and slide_steps >= 0, found topk={topk}, slide_steps={slide_steps}"
        )
    check_variable(input, "auc", "input")
    helper = LayerHelper("auc")
    total_area, recent_area = (helper.create_variable_for_type_inference("float64") for _ in range(2))
    buckets = num_thresholds + 1
    recent_shape = [(1 + slide_steps) * buckets + 1] if slide_steps else [1, buckets]
    states = []
    for shape in (recent_shape, recent_shape, [1, buckets], [1, buckets]):
        state = helper.create_global_variable(
            persistable=True, dtype="int64", shape=shape, name=unique_name.generate("_generated_var")
        )
        helper.set_variable_initializer(state, Constant(0.0))
        states.append(state)
    for area, (positive, negative), steps in ((recent_area, states[:2], slide_steps), (total_area, states[2:], 0)):
        helper.append_op(
            type="auc",
            inputs={"Predict": input, "Label": label, "StatPos": positive, "StatNeg": negative},
            outputs={"AUC": area, "StatPosOut": positive, "StatNegOut": negative},
            attrs={"curve": curve, "num_thresholds": num_thresholds, "slide_steps": steps},
        )
    return total_area, recent_area, states


def mean_iou(input: Variable, label: Variable, num_classes: int) -> tuple[Variable, Variable, Variable]:
    """Return the mean intersection over union of predicted classes, over the classes that occur.

    Args:
        input: int32 or int64 class numbers, of the same shape.
        label: see `input`.
        num_classes: the number of classes.

    Returns:
        (the mean, float32 [1]; how often each class was wrong, int32 [classes]; how often it was
            right, int32 [classes]).
    """
    return emit(
        "mean_iou",
        {"Predictions": input, "Labels": label},
        {"num_classes": num_classes},
        outs=("OutMeanIou", "OutWrong", "OutCorrect"),
    )
