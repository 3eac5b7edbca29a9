"""Normalisation layers."""

import math
from typing import Any, NamedTuple

from jfluid import errors
from jfluid.initializer import Constant, Normal
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit
from jfluid.param_attr import ParamAttr

__all__ = [
    "affine_channel",
    "batch_norm",
    "group_norm",
    "inplace_abn",
    "instance_norm",
    "layer_norm",
    "lrn",
    "spectral_norm",
]


def _known_channels(layer: str, x: Variable, data_layout: str) -> int:
    check_variable(x, layer, "input")
    if data_layout not in ("NCHW", "NHWC"):
        raise errors.ProgramError(f'layers.{layer}: data_layout {data_layout!r}, expected "NCHW" or "NHWC"')
    channels = x.shape[-1 if data_layout == "NHWC" else 1] if len(x.shape) > 1 else -1
    if channels < 1:
        raise errors.ShapeError(f"layers.{layer}: the channels of the input must be known, found {list(x.shape)}")
    return channels


class _Statistics(NamedTuple):
    """Running statistics of a batch normalisation."""

    momentum: Any
    mean_name: str | None
    variance_name: str | None
    averaged: bool  # by `ModelAverage`


def _normalised(
    op_type: str, input: Variable, in_place: bool, statistics: _Statistics, attrs: dict[str, Any], **parameters: Any
) -> Variable:
    channels = _known_channels(op_type, input, attrs["data_layout"])
    helper = LayerHelper(op_type, **parameters)
    dtype = VarType.FP32 if input.dtype in (VarType.FP16, VarType.BF16) else input.dtype
    scale = helper.create_parameter(helper.param_attr, [channels], dtype, default_initializer=Constant(1.0))
    bias = helper.create_parameter(helper.bias_attr, [channels], dtype, is_bias=True)
    moving = []
    for given, start in ((statistics.mean_name, 0.0), (statistics.variance_name, 1.0)):
        attr = ParamAttr(given, Constant(start), trainable=False, do_model_average=statistics.averaged)
        moving.append(helper.create_parameter(attr, [channels], dtype, stop_gradient=True))
    saved = [helper.create_variable_for_type_inference(dtype, stop_gradient=True) for _ in (0, 1)]
    out = input if in_place else helper.create_variable_for_type_inference(input.dtype)
    inputs = {"X": input, "Scale": scale, "Bias": bias, "Mean": moving[0], "Variance": moving[1]}
    attrs |= {"use_mkldnn": False, "fuse_with_relu": False}
    if isinstance(statistics.momentum, Variable):
        inputs["MomentumTensor"] = statistics.momentum
    else:
        attrs["momentum"] = statistics.momentum
    helper.append_op(
        type=op_type,
        inputs=inputs,
        attrs=attrs,
        outputs={
            "Y": out,
            "MeanOut": moving[0],
            "VarianceOut": moving[1],
            "SavedMean": saved[0],
            "SavedVariance": saved[1],
        },
    )
    return helper.append_activation(out)


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float | Variable = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """Normalise each channel over the batch (Ioffe & Szegedy 2015, arXiv:1502.03167).

    y = scale * (x - mean) / sqrt(variance + epsilon) + bias. After each step running = running *
    momentum + batch * (1 - momentum), for mean and variance.

    Args:
        input: [N, C, ...], or [N, ..., C] with data_layout "NHWC"; C must be known.
        act: the name of an activation; None for none.
        is_test: use the running statistics; `Program.clone(for_test=True)` sets it.
        momentum: a number or a Variable of one element.
        epsilon: keeps the divisor from 0.
        param_attr: ParamAttr of the scale, [C], which begins with 1.
        bias_attr: ParamAttr of the bias, [C], which begins with 0.
        data_layout: "NCHW" or "NHWC", for any number of dimensions.
        in_place: write the output into the variable of the input.
        name: prefix of the names of the parameters.
        moving_mean_name: name of the running mean, a parameter [C] that is not trained.
        moving_variance_name: name of the running variance, a parameter [C] that is not trained.
        do_model_average_for_mean_and_var: True if `ModelAverage` averages them.
        use_global_stats: use the running statistics in training, too.

    Returns:
        A tensor of the shape of `input`.

    Raises ShapeError if the number of channels is unknown.
    """
    statistics = _Statistics(momentum, moving_mean_name, moving_variance_name, do_model_average_for_mean_and_var)
    attrs = {
        "epsilon": epsilon,
        "is_test": is_test,
        "data_layout": data_layout,
        "use_global_stats": use_global_stats,
    }
    parameters = {"param_attr": param_attr, "bias_attr": bias_attr, "act": act, "name": name}
    return _normalised("batch_norm", input, in_place, statistics, attrs, **parameters)


def inplace_abn(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float | Variable = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    act_alpha: float = 1.0,
) -> Variable:
    """Normalise each channel over the batch and apply an activation, in one operator that writes over its input.

    Args:
        input: see `batch_norm`.
        act: None, "identity", "leaky_relu" or "elu".
        is_test: see `batch_norm`.
        momentum: see `batch_norm`.
        epsilon: see `batch_norm`.
        param_attr: see `batch_norm`.
        bias_attr: see `batch_norm`.
        data_layout: see `batch_norm`.
        name: see `jfluid.layers`.
        moving_mean_name: see `batch_norm`.
        moving_variance_name: see `batch_norm`.
        do_model_average_for_mean_and_var: see `batch_norm`.
        use_global_stats: see `batch_norm`.
        act_alpha: the activation's alpha.

    Raises ProgramError for another activation.
    """
    if act not in (None, "identity", "leaky_relu", "elu"):
        raise errors.ProgramError(f"layers.inplace_abn: act {act!r}, expected identity, leaky_relu or elu")
    statistics = _Statistics(momentum, moving_mean_name, moving_variance_name, do_model_average_for_mean_and_var)
    attrs = {
        "epsilon": epsilon,
        "is_test": is_test,
        "data_layout": data_layout,
        "use_global_stats": use_global_stats,
        "activation": act or "",
        "alpha": act_alpha,
    }
    parameters = {"param_attr": param_attr, "bias_attr": bias_attr, "name": name}
    return _normalised("inplace_abn", input, True, statistics, attrs, **parameters)


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Normalise each sample over the dimensions from `begin_norm_axis` on (Ba et al. 2016, arXiv:1607.06450).

    Args:
        input: [d0, d1, ...].
        scale: True to multiply by a trained scale.
        shift: True to add a trained bias.
        begin_norm_axis: the first of the dimensions that are normalised together; they must be known.
        epsilon: keeps the divisor from 0.
        param_attr: ParamAttr of the scale, [product of those dimensions], which begins with 1.
        bias_attr: ParamAttr of the bias, of the same shape, which begins with 0.
        act: the name of an activation; None for none.
        name: see `jfluid.layers`.

    Returns:
        A tensor of the shape of `input`.

    Raises ShapeError if such a dimension is unknown, ProgramError where `param_attr` is False
    and `scale` True, or `bias_attr` is False and `shift` True.
    """
    check_variable(input, "layer_norm", "input")
    for switch, wanted, what, attr in (
        ("scale", scale, "param_attr", param_attr),
        ("shift", shift, "bias_attr", bias_attr),
    ):
        if wanted and attr is False:
            raise errors.ProgramError(
                f"layers.layer_norm: {what} must not be False while {switch} is True; expected {switch}=False"
            )
    helper = LayerHelper("layer_norm", param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    inner = input.shape[begin_norm_axis:]
    if not inner or -1 in inner:
        raise errors.ShapeError(
            f"layers.layer_norm: dimensions {begin_norm_axis}.. must be known, found {list(input.shape)}"
        )
    inputs: dict[str, Any] = {"X": input}
    if scale:
        inputs["Scale"] = helper.create_parameter(
            helper.param_attr, [math.prod(inner)], input.dtype, default_initializer=Constant(1.0)
        )
    if shift:
        inputs["Bias"] = helper.create_parameter(helper.bias_attr, [math.prod(inner)], input.dtype, is_bias=True)
    mean, variance = (helper.create_variable_for_type_inference(input.dtype, stop_gradient=True) for _ in (0, 1))
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        type="layer_norm",
        inputs=inputs,
        outputs={"Y": out, "Mean": mean, "Variance": variance},
        attrs={"epsilon": epsilon, "begin_norm_axis": begin_norm_axis},
    )
    return helper.append_activation(out)


def instance_norm(
    input: Variable, epsilon: float = 1e-5, param_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> Variable:
    """Normalise each channel of each sample by itself (Ulyanov et al. 2016, arXiv:1607.08022).

    Args:
        input: [N, C, ...].
        epsilon: keeps the divisor from 0.
        param_attr: ParamAttr of the scale, [C], initially 1.
        bias_attr: ParamAttr of the bias, [C], initially 0.
        name: see `jfluid.layers`.

    Raises ProgramError if `param_attr` or `bias_attr` is False: the operator needs both
    parameters.
    """
    if param_attr is False or bias_attr is False:
        raise errors.ProgramError("layers.instance_norm: param_attr and bias_attr must not be False")
    channels = _known_channels("instance_norm", input, "NCHW")
    helper = LayerHelper("instance_norm", param_attr=param_attr, bias_attr=bias_attr, name=name)
    scale = helper.create_parameter(helper.param_attr, [channels], input.dtype, default_initializer=Constant(1.0))
    bias = helper.create_parameter(helper.bias_attr, [channels], input.dtype, is_bias=True)
    saved = [helper.create_variable_for_type_inference(input.dtype, stop_gradient=True) for _ in (0, 1)]
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        type="instance_norm",
        inputs={"X": input, "Scale": scale, "Bias": bias},
        outputs={"Y": out, "SavedMean": saved[0], "SavedVariance": saved[1]},
        attrs={"epsilon": epsilon},
    )
    return out


def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Normalise each group of channels of each sample by itself (Wu & He 2018, arXiv:1803.08494).

    Args:
        input: [N, C, ...], or [N, ..., C] with data_layout "NHWC".
        groups: the number of groups, which must divide the channels.
        epsilon: keeps the divisor from 0.
        param_attr: ParamAttr of the scale, [C]. None for no scale, as in Fluid 1.8.
        bias_attr: ParamAttr of the bias, [C]. None for no bias, as in Fluid 1.8.
        act: the name of an activation; None for none.
        data_layout: "NCHW" or "NHWC".
        name: see `jfluid.layers`.
    """
    channels = _known_channels("group_norm", input, data_layout)
    if groups < 1 or channels % groups:
        raise errors.ShapeError(f"layers.group_norm: groups {groups} does not divide the {channels} channels")
    helper = LayerHelper("group_norm", param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    inputs: dict[str, Any] = {"X": input}
    if param_attr:
        inputs["Scale"] = helper.create_parameter(
            helper.param_attr, [channels], input.dtype, default_initializer=Constant(1.0)
        )
    if bias_attr:
        inputs["Bias"] = helper.create_parameter(helper.bias_attr, [channels], input.dtype, is_bias=True)
    mean, variance = (helper.create_variable(dtype=input.dtype, stop_gradient=True) for _ in (0, 1))
    out = helper.create_variable(dtype=input.dtype)
    helper.append_op(
        type="group_norm",
        inputs=inputs,
        outputs={"Y": out, "Mean": mean, "Variance": variance},
        attrs={"epsilon": epsilon, "groups": groups, "data_layout": data_layout},
    )
    return helper.append_activation(out)


def lrn(
    input: Variable,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Apply local response normalisation (Krizhevsky et al. 2012).

    The result is x / (k + alpha * sum over n neighbouring channels of x²) ** beta.

    Args:
        input: [N, C, H, W], or [N, H, W, C] with data_format "NHWC".
        n: number of channels in the sum.
        k: see the formula.
        alpha: see the formula.
        beta: see the formula.
        name: see `jfluid.layers`.
        data_format: "NCHW" or "NHWC".
    """
    check_variable(input, "lrn", "input")
    if len(input.shape) != 4:
        raise errors.ShapeError(f"layers.lrn: input has 4 dimensions, found {list(input.shape)}")
    if data_format not in ("NCHW", "NHWC"):
        raise errors.ProgramError(f'layers.lrn: data_format {data_format!r}, expected "NCHW" or "NHWC"')
    return emit(
        "lrn",
        {"X": input},
        {"n": n, "k": k, "alpha": alpha, "beta": beta, "data_format": data_format},
        outs=("MidOut", "Out"),
        name=name,
    )[1]


def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: str | None = None,
) -> Variable:
    """Return x * scale + bias for each channel.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with data_layout "NHWC".
        scale: Variable [C].
        bias: Variable [C].
        data_layout: "NCHW" or "NHWC".
        name: see `jfluid.layers`.
        act: the name of an activation; None for none.
    """
    if scale is None or bias is None:
        raise errors.ProgramError("layers.affine_channel: scale and bias are needed, each of shape [channels]")
    return emit(
        "affine_channel", {"X": x, "Scale": scale, "Bias": bias}, {"data_layout": data_layout}, name=name, act=act
    )


def spectral_norm(
    weight: Variable, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Variable:
    """Divide `weight` by its largest singular value (Miyato et al. 2018, arXiv:1802.05957).

    Args:
        weight: a parameter of two or more dimensions, which is taken as a matrix.
        dim: the dimension that makes its rows.
        power_iters: steps of the power iteration in each run.
        eps: keeps divisors from 0.
        name: see `jfluid.layers`.
    """
    check_variable(weight, "spectral_norm", "weight")
    helper = LayerHelper("spectral_norm", name=name)
    rows = weight.shape[dim]
    vectors = [
        helper.create_parameter(ParamAttr(initializer=Normal(0.0, 1.0)), [n], weight.dtype, stop_gradient=True)
        for n in (rows, math.prod(weight.shape) // rows)
    ]
    out = helper.create_variable(dtype=weight.dtype)
    helper.append_op(
        type="spectral_norm",
        inputs={"Weight": weight, "U": vectors[0], "V": vectors[1]},
        outputs={"Out": out},
        attrs={"dim": dim, "power_iters": power_iters, "eps": eps},
    )
    return out
