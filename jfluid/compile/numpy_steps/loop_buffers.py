"""Buffers of loops, written in place: an iteration of a loop writes a slice and copies no buffer.

A trace has no writes: each update of a slice is a new array. XLA finds the updates that may be written in place, and
NumPy would copy the whole buffer in each iteration. A value that a loop carries is a buffer of the loop if each
iteration only reads slices of it and passes it through updates of slices and through sums. Gradients of a read slice
are sums with an array that is zero elsewhere; the buffer then takes the sum of the slice alone.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfluid.compile.numpy_steps.operation import NumpyOperation

_DONE = "written in place"


def window(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Any]) -> tuple[slice, ...]:
    """Return the index of a slice of an array, moved into the array as XLA does."""
    found = []
    for whole, size, start in zip(shape, sizes, starts):
        first = min(max(int(start), 0), whole - size)
        found.append(slice(first, first + size))
    return tuple(found)


class _Step(NamedTuple):
    """Operation on a buffer, written in place."""

    at: int  # number of the operation
    gone: int | None  # number of an operation that the step replaces
    operation: NumpyOperation


def in_place(
    operations: Sequence[NumpyOperation], carried: Sequence[tuple[int, int]], outputs: Sequence[int], zeros: set[int]
) -> tuple[list[NumpyOperation], list[int]]:
    """Return the operations of a loop's body with writes in place, and the numbers of the carried values that own them.

    Args:
        carried: the places of each carried value before and after an iteration.
        outputs: the places of all results of an iteration.
        zeros: the places of arrays of zeros that no iteration makes.
    """
    found, owned = list(operations), []
    for number, (before, after) in enumerate(carried):
        if before != after and (changed := _written(found, before, after, outputs, zeros)) is not None:
            found = changed
            owned.append(number)
    return found, owned


def _written(
    operations: list[NumpyOperation], before: int, after: int, outputs: Sequence[int], zeros: set[int]
) -> list[NumpyOperation] | None:
    """Return the operations with one carried value written in place; None if it is no buffer."""
    if outputs.count(after) != 1:
        return None
    made = {place: at for at, operation in enumerate(operations) for place in operation.results}
    readers: dict[int, list[int]] = {}
    for at, operation in enumerate(operations):
        for place in set(operation.operands):
            readers.setdefault(place, []).append(at)
    steps: dict[int, _Step] = {}
    # Numbers of reads of slices: all, and by number of a step the reads that must move before the step.
    copied = set[int]()
    reads: dict[int, list[int]] = {}
    place = before
    while place != after:
        here = readers.get(place, [])
        writes = [at for at in here if operations[at].name != "dynamic_slice"]
        if place in outputs or len(writes) != 1:
            return None
        step = _step(operations, writes[0], place, made, readers, outputs, zeros)
        if step is None:
            return None
        copied.update(at for at in here if at != step.at)
        reads[step.at] = [at for at in here if at > step.at]
        if any(made.get(p, -1) >= step.at for at in reads[step.at] for p in operations[at].operands):
            return None  # a read that cannot go before the write
        steps[step.at] = step
        place = operations[step.at].results[0]
    if any(operations[at].name != "dynamic_slice" for at in readers.get(after, [])):
        return None
    copied.update(readers.get(after, []))
    moved = {at for own in reads.values() for at in own}
    gone = {step.gone for step in steps.values()}
    found = []
    for at, operation in enumerate(operations):
        if at in steps:
            found += [_copying(operations[i]) for i in reads[at]]
            found.append(steps[at].operation)
        elif at not in moved and at not in gone:
            found.append(_copying(operation) if at in copied else operation)
    return found


def _step(
    operations: Sequence[NumpyOperation],
    at: int,
    place: int,
    made: Mapping[int, int],
    readers: Mapping[int, Sequence[int]],
    outputs: Sequence[int],
    zeros: set[int],
) -> _Step | None:
    """Return an operation that writes a buffer and makes no new array; None for an operation of a different kind."""
    operation = operations[at]
    if operation.name == "dynamic_update_slice":
        first, *others = operation.operands
        return (
            _Step(at, None, operation._replace(name=_DONE, run=_write))
            if first == place and place not in others
            else None
        )
    if operation.name not in ("add", "add_any") or operation.operands.count(place) != 1:
        return None
    (other,) = (p for p in operation.operands if p != place)
    source = made.get(other, -1)
    if source >= 0 and operations[source].name == "dynamic_update_slice":
        of_zeros, *slice_of = operations[source].operands
        if of_zeros in zeros and readers[other] == [at] and other not in outputs and place not in slice_of:
            return _Step(at, source, operation._replace(name=_DONE, run=_add_slice, operands=[place, *slice_of]))
    return _Step(at, None, operation._replace(name=_DONE, run=_add, operands=[place, other]))


def _copying(operation: NumpyOperation) -> NumpyOperation:
    return operation._replace(run=functools.partial(_copy, operation.run))


def _copy(run: Callable[..., Any], *operands: Any) -> Any:
    return np.array(run(*operands))


def _write(buffer: Any, update: Any, *starts: Any) -> Any:
    buffer[window(buffer.shape, update.shape, starts)] = update
    return buffer


def _add_slice(buffer: Any, update: Any, *starts: Any) -> Any:
    buffer[window(buffer.shape, update.shape, starts)] += update
    return buffer


def _add(buffer: Any, other: Any) -> Any:
    return np.add(buffer, other, out=buffer)
