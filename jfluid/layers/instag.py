"""Filter of a batch's instances by tags."""

from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["filter_by_instag"]


def filter_by_instag(
    ins: Variable, ins_tag: Variable, filter_tag: Variable, is_lod: bool, out_val_if_empty: int = 0
) -> list[Variable]:
    """Keep the instances of a batch that have at least one tag of `filter_tag`.

    Args:
        ins: the instances: sequences of rows [rows, ...] with a LoD of one level if `is_lod`,
            else rows [batch, ...].
        ins_tag: the tags of each instance, int64 rows [tags, 1] with a LoD.
        filter_tag: the tags to keep, int64 [number].
        is_lod: True if instances are sequences.
        out_val_if_empty: value of the single row that is returned without a match.

    Returns:
        [the instances, as sequences with a LoD; loss weights, float32 [instances, 1]: 1, or 0 for the row
            that is returned without a match].

    Raises ShapeError if the numbers of tag lists and instances differ.
    """
    out, weight, _ = emit(
        "filter_by_instag",
        {"Ins": ins, "Ins_tag": ins_tag, "Filter_tag": filter_tag},
        {"is_lod": is_lod, "out_val_if_empty": out_val_if_empty},
        outs=("Out", "LossWeight", "IndexMap"),
    )
    return [out, weight]
