"""Pruners: choose the least important groups of a parameter, and remove the groups."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Pruner", "StructurePruner"]

Array = np.ndarray[Any, Any]


class Pruner:
    """Base class of pruners."""

    def prune(self, param: Any) -> None:
        """Prune a parameter. A subclass overrides this method, which changes nothing."""


class StructurePruner(Pruner):
    """A pruner of whole slices along an axis, such as the filters of a convolution.

    Args:
        pruning_axis: the axis by the parameter's name; "*" stands for all further parameters. None if each
            call names the axis.
        criterions: measure of a slice's importance, by the parameter's name; "*" stands for all further
            parameters. The only measure is "l1_norm".
    """

    def __init__(self, pruning_axis: Mapping[str, int] | None, criterions: Mapping[str, str]):
        self.pruning_axis, self.criterions = pruning_axis, criterions

    def cal_pruned_idx(self, name: str, param: Array, ratio: float, axis: int | None = None) -> Array:
        """Return the indices of the least important slices.

        Args:
            name: of the parameter.
            param: its value.
            ratio: the share of the slices that go.
            axis: of the slices; the pruner's own when None.

        Raises ValueError for another criterion, or where no axis is known.
        """
        criterion = self.criterions.get(name, self.criterions.get("*"))
        if criterion != "l1_norm":
            raise ValueError(f"StructurePruner, {name}: expected l1_norm, found {criterion!r}")
        if axis is None:
            axes = self.pruning_axis or {}
            axis = axes.get(name, axes.get("*"))
        if axis is None:
            raise ValueError(f"StructurePruner, {name}: give an axis, or one in pruning_axis")
        others = tuple(i for i in range(param.ndim) if i != axis)
        found: Array = np.argsort(np.abs(param).sum(axis=others))
        return found[: round(param.shape[axis] * ratio)]

    def prune_tensor(
        self, tensor: Array, pruned_idx: Sequence[int] | Array, pruned_axis: int, lazy: bool = False
    ) -> Array:
        """Return an array without some slices, or with zeros in their place.

        Args:
            tensor: the array.
            pruned_idx: the slices' indices.
            pruned_axis: their axis.
            lazy: True for zeros.
        """
        if not lazy:
            return np.delete(tensor, pruned_idx, pruned_axis)
        found = tensor.copy()
        np.moveaxis(found, pruned_axis, 0)[np.asarray(pruned_idx)] = 0
        return found
