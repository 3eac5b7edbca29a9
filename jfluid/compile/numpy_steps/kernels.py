"""NumPy rules of LLVM kernels for rows and products: an interpreted step compiles no call for each size."""

from typing import Any

import numpy as np

from jfluid.compile.numpy_steps.interpreter import rule


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
