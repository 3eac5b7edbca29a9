"""Ports for processes whose endpoints are told before they listen; where that can be avoided, bind
port 0 instead.

Each process of tests hands out ports of blocks of its own, which no other process takes while it
lives.
"""

import random
import socket

from jfluid.launch.free_ports import is_free

# Below those that the kernel gives to connections, one of which could take the port of a server that
# does not listen yet; and those that launchers give (jfluid/launch/free_ports.py).
_FIRST, _END, _BLOCK = 10_000, 20_000, 200
_ports = iter(range(0))  # what is left of this process's last block


def free_ports(count: int) -> list[int]:
    """Ports at which nobody listens, and which no other test is given, in whatever process of this
    machine.
    """
    found: list[int] = []
    while len(found) < count:
        port = next(_ports, None)
        if port is None:
            _take_block()
        elif is_free(port):
            found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]


def free_endpoints(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def _take_block() -> None:
    """Reserve a block: this process binds a Unix socket of its name until it ends, however it
    ends.
    """
    global _ports
    firsts = list(range(_FIRST, _END, _BLOCK))
    random.SystemRandom().shuffle(firsts)
    for first in firsts:
        reserved = socket.socket(socket.AF_UNIX)
        try:
            # an abstract name, of which there is one as there is of a port
            reserved.bind(f"\0jfluid-tests-ports-{first}")
        except OSError:
            reserved.close()
            continue
        reserved.detach()
        _ports = iter(range(first, first + _BLOCK))
        return
    raise RuntimeError(f"tests that still run have all ports from {_FIRST} to {_END - 1}")
