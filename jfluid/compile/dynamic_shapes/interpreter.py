"""Evaluate a traced step at padded sizes.

Each operation of the trace is applied to padded arrays. An elementwise operation needs no rule. An operation that mixes
elements along a padded dimension (a sum, a matrix product, a sort) first gets its neutral element in the padding, by a
mask. Padding may hold any number, also NaN: nothing of it reaches data.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid.compile.dynamic_shapes.dims import (
    Dim,
    NoRule,
    Samples,
    Sizes,
    Table,
    constant,
    is_constant,
    leads,
    merged,
    samples_of,
)
from jfluid.compile.rewrites.primitives import CALLS


@dataclass(slots=True)
class Padded:
    """An array of a padded step.

    Attributes:
        array: the padded array, or a NumPy scalar.
        dims: its dimensions.
    """

    array: Any
    dims: tuple[Dim, ...] = ()


class Operation:
    """Operation of a step that was traced at several samples of the sizes.

    Attributes:
        primitive: the JAX primitive.
        params: the parameters at the first sample.
        all_params: the parameters at each sample.
    """

    def __init__(self, equations: Sequence[Any]):
        self._equations = equations
        self.primitive, self.params = equations[0].primitive, equations[0].params
        self.all_params = [equation.params for equation in equations]

    @property
    def name(self) -> str:
        return str(self.primitive.name)

    def each(self, name: str) -> list[Any]:
        """Return a parameter at each sample."""
        return [params[name] for params in self.all_params]

    def results(self, number: int = 0) -> list[Samples]:
        """Return the size of each dimension of a result, at each sample."""
        return shapes_at_samples([e.outvars[number].aval for e in self._equations])

    def is_constant(self) -> bool:
        """Return True if no size of a result varies."""
        first, *others = ([getattr(v.aval, "shape", ()) for v in e.outvars] for e in self._equations)
        return all(other == first for other in others)

    def bind(self, *arrays: Any, **changed: Any) -> Any:
        """Apply the primitive to arrays; `changed` replaces parameters."""
        return self.primitive.bind(*arrays, **{**self.params, **changed})


Rule = Callable[["Interpreter", Operation, Sequence[Padded]], Padded | list[Padded]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of primitives, by name."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Interpreter:
    """Evaluator of a trace at the sizes of one bucket.

    Args:
        table: dimensions by their samples.
        sizes: the bucket, and the true sizes of the batch.
        platform: "cpu" or "gpu".
    """

    def __init__(self, table: Table, sizes: Sizes, platform: str):
        self.table, self.sizes, self.platform = table, sizes, platform
        self._masks: dict[tuple[Any, ...], Array] = {}
        # arrays by themselves, dimensions and fill: the array, which keeps its number, and the masked one
        self._masked: dict[tuple[Any, ...], tuple[Any, Array]] = {}

    def run(self, traces: Sequence[Any], arguments: Sequence[Padded]) -> list[Padded]:
        """Evaluate closed jaxprs, one for each sample, on padded arguments. Raises NoRule."""
        return self._evaluate([t.jaxpr for t in traces], list(zip(*(t.consts for t in traces))), arguments)

    def _evaluate(self, jaxprs: Sequence[Any], constants: Sequence[Any], arguments: Sequence[Padded]) -> list[Padded]:
        first = jaxprs[0]
        for jaxpr in jaxprs[1:]:
            compare(first, jaxpr)
        env: dict[Any, Padded] = dict(zip(first.invars, arguments, strict=True))
        given = dict(zip(first.constvars, constants))

        def read(atoms: Sequence[Any]) -> Padded:
            if hasattr(atoms[0], "val"):
                return self._literal([atom.val for atom in atoms], atoms[0].aval.dtype)
            if atoms[0] not in env:  # an error names the operation that reads the constant
                env[atoms[0]] = self._constant(given[atoms[0]])
            return env[atoms[0]]

        for equations in zip(*(jaxpr.eqns for jaxpr in jaxprs)):
            scope = str(equations[0].source_info.name_stack)
            try:
                values = [read(atoms) for atoms in zip(*(e.invars for e in equations))]
                with jax.named_scope(_plain_scope(scope)):
                    results = self.apply(Operation(equations), values)
            except NoRule as error:
                error.scope = f"{scope}/{error.scope}"
                raise
            env.update(zip(equations[0].outvars, results, strict=True))
        return [read(atoms) for atoms in zip(*(jaxpr.outvars for jaxpr in jaxprs))]

    def apply(self, operation: Operation, values: Sequence[Padded]) -> list[Padded]:
        """Apply an operation to padded arrays. Raises NoRule."""
        found = RULES.get(operation.name)
        if found is None or not getattr(found, "inlines", False):
            plain = all(is_constant(d) for value in values for d in value.dims)
            if plain and operation.is_constant() and same_params(operation):
                return self.bound(operation, [value.array for value in values])
        if found is None:
            raise NoRule(f"the operation {operation.name} has no rule for padded sizes")
        results = found(self, operation, values)
        return results if isinstance(results, list) else [results]

    def bound(self, operation: Operation, arrays: Sequence[Any]) -> list[Padded]:
        """Apply an operation in which no size varies."""
        results = operation.bind(*arrays)
        results = results if operation.primitive.multiple_results else [results]
        return [Padded(r, tuple(map(constant, np.shape(r)))) for r in results]

    def inline(self, inner: Sequence[Any], values: Sequence[Padded]) -> list[Padded]:
        """Evaluate the function that an operation calls, at each sample a jaxpr."""
        if hasattr(inner[0], "jaxpr"):
            return self.run(inner, values)
        return self._evaluate(inner, [], values)

    def results(self, operation: Operation, number: int = 0) -> tuple[Dim, ...]:
        """Return the dimensions of a result, by its samples. Raises NoRule."""
        return tuple(map(self.table.named, operation.results(number)))

    def masked(self, value: Padded, axes: Sequence[int], fill: Any) -> Any:
        """Return the array with `fill` in the padding of given dimensions."""
        varying = [axis for axis in axes if not is_constant(value.dims[axis])]
        if not varying:
            return value.array
        known = isinstance(fill, int | float) and (
            id(value.array),
            *((axis, value.dims[axis]) for axis in varying),
            float(fill),
        )
        if known and known in self._masked:
            return self._masked[known][1]
        mask = functools.reduce(lax.bitwise_and, (self._mask(value.dims[a], a, value.array.shape) for a in varying))
        other = lax.full_like(value.array, fill)
        found = lax.select(mask, jnp.asarray(value.array), other)
        if known:
            self._masked[known] = value.array, found
        return found

    def _mask(self, dim: Dim, axis: int, shape: tuple[int, ...]) -> Array:
        """Return the mask of the elements that hold data along a dimension."""
        vector, whole = (dim,), (dim, axis, shape)
        if vector not in self._masks:
            self._masks[vector] = self.sizes.mask(dim)
        if whole not in self._masks:
            self._masks[whole] = lax.broadcast_in_dim(self._masks[vector], shape, (axis,))
        return self._masks[whole]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Evaluate inside an inner trace, such as of a loop's body: the outer trace uses no value made inside."""
        outer = self._masks, self._masked
        self._masks, self._masked = dict(self._masks), dict(self._masked)
        try:
            yield
        finally:
            self._masks, self._masked = outer

    def laid_out(self, value: Padded, dims: Sequence[Dim]) -> Any:
        """Return an array with its padding at the places of `dims`. Raises NoRule for other sizes."""
        array = value.array
        for axis, (own, dim) in enumerate(zip(value.dims, dims, strict=True)):
            if own == dim or [*map(merged, own)] == [*map(merged, dim)]:
                continue
            if samples_of(own, self.table.count) != samples_of(dim, self.table.count):
                raise NoRule("arrays of different sizes in one operation")
            if leads(own) and leads(dim):
                array = resized(array, axis, self.sizes.padded(dim))
                continue
            index = self.sizes.padded_index(own, self.sizes.true_index(dim))
            array = jnp.take(array, index, axis=axis, mode="clip")
        return array

    def _literal(self, samples: Sequence[Any], dtype: Any) -> Padded:
        """Return a number of the trace; one that follows from sizes is computed from true sizes."""
        if len({np.asarray(s).tobytes() for s in samples}) == 1:
            return Padded(samples[0], tuple(map(constant, np.shape(samples[0]))))
        if np.ndim(samples[0]):
            raise NoRule("an array that follows from the sizes")
        return Padded(self.number([np.asarray(s).item() for s in samples], np.dtype(dtype)))

    def number(self, samples: Sequence[Any], dtype: np.dtype) -> Any:
        """Compute a number from true sizes, given its values at the samples. Raises NoRule."""
        if len(set(samples)) == 1:
            return jnp.asarray(samples[0], dtype)
        for dim in self.table.products():
            own = samples_of(dim, self.table.count)
            for form in _INTEGERS if dtype.kind in "iu" else FLOATS:
                at = [form(np.float64(n)) for n in own]
                if np.allclose(at, samples, rtol=1e-6 if dtype.kind == "f" else 0, atol=0):
                    return form(jnp.asarray(self.sizes.true(dim), jnp.float64)).astype(dtype)
                ratio = samples[0] / at[0] if at[0] else 0
                if ratio and np.allclose(np.multiply(at, ratio), samples, rtol=1e-6, atol=0):
                    if dtype.kind in "iu" and ratio != round(ratio):
                        continue
                    exact = form(jnp.asarray(self.sizes.true(dim), jnp.float64))
                    return (exact * rounded(ratio)).astype(dtype)
        raise NoRule(f"a number that does not follow from the sizes by a known form: {samples}")

    def _constant(self, samples: Sequence[Any]) -> Padded:
        """Return a constant of the trace: an array, or numbers that follow from the sizes."""
        first = samples[0]
        if all(s is first or _equal(s, first) for s in samples):
            return Padded(first, tuple(map(constant, np.shape(first))))
        if np.ndim(first) == 0:
            return self._literal(samples, np.asarray(first).dtype)
        if np.ndim(first) > 1 or not isinstance(first, np.ndarray | jax.Array):
            raise NoRule("an array that follows from the sizes")
        arrays = [np.asarray(s) for s in samples]
        if first.dtype.kind not in "iuf":
            raise NoRule("an array that follows from the sizes")
        if len(first) <= SHORT and len({len(a) for a in arrays}) == 1:  # such as a shape
            numbers = [self.number(own, first.dtype) for own in zip(*(a.tolist() for a in arrays))]
            return Padded(jnp.stack(numbers), (constant(len(first)),))
        (dim,) = map(self.table.named, shapes_at_samples(arrays))
        start, step = arrays[0][0], arrays[0][1] - arrays[0][0] if len(arrays[0]) > 1 else 0
        for array in arrays:
            if not np.array_equal(array, start + step * np.arange(len(array), dtype=array.dtype)):
                raise NoRule("an array that follows from the sizes")
        index = self.sizes.true_index(dim).astype(arrays[0].dtype)
        return Padded(jnp.asarray(start) + jnp.asarray(step) * index, (dim,))


def compare(jaxpr: Any, other: Any) -> None:
    """Raise NoRule if two jaxprs of a function differ in their operations."""
    if len(jaxpr.eqns) != len(other.eqns):
        longer = max(jaxpr.eqns, other.eqns, key=len)
        _same_primitives([*zip(jaxpr.eqns, other.eqns), (longer[-1], None)])
    _same_primitives(list(zip(jaxpr.eqns, other.eqns)))


def _differ(equation: Any, other: Any) -> bool:
    """Return True for other primitives, or other dimensions: no sum is over a dimension of 1, which is broadcast."""
    if equation.primitive.name != other.primitive.name:
        return True
    return any(equation.params.get(name) != other.params.get(name) for name in _DIMENSIONS)


def _same_primitives(pairs: Sequence[tuple[Any, Any]]) -> None:
    for equation, other in pairs:
        try:
            if other is None or _differ(equation, other):
                raise NoRule("other sizes lead to other operations")
            inner = CALLS.get(equation.primitive.name)
            if inner is not None:
                found = [e.params[inner] for e in (equation, other)]
                compare(*(getattr(f, "jaxpr", f) for f in found))
        except NoRule as error:
            error.scope = f"{equation.source_info.name_stack}/{error.scope}"
            raise


def shapes_at_samples(arrays: Sequence[Any]) -> list[Samples]:
    """Return the size of each dimension at each sample. Raises NoRule for other ranks."""
    if len({len(a.shape) for a in arrays}) > 1:
        raise NoRule("other sizes lead to other ranks")
    return list(zip(*(a.shape for a in arrays)))


def along(vector: Array, axis: int, rank: int) -> Array:
    """Return a vector as an array of `rank` dimensions that varies along one axis."""
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])


def resized(array: Any, axis: int, size: int) -> Any:
    """Return an array with more places at the end of a dimension, or fewer."""
    missing = size - array.shape[axis]
    if missing <= 0:
        return lax.slice_in_dim(array, 0, size, axis=axis) if missing else array
    changes = [(0, missing if i == axis else 0, 0) for i in range(array.ndim)]
    return lax.pad(array, jnp.zeros((), array.dtype), changes)


def lowest(dtype: Any) -> Any:
    """Return the number that no number of a type is below."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -np.inf
    return False if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """Return the number that no number of a type is above."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.inf
    return True if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).max


def same_params(operation: Operation) -> bool:
    """Return True if all parameters except jaxprs are the same at each sample."""
    first, *others = operation.all_params
    return all(
        first[name] == other[name]
        for other in others
        for name in first
        if isinstance(first[name], int | tuple | str | float | None)
    ) and not any(hasattr(v, "eqns") or hasattr(v, "jaxpr") for n, v in first.items() if n != "update_jaxpr")


# Parameters that number dimensions.
_DIMENSIONS = "axes axis dimension dimensions broadcast_dimensions permutation".split()
SHORT = 16  # most elements of an array that may follow from the sizes, element by element
FLOATS: tuple[Callable[[Any], Any], ...] = (
    lambda n: n,
    lambda n: 1 / n,
    lambda n: n - 1,
    lambda n: 1 / (n - 1),
    lambda n: n**0.5,
    lambda n: n**-0.5,
)
_INTEGERS: tuple[Callable[[Any], Any], ...] = (
    lambda n: n,
    lambda n: n - 1,
    lambda n: n + 1,
    lambda n: n - 2,
    lambda n: -n,
)


def rounded(ratio: float) -> float:
    """Return the nearest integer of a number that is an integer but for rounding; other numbers as they are."""
    return round(ratio) if abs(ratio - round(ratio)) < 1e-6 * abs(ratio) else ratio


def _equal(a: Any, b: Any) -> bool:
    if np.shape(a) != np.shape(b) or jax.dtypes.result_type(a) != jax.dtypes.result_type(b):
        return False
    if jnp.issubdtype(a.dtype, jax.dtypes.extended):
        return False
    a, b = np.asarray(a), np.asarray(b)
    return bool(a.tobytes() == b.tobytes())


def _plain_scope(scope: str) -> str:
    """Return the name stack of an operation without the positions of operators."""
    return "/".join(part.split("@")[0] for part in scope.split("/"))


def parts_of(scope: str) -> Iterator[tuple[str, int]]:
    """Yield the type and the position of each operator in a name stack."""
    for part in scope.replace("(", "/").replace(")", "/").split("/"):
        kind, at, position = part.partition("@")
        if at and position.isdigit():
            yield kind, int(position)
