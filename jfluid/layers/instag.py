"""Choosing the instances of a batch that have one of some tags."""

from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["filter_by_instag"]


def filter_by_instag(
    ins: Variable,
    ins_tag: Variable,
    filter_tag: Variable,
    is_lod: bool,
    out_val_if_empty: int = 0,
) -> list[Variable]:
    """Return the instances of a batch that have at least one of the wanted tags.

    Args:
        ins: the instances: sequences of rows [rows, ...] with a LoD of one level where `is_lod`,
            else rows [batch, ...].
        ins_tag: the tags of each instance, int64 rows [tags, 1] with a LoD.
        filter_tag: the wanted tags, int64 [number].
        is_lod: whether instances are sequences.
        out_val_if_empty: what the one row holds that is returned where no instance has such a tag.

    Returns:
        [the instances, as sequences with a LoD; the weight of each in the loss, float32 [instances,
            1]: 1, or 0 where none has such a tag].

    Raises ShapeError where there are not as many lists of tags as instances.
    """
    out, weight, _ = emit(
        "filter_by_instag",
        {"Ins": ins, "Ins_tag": ins_tag, "Filter_tag": filter_tag},
        {"is_lod": is_lod, "out_val_if_empty": out_val_if_empty},
        outs=("Out", "LossWeight", "IndexMap"),
    )
    return [out, weight]
