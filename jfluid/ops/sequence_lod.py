"""Operators that change the LoD of rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops import refusals, static_values
from jfluid.ops.axes import check_one_dtype
from jfluid.ops.ragged import (
    Level,
    Ragged,
    Value,
    fitted,
    moved,
    need,
    offsets_of,
    positions,
    resized,
    rows_of,
    spread,
    unpad,
    within,
)
from jfluid.ops.ragged_dispatch import NeedsExactRows
from jfluid.ops.refusals import Found, RefusalRule
from jfluid.ops.registry import Int, Ints, op


@op("sequence_expand", ins=("X", "Y"), outs=("Out",), nograd=("Y",), rows="sequence", counts=True)
def sequence_expand(x: Value, y: Value, *, ref_level: int = -1) -> Value:
    """Repeat row (or sequence) i of x as often as sequence i of a level of y has entries."""
    y = need(y, "sequence_expand", "Y")
    if not -1 <= ref_level < len(y.levels):
        raise errors.AttributeTypeError(f"sequence_expand: ref_level: Y has {len(y.levels)} levels, found {ref_level}")
    level = y.levels[ref_level]
    below = y.capacity if level is y.last else y.levels[ref_level + 1].number
    exact = bool(level.uniform) or (y.exact and level is y.last)
    sequences = isinstance(x, Ragged) and bool(x.levels)
    if level is y.levels[0] and level.count is None:  # deeper levels may hold padding sequences
        _agree("sequence_expand", x, x.last.number if sequences else rows_of(x).shape[0], level)
    if sequences:
        return _repeated(x, level, below)
    values = rows_of(x)
    out = spread(resized(values, level.number), level, below)
    return out if exact else Ragged(out, (), level.offsets[-1])


def _agree(op_type: str, x: Value, number: int, level: Level, of: str = "Y") -> None:
    """Raise ShapeError if x and `level` differ in the number of sequences; a ragged x may have padding."""
    differ = number < level.number if isinstance(x, Ragged) else number != level.number
    if differ and not static_values.placeholder():
        raise errors.ShapeError(f"{op_type}: X has {number} rows (or sequences), {of} {level.number} sequences")


def _repeated(x: Ragged, times: Level, copies: int) -> Ragged:
    """Repeat sequence i of x for each entry in sequence i of `times`; at most `copies` entries."""
    if len(x.levels) > 1:
        raise errors.ShapeError(f"sequence_expand: X may have one level, found {len(x.levels)}")
    each = spread(jnp.arange(times.number, dtype=jnp.int32), times, copies)
    lengths = jnp.where(jnp.arange(copies) < times.offsets[-1], x.last.lengths[each], 0)
    level = Level(offsets_of(lengths), x.last.longest, count=times.offsets[-1])
    capacity = max(min(x.capacity * times.longest, copies * x.last.longest), 1)
    copy, position, _ = positions(level, capacity)
    return Ragged(jnp.take(x.values, x.last.starts[each[copy]] + position, axis=0, mode="clip"), (level,))


@op("sequence_expand_as", ins=("X", "Y"), outs=("Out",), nograd=("Y",), rows="sequence", counts=True)
def sequence_expand_as(x: Value, y: Value) -> Value:
    """Repeat row i of x as often as sequence i of y has rows; the result has the LoD of y."""
    y = need(y, "sequence_expand_as", "Y")
    values = rows_of(x)
    _agree("sequence_expand_as", x, values.shape[0], y.last)
    return Ragged(spread(resized(values, y.last.number), y.last, y.capacity), (y.last,), exact=y.exact)


@op("sequence_concat", ins=("X*",), outs=("Out",), rows="sequence", counts=True)
def sequence_concat(xs: list[Value]) -> Value:
    """Join sequence i of the first input, of the second and so on, to one sequence."""
    xs = [need(x, "sequence_concat", "X") for x in xs]
    check_one_dtype(xs, "sequence_concat")
    numbers = {x.last.number for x in xs}
    if len(numbers) > 1:
        raise errors.ShapeError(
            f"sequence_concat: inputs of one number of sequences are needed, found {sorted(numbers)}"
        )
    level = Level(sum(x.last.offsets for x in xs), sum(x.last.longest for x in xs), count=xs[0].last.count)
    capacity = sum(x.capacity for x in xs)
    sequence, position, _ = positions(level, capacity)
    source, base, back, real = jnp.zeros(capacity, jnp.int32), 0, [], []
    before: Any = 0  # of each sequence, the rows that it has from the inputs so far
    for x in xs:
        lengths = x.last.lengths
        start = before[sequence] if base else 0
        here = (position >= start) & (position < start + lengths[sequence])
        source = jnp.where(here, base + x.last.starts[sequence] + position - start, source)
        own, at, valid = positions(x.last, x.capacity)
        back.append(level.starts[own] + (before[own] if base else 0) + at)
        real.append(valid)
        before, base = before + lengths, base + x.capacity
    values = jnp.concatenate([x.values for x in xs])
    out = moved(values, source, jnp.concatenate(back), jnp.concatenate(real))
    return Ragged(out, (level,), exact=all(x.exact for x in xs))


@op("sequence_reverse", ins=("X",), outs=("Y",), rows="sequence", counts=True)
def sequence_reverse(x: Value) -> Value:
    """Reverse the order of the rows of each sequence."""
    x = need(x, "sequence_reverse", "X")
    if len(x.levels) != 1:
        raise errors.ShapeError(f"sequence_reverse: X of one level is needed, found {len(x.levels)}")
    sequence, position, real = positions(x.last, x.capacity)
    rows = jnp.arange(x.capacity, dtype=jnp.int32)
    source = jnp.where(real, x.last.offsets[1:][sequence] - 1 - position, rows)
    return x.like(moved(x.values, source, source, real))


def _each(values: Value, level: Level) -> Array:
    """Return int64 [number]: a value for each sequence of a level, 0 for padding sequences."""
    flat = rows_of(values).reshape(-1).astype(jnp.int64)[: level.number]
    real = level.number if level.count is None else level.count
    flat = jnp.pad(flat, (0, level.number - flat.shape[0]))
    return jnp.where(jnp.arange(level.number, dtype=jnp.int32) < real, flat, 0)


def _slice_offsets(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> Found | None:
    if not isinstance(ins["X"], Ragged) or not ins["X"].levels:
        return None
    level = ins["X"].last
    offset = _each(ins["Offset"], level)
    return Found((offset < 0) | (offset > level.lengths), offset, level.steps())


def _slice_lengths(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> Found | None:
    if not isinstance(ins["X"], Ragged) or not ins["X"].levels:
        return None
    level = ins["X"].last
    length = _each(ins["Length"], level)
    left = level.lengths - jnp.clip(_each(ins["Offset"], level), 0, level.lengths)
    return Found((length < 0) | (length > left), length, level.steps())


@op(
    "sequence_slice",
    ins=("X", "Offset", "Length"),
    outs=("Out",),
    nograd=("Offset", "Length"),
    rows="sequence",
    counts=True,
    refuses=(
        RefusalRule(
            "Offset",
            _slice_offsets,
            "expected an offset in each sequence of X, whose longest has {limit} rows, found {found}",
        ),
        RefusalRule(
            "Length",
            _slice_lengths,
            "expected at most the rows of each sequence of X from its offset on; the longest has "
            "{limit} rows, found {found}",
        ),
    ),
)
def sequence_slice(x: Value, offset: Value, length: Value) -> Value:
    """Return `Length` rows of each sequence, from `Offset` on; both have to be in the sequence."""
    x = need(x, "sequence_slice", "X")
    for slot, value in (("Offset", offset), ("Length", length)):
        if rows_of(value).size < x.last.number and not static_values.placeholder():
            raise errors.ShapeError(
                f"sequence_slice: X has {x.last.number} sequences, {slot} {rows_of(value).size} numbers"
            )
    offset = within(_each(offset, x.last), x.last.lengths)
    length = within(_each(length, x.last), x.last.lengths - offset)
    level = Level(offsets_of(length), x.last.longest, count=x.last.count)
    sequence, position, real = positions(level, x.capacity)
    source = jnp.where(real, x.last.starts[sequence] + offset[sequence] + position, 0)
    own, at, valid = positions(x.last, x.capacity)
    kept = valid & (at >= offset[own]) & (at < offset[own] + length[own])
    return Ragged(moved(x.values, source, level.starts[own] + at - offset[own], kept), (level,))


def _too_long(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> Found | None:
    x, most = ins["X"], attrs["padded_length"]
    if not isinstance(x, Ragged) or not x.levels or x.last.longest <= most:
        return None
    return Found(x.last.lengths > most, x.last.lengths, most)


def _tight(x: Ragged, what: str) -> Ragged:
    """Return the rows with the exact length of the longest sequence, or raise if it is unknown.

    `what` names the length in errors.
    """
    level = x.last
    if x.exact or level.uniform or level.tight:
        return x
    if not static_values.is_static(level.given):
        raise static_values.unknown(level.given, what)
    longest = int(np.diff(np.asarray(level.given)).max(initial=0))
    return replace(x, levels=(*x.levels[:-1], level.tightened(longest)))


@op(
    "sequence_pad",
    ins=("X", "PadValue"),
    outs=("Out", "Length"),
    nograd=("PadValue",),
    rows="sequence",
    counts=True,
    refuses=(
        RefusalRule(
            "X",
            _too_long,
            "expected sequences of at most maxlen, {limit}, rows, found lengths {found}",
            lambda op: op.attrs.get("padded_length", -1) != -1,
        ),
    ),
)
def sequence_pad(x: Value, pad_value: Value, *, padded_length: int = -1) -> tuple[Value, Value]:
    """Pad sequences to [number, padded_length, ...] with PadValue, and return their lengths.

    A padded_length of -1 is the length of the longest sequence.
    """
    x = need(x, "sequence_pad", "X")
    if padded_length == -1 and static_values.placeholder() is None:
        x = _tight(x, "the longest sequence, to which sequence_pad without maxlen pads,")
    level = x.last
    dense = x.pad()
    if padded_length != -1:
        missing = padded_length - dense.shape[1]
        dense = (
            dense[:, :padded_length]
            if missing <= 0
            else jnp.pad(dense, ((0, 0), (0, missing)) + ((0, 0),) * (dense.ndim - 2))
        )
    mask = jnp.arange(dense.shape[1], dtype=jnp.int32) < level.lengths[:, None]
    fill = pad_value.astype(x.dtype)
    fill = fill.reshape(()) if fill.size == 1 else fill
    out = jnp.where(mask.reshape(mask.shape + (1,) * (dense.ndim - 2)), dense, fill)
    return _one_row_each(x, out), _one_row_each(x, level.lengths.astype(jnp.int64))


def _one_row_each(x: Ragged, values: Any) -> Any:
    """Return values, a row for each sequence of the last level of `x`, as rows without a LoD."""
    total = _number_of_sequences(x)
    return values if total is None else Ragged(values, (), total).refilled()


def _number_of_sequences(x: Ragged) -> Any:
    """Return the number of sequences of the last level, or None if no sequence is padding."""
    if x.exact:
        return None
    return x.last.count if len(x.levels) == 1 else x.levels[-2].offsets[-1]


@op(
    "sequence_unpad",
    ins=("X", "Length"),
    outs=("Out",),
    nograd=("Length",),
    rows="sequence",
    counts=True,
    refuses=(refusals.lengths("Length", "X", 1),),
)
def sequence_unpad(x: Value, length: Value) -> Value:
    """Return the first `Length` steps of each row of x [number, steps, ...] as sequences.

    A LoD of x, which ids may have, says nothing.
    """
    rows, steps = rows_of(x), x.shape[1]
    lengths, count = within(length, steps), None
    if isinstance(length, Ragged) and not length.exact:
        lengths, count = jnp.where(length.mask(), lengths, 0), length.count()
    number = lengths.shape[0]
    if isinstance(x, Ragged) and not x.exact and x.capacity > number:
        rows = rows[:number]  # later rows are padding
    if rows.shape[0] != number and not static_values.placeholder():
        raise errors.ShapeError(f"sequence_unpad: X has {rows.shape[0]} rows, and Length has {number} lengths")
    dense = rows if rows.ndim > 2 else rows[..., None]
    level = Level(offsets_of(lengths), steps, count=count)
    return Ragged(unpad(dense, level, rows.shape[0] * steps), (level,))


def _not_divided(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> Found | None:
    x, new = ins["X"], attrs["new_dim"]
    if not isinstance(x, Ragged) or not x.levels or x.shape[1] % new == 0:
        return None
    return Found(x.last.lengths % (new // x.shape[1]) != 0, x.last.lengths, new // x.shape[1])


@op(
    "sequence_reshape",
    ins=("X",),
    outs=("Out",),
    rows="sequence",
    counts=True,
    refuses=(
        RefusalRule(
            "X",
            _not_divided,
            "expected sequences whose rows make whole rows of new_dim numbers, multiples of {limit}, "
            "found lengths {found}",
        ),
    ),
)
def sequence_reshape(x: Value, *, new_dim: Int) -> Value:
    """Reshape rows to the width `new_dim`: a sequence keeps its numbers, and its row count changes."""
    x = need(x, "sequence_reshape", "X")
    width = x.shape[1]
    if (width % new_dim and new_dim % width) and static_values.placeholder() is None:
        raise errors.ShapeError(
            f"sequence_reshape: new_dim {new_dim} neither divides nor is a multiple of the width {width}"
        )
    ratio = max(new_dim // width, 1)
    values = resized(x.values, -(-x.capacity // ratio) * ratio).reshape(-1, new_dim)
    scaled = [
        level.offsets // ratio * max(width // new_dim, 1) if level is x.last else level.offsets for level in x.levels
    ]
    levels = tuple(
        Level(o, max(-(-level.longest * width // new_dim), 1) if level is x.last else level.longest, count=level.count)
        for o, level in zip(scaled, x.levels)
    )
    return Ragged(values, levels, exact=x.exact and x.capacity % ratio == 0)


@op("sequence_erase", ins=("X",), outs=("Out",), grad=False, rows="sequence", counts=True)
def sequence_erase(x: Value, *, tokens: Ints) -> Value:
    """Remove the ids `tokens` from the sequences."""
    x = need(x, "sequence_erase", "X")
    _, _, real = positions(x.last, x.capacity)
    ids = x.values.reshape(x.capacity)
    kept = real & ~jnp.isin(ids, jnp.asarray(tokens, ids.dtype)) if tokens else real
    before = offsets_of(kept)
    order = jnp.argsort(~kept, stable=True)
    return Ragged(x.values[order], x.levels[:-1] + (Level(before[x.last.offsets], x.last.longest, count=x.last.count),))


def _wrong_offsets(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> Found | None:
    x, y, rows = ins["X"], ins["Y"], refusals.count_of(ins["X"])
    if not (isinstance(y, Ragged) and y.levels):
        return refusals.offsets(rows_of(y), rows) if rows_of(y).size else None
    ours = x.levels[-1:] if isinstance(x, Ragged) else ()
    if any(level.given is not None and level.given is y.last.given for level in ours):
        return None  # of one LoD
    end = refusals.count_of(y)
    if isinstance(rows, int) and isinstance(end, int) and rows == end:
        return None
    return Found(jnp.asarray(end).reshape(1) != rows, end, rows)


def _wrong_above(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> Found | None:
    x, y = ins["X"], ins["Y"]
    if not (isinstance(x, Ragged) and x.levels and attrs["append"]):
        return None
    below = y.levels[0] if isinstance(y, Ragged) and y.levels else None
    number: Any = (len(attrs["target_lod"]) if y is None else rows_of(y).size) - 1
    if below is not None:
        number = below.number if below.count is None else below.count
    return Found(x.last.offsets[-1:] != number, x.last.offsets[-1:], number)


@op(
    "lod_reset",
    ins=("X", "Y?"),
    outs=("Out",),
    nograd=("Y",),
    rows="sequence",
    counts=True,
    refuses=(
        RefusalRule(
            "Y",
            _wrong_offsets,
            "expected offsets that start at 0, never fall and end at the {limit} rows of X, found {found}",
        ),
        RefusalRule(
            "X",
            _wrong_above,
            "append: the LoD of X has to end at the {limit} sequences of the level that is added, found {found}",
            lambda op: bool(op.attrs.get("append")),
        ),
    ),
)
def lod_reset(x: Value, y: Value | None, *, target_lod: Ints = (), append: bool = False) -> Value:
    """Replace the LoD of x by the LoD of Y, the offsets in Y, or `target_lod`; `append` adds a level."""
    values, exact = rows_of(x), not isinstance(x, Ragged) or x.exact
    levels = x.levels if isinstance(x, Ragged) and append else ()
    if isinstance(y, Ragged) and y.levels:
        values = resized(values, y.capacity)
        return Ragged(values, _above(levels, y.levels[0]) + y.levels, exact=y.exact)
    if y is not None:
        offsets = rows_of(y).reshape(-1)
        if len(offsets) < 2 and static_values.placeholder() is None:
            raise errors.ShapeError(
                "lod_reset: Y: expected the offsets of one or more sequences, from 0 to the rows of X, "
                f"found {len(offsets)} numbers"
            )
        level = Level(fitted(offsets, refusals.count_of(x)), values.shape[0])
        return Ragged(values, (*_above(levels, level), level), exact=exact)
    if not target_lod and static_values.placeholder() is None:
        raise errors.AttributeTypeError("lod_reset: give Y or target_lod")
    if not exact and static_values.placeholder() is None:
        raise NeedsExactRows("lod_reset with target_lod needs the exact number of rows, to hold the offsets against")
    offsets = np.asarray(target_lod, np.int32)
    if (
        offsets[0] != 0
        or (np.diff(offsets) < 0).any()
        or (exact and not static_values.placeholder() and offsets[-1] != len(values))
    ):
        raise errors.ShapeError(
            f"lod_reset: offsets must start at 0, never fall and end at the {len(values)} rows of X, "
            f"found {list(target_lod)}"
        )
    level = Level(jnp.asarray(offsets), int(np.diff(offsets).max(initial=0)))
    return Ragged(values, (*_above(levels, level), level), exact=exact)


def _above(levels: tuple[Level, ...], below: Level) -> tuple[Level, ...]:
    """Return `levels` with the last level clipped to the number of sequences of `below`."""
    if not levels:
        return ()
    last = levels[-1]
    if last.uniform and last.uniform * last.longest <= below.number:
        return levels
    return (*levels[:-1], replace(last, given=fitted(last.offsets, below.number), uniform=0))


def number_like(x: Array, input_dim_idx: int) -> tuple[int, Ragged | None]:
    """Return the batch size for `*_batch_size_like` operators, and the ragged rows that it counts."""
    if not isinstance(x, Ragged) or input_dim_idx != 0:
        return x.shape[input_dim_idx], None
    if not x.levels:
        return x.capacity, x
    total = _number_of_sequences(x)
    return x.last.number, None if total is None else Ragged(x.last.lengths, (), total)
