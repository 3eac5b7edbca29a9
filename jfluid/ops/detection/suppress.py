"""Shared parts of non-maximum suppression: sorted candidates, greedy selection, result rows."""

import jax
import jax.numpy as jnp
from jax import Array

from jfluid.ops import static_values
from jfluid.ops.detection.overlap import overlap
from jfluid.ops.ragged import Level, Ragged, offsets_of, unpad

# How many of many candidates are decided together: more of them read the boxes less often, fewer are
# compiled sooner and decide less in vain.
_TOGETHER, _MANY = 8, 128


def best(scores: Array, above: float, limit: int) -> tuple[Array, Array, Array]:
    """Return the best candidates of each lane, the best first and equal ones in order.

    Args:
        scores: [..., n]; scores that are not greater than `above`, and NaN, are no candidates.
        above: lower bound, exclusive, of candidates' scores.
        limit: the most candidates of a lane; -1 for all.

    Returns:
        Their scores, their numbers (int32) and which of them are candidates: [..., k] each.
    """
    n = scores.shape[-1]
    k = n if limit < 0 else min(max(limit, 1), n)
    wanted = (scores > above) & (limit != 0)
    values, index = jax.lax.top_k(jnp.where(wanted, scores, -jnp.inf), k)
    return values, index.astype(jnp.int32), values > -jnp.inf


def greedy(
    boxes: Array,
    candidate: Array,
    threshold: float,
    eta: float,
    normalized: bool,
    kind: Array | None = None,
    kinds: int = 1,
) -> Array:
    """Return the mask [lanes, k] of candidates kept by greedy suppression.

    A candidate is dropped if it overlaps an earlier kept candidate by more than `threshold`.

    Args:
        boxes: [size, lanes, k], the best first.
        candidate: bool [lanes, k]; in each lane candidates come first.
        threshold: the largest allowed overlap.
        eta: factor that a threshold above 0.5 is multiplied by with each kept candidate.
        normalized: True if coordinates are fractions of the image, False if they are pixels.
        kind: int32 [lanes, k], below `kinds`: only boxes of one kind suppress each other, and each kind
            has a separate threshold. None: all boxes are of one kind.
        kinds: number of kinds.

    The loop ends with the last candidate of the batch; all lanes run in lockstep.
    """
    lanes, k = candidate.shape
    together = _TOGETHER if k >= _MANY else 1
    missing = -k % together
    boxes = jnp.pad(boxes, ((0, 0), (0, 0), (0, missing)))
    candidate = jnp.pad(candidate, ((0, 0), (0, missing)))
    group = None if kind is None else jnp.pad(kind, ((0, 0), (0, missing)))
    number = jnp.max(candidate.sum(axis=1, dtype=jnp.int32), initial=0)

    def block(state: tuple[Array, ...]) -> tuple[Array, ...]:
        start, worst, kept, allowed = state
        ours = jax.lax.dynamic_slice_in_dim(boxes, start, together, 2)
        wanted = jax.lax.dynamic_slice_in_dim(candidate, start, together, 1)
        inside = jax.lax.dynamic_slice_in_dim(worst, start, together, 1)
        own = None if group is None else jax.lax.dynamic_slice_in_dim(group, start, together, 1)
        mutual = overlap(ours[..., None], ours[:, :, None], normalized)

        def same(i: int, others: Array | None) -> Array | bool:
            return True if own is None or others is None else own[:, i, None] == others

        stays = []
        for i in range(together):
            limit = allowed if own is None else jnp.take_along_axis(allowed, own[:, i, None], 1)
            stay = wanted[:, i, None] & (inside[:, i, None] <= limit)
            inside = jnp.maximum(inside, jnp.where(stay & same(i, own), mutual[:, i], 0))
            if eta < 1:
                stricter = stay & (limit > 0.5) & same(i, jnp.arange(kinds, dtype=jnp.int32))
                allowed = jnp.where(stricter, allowed * eta, allowed)
            stays.append(stay)
        for i, stay in enumerate(stays):
            against = overlap(ours[..., i, None], boxes, normalized)
            worst = jnp.maximum(worst, jnp.where(stay & same(i, group), against, 0))
        kept = jax.lax.dynamic_update_slice_in_dim(kept, jnp.concatenate(stays, 1), start, 1)
        return start + together, worst, kept, allowed

    state: tuple[Array, ...] = (
        jnp.zeros((), jnp.int32),
        jnp.zeros(candidate.shape, boxes.dtype),
        jnp.zeros(candidate.shape, bool),
        jnp.full((lanes, kinds), threshold, boxes.dtype),
    )
    return jax.lax.while_loop(lambda state: state[0] < number, block, state)[2][:, :k]


def decays(boxes: Array, candidate: Array, sigma: float | None, normalized: bool) -> Array:
    """Return the decay factors [lanes, k] of scores by overlap with better boxes (Wang et al., SOLOv2, 2020).

    Args:
        boxes: [size, lanes, k], the best first.
        candidate: bool [lanes, k]; in each lane candidates come first.
        sigma: of a Gaussian decay; None for a linear decay.
        normalized: True if coordinates are fractions of the image, False if they are pixels.

    The overlaps of a candidate with all earlier boxes are known at its step, so that one pass is enough. NaN
    overlaps are ignored.
    """
    number = jnp.max(candidate.sum(axis=1, dtype=jnp.int32), initial=0)
    place = jnp.arange(candidate.shape[1], dtype=jnp.int32)

    def step(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        worst, decay = state
        ours = jax.lax.dynamic_slice_in_dim(boxes, i, 1, 2)
        most = jax.lax.dynamic_slice_in_dim(worst, i, 1, 1)
        common = jnp.where(place > i, overlap(ours, boxes, normalized), 0)
        if sigma is None:
            ratio = (1 - common) / (1 - most)
        else:
            ratio = jnp.exp((most * most - common * common) * sigma)
        ratio = jnp.where(place > i, ratio, 1)
        return jnp.where(common > worst, common, worst), jnp.where(ratio < decay, ratio, decay)

    shape, dtype = candidate.shape, boxes.dtype
    return jax.lax.fori_loop(0, number, step, (jnp.zeros(shape, dtype), jnp.ones(shape, dtype)))[1]


def chosen(kept: Array, scores: Array, limit: int) -> tuple[Array, Array]:
    """Return the indices, int32 [rows, most], of at most `limit` best kept entries of each row, and a mask.

    Indices are in ascending order.

    Args:
        kept: bool [rows, n].
        scores: [rows, n]; the first of equal scores is the better.
        limit: -1 for all.
    """
    n = kept.shape[1]
    kept &= limit != 0
    place = jnp.arange(n, dtype=jnp.int32)
    if 0 <= limit < n:
        values, place = jax.lax.top_k(jnp.where(kept, scores, -jnp.inf), max(limit, 1))
        place = jnp.where(values > -jnp.inf, place.astype(jnp.int32), n)
    else:
        place = jnp.where(kept, place, n)
    place = jnp.sort(place, axis=1)
    return jnp.minimum(place, n - 1), place < n


def in_sequences(entries: Array, real: Array) -> Ragged:
    """Return ragged rows of the `real` entries [sequences, most, ...], which come first in each sequence."""
    level = Level(offsets_of(real.sum(axis=1)), real.shape[1])
    capacity = static_values.placeholder() or real.size
    return Ragged(unpad(entries, level, capacity), (level,))


def nothing(rows: Ragged) -> Ragged:
    """Return the rows, or a single sequence with a single -1 if there are none: Fluid's empty result."""
    offsets, sequences = rows.last.offsets, rows.last.number
    none = offsets[-1] == 0
    levels = (
        Level(
            jnp.where(none & (jnp.arange(sequences + 1) > 0), 1, offsets),
            rows.last.longest,
            count=jnp.where(none, 1, sequences).astype(jnp.int32),
        ),
    )
    return Ragged(
        jnp.where(none, -1, rows.values), levels, columns=jnp.where(none, 1, rows.values.shape[1]).astype(jnp.int32)
    )
