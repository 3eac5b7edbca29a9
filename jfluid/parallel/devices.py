"""The devices that replicas run on; virtual ones for the CPU."""

from collections.abc import Sequence
from typing import Any

import jax

from jfluid import environment, errors
from jfluid.parallel import notices
from jfluid.places import CPUPlace, CUDAPlace, cpu_number, cpu_places, cuda_places, prepare_cpus


def devices_of(places: Sequence[Any] | None, on_gpus: bool) -> list[jax.Device]:
    """Return the devices of places: those given, else all GPUs, else as many CPU devices as CPU_NUM
    says. Raises PlaceError.
    """
    if places is None or not len(places):
        places = cuda_places() if on_gpus else cpu_places()
        if not on_gpus and not environment.text("CPU_NUM"):
            notices.of_one_replica()
    if all(isinstance(p, CUDAPlace) for p in places):
        found = [p.device() for p in places]
        if len(set(found)) < len(found):
            raise errors.PlaceError(
                f"places: each GPU can be named only once, found {list(places)}"
            )
        return found
    if not all(isinstance(p, CPUPlace) for p in places):
        raise errors.PlaceError(f"places: expected CPUPlaces or CUDAPlaces, found {list(places)}")
    prepare_cpus(max(len(places), cpu_number()))
    there = jax.local_devices(backend="cpu")
    if len(there) < len(places):
        raise errors.PlaceError(
            f"{len(places)} replicas on the CPU were asked for, and JAX has started with {len(there)} CPU device(s). Set the "
            f"variable CPU_NUM={len(places)} before the program starts, or os.environ['CPU_NUM'] before the first run"
        )
    chosen: list[jax.Device] = there[: len(places)]
    return chosen
