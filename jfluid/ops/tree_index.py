"""Tree-based deep models (TDM): index trees over items for retrieval.

Nodes are numbered; 0 is no node. TreeInfo [nodes, 3 + children] has a row for each node: its item (0 for an
inner node), layer, parent, children.
Source: Zhu et al., "Learning Tree-based Deep Model for Recommender Systems", KDD 2018.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.types import np_dtype
from jfluid.ops.embedding import integer_ids
from jfluid.ops.ragged import Ragged, Value, rows_of
from jfluid.ops.random import key_of
from jfluid.ops.registry import Ints, op


@op("tdm_child", ins=("X", "TreeInfo"), outs=("Child", "LeafMask"), grad=False, rows="map")
def tdm_child(x: Array, tree: Array, *, child_nums: int, dtype: int = 2) -> tuple[Array, Array]:
    """Return the children of nodes, and the mask of leaves: two tensors X.shape + [child_nums].

    An unknown node has children -1.
    """
    integer_ids("tdm_child", x)
    if tree.ndim != 2 or tree.shape[1] != 3 + child_nums:
        raise errors.ShapeError(
            f"tdm_child: expected a TreeInfo [nodes, {3 + child_nums}] for {child_nums} children, "
            f"found {list(tree.shape)}"
        )
    nodes = tree.shape[0]
    children = jnp.take(tree[:, 3:], x, axis=0, mode="clip")
    children = jnp.where(((x == 0) | (children[..., 0] == 0))[..., None], 0, children)
    is_item = jnp.take(tree[:, 0], children, axis=0, mode="clip") != 0
    known = ((x >= 0) & (x < nodes))[..., None]
    out = np_dtype(dtype)
    return jnp.where(known, children, -1).astype(out), (known & is_item).astype(out)


_ROUNDS = 8
_SMALL = 64  # layers of up to this number of nodes are shuffled whole


def _hashed(key: Array, value: Array, limit: Array) -> Array:
    """Return numbers below `limit`, at most 2^16, that follow from key and value (the finalizer of MurmurHash3)."""
    h = key + value.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return (((h >> 16) * limit.astype(jnp.uint32)) >> 16).astype(jnp.int32)


def _scattered(key: Array, rows: int, totals: np.ndarray, index: np.ndarray) -> Array:
    """Apply permutations of 0 ... totals[column] - 1 to index[column]: [rows, columns].

    Each row has a random permutation for each run of columns that `index` counts up from 0.

    A permutation is a Feistel network over pairs of numbers, run again while it leads beyond the
    total (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): places are distinct
    though no two are compared.
    """
    run = np.cumsum(index == 0).astype(np.uint32) * np.uint32(0x632BE5AB)
    keys = jax.random.bits(key, (_ROUNDS, rows, 1), jnp.uint32)
    wide = np.ceil(np.sqrt(totals)).astype(np.int32)
    high = -(-totals // wide)

    def twice(i: Array, place: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = place
        left = left + _hashed(keys[2 * i] + run, right, wide)
        left = jnp.where(left >= wide, left - wide, left)
        right = right + _hashed(keys[2 * i + 1] + run, left, high)
        return left, jnp.where(right >= high, right - high, right)

    def walk(state: tuple[Array, Array]) -> tuple[Array, Array]:
        place, beyond = state
        halves = place // high, place % high
        left, right = jax.lax.fori_loop(0, _ROUNDS // 2, twice, halves)
        place = jnp.where(beyond, left * high + right, place)
        return place, place >= totals

    first = jnp.broadcast_to(index, (rows, len(index)))
    start = first, jnp.ones(first.shape, bool)
    return jax.lax.while_loop(lambda state: jnp.any(state[1]), walk, start)[0]


def _shuffled(key: Array, rows: int, sizes: Sequence[int], counts: Sequence[int]) -> list[Array]:
    """Return the first `count` entries of a random permutation of each size: [rows, count]."""
    begins = np.cumsum([0, *sizes])
    group = np.repeat(np.arange(len(sizes), dtype=np.float32), sizes)
    order = jnp.argsort(jax.random.uniform(key, (rows, len(group))) + group, axis=1)
    return [
        order[:, begin : begin + count].astype(jnp.int32) - begin
        for begin, count in zip(begins.tolist(), counts, strict=False)
    ]


def _places(key: Array, rows: int, sizes: Sequence[int], counts: Sequence[int]) -> list[Array]:
    """Return for each size [rows, count]: places below it, drawn evenly, no two of a row alike."""
    wanted = [i for i, count in enumerate(counts) if count]
    small = [i for i in wanted if sizes[i] <= _SMALL]
    large = [i for i in wanted if sizes[i] > _SMALL]
    found: dict[int, Array] = {}
    if small:
        few = [counts[i] for i in small]
        found |= zip(small, _shuffled(key, rows, [sizes[i] for i in small], few), strict=True)
    if large:
        few = [counts[i] for i in large]
        totals = np.repeat(np.array([sizes[i] for i in large], np.int32), few)
        index = np.concatenate([np.arange(count, dtype=np.int32) for count in few])
        scattered = _scattered(jax.random.fold_in(key, 1), rows, totals, index)
        parts = jnp.split(scattered, np.cumsum(few)[:-1].tolist(), axis=1)
        found |= zip(large, parts, strict=True)
    return [found.get(i, jnp.zeros((rows, 0), jnp.int32)) for i in range(len(sizes))]


def _negatives(key: Array, layer: Array, way: Array, counts: Sequence[int], offsets: Sequence[int]) -> list[Array]:
    """Sample nodes of each layer uniformly without replacement, except the node on the row's path: [rows, count]."""
    sizes = np.diff(offsets).tolist()
    # One more than needed, which stands in for that of the way where it was drawn.
    widths = [count + 1 if count else 0 for count in counts]
    places = jnp.concatenate(_places(key, way.shape[0], sizes, widths), axis=1)
    nodes = jnp.take(layer, places + np.repeat(offsets[:-1], widths), mode="clip")
    found = []
    for i, count in enumerate(counts):
        begin = sum(widths[:i])
        drawn = nodes[:, begin : begin + widths[i]]
        kept, spare = drawn[:, :count], drawn[:, count:]
        found.append(jnp.where(kept == way[:, i : i + 1], spare, kept) if count else kept)
    return found


def _check_layers(travel: Array, layer: Array, counts: Ints, offsets: Ints) -> None:
    if len(offsets) != len(counts) + 1 or travel.shape[1] != len(counts):
        raise errors.ShapeError(
            f"tdm_sampler: expected the same number of layers in neg_samples_num_list ({len(counts)}), "
            f"layer_offset_lod ({len(offsets) - 1}) and Travel {list(travel.shape)}"
        )
    if offsets[-1] > layer.size:
        raise errors.ShapeError(f"tdm_sampler: Layer has {layer.size} nodes, layer_offset_lod ends at {offsets[-1]}")
    for i, (count, begin, end) in enumerate(zip(counts, offsets, offsets[1:], strict=False)):
        if count > end - begin - 1:
            raise errors.ProgramError(
                f"tdm_sampler: layer {i} has {end - begin} nodes, so at most {end - begin - 1} "
                f"negative samples, found neg_samples_num_list[{i}] = {count}"
            )


@op("tdm_sampler", ins=("X", "Travel", "Layer"), outs=("Out", "Labels?", "Mask"), grad=False, rng=True, rows="sequence")
def tdm_sampler(
    x: Value,
    travel: Value,
    layer: Value,
    *,
    output_positive: bool = True,
    neg_samples_num_list: Ints = (),
    layer_offset_lod: Ints = (),
    seed: int = 0,
    dtype: int = 2,
    key: Array,
) -> tuple[Value, Value, Value]:
    """Sample a positive node and negative nodes in each layer of the tree for each leaf.

    The positive node is on the path to the leaf. Returns nodes, labels (1 for positive nodes) and a mask that
    is 0 in layers below the path's end. Each is [leaves, samples of all layers].
    """
    ids = rows_of(x).reshape(-1)
    integer_ids("tdm_sampler", ids)
    _check_layers(travel, layer, neg_samples_num_list, layer_offset_lod)
    # A leaf that the tree does not have gives -1, which no table holds.
    known = (ids >= 0) & (ids < travel.shape[0])
    way = jnp.where(known[:, None], jnp.take(travel, ids, axis=0, mode="clip"), -1)
    nodes, labels = [], []
    drawn = _negatives(key_of(key, seed), layer.reshape(-1), way, neg_samples_num_list, layer_offset_lod)
    for i, negatives in enumerate(drawn):
        positive = way[:, i : i + 1]
        if output_positive:
            nodes.append(positive)
            labels.append(positive > 0)
        nodes.append(jnp.where(positive > 0, negatives, jnp.minimum(positive, 0)))
        labels.append(jnp.zeros(negatives.shape, bool))
    out = np_dtype(dtype)
    found = jnp.concatenate(nodes, axis=1).astype(out)
    results = found, jnp.concatenate(labels, axis=1).astype(out), (found > 0).astype(out)
    if isinstance(x, Ragged) and not x.exact:  # the samples of sequences are no sequences
        padded = [Ragged(r, (), x.count()).refilled() for r in results]
        return padded[0], padded[1], padded[2]
    return results
