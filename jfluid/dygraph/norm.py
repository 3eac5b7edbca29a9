"""Normalisation as layers that hold their parameters."""

import math
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.dygraph.base import in_dygraph_mode
from jfluid.dygraph.layer_ops import with_activation
from jfluid.dygraph.layers import Layer
from jfluid.initializer import Constant, Normal
from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit
from jfluid.param_attr import ParamAttr

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "SpectralNorm"]


class BatchNorm(Layer):
    """Normalises each channel over the batch, as `fluid.layers.batch_norm` does.

    It holds `weight` and `bias`, and the running statistics `_mean` and `_variance`, which are not
    trained; all are [num_channels]. `eval` has it use the running statistics.

    Args:
        num_channels: the number of channels of the input.
        act: the name of an activation; None for none.
        is_test: in a program, use the running statistics; in dygraph mode `eval` says that.
        momentum: how much of the running statistics is kept in each step.
        epsilon: keeps the divisor from 0.
        param_attr, bias_attr: ParamAttr of weight and bias.
        dtype: element type of input; the parameters of float16 are float32.
        data_layout: "NCHW" or "NHWC", for any number of dimensions.
        in_place: no effect: XLA chooses what is overwritten.
        moving_mean_name, moving_variance_name: names of the running statistics.
        do_model_average_for_mean_and_var: True if `ModelAverage` averages the statistics.
        use_global_stats: use the running statistics in training, too.
        trainable_statistics: use the batch's statistics in evaluation, too.
    """

    def __init__(
        self,
        num_channels: int,
        act: str | None = None,
        is_test: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: str = "float32",
        data_layout: str = "NCHW",
        in_place: bool = False,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False,
        trainable_statistics: bool = False,
    ):
        super().__init__(dtype=dtype)
        if bias_attr is False or param_attr is False:
            raise ValueError("dygraph.BatchNorm: param_attr and bias_attr cannot be False")
        dtype = "float32" if dtype == "float16" else dtype
        self.weight = self.create_parameter([num_channels], param_attr, dtype, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_channels], bias_attr, dtype, is_bias=True)
        if use_global_stats and getattr(param_attr, "learning_rate", None) == 0:
            for frozen in (self.weight, self.bias):
                if frozen is not None:
                    frozen.stop_gradient = True
        self._mean, self._variance = (
            _untrained(
                self,
                [num_channels],
                dtype,
                ParamAttr(
                    name=name,
                    initializer=Constant(start),
                    trainable=False,
                    do_model_average=do_model_average_for_mean_and_var,
                ),
            )
            for name, start in ((moving_mean_name, 0.0), (moving_variance_name, 1.0))
        )
        self._is_test, self._act, self._in_place = is_test, act, in_place
        self._attributes = {
            "momentum": momentum,
            "epsilon": epsilon,
            "data_layout": data_layout,
            "use_mkldnn": False,
            "fuse_with_relu": False,
            "use_global_stats": use_global_stats,
            "trainable_statistics": trainable_statistics,
        }

    def forward(self, input: Variable) -> Variable:
        """Normalise a batch, and in training move the running statistics."""
        inputs = {
            "X": input,
            "Scale": self.weight,
            "Bias": self.bias,
            "Mean": self._mean,
            "Variance": self._variance,
        }
        outputs: dict[str, Variable | None] = {
            slot: self._helper.create_variable_for_type_inference(None, stop_gradient=saved)
            for slot, saved in (("SavedMean", True), ("SavedVariance", True), ("Y", False))
        }
        self._helper.append_op(
            type="batch_norm",
            inputs=inputs,
            outputs=outputs | {"MeanOut": self._mean, "VarianceOut": self._variance},
            attrs=self._attributes | {"is_test": in_test_form(self, self._is_test)},
        )
        out = outputs["Y"]
        assert out is not None
        return with_activation(self, out, self._act)


class InstanceNorm(Layer):
    """Normalises each channel of each image, as `fluid.layers.instance_norm` does.

    It holds `scale` and `bias`, both [num_channels].

    Args:
        num_channels: the number of channels of the input [N, C, ...].
        epsilon: keeps the divisor from 0.
        param_attr: ParamAttr of the scale; False for none.
        bias_attr: ParamAttr of the bias.
        dtype: element type of the parameters.

    Raises ValueError where `bias_attr` is False.
    """

    def __init__(
        self,
        num_channels: int,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        if bias_attr is False:
            raise ValueError("dygraph.InstanceNorm: bias_attr cannot be False")
        self._epsilon = epsilon
        self.scale = self.create_parameter([num_channels], param_attr, dtype, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_channels], bias_attr, dtype, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """Normalise a batch of images."""
        return emit(
            "instance_norm",
            {"X": input, "Scale": self.scale, "Bias": self.bias},
            {"epsilon": self._epsilon},
            outs=("SavedMean", "SavedVariance", "Y"),
            name=self._full_name,
        )[2]


class LayerNorm(Layer):
    """Normalises the last dimensions of each row, as `fluid.layers.layer_norm` does.

    It holds `weight` and `bias`, both as long as the normalised dimensions have elements; None
    where `scale` or `shift` is False.

    Args:
        normalized_shape: the last dimensions of the input, or its last one.
        scale, shift: whether there are a weight and a bias.
        epsilon: keeps the divisor from 0.
        param_attr, bias_attr: ParamAttr of weight and bias.
        act: the name of an activation; None for none.
        dtype: element type of the parameters.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        scale: bool = True,
        shift: bool = True,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        shape = [normalized_shape] if isinstance(normalized_shape, int) else [*normalized_shape]
        self._normalized_shape, self._epsilon, self._act = shape, epsilon, act
        length = [math.prod(shape)]
        self.weight = self.create_parameter(
            length, param_attr if scale else False, dtype, default_initializer=Constant(1.0)
        )
        self.bias = self.create_parameter(length, bias_attr if shift else False, dtype, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """Normalise each row of the input.

        Raises ShapeError if the last dimensions differ from the layer's.
        """
        shape = self._normalized_shape
        if isinstance(input, Variable) and list(input.shape[-len(shape) :]) != shape:
            raise errors.ShapeError(
                f"dygraph.LayerNorm: expected an input [..., {', '.join(map(str, shape))}], found {list(input.shape)}"
            )
        out = emit(
            "layer_norm",
            {"X": input, "Scale": self.weight, "Bias": self.bias},
            {"epsilon": self._epsilon, "begin_norm_axis": len(input.shape) - len(shape)},
            outs=("Mean", "Variance", "Y"),
            name=self._full_name,
        )[2]
        return with_activation(self, out, self._act)


class GroupNorm(Layer):
    """Normalises groups of channels of each image, as `fluid.layers.group_norm` does.

    It holds `weight` and `bias`, both [channels]. As in Fluid, each is there only where its
    ParamAttr is given.

    Args:
        channels: the number of channels of the input [N, C, H, W].
        groups: number of groups of channels.
        epsilon: keeps the divisor from 0.
        param_attr, bias_attr: ParamAttr of weight and bias; None or False for none.
        act: the name of an activation; None for none.
        data_layout: "NCHW".
        dtype: element type of the parameters.

    Raises ValueError for an unknown layout.
    """

    def __init__(
        self,
        channels: int,
        groups: int,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        data_layout: str = "NCHW",
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        if data_layout != "NCHW":
            raise ValueError(f'dygraph.GroupNorm: data_layout {data_layout!r}, expected "NCHW"')
        self._groups, self._epsilon, self._act = groups, epsilon, act
        self.weight = self.create_parameter([channels], param_attr or False, dtype, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([channels], bias_attr or False, dtype, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """Normalise a batch of images."""
        out = emit(
            "group_norm",
            {"X": input, "Scale": self.weight, "Bias": self.bias},
            {"epsilon": self._epsilon, "groups": self._groups},
            outs=("Mean", "Variance", "Y"),
            name=self._full_name,
        )[2]
        return with_activation(self, out, self._act)


class SpectralNorm(Layer):
    """Divides a weight by its largest singular value, as `fluid.layers.spectral_norm` does.

    It holds `weight_u` and `weight_v`, the vectors of the power iteration, which are not trained.

    Args:
        weight_shape: the shape of the weight.
        dim: its dimension that becomes the rows of a matrix.
        power_iters: how many iterations a call does.
        eps: keeps the divisor from 0.
        dtype: element type of the weight.
    """

    def __init__(
        self,
        weight_shape: Sequence[int],
        dim: int = 0,
        power_iters: int = 1,
        eps: float = 1e-12,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        rows = weight_shape[dim]
        columns = math.prod(weight_shape) // rows
        self._attributes = {"dim": dim, "power_iters": power_iters, "eps": eps}
        self.weight_u, self.weight_v = (
            _untrained(self, [length], dtype, ParamAttr(initializer=Normal(0.0, 1.0))) for length in (rows, columns)
        )

    def forward(self, weight: Variable) -> Variable:
        """Return the weight, divided."""
        return emit(
            "spectral_norm",
            {"Weight": weight, "U": self.weight_u, "V": self.weight_v},
            self._attributes,
            name=self._full_name,
        )


def in_test_form(layer: Layer, is_test: bool) -> bool:
    """Return True if a layer computes in its form for evaluation.

    In dygraph mode the layer's mode decides. In a program its argument `is_test` decides, too.
    """
    if in_dygraph_mode():
        return not layer.training
    return is_test or not layer.training


def _untrained(layer: Layer, shape: list[int], dtype: Any, attr: ParamAttr) -> Variable | None:
    made = layer.create_parameter(shape, attr, dtype)
    if made is not None:
        made.stop_gradient = True
    return made
