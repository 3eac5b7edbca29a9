"""Gradient operators derived from their forward operators by `jax.vjp`."""
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jfluid import errors
from jfluid.ops.registry import OpDef, Slot

GRAD = "@GRAD"


def gradient(forward: OpDef) -> OpDef:
    """The definition of `forward.type + "_grad"`.

    It reads the inputs, outputs and output gradients of the forward operator (each may be absent) and writes the
    gradients of its inputs. The forward operator is computed again; the lowering avoids that where both stand in
    one block (see `vjp`).
    """
    saved = tuple(s for s in forward.outs if s.name not in forward.unsaved)
    ins = tuple(Slot(s.name, s.many, True) for s in forward.ins + saved)
    ins += tuple(Slot(s.name + GRAD, s.many, True) for s in forward.outs)
    outs = tuple(Slot(s.name + GRAD, s.many, True) for s in forward.ins if s.name not in forward.nograd)
    n_in, n_out = len(forward.ins), len(saved)

    def run(*values: Any, **kwargs: Any) -> tuple:
        given, cotangents = values[:n_in], values[n_in + n_out:]
        missing = [s.name for s, v in zip(forward.ins, given)
                   if not s.optional and (v is None or (isinstance(v, list) and not v))]
        if missing:
            raise errors.OpError(f"{forward.type}_grad has to compute {forward.type} again, but the program does not "
                                 f"give it {', '.join(missing)}, nor holds the forward operator")
        wanted = [s.name not in forward.nograd for s in forward.ins]
        _, pull = vjp(forward, given, kwargs, wanted, [c is not None for c in cotangents])
        grads = pull(cotangents)
        return tuple(g for s, g in zip(forward.ins, grads) if s.name not in forward.nograd)

    return OpDef(f"{forward.type}_grad", run, ins, outs, forward.attrs, rng=forward.rng, forward=forward)


def differentiable(value: Any) -> bool:
    """Whether a gradient can flow into the array."""
    return value is not None and jnp.issubdtype(value.dtype, jnp.inexact)


def vjp(forward: OpDef, inputs: Sequence[Any], kwargs: dict[str, Any], wanted: Sequence[bool],
        used: Sequence[bool]) -> tuple[tuple, Callable[[Sequence[Any]], list]]:
    """Run `forward` and keep what its gradient needs.

    Args:
        inputs: the value of each input slot (an array, a list, or None).
        kwargs: attributes, and `key` for a random operator.
        wanted: for each input slot, whether its gradient is wanted.
        used: for each output slot, whether a gradient will come back for it.

    Returns:
        The outputs, one per slot, and a function from output gradients (None where absent, also inside lists) to
        input gradients (None where none is wanted or possible).
    """
    diff = [jax.tree.map(lambda v: v if differentiable(v) else None, v) if w else None for v, w in zip(inputs, wanted)]

    def merge(changed: Any, original: Any) -> Any:
        if isinstance(original, list):
            return [merge(c, o) for c, o in zip(changed or [None] * len(original), original)]
        return original if changed is None else changed

    def run(diff: list) -> tuple:
        outs = forward.fn(*[merge(d, v) for d, v in zip(diff, inputs)], **kwargs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        through = [o if u else None for o, u in zip(outs, used)]
        rest = [None if u else o for o, u in zip(outs, used)]
        return [_inexact(t) for t in through], ([_exact(t) for t in through], rest)

    through, pull, (exact, rest) = jax.vjp(run, diff, has_aux=True)
    outs = tuple(_join(t, e) if u else r for t, e, r, u in zip(through, exact, rest, used))

    def backward(cotangents: Sequence[Any]) -> list:
        seeds = [jax.tree.map(_seed, t, _like(c, t), is_leaf=lambda x: x is None) for t, c in zip(through, cotangents)]
        return pull(seeds)[0]

    return outs, backward


def _like(cotangent: Any, value: Any) -> Any:
    """The cotangent with the list structure of `value`."""
    if isinstance(value, list):
        return cotangent if isinstance(cotangent, list) else [None] * len(value)
    return cotangent


def _seed(value: Any, cotangent: Any) -> Any:
    if value is None:
        return None
    if cotangent is None:
        return jnp.zeros_like(value)
    return jnp.asarray(cotangent, value.dtype).reshape(value.shape)


def _inexact(out: Any) -> Any:
    return jax.tree.map(lambda v: v if differentiable(v) else None, out)


def _exact(out: Any) -> Any:
    return jax.tree.map(lambda v: None if differentiable(v) else v, out)


def _join(inexact: Any, exact: Any) -> Any:
    if isinstance(exact, list):
        return [_join(i, e) for i, e in zip(inexact, exact)]
    return exact if inexact is None else inexact
