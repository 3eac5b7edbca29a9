"""Running a program that looks rows up at servers and trains nothing, such as a loaded model."""

from typing import Any

from jfluid import errors
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.trainer.training import Trainer
from jfluid.distributed.wire import connections
from jfluid.distributed.wire.connections import TrainerConnection
from jfluid.engine import Engine, Fetched
from jfluid.ir.program import Program
from jfluid.parallel.data_parallel import DataParallelProgram
from jfluid.scope import Scope
from jfluid.transpiler.parameter_server import remote_look_ups
from jfluid.transpiler.parameter_server.layout import LOOK_UP


class RowReader(Trainer):
    """Runner of a program that only reads rows: each run gets the servers' current rows.

    It creates none, and the servers take it for no trainer.
    """

    def run(
        self, feed: Any, fetches: list[str], scope: Scope, parallel: DataParallelProgram | None = None
    ) -> list[Fetched]:
        """Run the program after the pending exchanges of this process's trainers.

        Raises the errors of `Trainer.run`.
        """
        connections.settle(self.program.endpoints, self.program.trainer_id)
        return super().run(feed, fetches, scope, parallel)

    def _connected(self) -> TrainerConnection:
        if self._connection is None or not self._connection.users:
            self._connection = connections.observe(self.program.endpoints, self._engine)
            self._connection.register(self.program)
        return self._connection


def reader(program: Program, engine: Engine) -> RowReader:
    """Return the runner of a program; its servers are asked for their tables.

    Raises ServerError where one does not answer, or has not the table; ProgramError where the
    program does not say whom to ask.
    """
    from jfluid.ps_server.client import widths_of

    remote_look_ups.tables_of(program)
    servers = remote_look_ups.servers_of(program)
    statuses = connections.observe(servers, engine).client.status()
    widths = {server: widths_of(status) for server, status in zip(servers, statuses, strict=True)}
    found = remote_look_ups.resolved(program, widths)
    hashed = [op for op in found.global_block().ops if op.type == LOOK_UP and not op.attr("height_sections")]
    for i, status in enumerate(statuses if hashed else ()):
        if (status.server, status.servers) != (i, len(servers)):
            raise errors.ServerError(
                f"table {hashed[0].input('W')[0]}: the order of the servers says where its rows are: "
                f"expected all {status.servers} servers of the job in its order, found {servers[i]}, "
                f"which is number {status.server} from 0, at place {i} of {', '.join(servers)}"
            )
    read = trainer_program.read(found, servers)
    assert read is not None  # it has look-ups
    return RowReader(read, engine)
