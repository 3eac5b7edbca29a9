"""Bounds of loops and sizes of arrays written in loops, derived from the loop's counter."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ops import static_values
from jfluid.ops.ragged import Ragged
from jfluid.ops.tensor_array import RankTable, TensorArray


@dataclass(frozen=True)
class Bound:
    """Bound of a loop's iterations.

    Attributes:
        most: largest number of iterations.
        exact: True if the loop always runs `most` iterations.
    """

    most: int
    exact: bool


@dataclass(frozen=True)
class _Counter:
    """Integer counter: the value of `base` at the start of the iteration plus `offset`."""

    base: str
    offset: int


class _Walk:
    """Values of the counters in a loop's body before each operator."""

    def __init__(self, block: Block, env: Mapping[str, Any]):
        self.env = env
        self.now: dict[str, _Counter | None] = {}
        self.before: list[dict[str, _Counter | None]] = []
        self.constants: dict[str, int] = {}
        for op in block.ops:
            self.before.append(dict(self.now))
            self._step(op)

    def at(self, name: str) -> _Counter | None:
        return self.now[name] if name in self.now else _Counter(name, 0)

    def constant(self, name: str) -> int | None:
        """Return the constant value of a name that the loop does not change, or None."""
        if name in self.now:
            return self.constants.get(name)
        return _number(self.env.get(name))

    def _step(self, op: Operator) -> None:
        result = None
        if op.type == "increment":
            result = self._moved(op.input("X")[0], op.attr("step"))
        elif op.type == "assign":
            result = self.at(op.input("X")[0])
        elif op.type == "scale" and op.attr("scale") == 1.0 and not op.input("ScaleTensor"):
            result = self._moved(op.input("X")[0], op.attr("bias"))
        elif op.type == "elementwise_add":
            x, y = op.input("X")[0], op.input("Y")[0]
            if (n := self.constant(y)) is not None:
                result = self._moved(x, n)
            elif (n := self.constant(x)) is not None:
                result = self._moved(y, n)
        for name in op.output_arg_names:
            self.now[name] = result
            self.constants.pop(name, None)
        if op.type == "fill_constant" and math.prod(op.attr("shape") or ()) == 1:
            self.constants[op.output("Out")[0]] = int(op.attr("value"))

    def _moved(self, name: str, step: float) -> _Counter | None:
        counter = self.at(name)
        return counter and _Counter(counter.base, counter.offset + int(step))


def _number(value: Any) -> int | None:
    if value is None or isinstance(value, (TensorArray, RankTable, Ragged)) or not static_values.is_static(value):
        return None
    array = np.asarray(value)
    return int(array.reshape(())) if array.size == 1 else None


def bound(block: Block, condition: str, env: Mapping[str, Any]) -> Bound | None:
    """Return the number of iterations of the loop over `block`, or None if the counter does not determine it."""
    return _bound_of(_Walk(block, env), block, condition, len(block.ops))


def _bound_of(walk: _Walk, block: Block, name: str, end: int) -> Bound | None:
    writer = max((i for i, op in enumerate(block.ops[:end]) if name in op.output_arg_names), default=None)
    if writer is None:
        return None
    op = block.ops[writer]
    if op.type == "assign":
        return _bound_of(walk, block, op.input("X")[0], writer)
    if op.type == "logical_and":
        found = [b for slot in ("X", "Y") if (b := _bound_of(walk, block, op.input(slot)[0], writer))]
        return Bound(min(b.most for b in found), False) if found else None
    swapped = op.type in ("greater_than", "greater_equal")
    if op.type not in ("less_than", "less_equal") and not swapped:
        return None
    counter, limit = (op.input(s)[0] for s in (("Y", "X") if swapped else ("X", "Y")))
    counters = walk.before[writer]
    at = counters[counter] if counter in counters else _Counter(counter, 0)
    if at is None:
        return None
    last, start = walk.at(at.base), _number(walk.env.get(at.base))
    if last is None or last.base != at.base or last.offset <= 0 or start is None:
        return None
    most, exact = _limit(walk, block, limit)
    if most is None:
        return None
    most += op.type.endswith("equal")
    slack = at.offset < last.offset  # compared before it is incremented
    return Bound(max(-(-(most - start) // last.offset), 0) + slack, exact and not slack)


def _limit(walk: _Walk, block: Block, name: str) -> tuple[int | None, bool]:
    """Return the largest value of a loop's limit, and whether the limit always has that value."""
    number = walk.constant(name)
    if number is not None or name in walk.now:
        return number, True
    outer: Block | None = block
    while (outer := outer.parent if outer is not None else None) is not None:
        for op in reversed(outer.ops):
            if name in op.output_arg_names:
                source = walk.env.get(op.input_arg_names[0]) if op.input_arg_names else None
                if op.type == "max_sequence_len" and isinstance(source, RankTable):
                    return source.level.longest, False
                if op.type == "lod_array_length" and isinstance(source, TensorArray):
                    return source.capacity, False
                return None, False
    return None, False


def places(block: Block, array: str, env: Mapping[str, Any], bound: Bound | None, held: int) -> int | None:
    """Return the size of an array written in the loop, or None if it is unknown."""
    walk = _Walk(block, env)
    needed, appended = held, 0
    for op, counters in zip(block.ops, walk.before):
        appended += _writes_inside(op, array)
        if op.type != "write_to_array" or array not in op.output_arg_names:
            continue
        index = op.input("I")[0]
        found = counters[index] if index in counters else _Counter(index, 0)
        start = _number(env.get(found.base)) if found else None
        last = walk.at(found.base) if found else None
        if found is None or start is None or last is None or last.base != found.base:
            appended += 1
        elif last.offset == 0:
            needed = max(needed, start + found.offset + 1)
        elif bound is None:
            return None
        else:
            needed = max(needed, start + (bound.most - 1) * last.offset + found.offset + 1)
    if not appended:
        return needed
    return None if bound is None else max(needed, held + appended * bound.most + 1)


def _writes_inside(op: Operator, array: str) -> int:
    """Return the number of writes to an array, at any index, in the blocks of an operator."""
    found = 0
    for inner in op.sub_blocks():
        for other in inner.ops:
            writes = _writes_inside(other, array)
            writes += other.type == "write_to_array" and array in other.output_arg_names
            if writes and op.type == "while":
                raise errors.UnsupportedError(
                    f"{array} is written in a loop within a loop, so that its size has no bound: "
                    "write it in one loop, or stack the values that the inner loop writes\n  " + other.callsite
                )
            found += writes
    return found
