"""Tracing of operators as a pure function of values: the only place that lowers operators for XLA."""

import contextlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid.compile.dynamic_shapes.dims import NoRule, first_line
from jfluid.compile.lowering import scalars, table_gradients, update_dependencies
from jfluid.compile.lowering.control import NOT_COUNTING, Counting
from jfluid.compile.lowering.embedding_kernels import EmbeddingKernels
from jfluid.compile.lowering.lower import NOTHING, Known, Lowering, Path, Reached, needed
from jfluid.compile.lowering.plan import Item
from jfluid.compile.lowering.rnn_kernels import RnnKernels
from jfluid.compile.rewrites import jaxpr_rewrites
from jfluid.compile.rewrites.traced_value import Order, inverse
from jfluid.host import collector
from jfluid.ops import batched_random, sequence_loops, table_rows
from jfluid.ops.collective import AXIS
from jfluid.ops.refusals import WIDTH, RefusalRule
from jfluid.ops.selected_rows import SelectedRows

# A floating output: its operator, its name, whether all of it is finite.
Watched = tuple[Any, str, Any]
_NO_MESH = jax.sharding.AbstractMesh((), ())


def random_key(data: Any) -> Any:
    """Return the JAX key of a step's uint32 [2], or None for a step that draws nothing."""
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
        key: a JAX key, if an operator draws.
        watch: collects every floating output (see FLAGS_check_nan_inf).
        known: numbers that shapes follow from, by the path of the operator that needs the number and by
            name.
        keys: JAX keys of operators with a key of their own, by place in `items`.
        on_gpus: True for GPUs, where one kernel makes all updates of parameters of one shape. False for CPUs, where
            rewrites apply. None to trace the operators as they stand.
        reversible: make loops so that gradients can be taken through all of it.
        held: layouts of inputs and outputs that are not in the program's layout.
        wanted: names of the values that are read afterwards; None for all. Further values are computed only if
            an operator needs them.

    Raises OpError, with the operator's place in the user's script, for an operator that fails.
    """
    lowering = Lowering(items, key, watch, known)
    lowering.drawn.update(keys)
    lowering.reversible = reversible
    if wanted is not None and watch is None:
        lowering.of_rows = table_gradients.only_updated(items, wanted)
    if on_gpus:
        lowering.awaited = update_dependencies.awaited(items, of_filters=True)
        lowering.shared_rates = scalars.shared_rates(items)
    on_cpu = on_gpus is False
    if on_cpu:
        lowering.most_drawn = batched_random.MOST_ON_CPUS
        lowering.awaited = update_dependencies.awaited(items)
    # Watched values belong to the trace of the operators.
    return laid_out(lowering.run, items, env, on_cpu and watch is None, held)


def recorded(
    items: Sequence[Item],
    env: dict[str, Any],
    key: Any = None,
    keys: Mapping[int, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Trace operators over values by name without rewrites, for a trace that is evaluated at other sizes.

    The name stack of each operation ends with the operator's type, "@" and its position. Operations are XLA's alone:
    those of CPU kernels have numbers in them that follow from sizes. Arguments are the arguments of `lower`.
    """
    lowering = Lowering(items, key)
    lowering.drawn.update(keys)
    lowering.awaited = update_dependencies.awaited(items)
    lowering.scope = lambda position, op: f"{op.type}@{position}"
    with sequence_loops.using(sequence_loops.XlaLoops()), table_rows.using(table_rows.XlaRows()):
        return lowering.run(env)


def dense(name: str, value: Any, or_rows: bool = False) -> Any:
    """Return a result that is an array, or with `or_rows` rows of a table. Raises NoRule for any other result."""
    if isinstance(value, jax.Array | np.ndarray) or (or_rows and isinstance(value, SelectedRows)):
        return value
    raise NoRule(f"{name} is no dense tensor")


def jaxpr_of(function: Callable[..., Any], *arguments: Any, replicas: int | None = None) -> Any:
    """Return the jaxpr of a function of operators, which runs in each of `replicas` unless that is None.

    Raises NoRule if the operators cannot be traced.
    """
    axes = None if replicas is None else [(AXIS, replicas)]
    try:
        with jax.sharding.use_abstract_mesh(_NO_MESH):  # the caller may trace the part of one device
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
    awaited: Mapping[int, update_dependencies.Awaited],
) -> None:
    """Trace a part of the operators that `laid_out` traces; add their outputs to `env`.

    Args:
        awaited: the values that an update waits for, by its place in `items`; see `update_dependencies.awaited`.
            Other arguments are the arguments of `lower`.
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
) -> dict[str, Any]:
    """Trace `compute`, which runs operators on values by name and returns all with their outputs.

    Args:
        on_cpu: apply the rewrites for CPUs, and use kernels for rows of tables and loops over time.
        held: layouts of inputs and outputs that are not in the program's layout.
    """
    rewritten = any(d.convolves or d.forward is not None for _, _, d in items)
    with contextlib.ExitStack() as own:
        own.enter_context(collector.paused())  # nearly all objects that tracing makes live until its end
        if on_cpu:
            own.enter_context(sequence_loops.using(RnnKernels()))
            own.enter_context(table_rows.using(EmbeddingKernels()))
        if on_cpu and rewritten:
            images = {n: (env[n], order) for n, order in held.items() if n in env}
            env.update(jaxpr_rewrites.evaluate(lambda given: compute(env | given), images, held))
            return env
        turned = [n for n in held if n in env]
        env.update((n, jax.lax.transpose(env[n], inverse(held[n]))) for n in turned)
        env = compute(env)
        env.update((n, jax.lax.transpose(env[n], held[n])) for n in held if n in env)
        return env


@dataclass(frozen=True)
class First:
    """Operators of a segment that run before the segment.

    Attributes:
        name: the variable that the operators compute.
        until: the path of the operator in a block at which the variable has the wanted value; empty
            for the value after all operators.
        counting: the loop to count the iterations of; `name` is then the loop's counter.
        refusals: the rules to check, by the identity of an operator; `name` is then the table.
    """

    items: list[Item]
    name: str
    until: Path = ()
    counting: Counting = NOT_COUNTING
    refusals: Mapping[int, tuple[int, list[RefusalRule]]] = field(default_factory=dict)

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
