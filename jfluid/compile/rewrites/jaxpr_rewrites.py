"""Interpreter of rewrites: evaluates the jaxpr of a step for CPUs and asks each rewrite about each equation.

XLA:CPU gets layouts, kernels and fusions from the rewrites that it does not choose by itself. Users see no difference.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import Array

from jfluid.compile.rewrites.image_convolution import Convolutions
from jfluid.compile.rewrites.image_layout import ImageLayout
from jfluid.compile.rewrites.matmul_dispatch import MatmulDispatch
from jfluid.compile.rewrites.primitives import CALLS
from jfluid.compile.rewrites.rewrite import Rewrite
from jfluid.compile.rewrites.traced_value import Broadcast, Order, TracedValue, inverse, permuted

# The rewrites, in order of precedence. Each can be left out alone.
REWRITES: tuple[type[Rewrite], ...] = (
    Convolutions,
    MatmulDispatch,
    ImageLayout,
)


def evaluate(
    function: Callable[[dict[str, Any]], dict[str, Any]],
    held: Mapping[str, tuple[Array, Order]] = MappingProxyType({}),
    orders: Mapping[str, Order] = MappingProxyType({}),
) -> dict[str, Any]:
    """Call a function inside a trace of `jax.jit` for a CPU, with its jaxpr rewritten.

    Results that are no tracers are returned as they are.

    Args:
        held: arguments by name that have another layout, with that layout.
        orders: the layouts of results by name; other results have the program's layout.
    """
    leaves: list[Any] = []
    names: list[str | None] = []
    structure: Any = None

    def traced(arguments: dict[str, Any]) -> list[Any]:
        nonlocal structure
        found = function(arguments)
        paths, structure = jax.tree.flatten_with_path(found)
        for path, leaf in paths:
            leaves.append(leaf)
            if isinstance(leaf, jax.core.Tracer):
                key = path[0].key
                names.append(key if key in orders and len(path) == 1 else None)
        return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]

    shapes = {
        name: jax.ShapeDtypeStruct(permuted(array.shape, inverse(order)), array.dtype)
        for name, (array, order) in held.items()
    }
    rewrites = [rewrite() for rewrite in REWRITES]
    for rewrite in rewrites:
        rewrite.begin([shape.shape for shape in shapes.values()])
    recorded = jax.make_jaxpr(traced)(shapes)
    arguments = [TracedValue(laid=held[name][0], order=held[name][1]) for name in sorted(held)]
    found = iter(_Interpreter(rewrites).run(recorded.jaxpr, recorded.consts, arguments))
    places = iter(names)

    def result(leaf: Any) -> Any:
        if not isinstance(leaf, jax.core.Tracer):
            return leaf
        value, name = next(found), next(places)
        return value.given() if name is None else value.laid(orders[name])

    return jax.tree.unflatten(structure, [result(leaf) for leaf in leaves])  # type: ignore[no-any-return]


class _Interpreter:
    """Evaluator of a jaxpr that asks rewrites about each equation."""

    def __init__(self, rewrites: Sequence[Rewrite]):
        self._rewrites = rewrites

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[TracedValue]) -> list[TracedValue]:
        """Return the results of a jaxpr."""
        from jax.extend import core  # it comes with Pallas, which a second start does without

        env: dict[Any, TracedValue] = dict(zip(jaxpr.constvars, map(TracedValue, consts)))
        env.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> TracedValue:
            return TracedValue(atom.val) if isinstance(atom, core.Literal) else env[atom]

        for equation in jaxpr.eqns:
            values = [read(a) for a in equation.invars]
            scopes = (found for rewrite in self._rewrites if (found := rewrite.scope(values)) is not None)
            with jax.named_scope(next(scopes, str(equation.source_info.name_stack))):
                results = self._results(equation, values)
            env.update(zip(equation.outvars, results))
        return [read(a) for a in jaxpr.outvars]

    def _results(self, equation: Any, values: list[TracedValue]) -> Sequence[TracedValue]:
        rewritten = (found for r in self._rewrites if (found := r.apply(equation, values)) is not None)
        results = next(rewritten, None)
        if results is None:
            results = self._inside(equation, values)
        if results is None:
            results = _bound(equation, values)
        for rewrite in self._rewrites:
            rewrite.follow(equation, values, results)
        return results

    def _inside(self, equation: Any, values: list[TracedValue]) -> Sequence[TracedValue] | None:
        """Return the results of a call or of a branch for CPUs, or None for any other equation."""
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            inner = params[CALLS[name]]
            return self.run(inner.jaxpr, inner.consts, values)
        if name == "platform_index":
            cpu = [i for i, names in enumerate(params["platforms"]) if names and "cpu" in names]
            return [TracedValue(np.int32(cpu[0] if cpu else len(params["platforms"]) - 1))]
        if name == "cond" and isinstance(values[0].given(), np.integer):
            branch = params["branches"][int(values[0].given())]
            return self.run(branch.jaxpr, branch.consts, values[1:])
        return None


def _bound(equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue]:
    """Apply a primitive to values in the program's layout."""
    operands = [v.given() for v in values]
    found = equation.primitive.bind(*operands, **equation.params)
    if equation.primitive.name == "broadcast_in_dim":
        return [Broadcast(found, equation.params, operands[0])]
    return [TracedValue(r) for r in (found if equation.primitive.multiple_results else [found])]
