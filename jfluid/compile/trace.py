"""Operators as a pure function of values: the only place that lowers them for XLA."""

import contextlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import collector
from jfluid.compile import image_layout, scalars, table_gradients, update_order
from jfluid.compile.control import NOT_COUNTING, Counting
from jfluid.compile.dynamic_shapes.dims import NoRule, first_line
from jfluid.compile.lower import NOTHING, Known, Lowering, Path, Reached, needed
from jfluid.compile.own_loops import OwnLoops
from jfluid.compile.own_rows import OwnRows
from jfluid.compile.plan import Item
from jfluid.compile.traced_value import Order, inverse
from jfluid.ops import sequence_loops, table_rows
from jfluid.ops.collective import AXIS
from jfluid.ops.refusals import WIDTH, Rule

# A floating output: its operator, its name, whether all of it is finite.
Watched = tuple[Any, str, Any]


def random_key(data: Any) -> Any:
    """The JAX key of a step's uint32 [2]; None for a step that draws nothing."""
    return None if data is None else jax.random.wrap_key_data(data, impl="threefry2x32")


def lower(
    items: Sequence[Item],
    env: dict[str, Any],
    key: Any = None,
    watch: list[Watched] | None = None,
    known: Known = NOTHING,
    keys: Mapping[int, Any] = MappingProxyType({}),
    on_gpus: bool | None = None,
    reversible: bool = False,
    held: Mapping[str, Order] = MappingProxyType({}),
    wanted: Container[str] | None = None,
) -> dict[str, Any]:
    """Trace operators over values by name, and return the values with the operators' outputs.

    Args:
        key: a JAX key, if one of the operators draws.
        watch: collects every floating output (see FLAGS_check_nan_inf).
        known: numbers that shapes follow from, by the path of the operator that needs them and by
            name.
        keys: JAX keys of operators that have one of their own, by place in `items`.
        on_gpus: whether the program is for GPUs, where one kernel makes all updates of parameters of
            one shape, or for CPUs, where convolutions want images with channels last; None for one
            that is traced as it stands.
        reversible: make loops so that gradients can be taken through all of it.
        held: which values have their dimensions in another order, those that are given and those
            that operators make.
        wanted: names of the values that are read afterwards; None for all. Others are computed only where
            an operator needs them.

    Raises OpError, with the operator's place in the user's script, for one that fails.
    """
    lowering = Lowering(items, key, watch, known)
    lowering.drawn.update(keys)
    lowering.reversible = reversible
    if wanted is not None and watch is None:
        lowering.of_rows = table_gradients.only_updated(items, wanted)
    if on_gpus:
        lowering.awaited = update_order.awaited(items, of_filters=True)
        lowering.shared_rates = scalars.shared_rates(items)
    on_cpu = on_gpus is False
    if on_cpu:
        lowering.awaited = update_order.awaited(items)
    # What is watched belongs to the trace that it was found in.
    return laid_out(lowering.run, items, env, on_cpu and watch is None, held, wanted)


def recorded(
    items: Sequence[Item],
    env: dict[str, Any],
    key: Any = None,
    keys: Mapping[int, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Trace operators over values by name as they stand, for a trace that is evaluated at other sizes.

    The name stack of each operation ends with the operator's type, "@" and its position. Operations are XLA's alone:
    those of CPU kernels have numbers in them that follow from sizes. Arguments are those of `lower`.
    """
    lowering = Lowering(items, key)
    lowering.drawn.update(keys)
    lowering.awaited = update_order.awaited(items)
    lowering.scope = lambda position, op: f"{op.type}@{position}"
    with sequence_loops.using(sequence_loops.XlaLoops()), table_rows.using(table_rows.XlaRows()):
        return lowering.run(env)


def dense(name: str, value: Any) -> Any:
    """Return a result that is an array. Raises NoRule for any other."""
    if not isinstance(value, jax.Array | np.ndarray):
        raise NoRule(f"{name} is no dense tensor")
    return value


def jaxpr_of(function: Callable[..., Any], *arguments: Any, replicas: int | None = None) -> Any:
    """Return the jaxpr of a function of operators; of one that runs in each of `replicas`, if there are any.

    Raises NoRule if they cannot be traced.
    """
    axes = None if replicas is None else [(AXIS, replicas)]
    try:
        return jax.make_jaxpr(function, axis_env=axes)(*arguments)
    except NoRule:
        raise
    except Exception as error:
        raise NoRule(f"its operators do not take other sizes ({first_line(error)})") from error


def part(
    items: Iterable[Item],
    env: dict[str, Any],
    key: Any,
    watch: list[Watched] | None,
    known: Known,
    awaited: Mapping[int, list[str]],
) -> None:
    """Trace operators that are part of what `laid_out` traces; adds their outputs to `env`.

    Args:
        awaited: what an update, by its place in `items`, waits for; see `update_order.awaited`.
            Others are those of `lower`.
    """
    lowering = Lowering(items, key, watch, known)
    lowering.awaited = awaited
    lowering.run(env)


def laid_out(
    compute: Callable[[dict[str, Any]], dict[str, Any]],
    items: Iterable[Item],
    env: dict[str, Any],
    on_cpu: bool,
    held: Mapping[str, Order] = MappingProxyType({}),
    wanted: Container[str] | None = None,
) -> dict[str, Any]:
    """Trace `compute`, which runs operators on values by name and returns all with their outputs.

    Args:
        on_cpu: have images of convolutions channels last inside it, and gradients of weights and loops over
            time in the form that is fastest there.
        held: which values have their dimensions in another order, those that are given and those
            that operators make.
        wanted: as of `lower`.
    """
    rewritten = any(d.convolves or d.forward is not None for _, _, d in items)
    with contextlib.ExitStack() as own:
        own.enter_context(collector.paused())  # nearly all objects that tracing makes live until its end
        if on_cpu:
            own.enter_context(sequence_loops.using(OwnLoops()))
            own.enter_context(table_rows.using(OwnRows()))
        if on_cpu and rewritten:
            images = {n: (env[n], order) for n, order in held.items() if n in env}
            env.update(image_layout.channels_last(lambda given: compute(env | given), images, held, wanted))
            return env
        turned = [n for n in held if n in env]
        env.update((n, jax.lax.transpose(env[n], inverse(held[n]))) for n in turned)
        env = compute(env)
        env.update((n, jax.lax.transpose(env[n], held[n])) for n in held if n in env)
        return env


@dataclass(frozen=True)
class First:
    """Operators of a segment that run before it.

    Attributes:
        name: the variable whose value they compute.
        until: the path of the operator in a block before which the variable has that value; empty
            for one that has it after them.
        counting: the loop whose iterations they count; its counter is `name` then.
        refusals: what they refuse, by the identity of an operator; `name` is the table then.
    """

    items: list[Item]
    name: str
    until: Path = ()
    counting: Counting = NOT_COUNTING
    refusals: Mapping[int, tuple[int, list[Rule]]] = field(default_factory=dict)

    def start(self, env: dict[str, Any]) -> None:
        """Give `name` the value that it has before the first operator, if it needs one."""
        if self.counting.name:
            env[self.name] = jnp.int64(0)
        if self.refusals:
            number = sum(len(rules) for _, rules in self.refusals.values())
            env[self.name] = jnp.zeros((number, WIDTH), jnp.int64)


def lower_first(first: First, env: dict[str, Any], key: Any, known: Known) -> dict[str, Any]:
    """Trace operators that run before a segment; returns the values with that of `first.name`."""
    first.start(env)
    with collector.paused():
        lowering = Lowering(first.items, key, None, known)
        lowering.counting, lowering.refusals = first.counting, first.refusals
        lowering.until = (first.until, first.name) if first.until else None
        try:
            found = lowering.run(env)
        except Reached as reached:
            return env | {first.name: reached.value}
        return found if first.name in found else found | {first.name: needed(first.name, found)}
