"""A job whose servers and clients live in the test's process."""

import grpc

from jfluid.ps_server import specs, wire
from jfluid.ps_server.auth import Session
from jfluid.ps_server.client import Client
from jfluid.ps_server.server import Server, Settings

TOKEN = "a-token-of-the-job"
TABLE = specs.TableSpec(
    name="t",
    width=4,
    initializer=specs.Uniform(),
    optimizer=specs.Adagrad(learning_rate=0.1),
    seed=1,
)
BLOCK = specs.BlockSpec(
    name="w",
    shape=(2, 3),
    initializer=specs.Constant(value=1),
    optimizer=specs.Sgd(learning_rate=0.5),
)


class Job:
    """Servers in this process, and clients of them; all end with the test."""

    def __init__(self):
        self.servers, self.clients = [], []

    def start(self, servers=1, **settings):
        self.servers = [
            Server(Settings(token=TOKEN, server=i, servers=servers, **settings)).start() for i in range(servers)
        ]
        return self

    @property
    def endpoints(self):
        return [f"127.0.0.1:{server.port}" for server in self.servers]

    def client(self, endpoints=None, token=TOKEN, **more):
        more = {"heartbeat_s": 0, "timeout_s": 120} | more
        self.clients.append(Client(endpoints or self.endpoints, token, **more))
        return self.clients[-1]

    def ready(self, trainer=0, **more):
        client = self.client(trainer=trainer, **more)
        client.create([TABLE], {0: [BLOCK]})
        return client

    def end(self):
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop(0.2)


def raw(job, method, request, data=None):
    """The reply to one call without the client's help."""
    kind = wire.METHODS[method][1]
    with grpc.insecure_channel(job.endpoints[0]) as channel:
        call = Session(channel, job.endpoints[0], TOKEN, 20).unary(f"/{wire.SERVICE}/{method}", kind.FromString)
        return call(request.SerializeToString() if data is None else data, 20)
