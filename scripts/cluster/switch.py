"""A network of virtual hosts, as one process: packets between them are delayed, lost and slowed down.

It makes a TUN device in each network namespace that it is given, and carries IP packets from one to
the other by their address. It does in a process what Linux's netem does in a kernel that has it.

    python -m scripts.cluster.switch NAMESPACE=IPV4,IPV6 ...

reads lines from its standard input until that ends: `delay SECONDS`, `loss PROBABILITY`,
`rate BYTES_PER_SECOND` (of each host's way into the network; 0 has no bound), `down NAMESPACE`,
`up NAMESPACE`; it answers each with a line, and the first one when the network is there.
"""

import ctypes
import fcntl
import heapq
import ipaddress
import os
import random
import selectors
import struct
import sys
import time
from collections.abc import Callable, Iterator

DEVICE = "net0"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_LARGEST_PACKET = 1 << 16
# What a host may have on its way into the network before packets are dropped, as by a router.
_LONGEST_QUEUE_S = 0.5


class Switch:
    """Carries packets between hosts.

    Args:
        carry: puts a packet into the device of a host, by the host's number.
        addresses: the packed addresses of each host.
        clock: returns seconds.
    """

    def __init__(
        self,
        carry: Callable[[int, bytes], None],
        addresses: list[list[bytes]],
        clock: Callable[[], float] = time.monotonic,
        seed: int = 0,
    ):
        self._carry, self._clock = carry, clock
        self._host_of = {address: host for host, own in enumerate(addresses) for address in own}
        self._free_at = [0.0] * len(addresses)  # when each host's way into the network is free
        self._down: set[int] = set()
        self._random = random.Random(seed)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self.delay = self.loss = self.rate = 0.0

    def set_link(self, host: int, is_up: bool) -> None:
        """Connect a host with the network, or cut it off."""
        (self._down.discard if is_up else self._down.add)(host)

    def take(self, source: int, packet: bytes) -> None:
        """Take a packet that a host sends."""
        kind = packet[0] >> 4
        target = self._host_of.get(packet[16:20] if kind == 4 else packet[24:40])
        if target is None or self._down & {source, target} or self._random.random() < self.loss:
            return
        leaves = now = self._clock()
        if self.rate:
            leaves = max(now, self._free_at[source]) + len(packet) / self.rate
            if leaves > now + _LONGEST_QUEUE_S:
                return
            self._free_at[source] = leaves
        if leaves + self.delay <= now:
            self._carry(target, packet)
            return
        self._number += 1  # packets of one moment keep their order
        heapq.heappush(self._under_way, (leaves + self.delay, self._number, target, packet))

    def deliver(self) -> float | None:
        """Deliver what has arrived by now; returns seconds until the next packet does, if any."""
        while self._under_way and (wait := self._under_way[0][0] - self._clock()) <= 0:
            _, _, target, packet = heapq.heappop(self._under_way)
            if target not in self._down:
                self._carry(target, packet)
        return wait if self._under_way else None


def _device_in(namespace: str) -> int:
    """Return a TUN device that is in a network namespace, while this process stays where it is."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        handle = os.open(path, os.O_RDONLY)
        if libc.setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        os.close(handle)

    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    enter(f"/run/netns/{namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request.ljust(40, b"\0"))
    enter(f"/proc/self/fd/{own}")
    os.close(own)
    return device


def _command(switch: Switch, names: list[str], line: str) -> None:
    word, _, value = line.partition(" ")
    if word in ("up", "down"):
        switch.set_link(names.index(value), word == "up")
    elif word in ("delay", "loss", "rate"):
        setattr(switch, word, float(value))
    else:
        raise ValueError(f"unknown command: {line}")


def _packets(device: int) -> Iterator[bytes]:
    try:
        while True:
            yield os.read(device, _LARGEST_PACKET)
    except BlockingIOError:
        return


def main(arguments: list[str]) -> None:
    names = [argument.partition("=")[0] for argument in arguments]
    addresses = [
        [ipaddress.ip_address(text).packed for text in argument.partition("=")[2].split(",")] for argument in arguments
    ]
    devices = [_device_in(name) for name in names]

    def carry(host: int, packet: bytes) -> None:
        try:
            os.write(devices[host], packet)
        except (BlockingIOError, OSError):  # a full queue, or a device that is down
            pass

    switch = Switch(carry, addresses)
    selector = selectors.DefaultSelector()
    for host, device in enumerate(devices):
        selector.register(device, selectors.EVENT_READ, host)
    selector.register(sys.stdin, selectors.EVENT_READ, -1)
    print("ready", flush=True)
    wait: float | None = None
    while True:
        for key, _ in selector.select(wait):
            if key.data >= 0:
                for packet in _packets(key.fd):
                    switch.take(key.data, packet)
                continue
            line = sys.stdin.readline()
            if not line:
                return
            _command(switch, names, line.strip())
            print("done", flush=True)
        wait = switch.deliver()


if __name__ == "__main__":
    main(sys.argv[1:])
