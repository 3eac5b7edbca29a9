"""Servers of a job that live in this process, can be killed, and are started again where they
were.
"""

import time

from jfluid import errors
from jfluid.ps_server import snapshot, specs
from jfluid.ps_server.client import Client
from jfluid.ps_server.server import Server, Settings
from jfluid.ps_server.store import Store
from tests.ports import free_ports

TOKEN = "a-token-of-the-job"
LIMIT_S = 120
# Rows and values of a call are above 64 KiB, so that buffers are used.
WIDTH = 16
ROWS = 2000
TABLE = specs.TableSpec(name="t", width=WIDTH, optimizer=specs.Sgd(learning_rate=1.0))
BLOCK = specs.BlockSpec(name="w", shape=(200, 100), optimizer=specs.Sgd(learning_rate=1.0))


def until(condition, what="it"):
    """Wait for a condition."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT_S} s for {what}"
        time.sleep(0.01)


class Site:
    """Servers and their clients, all of which end with the test.

    Args:
        folder: where each server has its snapshots.
        settings: of all servers.
    """

    def __init__(self, folder, servers=1, **settings):
        self.folder, self._settings = folder, {"silence_s": 600, **settings}
        self._ports = free_ports(servers)  # nobody takes them while a server is away
        self.servers, self.clients = [None] * servers, []
        for number in range(servers):
            self.start(number)

    @property
    def endpoints(self):
        return [f"127.0.0.1:{port}" for port in self._ports]

    def start(self, number=0):
        """Start a server, from its last snapshot if there is one."""
        store, again = Store(), self.servers[number] is not None
        folder = self.folder / str(number)
        left = snapshot.restore(store, folder, 0, 1).left if folder.exists() and snapshot.complete(folder) else {}
        settings = Settings(
            token=TOKEN,
            port=self._ports[number],
            server=number,
            servers=len(self._ports),
            **self._settings,
        )
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                server = Server(settings, store)
                break
            except errors.ServerError:  # the port is not free yet
                assert time.monotonic() < end
                time.sleep(0.01)
        if again:
            server.trainer_group.resume(left)
        self.servers[number] = server.start()

    def kill(self, number=0):
        """End a server without grace: calls under way get no answer."""
        self.servers[number].stop(0)

    def restart(self, number=0):
        self.kill(number)
        self.start(number)

    def snapshot(self, number=0):
        """What a server does every so often."""
        self.servers[number].service.save_alone(self.folder / str(number))

    def client(self, trainer=0, **more):
        """A trainer that knows the table and the block, which the last server holds."""
        more = {"heartbeat_s": 0, "timeout_s": LIMIT_S, "keep_bytes": 1 << 28} | more
        client = Client(self.endpoints, TOKEN, trainer=trainer, **more)
        self.clients.append(client)
        client.create([TABLE], {len(self._ports) - 1: [BLOCK]})
        return client

    def end(self):
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop(0)
