"""Copies of batches to a device ahead of the step, with ragged rows already padded."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import jax
import numpy as np

from jfluid.compile.runtime.executables import Executables
from jfluid.compile.runtime.feed_signature import FeedSignature, signature_of
from jfluid.compile.runtime.slots import SlotBuckets, opened
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.ragged import Ragged, is_counted

Signatures = dict[str, FeedSignature | None]
# one program, where each slot would be one
_opened_there = Executables(lambda: jax.jit(lambda values: opened(values)))


class PlacedBatch:
    """Batch on a device.

    Attributes:
        values: by name, in the form that segments take (see `SlotBuckets.join`).
        signatures: the signature of each tensor.
    """

    def __init__(self, values: Mapping[str, Any], signatures: Signatures, device: jax.Device):
        self.values, self.signatures, self.device = values, signatures, device
        self._opened: Mapping[str, Any] | None = None

    def value(self, name: str) -> Any:
        """Return the array or `Ragged` of one tensor."""
        if self._opened is None:
            divide = opened if reads_host_memory(self.device) else _opened_there
            with jax.enable_x64(True):
                self._opened = divide(self.values)
        return self._opened[name]


class DeviceTensor(LoDTensor):
    """Tensor of a placed batch: unpadded on the host for users, padded on a device for the step."""

    def __init__(self, name: str, tensor: LoDTensor, batch: PlacedBatch):
        super().__init__(tensor.value)
        self._lod = tensor._lod
        self._name = name
        self._batch: PlacedBatch | None = batch

    def set(self, array: Any, place: Any = None) -> None:
        """Set the array, as LoDTensor.set; discard the value on the device."""
        super().set(array, place)
        self._batch = None

    def set_lod(self, lod: Sequence[Sequence[int] | np.ndarray[Any, Any]]) -> None:
        """Set the lod, as LoDTensor.set_lod; discard the value on the device."""
        super().set_lod(lod)
        self._batch = None

    @property
    def signature(self) -> FeedSignature | None:
        """The signature of the value on the device; None after the tensor was set."""
        return None if self._batch is None else self._batch.signatures[self._name]

    def device_value(self) -> Any:
        """Return the array or `Ragged` on the device, or None after the tensor was set."""
        return None if self._batch is None else self._batch.value(self._name)


_NAME, _BATCH = attrgetter("_name"), attrgetter("_batch")


def batch_of(feed: Mapping[str, Any]) -> PlacedBatch | None:
    """Return the batch on a device that a feed is, all of it as a loader has made it; None for any other feed."""
    values = feed.values()
    if set(map(type, values)) != {DeviceTensor}:
        return None
    (batch, *others) = set(map(_BATCH, values))
    if others or batch is None or len(feed) != len(batch.signatures):
        return None
    return batch if list(map(_NAME, values)) == list(feed) else None


class FeedPlacer:
    """Copier of batches to devices.

    It reuses the sizes to which it has padded ragged rows, as a compiled step does.
    """

    def __init__(self) -> None:
        self._buckets = SlotBuckets()
        self._signatures: Signatures = {}

    def place(self, batch: Mapping[str, LoDTensor], device: jax.Device) -> dict[str, LoDTensor]:
        """Return the batch with its values on the device. The caller must not keep the arrays of `batch`."""
        given = {name: tensor if tensor._lod else tensor.value for name, tensor in batch.items()}
        values = self._buckets.join(given)
        if not reads_host_memory(device):
            with jax.enable_x64(True):
                values = jax.device_put(values, device)
        signatures = {name: _on_device(signature_of(tensor)) for name, tensor in batch.items()}
        if signatures != self._signatures:
            self._signatures = signatures
        found = PlacedBatch(values, self._signatures, device)
        return {name: DeviceTensor(name, tensor, found) for name, tensor in batch.items()}


def _on_device(signature: FeedSignature | None) -> FeedSignature | None:
    return signature and signature._replace(kind=DeviceTensor)


def reads_host_memory(device: jax.Device) -> bool:
    """Return True if the device's programs read NumPy arrays in place."""
    return bool(device.platform == "cpu")


def ready(feeds: Mapping[str, Any], device: jax.Device, exact: bool, counts: bool = True) -> dict[str, Any]:
    """Return checked feeds for a step on `device`: the device values of tensors that have one.

    A step that needs `exact` rows gets the host's values, and without `counts` a step for exact numbers of sequences.
    """
    return {name: _ready(value, device, exact, counts) for name, value in feeds.items()}


def _ready(value: Any, device: jax.Device, exact: bool, counts: bool) -> Any:
    if isinstance(value, DeviceTensor):
        found = None if exact and value._lod else value.device_value()
        if is_counted(found) and (exact or not counts):
            found = None if value._lod else value.value
        value = value if found is None else found
    array = value.values if type(value) is Ragged else value  # its offsets are where its rows are
    if type(array) is not np.ndarray and isinstance(array, jax.Array):
        if array.devices() != {device}:
            with jax.enable_x64(True):
                return jax.device_put(value, device)
    return value
