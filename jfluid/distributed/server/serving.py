"""Running a server's program: it serves until all trainers have left."""

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from jfluid import errors, flags
from jfluid.distributed.server.snapshot_writers import ServerSnapshots, Writer
from jfluid.distributed.wire.settings import client_options, server_settings
from jfluid.engine import Engine, Fetched, Runner
from jfluid.host import heap
from jfluid.ir.program import Program
from jfluid.scope import Scope
from jfluid.security.secret import job_secret
from jfluid.transpiler.parameter_server.layout import endpoints_of

if TYPE_CHECKING:
    from jfluid.ps_server.server import Server

_LOG = logging.getLogger(__name__)


class Serving(Runner):
    """Runs the program of one server: `Executor.run` returns when all trainers have left.

    Lines on standard error, with times, name the tables and blocks at the start and at the end, unless the script sets
    up logging.
    """

    def __init__(self, program: Program, engine: Engine):
        self._program, self._engine = program, engine
        (self._listen,) = (op for op in program.global_block().ops if op.type == "listen_and_serv")

    def run_alone(self, feed: Any, fetches: list[str], scope: Scope) -> list[Fetched]:
        """Serve the parameters until the job ends.

        Raises:
            FetchError, FeedError: a server's program takes and gives nothing.
            UninitializedError: the startup program was not run in this scope.
            SecretError: there is no secret for a server that other machines can reach.
            ServerError: the port is taken, or a variable of the environment (see
                jfluid.environment.process) is wrong.
        """
        from jfluid.distributed.server.program_store import ProgramStore
        from jfluid.ps_server import server_log
        from jfluid.ps_server.client import credentials_of
        from jfluid.ps_server.recovery import PeerServers
        from jfluid.ps_server.server import Server

        if feed or fetches:
            raise errors.FetchError("a server's program has nothing to feed or fetch: run it with the program alone")
        store = ProgramStore(self._program, scope, self._engine)
        endpoint = self._listen.attr("endpoint")
        host, _, port = endpoint.rpartition(":")
        number = max(self._listen.attr("pserver_id"), 0)
        endpoints = endpoints_of(self._program)
        heap.keep_for_messages()
        token = job_secret([endpoint])
        settings = server_settings(
            number,
            [each.rpartition(":")[0] for each in endpoints[:number]].count(host),
            token=token,
            host=host.strip("[]"),
            port=int(port),
            servers=len(endpoints),
            trainers=self._listen.attr("Fanin"),
            end_with_trainers=True,
        )
        snapshots = ServerSnapshots.of_server(number, len(endpoints))
        with ExitStack() as stack:
            stack.enter_context(server_log.on_stderr())
            if snapshots is not None:
                store.job = stack.enter_context(snapshots.claimed(token))
            server = Server(settings, store)
            writer = None
            if snapshots is not None:
                peers = PeerServers(
                    endpoints, number, token, credentials_of(**client_options()), flags.get("FLAGS_rpc_deadline") / 1000
                )
                writer = snapshots.writer(server, peers)
            _serve(server, writer, endpoint)
            _LOG.info("server %d holds at the end: %s", number, server_log.held(server.store))
        if server.trainer_group.failed:
            raise errors.ServerError(f"the job has failed: {server.trainer_group.failed}")
        return []


def _serve(server: "Server", writer: Writer | None, endpoint: str) -> None:
    """Serve until all trainers have left, or the job has failed."""
    from jfluid.ps_server import server_log

    with server:
        if writer is not None:
            writer.begin()
            writer.start()
        settings = server.settings
        _LOG.info(
            "server %d of %d listens on %s, and holds %s",
            settings.server,
            settings.servers,
            endpoint,
            server_log.held(server.store),
        )
        server.wait()
        if writer is not None:
            writer.stop()
