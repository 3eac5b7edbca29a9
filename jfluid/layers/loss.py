"""Losses.

A label that names no class (and is not `ignore_index`) gives a loss of NaN, because a compiled step cannot
raise.
"""

from typing import Any

from jfluid import errors
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit
from jfluid.layers.math import reduce_mean, reduce_sum

__all__ = [
    "bpr_loss",
    "center_loss",
    "cross_entropy",
    "dice_loss",
    "huber_loss",
    "kldiv_loss",
    "label_smooth",
    "log_loss",
    "margin_rank_loss",
    "mse_loss",
    "npair_loss",
    "rank_loss",
    "sigmoid_cross_entropy_with_logits",
    "sigmoid_focal_loss",
    "smooth_l1",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "teacher_student_sigmoid_loss",
]


def cross_entropy(input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100) -> Variable:
    """Return the cross entropy of probabilities: -log(input[label]), or -sum(label * log(input)) with soft labels.

    The logarithm of 0 counts as -1e20. `softmax_with_cross_entropy` is more exact and faster where
    the probabilities come from a softmax.

    Args:
        input: probabilities [..., classes].
        label: class numbers (int64) [..., 1] or [...]; with `soft_label` probabilities of the shape
            of `input`.
        soft_label: True if labels are probabilities.
        ignore_index: the hard label with zero loss and gradient.

    Returns:
        The losses, of the shape of hard labels; [..., 1] with soft labels.

    Raises ShapeError if the labels do not match the probabilities.
    """
    if soft_label:
        return emit(
            "cross_entropy",
            {"X": input, "Label": label},
            {"soft_label": True, "ignore_index": ignore_index},
            outs=("Y",),
        )
    return cross_entropy2(input, label, ignore_index)


def cross_entropy2(input: Variable, label: Variable, ignore_index: int = -100) -> Variable:
    """Return the cross entropy of probabilities with hard labels.

    For the arguments see `cross_entropy`.
    """
    return emit(
        "cross_entropy2", {"X": input, "Label": label}, {"ignore_index": ignore_index}, outs=("Y", "XShape", "MatchX")
    )[0]


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """Return the cross entropy of softmax(logits) along `axis`.

    Args:
        logits: scores, of any sign; `axis` is the dimension of the classes.
        label: class numbers (int64), of the shape of `logits` with 1 at `axis`; with `soft_label`
            probabilities of the shape of `logits`, which should sum to 1.
        soft_label: True if labels are probabilities.
        ignore_index: the hard label with zero loss and gradient.
        numeric_stable_mode: stays in the program without effect: the stable formula is used either
            way.
        return_softmax: also return the softmax. No gradient flows through it.
        axis: the dimension of the classes; negative numbers count from the last.

    Returns:
        The loss, of the shape of `logits` with 1 at `axis`; or (loss, softmax).

    Raises ShapeError if the labels do not match the scores.
    """
    attrs = {
        "soft_label": soft_label,
        "ignore_index": ignore_index,
        "numeric_stable_mode": numeric_stable_mode,
        "axis": axis,
    }
    softmax, loss = emit(
        "softmax_with_cross_entropy", {"Logits": logits, "Label": label}, attrs, outs=("Softmax", "Loss")
    )
    return (loss, softmax) if return_softmax else loss


def sigmoid_cross_entropy_with_logits(
    x: Variable, label: Variable, ignore_index: int = -100, name: str | None = None, normalize: bool = False
) -> Variable:
    """Return the binary cross entropy of sigmoid(x) with `label`, element by element.

    Args:
        x: scores, of any sign and any shape.
        label: probabilities, of the shape of `x`.
        ignore_index: the label of elements with loss 0.
        name: see `jfluid.layers`.
        normalize: divide by the number of elements that are not ignored.
    """
    return emit(
        "sigmoid_cross_entropy_with_logits",
        {"X": x, "Label": label},
        {"ignore_index": ignore_index, "normalize": normalize},
        name=name,
    )


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return (input - label)², element by element."""
    check_variable(input, "square_error_cost", "input")
    check_variable(label, "square_error_cost", "label")
    helper = LayerHelper("square_error_cost")
    difference = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(type="elementwise_sub", inputs={"X": input, "Y": label}, outputs={"Out": difference})
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(type="square", inputs={"X": difference}, outputs={"Out": out})
    return out


def mse_loss(input: Variable, label: Variable) -> Variable:
    """Return the mean of (input - label)²: [1]."""
    return emit("reduce_mean", {"X": square_error_cost(input, label)}, {"dim": [0], "reduce_all": True})


def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """Return the smooth L1 loss of each row, summed over the other dimensions: [rows, 1] (Girshick, 2015).

    With d = (x - y) * inside_weight an element counts 0.5 * (sigma * d)² where |d| < 1 / sigma²,
    else |d| - 0.5 / sigma²; both times outside_weight.

    Args:
        x: of the same shape [rows, ...].
        y: see `x`.
        inside_weight: of the shape of `x`; ones when None.
        outside_weight: see `inside_weight`.
        sigma: 1.0 when None.
    """
    inputs = {"X": x, "Y": y, "InsideWeight": inside_weight, "OutsideWeight": outside_weight}
    return emit("smooth_l1_loss", inputs, {"sigma": 1.0 if sigma is None else sigma}, outs=("Diff", "Out"))[1]


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Return the elementwise Huber loss of the residual r = label - input.

    It is 0.5 * r² for |r| <= delta, else delta * (|r| - 0.5 * delta).
    """
    return emit("huber_loss", {"X": input, "Y": label}, {"delta": delta}, outs=("Residual", "Out"))[1]


def kldiv_loss(x: Variable, target: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """Return the Kullback-Leibler divergence target * (log(target) - x), 0 for targets <= 0.

    Args:
        x: log probabilities.
        target: probabilities, of the shape of `x`.
        reduction: "none" (element by element), "sum", "mean" (over all elements) or "batchmean" (over rows).
        name: see `jfluid.layers`.

    Raises ProgramError for any other `reduction`.
    """
    if reduction not in ("none", "sum", "mean", "batchmean"):
        raise errors.ProgramError(f"kldiv_loss, reduction: expected none, sum, mean or batchmean, found {reduction!r}")
    return emit("kldiv_loss", {"X": x, "Target": target}, {"reduction": reduction}, outs=("Loss",), name=name)


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """Return -label * log(input + epsilon) - (1 - label) * log(1 - input + epsilon), element by element.

    Args:
        input: probabilities [rows, 1].
        label: 0 or 1, of the shape of `input`.
        epsilon: keeps the logarithms finite.
        name: see `jfluid.layers`.
    """
    return emit("log_loss", {"Predicted": input, "Labels": label}, {"epsilon": epsilon}, outs=("Loss",), name=name)


def rank_loss(label: Variable, left: Variable, right: Variable, name: str | None = None) -> Variable:
    """Return the RankNet loss log(1 + exp(o)) - label * o of pairs, with o = left - right (Burges et al., 2005).

    Args:
        label: [rows, 1]: 1 where left ranks higher, 0 where right does, 0.5 for a tie.
        left: scores [rows, 1].
        right: see `left`.
        name: see `jfluid.layers`.
    """
    return emit("rank_loss", {"Label": label, "Left": left, "Right": right}, name=name)


def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """Return max(0, margin - label * (left - right)) for each pair.

    Args:
        label: [rows, 1]: 1 where left ranks higher, -1 where right does.
        left: scores [rows, 1].
        right: see `left`.
        margin: how far apart the scores should be.
        name: see `jfluid.layers`.
    """
    return emit(
        "margin_rank_loss",
        {"Label": label, "X1": left, "X2": right},
        {"margin": margin},
        outs=("Out", "Activated"),
        name=name,
    )[0]


def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """Return the Bayesian personalized ranking loss (Hidasi et al., 2016): [rows, 1].

    It is the mean over all other items j of -log(sigmoid(input[label] - input[j])).

    Args:
        input: scores [rows, items].
        label: the number of the positive item (int64), [rows, 1].
        name: see `jfluid.layers`.
    """
    return emit("bpr_loss", {"X": input, "Label": label}, outs=("Y",), name=name)


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: str = "float32",
    name: str | None = None,
) -> Variable:
    """Return (1 - epsilon) * label + epsilon * prior (Szegedy et al., 2016).

    No gradient flows to `label`, unless in dygraph mode, as in Fluid.

    Args:
        label: one-hot or soft labels [..., classes].
        prior_dist: the prior, [1, classes]; uniform when None.
        epsilon: from 0 to 1.
        dtype: of `label`; the result has the dtype of `label`, as in Fluid.
        name: see `jfluid.layers`.

    Raises ProgramError if `epsilon` is outside [0, 1].
    """
    check_variable(label, "label_smooth", "label")
    if not 0 <= epsilon <= 1:
        raise errors.ProgramError(f"label_smooth, epsilon: expected a number from 0 to 1, found {epsilon}")
    if not default_main_program().eager:
        label.stop_gradient = True
    return emit("label_smooth", {"X": label, "PriorDist": prior_dist}, {"epsilon": float(epsilon)}, name=name)


def teacher_student_sigmoid_loss(
    input: Variable, label: Variable, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Variable:
    """Return the click loss of logits, plus the loss against the teacher's score, if any: [rows, 1].

    Args:
        input: logits [rows, 1].
        label: [rows, 1]: -2 (no click), -1 (click), z (no click, score z in [0, 1)), 1 + z (click, score z).
        soft_max_up_bound: no gradient flows for a logit at or above it.
        soft_max_lower_bound: no gradient flows for a logit at or below it.
    """
    check_variable(input, "teacher_student_sigmoid_loss", "input")
    helper = LayerHelper("teacher_student_sigmoid_loss")
    out = helper.create_variable(dtype=input.dtype)
    helper.append_op(
        type="teacher_student_sigmoid_loss",
        inputs={"X": input, "Label": label},
        outputs={"Y": out},
        attrs={"soft_max_up_bound": soft_max_up_bound, "soft_max_lower_bound": soft_max_lower_bound},
    )
    return out


def sigmoid_focal_loss(
    x: Variable, label: Variable, fg_num: Variable, gamma: float = 2.0, alpha: float = 0.25
) -> Variable:
    """Return the focal loss of logits, element by element (Lin et al., 2017).

    Args:
        x: logits [rows, classes], without a column for the background.
        label: [rows, 1], int32: 0 is the background, c the class of column c - 1; -1 is ignored.
        fg_num: [1], int32: the number of foreground rows, by which the loss is divided (at least
            1).
        gamma: the exponent that gives easy rows less weight.
        alpha: the weight of the foreground.
    """
    return emit("sigmoid_focal_loss", {"X": x, "Label": label, "FgNum": fg_num}, {"gamma": gamma, "alpha": alpha})


def center_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    alpha: float | Variable,
    param_attr: Any,
    update_center: bool = True,
) -> Variable:
    """Return half the squared distance of each row to its class's centre: [rows, 1] (Wen et al., 2016).

    Args:
        input: features [rows, size].
        label: class numbers (int64) [rows, 1].
        num_classes: the number of centres, a parameter [num_classes, size] that no optimizer updates.
        alpha: update rate of centres towards the mean of their rows: a number or a Variable [1].
        param_attr: name and initializer of the centres.
        update_center: True if steps update the centres.
    """
    check_variable(input, "center_loss", "input")
    helper = LayerHelper("center_loss", input=input, param_attr=param_attr)
    dtype = helper.input_dtype()
    centers = helper.create_parameter(
        attr=helper.param_attr, shape=[num_classes, input.shape[1]], dtype=dtype, stop_gradient=True
    )
    if not isinstance(alpha, Variable):
        rate = helper.create_variable(
            name="centerloss_alpha", shape=[1], dtype="float32", persistable=True, stop_gradient=True
        )
        helper.append_op(
            type="fill_constant",
            outputs={"Out": rate},
            attrs={"shape": [1], "dtype": int(VarType.FP32), "value": float(alpha)},
        )
        alpha = rate
    difference = helper.create_variable_for_type_inference(dtype)
    loss = helper.create_variable_for_type_inference(dtype)
    helper.append_op(
        type="center_loss",
        inputs={"X": input, "Label": label, "Centers": centers, "CenterUpdateRate": alpha},
        outputs={"SampleCenterDiff": difference, "Loss": loss, "CentersOut": centers},
        attrs={"cluster_num": num_classes, "need_update": update_center},
    )
    return loss


def npair_loss(anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002) -> Variable:
    """Return the N-pair loss of embeddings (Sohn, 2016): [1].

    It is the cross entropy of anchor @ positiveᵀ, whose targets are spread evenly over the rows of
    the same label, plus 0.25 * l2_reg times the mean squared lengths of both.

    Args:
        anchor: embeddings [rows, size].
        positive: see `anchor`.
        labels: the classes [rows]; the number of rows must be known.
        l2_reg: the weight of the lengths.

    Raises ShapeError if the number of rows is not known.
    """
    rows = labels.shape[0] if labels.shape else -1
    if rows < 1:
        raise errors.ShapeError(
            f"npair_loss: the number of labels must be known, found shape {list(labels.shape)}; "
            "declare labels with fluid.data(name, [rows])"
        )
    column, _ = emit("reshape2", {"X": labels}, {"shape": [rows, 1]}, outs=("Out", "XShape"))
    square = emit("expand", {"X": column}, {"expand_times": [1, rows]})
    flipped, _ = emit("transpose2", {"X": square}, {"axis": [1, 0]}, outs=("Out", "XShape"), layer="transpose")
    same = emit("equal", {"X": square, "Y": flipped}, stop_gradient=True)
    same = same.astype("float32")
    target = same / reduce_sum(same, dim=1, keep_dim=True)
    penalty = reduce_mean(reduce_sum(emit("square", {"X": anchor}), 1)) + reduce_mean(
        reduce_sum(emit("square", {"X": positive}), 1)
    )
    penalty = penalty * 0.25 * l2_reg
    similarity = emit("matmul", {"X": anchor, "Y": positive}, {"transpose_Y": True})
    entropy = softmax_with_cross_entropy(similarity, target, soft_label=True)
    return penalty + reduce_mean(reduce_sum(target * entropy, 0))


def dice_loss(input: Variable, label: Variable, epsilon: float = 1e-5, name: str | None = None) -> Variable:
    """Return 1 - 2 |input ∩ label| / (|input| + |label| + epsilon), averaged over the batch: [1].

    Args:
        input: probabilities [rows, ..., classes].
        label: class numbers [rows, ..., 1].
        epsilon: keeps the denominator from 0.
        name: the user's name for the result.
    """
    check_variable(input, "dice_loss", "input")
    hot = emit("one_hot", {"X": label}, {"depth": input.shape[-1]}, stop_gradient=True)
    dims = list(range(1, len(input.shape)))
    common = reduce_sum(input * hot, dims)
    total = reduce_sum(input, dims) + reduce_sum(hot, dims)
    return reduce_mean(1 - common * 2 / (total + epsilon), name=name)
