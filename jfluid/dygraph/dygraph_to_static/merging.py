"""Values that two branches give, joined to one."""

import contextlib
from collections.abc import Iterator
from typing import Any

from jfluid.dygraph.dygraph_to_static.numbers import NumberVariable, dtype_of, is_number, number
from jfluid.dygraph.dygraph_to_static.structures import (
    Undefined,
    is_array,
    is_container,
    mapped,
    same_structure,
)
from jfluid.ir.block import Block
from jfluid.ir.types import VarType, is_float
from jfluid.ir.variable import Variable
from jfluid.layers.creation import assign
from jfluid.layers.helper import emit
from jfluid.layers.math_op_patch import astype


@contextlib.contextmanager
def reopened(block: Block) -> Iterator[None]:
    """Return a context that appends operators to a block that was closed before."""
    program = block.program
    before, program.current_block_idx = program.current_block_idx, block.idx
    try:
        yield
    finally:
        program.current_block_idx = before


def as_variable(value: Any) -> Variable:
    """Return a tensor as it is, or a number as a tensor."""
    return value if isinstance(value, Variable) else number(value)


class Merging:
    """Merges the values of two blocks.

    Args:
        true, false: the blocks, before an operator runs either block.
    """

    def __init__(self, true: Block, false: Block):
        self._blocks = true, false
        self._selected: list[tuple[Variable, Variable, Variable]] = []

    def merge(self, name: str, true: Any, false: Any) -> Any:
        """Return the value after two branches.

        Raises TypeError for values that cannot be merged.
        """
        if true is false:
            return true
        if is_container(true) and is_container(false) and same_structure(true, false):
            return mapped(lambda t, f: self._leaf(name, t, f), true, false)
        if is_container(true) and isinstance(false, Undefined):
            return mapped(lambda t: self._leaf(name, t, false), true)
        if is_container(false) and isinstance(true, Undefined):
            return mapped(lambda f: self._leaf(name, true, f), false)
        return self._leaf(name, true, false)

    def _leaf(self, name: str, true: Any, false: Any) -> Any:
        values = (true, false)
        if true is false or all(isinstance(v, Undefined) for v in values):
            return true
        tensors = [v for v in values if isinstance(v, Variable)]
        if any(is_array(v) for v in values):
            raise TypeError(f"{name} is a different array of tensors in each branch")
        if not all(isinstance(v, (Variable, Undefined)) or is_number(v) for v in values) or (
            not tensors and type(true) is type(false) and true == false
        ):
            if not tensors and type(true) is type(false) and true == false:
                return true
            if any(isinstance(v, Undefined) for v in values) and not tensors:
                return next(v for v in values if not isinstance(v, Undefined))
            raise TypeError(
                f"{name} is {_shown(true)} where the condition holds and {_shown(false)} where it does "
                "not: where a tensor decides, both branches have to give tensors or numbers, in the "
                "same structure"
            )
        return self._select(name, true, false)

    def _select(self, name: str, true: Any, false: Any) -> Variable:
        dtype = _common(name, true, false)
        outs: list[Variable | None] = []
        for value, block in zip((true, false), self._blocks):
            if isinstance(value, Undefined):
                outs.append(None)
                continue
            with reopened(block):
                inner = as_variable(value)
                inner = inner if inner.dtype == dtype else astype(inner, dtype)
            outs.append(self._outer(inner, block))
        for i, block in enumerate(self._blocks):
            if outs[i] is None:  # never read: it is as the other one
                other = outs[1 - i]
                assert other is not None
                if -1 in other.shape:
                    outs[i] = other
                    continue
                with reopened(block):
                    outs[i] = self._outer(number(0, dtype, other.shape), block)
        a, b = outs
        assert a is not None and b is not None
        weak = not any(isinstance(v, Variable) and not isinstance(v, NumberVariable) for v in (true, false))
        outside = self._outside()
        out = outside.create_var(
            dtype=dtype,
            lod_level=a.lod_level,
            shape=[x if x == y else -1 for x, y in zip(a.shape, b.shape)] if len(a.shape) == len(b.shape) else a.shape,
        )
        if weak:
            out.__class__ = NumberVariable
        self._selected.append((a, b, out))
        return out

    def _outside(self) -> Block:
        outside = self._blocks[0].parent
        assert outside is not None  # a branch's block has a parent
        return outside

    def _outer(self, value: Variable, block: Block) -> Variable:
        """Return a variable outside of the block that gets the value of a variable inside."""
        out = self._outside().create_var(
            dtype=value.dtype, shape=value.shape, lod_level=value.lod_level, type=value.type
        )
        with reopened(block):
            return assign(value, out)

    def finish(self, condition: Variable) -> None:
        """Append the operators that select values, after the operators that run the blocks."""
        if not self._selected:
            return
        attrs = {"in_dtype": int(condition.dtype), "out_dtype": int(VarType.INT32)}
        mask = emit("cast", {"X": condition}, attrs)
        for true, false, out in self._selected:
            self._outside().append_op("select_input", {"X": [false, true], "Mask": mask}, {"Out": out})


def _common(name: str, true: Any, false: Any) -> VarType:
    """Return the common dtype of the values of two branches."""
    kinds = [
        (v.dtype if isinstance(v, Variable) else dtype_of(v), not _is_strict(v))
        for v in (true, false)
        if not isinstance(v, Undefined)
    ]
    strict = {d for d, weak in kinds if not weak}
    if len(strict) == 2:
        a, b = (d for d, _ in kinds)
        raise TypeError(f"{name} is {a.name} where the condition holds and {b.name} where it does not: cast one")
    loose = {d for d, weak in kinds if weak}
    if strict:
        (dtype,) = strict
        if not is_float(dtype) and any(is_float(d) for d in loose):
            raise TypeError(f"{name} is {dtype.name} in one branch and a float in the other: cast it")
        return dtype
    if len(loose) == 2 and VarType.BOOL in loose:
        raise TypeError(f"{name} is a bool in one branch and a number in the other")
    return VarType.FP64 if VarType.FP64 in loose else loose.pop()


def _is_strict(value: Any) -> bool:
    return isinstance(value, Variable) and not isinstance(value, NumberVariable)


def _shown(value: Any) -> str:
    if isinstance(value, Undefined):
        return "not set"
    if value is None:
        return "None"
    if is_container(value):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, Variable):
        return f"a tensor ({value.dtype.name} {list(value.shape)})"
    return f"{value!r:.40} ({type(value).__name__})"
