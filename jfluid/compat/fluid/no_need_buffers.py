"""Inputs of operators whose values Fluid does not need, beside shape and LoD: Fluid frees their memory early."""

from collections.abc import Mapping, Sequence
from typing import Any

from jfluid.ops import registry

__all__ = ["infer_no_need_buffer_slots"]

_OPERATORS: dict[tuple[str, ...], str] = {
    ("Bias",): "gru_unit_grad hierarchical_sigmoid_grad layer_norm_grad nce_grad",
    ("Bias", "Input"): "gru_grad",
    ("CVM",): "cvm",
    ("DOut",): "reshape2_grad_grad",
    ("DOut", "Y"): "elementwise_add_grad_grad elementwise_sub_grad_grad",
    ("Emission", "Transition"): "linear_chain_crf_grad",
    ("Ids",): "push_dense",
    ("Input",): (
        "fill_constant_batch_size_like gaussian_random_batch_size_like slice_grad strided_slice_grad "
        "trace_grad uniform_random_batch_size_like"
    ),
    ("Logits",): "warpctc_grad",
    ("RankParam",): "rank_attention_grad",
    ("Updates",): "scatter_grad scatter_nd_add_grad sequence_scatter_grad",
    ("W",): "lookup_table_grad lookup_table_v2_grad",
    ("X",): (
        "affine_channel_grad argsort_grad bicubic_interp_grad bilinear_interp_grad center_loss_grad "
        "concat_grad cvm_grad expand_as_grad expand_grad fill_zeros_like2 flatten_grad gather_grad "
        "gather_nd_grad index_sample_grad index_select_grad kldiv_loss_grad lod_reset_grad "
        "max_pool2d_with_index_grad max_pool3d_with_index_grad mean_grad nearest_interp_grad pad2d_grad "
        "reduce_mean_grad reduce_sum_grad roi_align_grad roll_grad sequence_concat_grad sequence_pad_grad "
        "sequence_pool_grad sequence_slice_grad sequence_softmax_grad sequence_unpad_grad space_to_depth_grad "
        "squeeze_grad trilinear_interp_grad unfold_grad unsqueeze_grad"
    ),
    ("X", "Y"): (
        "elementwise_add_grad elementwise_sub_grad sequence_expand_as_grad sequence_expand_grad "
        "squared_l2_distance_grad where_grad"
    ),
    ("Y",): "crop sequence_expand sequence_expand_as",
}
_SLOTS = {name: frozenset(slots) for slots, names in _OPERATORS.items() for name in names.split()}


def infer_no_need_buffer_slots(
    op_type: str,
    inputs: Mapping[str, Sequence[str]],
    outputs: Mapping[str, Sequence[str]],
    attrs: Mapping[str, Any],
) -> set[str]:
    """Return the input slots of an operator whose values Fluid does not need.

    Args:
        op_type: the type of the operator.
        inputs: names of variables by slot. They make no difference, as in Fluid.
        outputs: names of variables by slot. They make no difference, as in Fluid.
        attrs: the attributes; the gradient of `sequence_conv` needs `paddingTrainable`.

    Raises:
        UnsupportedOpError: the operator is not registered.
        KeyError: an attribute is missing.
    """
    registry.get(op_type)
    if op_type == "sequence_conv_grad":
        return set() if attrs["paddingTrainable"] else {"PaddingData"}
    return set(_SLOTS.get(op_type, ()))
