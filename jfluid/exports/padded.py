"""Sequences in padded form: rows `[batch, longest, ...]` and lengths `[batch]`, for formats that have arrays alone."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.exports.model import LoadedModel
from jfluid.exports.sequences import Sequences, Value
from jfluid.ir.variable import Variable
from jfluid.ops.ragged import Level, Ragged

LENGTHS = ".lengths"


def check_levels(model: LoadedModel, longest: int | None) -> None:
    """Raise UnsupportedError for sequences of unbounded length or of several levels."""
    check_one_level(model)
    ragged = [var for var in model.feeds if var.lod_level]
    if ragged and longest is None:
        names = ", ".join(var.name for var in ragged)
        raise errors.UnsupportedError(
            f"export: {names} are sequences of different lengths (LoD), which are exported in padded form: say with "
            "--longest N how many rows a sequence has at most"
        )


def check_one_level(model: LoadedModel) -> None:
    """Raise UnsupportedError for sequences of several levels."""
    deep = [var.name for var in model.feeds if var.lod_level > 1]
    if deep:
        raise errors.UnsupportedError(
            f"export: {', '.join(deep)} have several levels of sequences, only one is exported"
        )


def arguments(feeds: list[Variable], longest: int | None) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Return name, shape and element type of the arguments of an exported model, -1 for any size.

    A feed of sequences has two arguments: `x` of shape `[-1, longest, ...]`, and `x.lengths`.
    """
    found = []
    for var in feeds:
        dtype, shape = np.dtype(var.np_dtype), tuple(var.shape)
        if var.lod_level and longest is not None:
            found.append((var.name, (-1, longest, *shape[1:]), dtype))
            found.append((var.name + LENGTHS, (-1,), np.dtype("int32")))
        else:
            found.append((var.name, shape, dtype))
    return found


def packed(rows: Any, lengths: Any, longest: int) -> Ragged:
    """Return padded rows as an operator takes sequences: one after the other, then padding rows of zeros."""
    flat = rows.reshape(-1, *rows.shape[2:])
    lengths = lengths.astype(jnp.int32)
    offsets = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(lengths, dtype=jnp.int32)])
    places = jnp.arange(longest, dtype=jnp.int32)
    target = jnp.where(places < lengths[:, None], offsets[:-1, None] + places, flat.shape[0]).reshape(-1)
    values = jnp.zeros_like(flat).at[target].set(flat, mode="drop")
    return Ragged(values, (Level(offsets, longest),))


def unpacked(value: Ragged, name: str) -> tuple[Any, Any]:
    """Return sequences of an operator in padded form, with zeros behind each. Raises UnsupportedError."""
    if len(value.levels) != 1 or value.columns is not None:
        raise errors.UnsupportedError(f"export: {name} has no padded form: it has {len(value.levels)} levels")
    level = value.levels[0]
    offsets = level.offsets
    lengths = offsets[1:] - offsets[:-1]
    places = jnp.arange(level.longest, dtype=jnp.int32)
    rows = value.values[jnp.minimum(offsets[:-1, None] + places, value.values.shape[0] - 1)]
    mask = (places < lengths[:, None]).reshape(lengths.shape[0], level.longest, *[1] * (value.values.ndim - 1))
    return jnp.where(mask, rows, jnp.zeros_like(rows)), lengths


def as_arguments(feed: Mapping[str, Value], longest: int | None) -> dict[str, np.ndarray]:
    """Return a feed as the arguments of an exported model."""
    found: dict[str, np.ndarray] = {}
    for name, value in feed.items():
        if isinstance(value, Sequences) and longest is not None:
            lengths = np.diff(value.lod[0])
            padded = np.zeros((len(lengths), longest, *value.rows.shape[1:]), value.rows.dtype)
            padded[np.arange(longest) < lengths[:, None]] = value.rows
            found[name], found[name + LENGTHS] = padded, lengths.astype(np.int32)
        elif isinstance(value, np.ndarray):
            found[name] = value
    return found


def as_sequences(padded: np.ndarray, lengths: np.ndarray) -> Sequences:
    """Return a padded output as sequences."""
    return Sequences.of_lengths(padded[np.arange(padded.shape[1]) < lengths[:, None]], [lengths])
