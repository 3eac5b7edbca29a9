"""Bringing batches to a device before the step that takes them, with the padding of ragged rows already done."""
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid.compile.buckets import Buckets
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.ragged import Ragged


class Placed(LoDTensor):
    """Rows in sequences, on the host as users see them, and padded on a device as a step takes them."""

    def __init__(self, tensor: LoDTensor, padded: Ragged):
        super().__init__(tensor._value)
        self._lod = tensor._lod
        self._padded: Ragged | None = padded

    def set(self, array: Any, place: Any = None) -> None:
        """As LoDTensor.set; the padded rows no longer count."""
        super().set(array, place)
        self._padded = None

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """As LoDTensor.set_lod; the padded rows no longer count."""
        super().set_lod(lod)
        self._padded = None

    def padded(self) -> Ragged | None:
        """The rows on the device; None once the tensor was set to others."""
        return self._padded


class Placer:
    """Brings batches to devices. It remembers the sizes that it padded ragged rows to, as a compiled step does."""

    def __init__(self) -> None:
        self._buckets = Buckets()

    def place(self, batch: Mapping[str, LoDTensor], device: jax.Device) -> dict[str, LoDTensor]:
        """The batch with its values on the device. Nothing else may hold the arrays of `batch`."""
        padded = self._buckets.pad({name: tensor if tensor._lod else tensor._value for name, tensor in batch.items()})
        with jax.enable_x64(True):
            values = jax.device_put(padded, device)
        return {name: Placed(batch[name], value) if isinstance(value, Ragged) else LoDTensor(value)
                for name, value in values.items()}


def ready(feeds: Mapping[str, Any], device: jax.Device, exact: bool) -> dict[str, Any]:
    """Checked feeds for a step on `device`: with what is on the device already, in place of the host's copy.

    A step that takes `exact` rows gets those of the host.
    """
    return {name: _ready(value, device, exact) for name, value in feeds.items()}


def _ready(value: Any, device: jax.Device, exact: bool) -> Any:
    if isinstance(value, Placed) and not exact:
        padded = value.padded()
        if padded is not None:
            value = padded
    if isinstance(value, Ragged | jax.Array) and any(leaf.devices() != {device} for leaf in _arrays(value)):
        with jax.enable_x64(True):
            return jax.device_put(value, device)
    return value


def _arrays(value: Any) -> list[Any]:
    return [value] if isinstance(value, jax.Array) else [leaf for leaf in jax.tree.leaves(value)
                                                         if not isinstance(leaf, np.ndarray)]
