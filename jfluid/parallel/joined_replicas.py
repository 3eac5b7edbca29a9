"""Replicas of one process on the CPU as one XLA program on the first device, with all threads.

Parameters and the optimizer's state exist once. State that replicas write separately, as batch
norm's running statistics, is stacked beside the first replica's value, which the Scope holds.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jfluid.compile.dynamic_shapes.segment import FeedShares
from jfluid.compile.dynamic_shapes.stream import ShapeStream
from jfluid.compile.lowering import trace, update_dependencies
from jfluid.compile.lowering.lower import LONGEST, Known, needed
from jfluid.compile.lowering.plan import Plan
from jfluid.compile.runtime import filter_layouts, padding
from jfluid.compile.runtime.fetched_array import fetched
from jfluid.compile.runtime.placement import Computed, Env, OneDevice
from jfluid.compile.runtime.slots import Batch
from jfluid.ir.variable import Parameter
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.collective import AXIS
from jfluid.ops.ragged_dispatch import NeedsExactRows
from jfluid.parallel import phases, replica_feeds, unrolled_replicas, vmapped_lowering
from jfluid.parallel.per_replica_state import PER_REPLICA
from jfluid.parallel.replica_feeds import Uneven
from jfluid.parallel.unrolled_replicas import OfReplicas
from jfluid.parallel.vmapped_lowering import Kind, Kinds, NotJoined, apart, total


@functools.partial(jax.tree_util.register_dataclass, data_fields=["first", "stacked"], meta_fields=[])
@dataclass(frozen=True)
class _OwnValues:
    """Value of the Scope for each replica.

    Attributes:
        first: the first replica's value; None in a step's arguments.
        stacked: the values of all replicas.
    """

    first: Any
    stacked: Any


class JoinedReplicas(OneDevice):
    """Placement of the replicas of one process as one program. See `of` for its conditions.

    Args:
        groups: the phases of each segment.
        own: the state with a value for each replica.
    """

    divides = False  # replicas are divided in another way
    _joins_slots = False  # the batch of a loader is not divided

    def __init__(
        self,
        plan: Plan,
        device: jax.Device,
        replicas: int,
        groups: list[list[phases.Phase]],
        own: frozenset[str],
    ):
        super().__init__(plan, device)
        self._replicas = self.replicas = replicas
        self._phases, self._own = groups, own
        self._fed_whole = {n for n in plan.feeds if plan.block.vars[n].persistable}
        fed = set(plan.feeds) - self._fed_whole
        self._per_replica = phases.per_replica_before(groups, fed)
        self.pads = len(plan.segments) == 1 and not self._fed_whole
        self._stacker = replica_feeds.Stacker(joins=replicas, uneven=self.pads)
        self._apart: dict[str, Any] = {}  # state of this trace that each replica has for itself

    @classmethod
    def of(cls, plan: Plan, device: jax.Device, replicas: int, sums: Sequence[str]) -> "JoinedReplicas | None":
        """Return the placement of a plan, or None if replicas need devices of their own.

        Replicas need devices for host operators, blocks inside operators, collective operators, and gradients that are
        read before they are summed. Raises as `phases.split`.
        """
        groups = phases.split(plan, sums)
        if any(phase.host for group in groups for phase in group):
            return None
        every = [phase for group in groups for phase in group]
        ops = [op for p in every if not p.per_replica for _, op, _ in p.items]
        by_updates = {n for op in ops for n in [*op.input_arg_names, *op.output_arg_names]}
        # values that may differ by replica in a different program
        others = {n for n in plan.state if not isinstance(plan.block.vars.get(n), Parameter)}
        others -= by_updates
        try:
            own = _own_state(plan, every, frozenset())
            _own_state(plan, every, own | others)
        except NotJoined:
            return None
        placement = cls(plan, device, replicas, groups, own)
        orders = filter_layouts.of(plan, device)
        placement.held = {n: order for n, order in orders.items() if n not in own | others}
        return placement

    def _identity(self) -> tuple[Any, ...]:
        sums = [[phase.reduced for phase in group] for group in self._phases]
        return "joined replicas", self._replicas, sorted(self._own), repr(sums)

    # ---- values ----

    def place(self, values: Env) -> dict[str, jax.Array]:
        stacked = {n: found for n, v in values.items() if (found := self._of_replicas(n, v)) is not None}
        placed = super().place(values)
        for name, value in stacked.items():
            PER_REPLICA.add(placed[name], jax.device_put(value, self.device))
        return placed

    def _of_replicas(self, name: str, value: Any) -> Any:
        """Return the values of replicas that ran on devices of their own, stacked, or None if all values are equal."""
        known = PER_REPLICA.get(value)
        if (
            known is not None
            or not isinstance(value, jax.Array)
            or (name in self.plan.updated and name not in self._own)
        ):
            return known
        shards = value.addressable_shards if value.is_fully_addressable else []
        if len(shards) != self._replicas or not value.sharding.is_fully_replicated or self._replicas == 1:
            return None
        parts = [np.asarray(shard.data) for shard in shards]
        return None if all(map(np.array_equal, parts[1:], parts[:-1])) else np.stack(parts)

    def sequence_sizes(self) -> padding.SequenceBuckets | None:
        return self._stacker.buckets

    def enter(self, feeds: Any) -> Env:
        """Return the feed of each replica, stacked."""
        mine = [{n: v for n, v in part.items() if n not in self._fed_whole} for part in feeds]
        entered: Env = self._stacker.stack(mine) if mine else {}
        return entered | {n: feeds[0][n] for n in self._fed_whole}

    def enter_again(self, feeds: Mapping[str, Any], batches: Sequence[Batch]) -> Env | None:
        if self._fed_whole:
            return None
        found: Env = {}
        ragged: dict[str, LoDTensor] = {}
        for name, value in feeds.items():
            if type(value) is LoDTensor:
                if value._lod:
                    ragged[name] = value
                    continue
                value = value.value
            rows = len(value) if type(value) is np.ndarray and value.ndim else 0
            if not rows or rows % self._replicas:
                return None
            found[name] = value.reshape(self._replicas, -1, *value.shape[1:])
        if ragged or batches:
            divided = self._stacker.divided(ragged, self._replicas, batches)
            return found | divided if found and divided is not None else divided
        return found

    def parts(self, name: str, value: Any) -> list[Any]:
        if isinstance(value, Uneven):
            return list(value)
        value = jax.tree.map(np.asarray, value)
        if isinstance(value, tuple):
            return [padding.trimmed(part) for part in value]
        if name in self._per_replica[-1]:
            return [padding.trimmed(jax.tree.map(lambda leaf, i=i: leaf[i], value)) for i in range(self._replicas)]
        return [padding.trimmed(value)] * self._replicas

    def merged(self, name: str, value: Any) -> np.ndarray | None:
        if name not in self._per_replica[-1] or not isinstance(value, jax.Array):
            return None
        replicas, *rows = value.shape
        return fetched(value).reshape(replicas * rows[0] if rows else replicas, *rows[1:])

    def known(self, at: int, name: str, value: Any, computed: bool) -> np.ndarray:
        if not computed and name not in self._per_replica[at]:
            return np.asarray(value)
        own = np.asarray(value)
        alike = all(np.array_equal(part, own[0]) for part in own)
        return np.asarray(own[0]) if alike else own.view(OfReplicas)

    def everywhere(self, at: int, value: Any) -> np.ndarray:
        return np.asarray(value)

    # ---- batches of every shape ----

    def feed_shares(self) -> FeedShares:
        return self

    def shares(self, name: str, value: Any) -> Sequence[Any] | None:
        return replica_feeds.opened(value)

    def divided(self, result: Any) -> Sequence[Any]:
        return list(np.asarray(result))

    def together(self, parts: Sequence[np.ndarray]) -> Any:
        return replica_feeds.together(parts)

    def check_exact(self, values: Mapping[str, Any]) -> None:
        replica_feeds.check_even(values)

    def recorded(
        self,
        at: int,
        values: Env,
        shapes: Mapping[str, tuple[int, ...]],
        key: Any,
        gives: Sequence[str],
    ) -> Any:
        one: Env = {
            n: jax.ShapeDtypeStruct(v.stacked.shape[1:], v.stacked.dtype)
            for n, v in values.items()
            if isinstance(v, _OwnValues)
        }
        return super().recorded(at, values | one, shapes, key, gives)

    def _replicas_of(self, at: int) -> int | None:
        return self._replicas

    def _run_recorded(self, at: int, env: Env, key: Any) -> Env:
        return phases.recorded(self._phases[at], env, key)

    def lower_computed(self, at: int, env: Env, compute: Computed, key: Any, true: Any) -> None:
        stacked = self._opened(at, env)
        apart_after = self._per_replica[at + 1] | self._own
        segment = self.plan.segments[at]

        def replicas(env: Env) -> Env:
            def replica(mine: Env, alike: Env, true: Any, key: Any) -> tuple[Env, Env]:
                found = compute(alike | mine, key, true)
                gives = {n: found[n] for n in segment.gives}
                own = {n: v for n, v in gives.items() if n in apart_after}
                return own, {n: v for n, v in gives.items() if n not in own}

            mapped = jax.vmap(
                replica,
                in_axes=(0, None, 0, None),
                out_axes=(0, None),
                axis_name=AXIS,
                axis_size=self._replicas,
            )
            mine = {n: env[n] for n in stacked if n in env}
            alike = {n: v for n, v in env.items() if n not in mine}
            apart, shared = mapped(mine, alike, true, key)
            env.update(shared | apart)
            return env

        trace.laid_out(replicas, segment.ops, env, True, self.held)
        self._keep_first(env, apart_after)

    # ---- calls ----

    def call(self, segment: Any, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        if self._own or len(PER_REPLICA):
            donated = tuple([self._given(n, v) for n, v in zip(segment.donated, donated)])
            kept = tuple([self._given(n, v) for n, v in zip(segment.kept, kept)])
        if not isinstance(segment.call, ShapeStream):
            self.check_exact(dict(zip(segment.kept, kept)))
        try:
            gives, flags = segment.call(donated, kept, key)
        except NeedsExactRows as error:
            raise replica_feeds.uneven(error, self._replicas) from error
        if self._own:
            gives = tuple([_plain(value) for value in gives])
        return gives, flags

    def _given(self, name: str, value: Any) -> Any:
        if name not in self.plan.state:
            return value
        stacked = PER_REPLICA.get(value)
        if stacked is None and name in self._own:
            # on its device, as a step's results: XLA compiles once for both
            stacked = jax.device_put(np.stack([np.asarray(value)] * self._replicas), self.device)
        return value if stacked is None else _OwnValues(None, stacked)

    def settled(self, name: str, value: Any) -> Any:
        return _OwnValues(value, self._apart[name]) if name in self._apart else value

    # ---- tracing ----

    def _lower_segment(self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None, known: Known) -> Env:
        stacked = self._opened(at, env)
        items = self.plan.segments[at].ops
        apart_after: set[str] = set()

        def phases(env: Env) -> Env:
            nonlocal apart_after
            apart_after = self._run_phases(at, env, stacked, key, watch, known)
            return env

        env = trace.laid_out(phases, items, env, watch is None, self.held)
        self._keep_first(env, apart_after)
        return env

    def _lower_first(self, first: trace.First, at: int, env: Env, key: Any, known: Known) -> None:
        stacked = self._opened(at, env)
        env.update((n, filter_layouts.given(env[n], o)) for n, o in self.held.items() if n in env)
        first.start(env)
        if unrolled_replicas.differ(known):
            unrolled_replicas.check(first.items)
            run = functools.partial(trace.lower_first, first)
            found = unrolled_replicas.each(self._replicas, env, stacked, key, known, run)
            env[first.name] = jax.numpy.stack([f[first.name] for f in found])
            return
        kinds = vmapped_lowering.run(first.items, env, key, None, known, self._replicas, stacked, first.refusals)
        of = first.name.removeprefix(LONGEST)
        alike = kinds[of] is Kind.REPLICATED
        if of != first.name:
            longest = functools.partial(needed, first.name)
            env[first.name] = longest(env) if alike else jax.vmap(longest)({of: env[of]})
        if alike:
            env[first.name] = apart(env[first.name], self._replicas)

    def _opened(self, at: int, env: Env) -> set[str]:
        """Stack the per-replica state in `env`; return the names of all stacked values."""
        own = {n for n, v in env.items() if isinstance(v, _OwnValues)}
        env.update((n, env[n].stacked) for n in own)
        return (own | self._per_replica[at]) & set(env)

    def _keep_first(self, env: Env, apart_after: set[str]) -> None:
        """Put the first replica's state into `env`, and keep the stacked state of `apart_after` for `settled`."""
        self._apart = {n: env[n] for n in apart_after & set(self.plan.state)}
        env.update((n, value[0]) for n, value in self._apart.items())

    def _run_phases(
        self,
        at: int,
        env: Env,
        stacked: set[str],
        key: Any,
        watch: list[trace.Watched] | None,
        known: Known,
    ) -> set[str]:
        """Run the phases of a segment; return the names of the stacked values after the segment."""
        every = [item for phase in self._phases[at] for item in phase.items]
        awaited = update_dependencies.awaited(every)
        start = 0
        for phase in self._phases[at]:
            if phase.per_replica and unrolled_replicas.differ(known):
                stacked = unrolled_replicas.run(
                    phase, env, stacked, key, watch, known, self._replicas, self._own & set(env)
                )
            elif phase.per_replica:
                stacked = self._per_replica_phase(phase, env, stacked, key, watch, known)
            else:
                waiting = {n - start: names for n, names in awaited.items() if n >= start}
                trace.part(phase.items, env, key, watch, known, waiting)
            start += len(phase.items)
        return stacked

    def _per_replica_phase(
        self,
        phase: phases.Phase,
        env: Env,
        stacked: set[str],
        key: Any,
        watch: list[trace.Watched] | None,
        known: Known,
    ) -> set[str]:
        """Run a phase; return the names of the stacked values after the phase."""
        kinds = vmapped_lowering.run(phase.items, env, key, watch, known, self._replicas, stacked)
        for name in phase.reduced:
            if name in env:
                env[name] = total(env[name], kinds[name], self._replicas)
        for name in {*phase.per_replica_outputs, *(self._own & set(env))}:
            if name in env and kinds[name] is Kind.REPLICATED:
                env[name] = apart(env[name], self._replicas)
        written = {n for _, op, _ in phase.items for n in op.output_arg_names} | set(phase.reduced)
        return (stacked - written) | set(phase.per_replica_outputs) | (self._own & set(env))


def _plain(value: Any) -> Any:
    if not isinstance(value, _OwnValues):
        return value
    PER_REPLICA.add(value.first, value.stacked)
    return value.first


def _own_state(plan: Plan, every: Sequence[phases.Phase], own: frozenset[str]) -> frozenset[str]:
    """Return the state that each replica writes for itself, if it has `own` for itself at first.

    Raises NotJoined.
    """
    fed = {n for n in plan.feeds if not plan.block.vars[n].persistable}
    while True:
        stacked, written = fed | own, set(own)
        for phase in every:
            if not phase.per_replica:
                if stacked & set(phase.reads):
                    raise NotJoined("an update")
                continue
            kinds = Kinds(phase.items, stacked)
            for at in range(len(phase.items)):
                kinds.follow(at)
            outs = [*phase.per_replica_outputs, *phase.shared_outputs]
            new = {n for n in phase.shared_outputs if kinds[n] is Kind.PER_REPLICA}
            if any(kinds[n] is Kind.SUMMED for n in outs) or not new <= set(plan.state):
                raise NotJoined("a value that is read later")
            inside = {n for _, op, _ in phase.items for n in op.output_arg_names}
            stacked = (stacked - inside - set(phase.reduced)) | new
            stacked |= set(phase.per_replica_outputs)
            written |= new
        if written <= own:
            return own
        own |= written
