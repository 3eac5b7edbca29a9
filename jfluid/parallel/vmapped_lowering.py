"""Lowering of all replicas of a device as one computation, by `jax.vmap`.

Values that differ by replica are stacked along a first dimension, and an operator that reads a stacked value is
mapped over it (`jax.vmap`): each replica has the results of a run alone. Gradients are taken of the mapped operator:
the gradient of a value that all replicas share is the sum over replicas, from one product over the whole batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid.compile.lowering.lower import NOTHING, Item, Known, Lowering, pairs_of
from jfluid.ir.operator import Operator
from jfluid.ir.variable import EMPTY_NAME
from jfluid.ops import ragged_dispatch
from jfluid.ops.collective import AXIS
from jfluid.ops.definition import OpDef
from jfluid.ops.gradients import GRAD
from jfluid.ops.ragged import Ragged
from jfluid.ops.refusals import RefusalRule
from jfluid.ops.repeated import Repeated
from jfluid.ops.selected_rows import SelectedRows
from jfluid.ops.static_values import Unknown, is_static
from jfluid.parallel import merged_batch_ops


class NotJoined(Exception):  # no error: replicas run apart then
    """Operator with per-replica results that one computation does not give."""


class Kind(Enum):
    """Relation of a value to the replicas."""

    REPLICATED = "one value for all replicas"
    PER_REPLICA = "a value for each replica, stacked"
    SUMMED = "a value for each replica, with a known sum"


class Kinds:
    """Kinds of values by name, followed through operators.

    Args:
        apart: the names that differ by replica at first. All further names are replicated.
    """

    def __init__(self, items: Sequence[Item], apart: Iterable[str]):
        self._items, self.pairs = items, pairs_of(list(items))
        self._differentiated = set(self.pairs.values())
        self._known: dict[str, Kind] = dict.fromkeys(apart, Kind.PER_REPLICA)
        # by position of a forward operator: whether it is mapped, and the kinds of its inputs
        self._before: dict[int, tuple[bool, dict[str, Kind]]] = {}

    def __getitem__(self, name: str) -> Kind:
        return self._known.get(name, Kind.REPLICATED)

    def __setitem__(self, name: str, kind: Kind) -> None:
        self._known[name] = kind

    def mapped(self, at: int) -> bool:
        """Return True if the operator at a position, which was followed, is mapped over replicas."""
        return self._before[at][0]

    def follow(self, at: int) -> dict[str, Kind]:
        """Return the kinds of an operator's outputs. Raises NotJoined."""
        _, op, definition = self._items[at]
        ins = {n: self[n] for n in op.input_arg_names if n != EMPTY_NAME}
        outs = [n for n in op.output_arg_names if n != EMPTY_NAME]
        if definition.fn is None or definition.host or definition.collective or definition.carries or definition.sums:
            raise NotJoined(op.type)
        differentiated = at in self._differentiated
        if at in self.pairs and not differentiated:
            found = self._of_gradients(at, op, definition)
        elif Kind.SUMMED in ins.values():
            if differentiated or not _linear(op):
                raise NotJoined(op.type)
            found = dict.fromkeys(outs, Kind.SUMMED)
        else:
            mapped = definition.rng or Kind.PER_REPLICA in ins.values()
            self._before[at] = mapped, ins
            kind = Kind.SUMMED if mapped and merged_batch_ops.sums_examples(definition) else None
            found = dict.fromkeys(outs, kind or (Kind.PER_REPLICA if mapped else Kind.REPLICATED))
        self._known.update(found)
        return found

    def _of_gradients(self, at: int, op: Operator, definition: OpDef) -> dict[str, Kind]:
        mapped, before = self._before[self.pairs[at]]
        forward = definition.forward
        assert forward is not None
        given = {self[n] for s in forward.outs for n in op.inputs.get(s.name + GRAD, ())}
        if mapped and Kind.SUMMED in given:
            raise NotJoined(op.type)
        flat = Kind.SUMMED if given - {Kind.REPLICATED} else Kind.REPLICATED
        found: dict[str, Kind] = {}
        for slot in forward.reads:
            names = op.inputs.get(slot.name, ())
            for name, gradient in zip(names, op.outputs.get(slot.name + GRAD, ())):
                own = Kind.PER_REPLICA if before.get(name) is Kind.PER_REPLICA else Kind.SUMMED
                found[gradient] = own if mapped else flat
        found.pop(EMPTY_NAME, None)
        return found


def _linear(op: Operator) -> bool:
    """Return True if an operator is linear: f(a) + f(b) = f(a + b)."""
    return op.type in ("sum", "assign") or (op.type == "scale" and not op.attrs.get("bias"))


def total(value: Any, kind: Kind, replicas: int) -> Any:
    """Return the sum of a value over replicas."""
    if kind is Kind.SUMMED:
        return value
    if isinstance(value, SelectedRows):
        if kind is Kind.REPLICATED:
            value = apart(value, replicas)
        rows, values = (v.reshape(-1, *v.shape[2:]) for v in (value.rows, value.values))
        return SelectedRows(rows, values, value.height, summed=True)
    if isinstance(value, Ragged):
        raise TypeError("the gradient of a value that all replicas share has rows in sequences")
    return value.sum(0, dtype=value.dtype) if kind is Kind.PER_REPLICA else value * replicas


def apart(value: Any, replicas: int) -> Any:
    """Return a value that all replicas share, stacked."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (replicas, *jnp.shape(leaf))), value)


class VmappedLowering(Lowering):
    """Lowering of the operators of all replicas.

    Args:
        replicas: the number of replicas.
        apart: names of the values that are stacked; after `run`, see `kinds`.
    """

    def __init__(
        self,
        items: Iterable[Item],
        key: Any,
        watch: list[Any] | None,
        known: Known = NOTHING,
        *,
        replicas: int,
        apart: Iterable[str],
    ):
        super().__init__(items, key, watch, known)
        self._replicas = replicas
        self.kinds = Kinds(self.items, apart)
        self._followed: dict[str, Kind] = {}  # of the current operator's outputs
        self._repeated = Repeated(())  # which inputs are stacked differs, too

    def _draw(self) -> None:
        """Draw nothing ahead: each replica draws its numbers with the operator that needs the numbers."""

    def _key(self, uid: int) -> Any:
        def own(number: Any) -> Any:
            return jax.random.fold_in(jax.random.fold_in(self.key, number), np.uint32(uid))

        return jax.vmap(own)(jnp.arange(self._replicas))

    def _know(self, known: Mapping[str, Any], env: dict[str, Any]) -> None:
        for name, number in known.items():
            if self.kinds[name] is not Kind.PER_REPLICA:
                super()._know({name: number}, env)
            elif name in env and jnp.shape(env[name])[1:] == np.shape(number):
                env[name], self.kinds[name] = number, Kind.REPLICATED

    def _apply(self, at: int, op: Operator, definition: OpDef, env: dict[str, Any]) -> tuple[Any, ...] | None:
        # a copy: an operator may overwrite its inputs
        self._reads = {n: self.kinds[n] for n in op.input_arg_names}
        self._followed = self.kinds.follow(at)
        if Kind.SUMMED in self._reads.values() and at not in self.kinds.pairs:
            env = env | {n: total(env[n], kind, self._replicas) for n, kind in self._reads.items() if n in env}
            self._reads = dict.fromkeys(self._reads, Kind.REPLICATED)
        return super()._apply(at, op, definition, env)

    def _refused(self, op: Operator, rules: list[RefusalRule], inputs: dict[str, Any], attrs: Any) -> Any:
        """Return the values that the first refusing replica refuses, for each rule."""
        own = {n for n in op.input_arg_names if self.kinds[n] is Kind.PER_REPLICA}
        axes = {
            slot: [0 if n in own else None for n in op.input(slot)]
            if isinstance(v, list)
            else (0 if own.intersection(op.input(slot)) else None)
            for slot, v in inputs.items()
        }
        found = jax.vmap(
            lambda given: super(VmappedLowering, self)._refused(op, rules, given, attrs),
            in_axes=(axes,),
            axis_size=self._replicas,
        )(inputs)
        first = jnp.argmax(found[:, :, 0], axis=0)
        return found[first, jnp.arange(len(rules))]

    def _call(self, at: int, definition: OpDef, inputs: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        op = self.items[at][1]
        flags: list[bool] = []
        for slot, value in zip(definition.ins, inputs):
            values = value if isinstance(value, list) else [value]
            for name, v in zip(op.inputs.get(slot.name) or [EMPTY_NAME], values):
                own = self._reads.get(name) is Kind.PER_REPLICA
                flags += [own] * len(jax.tree.leaves(v))
        if not (any(flags) or "key" in kwargs):
            return super()._call(at, definition, inputs, kwargs)
        found = merged_batch_ops.outputs(definition, inputs, kwargs, flags, self._replicas)
        if found is not None:
            return found
        found = self._mapped(definition, inputs, kwargs, flags)
        if merged_batch_ops.sums_examples(definition):
            found = tuple(None if v is None else total(v, Kind.PER_REPLICA, self._replicas) for v in found)
        return found

    def _mapped(
        self,
        definition: OpDef,
        inputs: Sequence[Any],
        kwargs: Mapping[str, Any],
        flags: Sequence[bool],
    ) -> tuple[Any, ...]:
        """Return the outputs of the operator in each replica, stacked."""
        leaves, tree = jax.tree.flatten(list(inputs))
        structure: Any = tree
        moving = [v for v, own in zip(leaves, flags) if own]
        outside: dict[str, Any] = {}
        keys = [kwargs["key"]] if "key" in kwargs else []

        def replica(own: list[Any], keys: list[Any]) -> list[Any]:
            own_leaves = iter(own)
            given = [next(own_leaves) if flag else v for v, flag in zip(leaves, flags)]
            settings = {**kwargs, **({"key": keys[0]} if keys else {})}
            try:
                outs = ragged_dispatch.call(definition, structure.unflatten(given), settings)
            except Unknown as need:
                for inner, outer in zip(own, moving):
                    if need.value is inner:
                        need.value = outer
                raise
            found, outside["tree"] = jax.tree.flatten(list(outs))
            outside["static"] = {i: v for i, v in enumerate(found) if is_static(v)}
            return [v for v in found if not is_static(v)]

        stacked = iter(jax.vmap(replica, axis_name=AXIS, axis_size=self._replicas)(moving, keys))
        static, shape = outside["static"], outside["tree"]
        found = [static[i] if i in static else next(stacked) for i in range(shape.num_leaves)]
        places = shape.unflatten(range(len(found)))
        return tuple(self._whole(place, found, static) for place in places)

    def _whole(self, places: Any, found: Sequence[Any], static: Mapping[int, Any]) -> Any:
        """Return the value of a slot, or of each variable of a slot.

        A value that is known while tracing in part only is stacked.
        """
        if isinstance(places, list):
            return [self._whole(p, found, static) for p in places]
        known = all(i in static for i in jax.tree.leaves(places))
        return jax.tree.map(
            lambda i: apart(found[i], self._replicas) if i in static and not known else found[i],
            places,
        )

    def _cotangents(self, at: int, op: Operator, definition: OpDef, env: dict[str, Any]) -> list[Any]:
        mapped = self.kinds.mapped(self.kinds.pairs[at])
        flat = all(kind is Kind.REPLICATED for kind in self._followed.values())

        def seen(name: str, value: Any) -> Any:
            kind = self._reads[name]
            if not mapped:
                return value if flat else total(value, kind, self._replicas)
            return apart(value, self._replicas) if kind is Kind.REPLICATED else value

        assert definition.forward is not None
        names = {n for s in definition.forward.outs for n in op.inputs.get(s.name + GRAD, ())}
        seeds = {n: seen(n, env[n]) for n in names if n in env}
        return super()._cotangents(at, op, definition, env | seeds)

    def _unpadded(self, name: str, value: Ragged) -> Ragged:
        unpadded = super()._unpadded
        if self._reads[name] is not Kind.PER_REPLICA:
            return unpadded(name, value)
        found: Ragged = jax.vmap(lambda own: unpadded(name, own))(value)
        return found

    def _store(self, op: Operator, definition: OpDef, outs: tuple[Any, ...], env: dict[str, Any]) -> None:
        super()._store(op, definition, outs, env)
        for name, kind in self._followed.items():
            # values known while tracing are the same for all replicas
            known = name in env and all(map(is_static, jax.tree.leaves(env[name])))
            self.kinds[name] = Kind.REPLICATED if known and kind is Kind.PER_REPLICA else kind


def run(
    items: Iterable[Item],
    env: dict[str, Any],
    key: Any,
    watch: list[Any] | None,
    known: Known,
    replicas: int,
    stacked: Iterable[str],
    refusals: Mapping[int, Any] = MappingProxyType({}),
) -> Kinds:
    """Trace the operators of all replicas over values by name; return the kinds of all values.

    The outputs are added to the values. Further arguments are the arguments of `trace.lower` and `trace.First`.

    Args:
        stacked: names of the values that are stacked.
    """
    lowering = VmappedLowering(items, key, watch, known, replicas=replicas, apart=stacked)
    lowering.refusals = refusals
    lowering.run(env)
    return lowering.kinds
