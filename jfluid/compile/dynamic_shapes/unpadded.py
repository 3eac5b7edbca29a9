"""Listing of a step at the true sizes of a batch, from the traces at samples: nothing is traced or compiled for it.

NumPy runs the listing while the step has no executable for a bucket. Only the operations that depend on the sizes are
made anew for a batch. Sizes and numbers of the trace that differ by sample follow from the sizes of the feeds: a known
dimension, a multiple of a dimension or a sum of two dimensions plus a constant, or a form such as one over a dimension.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jfluid.compile.dynamic_shapes.dims import (
    Dim,
    NoRule,
    Samples,
    Sizes,
    Symbol,
    Table,
    is_constant,
    samples_of,
    size_of,
)
from jfluid.compile.dynamic_shapes.interpreter import FLOATS, SHORT, Operation, compare, rounded, shapes_at_samples
from jfluid.compile.dynamic_shapes.window_rules import WINDOWS, learn_windows
from jfluid.compile.numpy_steps.interpreter import Listing, has_rule, inner, operands_of, results_of
from jfluid.compile.numpy_steps.operation import ResultType
from jfluid.compile.rewrites.primitives import CALLS

# Returns a value for sizes; None for a value that is the same at all samples.
_Form = Callable[[Sizes], Any] | None


class _Latest:
    """Form that keeps its value for the latest sizes: many equations have the same numbers and shapes."""

    def __init__(self, form: Callable[[Sizes], Any]):
        self._form = form
        self._sizes: Sizes | None = None
        self._value: Any = None

    def __call__(self, sizes: Sizes) -> Any:
        if self._sizes is not sizes:
            self._value, self._sizes = self._form(sizes), sizes
        return self._value


class Unpadded:
    """Function of the sizes that returns the listing of a step.

    Args:
        traces: closed jaxprs of the step, one for each sample.
        table: the dimensions of the feeds.

    Raises NoRule for a step in which a number does not follow from the sizes by a known form, and the interpreter's
    NoRule for a step that NumPy cannot interpret.
    """

    def __init__(self, traces: Sequence[Any], table: Table):
        self._table = table
        self._memo: dict[Any, _Form] = {}
        self._traces = traces
        self._first = Listing(traces[0])
        self._at = self._closed(traces, self._first)

    def at(self, sizes: Sizes) -> Listing:
        """Return the listing at the true sizes."""
        return self._first if self._at is None else self._at(sizes)

    def _closed(self, traces: Sequence[Any], first: Listing) -> Callable[[Sizes], Listing] | None:
        """Return a function of the sizes that changes the first listing; None for the same listing at each sample."""
        jaxprs = [t.jaxpr for t in traces]
        for other in jaxprs[1:]:
            compare(jaxprs[0], other)
        start: list[tuple[int, Callable[[Sizes], Any]]] = []
        for at, own in enumerate(zip(*(t.consts for t in traces), strict=True)):
            if (form := self._constant(own)) is not None:
                start.append((at, form))
        operations = []
        for number, equations in enumerate(zip(*(j.eqns for j in jaxprs), strict=True)):
            start += self._literals(first.places(number), [operands_of(e) for e in equations])
            if (changed := self._equation(equations)) is not None:
                operations.append((number, changed))
        start += self._literals(first.places(None), [j.outvars for j in jaxprs])
        if not start and not operations:
            return None
        return _Latest(
            lambda sizes: first.changed(
                {at: form(sizes) for at, form in start}, {number: changed(sizes) for number, changed in operations}
            )
        )

    def _equation(self, equations: Sequence[Any]) -> Callable[[Sizes], tuple[Any, Any, list[ResultType]]] | None:
        """Return a function of the sizes that returns an equation's primitive, parameters and types of results."""
        first = equations[0]
        if first.primitive.name in WINDOWS:
            image, *filters = (shapes_at_samples([v.aval for v in o]) for o in zip(*(e.invars for e in equations)))
            learn_windows(self._table, Operation(equations), list(map(self._dim, image)), *(filters or [[]]))
        avals = [self._aval([v.aval for v in own]) for own in zip(*(e.outvars for e in equations), strict=True)]
        called = CALLS.get(first.primitive.name)  # beside it are rules of derivatives, which were applied
        names = first.params if called is None else [called]
        found = {name: self._form([e.params[name] for e in equations]) for name in names}
        params = [(name, form) for name, form in found.items() if form is not None]
        types = results_of(first)
        if not params and all(form is None for form in avals):
            return None
        changed = {name: first.params[name] for name, _ in params}
        if not has_rule(first.primitive, first.params) and list(core.jaxprs_in_params(changed)):
            raise NoRule(f"{first.primitive.name} calls operations that differ with the sizes")

        def at(sizes: Sizes) -> tuple[Any, Any, list[ResultType]]:
            results = [_at(form, aval, sizes) for form, aval in zip(avals, types)]
            return first.primitive, first.params | {name: form(sizes) for name, form in params}, results

        return at

    def _literals(
        self, places: Sequence[int], each: Sequence[Sequence[Any]]
    ) -> list[tuple[int, Callable[[Sizes], Any]]]:
        """Return the places and forms of literals that follow from the sizes."""
        found: list[tuple[int, Callable[[Sizes], Any]]] = []
        for place, atoms in zip(places, zip(*each, strict=True), strict=True):
            if isinstance(atoms[0], core.Literal):
                form = self._constant([atom.val for atom in atoms])
                if form is not None:
                    dtype = atoms[0].aval.dtype  # type: ignore[attr-defined]  # of an array
                    found.append((place, functools.partial(_literal, form, dtype)))
        return found

    def _aval(self, avals: Sequence[Any]) -> _Form:
        """Return the form of the type of a result."""
        shapes, dtype = [getattr(a, "shape", ()) for a in avals], getattr(avals[0], "dtype", None)
        key = (ResultType, dtype, *shapes)
        if key not in self._memo:
            shape = self._form(shapes)
            self._memo[key] = None if shape is None else _Latest(lambda sizes: ResultType.of(shape(sizes), dtype))
        return self._memo[key]

    def _constant(self, samples: Sequence[Any]) -> _Form:
        """Return the form of a constant of the trace."""
        first = samples[0]
        if all(s is first for s in samples):
            return None
        if jax.numpy.issubdtype(getattr(first, "dtype", np.float32), jax.dtypes.extended):
            raise NoRule("a random key in a trace")
        arrays = [np.asarray(s) for s in samples]
        if all(a.shape == arrays[0].shape and a.tobytes() == arrays[0].tobytes() for a in arrays):
            return None
        dtype = arrays[0].dtype
        if not arrays[0].ndim:
            number = self._number([a.item() for a in arrays])
            return None if number is None else lambda sizes: np.asarray(number(sizes), dtype)
        if arrays[0].ndim > 1 or dtype.kind not in "iuf":
            raise NoRule("an array that follows from the sizes")
        if len(arrays[0]) <= SHORT and len({len(a) for a in arrays}) == 1:
            form = self._form([tuple(a.tolist()) for a in arrays])
            return lambda sizes: np.asarray(arrays[0] if form is None else form(sizes), dtype)
        length = self._number([len(a) for a in arrays])
        if length is None:
            raise NoRule("an array that follows from the sizes")
        start, step = arrays[0][0], arrays[0][1] - arrays[0][0] if len(arrays[0]) > 1 else dtype.type(0)
        if not all(np.array_equal(a, start + step * np.arange(len(a), dtype=dtype)) for a in arrays):
            raise NoRule("an array that follows from the sizes")
        return lambda sizes: start + step * np.arange(length(sizes), dtype=dtype)

    def _form(self, samples: Sequence[Any]) -> _Form:
        """Return the form of a parameter."""
        first = samples[0]
        if isinstance(first, core.ClosedJaxpr | core.Jaxpr):
            key: tuple[Any, ...] = tuple(map(id, samples))  # the traces hold them
            if key not in self._memo:
                closed = [s if isinstance(s, core.ClosedJaxpr) else core.ClosedJaxpr(s, ()) for s in samples]
                self._memo[key] = self._closed(closed, inner(first))
            return self._memo[key]
        if isinstance(first, tuple | list):
            try:
                key = (type(first), *map(type, first), *samples)
                if key not in self._memo:
                    self._memo[key] = self._several(samples)
                return self._memo[key]
            except TypeError:  # it holds what has no hash
                return self._several(samples)
        if isinstance(first, bool | str) or not isinstance(first, int | float | np.number):
            if callable(first) or all(type(s) is type(first) and s == first for s in samples):
                return None
            raise NoRule(f"a parameter that differs with the sizes: {samples}")
        return self._number(samples)

    def _several(self, samples: Sequence[Any]) -> _Form:
        first = samples[0]
        if any(len(s) != len(first) for s in samples):
            raise NoRule("other sizes lead to other parameters")
        forms = [self._form(own) for own in zip(*samples, strict=True)]
        if all(form is None for form in forms):
            return None

        def at(sizes: Sizes) -> Any:
            found = [_at(form, value, sizes) for form, value in zip(forms, first, strict=True)]
            return type(first)(*found) if hasattr(first, "_fields") else type(first)(found)

        return _Latest(at)

    def _number(self, samples: Sequence[Any]) -> _Form:
        """Return the form of a number."""
        key = (type(samples[0]), *samples)
        if len(set(samples)) == 1:
            return None
        if key not in self._memo:
            whole = all(float(s).is_integer() for s in samples)
            found = self._whole([int(s) for s in samples]) if whole else None
            self._memo[key] = _Latest(found or self._fraction(samples))
        return self._memo[key]

    def _whole(self, samples: Sequence[int]) -> _Form:
        """Return the form of an integer."""
        dim = self._dim(tuple(samples))
        return None if dim is None else lambda sizes: int(sizes.true(dim))

    def _dim(self, samples: Samples) -> Dim | None:
        """Return a dimension, or a multiple of a dimension or a sum of two plus a constant; None for other samples."""
        dim = self._table.find(samples)
        if dim is not None:
            return dim
        for other in self._varying():
            own = samples_of(other, self._table.count)
            slope, rest = divmod(samples[1] - samples[0], own[1] - own[0]) if own[1] != own[0] else (0, 1)
            base = samples[0] - slope * own[0]
            if not rest and all(slope * n + base == s for n, s in zip(own, samples, strict=True)):
                return ((Symbol(samples, functools.partial(_affine, slope, base, other)),),)
        for one, other in itertools.combinations(self._varying(), 2):
            both = zip(samples, *(samples_of(dim, self._table.count) for dim in (one, other)), strict=True)
            constants = {s - a - b for s, a, b in both}
            if len(constants) == 1:
                return ((Symbol(samples, functools.partial(_sum, constants.pop(), one, other)),),)
        return None

    def _fraction(self, samples: Sequence[float]) -> Callable[[Sizes], Any]:
        for dim in self._varying():
            own = samples_of(dim, self._table.count)
            for form in FLOATS:
                at = [form(np.float64(n)) for n in own]
                ratio = samples[0] / at[0] if at[0] else 0
                if ratio and np.allclose(np.multiply(at, ratio), samples, rtol=1e-6, atol=0):
                    return functools.partial(_scaled, rounded(ratio), form, dim)
        raise NoRule(f"a number that does not follow from the sizes by a known form: {samples}")

    def _varying(self) -> list[Dim]:
        return [dim for dim in self._table.products() if not is_constant(dim)]


def _at(form: _Form, value: Any, sizes: Sizes) -> Any:
    return value if form is None else form(sizes)


def _affine(slope: int, base: int, dim: Dim, of: Mapping[str, Any]) -> Any:
    return slope * size_of(dim, of) + base


def _sum(base: int, one: Dim, other: Dim, of: Mapping[str, Any]) -> Any:
    return size_of(one, of) + size_of(other, of) + base


def _scaled(ratio: float, form: Callable[[Any], Any], dim: Dim, sizes: Sizes) -> float:
    return ratio * float(form(np.float64(sizes.true(dim))))


def _literal(form: Callable[[Sizes], Any], dtype: Any, sizes: Sizes) -> Any:
    return np.asarray(form(sizes), dtype)
