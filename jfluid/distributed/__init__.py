"""Execution of the programs of `DistributeTranspiler` in mode "pserver".

| folder | module | holds |
|---|---|---|
| `programs` | | the meaning of transpiled programs, read from their operators |
| | `trainer_program` | the requests of a trainer's program to servers, and the rest of the program |
| | `server_program` | the updates of a server's program, by gradient |
| | `server_startup` | a server's startup program, and the initializers of its tables' rows |
| `trainer` | `training` | runs a trainer's program: pull rows, compute, push gradients, pull parameters |
| | `strategies`, `geo` | exchange: synchronous, half-asynchronous, asynchronous, GEO |
| | `communicator` | `fluid.communicator.Communicator`: switches a strategy on |
| | `reading` | runs a program that only looks rows up, such as a loaded model |
| | `local_state` | state that only a trainer has, and gets back when it is started again |
| | `row_count` | the number of rows in the servers' tables, for a trainer's progress |
| `wire` | `connections` | this process's connections to servers |
| | `pending_exchange` | parameters that arrive while the next step begins |
| | `settings` | settings of servers and connections from environment variables |
| `server` | `serving` | runs a server's program until all trainers have left |
| | `program_store` | the tables and blocks of a server's program, updated by its operators |
| | `variables_block` | variables of a server's scope as a block, for snapshots and for saving |
| | `snapshot_writers` | the snapshots that servers write while they serve, and restore after a restart |
| `tables` | `program_table` | a table of a server's program: its optimizer, and its first values |
| | `row_updates` | how the operators of a server's program update rows of a table |
| | `compiled_function` | operators as a compiled function without a scope |
| | `checkpoint` | variables of servers, saved as a whole and loaded by any number of servers |
| | `saving_operators` | programs of `checkpoint_notify` and `recv_save` |

`runner` is the only entry: an Engine asks it for the Runner of each program. `rounds` tells a restarted trainer
its next round; with `skip_trained`, `train_from_dataset` continues there.
"""

from jfluid import errors
from jfluid.distributed import saving_operators
from jfluid.distributed.programs import server_startup, trainer_program
from jfluid.distributed.server.serving import Serving
from jfluid.distributed.trainer import reading
from jfluid.distributed.trainer.training import Trainer
from jfluid.distributed.wire import connections
from jfluid.distributed.wire.connections import TrainerConnection
from jfluid.engine import Engine, Runner
from jfluid.ir.program import Program
from jfluid.transpiler.parameter_server import layout
from jfluid.transpiler.parameter_server.remote_look_ups import is_remote

__all__ = ["farewell", "leave", "rounds", "runner", "skip_trained"]


def runner(program: Program, engine: Engine) -> Runner | None:
    """Return the runner of a program that works with parameter servers; None for other programs."""
    ops = program.global_block().ops
    types = {op.type for op in ops}
    if layout.SERVE in types:
        return Serving(program, engine)
    if not types & (layout.TRAINERS_OPS - {layout.LOOK_UP}) and any(map(is_remote, ops)):
        return reading.reader(program, engine)
    if types & layout.TRAINERS_OPS:
        read = trainer_program.read(program)
        assert read is not None
        return Trainer(read, engine)
    if types & saving_operators.OPERATORS:
        return saving_operators.Saving(program, engine)
    if server_startup.initializes_rows(program):
        return server_startup.Startup(program, engine)
    return None


def rounds(program: Program) -> int:
    """Return the number of rounds of synchronous training that the servers have applied.

    The next step is that of round `rounds(...)`, from 0. A trainer that is started again begins there: with that
    number of batches passed over it goes on as if it had never stopped. In other modes it is 0.

    Args:
        program: a trainer's: its main program, or its startup program.

    Raises ProgramError for a different program, ServerError when a server does not answer.
    """
    return _connection(program, "rounds").rounds


def skip_trained(program: Program) -> int:
    """Let `train_from_dataset` pass over batches trained before a restart; return the number of batches.

    The batches may be of several epochs. The dataset has to give the same batches in the same order again.

    Raises ProgramError for a different program, ServerError when a server does not answer.
    """
    connection = _connection(program, "skip_trained")
    connection.batches_to_skip = connection.rounds
    return connection.rounds


def _connection(program: Program, what: str) -> TrainerConnection:
    read = trainer_program.read(program)
    if read is None:
        raise errors.ProgramError(
            f"{what}: expected a trainer's program, that DistributeTranspiler.get_trainer_program gave"
        )
    connection = connections.connect(read)
    connection.settle()  # a pending round counts, too
    return connection


def leave(engine: Engine) -> None:
    """Leave all servers that trainers of this engine are connected to."""
    connections.leave(engine)


def farewell(program: Program) -> None:
    """Leave the servers of the trainer that a program belongs to."""
    read = trainer_program.read(program)
    if read is not None:
        connections.drop(read.key)
