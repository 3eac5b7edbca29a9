"""Bringing batches to a device before the step that takes them, with the padding of ragged rows already done."""
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid.compile.padding import Buckets
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.ragged import Ragged


class DeviceTensor(LoDTensor):
    """A tensor on the host, as users see it, and on a device, as a step takes it: rows in sequences are padded."""

    def __init__(self, tensor: LoDTensor, device_value: Any):
        super().__init__(tensor.value)
        self._lod = tensor._lod
        self._device_value = device_value

    def set(self, array: Any, place: Any = None) -> None:
        """As LoDTensor.set; what is on the device no longer counts."""
        super().set(array, place)
        self._device_value = None

    def set_lod(self, lod: Sequence[Sequence[int] | np.ndarray[Any, Any]]) -> None:
        """As LoDTensor.set_lod; what is on the device no longer counts."""
        super().set_lod(lod)
        self._device_value = None

    def device_value(self) -> Any:
        """An array or a `Ragged` on the device; None once the tensor was set to something else."""
        return self._device_value


class FeedPlacer:
    """Brings batches to devices. It remembers the sizes that it padded ragged rows to, as a compiled step does."""

    def __init__(self) -> None:
        self._buckets = Buckets()

    def place(self, batch: Mapping[str, LoDTensor], device: jax.Device) -> dict[str, LoDTensor]:
        """The batch with its values on the device. Nothing else may hold the arrays of `batch`."""
        values = self._buckets.pad({name: tensor if tensor._lod else tensor.value for name, tensor in batch.items()})
        if not _reads_host_memory(device):
            with jax.enable_x64(True):
                values = jax.device_put(values, device)
        return {name: DeviceTensor(batch[name], value) for name, value in values.items()}


def _reads_host_memory(device: jax.Device) -> bool:
    """Whether NumPy arrays lie where the device's programs read them."""
    return bool(device.platform == "cpu")


def ready(feeds: Mapping[str, Any], device: jax.Device, exact: bool) -> dict[str, Any]:
    """Checked feeds for a step on `device`: of what is placed, the values on the device.

    A step that takes `exact` rows gets those of the host.
    """
    return {name: _ready(value, device, exact) for name, value in feeds.items()}


def _ready(value: Any, device: jax.Device, exact: bool) -> Any:
    if isinstance(value, DeviceTensor):
        value = value if exact and value._lod else value.device_value()
    arrays = jax.tree.leaves(value) if isinstance(value, Ragged) else (value,)
    if any(isinstance(array, jax.Array) and array.devices() != {device} for array in arrays):
        with jax.enable_x64(True):
            return jax.device_put(value, device)
    return value
