"""Small networks made of layers."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors, layers
from jfluid.ir.variable import Variable
from jfluid.layers import argument_types

__all__ = ["glu", "img_conv_group", "scaled_dot_product_attention", "sequence_conv_pool", "simple_img_conv_pool"]


def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: Any,
    pool_size: Any,
    pool_stride: Any,
    pool_padding: Any = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Any = 1,
    conv_padding: Any = 0,
    conv_dilation: Any = 1,
    conv_groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Variable:
    """Apply `layers.conv2d`, then `layers.pool2d`. The arguments are theirs."""
    out = layers.conv2d(
        input=input,
        num_filters=num_filters,
        filter_size=filter_size,
        stride=conv_stride,
        padding=conv_padding,
        dilation=conv_dilation,
        groups=conv_groups,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
        use_cudnn=use_cudnn,
    )
    return layers.pool2d(
        input=out,
        pool_size=pool_size,
        pool_type=pool_type,
        pool_stride=pool_stride,
        pool_padding=pool_padding,
        global_pooling=global_pooling,
        use_cudnn=use_cudnn,
    )


def img_conv_group(
    input: Variable,
    conv_num_filter: Sequence[int],
    pool_size: Any,
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: str | None = None,
    param_attr: Any = None,
    conv_with_batchnorm: Any = False,
    conv_batchnorm_drop_rate: Any = 0.0,
    pool_stride: Any = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Variable:
    """Apply several convolutions, each with optional batch_norm and dropout, then one pooling (a VGG block).

    Args:
        input: see `layers.conv2d`.
        conv_num_filter: the number of filters of each convolution; its length is the number of convolutions.
        pool_size: see `layers.pool2d`.
        conv_padding: one value for all convolutions, or a list with one for each.
        conv_filter_size: see `conv_padding`.
        conv_act: see `act` of `layers.conv2d`.
        param_attr: see `conv_padding`.
        conv_with_batchnorm: see `conv_padding`.
        conv_batchnorm_drop_rate: see `conv_padding`.
        pool_stride: see `layers.pool2d`.
        pool_type: see `layers.pool2d`.
        use_cudnn: see `layers.conv2d`.

    Raises ProgramError for a list of a different length than `conv_num_filter`.
    """
    if not isinstance(conv_num_filter, (list, tuple)):
        raise TypeError(f"img_conv_group: conv_num_filter is a list, found {type(conv_num_filter).__name__}")
    count = len(conv_num_filter)

    def spread(value: Any, what: str) -> list[Any]:
        values = list(value) if isinstance(value, (list, tuple)) else [value] * count
        if len(values) != count:
            raise errors.ProgramError(f"img_conv_group: {what} has {len(values)} values for {count} convolutions")
        return values

    paddings, sizes = (spread(conv_padding, "conv_padding"), spread(conv_filter_size, "conv_filter_size"))
    attrs, norms = (spread(param_attr, "param_attr"), spread(conv_with_batchnorm, "conv_with_batchnorm"))
    rates = spread(conv_batchnorm_drop_rate, "conv_batchnorm_drop_rate")
    out = input
    for i in range(count):
        out = layers.conv2d(
            input=out,
            num_filters=conv_num_filter[i],
            filter_size=sizes[i],
            padding=paddings[i],
            param_attr=attrs[i],
            act=None if norms[i] else conv_act,
            use_cudnn=use_cudnn,
        )
        if norms[i]:
            out = layers.batch_norm(input=out, act=conv_act)
            if abs(rates[i]) > 1e-5:
                out = layers.dropout(x=out, dropout_prob=rates[i])
    return layers.pool2d(
        input=out, pool_size=pool_size, pool_type=pool_type, pool_stride=pool_stride, use_cudnn=use_cudnn
    )


def sequence_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int,
    param_attr: Any = None,
    act: str = "sigmoid",
    pool_type: str = "max",
    bias_attr: Any = None,
) -> Variable:
    """Apply `layers.sequence_conv`, then `layers.sequence_pool`.

    The arguments are theirs; `input` has a LoD.
    """
    out = layers.sequence_conv(
        input=input,
        num_filters=num_filters,
        filter_size=filter_size,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
    )
    return layers.sequence_pool(input=out, pool_type=pool_type)


def glu(input: Variable, dim: int = -1) -> Variable:
    """Apply a gated linear unit (arXiv:1612.08083): a * sigmoid(b) for the halves a, b of `input` along `dim`."""
    a, b = layers.split(input, num_or_sections=2, dim=dim)
    return layers.elementwise_mul(x=a, y=layers.sigmoid(x=b))


def scaled_dot_product_attention(
    queries: Variable, keys: Variable, values: Variable, num_heads: int = 1, dropout_rate: float = 0.0
) -> Variable:
    """Return softmax(q kᵀ / sqrt(d)) v for each head (Vaswani et al. 2017, arXiv:1706.03762): [N, T, e].

    Args:
        queries: [N, T, d].
        keys: [N, S, d].
        values: [N, S, e].
        num_heads: must divide d and e. With more than one, the three are projected by fc layers and
            divided.
        dropout_rate: the probability of dropout of the attention weights.

    Raises ShapeError when the shapes do not match.
    """
    for name, x in (("queries", queries), ("keys", keys), ("values", values)):
        if len(x.shape) != 3:
            raise errors.ShapeError(f"scaled_dot_product_attention: {name} has 3 dimensions, found {list(x.shape)}")
    if not queries.dtype == keys.dtype == values.dtype:
        raise errors.DtypeError(
            f"scaled_dot_product_attention: queries of {queries.dtype.name}, keys of {keys.dtype.name} and values of "
            f"{values.dtype.name} need one dtype; cast the tensors with layers.cast"
        )
    if queries.shape[-1] != keys.shape[-1] or keys.shape[-2] != values.shape[-2]:
        raise errors.ShapeError(
            f"scaled_dot_product_attention: queries {list(queries.shape)}, keys {list(keys.shape)} and "
            f"values {list(values.shape)} do not match"
        )
    if keys.shape[-1] % num_heads or values.shape[-1] % num_heads:
        raise errors.ShapeError(
            f"scaled_dot_product_attention: num_heads {num_heads} must divide the width of keys "
            f"{keys.shape[-1]} and of values {values.shape[-1]}"
        )
    parts = [queries, keys, values]
    if num_heads > 1:
        parts = [layers.fc(input=x, size=x.shape[-1], num_flatten_dims=2) for x in parts]
        parts = [
            layers.transpose(layers.reshape(x, [0, 0, num_heads, x.shape[-1] // num_heads]), [0, 2, 1, 3])
            for x in parts
        ]
    q, k, v = parts
    q = layers.scale(x=q, scale=(keys.shape[-1] // num_heads) ** -0.5)
    weights = layers.softmax(layers.matmul(x=q, y=k, transpose_y=True))
    if dropout_rate:
        weights = layers.dropout(weights, dropout_prob=dropout_rate, is_test=False)
    out = layers.matmul(weights, v)
    if num_heads == 1:
        return out
    out = layers.transpose(out, [0, 2, 1, 3])
    return layers.reshape(out, [0, 0, out.shape[2] * out.shape[3]])


argument_types.install(globals())
