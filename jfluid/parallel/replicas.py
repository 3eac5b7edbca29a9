"""A step on several devices: replicas under `shard_map`, updates over whole arrays, one XLA program."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jfluid import errors, flags, processes
from jfluid.compile.dynamic_shapes.segment import FeedShares
from jfluid.compile.dynamic_shapes.stream import ShapeStream
from jfluid.compile.dynamic_shapes.traced import CompiledCall
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.lower import NOTHING, Known
from jfluid.compile.lowering.plan import Plan
from jfluid.compile.runtime import executable_cache, padding
from jfluid.compile.runtime.executables import Executables, WaitedCall
from jfluid.compile.runtime.host import Host
from jfluid.compile.runtime.options import options
from jfluid.compile.runtime.placement import Computed, Env, Function, OneDevice, Padder, Placement
from jfluid.ir.types import VarType
from jfluid.lod_tensor import LoDTensor, whole
from jfluid.ops.collective import AXIS
from jfluid.ops.ragged import Ragged
from jfluid.ops.ragged_dispatch import NeedsExactRows
from jfluid.ops.selected_rows import SelectedRows
from jfluid.parallel import phases, replica_feeds
from jfluid.parallel.per_replica_state import PER_REPLICA
from jfluid.parallel.replica_feeds import Uneven
from jfluid.parallel.sharding import ReplicaSharding, summed
from jfluid.processes import collective_watch

_TRUE = "@TRUE_SIZES"  # of the batch of each replica, among values by name
# Of one replica: gradients, values of the Scope, per-replica values, and finite flags of watched values.
_Results = tuple[Env, Env, Env, Any]
# `(phase, values that all replicas share, values of this replica, key, watched) -> results`
_Compute = Callable[[phases.Phase, Env, Env, Any, list[tuple[Any, str]] | None], _Results]


class _Calls(WaitedCall):
    """Compiled function of all replicas, which moves feeds from the host to the devices.

    Attributes:
        running: result of the program that this process started last.
    """

    running: ClassVar[Any] = None

    def __init__(self, executables: Executables, sharding: ReplicaSharding):
        self._executables, self._sharding = executables, sharding

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        found, _Calls.running = self._executables(donated, spread(self._sharding, kept), key)
        return found

    def lower(self, *arguments: Any) -> Any:
        """See `Executables.lower`."""
        return self._executables.lower(*arguments)


def spread(sharding: ReplicaSharding, kept: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with values of the host, which are stacked by replica, on the devices."""
    with jax.enable_x64(True):
        found: tuple[Any, ...] = jax.tree.map(lambda v: sharding.spread(v) if isinstance(v, np.ndarray) else v, kept)
        return found


def _results(phase: phases.Phase, env: Env, finite: Sequence[Any] = ()) -> _Results:
    """Return the results of a phase from all values by name."""
    names = phase.reduced, phase.shared_outputs, phase.per_replica_outputs
    gradients, gives, own = ({n: env[n] for n in group if n in env} for group in names)
    return gradients, gives, own, jnp.array(finite, jnp.int32)


class Replicas(Placement):
    """Placement of replicas on the devices of a sharding. Per-replica values are stacked along a first dimension.

    Args:
        repeats: the number of parts into which each replica divides its rows.
        sums: gradients to be all-reduced besides the gradients that updates read.

        Raises UnsupportedError for programs that replicas cannot run; see `phases.split`.
    """

    exact_because = (
        "replicas on devices of their own keep exact shapes if operators of the host run, persistable variables are "
        "fed, parts of a batch run in turn, or GPUs of several processes run one program"
    )

    def __init__(self, plan: Plan, sharding: ReplicaSharding, repeats: int = 1, sums: Sequence[str] = ()):
        super().__init__(plan)
        self.sharding, self._repeats = sharding, repeats
        self._phases = phases.split(plan, sums)
        self._fed_whole = [n for n in plan.feeds if plan.block.vars[n].persistable]
        every = [phase for group in self._phases for phase in group]
        self._per_replica = phases.per_replica_before(self._phases, set(plan.feeds) - set(self._fed_whole))
        sparse = any(
            (v := plan.block.find_var_recursive(n)) is not None and v.type == VarType.SELECTED_ROWS
            for p in every
            for n in p.reduced
        )
        self._devices: list[jax.Device] = list(sharding.mesh.local_devices)
        self.hosts = len(self._devices)
        self.on_gpus = self._devices[0].platform != "cpu"
        # Rows of sparse gradients are gathered, so their number must be the same everywhere; and
        # XLA tunes a program on all GPUs together. Otherwise each process may choose its padding:
        # processes exchange gradients only, and these have equal shapes.
        agree = sharding.spans_processes and (sparse or self.on_gpus)
        self._padded_phase = None if sharding.spans_processes and self.on_gpus else self._only_phase()
        self.pads = self._padded_phase is not None
        self._stacker = replica_feeds.Stacker(agree=agree, uneven=self.pads)
        self._host_stacker = replica_feeds.Stacker(agree=sharding.spans_processes)
        self._shapes: Any = None

    # ---- values ----

    def home(self, name: str) -> jax.sharding.Sharding:
        return self.sharding.home(name)

    def place(self, values: Env) -> dict[str, jax.Array]:
        own = {n: PER_REPLICA.get(v) for n, v in values.items()}
        found = self.sharding.place(values)
        for name, stacked in own.items():
            if stacked is not None and len(stacked) == self.sharding.replicas == self.hosts:
                parts = [jax.device_put(v, d) for v, d in zip(stacked, self._devices)]
                found[name] = jax.make_array_from_single_device_arrays(found[name].shape, self.home(name), parts)
        return found

    def sequence_sizes(self) -> padding.SequenceBuckets | None:
        return self._stacker.buckets

    def enter(self, feeds: Sequence[Mapping[str, Any]]) -> Env:
        """Return the feed of each replica of this process, stacked."""
        mine = [{n: v for n, v in part.items() if n not in self._fed_whole} for part in feeds]
        stacked = self._stacker.stack(mine) if mine else {}
        if self.pads:
            return stacked  # `_Calls` moves it to the devices, after its padding
        with jax.enable_x64(True):
            entered: Env = dict(self.sharding.spread(stacked))
            if self._fed_whole:
                entered |= self.sharding.place({n: feeds[0][n] for n in self._fed_whole})
        return entered

    def context(self) -> AbstractContextManager[Any]:
        return jax.enable_x64(True)  # type: ignore[no-any-return]

    def settled(self, name: str, value: Any) -> Any:
        return lax.with_sharding_constraint(jnp.asarray(value), self.sharding.home(name))

    def parts(self, name: str, value: Any) -> list[Any]:
        if name in self._per_replica[-1]:
            return [padding.trimmed(part) for part in _divided(value, self.hosts)]
        return [padding.trimmed(jax.tree.map(lambda leaf: np.asarray(whole(leaf)), value))] * self.hosts

    # ---- compiled segments ----

    def compiled(self, at: int, function: Function) -> Function:
        everywhere = NamedSharding(self.sharding.mesh, PartitionSpec())

        def run(donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> tuple[Any, Any]:
            found = function(donated, kept, key)
            # It is ready when the program has ended; the values themselves may have been donated to
            # the next one by then.
            return found, lax.with_sharding_constraint(jnp.zeros((), jnp.int32), everywhere)

        run.__name__ = run.__qualname__ = function.__name__
        return jax.jit(run, donate_argnums=(0,), compiler_options=options(self._devices[0]))

    def executables(
        self, at: int, fresh: Callable[[], Function], entry: executable_cache.DiskEntry | None = None
    ) -> CompiledCall:
        return _Calls(Executables(lambda: self.compiled(at, fresh()), entry), self.sharding)

    def entry(
        self, at: int, names: Sequence[Sequence[str]], beside: executable_cache.TraceResults
    ) -> executable_cache.DiskEntry | None:
        if self.sharding.spans_processes:
            return None
        sums = [[phase.reduced for phase in group] for group in self._phases]
        shares, fused = sorted(self.sharding.shares.items()), self.sharding.fuse
        own = self._repeats, sums, shares, fused
        identity, devices = (*map(list, names), *own), self._devices
        return executable_cache.entry(self.plan, at, identity, devices, options(devices[0]), beside)

    def call(self, segment: Any, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        if not isinstance(segment.call, ShapeStream):
            self.check_exact(dict(zip(segment.kept, kept)))
        for name, value in zip(segment.kept, kept):
            if isinstance(value, _HostParts):
                raise errors.UnsupportedError(
                    f"{name}: an operator of the host gives a {type(value[0]).__name__} in each "
                    "replica, which only operators of the host may read then: run the program on "
                    "one device"
                )
        # Replicas wait for each other in XLA's thread pool: two programs at a time can deadlock it.
        jax.block_until_ready(_Calls.running)
        if self._shapes is None and not any(isinstance(v, Uneven) for v in kept):
            self._shapes = segment, jax.tree.map(_shape, (donated, spread(self.sharding, kept), key))
        try:
            with self._watched(segment.at) as watched:
                found = segment.call(donated, kept, key)
                watched.result = _Calls.running
        except NeedsExactRows as error:
            raise replica_feeds.uneven(error, self.sharding.replicas) from error
        return found

    def _watched(self, at: int) -> AbstractContextManager[collective_watch.CollectiveCall]:
        """Return the context of a call of segment `at`, which waits for other processes if it sums gradients."""
        if self.sharding.spans_processes and any(phase.reduced for phase in self._phases[at]):
            return collective_watch.call(collective_watch.STEP)
        return nullcontext(collective_watch.CollectiveCall())

    def unpacked(self, results: Any) -> Any:
        jax.block_until_ready(_Calls.running)
        return results

    def everywhere(self, at: int, value: Any) -> np.ndarray:
        mine = np.stack([np.asarray(part) for part in _divided(value, self.hosts)])
        if not self.sharding.spans_processes:
            return mine
        return processes.all_gather(mine).reshape(-1, *mine.shape[1:])

    def known(self, at: int, name: str, value: Any, computed: bool) -> np.ndarray:
        if not computed and name not in self._per_replica[at]:
            return np.asarray(whole(value))
        mine = np.stack([np.asarray(part) for part in _divided(value, self.hosts)])
        everywhere = processes.all_gather(mine) if self.sharding.spans_processes else mine[None]
        joins = not (self.on_gpus or self.sharding.spans_processes or flags.get("FLAGS_cpu_replicas_joined"))
        return replica_feeds.the_same(name, everywhere.reshape(-1, *mine.shape[1:]), joins)

    def lowered(self) -> Any:
        """Return the first segment as passed to XLA, for the shapes of the first run."""
        segment, shapes = self._shapes
        with jax.enable_x64(True):
            return segment.exact.lower(*shapes)

    # ---- batches of every shape ----

    def _only_phase(self) -> phases.Phase | None:
        """Return the phase that replicas run, if a step can be padded: it is the only one, and reads arguments."""
        if len(self.plan.segments) > 1 or self._fed_whole or self._repeats > 1:
            return None
        found = [phase for phase in self._phases[0] if phase.per_replica]
        own = len(found) == 1 and not found[0].host and set(found[0].reads) <= set(self.plan.segments[0].reads)
        return found[0] if own else None

    def padder(self) -> Padder | None:
        return self if self.pads else None

    def feed_shares(self) -> FeedShares | None:
        return self if self.pads else None

    def shares(self, name: str, value: Any) -> Sequence[Any] | None:
        return replica_feeds.opened(value)

    def divided(self, result: Any) -> Sequence[Any]:
        return _divided(result, self.hosts)

    def together(self, parts: Sequence[np.ndarray]) -> Any:
        return replica_feeds.together(parts)

    def check_exact(self, values: Mapping[str, Any]) -> None:
        replica_feeds.check_even(values)

    def recorded_names(self, at: int, gives: Sequence[str]) -> list[str]:
        phase = self._padded_phase
        assert phase is not None  # it pads
        known = set(gives)
        return [*gives, *(n for n in [*phase.reduced, *phase.shared_outputs] if n not in known)]

    def recorded(
        self,
        at: int,
        values: Env,
        shapes: Mapping[str, tuple[int, ...]],
        key: Any,
        gives: Sequence[str],
    ) -> Any:
        assert self._padded_phase is not None  # it pads
        read = set(self._padded_phase.reads)
        return super().recorded(at, {n: v for n, v in values.items() if n in read}, shapes, key, gives)

    def _run_recorded(self, at: int, env: Env, key: Any) -> Env:
        phase = self._padded_phase
        assert phase is not None  # it pads
        found = trace.recorded(phase.items, env, key)
        # updates, which read no batch, compute the other results
        own = {n: found[n] for n in [*phase.reduced, *phase.shared_outputs, *phase.per_replica_outputs] if n in found}
        return dict.fromkeys(self.plan.segments[at].gives, jnp.zeros(())) | own

    def _replicas_of(self, at: int) -> int | None:
        return self.sharding.replicas

    def lower_computed(self, at: int, env: Env, compute: Computed, key: Any, true: Any) -> None:
        def padded(phase: phases.Phase, alike: Env, mine: Env, key: Any, _: Any) -> _Results:
            own = mine.pop(_TRUE)
            data = None if key is None else jax.random.key_data(key)
            found = trace.laid_out(lambda env: compute(env, data, own), phase.items, alike | mine, not self.on_gpus)
            return _results(phase, found)

        env[_TRUE] = true
        self._run_phases(at, env, trace.random_key(key), None, NOTHING, padded)
        del env[_TRUE]

    # ---- operators of the host ----

    def inner(self, plan: Plan, number: int) -> Placement:
        return OneDevice(plan, self._devices[number])

    def run_host(self, at: int, hosts: Sequence[Host], env: Env, key: Any, scope: Any) -> None:
        """Run host operators: for each replica of this process, or once if their inputs are the same for all."""
        (phase,) = self._phases[at]
        segment = self.plan.segments[at]
        there = [n for n in phase.reads if n in env]
        mine = {n: _divided(env[n], self.hosts) for n in there if n in self._per_replica[at]}
        alike = {n: jax.tree.map(lambda leaf: np.asarray(whole(leaf)), env[n]) for n in there if n not in mine}
        found = []
        for number, host in enumerate(hosts if phase.per_replica else hosts[:1]):
            own = alike | {n: parts[number] for n, parts in mine.items()}
            with jax.default_device(self._devices[number]):
                host.run(segment, own, _folded(key, number) if phase.per_replica else key, scope)
            found.append(own)
        gives = [n for n in segment.gives if n in found[0]]
        per_replica = [n for n in gives if n in self._per_replica[at + 1]]
        stacked = [n for n in per_replica if _stackable(found[0][n])]
        if stacked:
            parts = [{n: _fed(own[n]) for n in stacked} for own in found]
            env.update(self.sharding.spread(self._host_stacker.stack(parts)))
        env.update((n, _HostParts(own[n] for own in found)) for n in per_replica if n not in stacked)
        env.update(self.sharding.place({n: found[0][n] for n in gives if n not in per_replica}))

    # ---- tracing ----

    def _lower_segment(self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None, known: Known) -> Env:
        self._run_phases(at, env, key, watch, known, functools.partial(self._traced, known))
        return env

    def _lower_first(self, first: trace.First, at: int, env: Env, key: Any, known: Known) -> None:
        # Each replica computes the value, whether its operators are updates or not.
        per_replica = {n: v for n, v in env.items() if n in self._per_replica[at]}
        shared = {n: v for n, v in env.items() if n not in per_replica}
        phase = phases.Phase(first.items, True, reads=list(env), per_replica_outputs=[first.name])
        self._replicas(phase, shared, per_replica, key, None, functools.partial(self._first, first, known))
        env[first.name] = per_replica[first.name]

    def _run_phases(
        self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None, known: Known, compute: "_Compute"
    ) -> None:
        """Trace the phases of a segment over values by name; `compute` traces a phase in one replica."""
        per_replica = {n: v for n, v in env.items() if n in self._per_replica[at] or n == _TRUE}
        shared = {n: v for n, v in env.items() if n not in per_replica}
        for phase in self._phases[at]:
            if phase.per_replica:
                self._replicas(phase, shared, per_replica, key, watch, compute)
            else:
                own = {n: shared[n] for n in phase.reads if n in shared}
                shared.update(trace.lower(phase.items, own, key, watch, known, on_gpus=self.on_gpus))
        env.update(shared)
        env.update((n, v) for n, v in per_replica.items() if n in self._per_replica[at + 1])

    def _replicas(
        self,
        phase: phases.Phase,
        shared: Env,
        per_replica: Env,
        key: Any,
        watch: list[trace.Watched] | None,
        compute: "_Compute",
    ) -> None:
        """Run a phase in each replica."""
        mine = {n: per_replica[n] for n in [*phase.reads, _TRUE] if n in per_replica}
        alike = {n: shared[n] for n in phase.reads if n in shared and n not in mine}
        watched: list[tuple[Any, str]] = []

        def replica(
            alike: dict[str, Any], mine: dict[str, Any], key: Any
        ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
            own = None if key is None else jax.random.fold_in(key, lax.axis_index(AXIS))
            mine = jax.tree.map(lambda leaf: leaf[0], mine)
            checks = None if watch is None else watched
            gradients, gives, own_values, finite = compute(phase, alike, mine, own, checks)
            stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], own_values)
            return (
                summed(gradients, self.sharding),
                gives,
                stacked,
                finite if watch is None else lax.pmin(finite, AXIS),
            )

        specs = {n: self.sharding.spec(n) for n in phase.reduced}
        everywhere = PartitionSpec()
        reduced, gives, stacked, finite = jax.shard_map(
            replica,
            mesh=self.sharding.mesh,
            in_specs=(everywhere, PartitionSpec(AXIS), everywhere),
            out_specs=(specs, everywhere, PartitionSpec(AXIS), everywhere),
            check_vma=False,
        )(alike, mine, key)
        shared.update(reduced)
        shared.update(gives)
        per_replica.update(stacked)
        if watch is not None:
            watch += [(op, name, finite[i] > 0) for i, (op, name) in enumerate(watched)]

    def _traced(
        self,
        known: Known,
        phase: phases.Phase,
        alike: Env,
        mine: Env,
        key: Any,
        watched: list[tuple[Any, str]] | None,
    ) -> "_Results":
        """Trace a phase in one replica, at once or for the parts of its rows in turn."""
        if self._repeats > 1 and phase.reduced and phase.items:
            return self._in_parts(known, phase, alike, mine, key, watched)
        return self._at_once(known, phase, alike, mine, key, watched)

    def _first(
        self, first: trace.First, known: Known, phase: phases.Phase, alike: Env, mine: Env, key: Any, _: Any
    ) -> "_Results":
        """Trace the operators of `first` in one replica."""
        return _results(phase, trace.lower_first(first, alike | mine, key, known))

    def _at_once(
        self,
        known: Known,
        phase: phases.Phase,
        alike: Env,
        mine: Env,
        key: Any,
        watched: list[tuple[Any, str]] | None,
    ) -> "_Results":
        """Trace a phase for the whole share of one replica."""
        watch: list[trace.Watched] | None = None if watched is None else []
        env = trace.lower(phase.items, alike | mine, key, watch, known, on_gpus=self.on_gpus)
        if watched is not None:
            watched[:] = [(op, name) for op, name, _ in watch or ()]
        return _results(phase, env, [flag for *_, flag in watch or ()])

    def _in_parts(
        self,
        known: Known,
        phase: phases.Phase,
        alike: Env,
        mine: Env,
        key: Any,
        watched: list[tuple[Any, str]] | None,
    ) -> "_Results":
        """Return the results of `_at_once`, computed for the parts of the replica's rows in turn.

        Each part reads the previous part's outputs; gradients are summed, per-replica values are concatenated.
        """
        parts = {n: _in_equal_parts(n, v, self._repeats) for n, v in mine.items()}
        carried = {n: alike[n] for n in phase.shared_outputs if n in alike}

        def part(carry: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, Any]:
            state, totals = carry
            number, rows = given
            own = None if key is None else jax.random.fold_in(key, number)
            gradients, gives, own_values, finite = self._at_once(known, phase, alike | state, rows, own, watched)
            dense = {n: g for n, g in gradients.items() if not isinstance(g, SelectedRows)}
            totals = {n: g if totals is None else totals[n] + g for n, g in dense.items()}
            state = {n: jnp.asarray(gives[n]) for n in state}
            sparse = {n: g for n, g in gradients.items() if n not in dense}
            return (state, totals), (
                sparse,
                {n: v for n, v in gives.items() if n not in state},
                own_values,
                finite,
            )

        sample = {n: v[0] for n, v in parts.items()}
        like = jax.eval_shape(lambda: part((carried, None), (jnp.int32(0), sample)))[0][1]
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        numbers = jnp.arange(self._repeats, dtype=jnp.int32)
        (state, totals), (sparse, gives, own, finite) = lax.scan(part, (carried, zeros), (numbers, parts))
        joined = functools.partial(jax.tree.map, lambda leaf: leaf.reshape(-1, *leaf.shape[2:]))
        return (
            totals | joined(sparse),
            state | jax.tree.map(lambda leaf: leaf[-1], gives),
            joined(own),
            finite.min(0),
        )


def _in_equal_parts(name: str, value: Any, repeats: int) -> Any:
    if isinstance(value, Ragged) or value.shape[0] % repeats:
        rows = "rows in sequences" if isinstance(value, Ragged) else f"{value.shape[0]} rows in each replica"
        raise errors.FeedError(
            f"feed {name}: {rows}, which multi_batch_merge_pass cannot divide into {repeats} equal parts"
        )
    return value.reshape(repeats, -1, *value.shape[1:])


class _HostParts(list[Any]):
    """Values of a host operator for each replica of this process that stay on the host, such as arrays of tensors."""


def _stackable(value: Any) -> bool:
    """Return True if the output of a host operator can be stacked over replicas."""
    return isinstance(value, (Ragged, LoDTensor, np.ndarray, jax.Array))


def _fed(value: Any) -> Any:
    """Return the output of a host operator in one replica, to be stacked."""
    value = padding.trimmed(value)
    if isinstance(value, LoDTensor):
        return value if value._lod else np.asarray(value.value)
    return value


def _shape(value: Any) -> Any:
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=getattr(value, "sharding", None))


def _divided(value: Any, count: int) -> list[Any]:
    """Return the parts of a stacked value on each of the `count` replicas of this process."""
    if isinstance(value, _HostParts | Uneven):
        return list(value)
    own = jax.tree.map(_shards, value)
    return [jax.tree.map(lambda shards, i=i: shards[i], own, is_leaf=_is_shards) for i in range(count)]


class _Shards(list[Any]):
    """Arrays of a value, one for each replica of this process."""


def _shards(value: jax.Array | np.ndarray) -> "_Shards":
    if isinstance(value, np.ndarray):
        return _Shards(value)
    found = {shard.index[0].start or 0: shard.data for shard in value.addressable_shards}
    return _Shards(np.asarray(found[i])[0] for i in sorted(found))


def _is_shards(value: Any) -> bool:
    return isinstance(value, _Shards)


def _folded(key: Any, number: int) -> Any:
    """Return the random key of a replica."""
    return None if key is None else np.asarray(jax.random.key_data(jax.random.fold_in(trace.random_key(key), number)))
