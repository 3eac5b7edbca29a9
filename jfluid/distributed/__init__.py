"""What runs the programs of `DistributeTranspiler` in mode "pserver".

| module | holds |
|---|---|
| `work` | what a trainer's program asks of servers, read from its operators |
| `trainer` | runs a trainer's program: rows in, compute, gradients out, parameters in |
| `strategies` | how gradients and parameters travel: synchronous, half-asynchronous, asynchronous, GEO |
| `communicator` | `fluid.communicator.Communicator`: switches a strategy on |
| `watch` | what a trainer's progress shows of the servers |
| `links` | this process's connections to servers |
| `births` | startup programs of servers: how rows of tables are born |
| `server_program` | what a server's program does with each gradient, read from its blocks |
| `program_store` | the tables and blocks of a server's program, updated by its operators |
| `settings` | what environment variables say of servers and of connections to them |
| `serving` | runs a server's program until all trainers have left |
| `snapshots` | what servers write while they serve, to go on from when they are started again |
| `trainer_state` | what only a trainer has, and gets back when it is started again |
| `checkpoint` | what servers hold, saved whole and loaded by others |

`runner` is the only door: an Engine asks it what to do with each program. `rounds` tells a trainer that is started again
where to go on; `skip_trained` has `train_from_dataset` go on there.
"""
from jfluid import errors
from jfluid.distributed import births, links, work
from jfluid.distributed.checkpoint import Notify
from jfluid.distributed.links import Link
from jfluid.distributed.serving import Serving
from jfluid.distributed.trainer import Trainer
from jfluid.engine import Engine, Runner
from jfluid.ir.program import Program

__all__ = ["farewell", "leave", "rounds", "runner", "skip_trained"]


def runner(program: Program, engine: Engine) -> Runner | None:
    """What runs a program that works together with other processes through parameter servers; None for other programs."""
    types = {op.type for op in program.global_block().ops}
    if work.SERVE in types:
        return Serving(program, engine)
    if types & work.TRAINERS_OPS:
        read = work.read(program)
        assert read is not None
        return Trainer(read, engine)
    if "checkpoint_notify" in types:
        return Notify(program, engine)
    if births.bears(program):
        return births.Startup(program, engine)
    return None


def rounds(program: Program) -> int:
    """How many rounds of synchronous training the servers have applied: the next step is that of round `rounds(...)`, from 0.

    A trainer that is started again begins there: with as many batches of its data passed over it goes on as if it had never
    stopped. In other modes it is 0.

    Args:
        program: a trainer's: its main program, or its startup program.

    Raises ProgramError for another program, ServerError when a server does not answer.
    """
    return _link(program, "rounds").rounds


def skip_trained(program: Program) -> int:
    """Have `train_from_dataset` of a trainer that was started again pass over the batches that were trained before, in however
    many epochs; returns how many. The dataset has to give the same batches in the same order again.

    Raises ProgramError for another program, ServerError when a server does not answer.
    """
    link = _link(program, "skip_trained")
    link.batches_to_skip = link.rounds
    return link.rounds


def _link(program: Program, what: str) -> Link:
    read = work.read(program)
    if read is None:
        raise errors.ProgramError(f"{what}: expected a trainer's program, that DistributeTranspiler.get_trainer_program gave")
    return links.link(read)


def leave(engine: Engine) -> None:
    """Say goodbye to all servers that an engine's trainers worked with."""
    links.leave(engine)


def farewell(program: Program) -> None:
    """Say goodbye to the servers of the trainer that a program is for."""
    read = work.read(program)
    if read is not None:
        links.drop(read.key)
