"""Convolution and pooling as layers that hold their parameters."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from jfluid import errors
from jfluid.dygraph.layer_ops import computed
from jfluid.dygraph.layers import Layer
from jfluid.initializer import Normal
from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit
from jfluid.layers.windows import each

__all__ = ["Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "Pool2D"]

Size = int | Sequence[int]


class _Convolution(Layer):
    """Base class of the four convolutions.

    `_rank` is the number of image dimensions.
    """

    _rank: ClassVar[int]
    _transposed: ClassVar[bool] = False

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        dtype: str = "float32",
    ):
        super().__init__(dtype=dtype)
        if not isinstance(use_cudnn, bool):
            raise ValueError(f"{self._name()}, use_cudnn: expected True or False: {use_cudnn!r}")
        self._groups = groups or 1
        if num_channels % self._groups or num_filters % self._groups:
            raise errors.ShapeError(
                f"{self._name()}: groups {self._groups} must divide the {num_channels} channels "
                f"of the input (num_channels) and the {num_filters} filters"
            )
        self._num_channels, self._num_filters = num_channels, num_filters
        self._filter_size = self._each(filter_size, "filter_size")
        self._stride = self._each(stride, "stride")
        self._padding = self._each(padding, "padding")
        self._dilation = self._each(dilation, "dilation")
        self._use_cudnn, self._act = use_cudnn, act
        ends = (num_filters, num_channels)
        rows, columns = ends[::-1] if self._transposed else ends
        initializer = None
        if not self._transposed:
            spread = math.prod(self._filter_size) * num_channels
            initializer = Normal(0.0, (2.0 / spread) ** 0.5)
        self.weight = self.create_parameter(
            [rows, columns // self._groups, *self._filter_size],
            param_attr,
            dtype,
            default_initializer=initializer,
        )
        self.bias = self.create_parameter([num_filters], bias_attr, dtype, is_bias=True)
        self._adds_bias = self._transposed is False or self._rank == 2 or bool(bias_attr)

    @classmethod
    def _name(cls) -> str:
        return f"dygraph.{cls.__name__}"

    def _each(self, value: Size, what: str) -> list[int]:
        return each(value, self._rank, self._name(), what)

    def _op_type(self) -> str:
        op_type = f"conv{self._rank}d" + ("_transpose" if self._transposed else "")
        depthwise = self._rank == 2 and self._num_channels == self._groups > 1
        if self._transposed:
            depthwise = depthwise and self._num_filters == self._num_channels
        return f"depthwise_{op_type}" if depthwise and not self._use_cudnn else op_type

    def _attributes(self) -> dict[str, Any]:
        return {
            "strides": self._stride,
            "paddings": self._padding,
            "dilations": self._dilation,
            "groups": self._groups,
            "use_cudnn": self._use_cudnn,
        }

    def forward(self, input: Variable) -> Variable:
        """Convolve a batch of images, channels first."""
        if isinstance(input, Variable) and len(input.shape) != self._rank + 2:
            raise errors.ShapeError(
                f"{self._name()}: input has {self._rank + 2} dimensions, channels second; found {list(input.shape)}"
            )
        return computed(
            self,
            self._op_type(),
            {"Input": input, "Filter": self.weight},
            self._attributes(),
            out="Output",
            bias=self.bias if self._adds_bias else None,
            act=self._act,
        )


class Conv2D(_Convolution):
    """Convolves images [N, num_channels, H, W], as `fluid.layers.conv2d` does.

    It holds `weight` [num_filters, num_channels / groups, height, width] and `bias` [num_filters].

    Args:
        num_channels: the number of channels of the input.
        num_filters: the number of channels of the output.
        filter_size, stride, padding, dilation: one number, or one for height and one for width.
        groups: into how many groups channels are divided, each of which is convolved by itself; 1
            when None.
        param_attr: ParamAttr of the filters.
        bias_attr: ParamAttr of the bias; False for none.
        use_cudnn: XLA chooses the kernel. False with `groups` = num_channels names the operator
            depthwise_conv2d.
        act: the name of an activation; None for none.
        dtype: element type of the parameters.

    Raises ShapeError where `groups` does not divide channels and filters, ProgramError for other
    sizes.
    """

    _rank = 2


class Conv3D(_Convolution):
    """Convolves volumes [N, num_channels, D, H, W], as `fluid.layers.conv3d` does.

    The arguments are those of `Conv2D`, with sizes of depth, height and width.
    """

    _rank = 3


class Conv2DTranspose(_Convolution):
    """Transposed convolution of [N, num_channels, H, W], as `fluid.layers.conv2d_transpose`.

    It holds `weight` [num_channels, num_filters / groups, height, width] and `bias` [num_filters].

    Args:
        output_size: height and width of the output if strides leave a choice; None for the smallest size.

    The remaining arguments are those of `Conv2D`.
    """

    _rank, _transposed = 2, True

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: Size,
        output_size: Size | None = None,
        padding: Size = 0,
        stride: Size = 1,
        dilation: Size = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        dtype: str = "float32",
    ):
        super().__init__(
            num_channels,
            num_filters,
            filter_size,
            stride,
            padding,
            dilation,
            groups,
            param_attr,
            bias_attr,
            use_cudnn,
            act,
            dtype,
        )
        self._output_size = [] if output_size is None else self._each(output_size, "output_size")

    def _attributes(self) -> dict[str, Any]:
        return super()._attributes() | {"output_size": self._output_size}


class Conv3DTranspose(_Convolution):
    """Transposed convolution of [N, num_channels, D, H, W], as `fluid.layers.conv3d_transpose`.

    As in Fluid the bias is added only with an explicit `bias_attr`. The arguments are those of `Conv2DTranspose`,
    with sizes of depth, height and width.
    """

    _rank, _transposed = 3, True

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: Size,
        padding: Size = 0,
        stride: Size = 1,
        dilation: Size = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        dtype: str = "float32",
    ):
        super().__init__(
            num_channels,
            num_filters,
            filter_size,
            stride,
            padding,
            dilation,
            groups,
            param_attr,
            bias_attr,
            use_cudnn,
            act,
            dtype,
        )


class Pool2D(Layer):
    """Takes the maximum or the mean over windows of images [N, C, H, W], as `fluid.layers.pool2d` does.

    Args:
        pool_size, pool_stride, pool_padding: one number, or one for height and one for width.
        pool_type: "max" or "avg".
        global_pooling: use one window over the whole plane, whatever `pool_size` is.
        use_cudnn: no effect: XLA chooses the kernel.
        ceil_mode: round the size of the output up.
        exclusive: leave padding out of means.

    Raises ValueError for an unknown type, or if neither `pool_size` nor `global_pooling` is given.
    """

    def __init__(
        self,
        pool_size: Size = -1,
        pool_type: str = "max",
        pool_stride: Size = 1,
        pool_padding: Size = 0,
        global_pooling: bool = False,
        use_cudnn: bool = True,
        ceil_mode: bool = False,
        exclusive: bool = True,
    ):
        super().__init__()
        if pool_type not in ("max", "avg"):
            raise ValueError(f'dygraph.Pool2D: pool_type {pool_type!r}, expected "max" or "avg"')
        if not isinstance(use_cudnn, bool):
            raise ValueError(f"dygraph.Pool2D, use_cudnn: expected True or False: {use_cudnn!r}")
        sizes = each(pool_size, 2, "Pool2D", "pool_size")
        if not global_pooling and min(sizes) < 1:
            raise ValueError(f"dygraph.Pool2D: pool_size {pool_size!r} must be positive unless global_pooling is True")
        self._attributes = {
            "pooling_type": pool_type,
            "ksize": sizes,
            "global_pooling": global_pooling,
            "strides": each(pool_stride, 2, "Pool2D", "pool_stride"),
            "paddings": each(pool_padding, 2, "Pool2D", "pool_padding"),
            "use_cudnn": use_cudnn,
            "ceil_mode": ceil_mode,
            "exclusive": exclusive,
        }

    def forward(self, input: Variable) -> Variable:
        """Pool a batch of images."""
        return emit("pool2d", {"X": input}, self._attributes, name=self._full_name)
