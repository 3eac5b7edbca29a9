"""Virtual hosts on this machine: network namespaces with names and addresses of their own.

    with VirtualHosts(3) as hosts:
        process = hosts.popen(0, ["jfluid-launch", ...])
        hosts.network(delay=0.02, loss=0.01)
        hosts.cut_off(2)

Nothing outside of the namespaces changes: they see each other, and neither this machine's network
nor that of other virtual hosts. It needs root, `ip` and /dev/net/tun (see `missing`).
"""

import ctypes
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.cluster.switch import DEVICE

# The command gets the host's name, a list of all names in place of the machine's, and its place.
_ENTER = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'
_ROOT = Path(__file__).parents[2]
_NEW_MOUNTS, _NEW_NAME, _NEW_NETWORK = (
    0x20000,
    0x4000000,
    0x40000000,
)  # as Linux calls its namespaces


@functools.cache
def missing() -> str:
    """Return why there can be no virtual hosts here; "" where there can. One is made to find out."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (Debian: apt-get install iproute2)"
    if not os.access("/dev/net/tun", os.W_OK):
        return "networks between namespaces need /dev/net/tun"
    try:
        with VirtualHosts(1) as hosts:
            hosts.run(0, ["true"], check=True, capture_output=True, timeout=20)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"this machine lets nobody make virtual hosts: {error}"
    return ""


@dataclass(frozen=True)
class Host:
    """One of the virtual hosts.

    Attributes:
        namespace: of its network.
        name: its host name.
        hosts_file: a list of all hosts' names, which stands there as /etc/hosts.
    """

    namespace: str
    name: str
    hosts_file: str

    def command(self, arguments: list[str]) -> list[str]:
        """Return a command that runs another one on this host."""
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--uts", "--mount"]
        return [*enter, "sh", "-c", _ENTER, self.name, self.hosts_file, *arguments]

    def enter(self) -> None:
        """Move this process to the host; it must have no other threads. Raises OSError."""
        system = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self.namespace}") as network:
            moved = system.setns(network.fileno(), _NEW_NETWORK)
        if moved or system.unshare(_NEW_NAME | _NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")
        socket.sethostname(self.name)
        _run("mount", "--make-rprivate", "/")
        _run("mount", "--bind", self.hosts_file, "/etc/hosts")


class VirtualHosts:
    """Hosts with the names host0, host1 ... and a network between them.

    Args:
        count: how many, up to 200.
        mtu: the largest packet in bytes: 1500 as on Ethernet, or a large one to be fast.
    """

    def __init__(self, count: int, mtu: int = 65000):
        self.names = [f"host{number}" for number in range(count)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        self.addresses6 = [f"fd77::{number + 1:x}" for number in range(count)]
        self._mtu = mtu
        self._namespaces = [f"jfluid-{os.getpid()}-{name}" for name in self.names]

    def __enter__(self) -> "VirtualHosts":
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jfluid-hosts-"))
            self._hosts_file = Path(folder) / "hosts"
            lines = ["127.0.0.1 localhost", "::1 localhost"]
            for name, address, address6 in zip(self.names, self.addresses, self.addresses6):
                lines += [f"{address} {name}", f"{address6} {name}-6"]
            self._hosts_file.write_text("\n".join(lines) + "\n")
            for namespace in self._namespaces:
                _run("ip", "netns", "add", namespace)
                stack.callback(_run, "ip", "netns", "del", namespace)
            self._switch = self._start_switch(stack)
            for namespace, v4, v6 in zip(self._namespaces, self.addresses, self.addresses6):
                for words in (
                    "link set lo up",
                    f"link set {DEVICE} mtu {self._mtu} up",
                    f"addr add {v4}/24 dev {DEVICE}",
                    f"addr add {v6}/64 dev {DEVICE} nodad",
                ):
                    _run("ip", "-n", namespace, *words.split())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start_switch(self, stack: ExitStack) -> "subprocess.Popen[str]":
        places = [
            f"{namespace}={v4},{v6}" for namespace, v4, v6 in zip(self._namespaces, self.addresses, self.addresses6)
        ]
        switch = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "scripts.cluster.switch", *places],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert switch.stdin and switch.stdout  # both are pipes
        stack.callback(switch.stdin.close)
        self._answered(switch)
        return switch

    @staticmethod
    def _answered(switch: "subprocess.Popen[str]") -> None:
        assert switch.stdout
        if not switch.stdout.readline():
            raise RuntimeError("the network between virtual hosts has ended")

    def _tell(self, line: str) -> None:
        assert self._switch.stdin
        self._switch.stdin.write(line + "\n")
        self._switch.stdin.flush()
        self._answered(self._switch)

    def network(self, delay: float = 0.0, loss: float = 0.0, rate: float = 0.0) -> None:
        """Change the network: seconds that a packet takes, the share of packets that are lost, and
        the bytes per second that a host can send (0: no bound).
        """
        for word, value in (("delay", delay), ("loss", loss), ("rate", rate)):
            self._tell(f"{word} {value}")

    def cut_off(self, host: int) -> None:
        """Take a host off the network: nobody is told, packets vanish."""
        self._tell(f"down {self._namespaces[host]}")

    def connect(self, host: int) -> None:
        """Bring a host back to the network."""
        self._tell(f"up {self._namespaces[host]}")

    def host(self, number: int) -> Host:
        """Return one of the hosts."""
        return Host(self._namespaces[number], self.names[number], str(self._hosts_file))

    def popen(self, host: int, arguments: list[str], **options: Any) -> "subprocess.Popen[Any]":
        """Start a process on a host; options as those of subprocess.Popen."""
        return subprocess.Popen(self.host(host).command(arguments), **options)

    def run(self, host: int, arguments: list[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
        """Run a command on a host; options as those of subprocess.run."""
        return subprocess.run(self.host(host).command(arguments), **options)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
