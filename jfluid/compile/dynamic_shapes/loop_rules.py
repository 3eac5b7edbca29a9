"""Rules of loops and conditions at padded sizes."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jfluid.compile.dynamic_shapes.dims import Dim, NoRule, is_constant, leads
from jfluid.compile.dynamic_shapes.interpreter import Interpreter, Operation, Padded, rule


def _arrays(values: Sequence[Padded]) -> list[Any]:
    return [jnp.asarray(v.array) for v in values]


def _wrapped(arrays: Sequence[Any], dims: Sequence[tuple[Dim, ...]]) -> list[Padded]:
    return [Padded(a, d) for a, d in zip(arrays, dims, strict=True)]


def _hold(run: Interpreter, found: Sequence[Padded], dims: Sequence[tuple[Dim, ...]]) -> list[Any]:
    """Return the arrays of a loop's new state, padded as the old one. Raises NoRule for other sizes."""
    return [jnp.asarray(run.laid_out(v, d)) for v, d in zip(found, dims, strict=True)]


@rule("cond")
def _condition(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    index, *operands = values
    branches = list(zip(*operation.each("branches")))
    if isinstance(index.array, np.integer | int):
        return run.inline(branches[int(index.array)], operands)
    dims = [v.dims for v in operands]
    found: list[list[tuple[Dim, ...]]] = []

    def branch(traces: Sequence[Any]) -> Any:
        def compute(*arrays: Any) -> list[Any]:
            with run.inside():
                results = run.inline(traces, _wrapped(arrays, dims))
            found.append([v.dims for v in results])
            return _arrays(results)

        return compute

    arrays = lax.switch(index.array, list(map(branch, branches)), *_arrays(operands))
    if any(other != found[0] for other in found):
        raise NoRule("a condition with results of different shapes")
    return _wrapped(arrays, found[0])


_condition.inlines = True  # type: ignore[attr-defined]


@rule("while")
def _while(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    to_test = operation.params["cond_nconsts"]
    to_body = to_test + operation.params["body_nconsts"]
    test_given, body_given, state = values[:to_test], values[to_test:to_body], values[to_body:]
    dims = [v.dims for v in state]
    if operation.params["cond_jaxpr"].out_avals[0].shape:
        raise NoRule("loops that end at different times")

    def test(arrays: Sequence[Any]) -> Any:
        given = [*test_given, *_wrapped(arrays, dims)]
        with run.inside():
            return run.inline(operation.each("cond_jaxpr"), given)[0].array

    def body(arrays: Sequence[Any]) -> list[Any]:
        given = [*body_given, *_wrapped(arrays, dims)]
        with run.inside():
            return _hold(run, run.inline(operation.each("body_jaxpr"), given), dims)

    return _wrapped(lax.while_loop(test, body, _arrays(state)), dims)


_while.inlines = True  # type: ignore[attr-defined]


@rule("scan")
def _scan(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    params = operation.params
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    given, state, rows = values[:first], values[first:last], values[last:]
    length = run.table.named(tuple(operation.each("length")))
    if not is_constant(length) and not (leads(length) and len(length[0]) == 1):
        raise NoRule("a loop over a dimension that is padded between its data")
    dims, own = [v.dims for v in state], [v.dims[1:] for v in rows]
    rows = [Padded(run.laid_out(v, (length, *d)), (length, *d)) for v, d in zip(rows, own)]
    made: list[tuple[Dim, ...]] = []
    count = run.sizes.true(length)

    def step(arrays: Sequence[Any], at: tuple[Any, Sequence[Any]]) -> tuple[list[Any], list[Any]]:
        number, row = at
        inner = [*given, *_wrapped(arrays, dims), *_wrapped(row, own)]
        with run.inside():
            results = run.inline(operation.each("jaxpr"), inner)
            after = _hold(run, results[: len(state)], dims)
        if not is_constant(length):  # steps beyond the data change nothing
            after = [jnp.where(number < count, new, old) for new, old in zip(after, arrays)]
        made[:] = [v.dims for v in results[len(state) :]]
        return after, _arrays(results[len(state) :])

    steps = run.sizes.padded(length)
    arrays, outs = lax.scan(
        step,
        _arrays(state),
        (jnp.arange(steps), _arrays(rows)),
        length=steps,
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return _wrapped(arrays, dims) + _wrapped(outs, [(length, *d) for d in made])


_scan.inlines = True  # type: ignore[attr-defined]
