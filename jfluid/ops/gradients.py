"""Gradient operators that are derived from their forward operators by `jax.vjp`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jfluid import errors
from jfluid.ops import inlining, ragged, ragged_dispatch
from jfluid.ops.definition import OpDef, Slot
from jfluid.ops.ragged import Ragged
from jfluid.ops.selected_rows import SelectedRows

GRAD = "@GRAD"


def gradient(forward: OpDef) -> OpDef:
    """Return the definition of `forward.type + "_grad"`.

    It reads the inputs, outputs and output gradients of the forward operator (each may be absent)
    and writes the gradients of its inputs. The forward operator is computed again; the lowering
    avoids that where both stand in one block (see `vjp`).
    """
    saved = tuple(s for s in forward.outs if s.name not in forward.unsaved)
    ins = tuple(Slot(s.name, s.many, True) for s in forward.ins + saved)
    ins += tuple(Slot(s.name + GRAD, s.many, True) for s in forward.outs)
    outs = tuple(Slot(s.name + GRAD, s.many, True) for s in forward.reads if s.name not in forward.nograd)
    n_in, n_out = len(forward.ins), len(saved)

    def run(*values: Any, **kwargs: Any) -> tuple[Any, ...]:
        given, cotangents = values[:n_in], values[n_in + n_out :]
        missing = [
            s.name
            for s, v in zip(forward.ins, given)
            if not s.optional and (v is None or (isinstance(v, list) and not v))
        ]
        if missing or forward.carries:
            what = ", ".join(missing) or f"what {', '.join(forward.carries)} held before"
            raise errors.OpError(
                f"{forward.type}_grad has to compute {forward.type} again, but the program does not "
                f"give it {what}, nor holds the forward operator"
            )
        wanted = [s.name not in forward.nograd for s in forward.ins]
        _, pull = vjp(forward, given, kwargs, wanted, [c is not None for c in cotangents])
        grads = pull(cotangents)
        return tuple(g for s, g in zip(forward.ins, grads) if s.name not in forward.nograd)

    # Called as it is: the forward operator inside meets ragged rows by its own rule. One with
    # blocks has no function.
    return OpDef(
        f"{forward.type}_grad",
        None if forward.fn is None else run,
        ins,
        outs,
        {n: a for n, a in forward.attrs.items() if a.kind != "BLOCK"},
        rng=forward.rng,
        forward=forward,
        rows="sequence",
        sparse=True,
        collective=forward.collective,
        reaches=forward.reaches,
    )


def is_derived(definition: OpDef) -> bool:
    """Return True if `gradient` has made a definition."""
    return getattr(definition.fn, "__module__", "") == __name__


def differentiable(value: Any) -> bool:
    """Return True if a gradient can flow into the array."""
    return value is not None and jnp.issubdtype(value.dtype, jnp.inexact)


def vjp(
    forward: OpDef, inputs: Sequence[Any], kwargs: dict[str, Any], wanted: Sequence[bool], used: Sequence[bool]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], list[Any]]]:
    """Run `forward` and return its outputs with a function that computes input gradients.

    Args:
        forward: the definition of the operator.
        inputs: the value of each input slot (an array, `Ragged`, ..., a list of them, or None).
        kwargs: attributes, and `key` for a random operator.
        wanted: for each input slot, True to compute its gradient.
        used: for each output slot, True if a gradient will come back for it.

    Returns:
        The outputs, one per slot, and a function from output gradients (None where absent, also
        inside lists) to input gradients (None where not wanted or not possible).
    """
    return vjp_of(lambda *values: ragged_dispatch.call(forward, values, kwargs), inputs, wanted, used)


class TracedGradient:
    """Function of arrays and its gradient, traced once for calls with arrays of equal shapes and dtypes.

    Attributes:
        shape: the structure of its outputs, and which of them gradients flow through.
    """

    def __init__(self) -> None:
        self.shape: dict[str, Any] = {}
        self._vjp: Any = None
        self._pull: Any = jax.jit(lambda pull, seeds: pull(seeds), inline=inlining.EARLY)

    def vjp(self, run: Callable[..., Any], moving: list[Any], still: list[Any]) -> Any:
        """Call `jax.vjp` on `run(moving, still)`, traced at the first call and reused by later calls."""
        if self._vjp is None:

            def both(moving: list[Any], still: list[Any]) -> Any:
                return jax.vjp(lambda values: run(values, still), moving, has_aux=True)

            self._vjp = jax.jit(both, inline=inlining.EARLY)
        through, pull, rest = self._vjp(moving, still)
        return through, lambda seeds: self._pull(pull, seeds), rest


def vjp_of(
    function: Callable[..., tuple[Any, ...]],
    inputs: Sequence[Any],
    wanted: Sequence[bool],
    used: Iterable[bool],
    traced: TracedGradient | None = None,
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], list[Any]]]:
    """Run a function on slot values like `vjp`, and return its outputs and its gradient function.

    Args:
        function: maps the values of slots to a tuple of values of slots.
        inputs: the value of each input slot.
        wanted: for each input slot, True to compute its gradient.
        used: for each output slot, True if a gradient will come back for it.
        traced: the trace of an earlier call with the same function and inputs of the same forms.
    """
    leaves, tree, flags = _flatten(inputs, wanted)
    shape: dict[str, Any] = {} if traced is None else traced.shape

    def run(moving: list[Any], still: list[Any]) -> tuple[Any, ...]:
        it, others = iter(moving), iter(still)
        outs = function(*tree.unflatten([next(it) if f else next(others) for f in flags]))
        out_leaves, shape["tree"], shape["flags"] = _flatten(outs, used)
        return (
            [v for f, v in zip(shape["flags"], out_leaves) if f],
            [v for f, v in zip(shape["flags"], out_leaves) if not f],
        )

    given = [v for f, v in zip(flags, leaves) if f]
    others = [v for f, v in zip(flags, leaves) if not f]
    vjp_of_run: Any = (
        jax.vjp(lambda values: run(values, others), given, has_aux=True)
        if traced is None
        else traced.vjp(run, given, others)
    )
    through, pull, rest = vjp_of_run
    out_flags, moving, still = shape["flags"], iter(through), iter(rest)
    outs = shape["tree"].unflatten([next(moving) if f else next(still) for f in out_flags])

    def backward(cotangents: Sequence[Any]) -> list[Any]:
        seeds = [seed for o, c in zip(outs, cotangents) for seed in _seeds(o, c)]
        it = iter(pull([_seed(o, s) for f, o, s in zip(out_flags, jax.tree.leaves(list(outs)), seeds) if f])[0])
        merged = [(next(it) if f else v) for f, v in zip(flags, leaves)]
        at, result = 0, []
        for value in inputs:
            parts = value if isinstance(value, list) else [value]
            grads = []
            for part in parts:
                n = len(jax.tree.leaves(part))
                flow = any(flags[at : at + n])
                grads.append(jax.tree.unflatten(jax.tree.structure(part), merged[at : at + n]) if flow else None)
                at += n
            result.append(grads if isinstance(value, list) else grads[0])
        return result

    return tuple(outs), backward


def _flatten(slots: Sequence[Any], chosen: Iterable[bool]) -> tuple[list[Any], Any, list[bool]]:
    """Return all leaves of the slots' values, their structure, and True for each leaf with a gradient."""
    leaves, tree = jax.tree.flatten(list(slots))
    sizes = [len(jax.tree.leaves(v)) for v in slots]
    by_slot = [c for c, n in zip(chosen, sizes) for _ in range(n)]
    return leaves, tree, [c and differentiable(v) for c, v in zip(by_slot, leaves)]


def _seeds(out: Any, cotangent: Any) -> list[Any]:
    """Return a cotangent, or None, for each leaf of an output slot's value."""
    if isinstance(out, list):
        given = cotangent if isinstance(cotangent, list) else [None] * len(out)
        return [seed for o, c in zip(out, given) for seed in _seeds(o, c)]
    n = len(jax.tree.leaves(out))
    if isinstance(cotangent, SelectedRows) and not isinstance(out, SelectedRows):
        cotangent = cotangent.dense()
    if isinstance(out, Ragged) and cotangent is not None:
        return [_by_rows(out, cotangent)] + [None] * (n - 1)
    found = [] if cotangent is None else jax.tree.leaves(cotangent)
    if len(found) > n:
        found = [ragged.rows_of(cotangent)]
    return found + [None] * (n - len(found))


def _by_rows(out: Ragged, cotangent: Any) -> Any:
    """Return the gradient of the values of ragged rows.

    One that was fed has the rows of another bucket, or no padding at all.
    """
    values = ragged.rows_of(cotangent)
    missing = out.capacity - values.shape[0] if values.ndim == out.ndim else 0
    if missing and isinstance(cotangent, Ragged):
        values = cotangent.zeroed()
    if missing > 0:
        return jnp.pad(values, ((0, missing),) + ((0, 0),) * (values.ndim - 1))
    return values[: out.capacity] if missing else values


def _seed(value: Any, cotangent: Any) -> Any:
    if cotangent is None:
        return jnp.zeros_like(value)
    return jnp.asarray(cotangent, value.dtype).reshape(value.shape)
