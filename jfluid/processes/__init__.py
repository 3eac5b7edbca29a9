"""Several processes that train together, through `jax.distributed`: NCCL between GPUs, gloo between CPUs."""

import socket
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jfluid import environment, errors
from jfluid.places import selected_gpus
from jfluid.processes import collective_watch

_joined: tuple[list[str], int] | None = None
_SECONDS_TO_MEET = 300


def join(endpoints: Sequence[str], trainer_id: int) -> None:
    """Join the processes at `endpoints` ("ip:port" each); JAX's coordinator uses the first one's port.

    The coordinator does not authenticate anybody, so it listens at that address alone; if processes
    reach it through another one, the variable JAX_COORDINATOR_BIND_ADDRESS tells it where to listen
    (docs/security.md).

    Call this before JAX starts, that is before the first program runs. A second call with the same
    arguments does nothing.

    Raises:
        ProgramError: the arguments are wrong, or differ from those of an earlier call.
        PlaceError: JAX has started already, other processes do not join, or the first cannot listen
            at its address.
    """
    global _joined
    endpoints = list(endpoints)
    if len(set(endpoints)) < len(endpoints) or not 0 <= trainer_id < len(endpoints):
        raise errors.ProgramError(
            f"expected different endpoints and the id of an endpoint, found id {trainer_id} of {endpoints}"
        )
    if _joined is not None:
        if _joined != (endpoints, trainer_id):
            raise errors.ProgramError(
                f"this process is trainer {_joined[1]} of {_joined[0]} already, and cannot be trainer "
                f"{trainer_id} of {endpoints} too"
            )
        return
    if len(endpoints) == 1:
        _joined = endpoints, trainer_id
        return
    from jfluid.environment.process import DeviceVariables

    listen = DeviceVariables.from_env().coordinator_bind_address or endpoints[0]
    if trainer_id == 0:
        _check_address(listen)
    try:
        jax.distributed.initialize(
            endpoints[0],
            len(endpoints),
            trainer_id,
            initialization_timeout=_SECONDS_TO_MEET,
            coordinator_bind_address=listen,
            **_gpus_of_this_process(),
        )
    except RuntimeError as error:
        if "before" in str(error):
            raise errors.PlaceError(
                "JAX has started before this process joined the job: run the startup program that "
                "transpile() prepared, or call fleet.init(), before any other program runs"
            ) from error
        raise errors.PlaceError(f"the trainers at {endpoints} did not meet: {error}") from error
    _joined = endpoints, trainer_id
    collective_watch.start(trainer_id)
    environment.tell_children(environment.JOINED, "1")


def join_job() -> None:
    """Join the other trainers of a collective job, if the environment names this process as a trainer.

    Nothing happens once JAX has started. The engine calls this function before it asks for a device.

    Scripts run their startup program before they say how they train: then it would be too late.

    Raises PlaceError where the other trainers do not come.
    """
    if not environment.text(environment.TRAINER_ENDPOINTS) or joined():
        return
    from jfluid.environment.process import RoleVariables

    role = RoleVariables.from_env()
    alone = len(role.trainer_endpoints) < 2 or role.trainer_id is None
    if not alone and not role.pserver_endpoints and not role.joined and not has_started():
        join(role.trainer_endpoints, role.trainer_id or 0)


def has_started() -> bool:
    """Return True if JAX has its devices, and no process can be joined any more."""
    before = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    try:  # JAX refuses another number once it has started
        jax.config.update("jax_num_cpu_devices", max(before, 0) + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", before)
    return False


def _check_address(endpoint: str) -> None:
    """Raise PlaceError for an address at which this machine cannot listen: JAX would end the process silently."""
    host, _, _ = endpoint.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError as error:
        raise errors.PlaceError(
            f"{endpoint}, at which the first trainer should listen, is no address of this machine ({error.strerror}): "
            "name an address of this machine, or set JAX_COORDINATOR_BIND_ADDRESS=HOST:PORT to the listening address"
        ) from None


def _gpus_of_this_process() -> dict[str, Any]:
    chosen = selected_gpus()
    return {"local_device_ids": list(chosen)} if chosen else {}


def joined() -> bool:
    """Return whether `join` was called."""
    return _joined is not None


def endpoints() -> list[str]:
    """Return the endpoints of the processes; none before `join`."""
    return list(_joined[0]) if _joined else []


def count() -> int:
    """Return how many processes train together."""
    return len(_joined[0]) if _joined else 1


def index() -> int:
    """Return the number of this process."""
    return _joined[1] if _joined else 0


def broadcast(value: Any) -> Any:
    """Return process 0's value: an array, or a pytree of arrays. All processes must call it."""
    if count() == 1:
        return value
    from jax.experimental import multihost_utils

    with jax.enable_x64(True), collective_watch.call("broadcast"):
        return multihost_utils.broadcast_one_to_all(value)


def all_gather(value: Any) -> np.ndarray:
    """Return the arrays of all processes, stacked. All processes must call it."""
    if count() == 1:
        return np.asarray(value)[None]
    from jax.experimental import multihost_utils

    with jax.enable_x64(True), collective_watch.call("gathering of values"):
        return np.asarray(multihost_utils.process_allgather(np.asarray(value)))


def all_devices(own: Sequence[jax.Device]) -> list[jax.Device]:
    """Return the devices of all processes that train together; `own` are this one's.

    Raises PlaceError if their numbers differ.
    """
    if count() == 1:
        return list(own)
    there = jax.local_devices(backend=own[0].platform)
    found = all_gather(np.array([len(own), *(there.index(d) for d in own)]))
    if (found[:, 0] != len(own)).any():
        raise errors.PlaceError(f"each process needs the same number of devices, found {found[:, 0].tolist()}")
    by_process: dict[int, list[jax.Device]] = {}
    for device in jax.devices(own[0].platform):
        by_process.setdefault(device.process_index, []).append(device)
    return [by_process[i][k] for i in range(count()) for k in found[i, 1:]]
