"""Conditions and loops at run time: Python's own where Python's values decide, else operators."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from jfluid import errors
from jfluid.dygraph.dygraph_to_static.loops import tensor_loop
from jfluid.dygraph.dygraph_to_static.merging import Merging, as_variable
from jfluid.dygraph.dygraph_to_static.numbers import is_number, number
from jfluid.dygraph.dygraph_to_static.state import NO_STATE, State, condition, is_tensor
from jfluid.dygraph.dygraph_to_static.structures import Undefined, is_array, mapped
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.arrays import array_length, array_read, array_write, create_array
from jfluid.layers.blocks import conditional
from jfluid.layers.helper import emit
from jfluid.layers.math_op_patch import astype

Test = Callable[[], Any]


class _Branch(conditional):
    """A branch that stays open: `finish` appends its operator after the last change to its block."""

    def close(self) -> None:
        """Leave the block as it is."""

    def finish(self) -> None:
        super().close()


def branch(test: Any, body: Test, orelse: Test, state: State = NO_STATE) -> Any:
    """Run `body` if `test` holds, else `orelse`; return the result.

    If a tensor decides, both branches become blocks of the program, and a step runs one block. Changed variables and
    results are merged: tensors and numbers become tensors, and all other values must be equal.

    Raises TypeError for values that differ, ShapeError for a condition of several elements.
    """
    if not is_tensor(test):
        return body() if test else orelse()
    holds = condition(test)
    fails = emit("logical_not", {"X": holds})
    start = _with_arrays(state)
    outcomes = []
    for function, decides in ((body, holds), (orelse, fails)):
        state.set(tuple(mapped(lambda v: v, v) for v in start))
        with (made := _Branch(decides)):
            returned = function()
        outcomes.append((made, state.get(), returned))
    (true, after_true, result_true), (false, after_false, result_false) = outcomes
    merging = Merging(true.inside, false.inside)
    values = tuple(
        merging.merge(name, t, f) if name in state.read or t is f else Undefined(name)
        for name, t, f in zip(state.names, after_true, after_false)
    )
    result = merging.merge("the result", result_true, result_false)
    true.finish()
    false.finish()
    merging.finish(holds)
    state.set(values)
    return result


def _with_arrays(state: State) -> tuple[Any, ...]:
    """Return the values of a state; lists that change become arrays of tensors."""
    values = tuple(
        as_array(name, value) if name in state.lists and type(value) is list else value
        for name, value in zip(state.names, state.get())
    )
    state.set(values)
    return values


def as_array(name: str, items: list[Any]) -> Variable:
    """Return a list of tensors as an array of the program. Raises TypeError for other items."""
    for item in items:
        if not is_tensor(item) and not is_number(item):
            raise TypeError(
                f"{name}: a list that changes where a tensor decides may hold tensors and numbers, "
                f"found {type(item).__name__}"
            )
    array: Variable = create_array(items[0].dtype if items and is_tensor(items[0]) else "float32")
    for i, item in enumerate(items):
        array_write(as_variable(item), number(i), array)
    return array


def while_loop(test: Test, body: Test, state: State) -> None:
    """Run `body` while `test()` holds.

    From the first test that is a tensor on it is a loop of the program.
    """
    going = test()
    while not is_tensor(going):
        if not going:
            return
        body()
        going = test()
    _with_arrays(state)
    tensor_loop(going, test, body, state)


@dataclass(frozen=True)
class Indexed:
    """Items of a loop of the program: `item(i)` for i from `start` to `stop` by `step`."""

    start: Any
    stop: Any
    step: Any
    item: Callable[[Any], Any]

    def holds(self, i: Any) -> Any:
        """Return whether there is an item i."""
        if is_tensor(self.step):
            return (self.stop - i) * self.step > 0
        return i < self.stop if self.step > 0 else i > self.stop


def length(value: Any) -> Any:
    """Return the number of rows of a tensor, or of elements of an array: a number where it is known."""
    if is_array(value):
        return array_length(value)
    if not value.shape:
        raise TypeError(f"{value.name}: a tensor without dimensions has no length")
    return value.shape[0] if value.shape[0] >= 0 else emit("shape", {"Input": value})[0]


def position(index: Any) -> Any:
    """Return an index as Fluid's `slice` takes it: of tensors int32."""
    return astype(index, "int32") if is_tensor(index) and index.dtype == VarType.INT64 else index


def indexed(value: Any) -> Indexed | None:
    """Return the items of a loop of the program, or None if Python iterates."""
    if isinstance(value, Indexed):
        return value
    if is_array(value):
        return Indexed(0, length(value), 1, lambda i: array_read(value, i))
    if is_tensor(value):
        return Indexed(0, length(value), 1, lambda i: value[position(i)])
    return None


def for_loop(iterable: Iterable[Any], take: Callable[[Any], None], test: Test, body: Test, state: State) -> None:
    """Run `take(item)` and `body` for each item while `test()` holds.

    The rows of a tensor become a loop of the program. Python iterates over other items.
    """
    over = indexed(iterable)
    if over is None:
        every = replace(state, read=state.names)  # the next iteration may read all
        for item in iterable:
            going = test()
            if not is_tensor(going):
                if not going:
                    return

            def once(item: Any = item) -> None:
                take(item)
                body()

            branch(going, once, lambda: None, every)
        return
    counter = [over.start if is_tensor(over.start) else number(over.start)]

    def put(values: tuple[Any, ...]) -> None:
        state.set(values[:-1])
        counter[0] = values[-1]

    def going_on() -> Any:
        return logical_and(test, lambda: over.holds(counter[0]))

    def step() -> None:
        i = counter[0]
        take(over.item(i))
        body()
        counter[0] = i + over.step

    names = (*state.names, "the loop's counter")
    read = (*state.read, names[-1])
    whole = State(names, lambda: (*state.get(), counter[0]), put, read, state.lists)
    while_loop(going_on, step, whole)


def logical_and(*tests: Test) -> Any:
    """Return `a and b and ...`."""
    return _logical("logical_and", False, tests)


def logical_or(*tests: Test) -> Any:
    """Return `a or b or ...`."""
    return _logical("logical_or", True, tests)


def _logical(operator: str, decided: bool, tests: Iterable[Test]) -> Any:
    found: Any = not decided
    for test in tests:
        if is_tensor(found):
            value = test()
            if is_tensor(value):
                found = emit(operator, {"X": condition(found), "Y": condition(value)})
            elif bool(value) is decided:
                return value
        elif bool(found) is decided:
            return found
        else:
            found = test()
    return found


def logical_not(value: Any) -> Any:
    """Return `not value`."""
    return emit("logical_not", {"X": condition(value)}) if is_tensor(value) else not value


def choose(test: Any, body: Test, orelse: Test) -> Any:
    """Return `body() if test else orelse()`."""
    return branch(test, body, orelse)


def python_bool(value: Any) -> bool:
    """Return `bool(value)`. Raises UnsupportedError for a tensor."""
    if is_tensor(value):
        raise errors.UnsupportedError(
            f"{value.name}: a tensor cannot decide about a `return` within `try`; return after it"
        )
    return bool(value)
