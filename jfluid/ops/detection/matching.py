"""Matching of priors to ground truth boxes, their regression targets, and hard negative mining.

Ground truth boxes are rows with a LoD: sequence i holds the boxes of image i. A match index is the number
of a box within its image, -1 for a prior without a match.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import static_values
from jfluid.ops.ragged import Level, Ragged, Value, need, offsets_of, resized, rows_of
from jfluid.ops.registry import op

LEAST_DISTANCE = 1e-6
# From this number of rows on, Fluid uses a second loop, which takes every distance above 0.
MANY_ROWS = 130


def _pairs(distances: Array, lengths: Array) -> tuple[Array, Array]:
    """Match rows and columns greedily by falling distance, and return (match indices, distances).

    Both are [images, columns]. Each row and column is matched once. Ties are broken by the first column, then
    the first row. A row is matched with one of its best columns: each better column went to another row. So the
    `rows` best columns of each row suffice.

    Args:
        distances: [images, rows, columns].
        lengths: int32 [images], the number of rows.
    """
    images, rows, columns = distances.shape
    least = jnp.where(lengths >= MANY_ROWS, jnp.finfo(distances.dtype).tiny, LEAST_DISTANCE)
    best, place = lax.top_k(distances, min(rows, columns))
    best = jnp.where(best >= least[:, None, None].astype(best.dtype), best, -1)
    # numbers that fall in the order in which equal pairs are taken
    order = place * rows + jnp.arange(rows, dtype=place.dtype)[:, None]
    image = jnp.arange(images)

    def take_one(_: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        best, match, distance = state
        most = best.max(axis=(1, 2))
        first = jnp.where(best == most[:, None, None], order, rows * columns).min(axis=(1, 2))
        found = most >= 0
        column, row = first // rows, first % rows
        target = jnp.where(found, column, columns)
        taken = (place == column[:, None, None]) | (jnp.arange(rows)[:, None] == row[:, None, None])
        return (
            jnp.where(taken & found[:, None, None], -1, best),
            match.at[image, target].set(row.astype(jnp.int32), mode="drop"),
            distance.at[image, target].set(most, mode="drop"),
        )

    empty = (jnp.full((images, columns), -1, jnp.int32), jnp.zeros((images, columns), distances.dtype))
    steps = jnp.max(lengths, initial=0)
    return lax.fori_loop(0, steps, take_one, (best, *empty))[1:]


@op(
    "bipartite_match", ins=("DistMat",), outs=("ColToRowMatchIndices", "ColToRowMatchDist"), grad=False, rows="sequence"
)
def bipartite_match(
    distances: Value, *, match_type: str = "bipartite", dist_threshold: float = 0.5
) -> tuple[Array, Array]:
    """Match each column greedily with a row by falling distance; return the rows and distances.

    "per_prediction" then matches each remaining column with its best row of at least `dist_threshold`.
    """
    if match_type not in ("", "bipartite", "per_prediction"):
        raise errors.AttributeTypeError(
            f"bipartite_match: match_type: expected bipartite or per_prediction, found {match_type!r}"
        )
    if distances.ndim != 2:
        raise errors.ShapeError(f"bipartite_match: expected DistMat [rows, columns], found {list(distances.shape)}")
    if isinstance(distances, Ragged) and distances.levels:
        dense, lengths = distances.pad(), distances.last.lengths
    else:
        count = distances.count() if isinstance(distances, Ragged) else distances.shape[0]
        dense = distances.zeroed() if isinstance(distances, Ragged) else distances
        dense, lengths = dense[None], jnp.full(1, count, jnp.int32)
    images, rows, columns = dense.shape
    if not rows or not columns:
        return (jnp.full((images, columns), -1, jnp.int32), jnp.zeros((images, columns), dense.dtype))
    match, distance = _pairs(dense, lengths)
    if match_type != "per_prediction":
        return match, distance
    allowed = jnp.where(dense >= max(dist_threshold, LEAST_DISTANCE), dense, -1)
    best = allowed.max(axis=1)
    free = (match < 0) & (best >= 0)
    row = jnp.argmax(allowed, axis=1).astype(jnp.int32)
    return jnp.where(free, row, match), jnp.where(free, best, distance)


@op("target_assign", ins=("X", "MatchIndices", "NegIndices?"), outs=("Out", "OutWeight"), grad=False, rows="sequence")
def target_assign(x: Value, match: Value, negatives: Value | None, *, mismatch_value: int = 0) -> tuple[Array, Array]:
    """Gather the row of x that each prior is matched with, and return weights.

    x is [rows, priors, width] or [rows, 1, width]. The result is [images, priors, width], the weights [images,
    priors, 1] are 1 for matched priors. An unmatched prior has `mismatch_value` and weight 0, but weight 1 if
    NegIndices [rows, 1] lists it.
    """
    x, match = need(x, "target_assign", "X"), rows_of(match)
    if x.ndim != 3 or match.ndim != 2:
        raise errors.ShapeError(
            "target_assign: expected X [rows, priors, width] and MatchIndices [images, priors], found "
            f"{list(x.shape)} and {list(match.shape)}"
        )
    images, priors = match.shape
    matched = match >= 0
    starts = resized(x.last.starts, images)
    values = resized(x.values, max(x.capacity, 1))
    row = jnp.clip(starts[:, None] + jnp.maximum(match, 0), 0, values.shape[0] - 1)
    found = values[row, jnp.arange(priors) % values.shape[1]]
    out = jnp.where(matched[..., None], found, jnp.asarray(mismatch_value, values.dtype))
    if negatives is None:
        return out, matched[..., None].astype(jnp.float32)
    listed = need(negatives, "target_assign", "NegIndices")
    negative = jnp.zeros((images, priors), bool)
    # padding rows belong to a sequence after the last, which is dropped
    negative = negative.at[listed.segments(), listed.values.reshape(-1)].set(True, mode="drop")
    out = jnp.where(negative[..., None], jnp.asarray(mismatch_value, values.dtype), out)
    return out, (matched | negative)[..., None].astype(jnp.float32)


def _largest(values: Array, allowed: Array, count: Array) -> Array:
    """Return a mask [rows, columns] of the `count` [rows] largest allowed values of each row.

    Ties are broken by the first column. NaN is the largest value.
    """
    values = jnp.where(jnp.isnan(values), jnp.inf, values)
    ranked = -jnp.sort(-jnp.where(allowed, values, -jnp.inf), axis=1)
    last = jnp.take_along_axis(ranked, jnp.maximum(count - 1, 0)[:, None], axis=1)
    above = allowed & (values > last)
    equal = allowed & (values == last)
    room = count - above.sum(axis=1, dtype=jnp.int32)
    return above | (equal & (jnp.cumsum(equal, axis=1, dtype=jnp.int32) <= room[:, None]))


@op(
    "mine_hard_examples",
    ins=("ClsLoss", "LocLoss?", "MatchIndices", "MatchDist"),
    outs=("NegIndices", "UpdatedMatchIndices"),
    grad=False,
    rows="sequence",
)
def mine_hard_examples(
    class_loss: Value,
    place_loss: Value | None,
    match: Value,
    distance: Value,
    *,
    neg_pos_ratio: float = 1.0,
    neg_dist_threshold: float = 0.5,
    sample_size: int = 0,
    mining_type: str = "max_negative",
) -> tuple[Ragged, Array]:
    """Return the priors [rows, 1] with the highest losses as negative examples of each image.

    "max_negative" selects `neg_pos_ratio` negatives for each match. "hard_example" selects `sample_size` of all
    priors, and undoes matches that are not selected.
    """
    if mining_type not in ("max_negative", "hard_example"):
        raise errors.AttributeTypeError(
            f"mine_hard_examples: mining_type: expected max_negative or hard_example, found {mining_type!r}"
        )
    loss, match, distance = (rows_of(v) for v in (class_loss, match, distance))
    if not (loss.shape == match.shape == distance.shape and loss.ndim == 2):
        raise errors.ShapeError(
            "mine_hard_examples: expected ClsLoss, MatchIndices and MatchDist [images, priors], found "
            f"{list(loss.shape)}, {list(match.shape)} and {list(distance.shape)}"
        )
    matched = match >= 0
    if mining_type == "max_negative":
        if neg_pos_ratio <= 0 or neg_dist_threshold <= 0:
            raise errors.AttributeTypeError(
                "mine_hard_examples: max_negative needs neg_pos_ratio and neg_dist_threshold above 0, found "
                f"{neg_pos_ratio} and {neg_dist_threshold}"
            )
        allowed = ~matched & (distance < neg_dist_threshold)
        positives = matched.sum(axis=1, dtype=jnp.int32)
        most = (positives * jnp.asarray(neg_pos_ratio, jnp.float32)).astype(jnp.int32)
        negative = _largest(loss, allowed, jnp.minimum(most, allowed.sum(axis=1, dtype=jnp.int32)))
        return _listed(negative), match
    if sample_size <= 0:
        raise errors.AttributeTypeError(
            f"mine_hard_examples: hard_example needs a sample_size above 0, found {sample_size}"
        )
    loss = loss if place_loss is None else loss + rows_of(place_loss)
    count = jnp.full(loss.shape[0], min(sample_size, loss.shape[1]), jnp.int32)
    chosen = _largest(loss, jnp.ones_like(matched), count)
    return _listed(chosen & ~matched), jnp.where(matched & ~chosen, -1, match)


def _listed(chosen: Array) -> Ragged:
    """Return the indices of chosen columns, int32 [rows, 1], with a sequence for each row of [rows, columns]."""
    rows, columns = chosen.shape
    flat = chosen.reshape(-1)
    target = jnp.where(flat, jnp.cumsum(flat, dtype=jnp.int32) - 1, rows * columns)
    number = jnp.tile(jnp.arange(columns, dtype=jnp.int32), rows)
    capacity = static_values.placeholder() or rows * columns  # how many there are depends on data
    listed = jnp.zeros(capacity, jnp.int32).at[target].set(number, mode="drop")
    level = Level(offsets_of(chosen.sum(axis=1, dtype=jnp.int32)), columns)
    return Ragged(listed[:, None], (level,)).refilled()
