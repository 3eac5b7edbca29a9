"""A traced function as two: the first gives the results that a caller waits for, the second the others,
which are computed while the caller goes on.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.extend import core

# Primitives that cost little more than to read an operand: what they give is computed again rather than
# kept for the second function.
_CHEAP = frozenset(
    "abs add add_any and broadcast_in_dim convert_element_type copy div eq expand_dims ge gt iota le lt max "
    "min mul ne neg not or reshape select_n sign squeeze stop_gradient sub".split()
)
_LARGE = 4096  # elements


class Divided(NamedTuple):
    """The two functions.

    Attributes:
        first: takes the arguments, and returns the early results and what else `second` needs.
        second: takes the arguments and `handed`; returns the other results.
        early: the places of the early results among all.
        handed: the places, among the outputs of `first`, of what `second` takes.
    """

    first: core.ClosedJaxpr
    second: core.ClosedJaxpr
    early: tuple[int, ...]
    handed: tuple[int, ...]


def divide(closed: core.ClosedJaxpr, wanted: int) -> Divided | None:
    """Divide a traced function into what result `wanted` needs, with the results that come with it, and
    the rest. None where one of both would be empty, or where it has effects.
    """
    jaxpr: Any = closed.jaxpr
    first, second = _parted(jaxpr.eqns, jaxpr.outvars[wanted])
    made = {v for eqn in first for v in eqn.outvars}
    early = [i for i, v in enumerate(jaxpr.outvars) if _is_variable(v) and v in made]
    if jaxpr.effects or not early or not second:
        return None
    late = [v for i, v in enumerate(jaxpr.outvars) if i not in set(early)]
    needed = _read_by(second) | {v for v in late if _is_variable(v)}
    again, needed = _computed_again(first, made, needed)
    kept = [v for eqn in first for v in eqn.outvars if v in needed]
    outputs = list(dict.fromkeys([jaxpr.outvars[i] for i in early] + kept))
    unnamed = jaxpr.debug_info.with_unknown_names()

    def part(**changed: Any) -> core.ClosedJaxpr:
        return core.ClosedJaxpr(jaxpr.replace(debug_info=unnamed, **changed), closed.consts)

    return Divided(
        part(eqns=first, outvars=outputs),
        part(eqns=again + second, invars=[*jaxpr.invars, *kept], outvars=late),
        tuple(early),
        tuple([outputs.index(v) for v in kept]),
    )


def _parted(eqns: Sequence[Any], wanted: Any) -> tuple[list[Any], list[Any]]:
    """Return the equations that a variable follows from, and the others."""
    first, second, needed = [], [], {wanted} if _is_variable(wanted) else set()
    for eqn in reversed(eqns):
        if needed.isdisjoint(eqn.outvars):
            second.append(eqn)
        else:
            first.append(eqn)
            needed |= _read_by([eqn])
    return first[::-1], second[::-1]


def _computed_again(
    first: Sequence[Any], made: set[Any], needed: set[Any]
) -> tuple[list[Any], set[Any]]:
    """Return the equations that the second function repeats, and the variables that it needs then.

    It repeats a cheap one where no more than one large operand has to be kept in place of its result.
    """
    free: set[Any] = set()  # what follows, by cheap equations, from arguments and small values
    for eqn in first:
        operands = _read_by([eqn]) & made
        if eqn.primitive.name in _CHEAP and all(v in free or not _is_large(v) for v in operands):
            free |= set(eqn.outvars)
    again, needed = [], set(needed)
    for eqn in reversed(first):
        if eqn.primitive.name in _CHEAP and not needed.isdisjoint(eqn.outvars):
            operands = _read_by([eqn]) & made
            if sum(_is_large(v) for v in operands - needed - free) <= 1:
                again.append(eqn)
                needed = (needed - set(eqn.outvars)) | operands
    return again[::-1], needed


def _read_by(eqns: Sequence[Any]) -> set[Any]:
    return {v for eqn in eqns for v in eqn.invars if _is_variable(v)}


def _is_variable(v: Any) -> bool:
    return isinstance(v, core.Var)


def _is_large(v: Any) -> bool:
    return bool(v.aval.size > _LARGE)
