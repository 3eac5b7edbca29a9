"""Interpret a jaxpr with NumPy: a few microseconds an operation, and nothing to compile.

A `Listing` is prepared once for each jaxpr. An operation without a rule here is compiled by itself.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from jfluid.compile.rewrites.primitives import CALLS
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.memory import size_of

# `(parameters of the operation, its operands) -> its result`, or a list of results.
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
# `equation -> bytes` of the temporary arrays of a rule, if these can be much larger than operands and results.
TEMPORARIES: dict[str, Callable[[Any], int]] = {}
_MOST_COMPILED = 256
_VIEWS = frozenset("broadcast_in_dim reshape rev slice squeeze transpose".split())  # results share operands' memory
_CALLED = frozenset((*CALLS.values(), "cond_jaxpr", "body_jaxpr", "branches"))  # parameters with a jaxpr that runs
# Primitives that take or give random keys.
_OF_KEYS = frozenset(
    "random_wrap random_unwrap random_clone random_seed random_fold_in random_split random_bits slice squeeze".split()
)


class Interrupted(Exception):
    """Signal that the interpreter was asked to stop."""


class NoRule(Exception):
    """Error of an operation of a jaxpr that the interpreter cannot run."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of primitives. It takes the parameters as a dict, then the operands."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class _Operation(NamedTuple):
    """Equation with its rule, the places of operands and results, and the values that no later equation reads."""

    run: Callable[..., Any]
    operands: list[int]
    results: list[int]
    several: bool
    last: list[int]


class Listing:
    """Jaxpr prepared for many runs.

    Attributes:
        most_bytes: the most bytes that a run holds at a time, of intermediate results and temporary arrays.
    """

    def __init__(self, closed: Any):
        jaxpr = closed.jaxpr
        if jaxpr.effects:
            raise NoRule("it has effects")
        places: dict[Any, int] = {}
        self._start: list[Any] = []

        def place(var: Any) -> int:
            if isinstance(var, core.Literal):
                dtype = var.aval.dtype  # type: ignore[attr-defined]  # of an array
                self._start.append(np.asarray(var.val, dtype))
                return len(self._start) - 1
            if var not in places:
                places[var] = len(self._start)
                self._start.append(None)
            return places[var]

        for var, value in zip(jaxpr.constvars, closed.consts):
            self._start[place(var)] = host_value(value)
        self._inputs = [place(var) for var in jaxpr.invars]
        self._operations = [
            _Operation(
                _function_of(eqn),
                [place(v) for v in eqn.invars],
                [place(v) for v in eqn.outvars],
                eqn.primitive.multiple_results,
                [],
            )
            for eqn in jaxpr.eqns
        ]
        self._outputs = [place(var) for var in jaxpr.outvars]
        self._note_last_reads(set(self._inputs))
        self.most_bytes = self._count_bytes(jaxpr.eqns)

    def _count_bytes(self, equations: Sequence[Any]) -> int:
        held: dict[int, int] = {}  # bytes of the results that later equations read, by place
        most = now = 0
        for equation, operation in zip(equations, self._operations):
            if equation.primitive.name not in _VIEWS:
                held.update(
                    (at, size_of(var.aval))
                    for at, var in zip(operation.results, equation.outvars)
                    if not is_key(var.aval)
                )
                now += sum(held.get(at, 0) for at in operation.results)
            most = max(most, now + _temporary_bytes(equation))
            now -= sum(held.pop(at, 0) for at in operation.last)
        return most

    def _note_last_reads(self, given: set[int]) -> None:
        made = {p for op in self._operations for p in op.results} | given
        later = set(self._outputs)
        for operation in reversed(self._operations):
            touched = {*operation.operands, *operation.results} & made
            operation.last.extend(touched - later)
            later |= touched

    def run(self, values: Sequence[Any], stop: Callable[[], bool] | None = None) -> list[Any]:
        """Return the results as NumPy arrays, which may share memory with operands and with each other.

        Args:
            values: NumPy arrays.
            stop: asked before each operation.

        Raises Interrupted once `stop` says so.
        """
        held = list(self._start)
        for at, value in zip(self._inputs, values, strict=True):
            held[at] = value
        for run, operands, results, several, last in self._operations:
            if stop is not None and stop():
                raise Interrupted
            found = run(*[held[at] for at in operands])
            if several:
                for at, value in zip(results, found, strict=True):
                    held[at] = value
            else:
                held[results[0]] = found
            for at in last:
                held[at] = None
        return [held[at] for at in self._outputs]


def _function_of(eqn: Any) -> Callable[..., Any]:
    name = eqn.primitive.name
    found = RULES.get(eqn.params["target_name"] if name == "ffi_call" else name)
    keyed = any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars))
    if keyed and name not in _OF_KEYS and name not in CALLS:
        raise NoRule(f"{name} has a random key")
    for var in (*eqn.invars, *eqn.outvars):
        if not is_key(var.aval) and np.dtype(var.aval.dtype).kind not in "biufc":
            raise NoRule(f"{name} has values of {var.aval.dtype}, which NumPy does not multiply")
    if found is None:
        return _Alone(eqn)
    return functools.partial(found, dict(eqn.params, results=[v.aval for v in eqn.outvars]))


def _temporary_bytes(eqn: Any) -> int:
    """Return the bytes that an operation holds while it runs, besides operands and results. Raises NoRule."""
    name, most = eqn.primitive.name, 0
    if name in TEMPORARIES:
        most = TEMPORARIES[name](eqn)
    for value in (eqn.params.get(param) for param in _CALLED if name in RULES):
        for called in value if isinstance(value, tuple) else (value,):
            if isinstance(called, core.Jaxpr | core.ClosedJaxpr):
                with contextlib.suppress(NoRule):  # a branch that does not run needs no rules
                    most = max(most, inner(called).most_bytes)
    return most


class _Alone:
    """Operation that is compiled by itself at its first run."""

    compiled: LruCache[Any] = LruCache(_MOST_COMPILED)

    def __init__(self, eqn: Any):
        if eqn.effects:
            raise NoRule(f"{eqn.primitive.name} has effects")
        self._bind = functools.partial(eqn.primitive.bind, **eqn.params)
        self._several = eqn.primitive.multiple_results
        self._key: Any = (eqn.primitive, tuple(eqn.params.items()))
        try:
            hash(self._key)
        except TypeError:
            self._key = object()  # the cache keeps it, so that no other operation has its identity

    def __call__(self, *values: Any) -> Any:
        run = self.compiled.get_or_make(self._key, lambda: jax.jit(self._bind))
        found = run(*values)
        return list(map(np.asarray, found)) if self._several else np.asarray(found)


def is_key(aval: Any) -> bool:
    """Return True if a value is an array of random keys, which has a further dimension for the numbers of a key."""
    return not isinstance(aval.dtype, np.dtype) and jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key)


def host_value(value: Any) -> Any:
    """Return an array as a NumPy array: of a random key its numbers."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(value))
    return np.asarray(value)


def inner(closed: Any) -> "Listing":
    """Return the listing of a jaxpr that an operation calls."""
    if not hasattr(closed, "consts"):
        closed = core.ClosedJaxpr(closed, ())
    return _listing(closed)


@functools.lru_cache(maxsize=512)
def _listing(closed: Any) -> Listing:
    return Listing(closed)
