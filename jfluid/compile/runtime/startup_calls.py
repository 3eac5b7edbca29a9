"""Startup programs on CPUs: XLA draws the random numbers, and NumPy makes the parameters of the draws.

XLA compiles a kernel for each parameter, which takes far longer than the kernel's only run. So XLA compiles the draws
alone, one loop for all parameters of a distribution.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from jfluid.compile.numpy_steps import elementwise, shapes
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.compile.runtime import executable_cache
from jfluid.compile.runtime.executables import Executables, WaitedCall

_RULES = (elementwise, shapes)  # their import registers the rules
# Primitives without arithmetic: XLA fuses a multiplication and an addition, and rounds once.
_EXACT = frozenset("broadcast_in_dim convert_element_type reshape slice squeeze transpose".split())


class StartupCall(WaitedCall):
    """Startup program that XLA runs up to the random numbers, and NumPy from these on.

    Args:
        fresh: returns the program anew.
        compiled: returns `jax.jit` of a function with the arguments of the program.
        entry: storage of executables beyond this process.
        device: device of the results.
    """

    def __init__(
        self,
        fresh: Callable[[], Any],
        compiled: Callable[[Any], Any],
        entry: executable_cache.DiskEntry | None,
        device: jax.Device,
    ):
        self._fresh, self._compiled, self._device = fresh, compiled, device
        self._rest = rest = _Rest()

        def traced(*arguments: Any) -> Any:
            program = fresh()
            whole = compiled(program).trace(*arguments)
            draws, after = divided(whole.jaxpr)
            tree = jax.tree.unflatten(jax.tree.structure(whole.out_info), range(len(after.jaxpr.outvars)))
            rest.learn((Listing(after), tree))

            def draw(*given: Any) -> list[Any]:
                return core.jaxpr_as_fun(draws)(*jax.tree.leaves(given))  # type: ignore[no-any-return]

            draw.__name__ = draw.__qualname__ = program.__name__
            return compiled(draw).trace(*arguments)

        # no reference to this call: executables go away together with the call, without a garbage collection
        self._draws = Executables(lambda: _Jitted(traced), entry and entry.with_part(rest, "draws"))

    def __call__(self, *arguments: Any) -> Any:
        drawn = self._draws(*arguments)
        listing, tree = self._rest.noted()
        placed = _apart(listing, drawn, self._device)
        return jax.tree.map(placed.__getitem__, tree)

    def lower(self, *arguments: Any) -> Any:
        """Return the whole program, lowered for XLA."""
        return self._compiled(self._fresh()).trace(*arguments).lower()


def _apart(listing: Listing, drawn: list[jax.Array], device: jax.Device) -> list[Any]:
    """Return the results of a listing for drawn numbers, on a device. No two of the results share memory."""
    values = [np.asarray(v) for v in drawn]
    results = listing.run(values)
    whole = {id(value): own for value, own in zip(values, drawn)}
    own = {id(v): whole[id(v)] for v in results if id(v) in whole}
    del values, whole
    drawn.clear()
    for at, value in enumerate(results):
        whole_draw = own.pop(id(value), None)
        results[at] = _copied(value, device) if whole_draw is None else whole_draw
    return results


def _copied(value: Any, device: jax.Device) -> jax.Array:
    """Return a copy in memory that XLA made, into which a later step can write. NumPy's memory would stay beside it."""
    shared = jax.device_put(value, device)  # no copy at an address divisible by 64
    copy: jax.Array = jax.device_put(shared, device, may_alias=False)
    shared.delete()  # once the copy is made
    return copy


class _Rest:
    """Listing that NumPy runs after the draws, and a tree of the numbers of the results: see `TraceResults`."""

    def __init__(self) -> None:
        self._noted: tuple[Listing, Any] | None = None  # until the program is traced or loaded

    def noted(self) -> Any:
        """Return both."""
        return self._noted

    def learn(self, noted: Any) -> None:
        """Take both, of tracing or from a file."""
        self._noted = noted


class _Jitted(NamedTuple):
    """Function with the method `trace` of `jax.jit`."""

    trace: Callable[..., Any]


def divided(program: Any) -> tuple[Any, Any]:
    """Return the jaxpr of the draws, and the jaxpr of the operations for NumPy.

    Arguments of the second jaxpr are the draws. NumPy gives exact results.
    """
    jaxpr = program.jaxpr
    read, drawn = set(_variables(jaxpr.outvars)), set[Any]()
    draws, rest = list[Any](), list[Any]()
    for equation in reversed(jaxpr.eqns):
        if not equation.effects and read.isdisjoint(equation.outvars):
            continue
        by_numpy = drawn.isdisjoint(equation.outvars) and _is_exact(equation)
        (rest if by_numpy else draws).append(equation)
        operands = _variables(equation.invars)
        read.update(operands)
        if not by_numpy:
            drawn.update(operands)
    constants = dict(zip(jaxpr.constvars, program.consts, strict=True))
    made = {var for equation in rest for var in equation.outvars}
    taken = dict.fromkeys(_variables([v for equation in rest[::-1] for v in equation.invars] + jaxpr.outvars))
    between = [v for v in taken if v not in made and v not in constants]
    own = [v for v in taken if v in constants]
    unnamed = jaxpr.debug_info.with_unknown_names()
    before = jaxpr.replace(eqns=draws[::-1], outvars=between, debug_info=unnamed)
    after = jaxpr.replace(constvars=own, invars=between, eqns=rest[::-1], effects=frozenset(), debug_info=unnamed)
    return core.ClosedJaxpr(before, program.consts), core.ClosedJaxpr(after, [constants[v] for v in own])


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def _is_exact(equation: Any) -> bool:
    """Return True if NumPy gives the exact results of an equation."""
    dtypes = [v.aval.dtype for v in (*equation.invars, *equation.outvars)]
    return equation.primitive.name in _EXACT and all(isinstance(d, np.dtype) and d.kind in "biuf" for d in dtypes)
