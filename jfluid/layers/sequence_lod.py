"""Layers on sequences: rows that a LoD groups.

They raise OpError when a feed has no LoD where one is needed.
"""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.types import var_type
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = [
    "add_position_encoding",
    "im2sequence",
    "lod_append",
    "lod_reset",
    "row_conv",
    "sequence_concat",
    "sequence_conv",
    "sequence_enumerate",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_reverse",
    "sequence_scatter",
    "sequence_slice",
    "sequence_softmax",
    "sequence_unpad",
]
POOL_TYPES = ("average", "sum", "sqrt", "max", "last", "first")


def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Apply a convolution within each sequence: row t of the output sees `filter_size` rows, and zeros beyond the ends.

    Args:
        input: rows [rows, width] with a LoD of one level.
        num_filters: the width of the output.
        filter_size: how many rows a window has.
        filter_stride: must be 1.
        padding: no effect, as in Fluid: the output always has the rows of the input.
        padding_start: where the window begins relative to its row; -(filter_size // 2) when None.
        bias_attr: ParamAttr of the bias, [num_filters]; False for none.
        param_attr: ParamAttr of the filter, [filter_size * width, num_filters].
        act: the name of an activation; None for none.
        name: see `jfluid.layers`.

    Returns:
        [rows, num_filters] with the LoD of `input`.

    Raises UnsupportedError for another stride.
    """
    check_variable(input, "sequence_conv", "input")
    helper = LayerHelper("sequence_conv", input=input, param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    dtype = helper.input_dtype()
    weight = helper.create_parameter(
        attr=helper.param_attr, shape=[filter_size * input.shape[1], num_filters], dtype=dtype
    )
    out = helper.create_variable_for_type_inference(dtype)
    start = -(filter_size // 2) if padding_start is None else padding_start
    helper.append_op(
        type="sequence_conv",
        inputs={"X": input, "Filter": weight},
        outputs={"Out": out},
        attrs={"contextStride": filter_stride, "contextStart": start, "contextLength": filter_size},
    )
    return helper.append_activation(helper.append_bias_op(out))


def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """Apply softmax over the rows of each sequence; a row has one number.

    `use_cudnn` has no effect.
    """
    return emit("sequence_softmax", {"X": input}, {"use_cudnn": use_cudnn}, name=name)


def sequence_pool(input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Variable:
    """Reduce each sequence of the last level to one row.

    Args:
        input: rows [rows, ...] with a LoD.
        pool_type: "average", "sum", "sqrt" (sum / sqrt(length)), "max", "last" or "first".
        is_test: stays in the program without effect.
        pad_value: the elements of the row of an empty sequence.

    Returns:
        [number of sequences, ...] with the levels of the LoD above the last, if there are any.

    Raises ProgramError for another `pool_type`.
    """
    if pool_type.lower() not in POOL_TYPES:
        raise errors.ProgramError(
            f"sequence_pool, pool_type: expected one of {', '.join(POOL_TYPES)}, found {pool_type!r}"
        )
    check_variable(input, "sequence_pool", "input")
    helper = LayerHelper("sequence_pool", input=input)
    out = helper.create_variable_for_type_inference(input.dtype)
    index = helper.create_variable_for_type_inference("int32", stop_gradient=True)
    helper.append_op(
        type="sequence_pool",
        inputs={"X": input},
        outputs={"Out": out, "MaxIndex": index},
        attrs={"pooltype": pool_type.upper(), "is_test": is_test, "pad_value": pad_value},
    )
    if pool_type.lower() == "max":
        index.stop_gradient = True
    return out


def sequence_first_step(input: Variable) -> Variable:
    """Return the first row of each sequence: [number of sequences, ...]."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """Return the last row of each sequence: [number of sequences, ...]."""
    return sequence_pool(input, "last")


def sequence_concat(input: Sequence[Variable], name: str | None = None) -> Variable:
    """Join sequences: sequence i of the result is sequence i of each input, one after the other."""
    return emit("sequence_concat", {"X": list(input)}, name=name)


def sequence_slice(input: Variable, offset: Variable, length: Variable, name: str | None = None) -> Variable:
    """Return a part of each sequence.

    Args:
        input: rows with a LoD of one level.
        offset: integers [number of sequences, 1]: where the part of each begins.
        length: integers [number of sequences, 1]: how many rows it has.
        name: see `jfluid.layers`.

    A step raises OperandError where a part is not within its sequence.
    """
    return emit("sequence_slice", {"X": input, "Offset": offset, "Length": length}, name=name)


def sequence_expand(x: Variable, y: Variable, ref_level: int = -1, name: str | None = None) -> Variable:
    """Repeat row i of `x` (sequence i, if `x` has a LoD) for each entry of sequence i of `y`.

    Args:
        x: rows, or sequences of one level.
        y: sequences; only their LoD counts.
        ref_level: which level of the LoD of `y`; -1 is the last.
        name: see `jfluid.layers`.
    """
    return emit("sequence_expand", {"X": x, "Y": y}, {"ref_level": ref_level}, name=name)


def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Repeat row i of `x` as often as sequence i of `y` has rows. The result has the LoD of `y`."""
    return emit("sequence_expand_as", {"X": x, "Y": y}, name=name)


def sequence_pad(
    x: Variable, pad_value: Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """Pad sequences to a dense tensor [number of sequences, maxlen, ...], and return it with their lengths.

    The lengths are int64 [number of sequences].

    Args:
        x: rows [rows, ...] with a LoD of one level.
        pad_value: padding value: a Variable of one number, or of the shape of a row.
        maxlen: the longest sequence of the batch when None. XLA then compiles for each such length, so
            give a number if possible.
        name: see `jfluid.layers`.

    A step raises OperandError for a sequence longer than `maxlen`.
    """
    out, length = emit(
        "sequence_pad",
        {"X": x, "PadValue": pad_value},
        {"padded_length": -1 if maxlen is None else maxlen},
        outs=("Out", "Length"),
        name=name,
    )
    pad_value.stop_gradient = length.stop_gradient = True
    return out, length


def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """Return the sequences of a dense tensor, as rows with a LoD: the inverse of `sequence_pad`.

    Args:
        x: [number of sequences, longest, ...].
        length: int64 [number of sequences]: how many steps of each are taken.
        name: see `jfluid.layers`.

    A step raises OperandError where a length is below 0 or above the longest.
    """
    length.stop_gradient = True
    return emit("sequence_unpad", {"X": x, "Length": length}, name=name)


def sequence_reshape(input: Variable, new_dim: int) -> Variable:
    """Put the numbers of each sequence into rows of width `new_dim`.

    `input` is [rows, width] with a LoD. A step raises OperandError where the numbers of a sequence make no
    whole rows.
    """
    return emit("sequence_reshape", {"X": input}, {"new_dim": new_dim})


def sequence_scatter(input: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """Add the updates of sequence i to row i of `input`, at the columns in `index`.

    Args:
        input: [number of sequences, width].
        index: columns, int64 rows [rows, 1] with a LoD.
        updates: numbers to add, with the shape and LoD of `index`.
        name: see `jfluid.layers`.
    """
    return emit("sequence_scatter", {"X": input, "Ids": index, "Updates": updates}, name=name)


def sequence_enumerate(input: Variable, win_size: int, pad_value: int = 0, name: str | None = None) -> Variable:
    """Return the n-gram of `win_size` ids from each id on, with `pad_value` after the end: [rows, win_size]."""
    return emit(
        "sequence_enumerate",
        {"X": input},
        {"win_size": win_size, "pad_value": pad_value},
        name=name,
        stop_gradient=True,
    )


def sequence_mask(
    x: Variable, maxlen: int | Variable | None = None, dtype: Any = "int64", name: str | None = None
) -> Variable:
    """Return the mask [..., maxlen] with 1 at the first x positions and 0 at later positions.

    Args:
        x: lengths, integers [...].
        maxlen: a number, or a Variable [1] that is computed from shapes and constants. None is the
            largest length, which the host then reads between two compiled parts of the step.
        dtype: dtype of the result.
        name: see `jfluid.layers`.
    """
    inputs: dict[str, Any] = {"X": x}
    attrs = {"out_dtype": int(var_type(dtype)), "maxlen": -1}
    if isinstance(maxlen, Variable):
        inputs["MaxLenTensor"] = maxlen
    elif maxlen is not None:
        attrs["maxlen"] = int(maxlen)
    return emit("sequence_mask", inputs, attrs, outs=("Y",), name=name, stop_gradient=True)


def sequence_reverse(x: Variable, name: str | None = None) -> Variable:
    """Reverse the order of the rows of each sequence."""
    return emit("sequence_reverse", {"X": x}, outs=("Y",), name=name)


def lod_reset(x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None) -> Variable:
    """Replace the LoD of `x`.

    Args:
        x: rows.
        y: a Variable with the new LoD; without a LoD, its values are the offsets.
        target_lod: offsets, if `y` is None.

    Raises ProgramError if neither is given. A step raises OperandError for offsets that do not start
    at 0, that fall, or that do not end at the rows of `x`.
    """
    if y is not None:
        return emit("lod_reset", {"X": x, "Y": y})
    if target_lod is None:
        raise errors.ProgramError("lod_reset: give y or target_lod")
    return emit("lod_reset", {"X": x}, {"target_lod": list(target_lod)})


def lod_append(x: Variable, level: Variable | Sequence[int]) -> Variable:
    """Give `x` one more level below its LoD.

    Args:
        x: rows.
        level: its offsets, as a list or a Variable.

    Raises ProgramError if `level` is neither. A step raises OperandError where the LoD of `x` does
    not end at the number of sequences of the level.
    """
    if isinstance(level, Variable):
        return emit("lod_reset", {"X": x, "Y": level}, {"append": True}, layer="lod_append")
    if not isinstance(level, (list, tuple)):
        raise errors.ProgramError(f"lod_append, level: expected a list or a Variable, found {type(level).__name__}")
    return emit("lod_reset", {"X": x}, {"append": True, "target_lod": list(level)}, layer="lod_append")


def row_conv(input: Variable, future_context_size: int, param_attr: Any = None, act: str | None = None) -> Variable:
    """Apply a lookahead convolution: row t is a weighted sum of row t and the rows after it.

    Source: Wang et al., "Lookahead Convolution Layer for Unidirectional Recurrent Neural Networks", 2016.

    Args:
        input: rows [rows, width] with a LoD, or [batch, time, width].
        future_context_size: number of rows after row t.
        param_attr: ParamAttr of the weights, [future_context_size + 1, width].
        act: the name of an activation; None for none.

    Returns:
        A tensor of the shape and LoD of `input`.
    """
    check_variable(input, "row_conv", "input")
    helper = LayerHelper("row_conv", input=input, param_attr=param_attr, act=act)
    dtype = helper.input_dtype()
    weight = helper.create_parameter(
        attr=helper.param_attr, shape=[future_context_size + 1, input.shape[-1]], dtype=dtype
    )
    out = helper.create_variable_for_type_inference(dtype)
    helper.append_op(type="row_conv", inputs={"X": [input], "Filter": [weight]}, outputs={"Out": [out]})
    return helper.append_activation(out)


def im2sequence(
    input: Variable,
    filter_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    input_image_size: Variable | None = None,
    out_stride: Any = 1,
    name: str | None = None,
) -> Variable:
    """Extract patches of each image as a sequence of rows, in row-major order.

    Args:
        input: images [batch, channels, height, width].
        filter_size: of a patch: one number or [height, width].
        stride: see `filter_size`.
        padding: one number, [height, width] or [top, left, bottom, right].
        input_image_size: [batch, 2], the height and width of each image before it was padded; patches beyond are
            left out.
        out_stride: one number or [height, width]: the factor by which those sizes have shrunk on the way to
            `input`.
        name: see `jfluid.layers`.

    Returns:
        Rows [patches, channels * height * width of a patch], a sequence for each image.
    """

    def listed(value: Any, length: int) -> list[int]:
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        return values * (length // len(values))

    attrs = {"kernels": listed(filter_size, 2), "strides": listed(stride, 2), "paddings": listed(padding, 4)}
    inputs = {"X": input}
    if input_image_size is not None:
        inputs["Y"] = input_image_size
        attrs["out_stride"] = listed(out_stride, 2)
    return emit("im2sequence", inputs, attrs, name=name)


def add_position_encoding(input: Variable, alpha: float, beta: float, name: str | None = None) -> Variable:
    """Return alpha * input + beta * (sines and cosines of the position) (Vaswani et al., 2017).

    Args:
        input: [batch, time, width], or rows [rows, width] with a LoD.
        alpha: factor of `input`.
        beta: factor of the encoding.
        name: see `jfluid.layers`.
    """
    return emit("add_position_encoding", {"X": input}, {"alpha": alpha, "beta": beta}, name=name)


def sequence_topk_avg_pooling(
    input: Variable, row: Variable, col: Variable, topks: Sequence[int], channel_num: int
) -> Variable:
    """Return the means of the k largest entries of each row of matrices (`contrib.layers`).

    Where a row has fewer entries, all count, and the divisor stays k.

    Args:
        input: sequences of channel * row * column numbers in one column, a matrix for each channel of each pair.
        row: sequences with the lengths of the matrices' rows.
        col: sequences with the lengths of the matrices' columns.
        topks: the numbers k.
        channel_num: the number of channels.

    Returns:
        [rows, channel_num * len(topks)] with the LoD of `row`.
    """
    out, _ = emit(
        "sequence_topk_avg_pooling",
        {"X": input, "ROW": row, "COLUMN": col},
        {"topks": list(topks), "channel_num": channel_num},
        outs=("Out", "pos"),
    )
    return out
