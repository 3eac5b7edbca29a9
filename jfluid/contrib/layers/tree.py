"""Layers over trees."""

from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable

__all__ = ["tree_conv"]


def tree_conv(
    nodes_vector: Variable,
    edge_set: Variable,
    output_size: int,
    num_filters: int = 1,
    max_depth: int = 2,
    act: str | None = "tanh",
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Variable:
    """Convolve over trees: for each node, sum the products of vectors and matrices over the subtree.

    The matrices are mixed by depth and by position among siblings.

    Args:
        nodes_vector: float [N, nodes, features]; features, and with a bias nodes, must be known.
        edge_set: int32 [N, edges, 2], (parent, child), numbered from 1; each child has one parent.
            Edges from the first (0, 0) on do not count.
        output_size, num_filters: the size of the result for each node.
        max_depth: how many levels of a subtree count, at least 2.
        act: the name of an activation; None for none.
        param_attr: ParamAttr of the filter, [features, 3, output_size, num_filters]: matrices for
            nodes on the left, on the right and at the top.
        bias_attr: ParamAttr of the bias, [nodes, output_size, num_filters]; False for none.
        name: prefix of the names of the parameters.

    Returns:
        [N, nodes, output_size, num_filters]; before bias and activation zero where there is no node.

    Raises ShapeError for other shapes. Source: Mou et al., Convolutional Neural Networks over Tree
    Structures (arXiv:1409.5718).
    """
    for what, value in (("nodes_vector", nodes_vector), ("edge_set", edge_set)):
        check_variable(value, "tree_conv", what)
    if len(nodes_vector.shape) != 3 or nodes_vector.shape[2] < 1:
        raise errors.ShapeError(
            f"layers.tree_conv: nodes_vector is [N, nodes, known number of features], found {list(nodes_vector.shape)}"
        )
    helper = LayerHelper("tree_conv", param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    dtype = nodes_vector.dtype
    shape = [nodes_vector.shape[2], 3, output_size, num_filters]
    weight = helper.create_parameter(helper.param_attr, shape, dtype)
    out = helper.create_variable_for_type_inference(dtype)
    helper.append_op(
        type="tree_conv",
        inputs={"NodesVector": nodes_vector, "EdgeSet": edge_set, "Filter": weight},
        outputs={"Out": out},
        attrs={"max_depth": max_depth},
    )
    return helper.append_activation(helper.append_bias_op(out))
