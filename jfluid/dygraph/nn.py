"""Layers that hold their parameters: Fluid's `fluid.dygraph.nn`.

Convolutions are in `conv`, normalisations in `norm`, losses in `losses`.
"""

import numbers
import warnings
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.dygraph.base import in_dygraph_mode
from jfluid.dygraph.conv import Conv2D, Conv2DTranspose, Conv3D, Conv3DTranspose, Pool2D
from jfluid.dygraph.layer_ops import computed
from jfluid.dygraph.layers import Layer
from jfluid.dygraph.losses import BCELoss, L1Loss, MSELoss, NLLLoss
from jfluid.dygraph.norm import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    SpectralNorm,
    in_test_form,
)
from jfluid.initializer import Constant
from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit
from jfluid.layers.recurrent import activation_number
from jfluid.layers.sampling import class_distribution, sampler_number

__all__ = [
    "NCE",
    "BCELoss",
    "BatchNorm",
    "BilinearTensorProduct",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Dropout",
    "Embedding",
    "GRUUnit",
    "GroupNorm",
    "InstanceNorm",
    "L1Loss",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "NLLLoss",
    "PRelu",
    "Pool2D",
    "RowConv",
    "SequenceConv",
    "SpectralNorm",
    "TreeConv",
]


class Linear(Layer):
    """Multiplies the last dimension by a matrix: act(x @ weight + bias).

    It holds `weight` [input_dim, output_dim] and `bias` [output_dim].

    Args:
        input_dim, output_dim: the last dimension of input and output.
        param_attr: ParamAttr of the weight.
        bias_attr: ParamAttr of the bias; False for none.
        act: the name of an activation; None for none.
        dtype: element type of the parameters.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        self._act = act
        self.weight = self.create_parameter([input_dim, output_dim], param_attr, dtype)
        self.bias = self.create_parameter([output_dim], bias_attr, dtype, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """Return [..., output_dim] of an input [..., input_dim]."""
        return computed(
            self,
            "matmul",
            {"X": input, "Y": self.weight},
            {"transpose_X": False, "transpose_Y": False, "alpha": 1.0},
            bias=self.bias,
            axis=len(input.shape) - 1,
            act=self._act,
        )


class Embedding(Layer):
    """Looks up rows of a table, as `fluid.embedding` does.

    It holds `weight` [rows, width].

    Args:
        size: (rows, width) of the table.
        is_sparse: make the gradient hold only the rows that were looked up.
        is_distributed: whether servers hold the table; it needs a program for them.
        padding_idx: the id whose row counts as zeros and is not trained; a negative one counts
            from the end. None for none.
        param_attr: ParamAttr of the table.
        dtype: its element type.

    Raises ValueError for a `size` of other than two numbers, or a `padding_idx` outside the table.
    """

    def __init__(
        self,
        size: Sequence[int],
        is_sparse: bool = False,
        is_distributed: bool = False,
        padding_idx: int | None = None,
        param_attr: Any = None,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        if not isinstance(size, (list, tuple)) or len(size) != 2:
            raise ValueError(f"dygraph.Embedding, size: expected (rows, width), found {size!r}")
        rows = size[0]
        if padding_idx is not None and not -rows <= padding_idx < rows:
            raise ValueError(
                f"dygraph.Embedding, padding_idx: expected None or -{rows} to {rows - 1}, found {padding_idx}"
            )
        skipped = -1 if padding_idx is None else padding_idx % rows
        self._attributes = {
            "is_sparse": is_sparse,
            "is_distributed": is_distributed,
            "remote_prefetch": is_sparse and not is_distributed,
            "padding_idx": skipped,
        }
        self.weight = self.create_parameter(list(size), param_attr, dtype)

    def forward(self, input: Variable) -> Variable:
        """Return the rows of int64 ids, of any shape: [..., width]."""
        return emit(
            "lookup_table_v2",
            {"Ids": input, "W": self.weight},
            self._attributes,
            name=self._full_name,
        )


class Dropout(Layer):
    """Sets elements to 0 at random in training, as `fluid.layers.dropout` does; `eval` turns it off.

    Args:
        p: the probability of each element.
        seed: a fixed seed draws the same mask in every call; None draws a new one.
        dropout_implementation: "downgrade_in_infer" multiplies by 1 - p in evaluation,
            "upscale_in_train" divides by 1 - p in training.
        is_test: in a program, whether this is the test form; in dygraph mode `eval` says that.

    Raises ValueError for an unknown implementation or a wrong probability, TypeError for a wrong seed.
    """

    def __init__(
        self,
        p: float = 0.5,
        seed: int | None = None,
        dropout_implementation: str = "downgrade_in_infer",
        is_test: bool = False,
    ):
        super().__init__()
        probability: Any = p  # or a number of NumPy
        if not isinstance(probability, numbers.Real) or not 0 <= p <= 1:
            raise ValueError(f"dygraph.Dropout, p: expected a number from 0 to 1, found {p!r}")
        if seed is not None and not isinstance(seed, int):
            raise TypeError(f"dygraph.Dropout, seed: expected an integer or None, found {seed!r}")
        if dropout_implementation not in ("downgrade_in_infer", "upscale_in_train"):
            raise ValueError(
                "dygraph.Dropout, dropout_implementation: expected downgrade_in_infer or "
                f"upscale_in_train, found {dropout_implementation!r}"
            )
        self._is_test = is_test
        self._attributes = {
            "dropout_prob": float(p),
            "fix_seed": seed is not None,
            "seed": seed or 0,
            "dropout_implementation": dropout_implementation,
        }

    def forward(self, input: Variable) -> Variable:
        """Return a tensor of the input's shape."""
        return emit(
            "dropout",
            {"X": input},
            self._attributes | {"is_test": in_test_form(self, self._is_test)},
            outs=("Out", "Mask"),
            name=self._full_name,
        )[0]


class PRelu(Layer):
    """ReLU with a learnt slope for negative numbers (He et al. 2015).

    It holds `weight`, the slopes, which begin with 1, as in Fluid (the slopes of `layers.prelu` begin with 0.25).

    Args:
        mode: "all" for one slope, "channel" for a slope of each channel, "element" for a slope of each element of a
            row.
        channel: the number of channels, for mode "channel".
        input_shape: the shape of the input, for mode "element".
        param_attr: ParamAttr of the slopes.
        dtype: element type of the slopes.

    Raises ValueError for an unknown mode, or if the argument of the mode is missing.
    """

    def __init__(
        self,
        mode: str,
        channel: int | None = None,
        input_shape: Sequence[int] | None = None,
        param_attr: Any = None,
        dtype: str = "float32",
    ):
        super().__init__(name_scope="prelu", dtype=dtype)
        if mode not in ("all", "channel", "element"):
            raise ValueError(f"dygraph.PRelu, mode: expected all, channel or element, found {mode!r}")
        shape = [1]
        if mode == "channel":
            if not isinstance(channel, int):
                raise ValueError(f'dygraph.PRelu: mode "channel" needs channel, found {channel!r}')
            shape = [1, channel, 1, 1]
        elif mode == "element":
            if not isinstance(input_shape, (list, tuple)):
                raise ValueError(f'dygraph.PRelu: mode "element" needs input_shape, found {input_shape!r}')
            shape = [1, *input_shape[1:]]
        self._mode = mode
        self.weight = self.create_parameter(shape, param_attr, dtype, default_initializer=Constant(1.0))

    def forward(self, input: Variable) -> Variable:
        """Return a tensor of the input's shape."""
        return emit(
            "prelu",
            {"X": input, "Alpha": self.weight},
            {"mode": self._mode},
            name=self._full_name,
        )


class BilinearTensorProduct(Layer):
    """Multiplies two inputs by a matrix for each output: act(x @ weight[i] @ y + bias).

    It holds `weight` [output_dim, input1_dim, input2_dim] and `bias` [1, output_dim].

    Args:
        input1_dim, input2_dim, output_dim: widths of x, y and output.
        name: no effect: parameters are named after the layer.
        act: the name of an activation; None for none.
        param_attr: ParamAttr of the weight.
        bias_attr: ParamAttr of the bias; False for none.
        dtype: element type of the parameters.
    """

    def __init__(
        self,
        input1_dim: int,
        input2_dim: int,
        output_dim: int,
        name: str | None = None,
        act: str | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        self._act, self._name = act, name
        self.weight = self.create_parameter([output_dim, input1_dim, input2_dim], param_attr, dtype)
        self.bias = self.create_parameter([1, output_dim], bias_attr, dtype, is_bias=True)

    def forward(self, x: Variable, y: Variable) -> Variable:
        """Return [N, output_dim] of x [N, input1_dim] and y [N, input2_dim]."""
        inputs = {"X": x, "Y": y, "Weight": self.weight, "Bias": self.bias}
        return computed(self, "bilinear_tensor_product", inputs, act=self._act)


class GRUUnit(Layer):
    """Runs one step of a GRU, as `fluid.layers.gru_unit` does.

    It holds `weight` [size / 3, size] and `bias` [1, size].

    Args:
        size: three times the width of the state.
        param_attr: ParamAttr of the weight.
        bias_attr: ParamAttr of the bias; False for none.
        activation, gate_activation: of the candidate and of the gates: "sigmoid", "tanh", "relu" or
            "identity".
        origin_mode: has no effect, as in Fluid 1.8.5, whose layer computes as with False always;
            `fluid.layers.gru_unit` has both.
        dtype: element type of the parameters.

    Raises ShapeError where 3 does not divide `size`, ProgramError for an unknown activation.
    """

    def __init__(
        self,
        size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        activation: str = "tanh",
        gate_activation: str = "sigmoid",
        origin_mode: bool = False,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        if size <= 0 or size % 3:
            raise errors.ShapeError(f"dygraph.GRUUnit, size: expected a positive multiple of 3, found {size}")
        if origin_mode:
            warnings.warn(
                "dygraph.GRUUnit: origin_mode has no effect, as in Fluid 1.8.5; layers.gru_unit has both modes",
                stacklevel=2,
            )
        self._attributes = {
            "activation": activation_number("dygraph.GRUUnit", "activation", activation),
            "gate_activation": activation_number("dygraph.GRUUnit", "gate_activation", gate_activation),
        }
        self.weight = self.create_parameter([size // 3, size], param_attr, dtype)
        self.bias = self.create_parameter([1, size], bias_attr, dtype, is_bias=True)

    def forward(self, input: Variable, hidden: Variable) -> tuple[Variable, Variable, Variable]:
        """Compute a step of the GRU from projected inputs [N, size] and the former state.

        Returns (the new state [N, size / 3], the reset state [N, size / 3], gates and candidate [N, size]).
        """
        gate, reset, new = emit(
            "gru_unit",
            {"Input": input, "HiddenPrev": hidden, "Weight": self.weight, "Bias": self.bias},
            self._attributes,
            outs=("Gate", "ResetHiddenPrev", "Hidden"),
            name=self._full_name,
        )
        return new, reset, gate


class NCE(Layer):
    """The loss of noise-contrastive estimation, as `fluid.layers.nce` gives it.

    It holds `weight` [num_total_classes, dim] and, as in Fluid only where `bias_attr` is given,
    `bias` [num_total_classes, 1].

    Args:
        num_total_classes: the number of classes.
        dim: the width of the input.
        sample_weight: factors of the losses [N, 1], where `forward` is given none.
        param_attr, bias_attr: ParamAttr of weight and bias.
        num_neg_samples: how many classes are drawn for each row; 10 when None.
        sampler: distribution of the samples: "uniform", "log_uniform" or "custom_dist".
        custom_dist: the probabilities of all classes, for "custom_dist".
        seed: 0 draws other classes in each call.
        is_sparse: make the gradient of the weight hold only the rows that were used.
        dtype: element type of the parameters.

    Raises ProgramError for an unknown sampler, or a `custom_dist` of a wrong length.
    """

    def __init__(
        self,
        num_total_classes: int,
        dim: int,
        sample_weight: Variable | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        num_neg_samples: int | None = None,
        sampler: str = "uniform",
        custom_dist: Sequence[float] | None = None,
        seed: int = 0,
        is_sparse: bool = False,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        number = sampler_number(sampler)
        self._sample_weight = sample_weight
        self._drawn = int(num_neg_samples or 10)
        self._attributes = {
            "num_total_classes": num_total_classes,
            "num_neg_samples": self._drawn,
            "seed": seed,
            "sampler": number,
            "is_sparse": is_sparse,
            "remote_prefetch": is_sparse,
        }
        self._distribution: dict[str, Variable | None] = {}
        if sampler == "custom_dist":
            self._distribution = class_distribution(self._helper, custom_dist, num_total_classes)
        self.weight = self.create_parameter([num_total_classes, dim], param_attr, dtype)
        self.bias = self.create_parameter([num_total_classes, 1], bias_attr or False, dtype, is_bias=True)

    def forward(self, input: Variable, label: Variable, sample_weight: Variable | None = None) -> Variable:
        """Return the losses [N, 1] of inputs [N, dim] and class numbers [N, labels of a row]."""
        weight = self._sample_weight if sample_weight is None else sample_weight
        cost = emit(
            "nce",
            {
                "Input": input,
                "Label": label,
                "Weight": self.weight,
                "Bias": self.bias,
                "SampleWeight": weight,
                **self._distribution,
            },
            self._attributes,
            outs=("Cost", "SampleLogits", "SampleLabels"),
            name=self._full_name,
        )[0]
        return cost / (self._drawn + 1)


class TreeConv(Layer):
    """Convolves trees (Mou et al. 2016), as `fluid.contrib.layers.tree_conv` does.

    It holds `weight` [feature_size, 3, output_size, num_filters] and, as in Fluid only where
    `bias_attr` is given, `bias` [num_filters].

    Args:
        feature_size, output_size: widths of a node's features and of the output.
        num_filters: the number of filters.
        max_depth: how deep the patch of a node reaches.
        act: the name of an activation; None for none.
        param_attr, bias_attr: ParamAttr of weight and bias.
        name: no effect: parameters are named after the layer.
        dtype: element type of the parameters.
    """

    def __init__(
        self,
        feature_size: int,
        output_size: int,
        num_filters: int = 1,
        max_depth: int = 2,
        act: str | None = "tanh",
        param_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        self._max_depth, self._act, self._name = max_depth, act, name
        self.bias = self.create_parameter([num_filters], bias_attr or False, dtype, is_bias=True)
        self.weight = self.create_parameter([feature_size, 3, output_size, num_filters], param_attr, dtype)

    def forward(self, nodes_vector: Variable, edge_set: Variable) -> Variable:
        """Convolve features [N, nodes, feature_size] along edges [N, edges, 2], int32.

        Returns [N, nodes, output_size, num_filters].
        """
        return computed(
            self,
            "tree_conv",
            {"NodesVector": nodes_vector, "EdgeSet": edge_set, "Filter": self.weight},
            {"max_depth": self._max_depth},
            bias=self.bias,
            axis=3,
            act=self._act,
        )


class _OfSequences(Layer):
    """Base class of layers of rows with a LoD; parameters follow from the first input.

    As in Fluid these layers work in programs only: dygraph mode has no LoD.
    """

    def __init__(self, name_scope: str):
        if in_dygraph_mode():
            raise errors.UnsupportedError(
                f"dygraph.{type(self).__name__} works on sequences with a LoD, which dygraph mode "
                "does not have, in Fluid either: pad the sequences, or build a program"
            )
        super().__init__(name_scope)


class SequenceConv(_OfSequences):
    """Convolves the rows of each sequence, as `fluid.layers.sequence_conv` does.

    Args:
        name_scope: prefix of the parameters' names.
        num_filters, filter_size, filter_stride, bias_attr, param_attr, act: those of
            `fluid.layers.sequence_conv`.
        padding: no effect, as in Fluid: beyond the ends of a sequence there are zeros.

    Raises UnsupportedError in dygraph mode.
    """

    def __init__(
        self,
        name_scope: str,
        num_filters: int,
        filter_size: int = 3,
        filter_stride: int = 1,
        padding: bool | None = None,
        bias_attr: Any = None,
        param_attr: Any = None,
        act: str | None = None,
    ):
        super().__init__(name_scope)
        self._num_filters, self._filter_size = num_filters, filter_size
        self._filter_stride, self._padding, self._act = filter_stride, padding, act
        self._param_attr, self._bias_attr = param_attr, bias_attr

    def _build_once(self, input: Variable) -> None:
        self.weight = self.create_parameter(
            [self._filter_size * input.shape[1], self._num_filters], self._param_attr, input.dtype
        )
        self.bias = self.create_parameter([self._num_filters], self._bias_attr, input.dtype, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """Return rows [rows, num_filters] with the LoD of the input."""
        return computed(
            self,
            "sequence_conv",
            {"X": input, "Filter": self.weight},
            {
                "contextStride": self._filter_stride,
                "contextStart": -(self._filter_size // 2),
                "contextLength": self._filter_size,
            },
            bias=self.bias,
            act=self._act,
        )


class RowConv(_OfSequences):
    """Convolution of each row with the following rows, as `fluid.layers.row_conv`.

    Args:
        name_scope: prefix of the parameters' names.
        future_context_size: number of following rows.
        param_attr: ParamAttr of the weight, [future_context_size + 1, width].
        act: the name of an activation; None for none.

    Raises UnsupportedError in dygraph mode.
    """

    def __init__(
        self,
        name_scope: str,
        future_context_size: int,
        param_attr: Any = None,
        act: str | None = None,
    ):
        super().__init__(name_scope)
        self._future_context_size, self._param_attr, self._act = (
            future_context_size,
            param_attr,
            act,
        )

    def _build_once(self, input: Variable) -> None:
        self.weight = self.create_parameter(
            [self._future_context_size + 1, input.shape[1]], self._param_attr, input.dtype
        )

    def forward(self, input: Variable) -> Variable:
        """Return rows of the shape and with the LoD of the input."""
        return computed(self, "row_conv", {"X": input, "Filter": self.weight}, act=self._act)
