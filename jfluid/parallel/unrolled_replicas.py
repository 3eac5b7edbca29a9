"""Replicas of one process whose shapes differ: the operators are traced for each replica in turn, in one XLA program.

An example is `sequence_pad` without maxlen, which pads each replica's sequences to the longest sequence.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.lower import Known
from jfluid.compile.lowering.plan import Item
from jfluid.ops.selected_rows import SelectedRows
from jfluid.parallel.phases import Phase

Env = dict[str, Any]


class OfReplicas(np.ndarray):
    """Values of the replicas, stacked, that must be known while tracing and differ."""


def differ(known: Known) -> bool:
    """Return True if a known value differs by replica."""
    return any(isinstance(value, OfReplicas) for values in known.values() for value in values.values())


def check(items: Iterable[Item]) -> None:
    """Raise UnsupportedError for operators that compute with the values of all replicas."""
    for _, op, definition in items:
        if definition.collective or op.type.startswith("sync_batch_norm"):
            raise errors.UnsupportedError(
                f"operator {op.type} computes with the values of all replicas, and the shapes differ here: feed "
                "batches in which all replicas have sequences of one length, or run the program on one device"
            )


def of_one(replica: int, values: Mapping[str, Any], stacked: Iterable[str]) -> Env:
    """Return the values by name of a replica."""
    own = {n: values[n] for n in stacked if n in values}
    return {**values, **{n: _part(replica, v) for n, v in own.items()}}


def known_to(replica: int, known: Known) -> Known:
    """Return the known values of a replica."""
    return {
        path: {n: np.asarray(v)[replica] if isinstance(v, OfReplicas) else v for n, v in values.items()}
        for path, values in known.items()
    }


def _part(replica: int, value: Any) -> Any:
    return value[replica] if isinstance(value, tuple) else jax.tree.map(lambda leaf: leaf[replica], value)


def key_of(replica: int, key: Any) -> Any:
    """Return the random key of a replica."""
    return None if key is None else jax.random.fold_in(key, replica)


def each(
    replicas: int, env: Env, stacked: Iterable[str], key: Any, known: Known, run: Callable[[Env, Any, Known], Env]
) -> list[Env]:
    """Return the values of each replica after `run`."""
    return [run(of_one(i, env, stacked), key_of(i, key), known_to(i, known)) for i in range(replicas)]


def run(
    phase: Phase,
    env: Env,
    stacked: set[str],
    key: Any,
    watch: list[trace.Watched] | None,
    known: Known,
    replicas: int,
    own: frozenset[str],
) -> set[str]:
    """Run a phase in each replica; add the results to `env`, and return the names of the stacked values.

    Results whose shapes differ by replica become tuples with the value of each replica.

    Args:
        own: the state with a value for each replica.
    """
    check(phase.items)

    def replica(mine: Env, key: Any, known: Known) -> Env:
        return trace.lower(phase.items, mine, key, watch, known, on_gpus=False)

    found = each(replicas, env, stacked, key, known, replica)
    for name in phase.reduced:
        if name in found[0]:
            env[name] = _sum([f[name] for f in found])
    apart = {n for n in {*phase.per_replica_outputs, *own} if n in found[0]}
    env.update((n, _together([f[n] for f in found])) for n in apart)
    env.update((n, found[0][n]) for n in phase.shared_outputs if n in found[0] and n not in apart)
    written = {n for _, op, _ in phase.items for n in op.output_arg_names} | set(phase.reduced)
    return (stacked - written) | apart


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], SelectedRows):
        rows, parts = (jnp.concatenate(v) for v in zip(*[(v.rows, v.values) for v in values]))
        return SelectedRows(rows, parts, values[0].height, summed=True)
    return sum(values[1:], values[0])


def _together(values: Sequence[Any]) -> Any:
    """Return values of the replicas stacked, or as a tuple if their shapes differ."""
    if len({_form(v) for v in values}) > 1:
        return tuple(values)
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *values)


def _form(value: Any) -> Any:
    leaves, structure = jax.tree.flatten(value)
    return structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
