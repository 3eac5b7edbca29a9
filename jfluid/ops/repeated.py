"""Trace cache for repeated operators, as in layers of one size.

Each operator is traced once, and its jaxpr is called again for each repetition. It takes JAX a fraction of
the time and gives the same program.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from jfluid.ops import gradients, inlining
from jfluid.ops.definition import OpDef

Function = Callable[..., tuple[Any, ...]]
Pull = Callable[[Sequence[Any]], list[Any]]


class _Alone(Exception):
    """Error: an output is a constant while traced, so the operator must be traced alone."""


class Repeated:
    """Trace cache for the operators of a block that repeat, keyed by attributes and input shapes.

    Args:
        attributes: the definition of each operator of the block, and its attributes.
    """

    def __init__(self, attributes: Iterable[tuple[OpDef, Mapping[str, Any]]]):
        self._counts = Counter(_attributes(d, given) for d, given in attributes)
        self._calls: dict[Hashable, Any] = {}
        self._vjps: dict[Hashable, gradients.TracedGradient] = {}
        self._alone: set[Hashable] = set()  # which are traced each time after all

    def call(
        self, function: Function, definition: OpDef, inputs: list[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Call `function`, the computation of the operator, by its cached trace if there is one."""
        key = self._key(definition, inputs, kwargs)
        if key is not None:
            if key not in self._calls:
                self._calls[key] = jax.jit(_traced(function), inline=inlining.EARLY)
            try:
                found: tuple[Any, ...] = self._calls[key](*inputs)
                return found
            except Exception:  # it is raised again where the values have names
                self._alone.add(key)
        return function(*inputs)

    def vjp(
        self,
        function: Function,
        definition: OpDef,
        inputs: list[Any],
        kwargs: Mapping[str, Any],
        wanted: Sequence[bool],
        used: Sequence[bool],
    ) -> tuple[tuple[Any, ...], Pull]:
        """Call `gradients.vjp_of` for `function`, by its cached trace if there is one."""
        key = self._key(definition, inputs, kwargs, *wanted, *used)
        if key is not None:
            traced = self._vjps.setdefault(key, gradients.TracedGradient())
            try:
                return gradients.vjp_of(_traced(function), inputs, wanted, used, traced)
            except Exception:  # as above
                self._alone.add(key)
        return gradients.vjp_of(function, inputs, wanted, used)

    def _key(self, definition: OpDef, inputs: list[Any], kwargs: Mapping[str, Any], *others: bool) -> Hashable:
        """Return the cache key of an operator and its inputs, or None if it must be traced alone."""
        if definition.collective or definition.rng or set(kwargs) - set(definition.attrs):
            return None
        attributes = _attributes(definition, kwargs)
        leaves = jax.tree.leaves(inputs)
        plain = all(type(v) in (list, type(None)) or _is_traced(v) for v in inputs)
        if self._counts[attributes] < 2 or not plain or not all(map(_is_traced, leaves)):
            return None
        forms = tuple((v.shape, v.dtype, v.weak_type) for v in leaves)
        key = attributes, jax.tree.structure(inputs), forms, others
        return None if attributes is None or key in self._alone else key


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _traced(function: Function) -> Function:
    """Return `function` with a check that raises _Alone if an output is a constant."""

    def checked(*values: Any) -> tuple[Any, ...]:
        outs = function(*values)
        if not all(map(_is_traced, jax.tree.leaves(outs))):
            raise _Alone
        return outs

    return checked


def _attributes(definition: OpDef, given: Mapping[str, Any]) -> Hashable:
    """Return an operator's type and attributes as a hashable key, or None if an attribute is not a number or name."""
    names = [n for n in definition.attrs if n in given]
    values = tuple(_frozen(given[n]) for n in names)
    return None if _OTHER in values else (definition.type, *names, *values)


_OTHER = object()


def _frozen(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        parts = tuple(map(_frozen, value))
        return _OTHER if _OTHER in parts else parts
    kinds = (bool, int, float, str, type(None))
    return (type(value), value) if isinstance(value, kinds) else _OTHER
