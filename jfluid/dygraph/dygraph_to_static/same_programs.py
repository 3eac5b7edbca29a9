"""Comparison of the Programs of a function for arguments of different sizes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable

_OF_THE_SCRIPT = frozenset(["op_callstack"])


def same_but_sizes(a: Program, b: Program) -> bool:
    """Return whether two Programs have the same operators, upon variables that differ in sizes alone."""
    return len(a.blocks) == len(b.blocks) and all(map(_same_blocks, a.blocks, b.blocks))


def _same_blocks(a: Block, b: Block) -> bool:
    if a.parent_idx != b.parent_idx or len(a.ops) != len(b.ops) or a.vars.keys() != b.vars.keys():
        return False
    return all(map(_same_operators, a.ops, b.ops)) and all(
        _kind(v) == _kind(b.vars[name]) for name, v in a.vars.items()
    )


def _kind(v: Variable) -> Any:
    return v.type, v.dtype, len(v.shape), v.lod_level, v.persistable, v.stop_gradient


def _same_operators(a: Operator, b: Operator) -> bool:
    if (a.type, a.inputs, a.outputs) != (b.type, b.inputs, b.outputs):
        return False
    mine, other = _attributes(a), _attributes(b)
    return mine.keys() == other.keys() and all(_same(v, other[n]) for n, v in mine.items())


def _attributes(op: Operator) -> Mapping[str, Any]:
    return {n: v for n, v in op.attrs.items() if n not in _OF_THE_SCRIPT}


def _same(a: Any, b: Any) -> bool:
    """Return whether two attributes are equal; numbers of different types are not."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Block):
        return bool(a.idx == b.idx)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return a is b or bool(a == b)
