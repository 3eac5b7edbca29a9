"""The devices that are checked."""

from dataclasses import dataclass
from typing import Any

import jax

import jfluid as fluid
from jfluid.check_device.report import Clock
from jfluid.places import CPUPlace, CUDAPlace, prepare_cpus

REPLICAS_ON_CPUS = 2


@dataclass(frozen=True)
class Devices:
    """Devices that programs are checked on.

    Attributes:
        places: all GPUs, or two devices of the CPU.
        quick: less of everything.
        clock: checks that would begin after its end are left out.
    """

    places: tuple[CPUPlace | CUDAPlace, ...]
    quick: bool
    clock: Clock

    @property
    def on_gpus(self) -> bool:
        """True if the devices are GPUs."""
        return isinstance(self.places[0], CUDAPlace)

    @property
    def first(self) -> jax.Device:
        """The device of programs that run on one."""
        return self.places[0].device()


def found(cpu: bool, quick: bool, clock: Clock) -> Devices:
    """Return all GPUs, or two devices of the CPU where there is none or where it is asked for.

    Starts JAX.
    """
    prepare_cpus(REPLICAS_ON_CPUS)
    gpus = 0 if cpu else fluid.core.get_cuda_device_count()
    if gpus:
        return Devices(tuple(CUDAPlace(i) for i in range(gpus)), quick, clock)
    return Devices((CPUPlace(),) * REPLICAS_ON_CPUS, quick, clock)


class On:
    """Stand-in for jfluid that replaces the CPU by a different place."""

    def __init__(self, place: CPUPlace | CUDAPlace):
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(fluid, name)

    def CPUPlace(self) -> CPUPlace | CUDAPlace:  # Fluid's name
        return self._place
