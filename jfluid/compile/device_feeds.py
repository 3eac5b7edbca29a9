"""Copies of batches to a device before the step that uses them, with ragged rows padded already."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid.compile.padding import Buckets
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.ragged import Ragged


class DeviceTensor(LoDTensor):
    """A tensor on the host, as users see it, and on a device, as a step uses it: rows in sequences
    are padded.
    """

    def __init__(self, tensor: LoDTensor, device_value: Any):
        super().__init__(tensor.value)
        self._lod = tensor._lod
        self._device_value = device_value

    def set(self, array: Any, place: Any = None) -> None:
        """As LoDTensor.set; discards the value on the device."""
        super().set(array, place)
        self._device_value = None

    def set_lod(self, lod: Sequence[Sequence[int] | np.ndarray[Any, Any]]) -> None:
        """As LoDTensor.set_lod; discards the value on the device."""
        super().set_lod(lod)
        self._device_value = None

    def device_value(self) -> Any:
        """An array or a `Ragged` on the device; None once the tensor was set."""
        return self._device_value


class FeedPlacer:
    """Copies batches to devices. It reuses the sizes to which it has padded ragged rows, as a
    compiled step does.
    """

    def __init__(self) -> None:
        self._buckets = Buckets()

    def place(self, batch: Mapping[str, LoDTensor], device: jax.Device) -> dict[str, LoDTensor]:
        """The batch with its values on the device. Nothing else may hold the arrays of `batch`."""
        values = self._buckets.pad(
            {name: tensor if tensor._lod else tensor.value for name, tensor in batch.items()}
        )
        if not _reads_host_memory(device):
            with jax.enable_x64(True):
                values = jax.device_put(values, device)
        return {name: DeviceTensor(batch[name], value) for name, value in values.items()}


def _reads_host_memory(device: jax.Device) -> bool:
    """Whether the device's programs read NumPy arrays in place."""
    return bool(device.platform == "cpu")


def ready(feeds: Mapping[str, Any], device: jax.Device, exact: bool) -> dict[str, Any]:
    """Checked feeds for a step on `device`: the device values of tensors that have one.

    A step that needs `exact` rows gets the host's values.
    """
    return {name: _ready(value, device, exact) for name, value in feeds.items()}


def _ready(value: Any, device: jax.Device, exact: bool) -> Any:
    if isinstance(value, DeviceTensor):
        value = value if exact and value._lod else value.device_value()
    array = value.values if type(value) is Ragged else value  # its offsets are where its rows are
    if type(array) is not np.ndarray and isinstance(array, jax.Array):
        if array.devices() != {device}:
            with jax.enable_x64(True):
                return jax.device_put(value, device)
    return value
