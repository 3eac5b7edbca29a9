"""Hashed embeddings of the n-grams of a text, without a vocabulary.

An n-gram's vector is concatenated from pieces of one flat table, at indices that are hashes of the n-gram.
Bloom filters may select n-grams. A filter is stored as bytes in a float32 parameter: four 64-bit numbers
(a magic number, the numbers of bits, hashes and entries), then the bits, the highest bit of each byte first.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid import errors
from jfluid.ops import unrolled
from jfluid.ops.hashing import murmur3, xxh32
from jfluid.ops.ragged import Level, Ragged, Value, need, offsets_of, positions, rows_of
from jfluid.ops.random import key_of
from jfluid.ops.registry import op

_MAGIC = 17070416
_LONGEST = 64  # words of an n-gram: each length is written out


class NGrams:
    """N-grams of 2 to `longest` words in sequences, shortest first, in order of position.

    Args:
        x: words, integers [rows, 1].
    """

    def __init__(self, x: Ragged, longest: int):
        self.level, self.capacity = x.last, x.capacity
        words = x.values.reshape(-1).astype(jnp.float32)  # the bytes that Fluid hashes
        sequence, position, real = positions(x.last, x.capacity)
        row = jnp.arange(x.capacity, dtype=jnp.int32)
        self.words = [
            jnp.stack([jnp.take(words, row + i, mode="clip") for i in range(size)], axis=1)
            for size in range(2, longest + 1)
        ]
        room = x.last.lengths[sequence] - position
        fits = [real & (room >= size) for size in range(2, longest + 1)]
        self.fits = jnp.concatenate(fits)
        self.sequence = jnp.tile(sequence, longest - 1)

    def by_sequence(self, chosen: Array) -> tuple[Array, Array]:
        """Sort the chosen n-grams by sequence, unchosen last, and return the order and each sequence's start."""
        key = jnp.where(chosen, self.sequence, self.level.number)
        order = jnp.argsort(key, stable=True).astype(jnp.int32)
        counts = jnp.zeros(self.level.number, jnp.int32).at[self.sequence].add(chosen)
        return order, offsets_of(counts)

    def rows(self, chosen: Array) -> tuple[Level, Array, Array]:
        """Return the level of the result's rows, the n-gram of each row, and True for rows that have an n-gram.

        A sequence without n-grams has one row without an n-gram.
        """
        order, starts = self.by_sequence(chosen)
        counts = jnp.diff(starts)
        lengths = jnp.maximum(counts, 1)
        if self.level.count is not None:
            real = jnp.arange(self.level.number, dtype=jnp.int32) < self.level.count
            lengths = jnp.where(real, lengths, 0)
        most = max(self.level.longest * len(self.words), 1)
        level = Level(offsets_of(lengths), most, count=self.level.count)
        sequence, position, real = positions(level, order.shape[0] + self.level.number)
        ngram = order[jnp.clip(starts[sequence] + position, 0, order.shape[0] - 1)]
        return level, ngram, real & (position < counts[sequence])

    def places(self, width: int, piece: int, space: int) -> Array:
        """Return the indices [n-grams, width] in the table of the elements of each n-gram's vector."""
        seeds = jnp.arange(0, width, piece, dtype=jnp.uint32)
        hashes = jnp.concatenate([xxh32(words[:, None], seeds) for words in self.words])
        start = (hashes % np.uint32(space)).astype(jnp.int32)
        index = start[:, :, None] + jnp.arange(piece, dtype=jnp.int32)
        return index.reshape(-1, width)

    def listed(self, blob: Array) -> Array:
        """Return the mask of n-grams in the Bloom filter (Bloom, 1970) that a parameter holds."""
        return jnp.concatenate([_listed(w, _words_of(blob)) for w in self.words])


def _words_of(blob: Array) -> Array:
    return lax.bitcast_convert_type(blob.reshape(-1).astype(jnp.float32), jnp.uint32)


def _number(words: Array, at: int) -> Array:
    low, high = words[2 * at].astype(jnp.uint64), words[2 * at + 1].astype(jnp.uint64)
    return low | high << np.uint64(32)


def _is_filter(words: Array) -> Array:
    return _number(words, 0) == np.uint64(_MAGIC)


def _listed(ngrams: Array, filter_words: Array) -> Array:
    bits = jnp.maximum(_number(filter_words, 1), np.uint64(1))
    # without a filter the number of hashes may be anything
    hashes = jnp.where(_is_filter(filter_words), _number(filter_words, 2), np.uint64(0))

    def is_set(place: Array) -> Array:
        place = (place % bits).astype(jnp.int64)
        word = jnp.take(filter_words, 8 + (place >> 5), mode="clip")
        shift = ((place >> 3) & 3) * 8 + 7 - (place & 7)
        return (word >> shift.astype(jnp.uint32)) & np.uint32(1) != 0

    def probe(i: Array, found: Array) -> Array:
        a, b = murmur3(ngrams, i.astype(jnp.uint64))
        return found & is_set(a) & is_set(b)

    start = jnp.ones(ngrams.shape[0], bool)
    return lax.fori_loop(jnp.int64(0), hashes.astype(jnp.int64), probe, start)


def _check(num_emb: int, rand_len: int, space_len: int, longest: int, w: Array) -> None:
    if longest < 2 or rand_len < 1 or num_emb % rand_len or num_emb < 1 or space_len < 1:
        raise errors.AttributeTypeError(
            "pyramid_hash: num_emb is a multiple of rand_len, space_len at least 1 and "
            f"pyramid_layer at least 2, found {num_emb}, {rand_len}, {space_len} and {longest}"
        )
    unrolled.times("pyramid_hash", "pyramid_layer", longest, _LONGEST)
    if w.size != space_len + rand_len:
        raise errors.ShapeError(
            f"pyramid_hash: W is [space_len + rand_len, 1], expected {[space_len + rand_len, 1]}, found {list(w.shape)}"
        )


@op(
    "pyramid_hash",
    ins=("X", "W", "WhiteList", "BlackList"),
    outs=("Out", "DropPos", "X_Temp_Out~"),
    nograd=("W", "WhiteList", "BlackList"),
    rng=True,
    rows="sequence",
)
def pyramid_hash(
    x: Value,
    w: Array,
    white: Array,
    black: Array,
    *,
    key: Array,
    num_emb: int = 0,
    space_len: int = 0,
    pyramid_layer: int = 2,
    rand_len: int = 0,
    drop_out_percent: float = 0.0,
    is_training: int = 0,
    use_filter: bool = True,
    white_list_len: int = 0,
    black_list_len: int = 0,
    seed: int = 0,
    lr: float = 0.0,
    distribute_update_vars: str = "",
) -> tuple[Value, Value, Value]:
    """Return the hashed embeddings [n-grams, num_emb] of n-grams of 2 to pyramid_layer words.

    A sequence without n-grams has one row of zeros. Also return the mask of kept n-grams, and the words as
    numbers. In training an n-gram is dropped with the probability `drop_out_percent`; at inference vectors are
    multiplied by it, as in Fluid. An invalid filter list gives NaN, where Fluid stops.
    """
    x = need(x, "pyramid_hash", "X")
    _check(num_emb, rand_len, space_len, pyramid_layer, w)
    ngrams = NGrams(x, pyramid_layer)
    chosen, broken = ngrams.fits, jnp.zeros((), bool)
    if use_filter:
        for blob, size, wanted in ((white, white_list_len, True), (black, black_list_len, False)):
            if size and blob.size >= 8:
                chosen &= ngrams.listed(blob) == wanted
            if size:
                words = _words_of(blob) if blob.size >= 8 else jnp.zeros(2, jnp.uint32)
                broken |= ~_is_filter(words)
    if is_training and drop_out_percent > 0:
        chosen &= jax.random.uniform(key_of(key, seed), chosen.shape) >= drop_out_percent
    level, ngram, has_ngram = ngrams.rows(chosen)
    vectors = jnp.take(w.reshape(-1), ngrams.places(num_emb, rand_len, space_len)[ngram], mode="clip")
    vectors *= jnp.asarray(1 if is_training else drop_out_percent, w.dtype)
    out = jnp.where(broken, jnp.nan, jnp.where(has_ngram[:, None], vectors, 0)).astype(w.dtype)
    order, starts = ngrams.by_sequence(ngrams.fits)
    flags = jnp.where(jnp.arange(order.shape[0]) < starts[-1], chosen[order], False)
    flags = jnp.pad(flags.astype(jnp.int32), (0, x.capacity))[:, None]
    words = x.values.astype(w.dtype).reshape(-1, 1)
    return (Ragged(out, (level,)), _plain(x, flags, pyramid_layer), _plain(x, words, 1))


def _plain(x: Ragged, values: Array, times: int) -> Any:
    return values if x.exact else Ragged(values, (), x.count() * times).refilled()


# Fluid's gradient operator trains the table itself, by plain gradient descent.
@op(
    "pyramid_hash_grad",
    ins=("X", "W", "DropPos", "X_Temp_Out?", "Out@GRAD"),
    outs=("X@GRAD?", "W"),
    inplace={"W": "W"},
    grad=False,
    rows="sequence",
)
def pyramid_hash_grad(
    x: Value,
    w: Array,
    kept: Value,
    words: Value | None,
    grad: Value,
    *,
    num_emb: int = 0,
    space_len: int = 0,
    pyramid_layer: int = 2,
    rand_len: int = 0,
    drop_out_percent: float = 0.0,
    is_training: int = 0,
    use_filter: bool = True,
    white_list_len: int = 0,
    black_list_len: int = 0,
    seed: int = 0,
    lr: float = 0.0,
    distribute_update_vars: str = "",
) -> tuple[None, Array]:
    """Return the table less `lr` times the gradients of the elements that were taken from it."""
    x = need(x, "pyramid_hash_grad", "X")
    ngrams = NGrams(x, pyramid_layer)
    order, _ = ngrams.by_sequence(ngrams.fits)
    flags = rows_of(kept).reshape(-1)[: order.shape[0]] != 0
    chosen = jnp.zeros_like(flags).at[order].set(flags) & ngrams.fits
    _, ngram, has_ngram = ngrams.rows(chosen)
    places = ngrams.places(num_emb, rand_len, space_len)[ngram]
    step = jnp.where(has_ngram[:, None], rows_of(grad)[: ngram.shape[0]] * -lr, 0).astype(w.dtype)
    return None, w.reshape(-1).at[places].add(step).reshape(w.shape)
