"""Proposals on the levels of a feature pyramid (Lin et al., Feature Pyramid Networks, 2017)."""

import jax
import jax.numpy as jnp
from jax import lax

from jfluid import errors
from jfluid.ops import unrolled
from jfluid.ops.detection.pixel_boxes import areas, check_boxes, check_images, first_true, inferred_rows
from jfluid.ops.ragged import Level, Ragged, Value, need, offsets_of
from jfluid.ops.registry import Int, op


@op(
    "collect_fpn_proposals",
    ins=("MultiLevelRois*", "MultiLevelScores*"),
    outs=("FpnRois",),
    grad=False,
    rows="sequence",
)
def collect_fpn_proposals(rois: list[Value], scores: list[Value], *, post_nms_topN: Int) -> Value:
    """Return the proposals of all levels and images with the best scores, grouped by image."""
    if post_nms_topN < 1 or len(rois) != len(scores):
        raise errors.AttributeTypeError(
            "collect_fpn_proposals: expected post_nms_topN of at least 1, and one tensor of scores for each level, "
            f"found {post_nms_topN}, and {len(rois)} levels and {len(scores)} tensors of scores"
        )
    rois = [need(x, "collect_fpn_proposals", "MultiLevelRois") for x in rois]
    scores = [need(x, "collect_fpn_proposals", "MultiLevelScores") for x in scores]
    for x, y in zip(rois, scores, strict=True):
        check_boxes("collect_fpn_proposals", MultiLevelRois=x)
        check_images("collect_fpn_proposals", rois=x.last.number, scores=y.last.number)
        if y.values.size != x.capacity or not jnp.issubdtype(y.dtype, jnp.floating):
            raise errors.ShapeError(
                "collect_fpn_proposals: one score, a float, for each roi of a level is needed, found rois "
                f"{list(x.shape)} and scores {list(y.shape)} of {y.dtype}"
            )
    check_images("collect_fpn_proposals", **{f"level {i}": x.last.number for i, x in enumerate(rois)})
    number = rois[0].last.number
    images = jnp.concatenate([jnp.where(x.mask(), x.segments(), number) for x in rois])
    ranked = jnp.concatenate([y.values.reshape(-1) for y in scores])
    lowest = jnp.finfo(ranked.dtype).min  # a number, so that padding rows come after NaNs
    ranked = jnp.where(images < number, jnp.nan_to_num(ranked, nan=lowest), -jnp.inf)
    best = min(post_nms_topN, ranked.shape[0])
    _, places = lax.top_k(ranked[::-1], best)  # of equal scores the last one, as in Fluid
    places = ranked.shape[0] - 1 - places
    places = places[jnp.argsort(images[places], stable=True)]
    counts = jax.ops.segment_sum(jnp.ones(best, jnp.int32), images[places], number)
    longest = min(best, sum(x.last.longest for x in rois))
    chosen = jnp.concatenate([x.values for x in rois])[places]
    return inferred_rows(Ragged(chosen, (Level(offsets_of(counts), longest),)).refilled())


@op("distribute_fpn_proposals", ins=("FpnRois",), outs=("MultiFpnRois*", "RestoreIndex"), grad=False, rows="sequence")
def distribute_fpn_proposals(
    rois: Value, *, min_level: Int, max_level: Int, refer_level: Int, refer_scale: Int
) -> tuple[list[Value], Value]:
    """Distribute proposals over the pyramid's levels by size; each level has twice the side of the level before.

    Also return the index of each proposal in the concatenated levels.
    """
    if not 0 < min_level <= max_level or refer_scale <= 0:
        raise errors.AttributeTypeError(
            "distribute_fpn_proposals: expected 0 < min_level <= max_level and refer_scale > 0, found "
            f"{min_level}, {max_level} and {refer_scale}"
        )
    rois = need(rois, "distribute_fpn_proposals", "FpnRois")
    check_boxes("distribute_fpn_proposals", FpnRois=rois)
    sides = jnp.sqrt(areas(rois.values))
    level = jnp.floor(jnp.log2(sides / refer_scale + 1e-6) + refer_level)
    # a box that is no number is of the lowest level
    level = jnp.nan_to_num(jnp.clip(level, min_level, max_level), nan=min_level).astype(jnp.int32)
    found, place, before = [], jnp.zeros(rois.capacity, jnp.int32), jnp.zeros((), jnp.int32)
    levels = unrolled.times("distribute_fpn_proposals", "number of levels", max_level - min_level + 1)
    for wanted in range(min_level, min_level + levels):
        here = (level == wanted) & rois.mask()
        offsets = offsets_of(here)
        place = jnp.where(here, before + offsets[:-1], place)
        before = before + offsets[-1]
        grouping = Level(offsets[rois.last.offsets], rois.last.longest)
        chosen = rois.values[first_true(here, rois.capacity)]
        found.append(Ragged(chosen, (grouping,)).refilled())
    index = place[:, None]
    return found, index if rois.exact else Ragged(index, (), rois.count()).refilled()
