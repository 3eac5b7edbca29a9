"""The devices that replicas run on; virtual ones for the CPU."""

from collections.abc import Sequence
from typing import Any

import jax
from jaxlib import xla_client

from jfluid import environment, errors, processes
from jfluid.parallel import notices
from jfluid.places import CPUPlace, CUDAPlace, cpu_number, cpu_places, cuda_places, prepare_cpus


def devices_of(places: Sequence[Any] | None, on_gpus: bool) -> list[jax.Device]:
    """Return the devices of places; the default is all GPUs, or `CPU_NUM` CPU devices.

    Raises PlaceError; for too many places on the CPU only in one of several processes.
    """
    if places is None or not len(places):
        places = cuda_places() if on_gpus else cpu_places()
        if not on_gpus and not environment.text("CPU_NUM"):
            notices.of_one_replica()
    if all(isinstance(p, CUDAPlace) for p in places):
        found = [p.device() for p in places]
        if len(set(found)) < len(found):
            raise errors.PlaceError(f"places: each GPU can be named only once, found {list(places)}")
        return found
    if not all(isinstance(p, CPUPlace) for p in places):
        raise errors.PlaceError(f"places: expected CPUPlaces or CUDAPlaces, found {list(places)}")
    return _cpus(len(places))


def _cpus(number: int) -> list[jax.Device]:
    """Return `number` CPU devices of this process, from the devices that JAX started with if there are enough."""
    prepare_cpus(max(number, cpu_number()))
    there: list[jax.Device] = jax.local_devices(backend="cpu")
    if len(there) < number:
        if processes.count() > 1:
            raise errors.PlaceError(
                f"{number} replicas on the CPU were asked for in each of {processes.count()} processes, and JAX has "
                f"started with {len(there)} CPU device(s): set CPU_NUM={number} before the processes join"
            )
        there = _later(number)
    return there[:number]


def _later(number: int) -> list[jax.Device]:
    """Return at least `number` CPU devices from a further XLA client.

    JAX cannot add CPU devices after its start. The client is made once (20 ms), and all later programs use it.
    """
    if not _clients or len(_clients[-1].local_devices()) < number:
        _clients.append(xla_client.make_cpu_client(num_devices=number))
    found: list[jax.Device] = _clients[-1].local_devices()
    return found


_clients: list[Any] = []  # each has more devices than the one before
