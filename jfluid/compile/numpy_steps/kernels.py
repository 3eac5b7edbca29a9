"""Rules of LLVM kernels: an interpreted step compiles no call of a kernel for each size.

NumPy computes rows and products. Kernels of convolutions run as they are, on flat arrays of a few sizes.
"""

import functools
from typing import Any

import jax
import numpy as np

from jfluid.caches import kept_files
from jfluid.compile.numpy_steps.interpreter import rule
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

    function, folder = jax.jit(calls.on_flat(name, given, made, room)), kept_files.folder()
    if folder is None:
        return function
    geometry = np.zeros(len(kernel_registry.group_of(name).geometry), np.int32)
    arguments = [np.empty(room, np.float32)] * given, geometry
    device = jax.local_devices(backend="cpu")[0]
    entry = executable_cache.DiskEntry(folder, ("on_flat", name, given, made, room), [device], {})
    load_or_compile = entry.prepare(lambda: function.trace(*arguments), arguments)
    return load_or_compile() if load_or_compile else function


def _room(size: int) -> int:
    """Return the size of arrays that hold `size` numbers."""
    return next((room for room in _ROOMS if room >= size), 1 << (size - 1).bit_length())
