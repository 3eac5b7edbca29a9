"""Rules of LLVM kernels, and of functions of elements that NumPy lacks. None is compiled for each size.

NumPy computes rows and products. Kernels of convolutions run as they are, on flat arrays of a few sizes. XLA computes
the functions that NumPy lacks, on flat arrays of two sizes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jfluid.caches import kept_files
from jfluid.compile.numpy_steps.interpreter import plain, rule
from jfluid.compile.runtime import executable_cache

# Sizes of the flat arrays of a convolution: a kernel reads its extents from its geometry. Memory behind them is not
# touched.
_ROOMS = [8**power for power in range(4, 9)]


def _geometry(params: dict[str, Any], numbers: Any) -> dict[str, int]:
    from jfluid.machine_code import kernel_registry  # LLVM, which not all programs need

    names = kernel_registry.group_of(params["target_name"]).geometry
    return dict(zip(names, np.asarray(numbers).tolist(), strict=True))


def _inside(height: int, rows: Any) -> Any:
    return (rows >= 0) & (rows < height)


@rule("jfluid_product")
def _product(params: dict[str, Any], x: Any, y: Any, numbers: Any) -> list[Any]:
    geometry = _geometry(params, numbers)
    return [(x.T if geometry["x_turned"] == 0 else x) @ (y if geometry["y_turned"] == 0 else y.T)]


@rule("jfluid_row_take")
def _take(params: dict[str, Any], table: Any, rows: Any, numbers: Any) -> list[Any]:
    inside = _inside(len(table), rows)
    found = table[np.where(inside, rows, 0)]
    found[~inside] = np.nan
    return [found]


@rule("jfluid_row_put")
def _put(params: dict[str, Any], table: Any, rows: Any, values: Any, numbers: Any) -> list[Any]:
    inside, after = _inside(len(table), rows), table.copy()
    after[rows[inside]] = values[inside]
    return [after]


@rule("jfluid_row_add")
def _add(params: dict[str, Any], table: Any, rows: Any, values: Any, scale: Any, numbers: Any) -> list[Any]:
    inside, after = _inside(len(table), rows), table.copy()
    np.add.at(after, rows[inside], values[inside] * scale)
    return [after]


@rule("jfluid_row_merge")
def _merge(params: dict[str, Any], rows: Any, values: Any, numbers: Any) -> list[Any]:
    geometry = _geometry(params, numbers)
    inside = _inside(geometry["height"], rows)
    distinct, first, place = np.unique(rows[inside], return_index=True, return_inverse=True)
    order = np.argsort(first)  # rows stand in the order in which each came first
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    once = np.full(geometry["room"], geometry["height"], np.int64)
    once[: len(order)] = distinct[order]
    sums = np.zeros((geometry["room"], geometry["width"]), np.float32)
    np.add.at(sums, rank[place], values[inside])
    return [once, sums, np.array([len(order)], np.int64)]


@rule("jfluid_convolution_forward", "jfluid_convolution_gradient", "jfluid_convolution_images")
def _convolve(params: dict[str, Any], *operands: Any) -> list[Any]:
    """Run the kernel on flat arrays with room for more: one executable serves the layers and sizes of a net."""
    from jfluid.machine_code import calls  # LLVM, which not all programs need

    *given, numbers = operands
    made = params["results"]
    room = _room(max(value.size for value in (*given, *made)))
    found = calls.call_on_flat(params["target_name"], given, numbers, made, room, _compiled)
    return [np.asarray(flat)[: result.size].reshape(result.shape) for flat, result in zip(found, made)]


@functools.lru_cache(64)
def _compiled(name: str, given: int, made: int, room: int) -> Any:
    """Return the executable of a kernel's call on flat arrays, which later processes load."""
    from jfluid.machine_code import calls, kernel_registry

    geometry = np.zeros(len(kernel_registry.group_of(name).geometry), np.int32)
    arguments = [np.empty(room, np.float32)] * given, geometry
    return _kept(calls.on_flat(name, given, made, room), ("on_flat", name, given, made, room), arguments)


def _kept(run: Callable[..., Any], identity: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """Return the executable of a function for arguments, which later processes load."""
    function, folder = jax.jit(run), kept_files.folder()
    if folder is None:
        return function
    device = jax.local_devices(backend="cpu")[0]
    entry = executable_cache.DiskEntry(folder, identity, [device], {})
    load_or_compile = entry.prepare(lambda: function.trace(*arguments), arguments)
    return load_or_compile() if load_or_compile else function


def _room(size: int) -> int:
    """Return the size of arrays that hold `size` numbers."""
    return next((room for room in _ROOMS if room >= size), 1 << (size - 1).bit_length())


_LACKING = (lax.erf_p, lax.erfc_p, lax.erf_inv_p, lax.lgamma_p, lax.digamma_p)  # functions that NumPy lacks
_FEW, _MANY = 1 << 12, 1 << 16  # elements of a call


def _computed_by_xla(primitive: Any) -> Callable[[Any], Any]:
    """Return the rule of a primitive that XLA computes for each element: SciPy takes four times as long."""

    @functools.lru_cache(16)
    def compiled(dtype: np.dtype, size: int) -> Any:
        return _kept(primitive.bind, ("of_elements", primitive.name), (np.empty(size, dtype),))

    def run(x: Any) -> Any:
        found, given = np.empty(x.shape, x.dtype), np.ravel(x)
        size, flat = _FEW if given.size <= _FEW else _MANY, found.reshape(-1)
        for at in range(0, given.size, size):
            own = given[at : at + size]
            block = own if own.size == size else np.concatenate([own, np.zeros(size - own.size, x.dtype)])
            flat[at : at + size] = np.asarray(compiled(x.dtype, size)(block))[: own.size]
        return found

    return run


for _primitive in _LACKING:
    plain(_primitive.name)(_computed_by_xla(_primitive))
