"""Rows of a saved model's distributed tables: from running servers, or from the shards in the model's folder."""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jfluid import errors, flags
from jfluid.distributed import saved_tables
from jfluid.files.file_sets import read_whole
from jfluid.files.storage import path_below
from jfluid.ir.program import Program
from jfluid.security.secret import job_secret
from jfluid.transpiler.parameter_server import remote_look_ups

if TYPE_CHECKING:
    from jfluid.ps_server.server import Server

_HERE = "127.0.0.1"
_DEADLINE, _DEADLINE_MS = "FLAGS_rpc_deadline", 10_000  # a request cannot wait as long as a trainer


class RowSource:
    """Source of the rows of a model's distributed tables.

    Servers that the user names have the rows of all tables. Without these servers, a server of this process has the
    rows of the tables with shards in the model's folder, as `save_persistables` of a trainer writes shards.

    Args:
        folder: the model's.
        servers: "host:port" of running servers, in the job's order.

    Attributes:
        endpoints: of the servers; empty until `ask`, and if all tables are ordinary files.
        names: tables whose rows the servers have, from `ask` on.
    """

    def __init__(self, folder: str, servers: Sequence[str] = ()):
        self._folder, self.endpoints = folder, list(servers)
        self.names: set[str] = set()
        self._own: list[Server] = []
        if servers and flags.given(_DEADLINE) is None:
            flags.set_flags({_DEADLINE: _DEADLINE_MS})

    def elsewhere(self, program: Program) -> set[str]:
        """Return the tables of a program with rows in shards or on servers."""
        found = remote_look_ups.marked(program)
        return found if self.endpoints else {name for name in found if os.path.isdir(path_below(self._folder, name))}

    def ask(self, program: Program) -> None:
        """Let the look-ups of a program ask for rows. Raises FileFormatError for damaged shards."""
        if self.endpoints:
            remote_look_ups.ask(program, self.endpoints)
            self.names = remote_look_ups.tables_of(program)
        elif tables := self.elsewhere(program):
            self.endpoints, self.names = [self._serve(sorted(tables))], tables
            remote_look_ups.ask(program, self.endpoints, tables)

    def _serve(self, tables: Iterable[str]) -> str:
        """Start a server of this process with the rows of tables; return its endpoint."""
        from jfluid.ps_server import snapshot
        from jfluid.ps_server.server import Server, Settings
        from jfluid.ps_server.store import Store

        store = Store()
        for table in tables:
            folder = read_whole(self._folder, lambda files: saved_tables.place(files, table))  # noqa: B023
            try:
                snapshot.restore(store, folder, 0, 1, tables=[table])
            except errors.ServerError as error:
                raise errors.FileFormatError(
                    f"{folder}: expected the shards of table {table}, as save_persistables of a trainer writes: {error}"
                ) from error
        server = Server(Settings(token=job_secret([_HERE]), host=_HERE), store).start()
        self._own.append(server)
        return f"{_HERE}:{server.port}"

    def close(self) -> None:
        """End the server of this process."""
        for server in self._own:
            server.stop(grace_s=0.5)
