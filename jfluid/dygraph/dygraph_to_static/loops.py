"""Loops with a tensor as condition: a `while` operator; one run of the body makes its block."""

from collections.abc import Callable
from typing import Any

from jfluid import errors
from jfluid.dygraph.dygraph_to_static.merging import as_variable
from jfluid.dygraph.dygraph_to_static.numbers import NumberVariable, is_number, number
from jfluid.dygraph.dygraph_to_static.state import State, condition, is_tensor
from jfluid.dygraph.dygraph_to_static.structures import (
    Undefined,
    is_array,
    leaves,
    mapped,
    same_structure,
)
from jfluid.ir import unique_name
from jfluid.ir.program import Program, default_main_program
from jfluid.ir.types import VarType, is_float
from jfluid.ir.variable import Variable
from jfluid.layers.control_flow import While
from jfluid.layers.creation import assign
from jfluid.layers.math_op_patch import astype

Kind = tuple[VarType, tuple[int, ...]]  # of a tensor


class _Grown(Exception):
    """Raised when a number that enters the loop leaves an iteration as a tensor of a different kind."""

    def __init__(self, at: int, kind: Kind):
        self.at, self.kind = at, kind


def tensor_loop(first: Variable, test: Callable[[], Any], body: Callable[[], Any], state: State) -> None:
    """Append the loop.

    Args:
        first: first value of the test.
        test, body: functions over `state`.
        state: variables that the body may change; holds the values after the loop at the end. Tensors and numbers may
            change; all other values must stay equal.

    Raises TypeError for a change of any other value, or of a type or shape.
    """
    program = default_main_program()
    start = state.get()
    kinds: dict[int, Kind] = {}  # of numbers that grow, by leaf
    while True:
        mark = _Mark(program)
        try:
            _Loop(state, start, kinds).append(first, test, body)
            return
        except _Grown as grown:
            # The number was the start of a sum of tensors, say: it begins as a tensor of that kind.
            kinds[grown.at] = grown.kind
            mark.go_back()


class _Mark:
    """A point of a program to go back to."""

    def __init__(self, program: Program):
        self._program, self._block = program, program.current_block()
        self._operators, self._blocks = len(self._block.ops), len(program.blocks)
        self._names = unique_name._generator.counts.copy()

    def go_back(self) -> None:
        """Take away the operators and blocks that were made since."""
        del self._block.ops[self._operators :], self._program.blocks[self._blocks :]
        self._program.current_block_idx = self._block.idx
        unique_name._generator.counts = self._names
        self._program._touch()


class _Loop:
    def __init__(self, state: State, start: tuple[Any, ...], kinds: dict[int, Kind]):
        self._state, self._start, self._kinds = state, start, kinds
        self._at = 0
        self._carried = tuple(mapped(self._carry, v) for v in start)

    def _carry(self, value: Any) -> Any:
        """Return the loop variable for a value from outside."""
        at, self._at = self._at, self._at + 1
        if is_array(value) or not (is_tensor(value) or is_number(value)):
            return value
        if is_number(value):
            return number(value, *self._kinds[at]) if at in self._kinds else number(value)
        if at in self._kinds:
            return number_as(value, self._kinds[at])
        made = assign(value)
        if isinstance(value, NumberVariable):
            made.__class__ = NumberVariable
        return made

    def append(self, first: Variable, test: Callable[[], Any], body: Callable[[], Any]) -> None:
        state, decides = self._state, assign(condition(first))
        after: list[Any] = []
        with While(decides).block() as inside:
            state.set(tuple(mapped(lambda v: v, v) for v in self._carried))
            body()
            changes: list[tuple[Variable, Variable]] = []
            self._at = 0
            for name, old, new, before in zip(state.names, self._carried, state.get(), self._start):
                after.append(self._after(name, old, new, before, changes))
            again = test()
            if not is_tensor(again):
                again = number(bool(again), VarType.BOOL)
            again = condition(again)
            targets = {id(old) for _, old in changes}
            # Read each source that is also a target before the first write.
            values = [assign(new) if id(new) in targets else new for new, _ in changes]
            again = assign(again)
            for value, (_, old) in zip(values, changes):
                assign(value, old)
            assign(again, decides)
        del inside
        state.set(tuple(after))

    def _after(self, name: str, old: Any, new: Any, before: Any, changes: list[tuple[Variable, Variable]]) -> Any:
        """Return a variable's value after the loop; adds the required assignments to `changes`."""
        if isinstance(old, Undefined):
            self._at += 1
            if isinstance(new, Undefined) or name not in self._state.read:
                return old
            return mapped(lambda v: self._first_set(name, v, changes), new)
        if not same_structure(old, new):
            self._refuse(name, old, new)
        return mapped(lambda o, n, b: self._leaf(name, o, n, b, changes), old, new, before)

    def _first_set(self, name: str, new: Any, changes: list[tuple[Variable, Variable]]) -> Any:
        if not is_tensor(new) and not is_number(new):
            return new
        value = as_variable(new)
        block = default_main_program().current_block().parent
        assert block is not None  # the loop's block has a parent
        out = block.create_var(dtype=value.dtype, shape=value.shape, lod_level=value.lod_level)
        if isinstance(value, NumberVariable):
            out.__class__ = NumberVariable
        changes.append((value, out))
        return out

    def _leaf(self, name: str, old: Any, new: Any, before: Any, changes: list[tuple[Variable, Variable]]) -> Any:
        at, self._at = self._at, self._at + 1
        if new is old:
            return before if not is_array(old) else old
        if not is_tensor(old) or is_array(old):
            if not is_tensor(new) and type(new) is type(old) and new == old:
                return new
            self._refuse(name, old, new)
        if (not is_tensor(new) and not is_number(new)) or is_array(new):
            self._refuse(name, old, new)
        value = as_variable(new)
        grows = isinstance(old, NumberVariable) and not isinstance(value, NumberVariable)
        if value.dtype != old.dtype:
            if grows or (isinstance(old, NumberVariable) and is_float(value.dtype)):
                raise _Grown(at, (value.dtype, value.shape if grows else (1,)))
            if not isinstance(value, NumberVariable) or is_float(value.dtype) != is_float(old.dtype):
                raise TypeError(
                    f"{name} is {old.dtype.name} before the loop and {value.dtype.name} after an "
                    "iteration: cast either value"
                )
            value = astype(value, old.dtype)
        if _differ(old.shape, value.shape):
            if grows and -1 not in value.shape:
                raise _Grown(at, (value.dtype, value.shape))
            raise errors.ShapeError(
                f"{name} has shape {list(old.shape)} before the loop and {list(value.shape)} after "
                "an iteration: give it its shape before"
            )
        changes.append((value, old))
        return old

    def _refuse(self, name: str, old: Any, new: Any) -> None:
        raise TypeError(
            f"{name} is {_kind(old)} before the loop and {_kind(new)} after an iteration: where a "
            "tensor ends the loop, tensors and numbers may change, and lists by append"
        )


def number_as(value: Variable, kind: Kind) -> Variable:
    """Convert a one-element tensor to a dtype and shape."""
    dtype, shape = kind
    cast = astype(value, dtype)
    return cast if not _differ(cast.shape, shape) else number(0, dtype, shape) + cast


def _differ(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    if len(a) != len(b):
        return True
    return any(x != y and -1 not in (x, y) for x, y in zip(a, b))


def _kind(value: Any) -> str:
    if isinstance(value, Undefined):
        return "not set"
    if value is None:
        return "None"
    found = leaves(value)
    if len(found) != 1 or found[0] is not value:
        return f"a {type(value).__name__} of {len(value)}"
    if is_array(value):
        return "a list that is appended to"
    return "a tensor" if is_tensor(value) else f"{value!r:.40} ({type(value).__name__})"
