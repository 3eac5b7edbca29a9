"""Ports for servers that are told before they listen."""
import random
import socket

# Below the ports that connections take by themselves: a connection to a server that is not there could take its port.
_PORTS = range(10_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports at which nobody listens."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found += [port] * (port not in found)
    return found
