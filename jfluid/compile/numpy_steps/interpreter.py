"""Interpret a jaxpr with NumPy: a few microseconds an operation, and nothing to compile.

A `Listing` is prepared once for each jaxpr. An operation without a rule here is compiled by itself.
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from jfluid.compile.numpy_steps.loop_buffers import in_place
from jfluid.compile.numpy_steps.operation import NumpyOperation, ResultType, execute, note_last_reads
from jfluid.compile.rewrites.primitives import CALLS
from jfluid.compile.runtime.lru_cache import LruCache

# `(parameters of the operation, its operands) -> its result`, or a list of results.
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
# Functions of the operands alone: NumPy finds the sizes of the results.
PLAIN: dict[str, Callable[..., Any]] = {}
# Operations of a form that NumPy has a function for: `parameters -> function`, or None for any other form.
FORMS: dict[str, Callable[[Mapping[str, Any]], Callable[..., Any] | None]] = {}
_MOST_COMPILED = 256
_PLAIN_DTYPE = np.dtype(np.bool_)  # of a Python number, which has no dtype
# Bytes of intermediate results from which on a step waits for its compilation: XLA fuses operations, and a step of
# ResNet-50 takes three times as much memory without. The same bound holds for the arrays inside of one operation.
MOST_BYTES = 512 << 20
_VIEWS = frozenset("broadcast_in_dim reshape rev slice squeeze transpose".split())  # results share operands' memory
# Primitives that take or give random keys.
_OF_KEYS = frozenset(
    "random_wrap random_unwrap random_clone random_seed random_fold_in random_split random_bits slice squeeze".split()
)


class NotInterpretable(Exception):
    """Error of an operation of a jaxpr that the interpreter cannot run."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of primitives. It takes the parameters as a dict, then the operands."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def plain(*names: str) -> Callable[[Rule], Rule]:
    """Register the function of primitives that takes the operands alone."""

    def register(function: Rule) -> Rule:
        PLAIN.update(dict.fromkeys(names, function))
        return function

    return register


class _Divided(NamedTuple):
    """Body of a loop: operations that run once, and operations that run in each iteration.

    Attributes:
        buffers: numbers of the carried values that iterations write in place.
    """

    start: list[Any]
    inputs: list[int]
    once: list[NumpyOperation]
    each: list[NumpyOperation]
    outputs: list[int]
    buffers: list[int]


class Listing:
    """Jaxpr prepared for many runs.

    Attributes:
        most_bytes: the most bytes of intermediate results that a run holds at a time.
        jaxpr: of a called function or the body of a loop, at the sizes of the first sample; rules look at its form.
    """

    jaxpr: Any = None

    def __init__(self, closed: Any):
        jaxpr = closed.jaxpr
        if jaxpr.effects:
            raise NotInterpretable("it has effects")
        places: dict[Any, int] = {}
        self._start: list[Any] = []

        def place(var: Any) -> int:
            if isinstance(var, core.Literal):
                dtype = var.aval.dtype  # type: ignore[attr-defined]  # of an array
                self._start.append(_constant(np.asarray(var.val, dtype)))
                return len(self._start) - 1
            if var not in places:
                places[var] = len(self._start)
                self._start.append(None)
            return places[var]

        for var, value in zip(jaxpr.constvars, closed.consts):
            self._start[place(var)] = _constant(host_value(value))
        self._inputs = [place(var) for var in jaxpr.invars]
        self._operations = [
            NumpyOperation(
                eqn.primitive.name,
                _function_of(eqn),
                [place(v) for v in operands_of(eqn)],
                [place(v) for v in eqn.outvars],
                eqn.primitive.multiple_results,
                [],
            )
            for eqn in jaxpr.eqns
        ]
        self._outputs = [place(var) for var in jaxpr.outvars]
        made = {p for op in self._operations for p in op.results} | set(self._inputs)
        note_last_reads(self._operations, made - set(self._outputs))
        self._bytes = np.zeros(len(self._start), np.int64)  # of the results that are no views, by place
        for equation, operation in zip(jaxpr.eqns, self._operations):
            self._count_bytes(operation, equation.primitive.name, results_of(equation))
        # The places of results in the order in which these are made (1) and dropped (-1).
        events = [(at, by) for own in self._operations for by, ats in ((1, own.results), (-1, own.last)) for at in ats]
        self._halves: dict[tuple[int, int], _Divided] = {}
        self._events, self._signs = np.array(events, np.int64).reshape(-1, 2).T
        self.most_bytes = self._most_bytes()

    def _count_bytes(self, operation: NumpyOperation, name: str, results: Sequence[ResultType]) -> None:
        if name not in _VIEWS:
            for at, result in zip(operation.results, results):
                self._bytes[at] = result.bytes

    def _most_bytes(self) -> int:
        return int(np.cumsum(self._bytes[self._events] * self._signs).max(initial=0))

    def places(self, number: int | None) -> list[int]:
        """Return the places of the operands of an operation, by its number; with None of the results of the listing."""
        return self._outputs if number is None else self._operations[number].operands

    def changed(
        self, start: Mapping[int, Any], operations: Mapping[int, tuple[Any, Any, Sequence[ResultType]]]
    ) -> "Listing":
        """Return the listing for other sizes.

        Args:
            start: arrays by place, in place of constants and literals.
            operations: by number of an operation: the primitive, the parameters, the types of the results.
        """
        found = copy.copy(self)
        found._start, found._operations = list(self._start), list(self._operations)
        found._bytes, found._halves = self._bytes.copy(), {}
        for at, value in start.items():
            found._start[at] = _constant(value)
        for number, (primitive, params, results) in operations.items():
            operation = self._operations[number]
            run = _function(primitive, params, results)
            found._operations[number] = NumpyOperation(operation.name, run, *operation[2:])  # faster than `_replace`
            found._count_bytes(operation, primitive.name, results)
        found.most_bytes = found._most_bytes()
        return found

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
        execute(self._operations, held, stop)
        return [held[at] for at in self._outputs]

    def __call__(self, *values: Any) -> list[Any]:
        """Return the results, as `run`."""
        return self.run(values)

    def repeated(self, values: Sequence[Any], state: list[Any] | None = None) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a function of the last operands; operations of `values`, the first operands, alone run once.

        Args:
            state: values that each call gets from the call before, as its first results. Buffers among these are
                replaced by copies, which the calls write in place.
        """
        start, inputs, once, each, outputs, buffers = self._divided(len(values), len(state or ()))
        for number in buffers:
            assert state is not None  # it has buffers
            state[number] = np.array(state[number])
        before = list(start)
        for at, value in zip(inputs, values):
            before[at] = value
        execute(once, before)
        inputs = inputs[len(values) :]

        def again(values: Sequence[Any]) -> list[Any]:
            held = before.copy()
            for at, value in zip(inputs, values, strict=True):
                held[at] = value
            execute(each, held)
            return [held[at] for at in outputs]

        return again

    def _divided(self, number: int, carried: int) -> _Divided:
        """Return the operations that depend on the first operands alone, and the operations that do not."""
        if (number, carried) not in self._halves:
            start, operations, outputs = self._inlined()
            later = set(self._inputs[number:])
            once, each = [], []
            for operation in operations:
                if later.isdisjoint(operation.operands):
                    once.append(operation)
                else:
                    later.update(operation.results)
                    each.append(operation)
            places = list(zip(self._inputs[number : number + carried], outputs))
            each, buffers = in_place(each, places, outputs, _zeros(start, once))
            note_last_reads(each, later - set(outputs))
            self._halves[number, carried] = _Divided(start, self._inputs, once, each, outputs, buffers)
        return self._halves[number, carried]

    def _inlined(self) -> tuple[list[Any], list[NumpyOperation], list[int]]:
        """Return the first values, the operations and the places of the results, with called operations in place."""
        start, operations = list(self._start), []
        same: dict[int, int] = {}  # places of a call's results: their places in the called listing
        for operation in self._operations:
            operands = [same.get(at, at) for at in operation.operands]
            if not isinstance(operation.run, Listing):
                operations.append(operation._replace(operands=operands, last=[]))
                continue
            called, (values, own, results) = operation.run, operation.run._inlined()
            places = dict(zip(called._inputs, operands, strict=True))
            for at, value in enumerate(values):
                if at not in places:
                    places[at] = len(start)
                    start.append(value)
            for each in own:
                made = [places[at] for at in each.results]
                operands = [places[at] for at in each.operands]
                operations.append(each._replace(operands=operands, results=made, last=[]))
            same.update(zip(operation.results, [places[at] for at in results], strict=True))
        return start, operations, [same.get(at, at) for at in self._outputs]


def _zeros(start: Sequence[Any], operations: Sequence[NumpyOperation]) -> set[int]:
    """Return the places of arrays that operations make of the number zero."""
    return {
        operation.results[0]
        for operation in operations
        if operation.name == "broadcast_in_dim"
        and isinstance(number := start[operation.operands[0]], np.ndarray)
        and not number.any()
    }


def _function_of(eqn: Any) -> Callable[..., Any]:
    name = eqn.primitive.name
    keyed = any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars))
    if keyed and name not in _OF_KEYS and name not in CALLS:
        raise NotInterpretable(f"{name} has a random key")
    for var in (*eqn.invars, *eqn.outvars):
        if not is_key(var.aval) and np.dtype(var.aval.dtype).kind not in "biufc":
            raise NotInterpretable(f"{name} has values of {var.aval.dtype}, which NumPy does not multiply")
    if eqn.effects and not has_rule(eqn.primitive, eqn.params):
        raise NotInterpretable(f"{name} has effects")
    return _function(eqn.primitive, eqn.params, results_of(eqn))


def results_of(eqn: Any) -> list[ResultType]:
    """Return the types of the results of an equation."""
    return [ResultType.of(getattr(v.aval, "shape", ()), getattr(v.aval, "dtype", None)) for v in eqn.outvars]


def _rule_name(primitive: Any, params: Mapping[str, Any]) -> str:
    name: str = params["target_name"] if primitive.name == "ffi_call" else primitive.name
    return name


def has_rule(primitive: Any, params: Mapping[str, Any]) -> bool:
    """Return True if NumPy runs a primitive, which otherwise is compiled by itself."""
    name = _rule_name(primitive, params)
    return name in PLAIN or name in RULES or name in CALLS


def _function(primitive: Any, params: Mapping[str, Any], results: Sequence[ResultType]) -> Callable[..., Any]:
    name = _rule_name(primitive, params)
    if name in PLAIN:
        return PLAIN[name]
    if name in FORMS and (known := FORMS[name](dict(params, results=results))) is not None:
        return known
    if name in CALLS:
        return inner(params[CALLS[name]])
    if _is_by_platform(primitive, params):
        return inner(params["branches"][cpu_branch(params["branches_platforms"])])
    found = RULES.get(name)
    return _Alone(primitive, params) if found is None else functools.partial(found, dict(params, results=results))


def _is_by_platform(primitive: Any, params: Mapping[str, Any]) -> bool:
    """Return True if the platform chooses a branch, whose number is the first operand."""
    return primitive.name == "cond" and params.get("branches_platforms") is not None


def operands_of(eqn: Any) -> Sequence[Any]:
    """Return the operands of an equation that NumPy reads: the number of a platform's branch is known."""
    return eqn.invars[1:] if _is_by_platform(eqn.primitive, eqn.params) else eqn.invars  # type: ignore[no-any-return]


def cpu_branch(platforms: Sequence[Sequence[str] | None]) -> int:
    """Return the number of the branch for CPUs, among branches for platforms; None stands for all platforms."""
    return next((i for i, names in enumerate(platforms) if names and "cpu" in names), len(platforms) - 1)


class _Alone:
    """Operation that is compiled by itself at its first run."""

    compiled: LruCache[Any] = LruCache(_MOST_COMPILED)

    def __init__(self, primitive: Any, params: Mapping[str, Any]):
        self._bind = functools.partial(primitive.bind, **params)
        self._several = primitive.multiple_results
        self._key: Any = (primitive, tuple(params.items()))
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
    if type(value) is np.ndarray:
        return value
    is_plain = isinstance(getattr(value, "dtype", _PLAIN_DTYPE), np.dtype)
    return np.asarray(value if is_plain else jax.random.key_data(value))


def _constant(value: np.ndarray) -> np.ndarray:
    """Return a view of a constant that cannot be written."""
    found = value.view()
    found.flags.writeable = False
    return found


def inner(closed: Any) -> "Listing":
    """Return the listing of a jaxpr that an operation calls."""
    if isinstance(closed, Listing):
        return closed
    if not hasattr(closed, "consts"):
        closed = core.ClosedJaxpr(closed, ())
    found = _listing(closed)
    bound(found.most_bytes)
    return found


def bound(size: int) -> None:
    """Raise NotInterpretable if an operation would hold more than `MOST_BYTES`."""
    if size > MOST_BYTES:
        raise NotInterpretable(f"it holds {size} bytes of intermediate results")


@functools.lru_cache(maxsize=512)
def _listing(closed: Any) -> Listing:
    found = Listing(closed)
    found.jaxpr = closed.jaxpr
    return found
