"""Operators that run once on the rows of all replicas, as on one batch.

A replica's rows do not depend on the rows of other replicas, so most operators may have the rows of all replicas in one
array, replica after replica. XLA then makes the kernels of one device. A dimension for the replicas would keep XLA from
fusing some of the kernels, and from sharing values with several readers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jfluid.ops import ragged_dispatch
from jfluid.ops.definition import OpDef
from jfluid.ops.ragged import Ragged
from jfluid.ops.static_values import Unknown, is_static


def sums_examples(definition: OpDef) -> bool:
    """Return True for the gradient of a value that all examples share."""
    return bool(definition.examples) and definition.type.endswith("_grad")


def outputs(
    definition: OpDef,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    flags: Sequence[bool],
    replicas: int,
) -> tuple[Any, ...] | None:
    """Return an operator's stacked outputs, or the sums over examples; None if it must run for each replica.

    Args:
        inputs: by slot.
        flags: True for each leaf of the inputs that is stacked: [replicas, rows, ...].
    """
    given = _flattened(inputs, flags, replicas)
    if given is None or definition.rng:
        return None
    by_slot = {s.name: v for s, v in zip(definition.ins, given)}
    if definition.wants_replicas:
        return _grouped(definition, by_slot, kwargs, replicas)
    rows = {r.capacity for r in jax.tree.leaves(given, is_leaf=_is_own) if _is_own(r)}
    if len(rows) != 1 or not _by_example(definition, by_slot, kwargs):
        return None
    plain = [jax.tree.map(_values, v, is_leaf=_is_own) for v in given]
    try:
        outs = ragged_dispatch.call(definition, plain, kwargs)
    except Unknown:  # the operator asks for values, which differ by replica
        return None
    if sums_examples(definition):
        return outs
    leaves = jax.tree.leaves(list(outs))
    if any(is_static(v) or jnp.shape(v)[:1] != (*rows,) for v in leaves):
        return None
    return tuple(jax.tree.map(lambda v: stacked(v, replicas), out) for out in outs)


def stacked(rows: Any, replicas: int) -> Any:
    """Return the rows of all replicas, one after the other, as [replicas, rows of each, ...]."""
    return rows.reshape(replicas, rows.shape[0] // replicas, *rows.shape[1:])


def _flattened(inputs: Sequence[Any], flags: Sequence[bool], replicas: int) -> list[Any] | None:
    """Return the inputs with the rows of all replicas as `Ragged` in place of stacked inputs.

    Returns None if a stacked input has no rows, or rows in sequences.
    """
    found: list[Any] = []
    at = 0
    for value in inputs:
        own = []
        for part in _parts(value):
            count = len(jax.tree.leaves(part))
            here, at = flags[at : at + count], at + count
            if not any(here):
                own.append(part)
            elif isinstance(part, jax.Array) and part.ndim > 1:
                flat = part.reshape(replicas * part.shape[1], *part.shape[2:])
                own.append(Ragged(flat, exact=True))
            else:
                return None
        found.append(own if isinstance(value, list) else own[0])
    return found


def _by_example(definition: OpDef, ins: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    """Return True if the operator's examples are independent with these attributes.

    The replicas must share all inputs that are not by example.
    """
    examples, rule = definition.examples, definition.rows
    if callable(examples):
        return examples(attributes, ins)
    own = {n: [_is_own(part) for part in _parts(v)] for n, v in ins.items() if v is not None}
    if any(any(flags) if n not in examples else not all(flags) for n, flags in own.items()):
        return False
    return bool(examples) and (not callable(rule) or rule(attributes, ins) == "map")


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _grouped(
    definition: OpDef, ins: Mapping[str, Any], kwargs: Mapping[str, Any], replicas: int
) -> tuple[Any, ...] | None:
    """Return the outputs of an operator that takes the rows of several replicas, with per-replica values."""
    state = set(definition.inplace.values())
    own = {n for n, v in ins.items() if _is_own(v)}
    if not {"X"} <= own <= {"X"} | state:
        return None
    given = []
    for slot in definition.ins:
        value = _values(ins[slot.name])
        if slot.name in state:
            value = (
                stacked(value, replicas) if slot.name in own else jnp.broadcast_to(value, (replicas, *jnp.shape(value)))
            )
        given.append(value)
    outs = ragged_dispatch.call(definition, given, {**kwargs, "replicas": replicas})
    return tuple(stacked(v, replicas) if s.name in definition.row_outs else v for s, v in zip(definition.outs, outs))


def _is_own(value: Any) -> bool:
    return isinstance(value, Ragged)


def _values(value: Any) -> Any:
    return value.values if isinstance(value, Ragged) else value
