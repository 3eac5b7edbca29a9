"""Operators with blocks inside: how each is lowered.

Each function takes the lowering, the operator and the values by name, and returns the values of
what the operator writes. It changes nothing else, so that gradients can be taken through it.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile import loop_bounds
from jfluid.ir.block import Block, outer_names
from jfluid.ir.operator import Operator
from jfluid.ir.types import VarType
from jfluid.ops import static_values
from jfluid.ops.ragged import Ragged, rows_of
from jfluid.ops.tensor_array import TensorArray, writing_where

UNROLLED = 4  # a loop of at most so many iterations, if known while tracing, is unrolled
Values = dict[str, Any]


class BlockLowering(Protocol):
    """What lowers the operators inside a block.

    Attributes:
        key: the step's random key; None when no operator draws.
        reversible: whether gradients are taken through what is being lowered.
    """

    key: Any
    reversible: bool

    def block(self, block: Block, env: Values, key: Any = None) -> Values:
        """Lower a block over a copy of `env`; returns that copy."""
        ...


def conditional_block(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Run the inner block if the condition holds; otherwise its outputs keep their values."""
    block = op.attrs["sub_block"]
    conditions = [env[n] for n in op.inputs.get("Cond", ())]
    writes = sorted(outer_names(block)[1])
    if not op.attrs.get("is_scalar_condition", False):
        # A block of IfElse: it runs on the selected rows. Other rows do it no harm.
        return _chosen(lowering.block(block, env), writes)
    conditions = [rows_of(c) for c in conditions]
    if all(static_values.is_static(c) and isinstance(c, np.ndarray) for c in conditions):
        if all(bool(np.all(c)) for c in conditions):
            return _chosen(lowering.block(block, env), writes)
        # The branch of `layers.cond` that is not taken: select_input, whose index is known too, is
        # given something for it, and does not look.
        return {
            n: jnp.zeros((), block.find_var_recursive(n).np_dtype)
            for n in writes
            if n not in env and _only_selected(op, n)
        }
    before = _before(lowering, op, block, writes, env)

    def taken(values: Values) -> Values:
        after = lowering.block(block, env | values)
        return {n: _matched(after[n], v, n) for n, v in values.items()}

    truth = jnp.all(jnp.stack([jnp.all(c) for c in conditions]))
    after: dict[str, Any] = jax.lax.cond(truth, taken, lambda values: values, before)
    return after


def _chosen(values: Values, names: list[str]) -> Values:
    return {n: values[n] for n in names if n in values}


def _before(
    lowering: BlockLowering, op: Operator, block: Block, writes: list[str], env: Values
) -> Values:
    """The values of the block's outputs when it does not run. Those of `layers.cond` are never read
    then.
    """
    missing = [n for n in writes if n not in env]
    if missing:
        lost = [n for n in missing if not _only_selected(op, n)]
        if lost:
            raise errors.OpError(
                f"{', '.join(lost)} would have no value where the condition does not hold: "
                "give it one before, for example with layers.fill_constant"
            )
    found = {n: jax.tree.map(jnp.asarray, env[n]) for n in writes if n in env}
    if missing:
        shapes = jax.eval_shape(lambda: _chosen(lowering.block(block, env), missing))
        found |= jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return found


def _only_selected(op: Operator, name: str) -> bool:
    """Whether an output of a branch is read by nothing but the choice between two branches."""
    readers = {other.type for other in op.block.ops if name in other.input_arg_names}
    allowed = {"select_input", "select_input_grad", "conditional_block_grad"}
    return "select_input" in readers and readers <= allowed


def while_(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Run the block while the condition holds.

    A short loop of known length is unrolled. Any other is one compiled loop. If gradients are
    needed it runs up to a bound (`jfluid.compile.loop_bounds`), and the iterations after its end
    have no effect.
    """
    block, condition = op.attrs["sub_block"], op.inputs["Condition"][0]
    writes = sorted(outer_names(block)[1])
    state = {n: env[n] for n in writes if n in env}
    bound = loop_bounds.bound(block, condition, env)
    unknown = bound is None or (bound.most > UNROLLED and _bears_loop(block, state))
    limit = 0 if bound is not None and unknown else (UNROLLED if bound is None else bound.most)
    while static_values.is_static(truth := rows_of(state.get(condition, env[condition]))):
        if not np.all(truth):
            return state
        if limit == 0:
            break
        limit -= 1
        state = _chosen(lowering.block(block, env | state), writes)
    return _loop(lowering, op, env, state, bound)


def _bears_loop(block: Block, state: Values) -> bool:
    """Whether a compiled loop can hold the arrays: elements of one shape."""
    for value in state.values():
        if isinstance(value, TensorArray) and value.buffer is None:
            shapes = {
                tuple(jnp.shape(x) for x in jax.tree.leaves(v))
                for v in value.items
                if v is not None
            }
            if len(shapes) > 1:
                return False
    return True


def _loop(
    lowering: BlockLowering,
    op: Operator,
    env: Values,
    state: Values,
    bound: loop_bounds.Bound | None,
) -> Values:
    block, condition = op.attrs["sub_block"], op.inputs["Condition"][0]
    writes = sorted(outer_names(block)[1])
    outer = {n: op.block.find_var_recursive(n) for n in writes}
    arrays = {n for n, v in outer.items() if v is not None and v.type == VarType.LOD_TENSOR_ARRAY}
    start = {n: state.get(n, TensorArray()) for n in arrays} | {
        n: v for n, v in state.items() if n not in arrays
    }
    places = {
        n: loop_bounds.places(block, n, env | state, bound, start[n].capacity) for n in arrays
    }
    if bound is None and any(places[n] is None for n in arrays):
        raise errors.OpError(
            f"a loop that writes arrays needs a bound on its iterations, which {condition} does not tell: "
            "compare a counter with a constant, or with the length of sequences"
        )
    start = _shaped(lowering, block, env, start, places, writes)

    def step(values: Values, i: Any) -> Values:
        after = lowering.block(
            block,
            env | values,
            jax.random.fold_in(lowering.key, i) if lowering.key is not None else None,
        )
        return {n: _matched(after[n], v, n) for n, v in values.items()}

    if not lowering.reversible or bound is None:
        if lowering.reversible:
            raise errors.OpError(
                f"gradients need a bound on the iterations of the loop, which {condition} does not tell: "
                "compare a counter with a constant, or with the length of sequences"
            )
        return jax.lax.while_loop(
            lambda c: jnp.all(rows_of(c[1][condition])),
            lambda c: (c[0] + 1, step(c[1], c[0])),
            (jnp.uint32(0), start),
        )[1]

    def guarded(values: Values, i: Any) -> tuple[Values, None]:
        if bound.exact:
            return step(values, i), None
        active = jnp.all(rows_of(values[condition]))
        with writing_where(active):
            after = step(values, i)
        # Arrays are not selected, which would copy them: they were written only where active.
        return {
            n: a
            if n in arrays
            else jax.tree.map(lambda x, y: jnp.where(active, x, y), a, values[n])
            for n, a in after.items()
        }, None

    return jax.lax.scan(guarded, start, jnp.arange(bound.most, dtype=jnp.uint32))[0]


def _shaped(
    lowering: BlockLowering,
    block: Block,
    env: Values,
    start: Values,
    places: dict[str, int | None],
    writes: list[str],
) -> Values:
    """The initial values of the loop, in the form that the body returns: arrays as buffers of their
    full size.
    """

    def one(values: Values) -> Values:
        after = lowering.block(block, env | values)
        return {n: after[n] for n in writes if n in after}

    start = {
        n: v.stacked(places[n] or v.capacity)
        if isinstance(v, TensorArray) and v.capacity
        else (v if isinstance(v, TensorArray) else jax.tree.map(jnp.asarray, v))
        for n, v in start.items()
    }
    probe = jax.eval_shape(one, start)
    shaped = {}
    for name, like in probe.items():
        value = start.get(name)
        if value is None:
            value = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
        elif isinstance(value, TensorArray) and not value.capacity:
            n = max(places[name] or 1, 1)
            buffer = jax.tree.map(lambda s, n=n: jnp.zeros((n, *s.shape[1:]), s.dtype), like.buffer)
            value = TensorArray(buffer=buffer, length=jnp.int64(0))
        elif isinstance(like, Ragged) and not isinstance(value, Ragged) and not like.levels:
            value = Ragged(value, (), jnp.int32(value.shape[0]))
        shaped[name] = value
    return shaped


def _matched(value: Any, like: Any, name: str) -> Any:
    """A loop's value in the form of its initial one. Raises OpError when its shape changes."""
    if isinstance(like, Ragged) and isinstance(value, Ragged):
        value = Ragged(
            value.values, value.levels, value.total if like.total is not None else None, like.exact
        )
    elif isinstance(like, Ragged):
        value = like.like(value)
    elif isinstance(value, Ragged) and not isinstance(like, Ragged):
        value = value.values
    ours, theirs = jax.tree.leaves(value), jax.tree.leaves(like)
    shapes = [[tuple(jnp.shape(x)) for x in leaves] for leaves in (ours, theirs)]
    if shapes[0] != shapes[1] and [int(np.prod(s)) for s in shapes[0]] != [
        int(np.prod(s)) for s in shapes[1]
    ]:
        raise errors.OpError(
            f"{name} changes its shape in a loop or condition, from {shapes[1][0]} to {shapes[0][0]}"
        )
    leaves = [jnp.asarray(x, y.dtype).reshape(y.shape) for x, y in zip(ours, theirs)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def recurrent(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Run the block once for each step of the inputs, along their first dimension; outputs are
    stacked along it.
    """
    block, names = op.attrs["sub_block"], op.inputs.get("inputs", [])
    outputs = op.outputs.get("outputs", [])
    before, after = op.attrs["ex_states"], op.attrs["states"]
    sequences = {n: jnp.asarray(rows_of(env[n])) for n in names}
    lengths = {v.shape[0] for v in sequences.values()}
    if len(lengths) != 1:
        raise errors.ShapeError(
            "StaticRNN: step inputs of one length are needed, found "
            + ", ".join(f"{n} {list(v.shape)}" for n, v in sequences.items())
        )
    start = dict(zip(before, (env[n] for n in op.inputs.get("initial_states", []))))

    def step(state: Values, at: tuple[Any, ...]) -> tuple[Values, Values]:
        i, inputs = at
        key = jax.random.fold_in(lowering.key, i) if lowering.key is not None else None
        done = lowering.block(block, env | inputs | state, key)
        return {b: _matched(done[a], state[b], a) for b, a in zip(before, after)}, {
            n: rows_of(done[n]) for n in outputs
        }

    steps = jnp.arange(lengths.pop(), dtype=jnp.uint32)
    start = {n: jax.tree.map(jnp.asarray, v) for n, v in start.items()}
    return jax.lax.scan(step, start, (steps, sequences), reverse=op.attrs.get("reverse", False))[1]


# What lowers each operator that is declared without a function (jfluid/ops/structure.py).
STRUCTURES = {"conditional_block": conditional_block, "while": while_, "recurrent": recurrent}
