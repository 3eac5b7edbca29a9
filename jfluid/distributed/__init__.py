"""What runs the programs of `DistributeTranspiler` in mode "pserver".

| module | holds |
|---|---|
| `work` | what a trainer's program asks of servers, read from its operators |
| `computing` | where a trainer's step computes: one device, or several that bring gradients together first |
| `trainer` | runs a trainer's program: rows in, compute, gradients out, parameters in |
| `strategies` | how gradients and parameters travel: synchronous, half-asynchronous, asynchronous, GEO |
| `communicator` | `fluid.communicator.Communicator`: switches a strategy on |
| `watch` | what a trainer's progress shows of the servers |
| `links` | this process's connections to servers |
| `births` | startup programs of servers: how rows of tables are born |
| `program_store` | the tables and blocks of a server's program, updated by its operators |
| `serving` | runs a server's program until all trainers have left |
| `snapshots` | what servers write while they serve, to go on from when they are started again |
| `trainer_state` | what only a trainer has, and gets back when it is started again |
| `checkpoint` | what servers hold, saved whole and loaded by others |

`runner` is the only door: an Executor asks it what to do with each program. `rounds` tells a trainer that is started again
where to go on; `skip_trained` has `train_from_dataset` go on there.
"""
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from jfluid import errors
from jfluid.ir.program import Program
from jfluid.parallel.program import DataParallel
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.distributed.links import Link

__all__ = ["Runner", "farewell", "leave", "rounds", "runner", "skip_trained"]


class Runner:
    """Runs programs of one kind."""

    def run(self, feed: Any, fetches: list[str], scope: Scope, owned: bool = False) -> list[Any]:
        """Run the program once; returns the fetches as `Executor._run` gives them without `numpy`.

        Args:
            owned: nobody writes to the feeds any more.
        """
        raise NotImplementedError

    def run_replicas(self, parallel: DataParallel, feed: Any, fetches: list[str], scope: Scope,
                     owned: bool = False) -> list[list[Any]]:
        """Run the program in replicas; returns of each fetch what each replica has. Raises UnsupportedError where there is
        nothing to divide."""
        raise errors.UnsupportedError("with_data_parallel: a server's program and its startup program have nothing to divide "
                                      "among devices: run the program itself")

    def counts(self) -> AbstractContextManager[Callable[[], dict[str, int]]]:
        """What a display of progress shows of the servers, newest numbers by name, while it is entered."""
        return nullcontext(dict)

    def ahead(self, batches: Iterable[Any], parallel: DataParallel | None = None) -> Iterable[Any]:
        """The batches, to be run one after the other, while what the next ones need comes from servers."""
        return batches


def runner(program: Program, executor: Any) -> Runner | None:
    """What runs a program that works together with other processes through parameter servers; None for other programs."""
    from jfluid.distributed import births, work
    types = {op.type for op in program.global_block().ops}
    if work.SERVE in types:
        from jfluid.distributed.serving import Serving
        return Serving(program, executor)
    if types & work.TRAINERS_OPS:
        from jfluid.distributed.trainer import Trainer
        read = work.read(program)
        assert read is not None
        return Trainer(read, executor)
    if "checkpoint_notify" in types:
        from jfluid.distributed.checkpoint import Notify
        return Notify(program, executor)
    if births.bears(program):
        return births.Startup(program, executor)
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


def _link(program: Program, what: str) -> "Link":
    from jfluid.distributed import links, work
    read = work.read(program)
    if read is None:
        raise errors.ProgramError(f"{what}: expected a trainer's program, that DistributeTranspiler.get_trainer_program gave")
    return links.link(read)


def leave(executor: Any) -> None:
    """Say goodbye to all servers that an executor's trainers worked with."""
    from jfluid.distributed import links
    links.leave(executor)


def farewell(program: Program) -> None:
    """Say goodbye to the servers of the trainer that a program is for."""
    from jfluid.distributed import links, work
    read = work.read(program)
    if read is not None:
        links.drop(read.key)
