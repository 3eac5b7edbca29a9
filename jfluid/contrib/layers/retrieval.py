"""Layers of retrieval models: trees over items, and batches that are their own negatives."""

import random
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.initializer import Constant
from jfluid.ir import unique_name
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable
from jfluid.layers.indexing import slice as slice_
from jfluid.layers.shape import reshape

__all__ = ["shuffle_batch", "tdm_child", "tdm_sampler"]


def _integer_type(dtype: Any, what: str) -> VarType:
    found = var_type(dtype)
    if found not in (VarType.INT32, VarType.INT64):
        raise TypeError(f"{what}: expected int32 or int64, found {dtype!r}")
    return found


def shuffle_batch(x: Variable, seed: int | Variable | None = None) -> Variable:
    """Put the vectors of the last dimension of `x` into a random order.

    Shuffled items of a batch serve as negatives for the users of the batch.

    Args:
        x: a tensor of any rank, or rows with a LoD, which the result has too.
        seed: an integer; or an int64 Variable [1], which is also overwritten with the next seed;
            None takes the program's random_seed, or draws one when the program is built.

    Returns:
        A Variable of the shape of `x`. Gradients go back to where each vector came from.

    Raises TypeError where `x` is no Variable.
    """
    check_variable(x, "shuffle_batch", "x")
    helper = LayerHelper("shuffle_batch")
    out = helper.create_variable_for_type_inference(x.dtype)
    index = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    attrs = {}
    if not isinstance(seed, Variable):
        if seed is None:
            seed = helper.main_program.random_seed or random.randrange(-65536, 65535)
        attrs = {"startup_seed": seed}
        name = unique_name.generate("shuffle_batch_seed")
        variable = helper.create_global_variable(
            persistable=True, shape=[1], dtype="int64", name=name, stop_gradient=True
        )
        helper.set_variable_initializer(variable, Constant(value=seed, force_cpu=True))
        seed = variable
    helper.append_op(
        type="shuffle_batch",
        inputs={"X": x, "Seed": seed},
        outputs={"Out": out, "ShuffleIdx": index, "SeedOut": seed},
        attrs=attrs,
    )
    return out


def tdm_child(
    x: Variable, node_nums: int, child_nums: int, param_attr: Any = None, dtype: Any = "int32"
) -> tuple[Variable, Variable]:
    """Look up the children of nodes of a tree over items.

    Args:
        x: numbers of nodes, int32 or int64; 0 stands for none.
        node_nums: how many nodes the tree has, node 0 included.
        child_nums: how many children a node has at most.
        param_attr: of the parameter [node_nums, 3 + child_nums] that has for each node its item (0
            where it is no leaf), its layer, its parent and its children; its initializer gives the
            tree. It is not trained.
        dtype: of the results: int32 or int64.

    Returns:
        (children, leaf mask), each x.shape + [child_nums]. The mask is 1 where a child is an item. A
        node without children has children 0.

    Raises TypeError for a different dtype, ShapeError where the parameter's shape does not fit.
    """
    check_variable(x, "tdm_child", "x")
    result = _integer_type(dtype, "layers.tdm_child, dtype")
    helper = LayerHelper("tdm_child", param_attr=param_attr)
    tree = helper.create_parameter(
        attr=helper.param_attr,
        shape=[node_nums, 3 + child_nums],
        dtype=dtype,
        default_initializer=Constant(0),
        stop_gradient=True,
    )
    child, mask = (helper.create_variable_for_type_inference(dtype, stop_gradient=True) for _ in range(2))
    helper.append_op(
        type="tdm_child",
        inputs={"X": x, "TreeInfo": tree},
        outputs={"Child": child, "LeafMask": mask},
        attrs={"child_nums": child_nums, "dtype": int(result)},
    )
    return child, mask


def _check_sampling(negatives: Sequence[int], sizes: Sequence[int], leaves: int) -> None:
    if len(negatives) != len(sizes):
        raise ValueError(
            "tdm_sampler: expected neg_samples_num_list and layer_node_num_list of one length, "
            f"found {len(negatives)} and {len(sizes)}"
        )
    for i, (count, size) in enumerate(zip(negatives, sizes, strict=True)):
        if count >= size:
            raise ValueError(
                f"tdm_sampler: layer {i} has {size} nodes, so at most {size - 1} negative samples, found {count}"
            )
    if leaves >= sum(sizes):
        raise ValueError(
            f"tdm_sampler: leaf_node_num must be less than the {sum(sizes)} nodes of all layers, found {leaves}"
        )


def _split_layers(found: Variable, widths: Sequence[int]) -> list[Variable]:
    """Divide [rows, samples of all layers] into [rows, samples, 1] for each layer."""
    parts, begin = [], 0
    for width in widths:
        part = slice_(found, axes=[1], starts=[begin], ends=[begin + width])
        part = reshape(part, [-1, width, 1])
        part.stop_gradient = True
        parts.append(part)
        begin += width
    return parts


def tdm_sampler(
    x: Variable,
    neg_samples_num_list: Sequence[int],
    layer_node_num_list: Sequence[int],
    leaf_node_num: int,
    tree_travel_attr: Any = None,
    tree_layer_attr: Any = None,
    output_positive: bool = True,
    output_list: bool = True,
    seed: int = 0,
    tree_dtype: Any = "int32",
    dtype: Any = "int32",
) -> tuple[Any, Any, Any]:
    """Draw training samples from each layer of a tree over items.

    A layer gives the node on the way to an item, and further nodes drawn evenly and without replacement.

    Args:
        x: numbers of leaves, from 0, [rows, 1], int32 or int64.
        neg_samples_num_list: number of negative samples of each layer.
        layer_node_num_list: number of nodes of each layer.
        leaf_node_num: how many leaves the tree has.
        tree_travel_attr: of the parameter [leaf_node_num, layers] with the nodes on the way to each
            leaf; 0 where a way does not reach a layer. Its initializer gives the tree.
        tree_layer_attr: of the parameter [nodes, 1] with the nodes of all layers, one layer after
            the other.
        output_positive: whether the nodes on the way are among the results.
        output_list: give a list with one Variable [rows, samples, 1] for each layer; else one
            Variable [rows, samples of all layers].
        seed: 0 draws different samples in each step; a different number draws the same samples each time.
        tree_dtype: of the two parameters; dtype: of the results. int32 or int64.

    Returns:
        (nodes, labels, mask). A label is 1 for a node on the path; the mask is 0 in layers that
        a path does not reach.

    Raises TypeError for other dtypes, ValueError where the numbers do not fit each other.
    """
    check_variable(x, "tdm_sampler", "x")
    result = _integer_type(dtype, "layers.tdm_sampler, dtype")
    _integer_type(tree_dtype, "layers.tdm_sampler, tree_dtype")
    _check_sampling(neg_samples_num_list, layer_node_num_list, leaf_node_num)
    offsets = [sum(layer_node_num_list[:i]) for i in range(len(layer_node_num_list) + 1)]
    helper = LayerHelper("tdm_sampler")

    def parameter(attr: Any, shape: list[int]) -> Variable:
        made = helper.create_parameter(attr, shape, tree_dtype, default_initializer=Constant(0))
        if made is None:
            raise errors.ProgramError("tdm_sampler: the tree's attributes must not be False")
        return made

    travel = parameter(tree_travel_attr, [leaf_node_num, len(layer_node_num_list)])
    layer = parameter(tree_layer_attr, [offsets[-1], 1])
    outs = [helper.create_variable_for_type_inference(dtype, stop_gradient=True) for _ in range(3)]
    helper.append_op(
        type="tdm_sampler",
        inputs={"X": x, "Travel": travel, "Layer": layer},
        outputs=dict(zip(("Out", "Labels", "Mask"), outs, strict=True)),
        attrs={
            "neg_samples_num_list": list(neg_samples_num_list),
            "output_positive": output_positive,
            "layer_offset_lod": offsets,
            "seed": seed,
            "dtype": int(result),
        },
    )
    if not output_list:
        return outs[0], outs[1], outs[2]
    widths = [count + bool(output_positive) for count in neg_samples_num_list]
    nodes, labels, mask = (_split_layers(found, widths) for found in outs)
    return nodes, labels, mask
