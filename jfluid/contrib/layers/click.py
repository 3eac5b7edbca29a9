"""Layers of click models: parts of several features, ads beside ads, tables pooled by sequence."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = [
    "fused_embedding_seq_pool",
    "partial_concat",
    "partial_sum",
    "rank_attention",
    "search_pyramid_hash",
]


def _several(input: Any, layer: str) -> list[Variable]:
    check_variable(input, layer, "input")
    return list(input) if isinstance(input, (list, tuple)) else [input]


def partial_concat(input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1) -> Variable:
    """Join the same columns of several tensors.

    Args:
        input: tensors [batch, width] of one shape and dtype.
        start_index: the first column; a negative one counts from the end.
        length: how many columns; -1 takes all to the end.

    Returns:
        [batch, length * number of tensors].

    Raises ShapeError for tensors of different shapes, or columns that they do not have.
    """
    attrs = {"start_index": start_index, "length": length}
    return emit("partial_concat", {"X": _several(input, "partial_concat")}, attrs)


def partial_sum(input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1) -> Variable:
    """Add up the same columns of several tensors.

    Args:
        input: tensors [batch, width] of one shape and dtype.
        start_index: the first column; a negative one counts from the end.
        length: how many columns; -1 takes all to the end.

    Returns:
        [batch, length].

    Raises ShapeError for tensors of different shapes, or columns that they do not have.
    """
    attrs = {"start_index": start_index, "length": length}
    return emit("partial_sum", {"X": _several(input, "partial_sum")}, attrs)


def rank_attention(
    input: Variable,
    rank_offset: Variable,
    rank_param_shape: Sequence[int],
    rank_param_attr: Any,
    max_rank: int = 3,
) -> Variable:
    """Weigh the features of the ads that are shown with an ad by matrices that belong to the ranks of both.

    Args:
        input: features [ads, width]. They get no gradient, as in Fluid.
        rank_offset: int32 [ads, 2 * max_rank + 1]: the rank of the ad, from 1; then for each place
            the rank and the row of the ad that is shown there. A rank of 0 stands for none.
        rank_param_shape: of the parameter, [width * max_rank * max_rank, columns]: a matrix for
            each pair of ranks.
        rank_param_attr: the parameter's attributes.
        max_rank: how many places there are.

    Returns:
        [ads, columns].

    Raises ShapeError where the shapes do not fit.
    """
    check_variable(input, "rank_attention", "input")
    if rank_param_shape[0] != input.shape[1] * max_rank * max_rank:
        raise errors.ShapeError(
            f"rank_attention: expected a rank_param_shape of {input.shape[1] * max_rank * max_rank} "
            f"rows for an input {list(input.shape)} and max_rank {max_rank}, "
            f"found {list(rank_param_shape)}"
        )
    helper = LayerHelper("rank_attention", input=input)
    matrices = helper.create_parameter(rank_param_attr, list(rank_param_shape), input.dtype)
    inputs = {"X": input, "RankOffset": rank_offset, "RankParam": matrices}
    return emit("rank_attention", inputs, {"MaxRank": max_rank}, name=helper.name)


def fused_embedding_seq_pool(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Look up ids in a table and add up the rows of each sequence.

    Args:
        input: ids, int64 rows [rows, 1] with a LoD of one level.
        size: of the table, [ids, width].
        is_sparse: whether the table's gradient is sparse rows.
        padding_idx: an id that counts as a row of zeros; a negative one counts from the end.
        combiner: "sum".
        param_attr: the attributes of the table.
        dtype: of the table.

    Returns:
        [sequences, width].

    Raises UnsupportedError for another combiner.
    """
    check_variable(input, "fused_embedding_seq_pool", "input")
    helper = LayerHelper("fused_embedding_seq_pool", param_attr=param_attr)
    table = helper.create_parameter(helper.param_attr, list(size), dtype)
    padding = -1 if padding_idx is None else padding_idx % size[0]
    attrs = {"is_sparse": is_sparse, "combiner": combiner, "padding_idx": padding}
    return emit("fused_embedding_seq_pool", {"Ids": input, "W": table}, attrs, name=helper.name)


def search_pyramid_hash(
    input: Variable,
    num_emb: int,
    space_len: int,
    pyramid_layer: int,
    rand_len: int,
    drop_out_percent: float,
    is_training: bool,
    use_filter: bool,
    white_list_len: int,
    black_list_len: int,
    seed: int,
    lr: float,
    param_attr: Any = None,
    param_attr_wl: Any = None,
    param_attr_bl: Any = None,
    name: str | None = None,
    distribute_update_vars: Sequence[str] | None = None,
    dtype: Any = "float32",
) -> Variable:
    """Embed all short runs of words of each sequence by hashes.

    Args:
        input: words, int32 rows [rows, 1] with a LoD of one level.
        num_emb: the width of the result, a multiple of rand_len.
        space_len: how many places of the table hashes point to.
        pyramid_layer: the number of words of the longest run, from 2.
        rand_len: how many values are taken from each place.
        drop_out_percent: the share of the runs that is left out in training, 0 to 1; else the result is
            multiplied by it.
        is_training: whether runs are left out.
        use_filter: whether the lists are used: runs of the white list only, none of the black list.
        white_list_len, black_list_len: the rows of the lists, at least one each.
        seed: the seed of dropout.
        lr: the rate by which the operator's gradient moves the table.
        param_attr, param_attr_wl, param_attr_bl: attributes of the table
            [space_len + rand_len, 1] and of the lists. Optimizers train none of the three.
        name: the name of the layer.
        distribute_update_vars: names of the parameters among these three that servers update.
        dtype: of the parameters.

    Returns:
        Rows [runs, num_emb] with a LoD.

    Raises ProgramError for a list of no rows, ValueError where distribute_update_vars names another
    parameter.
    """
    check_variable(input, "search_pyramid_hash", "input")
    helper = LayerHelper("search_pyramid_hash", name=name)

    def parameter(attr: Any, rows: int) -> Variable | None:
        return helper.create_parameter(attr, [rows, 1], dtype, stop_gradient=True)

    for what, length in (("white_list_len", white_list_len), ("black_list_len", black_list_len)):
        if length < 1:
            raise errors.ProgramError(
                f"search_pyramid_hash, {what}: expected a positive number, found {length}: the operator "
                "reads both lists, also where use_filter is False"
            )
    inputs = {
        "X": input,
        "W": parameter(param_attr, space_len + rand_len),
        "WhiteList": parameter(param_attr_wl, white_list_len),
        "BlackList": parameter(param_attr_bl, black_list_len),
    }
    names = [attr.name for attr in (param_attr, param_attr_wl, param_attr_bl) if attr]
    for given in distribute_update_vars or ():
        if given not in names:
            raise ValueError(f"search_pyramid_hash, distribute_update_vars: expected names of {names}, found {given!r}")
    found = [helper.create_variable_for_type_inference(dtype) for _ in range(3)]
    helper.append_op(
        type="pyramid_hash",
        inputs=inputs,
        outputs=dict(zip(("Out", "DropPos", "X_Temp_Out"), found, strict=True)),
        attrs={
            "num_emb": num_emb,
            "space_len": space_len,
            "pyramid_layer": pyramid_layer,
            "rand_len": rand_len,
            "drop_out_percent": float(drop_out_percent),
            "is_training": int(is_training),
            "use_filter": use_filter,
            "white_list_len": white_list_len,
            "black_list_len": black_list_len,
            "seed": seed,
            "lr": lr,
            "distribute_update_vars": ",".join(distribute_update_vars or ()),
        },
    )
    return found[0]
