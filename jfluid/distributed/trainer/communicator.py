"""`fluid.communicator.Communicator`: switches on how a trainer's program exchanges gradients and parameters."""

from collections.abc import Mapping
from typing import Any

from jfluid import errors, flags
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.trainer.geo import Geo
from jfluid.distributed.trainer.strategies import Async, AsyncSettings, Direct
from jfluid.distributed.wire import connections
from jfluid.distributed.wire.connections import Strategy
from jfluid.ir.program import Program
from jfluid.transpiler.config import DistributedMode

__all__ = ["Communicator"]


class Communicator:
    """Exchange of gradients and parameters between a program's trainer and parameter servers.

        communicator = fluid.communicator.Communicator(fleet.main_program, DistributedMode.ASYNC)
        communicator.start()
        ...                                # exe.run(fleet.main_program, ...)
        communicator.stop()

    Args:
        program: a trainer's program, that `DistributeTranspiler.get_trainer_program` returned.
        mode: a mode of `DistributedMode`: SYNC (each step waits for all trainers), HALF_ASYNC (each step
            computes with the parameters after the gradients of the step before), ASYNC (a thread sends
            and receives), GEO (trainers update locally).
        kwargs: for GEO: {"trainers": number of trainers, "push_nums": steps between two exchanges};
            "push_vars" has no effect: the programs have the places of parameters.
        envs: settings by Fluid's names, which come before the flags of the same names:
            communicator_send_queue_size (number of steps with gradients that wait to be merged),
            communicator_max_merge_var_num (number of steps with gradients in one call),
            communicator_send_wait_times (hundredths of a second to wait for more gradients before
            sending), communicator_is_sgd_optimizer (merged gradients are added up, otherwise
            averaged), communicator_min_send_grad_num_before_recv
            (gradients, of one parameter and step each, after which parameters are received again),
            communicator_prefetch_depth (batches of a dataset with rows pulled ahead; 0:
            steps do not overlap). communicator_thread_pool_size,
            communicator_independent_recv_thread, communicator_fake_rpc and
            communicator_merge_sparse_grad have no effect: one thread sends and receives.

    Raises:
        TypeError, ProgramError: an argument is wrong, or the program is not a trainer's.
    """

    def __init__(
        self, program: Program, mode: int, kwargs: Mapping[str, Any] | None = None, envs: Mapping[str, Any] = {}
    ):
        if not isinstance(program, Program):
            raise TypeError(f"program: expected a Program, found {type(program).__name__}")
        read = trainer_program.read(program)
        if read is None:
            raise errors.ProgramError(
                "program: it sends nothing to parameter servers; expected the program of "
                "DistributeTranspiler.get_trainer_program"
            )
        modes = {n: v for n, v in vars(DistributedMode).items() if n.isupper()}
        if isinstance(mode, bool) or mode not in modes.values():
            raise errors.ProgramError(f"mode: expected DistributedMode.{', '.join(modes)}, found {mode!r}")
        self._mode, self._program, self._kwargs, self._envs = (mode, read, dict(kwargs or {}), dict(envs))
        self._strategy: Strategy | None = None

    def start(self) -> None:
        """Use this communicator for the steps of the program from now on.

        A second start does nothing. With ASYNC and GEO servers are asked when the first step needs them, as
        in Fluid.

        Raises ProgramError for a setting that is too small; with SYNC and HALF_ASYNC ServerError
        when a server does not answer.
        """
        if self._strategy is None:
            made, depth = self._made(), int(self._setting("prefetch_depth"))
            if depth < 0:
                raise errors.ProgramError(f"communicator_prefetch_depth: expected at least 0, found {depth}")

            def use(connection: connections.TrainerConnection) -> None:
                connection.strategy, connection.prefetch_depth = made, depth

            self._strategy = made
            if self._mode in (DistributedMode.ASYNC, DistributedMode.GEO):
                connections.when_connected(self._program, use)
            else:
                try:
                    use(connections.connect(self._program))
                except BaseException:
                    self._strategy = None
                    raise

    def stop(self) -> None:
        """Send waiting gradients, give the trainer the servers' parameters, and return to the program's own strategy.

        Raises ServerError where that failed.
        """
        if self._strategy is not None:
            strategy, self._strategy = self._strategy, None
            if connections.cancel(self._program):  # no step has asked a server
                strategy.stop()
                return
            connection = connections.connect(self._program)
            connection.strategy = None
            strategy.stop()
            connection.settle()

    def is_running(self) -> bool:
        """Return whether it was started, and not stopped."""
        return self._strategy is not None

    def seconds(self) -> dict[str, float]:
        """Return the seconds of the trainer's steps by part: rows, feed, compute, gradients, exchange, install.

        Within rows and exchange, or beside the steps in a different thread, are encode, call and decode: the parts of
        its calls to servers.

        Raises ServerError when no server answers to a communicator that was never started.
        """
        connection = connections.connect(self._program)
        return connection.laps.seconds | connection.calls.seconds

    def _setting(self, name: str) -> Any:
        name = f"communicator_{name}"
        return self._envs.get(name, self._envs.get(f"FLAGS_{name}", flags.get(f"FLAGS_{name}")))

    def _made(self) -> Strategy:
        if self._mode == DistributedMode.GEO:
            missing = {"trainers", "push_nums"} - set(self._kwargs)
            if missing:
                raise errors.ProgramError(f"kwargs: GEO needs {', '.join(sorted(missing))}")
            return Geo(int(self._kwargs["push_nums"]), int(self._kwargs["trainers"]))
        if self._mode != DistributedMode.ASYNC:
            return Direct(self._mode == DistributedMode.SYNC, pending=self._mode == DistributedMode.HALF_ASYNC)
        settings = AsyncSettings(
            queue_size=int(self._setting("send_queue_size")),
            max_merge=int(self._setting("max_merge_var_num")),
            wait_times=int(self._setting("send_wait_times")),
            sums=_truth(self._setting("is_sgd_optimizer")),
            before_receive=int(self._setting("min_send_grad_num_before_recv")),
        )
        return Async(settings)


def _truth(value: Any) -> bool:
    return str(value).lower() in ("1", "true")
