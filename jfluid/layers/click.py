"""Layers of click models."""

from typing import Any

from jfluid import errors
from jfluid.initializer import Constant
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable
from jfluid.param_attr import ParamAttr

__all__ = ["continuous_value_model", "data_norm"]


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Transform features with show and click counts in the first two columns.

    Args:
        input: [rows, width], or rows with a LoD that has a sequence for each row of `cvm`.
        cvm: the counts of each example, [batch, 2]. The gradient of the first two columns is `cvm`.
        use_cvm: replace the counts by log(show + 1) and log(click + 1) - log(show + 1); False drops them.

    Returns:
        [rows, width], or [rows, width - 2] without the counts.
    """
    check_variable(input, "continuous_value_model", "input")
    helper = LayerHelper("cvm", input=input)
    out = helper.create_variable(dtype=input.dtype)
    helper.append_op(type="cvm", inputs={"X": [input], "CVM": [cvm]}, outputs={"Y": [out]}, attrs={"use_cvm": use_cvm})
    return out


def data_norm(
    input: Variable,
    act: str | None = None,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Variable:
    """Normalise features by running summaries of all data, not of the batch: (x - sum / size) * sqrt(size / squares).

    Args:
        input: [batch, width].
        act: the name of an activation; None for none.
        epsilon: is added to the squares of each example.
        param_attr: a dict with the initial "batch_size", "batch_sum" and "batch_square" (and "scale_w", "bias").
        data_layout: no effect.
        in_place: write the result into the variable of the input.
        name: parameters are named `name`.batch_size and so on. The default is "dn", so two layers without names
            share their parameters.
        moving_mean_name: no effect.
        moving_variance_name: no effect.
        do_model_average_for_mean_and_var: no effect.
        slot_dim: the number of columns of a slot, the first of which is a count: a slot with count zero stays
            zero. -1 stands for no slots.
        sync_stats: no effect on any device, as in Fluid on the CPU: the summaries are parameters with the batch's
            counts and sums as gradients, and the optimizer alone changes them. Fluid's GPU build also updates
            them in the gradient operator, on all GPUs together with `sync_stats`.
        summary_decay_rate: no effect; the decay of the summaries in Fluid's GPU build.
        enable_scale_and_shift: multiply the result by a trained vector, and add one.

    Returns:
        [batch, width].

    Raises ProgramError for an epsilon that is not between 0 and 0.001.
    """
    check_variable(input, "data_norm", "input")
    if not 0 <= epsilon <= 0.001:
        raise errors.ProgramError(f"data_norm, epsilon: expected a number between 0 and 0.001, found {epsilon}")
    helper = LayerHelper("data_norm", input=input, act=act, name=name)
    dtype, width = helper.input_dtype(), input.shape[1]
    given = param_attr if isinstance(param_attr, dict) else {}
    first = {"scale_w": given.get("scale_w", 1.0), "bias": given.get("bias", 0.0)} if enable_scale_and_shift else {}
    first |= {
        "batch_size": given.get("batch_size", 1e4),
        "batch_sum": given.get("batch_sum", 0.0),
        "batch_square_sum": given.get("batch_square", 1e4),
    }
    made = {
        kind: helper.create_parameter(
            attr=ParamAttr(name=f"{name or 'dn'}.{kind}", initializer=Constant(float(value))),
            shape=[width],
            dtype=dtype,
        )
        for kind, value in first.items()
    }
    means, scales = (helper.create_variable(dtype=dtype, stop_gradient=True) for _ in range(2))
    out = input if in_place else helper.create_variable(dtype=dtype)
    inputs = {
        "X": input,
        "BatchSize": made["batch_size"],
        "BatchSum": made["batch_sum"],
        "BatchSquareSum": made["batch_square_sum"],
    }
    if enable_scale_and_shift:
        inputs |= {"scale_w": made["scale_w"], "bias": made["bias"]}
    helper.append_op(
        type="data_norm",
        inputs=inputs,
        outputs={"Y": out, "Means": means, "Scales": scales},
        attrs={
            "epsilon": epsilon,
            "slot_dim": slot_dim,
            "sync_stats": sync_stats,
            "summary_decay_rate": summary_decay_rate,
            "enable_scale_and_shift": enable_scale_and_shift,
        },
    )
    return helper.append_activation(out)
