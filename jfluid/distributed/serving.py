"""Running a server's program: it serves until all trainers have left."""
import logging
import os
from typing import Any

from jfluid import errors
from jfluid.distributed import Runner
from jfluid.distributed.environment import server_settings
from jfluid.distributed.links import job_token
from jfluid.distributed.snapshots import Snapshots
from jfluid.ir.program import Program
from jfluid.scope import Scope

_LOG = logging.getLogger(__name__)


class Serving(Runner):
    """Runs the program of one server: `Executor.run` returns when all trainers have left."""

    def __init__(self, program: Program, executor: Any):
        self._program, self._executor = program, executor
        (self._listen,) = (op for op in program.global_block().ops if op.type == "listen_and_serv")

    def _servers(self, number: int) -> int:
        """How many servers the job has. A program that was read from a file does not say; then the environment does."""
        if self._program.holdings is not None:
            return len(self._program.holdings.endpoints)
        named = [e for e in os.environ.get("PADDLE_PSERVERS_IP_PORT_LIST", "").split(",") if e]
        return max(len(named), number + 1)

    def run(self, feed: Any, fetches: list[str], scope: Scope, owned: bool = False) -> list[Any]:
        """Serve.

        Raises:
            FetchError, FeedError: a server's program takes and gives nothing.
            UninitializedError: the startup program was not run in this scope.
            ServerError: the port is taken, there is no token for servers that other machines can reach, or what the
                environment says (see jfluid.distributed.environment and .snapshots) is wrong or cannot be.
        """
        from jfluid.distributed.program_store import ProgramStore
        from jfluid.ps_server.__main__ import keep_freed_memory
        from jfluid.ps_server.server import Server
        if feed or fetches:
            raise errors.FetchError("a server's program has nothing to feed or fetch: run it with the program alone")
        store = ProgramStore(self._program, scope, self._executor)
        endpoint = self._listen.attr("endpoint")
        host, _, port = endpoint.rpartition(":")
        number = max(self._listen.attr("pserver_id"), 0)
        servers = self._servers(number)
        keep_freed_memory()
        settings = server_settings(number, token=job_token([endpoint]), host=host.strip("[]"), port=int(port), servers=servers,
                                   trainers=self._listen.attr("Fanin"), end_with_trainers=True)
        snapshots = Snapshots.from_environment(number)
        left = snapshots.begin(store) if snapshots is not None else {}
        server = Server(settings, store)
        server.meeting.restore_left(left)
        with server:
            _LOG.info("server %d listens on %s", number, endpoint)
            if snapshots is not None:
                snapshots.start(server.service)
            server.wait()
            if snapshots is not None:
                snapshots.stop()
        if server.meeting.failed:
            raise errors.ServerError(f"the job has failed: {server.meeting.failed}")
        return []
