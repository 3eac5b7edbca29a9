"""Filter the instances of a batch by tags."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import static_values
from jfluid.ops.ragged import Level, Ragged, Value, column, moved, need, offsets_of, positions, rows_of
from jfluid.ops.registry import Bool, Long, op


@op(
    "filter_by_instag",
    ins=("Ins", "Ins_tag", "Filter_tag"),
    outs=("Out", "LossWeight", "IndexMap"),
    nograd=("Ins_tag", "Filter_tag"),
    rows="sequence",
)
def filter_by_instag(
    ins: Value, tags: Value, wanted: Value, *, is_lod: Bool, out_val_if_empty: Long = 0
) -> tuple[Value, Value, Value]:
    """Keep the instances (rows, or sequences with `is_lod`) that have a tag of Filter_tag.

    Also return a loss weight of 1 for each instance, and an index map: first row in the output, first row in
    the input, number of rows. Without a match there is one row of `out_val_if_empty` with weight 0.
    """
    tags = need(tags, "filter_by_instag", "Ins_tag")
    number, rows = tags.last.number, rows_of(ins)
    if is_lod:
        ins = need(ins, "filter_by_instag", "Ins")
        source = ins.last
    else:
        source = Level(jnp.arange(rows.shape[0] + 1, dtype=jnp.int32), 1)
    if source.number != number and static_values.placeholder() is None:
        raise errors.ShapeError(f"filter_by_instag: Ins has {source.number} instances, Ins_tag {number} lists of tags")
    found = jnp.isin(tags.values.reshape(-1), rows_of(wanted).reshape(-1))
    instance, _, real = positions(tags.last, tags.capacity)
    kept = jnp.zeros(number, jnp.int32).at[instance].max((found & real).astype(jnp.int32)) > 0
    return _chosen(rows, source, kept, out_val_if_empty)


def _chosen(rows: Array, source: Level, kept: Array, fill: int) -> tuple[Any, Any, Any]:
    rank = offsets_of(kept)
    none, count = rank[-1] == 0, jnp.maximum(rank[-1], 1)
    order = jnp.argsort(~kept, stable=True).astype(jnp.int32)
    place = jnp.arange(kept.shape[0], dtype=jnp.int32)
    lengths = jnp.where(place < rank[-1], source.lengths[order], 0)
    lengths = jnp.where(none & (place == 0), 1, lengths)
    level = Level(offsets_of(lengths), max(source.longest, 1), count=count)
    instance, position, real = positions(level, rows.shape[0])
    before = jnp.where(real, source.starts[order[instance]] + position, source.starts[order[0]])
    own, at, inside = positions(source, rows.shape[0])
    after = level.starts[rank[:-1][own]] + at
    out = moved(rows, before, after, inside & kept[own])
    out = jnp.where(none, jnp.asarray(fill, rows.dtype), out)
    by_instance = Level(jnp.minimum(jnp.arange(kept.shape[0] + 1, dtype=jnp.int32), count), 1)
    by_instance = Level(by_instance.given, 1, count=count)
    weight = jnp.broadcast_to(jnp.where(none, 0.0, 1.0), (kept.shape[0], 1)).astype(jnp.float32)
    begins = jnp.where(none, 1, source.starts[order])
    where = jnp.stack([level.starts, begins, lengths], axis=1).astype(jnp.int64)
    where = jnp.where(column(place < count, 2), where, where[:1])
    return (Ragged(out, (level,)), Ragged(weight, (by_instance,)), Ragged(where, (by_instance,)))
