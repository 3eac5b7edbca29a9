"""Free ports for processes that begin to listen some seconds later.

A port that the kernel gives (bind 0) may go to any other process in these seconds. So where Linux
says which ports the kernel gives, these are others, and a launcher reserves them against other
launchers of the machine for as long as it runs, however it ends.
"""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

# Kubernetes forwards those from 30,000 on (NodePort).
_PORTS = range(20_000, 30_000)
_GIVEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, reservations: ExitStack) -> list[int]:
    """Return free ports, which stay reserved until `reservations` ends."""
    if not _kernel_gives_others():
        return _given_by_kernel(count)
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        if _reserve(port, reservations) and is_free(port):
            found.append(port)
    return found if len(found) == count else _given_by_kernel(count)


def _kernel_gives_others() -> bool:
    try:
        return int(_GIVEN_BY_KERNEL.read_text().split()[0]) >= _PORTS.stop
    except (OSError, ValueError, IndexError):
        return False


def _reserve(port: int, reservations: ExitStack) -> bool:
    """Hold the abstract Unix socket named after a port; return False if a second launcher holds it.

    A network namespace has its abstract sockets to itself, as it has its ports.
    """
    reserved = reservations.enter_context(socket.socket(socket.AF_UNIX))
    try:
        reserved.bind(f"\0jfluid-launch-port-{port}")
    except OSError:
        reserved.close()
        return False
    return True


def is_free(port: int) -> bool:
    """Return True if no program listens at a port of this machine."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _given_by_kernel(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]
