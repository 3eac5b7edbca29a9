"""Phases of a data-parallel step: computations of each replica on its share of the batch, and common updates.

Replicas compute forward and backward. Then gradients are all-reduced, and updates (operators of the
role Optimize) are traced once, over whole arrays, which XLA's partitioner distributes over the
devices according to their shardings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax

from jfluid import errors
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.plan import Item, Plan
from jfluid.ir.block import reads_of, writes_of
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.variable import EMPTY_NAME
from jfluid.ops.collective import AXIS


@dataclass
class Phase:
    """Operators that run together.

    Attributes:
        per_replica: True if each replica runs the operators.
        host: True if the host runs the operators.
        given: gradients that the host has computed in each replica, to be all-reduced here.
        reads: inputs of the operators.
        reduced: gradients that are all-reduced at the end of the phase.
        per_replica_outputs: outputs that differ by replica and are needed later.
        shared_outputs: values of the Scope that replicas write, with equal values or, as running statistics,
            different values.
    """

    items: list[Item]
    per_replica: bool
    host: bool = False
    given: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    reduced: list[str] = field(default_factory=list)
    per_replica_outputs: list[str] = field(default_factory=list)
    shared_outputs: list[str] = field(default_factory=list)


def gradients_of(items: Sequence[Item]) -> dict[str, str]:
    """Gradient -> parameter, for all gradients that updates read."""
    found: dict[str, str] = {}
    for _, op, _ in items:
        pairs = op.attrs.get("op_role_var", ())
        if op.attrs.get("op_role", 0) & OpRole.Backward:
            found.update(zip(pairs[1::2], pairs[::2]))
    return found


def summed_by(item: Item) -> set[str]:
    """Return the outputs of an operator that have the sum over replicas already."""
    _, op, definition = item
    return {n for slot in definition.sums for n in op.output(slot)}


def split(plan: Plan, sums: Sequence[str] = ()) -> list[list[Phase]]:
    """Return the phases of each segment of a plan.

    Raises UnsupportedError for updates of values that differ by replica, and for programs that
    all-reduce gradients themselves.

    Args:
        sums: gradients to be all-reduced besides the gradients that updates read.
    """
    items = [item for segment in plan.segments for item in segment.ops]
    gradients = gradients_of(items) | dict.fromkeys(sums, "")
    for item in items:
        for name in summed_by(item):
            gradients.pop(name, None)
    for _, op, definition in items:
        if definition.collective and not definition.sums and not writes_of(op).isdisjoint(gradients):
            raise errors.UnsupportedError(
                f"operator {op.type} sums gradients, and with_data_parallel would sum the gradients again: run "
                "a program of mode 'collective' by Executor.run itself" + _at(op)
            )
    found: list[list[Phase]] = []
    given: list[str] = []
    for segment in plan.segments:
        if segment.host:
            found.append([Phase(segment.ops, not any(_updates(op) for _, op, _ in segment.ops), host=True)])
            given += sorted({n for _, op, _ in segment.ops for n in writes_of(op)} & set(gradients))
        else:
            found.append([Phase([], True, given=given)] * bool(given) + _grouped(segment.ops))
            given = []
    _wire([phase for phases in found for phase in phases], plan, gradients)
    return found


def _updates(op: Operator) -> bool:
    return bool(op.attrs.get("op_role", 0) & (OpRole.Optimize | OpRole.LRSched))


def _grouped(items: list[Item]) -> list[Phase]:
    """Move operators that do not depend on an update before it, so that there are few phases."""
    phases = [Phase([], True)]
    updated: set[str] = set()  # names that phases over whole arrays have written so far
    touched: set[str] = set()  # names that phases over whole arrays have read
    for item in items:
        op = item[1]
        reads, writes = reads_of(op), writes_of(op)
        if _updates(op):
            if phases[-1].per_replica:
                phases.append(Phase([], False))
            phases[-1].items.append(item)
            updated |= writes
            touched |= reads
        elif not (reads & updated or writes & (updated | touched)):
            next(p for p in reversed(phases) if p.per_replica).items.append(item)
        else:
            if not phases[-1].per_replica:
                phases.append(Phase([], True))
                updated, touched = set(), set()
            phases[-1].items.append(item)
    return [p for p in phases if p.items]


def _wire(phases: list[Phase], plan: Plan, gradients: dict[str, str]) -> None:
    # Names of values that differ by replica: the values depend on feeds or on random numbers.
    differ = {n for n in plan.feeds if not plan.block.vars[n].persistable}
    known = set(plan.feeds) | set(plan.state)
    written: list[set[str]] = []
    for phase in phases:
        inside: set[str] = set(phase.given)
        needs = dict.fromkeys(phase.given)
        for item in phase.items:
            _, op, definition = item
            reads = {*op.input_arg_names, *reads_of(op)} - {EMPTY_NAME}
            needs.update((n, None) for n in sorted(reads & known - inside))
            inside |= writes_of(op)
            if phase.per_replica and (reads & differ or definition.rng):
                differ |= writes_of(op)
            differ -= summed_by(item)
        phase.reads = list(needs)
        if phase.host and phase.per_replica and not (differ & (inside | set(phase.reads))):
            phase.per_replica = False  # it is the same for all
        if phase.per_replica:
            differ -= set(plan.updated)
        else:
            _refuse_apart(phase, differ - set(gradients))
            differ -= inside
        known |= inside
        written.append(inside)
    later = set(plan.fetches)
    for phase, inside in zip(reversed(phases), reversed(written)):
        if phase.per_replica:
            by_updates = set().union(*(p.reads for p in phases if not p.per_replica))
            # The next phase all-reduces the host's gradients.
            phase.reduced = (
                [] if phase.host else sorted(n for n in inside if n in gradients and n in by_updates | later)
            )
            phase.per_replica_outputs = sorted((inside & later & differ) - set(phase.reduced))
            phase.shared_outputs = sorted(
                (inside & (later | set(plan.updated))) - set(phase.reduced) - set(phase.per_replica_outputs)
            )
        later |= set(phase.reads)


def per_replica_before(segments: Sequence[Sequence[Phase]], fed: set[str]) -> list[set[str]]:
    """Return the names of values that differ by replica, before each segment and after the last; `fed` at first."""
    found = [set(fed)]
    for segment in segments:
        now = set(found[-1])
        for phase in segment:
            now -= (
                {n for _, op, _ in phase.items for n in op.output_arg_names}
                | set(phase.reduced)
                | set(phase.shared_outputs)
            )
            now |= set(phase.per_replica_outputs)
        found.append(now)
    return found


def recorded(group: Sequence[Phase], env: dict[str, Any], key: Any) -> dict[str, Any]:
    """Trace the phases of a segment without rewrites, as one replica runs the phases; return the values by name.

    Raises NoRule.
    """
    own = None if key is None else jax.random.fold_in(key, lax.axis_index(AXIS))
    for phase in group:
        env = trace.recorded(phase.items, env, own if phase.per_replica else key)
        for name in phase.reduced:
            if name in env:
                gradient = trace.dense(f"the gradient {name}", env[name])
                env[name] = lax.psum(gradient, AXIS)
    return env


def _refuse_apart(phase: Phase, differ: set[str]) -> None:
    for _, op, _ in phase.items:
        strange = sorted(reads_of(op) & differ & set(phase.reads))
        if strange:
            raise errors.UnsupportedError(
                f"operator {op.type} updates by {strange[0]}, which each replica has for itself: "
                "with data parallelism updates may read parameters, gradients and schedules" + _at(op)
            )


def _at(op: Operator) -> str:
    return f"\n  made at: {op.callsite}" if op.callsite else ""
