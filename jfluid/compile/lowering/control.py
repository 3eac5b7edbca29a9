"""Lowering of operators with blocks inside.

Each function takes the lowering, the operator and the values by name, and returns the values of
the operator's outputs. It changes nothing else, so that gradients can be taken through it.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile.lowering import loop_bounds
from jfluid.compile.lowering.expansion import Expansion
from jfluid.ir.block import Block, outer_names
from jfluid.ir.operator import Operator
from jfluid.ir.types import VarType
from jfluid.ops import inlining, refusals, static_values
from jfluid.ops.ragged import Ragged, rows_of
from jfluid.ops.tensor_array import TensorArray, writing_where

UNROLLED = 4  # most iterations of a loop of known length that is unrolled
# The same where shapes in its body differ by iteration.
UNROLLED_FOR_SHAPES = 64
_WRITTEN_FOR_SHAPES = 4096  # the same, of loops within loops, all together
COUNTER = "@ITERATIONS@"
Values = dict[str, Any]


@dataclass(frozen=True)
class Counting:
    """Loop to count the iterations of, while its operators are lowered.

    Attributes:
        name: the loop's `counter`.
        most: a loop that writes arrays ends after `most + 1` iterations.
    """

    name: str
    most: int


NOT_COUNTING = Counting("", 0)


def counter(op: Operator) -> str:
    """Return the name under which the iterations of a loop are counted and known."""
    return f"{COUNTER}{op.attrs['sub_block'].idx}"


class OtherShape(errors.OpError):
    """Error of a variable that changes its shape in a loop or a condition."""


class BlockLowering(Protocol):
    """Interface of the lowering of the operators inside a block.

    Attributes:
        key: the step's random key; None if no operator draws.
        reversible: True while gradients are taken through the lowered operators.
        loops: bounds of loops that do not follow from their conditions, by `counter`.
        counting: the loop that is counted.
        refusals: the operators, by identity, that write refused values to `refusals.TABLE`.
        expansion: counter of the lowered operators.
    """

    key: Any
    reversible: bool
    loops: Mapping[str, Any]
    counting: Counting
    refusals: Mapping[int, Any]
    expansion: Expansion

    def block(self, block: Block, env: Values, key: Any = None, ops: slice = slice(None)) -> Values:
        """Lower a block, or a slice of the block's operators, over a copy of `env`; return the copy."""
        ...


def conditional_block(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Run the inner block if the condition holds; otherwise its outputs keep their values."""
    block = op.attrs["sub_block"]
    conditions = [env[n] for n in op.inputs.get("Cond", ())]
    writes = _writes(lowering, block)
    if not op.attrs.get("is_scalar_condition", False):
        # A block of IfElse: it runs on the selected rows. Other rows do it no harm.
        return _chosen(lowering.block(block, env), writes)
    conditions = [rows_of(c) for c in conditions]
    if all(static_values.is_static(c) and isinstance(c, np.ndarray) for c in conditions):
        if all(bool(np.all(c)) for c in conditions):
            return _chosen(lowering.block(block, env), writes)
        # The branch of `layers.cond` that is not taken: select_input does not read it, since the index is known, too.
        return {
            n: jnp.zeros((), block.find_var_recursive(n).np_dtype)
            for n in writes
            if n not in env and _only_selected(op, n)
        }

    run = _Block(lowering, block, env, writes)

    def taken(values: Values) -> Values:
        after = run({n: v for n, v in values.items() if n in env or n in arrays})
        return {n: _matched(after[n], v, n) for n, v in values.items()}

    truth = jnp.all(jnp.stack([jnp.all(c) for c in conditions]))
    try:
        arrays = _arrays_before(run, env)
        before = _before(run, op, arrays, env)
        after: dict[str, Any] = jax.lax.cond(truth, taken, lambda values: values, before)
        after = {n: _fixed(v, _is_fixed(env.get(n))) for n, v in after.items()}
    except (static_values.Unknown, OtherShape) as error:
        if isinstance(error, static_values.Unknown) and (
            error.value is None or any(error.value is leaf for leaf in jax.tree.leaves(env))
        ):
            raise
        # Shapes in the block follow from values in it: only the block that is taken is compiled.
        condition = next(c for c in conditions if not static_values.is_static(c))
        raise static_values.unknown(condition, "a condition with shapes that follow from values") from error
    return after


def _writes(lowering: BlockLowering, block: Block) -> list[str]:
    """Return the outer names that a block writes, with the counter of a counted loop and the table of refusals."""
    counting = lowering.counting.name
    loops = {counter(op) for op in _operators(block) if op.type == "while"} if counting else ()
    return sorted(outer_names(block)[1]) + [counting] * (counting in loops) + _refusing(lowering, block)


def _refusing(lowering: BlockLowering, block: Block) -> list[str]:
    """Return the name of the table of refusals in a list, or an empty list if no operator in the block writes it."""
    asked = lowering.refusals and any(id(op) in lowering.refusals for op in _operators(block))
    return [refusals.TABLE] if asked else []


def _operators(block: Block) -> Iterator[Operator]:
    for op in block.ops:
        yield op
        for inner in op.sub_blocks():
            yield from _operators(inner)


def _chosen(values: Values, names: list[str]) -> Values:
    return {n: values[n] for n in names if n in values}


class _Block:
    """Block as a function of the values that it changes.

    The block is traced once for each form of the values, so that nested blocks do not multiply the traces.

    Attributes:
        writes: names of the block's outputs.
    """

    def __init__(self, lowering: BlockLowering, block: Block, env: Values, writes: list[str]):
        self.block, self.writes = block, writes

        def run(values: Values, iteration: Any, active: Any) -> Values:
            key = lowering.key
            if key is not None and iteration is not None:
                key = jax.random.fold_in(key, iteration)
            with nullcontext() if active is None else writing_where(active):
                return _chosen(lowering.block(block, env | values, key), writes)

        self._run: Any = jax.jit(run, inline=inlining.EARLY)

    def __call__(self, values: Values, iteration: Any = None, active: Any = None) -> Values:
        """Return the outputs that have a value.

        Args:
            values: the outputs' values before the block; all further values come from the operator's environment.
            iteration: uint32 number of a loop's iteration; random numbers differ by iteration.
            active: bool; arrays are written if it is True. None: in any case.
        """
        found: Values = self._run(values, iteration, active)
        return found

    def shapes(self, values: Values, iteration: Any = None, active: Any = None) -> Values:
        """Return the shapes of the results of a call."""
        found: Values = jax.eval_shape(self._run, values, iteration, active)
        return found


def _before(run: _Block, op: Operator, arrays: Values, env: Values) -> Values:
    """Return the values of the block's outputs for a block that does not run.

    The values of a block of `layers.cond` are then never read.
    """
    missing = [n for n in run.writes if n not in env and n not in arrays]
    if missing:
        lost = [n for n in missing if not _only_selected(op, n)]
        if lost:
            raise errors.OpError(
                f"{', '.join(lost)} would have no value where the condition does not hold: "
                "give it one before, for example with layers.fill_constant"
            )
    found = {n: jax.tree.map(jnp.asarray, env[n]) for n in run.writes if n in env} | arrays
    if missing:
        shapes = _chosen(run.shapes(found), missing)
        found |= jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return found


def _arrays_before(run: _Block, env: Values) -> Values:
    """Return the arrays that a block writes, as buffers with room for the elements written."""
    variables = {n: run.block.find_var_recursive(n) for n in run.writes}
    names = [
        n
        for n, v in variables.items()
        if v is not None and v.type == VarType.LOD_TENSOR_ARRAY and not _is_fixed(env.get(n))
    ]
    if not names:
        return {}
    after = run.shapes({})
    found = {}
    for n in names:
        before, room = env.get(n, TensorArray()), after[n].capacity
        if before.capacity:
            found[n] = _fixed(before.stacked(room), True)
        else:
            stacked = jax.eval_shape(lambda a, room=room: a.stacked(room), after[n]).buffer
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), stacked)
            found[n] = TensorArray(buffer=zeros, length=jnp.int64(0), fixed=True)
    return found


def _is_fixed(value: Any) -> bool:
    return isinstance(value, TensorArray) and value.fixed


def _fixed(value: Any, fixed: bool) -> Any:
    """Return an array that can, or cannot, grow; return any other value unchanged."""
    if isinstance(value, TensorArray) and value.buffer is not None:
        return replace(value, fixed=fixed)
    return value


def _only_selected(op: Operator, name: str) -> bool:
    """Return True if only `select_input` and gradients read an output of a branch."""
    readers = {other.type for other in op.block.ops if name in other.input_arg_names}
    allowed = {"select_input", "select_input_grad", "conditional_block_grad"}
    return "select_input" in readers and readers <= allowed


def while_(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Run the block while the condition holds.

    A short loop of known length is unrolled. Any other is one compiled loop. If gradients are
    needed it runs up to a bound (`jfluid.compile.lowering.loop_bounds`), and the iterations after its end
    have no effect.
    """
    block, condition = op.attrs["sub_block"], op.inputs["Condition"][0]
    state = {n: env[n] for n in _writes(lowering, block) if n in env}
    bound = loop_bounds.bound(block, condition, env)
    unknown = bound is None or (bound.most > UNROLLED and _bears_loop(block, state))
    limit = 0 if bound is not None and unknown else (UNROLLED if bound is None else bound.most)
    if not lowering.expansion.may_write_out(limit):
        limit = 0
    state, ended = _unrolled(lowering, op, env, state, limit)
    if ended:
        return state
    try:
        return _loop(lowering, op, env, state, bound)
    except static_values.Unknown as need:
        outside = need.value is None or any(need.value is leaf for leaf in jax.tree.leaves(env))
        written_out = lowering.expansion.may_write_out(UNROLLED_FOR_SHAPES, _WRITTEN_FOR_SHAPES)
        if bound is None or outside or not written_out:
            raise
        # Shapes in the body differ by iteration.
        state, ended = _unrolled(lowering, op, env, state, UNROLLED_FOR_SHAPES)
        if not ended:
            raise
        return state


def _unrolled(lowering: BlockLowering, op: Operator, env: Values, state: Values, most: int) -> tuple[Values, bool]:
    """Run a loop with a known condition for at most `most` iterations; return the values, and True if it has ended."""
    block, condition = op.attrs["sub_block"], op.inputs["Condition"][0]
    writes = _writes(lowering, block)
    expansion, outside = lowering.expansion, lowering.expansion.bodies
    expansion.bodies *= max(most, 1)
    try:
        while static_values.is_static(truth := rows_of(state.get(condition, env[condition]))):
            if not np.all(truth):
                return state, True
            if most == 0:
                break
            most -= 1
            state = _chosen(lowering.block(block, env | state), writes)
        return state, False
    finally:
        expansion.bodies = outside


def _bears_loop(block: Block, state: Values) -> bool:
    """Return True if a compiled loop can hold the arrays: all elements have one shape."""
    for value in state.values():
        if isinstance(value, TensorArray) and value.buffer is None:
            shapes = {tuple(jnp.shape(x) for x in jax.tree.leaves(v)) for v in value.items if v is not None}
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
    writes = _writes(lowering, block)
    counted = lowering.counting.name == counter(op)
    outer = {n: op.block.find_var_recursive(n) for n in writes}
    arrays = {n for n, v in outer.items() if v is not None and v.type == VarType.LOD_TENSOR_ARRAY}
    start = {n: state.get(n, TensorArray()) for n in arrays} | {n: v for n, v in state.items() if n not in arrays}
    if counted and arrays:
        bound = loop_bounds.Bound(lowering.counting.most + 1, False)

    def places_of(name: str) -> int | None:
        return loop_bounds.places(block, name, env | state, bound, start[name].capacity)

    places = {n: places_of(n) for n in arrays}
    if bound is None and (lowering.reversible or any(places[n] is None for n in arrays)):
        bound = _counted_bound(lowering, op)
        places = {n: places_of(n) for n in arrays}
    run = _Block(lowering, block, env, writes)
    guarded = lowering.reversible and bound is not None and not bound.exact
    start = _shaped(run, start, places, guarded)

    def step(values: Values, i: Any, active: Any = None) -> Values:
        after = run(values, i, active)
        return {n: _matched(after[n], v, n) for n, v in values.items()}

    if not lowering.reversible or bound is None:
        most = bound.most if counted and bound is not None else np.iinfo(np.uint32).max
        iterations, after = jax.lax.while_loop(
            lambda c: jnp.all(rows_of(c[1][condition])) & (c[0] < most),
            lambda c: (c[0] + 1, step(c[1], c[0])),
            (jnp.uint32(0), start),
        )
        if counted:
            name = counter(op)
            after[name] = jnp.maximum(env[name], iterations.astype(jnp.int64))
        return {n: _fixed(v, _is_fixed(state.get(n))) for n, v in after.items()}

    def one(values: Values, i: Any) -> tuple[Values, None]:
        if not guarded:
            return step(values, i), None
        active = jnp.all(rows_of(values[condition]))
        after = step(values, i, active)
        # Arrays are not selected, which would copy the buffers: the body writes them if `active` only.
        return {
            n: a if n in arrays else jax.tree.map(lambda x, y: jnp.where(active, x, y), a, values[n])
            for n, a in after.items()
        }, None

    after = jax.lax.scan(one, start, jnp.arange(bound.most, dtype=jnp.uint32))[0]
    return {n: _fixed(v, _is_fixed(state.get(n))) for n, v in after.items()}


def _counted_bound(lowering: BlockLowering, op: Operator) -> loop_bounds.Bound:
    """Return the counted bound of a loop if its condition does not give a bound.

    Raises Unknown until the iterations have been counted.
    """
    name = counter(op)
    if name in lowering.loops:
        return loop_bounds.Bound(int(lowering.loops[name]), False)
    asked = static_values.Unknown(
        f"a loop that gradients go through, or that writes arrays, needs a bound on its iterations, "
        f"which {op.inputs['Condition'][0]} does not tell: compare a counter with a constant, or "
        "with the length of sequences"
    )
    asked.name = name
    raise asked


def _shaped(run: _Block, start: Values, places: dict[str, int | None], guarded: bool) -> Values:
    """Return the initial values of the loop, in the form that the body returns: arrays are buffers of full size."""
    start = {
        n: _fixed(v.stacked(places[n] or v.capacity), True)
        if isinstance(v, TensorArray) and v.capacity
        else (v if isinstance(v, TensorArray) else jax.tree.map(jnp.asarray, v))
        for n, v in start.items()
    }
    probe = run.shapes(start, jnp.uint32(0), jnp.bool_(True) if guarded else None)
    shaped = {}
    for name, like in probe.items():
        value = start.get(name)
        if value is None:
            value = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
        elif isinstance(value, TensorArray) and not value.capacity:
            n = max(places[name] or 1, 1)
            buffer = jax.tree.map(lambda s, n=n: jnp.zeros((n, *s.shape[1:]), s.dtype), like.buffer)
            value = TensorArray(buffer=buffer, length=jnp.int64(0), fixed=True)
        elif isinstance(like, Ragged) and not isinstance(value, Ragged) and not like.levels:
            value = Ragged(value, (), jnp.int32(value.shape[0]))
        shaped[name] = value
    return shaped


def _matched(value: Any, like: Any, name: str) -> Any:
    """Return a loop's value in the form of the initial value. Raises OpError if the shape changes."""
    if isinstance(like, Ragged) and isinstance(value, Ragged):
        value = Ragged(value.values, value.levels, value.total if like.total is not None else None, like.exact)
    elif isinstance(like, Ragged):
        value = like.like(value)
    elif isinstance(value, Ragged) and not isinstance(like, Ragged):
        value = value.values
    ours, theirs = jax.tree.leaves(value), jax.tree.leaves(like)
    shapes = [[tuple(jnp.shape(x)) for x in leaves] for leaves in (ours, theirs)]
    if shapes[0] != shapes[1] and [int(np.prod(s)) for s in shapes[0]] != [int(np.prod(s)) for s in shapes[1]]:
        raise OtherShape(f"{name} changes its shape in a loop or condition, from {shapes[1][0]} to {shapes[0][0]}")
    leaves = [jnp.asarray(x, y.dtype).reshape(y.shape) for x, y in zip(ours, theirs)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def recurrent(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Run the block once for each step of the inputs, along their first dimension; outputs are stacked along it."""
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
    carried = _refusing(lowering, block)
    before, after = [*before, *carried], [*after, *carried]
    start.update((n, env[n]) for n in carried)

    def step(state: Values, at: tuple[Any, ...]) -> tuple[Values, Values]:
        i, inputs = at
        key = jax.random.fold_in(lowering.key, i) if lowering.key is not None else None
        done = lowering.block(block, env | inputs | state, key)
        return {b: _matched(done[a], state[b], a) for b, a in zip(before, after)}, {
            n: rows_of(done[n]) for n in outputs
        }

    steps = jnp.arange(lengths.pop(), dtype=jnp.uint32)
    start = {n: jax.tree.map(jnp.asarray, v) for n, v in start.items()}
    last, found = jax.lax.scan(step, start, (steps, sequences), reverse=op.attrs.get("reverse", False))
    return found | {n: last[n] for n in carried}


def select_output(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Copy X to the output that the index Mask selects; the other outputs keep their values, or become zero."""
    x, mask, names = env[op.input("X")[0]], rows_of(env[op.input("Mask")[0]]), op.output("Out")
    if static_values.is_static(mask):
        chosen = int(np.asarray(mask).reshape(()))
        if not 0 <= chosen < len(names):
            raise errors.OpError(f"select_output: Mask is {chosen}, but there are {len(names)} outputs")
        return {names[chosen]: x}
    index = mask.reshape(())

    def other(name: str) -> Any:
        return _matched(env[name], x, name) if name in env else jax.tree.map(jnp.zeros_like, x)

    return {n: jax.tree.map(lambda a, b, i=i: jnp.where(index == i, a, b), x, other(n)) for i, n in enumerate(names)}


def delete_var(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Remove variables from the environment. XLA frees their memory by itself."""
    for name in op.input("X"):
        env.pop(name, None)
    return {}


def run_program(lowering: BlockLowering, op: Operator, env: Values) -> Values:
    """Run the operators from `start_op_index` to before `end_op_index` of a block, which reads inputs by name."""
    block, names = op.attrs["global_block"], op.output("Out")
    first, last = op.attrs["start_op_index"], op.attrs["end_op_index"]
    if not 0 <= first <= last <= len(block.ops):
        raise errors.AttributeTypeError(
            f"run_program: expected a range of the block's {len(block.ops)} operators, found {first} to {last}"
        )
    found = lowering.block(block, env, ops=slice(first, last))
    missing = [n for n in names if n not in found]
    if missing:
        raise errors.OpError(f"run_program: nothing computes {', '.join(missing)}")
    return _chosen(found, names)


# The lowering of each operator that is declared without a function (jfluid/ops/structure.py).
STRUCTURES = {
    "conditional_block": conditional_block,
    "conditional_block_infer": conditional_block,
    "delete_var": delete_var,
    "recurrent": recurrent,
    "run_program": run_program,
    "select_output": select_output,
    "while": while_,
}
