"""Metrics of click models."""

from jfluid import errors
from jfluid.initializer import Constant
from jfluid.ir.variable import Variable
from jfluid.layers.creation import cast
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["ctr_metric_bundle"]


def ctr_metric_bundle(
    input: Variable, label: Variable
) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]:
    """Sum, over all batches, the statistics of a click model's metrics.

    With n the last result: the mean absolute error is abserr / n, the root mean square error
    sqrt(sqrerr / n), the predicted click rate prob / n, and q is q / n. In a job of several trainers
    add up the results of all trainers first.

    Args:
        input: predicted probabilities of clicks, [batch, 1].
        label: 1 for a click, else 0; of the shape of `input`.

    Returns:
        (sqrerr, abserr, prob, q, clicks, instances): variables [1] that keep their values from step
        to step; q is the sum of sigmoid(input).

    Raises ShapeError for different shapes.
    """
    for value, what in ((input, "input"), (label, "label")):
        check_variable(value, "ctr_metric_bundle", what)
    if tuple(input.shape) != tuple(label.shape):
        raise errors.ShapeError(
            "ctr_metric_bundle: expected input and label of one shape, "
            f"found {list(input.shape)} and {list(label.shape)}"
        )
    helper = LayerHelper("ctr_metric_bundle")
    # made in this order, which their names count by
    kinds = ("abserr", "sqrerr", "prob", "q", "clicks", "instances")
    sums = {kind: helper.create_global_variable(persistable=True, dtype="float32", shape=[1]) for kind in kinds}
    label = label if label.dtype == input.dtype else cast(label, input.dtype)
    away = emit("elementwise_sub", {"X": input, "Y": label}, stop_gradient=True)
    ones = emit("fill_any_like", {"X": input}, {"value": 1.0}, stop_gradient=True)
    quality = emit("sigmoid", {"X": input}, stop_gradient=True)
    found = {
        "abserr": ("l1_norm", away),
        "sqrerr": ("squared_l2_norm", away),
        "prob": ("reduce_sum", input),
        "q": ("reduce_sum", quality),
        "clicks": ("reduce_sum", label),
        "instances": ("reduce_sum", ones),
    }
    for kind, (op_type, value) in found.items():
        helper.set_variable_initializer(sums[kind], Constant(0.0, force_cpu=True))
        attrs = {"reduce_all": True} if op_type == "reduce_sum" else None
        batch = emit(op_type, {"X": value}, attrs, stop_gradient=True)
        helper.append_op(
            type="elementwise_add",
            inputs={"X": [batch], "Y": [sums[kind]]},
            outputs={"Out": [sums[kind]]},
        )
    order = ("sqrerr", "abserr", "prob", "q", "clicks", "instances")
    sqrerr, abserr, prob, q, clicks, instances = (sums[kind] for kind in order)
    return sqrerr, abserr, prob, q, clicks, instances
