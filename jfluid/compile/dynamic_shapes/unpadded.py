"""Jaxpr of a step at the true sizes of a batch, from the traces at samples: nothing is traced or compiled for it.

NumPy interprets the jaxpr while the step has no executable for a bucket. Sizes and numbers of the trace that differ by
sample follow from the sizes of the feeds: a known dimension, a multiple of a dimension plus a constant, or a form such
as one over a dimension.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jfluid.compile.dynamic_shapes.dims import Dim, NoRule, Sizes, Table, is_constant, samples_of
from jfluid.compile.dynamic_shapes.interpreter import FLOATS, SHORT, compare, rounded
from jfluid.compile.rewrites.primitives import CALLS

# Returns a value for sizes; None for a value that is the same at all samples.
_Form = Callable[[Sizes], Any] | None


class Unpadded:
    """Function of the sizes that returns the closed jaxpr of a step.

    Args:
        traces: closed jaxprs of the step, one for each sample.
        table: the dimensions of the feeds.

    Raises NoRule for a step in which a number does not follow from the sizes by a known form.
    """

    def __init__(self, traces: Sequence[Any], table: Table):
        self._table = table
        self._numbers: dict[tuple[Any, ...], _Form] = {}
        self._traces = traces
        self._called: dict[tuple[int, ...], Callable[[Sizes], Any]] = {}
        self._at = self._closed(traces)

    def at(self, sizes: Sizes) -> Any:
        """Return the closed jaxpr at the true sizes."""
        return self._at(sizes)

    def _closed(self, traces: Sequence[Any]) -> Callable[[Sizes], Any]:
        inner = self._jaxpr([t.jaxpr for t in traces])
        forms = [self._constant(own) for own in zip(*(t.consts for t in traces), strict=True)]
        consts = traces[0].consts
        latest: list[tuple[Sizes, Any]] = []  # a function that is called several times stays one function

        def at(sizes: Sizes) -> Any:
            if not latest or latest[0][0] is not sizes:
                own = [_at(f, c, sizes) for f, c in zip(forms, consts, strict=True)]
                latest[:] = [(sizes, core.ClosedJaxpr(inner(sizes), own))]
            return latest[0][1]

        return at

    def _jaxpr(self, jaxprs: Sequence[Any]) -> Callable[[Sizes], Any]:
        first = jaxprs[0]
        for other in jaxprs[1:]:
            compare(first, other)
        inputs = self._avals([[*j.constvars, *j.invars] for j in jaxprs])
        equations = [self._equation(own) for own in zip(*(j.eqns for j in jaxprs), strict=True)]
        outputs = self._atoms([j.outvars for j in jaxprs])

        def at(sizes: Sizes) -> Any:
            env: dict[Any, Any] = {}
            given = _made([*first.constvars, *first.invars], inputs, sizes, env)
            constants = len(first.constvars)
            eqns = [equation(sizes, env) for equation in equations]
            return first.replace(
                constvars=given[:constants],
                invars=given[constants:],
                outvars=[read(sizes, env) for read in outputs],
                eqns=eqns,
            )

        return at

    def _equation(self, equations: Sequence[Any]) -> Callable[[Sizes, dict[Any, Any]], Any]:
        first = equations[0]
        reads = self._atoms([e.invars for e in equations])
        avals = self._avals([e.outvars for e in equations])
        called = CALLS.get(first.primitive.name)  # beside it are rules of derivatives, which were applied
        names = first.params if called is None else [called]
        params = {name: self._form([e.params[name] for e in equations]) for name in names}
        params = {name: form for name, form in params.items() if form is not None}

        def at(sizes: Sizes, env: dict[Any, Any]) -> Any:
            invars = [read(sizes, env) for read in reads]
            outvars = _made(first.outvars, avals, sizes, env)
            own = first.params | {name: form(sizes) for name, form in params.items() if form is not None}
            return first.replace(invars=invars, outvars=outvars, params=own)

        return at

    def _atoms(self, each: Sequence[Sequence[Any]]) -> list[Callable[[Sizes, dict[Any, Any]], Any]]:
        """Return functions that read operands, given the operands at each sample."""
        return [self._atom(atoms) for atoms in zip(*each, strict=True)]

    def _atom(self, atoms: Sequence[Any]) -> Callable[[Sizes, dict[Any, Any]], Any]:
        first = atoms[0]
        if not isinstance(first, core.Literal):
            return lambda sizes, env: env[first]
        aval = first.aval
        form = self._constant([atom.val for atom in atoms])
        if form is None:
            return lambda sizes, env: first
        dtype = aval.dtype  # type: ignore[attr-defined]  # of an array
        return lambda sizes, env: core.Literal(np.asarray(form(sizes), dtype), aval)

    def _avals(self, each: Sequence[Sequence[Any]]) -> list[_Form]:
        """Return the forms of the types of variables."""
        found: list[_Form] = []
        for variables in zip(*each, strict=True):
            avals = [v.aval for v in variables]
            shape = self._form([getattr(a, "shape", ()) for a in avals])
            found.append(None if shape is None else functools.partial(_resized, avals[0], shape))
        return found

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
        if isinstance(first, core.ClosedJaxpr):
            key = tuple(map(id, samples))  # the traces hold them
            if key not in self._called:
                self._called[key] = self._closed(samples)
            return self._called[key]
        if isinstance(first, core.Jaxpr):
            return self._jaxpr(samples)
        if isinstance(first, tuple | list):
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

        return at

    def _number(self, samples: Sequence[Any]) -> _Form:
        """Return the form of a number."""
        key = (type(samples[0]), *samples)
        if len(set(samples)) == 1:
            return None
        if key not in self._numbers:
            whole = all(float(s).is_integer() for s in samples)
            found = self._whole([int(s) for s in samples]) if whole else None
            self._numbers[key] = found or self._fraction(samples)
        return self._numbers[key]

    def _whole(self, samples: Sequence[int]) -> _Form:
        """Return the form of an integer: a dimension, or a multiple of a dimension plus a constant."""
        dim = self._table.find(tuple(samples))
        if dim is not None:
            return lambda sizes: int(sizes.true(dim))
        for other in self._varying():
            own = samples_of(other, self._table.count)
            slope, rest = divmod(samples[1] - samples[0], own[1] - own[0]) if own[1] != own[0] else (0, 1)
            base = samples[0] - slope * own[0]
            if not rest and all(slope * n + base == s for n, s in zip(own, samples, strict=True)):
                return functools.partial(_affine, slope, base, other)
        return None

    def _fraction(self, samples: Sequence[float]) -> _Form:
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


def _affine(slope: int, base: int, dim: Dim, sizes: Sizes) -> int:
    return slope * int(sizes.true(dim)) + base


def _scaled(ratio: float, form: Callable[[Any], Any], dim: Dim, sizes: Sizes) -> float:
    return ratio * float(form(np.float64(sizes.true(dim))))


def _resized(aval: Any, shape: Callable[[Sizes], tuple[int, ...]], sizes: Sizes) -> Any:
    return aval.update(shape=shape(sizes))


def _made(variables: Sequence[Any], forms: Sequence[_Form], sizes: Sizes, env: dict[Any, Any]) -> list[Any]:
    """Return variables of the true sizes, and note which variable each stands for."""
    found = [v if form is None else core.Var(form(sizes)) for v, form in zip(variables, forms, strict=True)]
    env.update(zip(variables, found, strict=True))
    return found
