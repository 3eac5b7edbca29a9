"""Connectionist temporal classification (CTC): the loss, the best path, and edit distances.

Graves et al., "Connectionist Temporal Classification: Labelling Unsegmented Sequence Data with
Recurrent Neural Networks", 2006. A label of L symbols has 2 L + 1 states: its symbols with a blank
before, between and after them. A path goes through the states from step to step; it may skip a
blank between two different symbols.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import refusals, row_rules, static_values
from jfluid.ops.ragged import Level, Ragged, Value, grouped, need, offsets_of, positions, rows_of, within
from jfluid.ops.registry import Int, op
from jfluid.ops.shape import is_unknown

# The logarithm of a probability that counts as none; finite, so that differences are no NaN.
_NEVER = -1e30


def _log_sum(*terms: Array) -> Array:
    most = functools.reduce(jnp.maximum, terms)
    return most + jnp.log(sum(jnp.exp(t - most) for t in terms))


def _forward(emitted: Array, skips: Array, steps: Array) -> Array:
    """Return the forward log-probabilities [time, number, states] of CTC.

    Entry [t, i, s] is the log-probability of all paths from the first two states to state s after step t.

    Args:
        emitted: [time, number, states]: log-probability that a step emits the state's symbol.
        skips: bool [number, states]: True where a path may skip the state before.
        steps: [number]: lengths of the sequences; a finished sequence keeps its values.
    """
    states = jnp.arange(emitted.shape[2])
    start = jnp.where(states < 2, emitted[0], _NEVER)

    def moved_by(alpha: Array, by: int) -> Array:
        return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=_NEVER)[:, : alpha.shape[1]]

    def advance(alpha: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        now, t = at
        new = now + _log_sum(alpha, moved_by(alpha, 1), jnp.where(skips, moved_by(alpha, 2), _NEVER))
        alpha = jnp.where((t < steps)[:, None], jnp.maximum(new, _NEVER), alpha)
        return alpha, alpha

    times = jnp.arange(1, emitted.shape[0], dtype=jnp.int32)
    _, rest = lax.scan(advance, start, (emitted[1:], times))
    return jnp.concatenate([start[None], rest])


def _reversed(values: Array, lengths: Array, axis: int) -> Array:
    """Reverse each sequence of a batch [time, number, ...] along an axis, within its length."""
    size = values.shape[axis]
    places = jnp.arange(size, dtype=jnp.int32)
    source = jnp.clip(lengths[:, None] - 1 - places, 0, size - 1)  # [number, size]
    index = source.T[..., None] if axis == 0 else source[None]
    return jnp.take_along_axis(values, index, axis=axis)


def _loss_and_slope(logits: Array, labels: Array, steps: Array, symbols: Array, blank: int) -> tuple[Array, Array]:
    """Return (losses [number], their gradients by the logits [time, number, classes]).

    A sequence that is too short for its label has the loss 0 and no gradient, as in Fluid.
    """
    number, most = labels.shape
    chances = jax.nn.log_softmax(logits, axis=2)
    states = jnp.full((number, 2 * most + 1), blank, jnp.int32)
    states = states.at[:, 1::2].set(labels.astype(jnp.int32))
    before = jnp.pad(states, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    skips = (states != blank) & (states != before)
    count = 2 * symbols + 1
    emitted = jnp.take_along_axis(chances, states[None], axis=2, mode="clip")
    emitted = jnp.where(jnp.arange(states.shape[1]) < count[:, None], emitted, _NEVER)
    # Paths from the end are paths from the start of everything backwards: one loop does both.
    backwards = _reversed(_reversed(emitted, steps, 0), count, 2)
    leaves = jnp.pad(skips, ((0, 0), (0, 2)))[:, 2:]  # state s is left for s + 2
    both = _forward(
        jnp.concatenate([emitted, backwards], axis=1),
        jnp.concatenate([skips, _reversed(leaves[None], count, 2)[0]]),
        jnp.concatenate([steps, steps]),
    )
    alpha, beta = both[:, :number], both[:, number:]
    last = jnp.take_along_axis(alpha[-1], jnp.maximum(count - 1, 0)[:, None], axis=1)
    before_last = jnp.take_along_axis(alpha[-1], jnp.maximum(count - 2, 0)[:, None], axis=1)
    total = _log_sum(last, jnp.where(symbols[:, None] > 0, before_last, _NEVER))[:, 0]
    repeats = (states[:, 3::2] == states[:, 1:-2:2]) & (jnp.arange(1, most, dtype=jnp.int32) < symbols[:, None])
    fits = (steps > 0) & (symbols + jnp.sum(repeats, axis=1) <= steps)
    beta = _reversed(_reversed(beta, count, 2), steps, 0)
    visits = jnp.exp(jnp.minimum(alpha + beta - emitted - total[:, None], 0))
    visits = jnp.where(jnp.arange(states.shape[1]) < count[:, None], visits, 0)
    expected = jnp.einsum(
        "tnl,nlc->tnc", visits[..., 1::2], jax.nn.one_hot(labels, logits.shape[2], dtype=logits.dtype)
    )
    expected = expected.at[..., blank].add(visits[..., ::2].sum(-1))
    inside = fits & (jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None] < steps)
    slope = jnp.where(inside[..., None], jnp.exp(chances) - expected, 0)
    return jnp.where(fits, -total, 0), slope


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _ctc_loss(logits: Array, labels: Array, steps: Array, symbols: Array, blank: int, by_times: bool) -> Array:
    return _loss_and_slope(logits, labels, steps, symbols, blank)[0]


def _ctc_forward(
    logits: Array, labels: Array, steps: Array, symbols: Array, blank: int, by_times: bool
) -> tuple[Array, Array]:
    loss, slope = _loss_and_slope(logits, labels, steps, symbols, blank)
    if by_times:
        slope = slope / jnp.maximum(steps, 1).astype(slope.dtype)[:, None]
    return loss, slope


def _ctc_backward(blank: int, by_times: bool, slope: Array, grad: Array) -> tuple[Any, ...]:
    return slope * grad[:, None], None, None, None


_ctc_loss.defvjp(_ctc_forward, _ctc_backward)


@op(
    "warpctc",
    ins=("Logits", "Label", "LogitsLength?", "LabelLength?"),
    outs=("WarpCTCGrad~", "Loss"),
    nograd=("Label", "LogitsLength", "LabelLength"),
    rows=row_rules.without("LogitsLength"),
    refuses=(refusals.lengths("LogitsLength", "Logits", 0), refusals.lengths("LabelLength", "Label", 1)),
)
def warpctc(
    logits: Value,
    label: Value,
    logits_length: Value | None,
    label_length: Value | None,
    *,
    blank: Int = 0,
    norm_by_times: bool = False,
) -> tuple[Value | None, Value]:
    """Return the CTC loss of each sequence [number, 1]: the negative log-probability of the label.

    Logits are ragged rows [rows, classes], or [time, number, classes] with lengths; the operator applies
    softmax. `norm_by_times` divides gradients, not losses, by the numbers of steps.
    """
    classes = rows_of(logits).shape[-1]
    if not 0 <= blank < classes and not is_unknown(classes):
        raise errors.AttributeTypeError(f"warpctc: blank is one of the {classes} classes of Logits, found {blank}")
    if logits_length is None or label_length is None:
        x, y = (_one_level(v, "warpctc", s) for v, s in ((logits, "Logits"), (label, "Label")))
        dense, steps = x.pad(time_major=True), x.last.lengths
        labels, symbols = y.pad().reshape(y.last.number, -1), y.last.lengths
    else:
        x, dense, labels = None, rows_of(logits), rows_of(label)
        if dense.ndim != 3 or labels.ndim not in (2, 3):
            raise errors.ShapeError(
                "warpctc: with lengths, Logits are [time, number, classes] and Label is [number, "
                f"longest], found {dense.shape} and {labels.shape}"
            )
        labels = labels.reshape(labels.shape[:2])
        steps = within(logits_length, dense.shape[0])
        symbols = within(label_length, labels.shape[1])
    _same_number("warpctc", "Logits", steps.shape[0], "Label", symbols.shape[0])
    if not dense.shape[0] or not dense.shape[1]:
        loss = jnp.zeros(steps.shape[0], dense.dtype)
    else:
        labels = jnp.pad(labels, ((0, 0), (0, max(1 - labels.shape[1], 0))))
        loss = _ctc_loss(dense, labels, steps, symbols, blank, norm_by_times)
    return None, loss[:, None] if x is None else grouped(x, loss[:, None])


def _one_level(x: Value, op_type: str, slot: str) -> Ragged:
    x = need(x, op_type, slot)
    if len(x.levels) != 1:
        raise errors.ShapeError(f"{op_type}: {slot} has one level, found {len(x.levels)}")
    return x


def _same_number(op_type: str, a: str, number: int, b: str, other: int) -> None:
    if number != other and static_values.placeholder() is None:
        raise errors.ShapeError(f"{op_type}: one sequence of {b} for each of {a} is needed, found {other} and {number}")


@op(
    "ctc_align",
    ins=("Input", "InputLength?"),
    outs=("Output", "OutputLength?"),
    grad=False,
    rows=row_rules.without("InputLength"),
    refuses=(refusals.lengths("InputLength", "Input", 1),),
)
def ctc_align(
    x: Value, length: Value | None, *, blank: Int = 0, merge_repeated: bool = True, padding_value: Int = 0
) -> tuple[Value, Value | None]:
    """Remove blanks from paths, after repeated symbols are merged to one.

    Paths are ragged rows [rows, 1], or [number, time] with lengths. Where nothing remains of any
    ragged path, the result is one row of -1 that no sequence has, as in Fluid.
    """
    if length is not None:
        ids = rows_of(x).reshape(rows_of(x).shape[:2])
        lengths = within(length, ids.shape[1])[:, None]
        place = jnp.arange(ids.shape[1], dtype=jnp.int32)
        kept = (place < lengths) & (ids != blank)
        if merge_repeated:
            kept &= (place == 0) | (ids != jnp.roll(ids, 1, axis=1))
        order = jnp.argsort(~kept, axis=1, stable=True)
        count = jnp.sum(kept, axis=1, keepdims=True)
        symbols = jnp.where(place < count, jnp.take_along_axis(ids, order, axis=1), padding_value)
        return symbols.astype(ids.dtype), count.astype(rows_of(length).dtype)
    x = _one_level(x, "ctc_align", "Input")
    _, position, real = positions(x.last, x.capacity)
    ids = x.values.reshape(x.capacity)
    kept = real & (ids != blank)
    if merge_repeated:
        kept &= (position == 0) | (ids != jnp.roll(ids, 1))
    before = offsets_of(kept)
    symbols = jnp.where(before[-1] > 0, x.values[jnp.argsort(~kept, stable=True)], -1)
    level = Level(before[x.last.offsets], x.last.longest, count=x.last.count)
    return Ragged(symbols, (level,), jnp.maximum(before[-1], 1)), None


@op(
    "edit_distance",
    ins=("Hyps", "Refs", "HypsLength?", "RefsLength?"),
    outs=("SequenceNum", "Out"),
    grad=False,
    rows=row_rules.without("HypsLength"),
    refuses=(refusals.lengths("HypsLength", "Hyps", 1), refusals.lengths("RefsLength", "Refs", 1)),
)
def edit_distance(
    hyps: Value, refs: Value, hyps_length: Value | None, refs_length: Value | None, *, normalized: bool = False
) -> tuple[Array, Value]:
    """Return the number of sequences, int64 [1], and the edit distance of each, float32 [number, 1].

    The distance is the number of insertions, deletions and substitutions that turn the hypothesis into the
    reference (Levenshtein, "Binary codes capable of correcting deletions, insertions, and reversals", 1966).
    `normalized` divides it by the length of the reference; for an empty reference the result is NaN or
    infinite.
    """
    if hyps_length is None or refs_length is None:
        x, y = (_one_level(v, "edit_distance", s) for v, s in ((hyps, "Hyps"), (refs, "Refs")))
        found, wanted = (v.pad().reshape(v.last.number, v.last.longest) for v in (x, y))
        m, n, count = x.last.lengths, y.last.lengths, x.last.count
    else:
        found, wanted = (rows_of(v).reshape(rows_of(v).shape[:2]) for v in (hyps, refs))
        m, n = within(hyps_length, found.shape[1]), within(refs_length, wanted.shape[1])
        x, count = None, None
    _same_number("edit_distance", "Hyps", m.shape[0], "Refs", n.shape[0])
    places = jnp.arange(wanted.shape[1] + 1, dtype=jnp.int32)

    def advance(costs: Array, at: tuple[Array, Array]) -> tuple[Array, None]:
        symbol, i = at
        replaced = costs[:, :-1] + (symbol[:, None] != wanted)
        left_out = costs + 1
        best = jnp.minimum(left_out[:, 1:], replaced)
        best = jnp.concatenate([left_out[:, :1], best], axis=1)
        put_in = lax.cummin(best - places, axis=1) + places
        return jnp.where((i < m)[:, None], put_in, costs), None

    start = jnp.broadcast_to(places, (m.shape[0], places.shape[0]))
    rows = found.T, jnp.arange(found.shape[1], dtype=jnp.int32)
    costs, _ = lax.scan(advance, start, rows)
    distance = jnp.take_along_axis(costs, n[:, None], axis=1).astype(jnp.float32)
    if normalized:
        distance = distance / n[:, None].astype(jnp.float32)
    number = m.shape[0] if count is None else count
    return (jnp.asarray(number, jnp.int64).reshape(1), distance if x is None else grouped(x, distance))
