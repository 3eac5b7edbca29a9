"""Fully connected layers and dropout."""

import math
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.program import default_main_program
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["dropout", "fc"]


def fc(
    input: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Apply a fully connected layer: act(sum over inputs of x @ weight + bias).

    Args:
        input: one variable or several. Each is flattened to two dimensions and has a weight of its
            own.
        size: the number of outputs.
        num_flatten_dims: how many leading dimensions of an input count as rows; the output keeps
            them. The others are multiplied by the weight. -1 stands for all but the last.
        param_attr: ParamAttr of the weights, each [product of the flattened dimensions, size]; a
            list of them for several inputs.
        bias_attr: ParamAttr of the bias, [size]; False for none.
        act: the name of an activation, such as "relu"; None for none.
        name: prefix of the names of the parameters.

    Returns:
        The leading dimensions of the input, followed by `size`.

    Raises ShapeError if `num_flatten_dims` does not leave at least one dimension on either side,
    or where a dimension that the weight needs is unknown.
    """
    check_variable(input, "fc", "input")
    helper = LayerHelper("fc", input=input, param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    dtype = helper.input_dtype()
    products = []
    for x, attr in helper.iter_inputs_and_params():
        rows = len(x.shape) - 1 if num_flatten_dims == -1 else num_flatten_dims
        if not 0 < rows < len(x.shape):
            raise errors.ShapeError(
                f"layers.fc: num_flatten_dims {num_flatten_dims} does not split the "
                f"{len(x.shape)} dimensions of {x.name}"
            )
        width = math.prod(x.shape[rows:])
        if width <= 0 or -1 in x.shape[rows:]:
            raise errors.ShapeError(
                f"layers.fc: the weight needs dimensions {rows}.. of {x.name} known, found {list(x.shape)}"
            )
        weight = helper.create_parameter(attr=attr, shape=[width, size], dtype=dtype)
        out = helper.create_variable_for_type_inference(dtype)
        helper.append_op(
            type="mul",
            inputs={"X": x, "Y": weight},
            outputs={"Out": out},
            attrs={"x_num_col_dims": rows, "y_num_col_dims": 1},
        )
        products.append(out)
    total = products[0]
    if len(products) > 1:
        total = helper.create_variable_for_type_inference(dtype)
        helper.append_op(type="sum", inputs={"X": products}, outputs={"Out": total})
    return helper.append_activation(helper.append_bias_op(total, dim_start=rows))


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Set each element of `x` to zero with probability `dropout_prob` (Srivastava et al., 2014).

    Args:
        x: a float tensor of any shape; the result has the same.
        dropout_prob: between 0 and 1.
        is_test: True if this is the test form, which drops nothing; `Program.clone(for_test=True)` sets it, and
            so do `no_grad` and `Layer.eval` in dygraph mode.
        seed: a fixed seed gives the same mask in every step; None draws a new one in each, from the program's
            seed.
        name: see `jfluid.layers`.
        dropout_implementation: "downgrade_in_infer" multiplies by 1 - dropout_prob in the test form,
            "upscale_in_train" divides by 1 - dropout_prob in training.

    Raises ProgramError for another implementation or probability.
    """
    return emit(
        "dropout",
        {"X": x},
        {
            "dropout_prob": dropout_prob,
            "is_test": is_test or not default_main_program().records,
            "fix_seed": seed is not None,
            "seed": seed or 0,
            "dropout_implementation": dropout_implementation,
        },
        outs=("Out", "Mask"),
        name=name,
    )[0]
