"""Execution on the host between XLA segments: host operators, and loops that contain some."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.lowering.plan import Plan, Segment, on_kept_rows, plan_block
from jfluid.compile.runtime import memory, padding, scope_rows
from jfluid.ir.block import outer_names
from jfluid.ir.operator import Operator
from jfluid.ir.variable import EMPTY_NAME
from jfluid.lod_tensor import LoDTensor, LoDTensorArray
from jfluid.ops import ragged_dispatch
from jfluid.ops.definition import OpDef
from jfluid.ops.ragged import Ragged, rows_of

MOST_ITERATIONS = 1_000_000


class Host:
    """Runner of host segments on NumPy arrays.

    Args:
        compiled: returns the step of an inner block's plan.
        place: the Executor's place.
    """

    def __init__(self, compiled: Callable[[Plan], Any], place: Any):
        self._compiled, self._place = compiled, place
        self._steps: dict[int, Any] = {}  # of inner blocks, by index

    def run(self, segment: Segment, env: dict[str, Any], key: Any, scope: Any) -> None:
        """Run the segment's operators on the values in `env`, and store their outputs there."""
        rows = set[str]()
        for position, op, definition in segment.ops:
            try:
                if on_kept_rows(op, rows):
                    scope_rows.run((position, op, definition), env, key, scope)
                elif op.sub_blocks():
                    self._blocks(op, env, key, scope)
                elif definition.host:
                    self._operator(op, definition, env, scope)
                else:
                    _array_operator(op, definition, env)
            except errors.JFluidError:
                raise
            except Exception as e:
                kind = errors.OutOfMemoryError if memory.is_lack(e) else errors.OpError
                raise kind(
                    f"operator {op.type} (position {position} of its block) failed: {e}"
                    + (f"\n  made at: {op.callsite}" if op.callsite else "")
                ) from e

    def _operator(self, op: Operator, definition: OpDef, env: dict[str, Any], scope: Any) -> None:
        def value(name: str) -> Any:
            if name == EMPTY_NAME or name not in env:
                return None
            found = padding.trimmed(env[name])
            if definition.rows != "sequence":
                return np.array(found)
            return found if isinstance(found, (LoDTensor, LoDTensorArray)) else LoDTensor(np.asarray(found))

        ins = [
            [value(n) for n in op.inputs.get(s.name, ())]
            if s.many
            else (value(op.inputs[s.name][0]) if op.inputs.get(s.name) else None)
            for s in definition.ins
        ]
        kwargs = {a: op.attrs[a] for a in definition.attrs if a in op.attrs}
        if definition.wants_ctx:
            kwargs["ctx"] = SimpleNamespace(op=op, scope=scope, place=self._place)
        outs = definition.function(*ins, **kwargs)
        ragged = [env[n] for n in op.input_arg_names if isinstance(env.get(n), Ragged)]
        for slot, out in zip(definition.outs, outs if isinstance(outs, tuple) else (outs,)):
            for name, v in zip(op.outputs.get(slot.name, ()), out if isinstance(out, list) else (out,)):
                if isinstance(v, LoDTensor):
                    env[name] = padding.padded(v)
                elif v is not None:
                    v = np.asarray(v)
                    env[name] = padding.exact(ragged[0]).like(v) if ragged and definition.rows == "map" else v

    def _blocks(self, op: Operator, env: dict[str, Any], key: Any, scope: Any) -> None:
        """Run a loop or condition with host operators in its block."""
        if op.type not in ("while", "conditional_block", "conditional_block_infer"):
            raise errors.UnsupportedError(
                f"{op.type}: its block holds operators that run on the host (print, py_func, "
                "beam_search ...), which only While and conditions may"
            )
        block = op.attrs["sub_block"]
        step = self._steps.get(block.idx)
        if step is None:
            step = self._steps[block.idx] = self._compiled(plan_block(block, sorted(outer_names(block)[1])))
        conditions = op.input("Condition") + op.input("Cond")
        for i in range(MOST_ITERATIONS):
            if not all(bool(np.all(np.asarray(rows_of(env[n])))) for n in conditions):
                return
            inner = dict(env)
            step.run_segments(inner, scope, None if key is None else _fold(key, i))
            env.update((n, inner[n]) for n in step.plan.fetches if n in inner)
            if op.type != "while":
                return
        raise errors.OpError(f"a loop ran {MOST_ITERATIONS} times and {', '.join(conditions)} still holds")


def _fold(key: Any, i: int) -> np.ndarray:
    """Return the random key of an iteration."""
    return np.array([int(key[0]) ^ (0x9E3779B9 * (i + 1) & 0xFFFFFFFF), key[1]], np.uint32)


def _array_operator(op: Operator, definition: OpDef, env: dict[str, Any]) -> None:
    """Run an operator on tensor arrays without compiling: the elements stay in place."""

    def read(slot: Any, names: list[str]) -> Any:
        found = [None if n == EMPTY_NAME else env.get(n) for n in names]
        return found if slot.many else (found[0] if found else None)

    ins = [read(s, op.input(s.name)) for s in definition.ins] + [
        read(s, op.output(s.name)) for s in definition.reads if s.name in definition.carries
    ]
    if ins and ins[0] is None:
        raise errors.OpError(f"operator {op.type}: input {', '.join(op.input(definition.ins[0].name))} has no value")
    kwargs = {a: op.attrs[a] for a in definition.attrs if a in op.attrs}
    ins = [jax.tree.map(np.asarray, v) if s.name == "I" else v for s, v in zip(definition.reads, ins)]
    for slot, out in zip(definition.outs, ragged_dispatch.call(definition, ins, kwargs)):
        for name, v in zip(op.output(slot.name), out if isinstance(out, list) else (out,)):
            env[name] = v
