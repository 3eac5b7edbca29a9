"""Workaround for a fault of XLA:CPU: reductions of products with a uniform factor.

XLA has YNNPACK compute reductions together with the matrix product or convolution before the reduction. If all numbers
of the second factor are equal (ones, a constant, the gradient of a mean), YNNPACK reads memory outside of the factor:
the sum is wrong, NaN or infinite (seen in jaxlib 0.10.2). A program with a product of this kind is compiled without
YNNPACK. With YNNPACK its reductions would take half of the time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jfluid.compile.rewrites.primitives import CALLS, ELEMENTWISE
from jfluid.compile.runtime.options import without_library

_PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
# Primitives that give one number throughout for one number throughout.
_KEEPS = ELEMENTWISE | frozenset(
    "broadcast_in_dim reshape transpose squeeze expand_dims slice rev reduce_sum reduce_max reduce_min reduce_prod "
    "dynamic_slice split".split()
)


def compiled(traced: Any) -> Any:
    """Compile the result of `jax.jit(...).trace`, with the options of that function."""
    lowered = traced.lower()
    if multiplies_by_one_number(traced.jaxpr.jaxpr):
        return lowered.compile(without_library())
    return lowered.compile()


def multiplies_by_one_number(jaxpr: Any) -> bool:
    """Return whether a product or a convolution has a second factor that is one number throughout."""
    return _walk(jaxpr, [False] * len(jaxpr.invars))[1]


def _walk(jaxpr: Any, given: Sequence[bool]) -> tuple[list[bool], bool]:
    """Return for each result whether it is one number, and whether a product is by one.

    Args:
        given: for each argument whether it is one number.
    """
    same = {v for v, one in zip(jaxpr.invars, given, strict=True) if one}

    def is_one(atom: Any) -> bool:
        return getattr(atom.aval, "size", 0) == 1 or (not hasattr(atom, "val") and atom in same)

    for equation in jaxpr.eqns:
        name, ones = equation.primitive.name, list(map(is_one, equation.invars))
        if name in _PRODUCTS:
            if ones[1] and equation.invars[1].aval.size > 1:
                return [], True
        elif name in _KEEPS:
            if ones and all(ones):
                same.update(equation.outvars)
        else:
            for inner, own in _inner(equation, ones):
                found, by_one = _walk(inner, own)
                if by_one:
                    return [], True
                if name in CALLS:
                    same.update(v for v, one in zip(equation.outvars, found) if one)
    return list(map(is_one, jaxpr.outvars)), False


def _inner(equation: Any, ones: Sequence[bool]) -> Iterator[tuple[Any, Sequence[bool]]]:
    """Yield the jaxprs that an equation calls, and which of their arguments are one number.

    XLA moves constants into loops and branches.
    """
    params, name = equation.params, equation.primitive.name
    if name == "while":
        tests, does = params["cond_nconsts"], params["body_nconsts"]
        state = ones[tests + does :]
        yield params["cond_jaxpr"].jaxpr, [*ones[:tests], *state]
        yield params["body_jaxpr"].jaxpr, [*ones[tests : tests + does], *state]
        return
    if name == "cond":
        ones = ones[1:]  # the first one says which branch
    for value in params.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            inner: Any = getattr(one, "jaxpr", one)
            if hasattr(inner, "eqns"):
                fits = len(inner.invars) == len(ones)
                yield inner, ones if fits else [False] * len(inner.invars)
