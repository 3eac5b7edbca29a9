"""Layouts of convolution filters between steps: filters keep the kernel's layout (HWIO on CPUs).

A step with Fluid's layout transposes each filter before its convolution, and its gradient back: a tenth of a step of
YOLOv3 on CPUs, two or three kernels for each filter on GPUs. So a tensor of the Scope may be pending on a `Held`:
reading the tensor transposes the filter back.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, contains, is_
from typing import Any

import jax
import numpy as np

from jfluid.compile.lowering.plan import Plan
from jfluid.compile.rewrites.image_convolution import HELD
from jfluid.compile.rewrites.traced_value import Order, inverse
from jfluid.ir.operator import Operator
from jfluid.lod_tensor import LoDTensor

_PENDING = attrgetter("_pending")
_ON_CPUS = ("conv2d", "depthwise_conv2d", "conv3d")
_ON_GPUS: dict[str, Order] = {"conv2d": (0, 2, 3, 1), "conv2d_transpose": (1, 2, 3, 0)}
# The compute capability of NVIDIA's GPUs from which on XLA has images and filters of all dtypes channels
# last for cuDNN.
_HOPPER = 9.0


def of(plan: Plan, device: jax.Device) -> dict[str, Order]:
    """Return the layout of each filter, and of the filter's optimizer state, that a plan reads from the Scope.

    Only a plan of one XLA segment has layouts, and only filters that are not fetched.
    """
    if len(plan.segments) != 1 or plan.segments[0].host:
        return {}

    def variable(name: str) -> Any:
        return plan.block.find_var_recursive(name)

    def shape(name: str) -> Sequence[int] | None:
        return None if (found := variable(name)) is None else found._shape

    return {
        name: order
        for name, order in wanted([op for _, op, _ in plan.segments[0].ops], shape, device).items()
        if variable(name).persistable and name in plan.state and name not in plan.fetches
    }


def wanted(
    ops: Sequence[Operator], shape: Callable[[str], Sequence[int] | None], device: jax.Device
) -> dict[str, Order]:
    """Return the layout of each filter of convolutions, and of the filter's optimizer state.

    Args:
        shape: returns the shape of a variable, or None for an unknown shape.
    """
    if device.platform == "cpu":
        filters = _on_cpus(ops, shape)
    elif _capability(device) >= _HOPPER:
        filters = _on_gpus(ops, shape)
    else:
        return {}
    orders = dict(filters)
    for op in ops:
        if "Param" in op.inputs and op.input("Param")[0] in filters:
            orders.update(dict.fromkeys(op.input_arg_names, filters[op.input("Param")[0]]))
    ranks = {name: len(sizes) for name in orders if (sizes := shape(name)) is not None}
    return {name: order for name, order in orders.items() if ranks.get(name) == len(order)}


def _on_cpus(ops: Sequence[Operator], shape: Callable[[str], Sequence[int] | None]) -> dict[str, Order]:
    found = {}
    for name in [op.input("Filter")[0] for op in ops if op.type in _ON_CPUS]:
        sizes = shape(name)
        if sizes is not None and len(sizes) in HELD:
            found[name] = HELD[len(sizes)]
    return found


def _on_gpus(ops: Sequence[Operator], shape: Callable[[str], Sequence[int] | None]) -> dict[str, Order]:
    found = {}
    for op in [op for op in ops if op.type in _ON_GPUS]:
        (name,), order = op.input("Filter"), _ON_GPUS[op.type]
        sizes = shape(name)
        if sizes is not None:
            moved = [d for d in order if sizes[d] > 1]
            if moved != sorted(moved):  # it is not the same in both orders
                found[name] = order
    return found


def _capability(device: jax.Device) -> float:
    """Return the compute capability of an NVIDIA GPU, 0 for any other device."""
    found = str(getattr(device, "compute_capability", ""))
    return float(found) if re.fullmatch(r"\d+\.\d", found) else 0.0


class Held:
    """Pending value of a tensor in the kernel's layout. Reading the tensor transposes it (see `LoDTensor.expect`).

    Attributes:
        value: the array in that layout.
    """

    def __init__(self, tensor: LoDTensor, value: jax.Array, order: Order):
        self._tensor, self.order, self._lock = tensor, order, threading.Lock()
        self.value = turned(value, order)
        tensor.expect(self)

    def finish(self) -> None:
        """Give the tensor its value."""
        with self._lock:
            if self._tensor._pending is self:
                self._tensor.settle(self, turned(self.value, inverse(self.order)))


class HeldTensors:
    """Tensors of a step that have a pending value in the kernel's layout.

    Args:
        home: returns the sharding of a variable.

    Attributes:
        holders: the `Held` of each of `names`, as of the last `hold`.
    """

    def __init__(
        self,
        tensors: Mapping[str, LoDTensor],
        orders: Mapping[str, Order],
        home: Callable[[str], jax.sharding.Sharding],
    ):
        self.names, self.holders = list(tensors), list[Held]()
        self._tensors = list(tensors.values())
        self._places = [(orders[n], home(n)) for n in tensors]
        self._values = [vars(tensor) for tensor in self._tensors]

    def are_held(self) -> bool:
        """Return True if no tensor was read or set since the last `hold`."""
        return (
            len(self.holders) == len(self._tensors)
            and all(map(is_, map(_PENDING, self._tensors), self.holders))
            and not any(map(contains, self._values, repeat("value")))
        )

    def open(self) -> list[tuple[str, LoDTensor]]:
        """Return the tensors without a pending value in their layout, with their names."""
        return [
            (name, tensor)
            for name, tensor, place in zip(self.names, self._tensors, self._places)
            if not _holds(tensor, *place)
        ]

    def hold(self) -> None:
        """Make all values pending. The values are already on their devices.

        Steps share pending values of the same layout.
        """
        self.holders = [
            tensor._pending if _holds(tensor, *place) else Held(tensor, tensor.value, place[0])  # type: ignore[misc]
            for tensor, place in zip(self._tensors, self._places)
        ]


def _holds(tensor: LoDTensor, order: Order, home: jax.sharding.Sharding) -> bool:
    pending = tensor._pending
    if "value" in vars(tensor) or not isinstance(pending, Held):
        return False
    return pending.order == order and pending.value.sharding == home


def turned(value: jax.Array, order: Order) -> jax.Array:
    """Return an array transposed to a layout, by way of the host: nothing is compiled."""
    array = np.ascontiguousarray(np.asarray(value).transpose(order))
    with jax.enable_x64(True):
        return jax.device_put(array, value.sharding, may_alias=True)  # type: ignore[no-any-return]


def given(value: jax.Array, order: Order) -> jax.Array:
    """Return a traced value, which has a layout, in the program's layout."""
    return jax.lax.transpose(value, inverse(order))
