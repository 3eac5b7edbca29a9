"""Reduce on the CPU devices of one process, which have one memory: parameters and the optimizer's state are there once.

Replicas compute forward and backward. They read parameters at the address where the first device
holds them, and each gives its share of the summed gradients. Updates then run once, on the first
device, by all threads of XLA, and overwrite parameters and state where they are. Gradients are
divided as rows of numbers, whatever their shapes, so that each exists once too.
"""

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jfluid.compile import trace
from jfluid.compile.lower import NOTHING, Known
from jfluid.compile.plan import Plan
from jfluid.compile.runtime.placement import Env, Function, placed
from jfluid.ir.block import writes_of
from jfluid.ir.operator import Operator
from jfluid.ir.types import VarType
from jfluid.ops.collective import AXIS
from jfluid.ops.ragged import Ragged
from jfluid.ops.selected_rows import SelectedRows
from jfluid.parallel import phases
from jfluid.parallel.replicas import Replicas
from jfluid.parallel.sharding import ReplicaSharding, summed

# Bytes of gradients that updates of one segment read: XLA first joins the shares of all of them.
_JOINED = 64 << 20
# Bytes of a gradient from which on replicas divide its sum. Of a smaller one each has all: to hand
# over so many parts takes longer than they save.
_WORTH_DIVIDING = 256 << 10


@dataclass(frozen=True)
class _Product:
    """The gradient of a matrix [k, m]: x^T out, of x [n, k] and out [n, m].

    No replica computes all of it: each takes all rows of its columns of x from the others.
    """

    x: Any
    out: Any


class SharedReplicas(Replicas):
    """As `Replicas`, for CPU devices of one process.

    A value is where it is made: what replicas write on all devices, what updates write on the
    first.

    Args:
        plan: each of its segments is one phase; see `phases.divided`.
    """

    @classmethod
    def of(
        cls, plan: Plan, devices: Sequence[jax.Device], repeats: int, sums: Sequence[str]
    ) -> "SharedReplicas | None":
        """Return the placement of a plan that is not divided; None where the host computes gradients."""
        divided = phases.divided(plan, _JOINED, sums)
        if divided is None:
            return None
        return cls(divided, ReplicaSharding(Mesh(np.array(devices), (AXIS,)), {}), repeats, sums)

    def __init__(self, plan: Plan, sharding: ReplicaSharding, repeats: int = 1, sums: Sequence[str] = ()):
        super().__init__(plan, sharding, repeats, sums)
        self._first = self._devices[0]
        self._own = [group[0] for group in self._phases]  # of each segment
        by_replicas = {n for p in self._own if p.per_replica for n in p.shared_outputs}
        self._of_replicas = by_replicas & set(plan.updated)
        self._divided = self._worth_dividing()
        self._products = self._of_products() if repeats == 1 else {}
        # What replicas read of the first device's memory: name -> (address, the array of all)
        self._lent: dict[str, tuple[Any, jax.Array]] = {}

    def _worth_dividing(self) -> dict[str, tuple[int, ...]]:
        """The gradients of which each replica gives its share, with their shapes: only updates read them."""
        found: dict[str, tuple[int, ...]] = {}
        block = self.plan.block
        others = {n for p in self._own if p.per_replica or p.host for n in p.reads}
        items = [item for p in self._own for item in p.items]
        for grad, param in phases.gradients_of(items).items():
            table, of = block.find_var_recursive(grad), block.var_recursive(param)
            sparse = table is not None and table.type == VarType.SELECTED_ROWS
            if grad not in others and (sparse or phases.size_of(of) >= _WORTH_DIVIDING):
                found[grad] = tuple(of.shape)
        return found

    def _of_products(self) -> dict[str, Operator]:
        """Gradients of matrices that one product with them gives, and whose rows divide evenly: with
        the operator that computes it.
        """
        found: dict[str, Operator] = {}
        for phase in (p for p in self._own if p.per_replica and not p.host):
            times = Counter(n for _, op, _ in phase.items for n in writes_of(op))
            for op in (op for _, op, _ in phase.items if op.type == "mul_grad"):
                (grad,) = op.output("Y@GRAD") or [""]
                shape = self._divided.get(grad, ())
                once = all(times[n] <= 1 for n in (grad, *op.input("X"), *op.input("Out@GRAD")))
                if once and len(shape) == 2 and shape[0] % self.sharding.replicas == 0:
                    found[grad] = op
        return found

    # ---- values ----

    def home(self, name: str) -> jax.sharding.Sharding:
        return super().home(name) if name in self._of_replicas else SingleDeviceSharding(self._first)

    def place(self, values: Env) -> dict[str, jax.Array]:
        return placed(values, {n: self.home(n) for n in values})

    def settled(self, name: str, value: Any) -> Any:
        return value  # by the device on which its segment runs

    def context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(super().context())
        stack.enter_context(jax.default_device(self._first))
        return stack

    def parts(self, name: str, value: Any) -> list[Any]:
        if name in self._divided:
            shares = [jax.tree.map(np.asarray, share) for share in self._shares(value)]
            value = self._joined(name, shares, np.concatenate)
        return super().parts(name, value)

    # ---- segments ----

    def compiled(self, at: int, function: Function) -> Function:
        if self._own[at].per_replica:
            return super().compiled(at, function)
        return self._jitted(function, lambda ended: ended)

    def _devices_of(self, at: int) -> list[jax.Device]:
        return self._devices if self._own[at].per_replica else [self._first]

    def call(self, segment: Any, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        jax.block_until_ready(Replicas._running)
        if not self._own[segment.at].per_replica:
            given = self._for_updates(dict(zip(segment.kept, kept)))
            own = tuple(jax.tree.map(_first, value) for value in donated)
            return super().call(segment, own, tuple(given[n] for n in segment.kept), key)
        # Replicas overwrite what is donated, each its own.
        everywhere = NamedSharding(self.sharding.mesh, PartitionSpec())
        donated = tuple(v if _on_all(v) else jax.device_put(v, everywhere) for v in donated)
        kept = tuple(self._for_replicas(n, value) for n, value in zip(segment.kept, kept))
        found = super().call(segment, donated, kept, key)
        # XLA does not know that replicas read this memory: whoever may overwrite it comes later.
        jax.block_until_ready(Replicas._running)
        return found

    def lower(
        self,
        at: int,
        env: Env,
        key: Any,
        watch: list[trace.Watched] | None,
        known: Known = NOTHING,
        first: trace.First | None = None,
    ) -> Env:
        phase = self._own[at]
        if phase.per_replica:
            return super().lower(at, env, key, watch, known, first)
        own = {n: self._joined(n, env[n]) if n in self._divided else env[n] for n in phase.reads if n in env}
        wrapped = trace.random_key(key)
        if first is None:
            env.update(trace.lower(phase.items, own, wrapped, watch, known))
        else:
            env.update(trace.lower_first(first, dict(env), wrapped, known))
        return env

    # ---- from the first device to replicas ----

    def _for_replicas(self, name: str, value: Any) -> Any:
        """A value of the first device as one of all devices, in the same memory."""
        if not isinstance(value, jax.Array) or _on_all(value):
            return value
        jax.block_until_ready(value)
        everywhere = NamedSharding(self.sharding.mesh, PartitionSpec())
        if value.nbytes == 0:
            return jax.device_put(value, everywhere)
        address = value.unsafe_buffer_pointer()
        known = address, value.shape, value.dtype
        if name not in self._lent or self._lent[name][0] != known:
            # Not a view of the array, which XLA would then copy instead of overwriting it.
            memory = (ctypes.c_char * value.nbytes).from_address(address)
            view = np.ndarray(value.shape, value.dtype, memoryview(memory).cast("B"))
            parts = jax.device_put([view] * self.hosts, self._devices, may_alias=True)
            shared = jax.make_array_from_single_device_arrays(value.shape, everywhere, parts)
            if any(part.unsafe_buffer_pointer() != address for part in parts):
                return shared  # XLA has copied it
            self._lent[name] = known, shared
        return self._lent[name][1]

    # ---- from replicas to the first device ----

    def _gradient(self, name: str, env: Env) -> Any:
        op = self._products.get(name)
        if op is None:
            return env[name]
        x, out = env[op.input("X")[0]], env[op.input("Out@GRAD")[0]]
        if isinstance(x, Ragged) or isinstance(out, Ragged):
            return env[name]
        rows = math.prod(x.shape[: op.attr("x_num_col_dims")])
        if rows * self.sharding.replicas > self._divided[name][0]:
            return env[name]  # the rows of all replicas are more than the matrix has
        return _Product(x.reshape(rows, -1), out.reshape(rows, -1))

    def _brought_together(self, gradients: Env) -> Env:
        divided = {n: self._share(g) for n, g in gradients.items() if n in self._divided}
        others = {n: g for n, g in gradients.items() if n not in divided}
        return divided | summed(others, self.sharding)

    def _share(self, gradient: Any) -> Any:
        """One replica's share of a sum, as a row of numbers. Of sparse rows each keeps its own."""
        if isinstance(gradient, SelectedRows):
            return gradient
        if isinstance(gradient, _Product):
            columns = lax.all_to_all(gradient.x, AXIS, split_axis=1, concat_axis=0, tiled=True)
            return (columns.T @ lax.all_gather(gradient.out, AXIS, tiled=True)).reshape(-1)
        flat = gradient.reshape(-1)
        over = -flat.size % self.sharding.replicas
        return lax.psum_scatter(jnp.pad(flat, (0, over)) if over else flat, AXIS, tiled=True)

    def _spec(self, gradient: str) -> PartitionSpec:
        return PartitionSpec(AXIS) if gradient in self._divided else PartitionSpec()

    def _shares(self, value: Any) -> tuple[Any, ...]:
        """The part of a divided gradient on each device."""
        return tuple(jax.tree.map(lambda leaf, i=i: leaf.addressable_data(i), value) for i in range(self.hosts))

    def _for_updates(self, values: Env) -> Env:
        """Values on the first device. Those of other devices are read where they are."""
        found = {n: self._shares(v) if n in self._divided else jax.tree.map(_first, v) for n, v in values.items()}
        elsewhere, shape = jax.tree.flatten({n: v for n, v in found.items() if n in self._divided})
        views = [np.asarray(leaf) for leaf in elsewhere]
        moved: list[Any] = jax.device_put(views, self._first, may_alias=True) if views else []
        found.update(jax.tree.unflatten(shape, moved))
        return found

    def _joined(self, name: str, shares: Sequence[Any], join: Callable[..., Any] = jnp.concatenate) -> Any:
        """A gradient of the shares of all replicas."""
        first = shares[0]
        if isinstance(first, SelectedRows):
            rows, values = join([s.rows for s in shares]), join([s.values for s in shares])
            return SelectedRows(rows, values, first.height, summed=True)
        shape = self._divided[name]
        return join(shares)[: math.prod(shape)].reshape(shape)


def _first(leaf: Any) -> Any:
    """What a value of all devices is on the first."""
    return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and _on_all(leaf) else leaf


def _on_all(value: jax.Array) -> bool:
    return len(value.sharding.device_set) > 1
