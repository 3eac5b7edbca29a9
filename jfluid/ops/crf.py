"""Linear-chain conditional random fields, and the evaluation of chunks.

Lafferty et al., "Conditional Random Fields", 2001. The transition weights [tags + 2, tags] hold the
weights of starting with a tag, of ending with it, and of going from one (row) to another (column).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid import errors
from jfluid.ops import refusals
from jfluid.ops.ragged import Level, Ragged, Value, grouped, need, offsets_of, positions, rows_of, unpad, within
from jfluid.ops.refusals import RefusalRule
from jfluid.ops.registry import Int, Ints, String, op


def _time_major(op_type: str, emission: Array, length: Any) -> tuple[Array, Array, Ragged | None]:
    """Return (emission [time, number, tags], lengths [number], ragged rows) from ragged or dense input."""
    if length is None:
        x = need(emission, op_type, "Emission")
        return x.pad(time_major=True), x.last.lengths, x
    dense = rows_of(emission)
    return dense.swapaxes(0, 1), within(length, dense.shape[1]), None


def _like(emission: Value, values: Array) -> Value:
    """Return values, one row for each row of the emission, whose number of rows may be padded."""
    return emission.like(values) if isinstance(emission, Ragged) else values


def _labels(label: Value, ragged: Ragged | None) -> Array:
    """Return labels [time, number] in the form of the emission."""
    if ragged is not None:
        values = rows_of(label).reshape(-1, 1)
        return ragged.like(values).pad(time_major=True)[..., 0]
    dense = rows_of(label)
    return dense.reshape(dense.shape[:2]).T


# Sums over all paths of tags, in logarithms: alpha'_j = log(sum_i exp(alpha_i + step_ij)) + x_j. The gradient is
# written by hand: the share of alpha_i in alpha'_j is computed for all steps at once, and a step of the backward
# loop is one product. Past the end of a sequence, sums and gradients stay as they are.


@jax.custom_vjp
def _forward(start: Array, x: Array, steps: Array, inside: Array) -> tuple[Array, Array]:
    """Return the sums at the end, and the sums after each element, which have no gradient.

    Args:
        start: sums of the first elements, [number, tags].
        x: emissions of all further elements, [time, number, tags].
        steps: weights of going from one tag (row) to another (column).
        inside: True for elements of a sequence, [time, number].
    """
    least, most = np.finfo(x.dtype).min, np.finfo(x.dtype).max  # a sum of infinite terms has no greatest term

    def advance(alpha: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        now, here = at
        terms = alpha[:, :, None] + steps
        top = lax.clamp(least, terms.max(1), most)
        new = jnp.log(jnp.exp(terms - top[:, None]).sum(1)) + top + now
        alpha = jnp.where(here[:, None], new, alpha)
        return alpha, alpha

    return lax.scan(advance, start, (x, inside))


def _forward_kept(start: Array, x: Array, steps: Array, inside: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    final, alphas = _forward(start, x, steps, inside)
    return (final, alphas), (start, x, steps, inside, alphas)


def _forward_gradient(kept: tuple[Array, ...], grads: tuple[Array, Array]) -> tuple[Array, Array, Array, None]:
    start, x, steps, inside, alphas = kept
    before = jnp.concatenate([start[None], alphas[:-1]])
    terms = before[..., None] + steps - (alphas - x)[:, :, None]
    shares = jnp.where(inside[..., None, None], jnp.exp(jnp.minimum(terms, 0)), 0)

    def back(grad: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        share, here = at
        here = here[:, None]
        return jnp.where(here, (share * grad[:, None]).sum(2), grad), jnp.where(here, grad, 0)

    grad_start, grad_x = lax.scan(back, grads[0], (shares, inside), reverse=True)
    grad_steps = (shares * grad_x[:, :, None]).sum((0, 1))
    return grad_start, grad_x, grad_steps, None


_forward.defvjp(_forward_kept, _forward_gradient)


@op(
    "linear_chain_crf",
    ins=("Emission", "Transition", "Label", "Length?"),
    outs=("Alpha~", "EmissionExps~", "TransitionExps~", "LogLikelihood"),
    nograd=("Label", "Length"),
    rows="sequence",
    counts=True,
    refuses=(
        refusals.lengths("Length", "Emission", 1),
        RefusalRule(
            "Label",
            lambda ins, attrs: _above_tags(ins["Label"], ins["Transition"].shape[1], ins["Length"]),
            "expected tags up to {limit}, one less than the columns of Transition, found {found}",
        ),
    ),
)
def linear_chain_crf(
    emission: Value, transition: Value, label: Value, length: Value | None
) -> tuple[Value, Value, Value, Value]:
    """Return the negative log-likelihood of each sequence's labels: [number, 1]."""
    x, lengths, ragged = _time_major("linear_chain_crf", emission, length)
    labels = _labels(label, ragged)
    first, last, steps = transition[0], transition[1], transition[2:]
    times = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None]
    inside = times < lengths
    start = first + x[0]
    final, alphas = _forward(start, x[1:], steps, inside[1:])
    log_total = jax.nn.logsumexp(final + last, axis=1)
    hot = jax.nn.one_hot(labels, x.shape[2], dtype=x.dtype) * inside[..., None]
    ends = hot * (times == lengths - 1)[..., None]
    score = (hot * x).sum((0, 2)) + hot[0] @ first + (ends @ last).sum(0)
    score += jnp.einsum("tni,ij,tnj->n", hot[:-1], steps, hot[1:])
    loss = jnp.where(lengths > 0, log_total - score, 0)
    alphas = jax.nn.softmax(jnp.concatenate([start[None], alphas]), axis=2)
    shape = rows_of(emission)
    scaled = jnp.exp(shape - shape.max(-1, keepdims=True))
    if ragged is not None:
        alpha = unpad(alphas, ragged.last, ragged.capacity, True)
    else:
        alpha = jnp.where(inside[..., None], alphas, 0).swapaxes(0, 1)
    extra = [ragged.like(v) if ragged is not None else _like(emission, v) for v in (alpha, scaled)]
    return (
        lax.stop_gradient(extra[0]),
        lax.stop_gradient(extra[1]),
        lax.stop_gradient(jnp.exp(transition)),
        _like(emission, loss[:, None]) if ragged is None else grouped(ragged, loss[:, None]),
    )


def _above_tags(label: Value, tags: int, length: Value | None) -> refusals.Found:
    """Return the mask of real labels that are no valid tag."""
    found = refusals.at_most(label, tags - 1)
    if length is None:
        return found
    places = rows_of(label).reshape(rows_of(label).shape[:2])
    inside = jnp.arange(places.shape[1], dtype=jnp.int32) < within(length, places.shape[1])[:, None]
    return found._replace(wrong=inside & (places >= tags))


@op(
    "crf_decoding",
    ins=("Emission", "Transition", "Label?", "Length?"),
    outs=("ViterbiPath",),
    grad=False,
    rows="sequence",
    counts=True,
    refuses=(refusals.lengths("Length", "Emission", 1),),
)
def crf_decoding(emission: Value, transition: Value, label: Value | None, length: Value | None) -> Value:
    """Return the most likely tags of each sequence (Viterbi decoding).

    With labels, return 1 where the tag equals the label and 0 elsewhere.
    """
    x, lengths, ragged = _time_major("crf_decoding", emission, length)
    first, last, steps = transition[0], transition[1], transition[2:]
    times = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None]
    inside = times < lengths

    def forward(best: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        now, here = at
        scores = best[:, :, None] + steps
        came = jnp.argmax(scores, axis=1).astype(jnp.int32)
        new = jnp.where(here[:, None], jnp.max(scores, axis=1) + now, best)
        return new, jnp.where(here[:, None], came, jnp.arange(x.shape[2], dtype=jnp.int32))

    final, came_from = lax.scan(forward, first + x[0], (x[1:], inside[1:]))
    tag = jnp.argmax(final + last, axis=1).astype(jnp.int32)

    def back(tag: Array, came: Array) -> tuple[Array, Array]:
        before = jnp.take_along_axis(came, tag[:, None], axis=1)[:, 0]
        return before, tag

    start, path = lax.scan(back, tag, came_from, reverse=True)
    path = jnp.concatenate([start[None], path]).astype(jnp.int64)
    if label is not None:
        path = (path == _labels(label, ragged)).astype(jnp.int64)
    if ragged is None:
        return _like(emission, jnp.where(inside, path, 0).T)
    return Ragged(unpad(path[..., None], ragged.last, ragged.capacity, True), ragged.levels, exact=ragged.exact)


# The tags of a chunk by scheme: how many there are, and which begins, continues, ends or is one.
_SCHEMES = {
    "IOB": (2, 0, 1, None, None),
    "IOE": (2, None, 0, 1, None),
    "IOBES": (4, 0, 1, 2, 3),
    "plain": (1, None, None, None, None),
}


def _tags(attrs: Mapping[str, Any]) -> int:
    """Return the number of tags of all chunk types, which is also the tag of words outside chunks."""
    scheme = _SCHEMES.get(attrs["chunk_scheme"])
    return attrs["num_chunk_types"] * scheme[0] if scheme else 0


def _known_tags(slot: str) -> RefusalRule:
    """Return the rule that tags of a slot are of the scheme."""
    return RefusalRule(
        slot,
        lambda ins, attrs: _above_tags(ins[slot], _tags(attrs) + 1, ins["SeqLength"]),
        "expected tags up to {limit}, the types of chunks times the tags of each, found {found}",
    )


@op(
    "chunk_eval",
    ins=("Inference", "Label", "SeqLength?"),
    outs=("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks"),
    grad=False,
    rows="sequence",
    counts=True,
    refuses=(refusals.lengths("SeqLength", "Inference", 1), _known_tags("Inference"), _known_tags("Label")),
)
def chunk_eval(
    inference: Value,
    label: Value,
    length: Value | None,
    *,
    num_chunk_types: Int,
    chunk_scheme: String,
    excluded_chunk_types: Ints = (),
) -> tuple[Array, ...]:
    """Return precision, recall and F1 of tagged chunks; a correct chunk has correct ends and type."""
    if chunk_scheme not in _SCHEMES:
        raise errors.AttributeTypeError(
            f"chunk_eval: chunk_scheme is one of {', '.join(_SCHEMES)}, found {chunk_scheme!r}"
        )
    if length is None:
        x = need(inference, "chunk_eval", "Inference")
        values: Sequence[Array] = rows_of(inference).reshape(-1), rows_of(label).reshape(-1)
    else:
        dense = rows_of(inference)
        number, steps = dense.shape[:2]
        lengths = within(length, steps)
        if isinstance(inference, Ragged):  # padding rows have no words
            lengths = jnp.where(inference.mask(), lengths, 0)
        level = Level(offsets_of(lengths), steps)
        values = [unpad(rows_of(v).reshape(number, steps, 1), level, number * steps)[:, 0] for v in (inference, label)]
        x = Ragged(values[0], (level,))
    sequence, position, real = positions(x.last, x.capacity)
    last = position == x.last.lengths[sequence] - 1
    found, wanted = (
        _chunks(v, position == 0, last, real, num_chunk_types, chunk_scheme, excluded_chunk_types) for v in values
    )
    both = found[0] & wanted[0] & (found[1] == wanted[1]) & (found[2] == wanted[2])
    counts = [jnp.sum(v, dtype=jnp.int64).reshape(1) for v in (found[0], wanted[0], both)]
    inferred, labelled, right = (c.astype(jnp.float32) for c in counts)
    precision = jnp.where(inferred > 0, right / jnp.maximum(inferred, 1), 0)
    recall = jnp.where(labelled > 0, right / jnp.maximum(labelled, 1), 0)
    score = jnp.where(right > 0, 2 * precision * recall / jnp.maximum(precision + recall, 1e-30), 0)
    return precision, recall, score, *counts


def _chunks(
    tags: Array, first: Array, last: Array, real: Array, types: int, scheme: str, excluded: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Return for each row: True if a counted chunk begins at the row, the chunk's type, and the chunk's end row."""
    number, begin, inside, end, single = _SCHEMES[scheme]
    kind, tag = tags // number, tags % number
    outside = (kind >= types) | ~real

    def is_(value: Array, which: int | None) -> Array:
        return jnp.zeros_like(first) if which is None else value == which

    before_kind, before_tag = jnp.roll(kind, 1), jnp.roll(tag, 1)
    closed = is_(before_tag, end) | is_(before_tag, single)
    opens = is_(tag, begin) | is_(tag, single)
    fresh = first | jnp.roll(outside, 1) | (before_kind != kind)
    begins = ~outside & (fresh | opens | ((is_(tag, inside) | is_(tag, end)) & closed))
    after_kind, after_tag = jnp.roll(kind, -1), jnp.roll(tag, -1)
    reopened = (is_(tag, begin) | is_(tag, inside)) & (is_(after_tag, begin) | is_(after_tag, single))
    ends = ~outside & (
        last | jnp.roll(outside, -1) | (after_kind != kind) | reopened | is_(tag, end) | is_(tag, single)
    )
    rows = jnp.arange(tags.shape[0], dtype=jnp.int32)
    until = lax.cummin(jnp.where(ends, rows, tags.shape[0]), reverse=True)
    counted = ~jnp.isin(kind, jnp.asarray(excluded, kind.dtype)) if excluded else True
    return begins & counted, kind, until
