"""Operators that change which rows belong to which sequence."""
import math

import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.ops import known
from jfluid.ops.ragged import (
    Level,
    Ragged,
    column,
    grouped,
    marked,
    moved,
    need,
    offsets_of,
    positions,
    resized,
    rows_of,
    spread,
    unpad,
)
from jfluid.ops.registry import Int, Ints, op
from jfluid.ops.rows import NeedsExactRows


@op("sequence_expand", ins=("X", "Y"), outs=("Out",), nograd=("Y",), rows="sequence")
def sequence_expand(x, y, *, ref_level=-1):
    """Row (or sequence) i of x as often as sequence i of a level of y has entries."""
    y = need(y, "sequence_expand", "Y")
    if not -1 <= ref_level < len(y.levels):
        raise errors.AttributeTypeError(f"sequence_expand: ref_level: Y has {len(y.levels)} levels, found {ref_level}")
    level = y.levels[ref_level]
    below = y.capacity if level is y.last else y.levels[ref_level + 1].number
    exact = bool(level.uniform) or (y.exact and level is y.last)
    if isinstance(x, Ragged) and x.levels:
        return _repeated(x, level, below)
    values = rows_of(x)
    if level is y.levels[0] and level.count is None:  # deeper levels may hold padding sequences
        _agree("sequence_expand", values.shape[0], level.number)
    out = spread(resized(values, level.number), level, below)
    return out if exact else Ragged(out, (), level.offsets[-1])


def _agree(op_type: str, rows: int, sequences: int) -> None:
    if rows < sequences and not known.placeholder():
        raise errors.ShapeError(f"{op_type}: X has {rows} rows (or sequences), Y {sequences} sequences")


def _one_level(x, op_type: str, slot: str) -> Ragged:
    """`x` as rows with exactly one level, which is all that Fluid takes there."""
    x = need(x, op_type, slot)
    if len(x.levels) != 1:
        raise errors.ShapeError(f"{op_type}: {slot} of one level is needed, found {len(x.levels)}")
    return x


def _repeated(x: Ragged, times: Level, entries: int) -> Ragged:
    """Sequence i of x as often as `times` has entries in i, of `entries` in all."""
    if len(x.levels) > 1:
        raise errors.ShapeError(f"sequence_expand: X may have one level, found {len(x.levels)}")
    _agree("sequence_expand", x.last.number, times.number)
    copies = max(min(times.number * times.longest, entries), 1)
    each = spread(jnp.arange(times.number, dtype=jnp.int32), times, copies)
    lengths = jnp.where(jnp.arange(copies) < times.offsets[-1], x.last.lengths[each], 0)
    level = Level(offsets_of(lengths), x.last.longest, count=times.offsets[-1])
    capacity = max(min(x.capacity * times.longest, copies * x.last.longest), 1)
    copy, position, _ = positions(level, capacity)
    return Ragged(jnp.take(x.values, x.last.starts[each[copy]] + position, axis=0, mode="clip"), (level,))


@op("sequence_expand_as", ins=("X", "Y"), outs=("Out",), nograd=("Y",), rows="sequence")
def sequence_expand_as(x, y):
    """Row i of x as often as sequence i of y has rows, with the LoD of y."""
    y = _one_level(y, "sequence_expand_as", "Y")
    values = rows_of(x)
    _agree("sequence_expand_as", values.shape[0], y.last.number)
    return Ragged(spread(resized(values, y.last.number), y.last, y.capacity), (y.last,), exact=y.exact)


@op("sequence_concat", ins=("X*",), outs=("Out",), rows="sequence")
def sequence_concat(xs):
    """Sequence i of the first, then of the second ... as one sequence."""
    xs = [_one_level(x, "sequence_concat", "X") for x in xs]
    numbers = {x.last.number for x in xs}
    if len(numbers) > 1:
        raise errors.ShapeError(f"sequence_concat: inputs of one number of sequences are needed, found {sorted(numbers)}")
    longest = sum(x.last.longest for x in xs)
    if all(x.last.uniform for x in xs):
        level = Level(None, longest, numbers.pop())
    else:
        level = Level(sum(x.last.offsets for x in xs), longest, count=xs[0].last.count, loose=True)
    capacity = sum(x.capacity for x in xs)
    sequence, position, _ = positions(level, capacity)
    source, before, base, back, real = jnp.zeros(capacity, jnp.int32), 0, 0, [], []
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


@op("sequence_reverse", ins=("X",), outs=("Y",), rows="sequence")
def sequence_reverse(x):
    """The rows of each sequence in reverse order."""
    x = _one_level(x, "sequence_reverse", "X")
    sequence, position, real = positions(x.last, x.capacity)
    rows = jnp.arange(x.capacity, dtype=jnp.int32)
    source = jnp.where(real, x.last.offsets[1:][sequence] - 1 - position, rows)
    return x.like(moved(x.values, source, source, real))


@op("sequence_slice", ins=("X", "Offset", "Length"), outs=("Out",), nograd=("Offset", "Length"), rows="sequence")
def sequence_slice(x, offset, length):
    """`Length` rows of each sequence, from `Offset` on; NaN where some sequence has fewer."""
    x = _one_level(x, "sequence_slice", "X")
    wanted = [rows_of(v).reshape(-1).astype(jnp.int32) for v in (offset, length)]
    _agree("sequence_slice", wanted[0].shape[0], x.last.number)
    offset = jnp.clip(wanted[0], 0, x.last.lengths)
    length = jnp.clip(wanted[1], 0, x.last.lengths - offset)
    valid = (offset == wanted[0]) & (length == wanted[1])
    if x.last.count is not None:
        valid |= jnp.arange(x.last.number, dtype=jnp.int32) >= x.last.count
    level = Level(offsets_of(length), x.last.longest, count=x.last.count)
    sequence, position, real = positions(level, x.capacity)
    source = jnp.where(real, x.last.starts[sequence] + offset[sequence] + position, 0)
    own, at, there = positions(x.last, x.capacity)
    kept = there & (at >= offset[own]) & (at < offset[own] + length[own])
    return Ragged(marked(valid.all(), moved(x.values, source, level.starts[own] + at - offset[own], kept)), (level,))


@op("sequence_pad", ins=("X", "PadValue"), outs=("Out", "Length"), nograd=("PadValue",), rows="sequence")
def sequence_pad(x, pad_value, *, padded_length=-1):
    """[number, padded_length, ...] with PadValue behind each sequence, and the lengths. -1 is the longest sequence's.

    NaN for a sequence that is longer.
    """
    x = need(x, "sequence_pad", "X")
    level, cut = x.last, -1 < padded_length < x.last.longest
    tight = known.placeholder() is None and (bool(level.uniform) or (x.exact and not level.loose))
    if padded_length == -1 and not tight and known.placeholder() is None:
        raise NeedsExactRows("sequence_pad without maxlen needs the exact length of the longest sequence; give maxlen where "
                             "the lengths depend on data")
    if cut and tight:
        raise errors.ShapeError(f"sequence_pad: maxlen {padded_length} is less than the longest sequence, {level.longest}")
    dense = x.pad()
    if padded_length != -1:
        missing = padded_length - dense.shape[1]
        dense = dense[:, :padded_length] if missing <= 0 else jnp.pad(
            dense, ((0, 0), (0, missing)) + ((0, 0),) * (dense.ndim - 2))
    mask = jnp.arange(dense.shape[1], dtype=jnp.int32) < level.lengths[:, None]
    fill = pad_value.astype(x.dtype)
    fill = fill.reshape(()) if fill.size == 1 else fill
    out = jnp.where(mask.reshape(mask.shape + (1,) * (dense.ndim - 2)), dense, fill)
    out = marked(column(level.lengths <= padded_length, out.ndim), out) if cut else out
    return grouped(x, out), grouped(x, level.lengths.astype(jnp.int64))


@op("sequence_unpad", ins=("X", "Length"), outs=("Out",), nograd=("Length",), rows="sequence")
def sequence_unpad(x, length):
    """The first `Length` steps of each row of x [number, steps, ...], as sequences; NaN where some row has fewer."""
    number, steps = x.shape[:2]
    wanted = rows_of(length).reshape(-1)
    lengths = jnp.clip(wanted, 0, steps).astype(jnp.int32)
    dense = rows_of(x) if x.ndim > 2 else rows_of(x)[..., None]
    count = None
    if isinstance(x, Ragged) and not x.exact:
        lengths, count = jnp.where(x.mask(), lengths, 0), x.count()
        wanted = jnp.where(x.mask(), wanted, 0)
    level = Level(offsets_of(lengths), steps, count=count)
    return Ragged(marked((wanted == lengths).all(), unpad(dense, level, number * steps)), (level,))


@op("sequence_reshape", ins=("X",), outs=("Out",), rows="sequence")
def sequence_reshape(x, *, new_dim: Int):
    """Rows of another width: a sequence keeps its numbers, and gets more or fewer rows; NaN where they do not fill rows."""
    x = need(x, "sequence_reshape", "X")
    width = x.shape[1]
    several = new_dim // math.gcd(width, new_dim)  # rows make whole new ones only so many at a time
    values = resized(x.values, -(-x.capacity // several) * several).reshape(-1, new_dim)
    scaled = [(level.offsets * width) // new_dim if level is x.last else level.offsets for level in x.levels]
    levels = tuple(Level(o, max(-(-level.longest * width // new_dim), 1) if level is x.last else level.longest,
                         count=level.count) for o, level in zip(scaled, x.levels))
    out = Ragged(values, levels, exact=x.exact and x.capacity % several == 0)
    if several == 1:
        return out
    whole = (x.last.offsets * width % new_dim == 0).all()
    return out.like(marked(whole, values if out.exact else jnp.where(column(out.mask(), 2), values, values[:1])))


@op("sequence_erase", ins=("X",), outs=("Out",), grad=False, rows="sequence")
def sequence_erase(x, *, tokens: Ints):
    """The sequences without the ids `tokens`."""
    x = need(x, "sequence_erase", "X")
    _, _, real = positions(x.last, x.capacity)
    ids = x.values.reshape(x.capacity)
    kept = real & ~jnp.isin(ids, jnp.asarray(tokens, ids.dtype)) if tokens else real
    before = offsets_of(kept)
    order = jnp.argsort(~kept, stable=True)
    return Ragged(x.values[order], x.levels[:-1] + (Level(before[x.last.offsets], x.last.longest, count=x.last.count),))


@op("lod_reset", ins=("X", "Y?"), outs=("Out",), nograd=("Y",), rows="sequence")
def lod_reset(x, y, *, target_lod: Ints = (), append=False):
    """x with another LoD: that of Y; or the offsets that Y holds, or `target_lod`, which `append` adds as a level."""
    values, exact = rows_of(x), not isinstance(x, Ragged) or x.exact
    levels = x.levels if isinstance(x, Ragged) and append else ()
    count = values.shape[0] if exact else x.count()
    if isinstance(y, Ragged) and y.levels:
        return _with_lod(values, count, y, exact)
    if y is not None and not known.is_known(rows_of(y)):
        offsets = rows_of(y).reshape(-1).astype(jnp.int32)
        return Ragged(marked(offsets[-1] == count, values), (*levels, Level(offsets, values.shape[0], loose=True)), exact=exact)
    target_lod = target_lod if y is None else tuple(np.asarray(rows_of(y)).ravel().tolist())
    if not target_lod and known.placeholder() is None:
        raise errors.AttributeTypeError("lod_reset: give Y or target_lod")
    if not exact and known.placeholder() is None:
        raise NeedsExactRows("lod_reset with target_lod needs the exact number of rows, to hold the offsets against")
    offsets = np.asarray(target_lod, np.int32)
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or (exact and not known.placeholder() and offsets[-1] != len(values)):
        raise errors.ShapeError(f"lod_reset: offsets must start at 0, never fall and end at the {len(values)} rows of X, "
                                f"found {list(target_lod)}")
    level = Level(jnp.asarray(offsets), int(np.diff(offsets).max(initial=0)))
    return Ragged(values, (*levels, level), exact=exact)


def _with_lod(values, count, y: Ragged, exact: bool) -> Ragged:
    """Rows, `count` of which are real, with the LoD of y; NaN where y has another number of them."""
    if exact and y.exact and known.placeholder() is None and values.shape[0] != y.capacity:
        raise errors.ShapeError(f"lod_reset: X has {values.shape[0]} rows, the LoD of Y is of {y.capacity}")
    rows = resized(values, y.capacity)
    return Ragged(rows if exact and y.exact else marked(y.count() == count, rows), y.levels, exact=y.exact)


def number_like(x, input_dim_idx: int) -> tuple[int, Ragged | None]:
    """What `*_batch_size_like` takes for the batch: the sequences of x, or its dimension; and whose rows they are."""
    if not isinstance(x, Ragged) or input_dim_idx != 0:
        return x.shape[input_dim_idx], None
    if not x.levels:
        return x.capacity, x
    total = x.last.count if len(x.levels) == 1 else x.levels[-2].offsets[-1]
    padded = total is not None and not x.exact
    return x.last.number, Ragged(x.last.lengths, (), total) if padded else None
