"""Checked calls of LLVM kernels from a step: the only way to call a kernel.

A call checks the kernel's extents against its arrays while the step is traced; shapes are static after that.
Indices in arrays are bounded where a kernel reads them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.host import aligned_memory
from jfluid.machine_code import kernel_registry
from jfluid.machine_code.extents import Extents

_MOST = 2**31  # numbers of a call are int32


def call(
    name: str,
    given: Sequence[Array],
    numbers: Mapping[str, int],
    made: Sequence[tuple[Sequence[int], Any]],
    **options: Any,
) -> Sequence[Array]:
    """Call a kernel.

    Args:
        given: the input arrays.
        numbers: the geometry: numbers by name.
        made: shape and dtype of each result.
        options: of `jax.ffi.ffi_call`.

    Raises ShapeError for arrays or numbers with which the kernel would access memory out of bounds.
    """
    results = [jax.ShapeDtypeStruct(tuple(shape), kind) for shape, kind in made]
    names = kernel_registry.group_of(name).geometry
    ordered = [int(numbers[number]) for number in names]
    extents = checked(name, ordered)
    for what, arrays, wanted in (("given", given, extents.given), ("made", results, extents.made)):
        _hold_sizes(name, what, arrays, wanted)
    found: Sequence[Array] = jax.ffi.ffi_call(name, results, **options)(*given, np.array(ordered, np.int32))
    return found


def call_on_flat(
    name: str,
    given: Sequence[Any],
    numbers: Any,
    made: Sequence[Any],
    room: int,
    compiled: Callable[[str, int, int, int], Callable[..., Sequence[Array]]],
) -> Sequence[Array]:
    """Call a kernel outside of a step, on flat float32 arrays with room for more than its extents.

    One executable serves all geometries of the same room: a kernel reads its extents from its geometry.

    Args:
        given: the input arrays, of any shapes.
        numbers: int32, the geometry in the kernel's order.
        made: shape and dtype of each result.
        room: size of the flat arrays.
        compiled: returns the compiled function `on_flat` of the same arguments.

    Returns:
        float32 [room] for each result, which begins with the result.

    Raises ShapeError for arrays or numbers with which the kernel would access memory out of bounds.
    """
    extents = checked(name, numbers.tolist())
    _hold_sizes(name, "given", given, extents.given)
    _hold_sizes(name, "made", made, extents.made)
    if any(array.size > room for array in (*given, *made)):
        raise errors.ShapeError(f"machine code {name}: expected arrays of at most {room} numbers")
    return compiled(name, len(given), len(made), room)([_flat(array, room) for array in given], numbers)


def _flat(array: Any, room: int) -> Any:
    flat = aligned_memory.empty((room,), np.float32)
    flat[: array.size].reshape(array.shape)[...] = array
    return flat


def on_flat(name: str, given: int, made: int, room: int) -> Callable[..., Sequence[Array]]:
    """Return the function that calls a kernel on `given` flat arrays, for `made` flat results."""
    results = [jax.ShapeDtypeStruct((room,), np.float32)] * made

    def run(arrays: Sequence[Any], numbers: Any) -> Sequence[Array]:
        found: Sequence[Array] = jax.ffi.ffi_call(name, results)(*arrays, numbers)
        return found

    return run


def checked(name: str, numbers: Sequence[int]) -> Extents:
    """Return the extents of a kernel for its geometry, in the kernel's order.

    Raises ShapeError for a geometry that the kernel does not support.
    """
    found = _checked(name, tuple(numbers))
    if isinstance(found, str):
        raise errors.ShapeError(f"machine code {name}: {found}")
    return found


@functools.lru_cache(4096)
def _checked(name: str, numbers: tuple[int, ...]) -> Extents | str:
    group = kernel_registry.group_of(name)
    known = dict(zip(group.geometry, numbers, strict=True))
    extents = group.extents(name, SimpleNamespace(**known))
    for number, value in known.items():
        if not 0 <= value < _MOST:
            return f"expected {number} from 0 to 2^31 - 1, found {value}"
    wanted = [("as much memory as a thread needs", known["memory"] >= extents.memory)]
    for what, holds in [*wanted, *extents.holds]:
        if not holds:
            return f"expected {what}, found {known}"
    return extents


def _hold_sizes(name: str, what: str, arrays: Sequence[Any], wanted: Sequence[Any]) -> None:
    if len(arrays) != len(wanted):
        raise errors.ShapeError(f"machine code {name}: expected {len(wanted)} arrays {what}, found {len(arrays)}")
    for i, (array, extent) in enumerate(zip(arrays, wanted)):
        if array.dtype != extent.kind or array.size != extent.size:
            raise errors.ShapeError(
                f"machine code {name}: array {i} that is {what}: expected {extent.size} numbers of "
                f"{np.dtype(extent.kind)}, found {array.dtype} {list(array.shape)}"
            )
