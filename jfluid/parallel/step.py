"""A step on several devices: replicas under `shard_map`, updates over whole arrays, one XLA program."""
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jfluid import errors
from jfluid.compile.buckets import trimmed
from jfluid.compile.lower import Lowering
from jfluid.compile.options import options
from jfluid.compile.plan import Plan
from jfluid.compile.step import Binding
from jfluid.ir.types import VarType
from jfluid.lod_tensor import whole
from jfluid.ops.collective import AXIS
from jfluid.ops.ragged import Ragged
from jfluid.ops.rows import NeedsExactRows
from jfluid.ops.selected_rows import SelectedRows
from jfluid.parallel import feeding, phases
from jfluid.parallel.strategy import Layout, summed
from jfluid.scope import Scope


class ParallelStep:
    """Runs a plan on the devices of a layout.

    Args:
        repeats: the parts that each replica divides its rows into.
        sums: gradients that are brought together beside those that updates read.
    """

    _running: ClassVar[Any] = None  # of the step that this process began last

    def __init__(self, plan: Plan, layout: Layout, name: str, repeats: int = 1, sums: Sequence[str] = ()):
        self.plan, self.layout, self._repeats = plan, layout, repeats
        self._phases = phases.cut(plan, sums)
        self._state = list(plan.state)
        self._donated = [n for n in self._state if n in set(plan.updated)]
        self._kept = [n for n in self._state if n not in set(plan.updated)]
        self._fed_whole = [n for n in plan.feeds if plan.block.vars[n].persistable]
        apart = {n for p in self._phases for n in p.apart_gives} | set(plan.feeds) - set(self._fed_whole)
        self._apart_fetches = {n for n in plan.fetches if n in apart and n not in plan.updated}
        self.starts_anew = not plan.state and not plan.feeds
        sparse = any((v := plan.block.find_var_recursive(n)) is not None and v.type == VarType.SELECTED_ROWS
                     for p in self._phases for n in p.reduced)
        on_gpus = layout.mesh.devices.flat[0].platform != "cpu"
        # Rows of sparse gradients are gathered, so that there must be as many everywhere; and XLA tunes a program on all GPUs
        # together. Otherwise each process may pad as it likes: they only exchange gradients, which are alike.
        self._stacker = feeding.Stacker(agree=layout.spans_processes and (sparse or on_gpus))
        self._binding: tuple[Scope, Binding] | None = None
        self._shapes: Any = None

        def run(donated: tuple, kept: tuple, feeds: dict, fed: dict, key: Any) -> tuple:
            return self._trace(dict(zip(self._donated, donated)) | dict(zip(self._kept, kept)) | fed, feeds, key)

        run.__name__ = run.__qualname__ = name
        self._call = jax.jit(run, donate_argnums=(0,), compiler_options=options(layout.mesh.devices.flat[0]))

    def run(self, scope: Scope, parts: Sequence[Mapping[str, Any]], key: np.ndarray | None) -> list[Any]:
        """Run the step on each replica's feed; returns the fetches, those that differ by replica stacked."""
        binding = self._bound(scope)
        env: dict[str, Any] = {}
        binding.read(env)
        mine = [{n: v for n, v in part.items() if n not in self._fed_whole} for part in parts]
        stacked = self._stacker.stack(mine) if mine else {}
        # Programs whose replicas wait for each other in XLA's thread pool can block it for good: one at a time.
        jax.block_until_ready(ParallelStep._running)
        with jax.enable_x64(True):
            feeds = self.layout.spread(stacked)
            fed = self.layout.place({n: parts[0][n] for n in self._fed_whole}) if self._fed_whole else {}
            arguments = tuple([env[n] for n in self._donated]), tuple([env[n] for n in self._kept]), feeds, fed, key
            self._shapes = self._shapes or jax.tree.map(_shape, arguments)
            try:
                updated, fetched, ParallelStep._running = self._call(*arguments)
            except NeedsExactRows as error:
                raise errors.UnsupportedError(
                    f"{str(error).splitlines()[0]}, and replicas have different numbers of rows: feed batches whose rows "
                    f"divide by {self.layout.replicas}, or run the program on one device") from error
        binding.write(updated, list(updated))
        return [updated[n] if n in updated else fetched[n] for n in self.plan.fetches]

    def replica_values(self, name: str, value: Any) -> list[Any]:
        """What each replica of this process has for a fetch, as users see it."""
        count = len(self.layout.mesh.local_devices)
        if self.differs(name):
            own = jax.tree.map(_shards, value)
            return [trimmed(jax.tree.map(lambda shards, i=i: shards[i], own, is_leaf=_is_shards)) for i in range(count)]
        return [trimmed(jax.tree.map(lambda leaf: np.asarray(whole(leaf)), value))] * count

    def lowered(self) -> Any:
        """The step as XLA gets it, for the shapes of its first run."""
        with jax.enable_x64(True):
            return self._call.lower(*self._shapes)

    def differs(self, name: str) -> bool:
        """Whether a fetch has a value for each replica."""
        return name in self._apart_fetches

    def _bound(self, scope: Scope) -> Binding:
        if self._binding is None or self._binding[0] is not scope or self._binding[1].stale():
            self._binding = scope, Binding(self.plan, scope, self.layout.home, self.layout.place)
        return self._binding[1]

    def _trace(self, whole: dict[str, Any], apart: dict[str, Any], key: Any) -> tuple[dict, dict, Any]:
        wrapped = None if key is None else jax.random.wrap_key_data(key, impl="threefry2x32")
        apart = dict(apart)
        for phase in self._phases:
            if phase.apart:
                self._replicas(phase, whole, apart, wrapped)
            else:
                env = {n: whole[n] for n in phase.reads if n in whole}
                whole.update(Lowering(phase.items, wrapped).run(env))
        updated = {n: self._at_home(n, whole[n]) for n in self.plan.updated if n in whole}
        fetched = {n: apart[n] if self.differs(n) else whole[n] for n in self.plan.fetches if n not in updated}
        # It is there when the step has ended; the values themselves may be donated to the next one by then.
        ended = lax.with_sharding_constraint(jnp.zeros((), jnp.int32), NamedSharding(self.layout.mesh, PartitionSpec()))
        return updated, fetched, ended

    def _at_home(self, name: str, value: Any) -> Any:
        if not isinstance(value, (jax.Array, np.ndarray)):
            raise errors.UnsupportedError(f"persistable variable {name} would hold a {type(value).__name__}: only dense "
                                          "tensors stay in a scope")
        return lax.with_sharding_constraint(jnp.asarray(value), self.layout.home(name))

    def _replicas(self, phase: phases.Phase, whole: dict[str, Any], apart: dict[str, Any], key: Any) -> None:
        """Run a phase in each replica."""
        mine = {n: apart[n] for n in phase.reads if n in apart}
        alike = {n: whole[n] for n in phase.reads if n in whole and n not in mine}

        def replica(alike: dict, mine: dict, key: Any) -> tuple[dict, dict, dict]:
            own = None if key is None else jax.random.fold_in(key, lax.axis_index(AXIS))
            mine = jax.tree.map(lambda leaf: leaf[0], mine)
            run = self._in_parts if self._repeats > 1 and phase.reduced else self._at_once
            gradients, gives, own_values = run(phase, alike, mine, own)
            stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], own_values)
            return summed(gradients, self.layout), gives, stacked

        specs = {n: self.layout.spec(n) for n in phase.reduced}
        everywhere = PartitionSpec()
        reduced, gives, stacked = jax.shard_map(
            replica, mesh=self.layout.mesh, in_specs=(everywhere, PartitionSpec(AXIS), everywhere),
            out_specs=(specs, everywhere, PartitionSpec(AXIS)), check_vma=False)(alike, mine, key)
        whole.update(reduced)
        whole.update(gives)
        apart.update(stacked)

    def _at_once(self, phase: phases.Phase, alike: dict[str, Any], mine: dict[str, Any], key: Any) -> tuple[dict, dict, dict]:
        """One replica's gradients, values of the Scope and values of its own."""
        env = alike | mine
        Lowering(phase.items, key).run(env)
        names = phase.reduced, phase.whole_gives, phase.apart_gives
        gradients, gives, own = ({n: env[n] for n in group if n in env} for group in names)
        return gradients, gives, own

    def _in_parts(self, phase: phases.Phase, alike: dict[str, Any], mine: dict[str, Any], key: Any) -> tuple[dict, dict, dict]:
        """As `_at_once`, for one part of the replica's rows after the other. What a part writes the next one reads; gradients
        are added up, values of its own are joined."""
        parts = {n: _divided(n, v, self._repeats) for n, v in mine.items()}
        carried = {n: alike[n] for n in phase.whole_gives if n in alike}

        def part(carry: tuple, given: tuple) -> tuple:
            state, totals = carry
            number, rows = given
            gradients, gives, own = self._at_once(phase, alike | state, rows,
                                                  None if key is None else jax.random.fold_in(key, number))
            dense = {n: g for n, g in gradients.items() if not isinstance(g, SelectedRows)}
            totals = {n: g if totals is None else totals[n] + g for n, g in dense.items()}
            state = {n: jnp.asarray(gives[n]) for n in state}
            sparse = {n: g for n, g in gradients.items() if n not in dense}
            return (state, totals), (sparse, {n: v for n, v in gives.items() if n not in state}, own)

        first = {n: v[0] for n, v in parts.items()}
        like = jax.eval_shape(lambda: part((carried, None), (jnp.int32(0), first)))[0][1]
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        numbers = jnp.arange(self._repeats, dtype=jnp.int32)
        (state, totals), (sparse, gives, own) = lax.scan(part, (carried, zeros), (numbers, parts))
        joined = functools.partial(jax.tree.map, lambda leaf: leaf.reshape(-1, *leaf.shape[2:]))
        return totals | joined(sparse), state | jax.tree.map(lambda leaf: leaf[-1], gives), joined(own)


def _divided(name: str, value: Any, repeats: int) -> Any:
    if isinstance(value, Ragged) or value.shape[0] % repeats:
        rows = "rows in sequences" if isinstance(value, Ragged) else f"{value.shape[0]} rows in each replica"
        raise errors.FeedError(f"feed {name}: {rows}, which multi_batch_merge_pass cannot divide into {repeats} equal parts")
    return value.reshape(repeats, -1, *value.shape[1:])


def _shape(value: Any) -> Any:
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=getattr(value, "sharding", None))


class _Shards(list):
    """One array for each replica of this process."""


def _shards(value: jax.Array) -> "_Shards":
    found = {shard.index[0].start or 0: shard.data for shard in value.addressable_shards}
    return _Shards(np.asarray(found[i])[0] for i in sorted(found))


def _is_shards(value: Any) -> bool:
    return isinstance(value, _Shards)
