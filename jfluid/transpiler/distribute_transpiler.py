"""DistributeTranspiler: one program, rewritten for each of several processes."""

from collections.abc import Callable

from jfluid import errors
from jfluid.ir.program import Program, default_main_program, default_startup_program
from jfluid.transpiler import collective, nccl2
from jfluid.transpiler.config import SMALLEST_BLOCK, DistributedMode, DistributeTranspilerConfig, ServerRuntimeConfig
from jfluid.transpiler.parameter_server import geo
from jfluid.transpiler.parameter_server.job import ServerJob
from jfluid.transpiler.ps_dispatcher import PSDispatcher, RoundRobin
from jfluid.transpiler.request import Request

__all__ = ["DistributeTranspiler", "DistributeTranspilerConfig", "DistributedMode", "ServerRuntimeConfig"]


def _collective(request: Request) -> None:
    kind = collective.MODES.get(request.config.collective_mode or "")
    if kind is None:
        raise errors.ProgramError(
            f"collective_mode: expected {' or '.join(collective.MODES)}, found {request.config.collective_mode!r}"
        )
    kind(request.config.nccl_comm_num).transpile(
        request.startup,
        request.program,
        request.trainer_id,
        request.endpoints(),
        request.current_endpoint,
        request.config.wait_port,
    )


def _pserver(request: Request) -> ServerJob:
    return ServerJob(request)


def _nccl2(request: Request) -> None:
    nccl2.transpile(request.config, request.program, request.startup, request.trainer_id, request.endpoints())


def _check_block_size(size: int) -> None:
    if size < SMALLEST_BLOCK:
        raise errors.ProgramError(f"min_block_size: at least {SMALLEST_BLOCK}, found {size}")


MODES: dict[str, Callable[[Request], ServerJob | None]] = {
    "pserver": _pserver,
    "nccl2": _nccl2,
    "collective": _collective,
}


class DistributeTranspiler:
    """Rewrites a program so that several processes train together.

        config = fluid.DistributeTranspilerConfig()
        config.mode = "nccl2"
        t = fluid.DistributeTranspiler(config)
        t.transpile(trainer_id, trainers="10.0.0.1:6170,10.0.0.2:6170", current_endpoint="10.0.0.1:6170")

    Args:
        config: a DistributeTranspilerConfig; its defaults when None, which is mode "pserver".

    Raises TypeError for a config of a different type, ProgramError for one that makes no sense.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None):
        if config is not None and not isinstance(config, DistributeTranspilerConfig):
            raise TypeError(f"config: expected a DistributeTranspilerConfig, found {type(config).__name__}")
        self.config = config if config is not None else DistributeTranspilerConfig()
        if self.config.split_method is None:
            self.config.split_method = RoundRobin
        if self.config.mode not in MODES:
            raise errors.ProgramError(
                f"mode: expected {', '.join(MODES)}, found {self.config.mode!r}"
                + errors.close_to(self.config.mode, MODES)
            )
        _check_block_size(self.config.min_block_size)
        self._job: ServerJob | None = None
        if self.config.nccl_comm_num < 1:
            raise errors.ProgramError(f"nccl_comm_num: at least 1, found {self.config.nccl_comm_num}")

    def transpile(
        self,
        trainer_id: int,
        program: Program | None = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str = 1,
        sync_mode: bool = True,
        startup_program: Program | None = None,
        current_endpoint: str = "127.0.0.1:6174",
        *,
        slice_var_up: bool | None = None,
        split_method: type[PSDispatcher] | None = None,
        min_block_size: int | None = None,
    ) -> None:
        """Rewrite the programs in place; in mode "pserver" only decide, and rewrite when the programs are asked for.

        With mode "pserver" each server holds some parameters, or pieces of them, and updates them
        with the gradients that trainers send: see `get_trainer_program`, `get_pserver_program` and
        `get_startup_program`.

        With mode "nccl2" the startup program gets the operator that connects the trainers, and the
        program is marked: run it with a ParallelExecutor or CompiledProgram whose BuildStrategy
        says `num_trainers` and `trainer_id`. With mode "collective" the program itself sums
        gradients (or parameters): run it with `Executor.run`. In both modes run the startup program
        before any other program, unless the environment has said where the trainers are (as
        `jfluid-launch` does): then other programs may run first.

        Args:
            trainer_id: which trainer this process is, counted from 0.
            program: the program to rewrite; the default main program when None.
            pservers: the parameter servers' endpoints, "ip:port,ip:port", of mode "pserver".
            trainers: all trainers' endpoints, "ip:port,ip:port"; the trainer of id 0 is the first.
                In mode "pserver" how many there are.
            sync_mode: of mode "pserver": servers update with the mean of all trainers' gradients,
                when all have arrived; else with each gradient when it arrives.
            startup_program: the default startup program when None.
            current_endpoint: this trainer's; without effect in mode "pserver".
            slice_var_up, split_method, min_block_size: as the fields of the config, in the form of
                Fluid's guides and releases before 1.2; None for the config's value.

        Raises:
            ProgramError: an argument is wrong, or settings exclude each other.
            UnsupportedError: updates of this kind cannot be left to servers.
        """
        for name, found in (("program", program), ("startup_program", startup_program)):
            if found is not None and not isinstance(found, Program):
                raise TypeError(f"{name}: expected a Program, found {type(found).__name__}")
        if isinstance(trainer_id, bool) or not isinstance(trainer_id, int):
            raise TypeError(f"trainer_id: expected a whole number, found {trainer_id!r}")
        given = {"slice_var_up": slice_var_up, "split_method": split_method, "min_block_size": min_block_size}
        for field, value in given.items():
            if value is not None:
                setattr(self.config, field, value)
        if min_block_size is not None:
            _check_block_size(min_block_size)
        self.trainer_id = trainer_id
        self.origin_program = program if program is not None else default_main_program()
        self.startup_program = startup_program if startup_program is not None else default_startup_program()
        self.origin_startup_program = self.startup_program.clone()
        request = Request(
            self.config,
            trainer_id,
            self.origin_program,
            self.startup_program,
            pservers,
            trainers,
            sync_mode,
            current_endpoint,
        )
        self._job = MODES[self.config.mode](request)

    def _servers(self, method: str) -> ServerJob:
        if self._job is None:
            raise errors.ProgramError(
                f"DistributeTranspiler.{method}: "
                + (
                    "call transpile first"
                    if self.config.mode == "pserver"
                    else f'mode "{self.config.mode}" has no parameter servers; set config.mode to "pserver"'
                )
            )
        return self._job

    def get_trainer_program(self, wait_port: bool = True) -> Program:
        """Return the program that trainers run: the one given to `transpile`, rewritten in place.

        Gradients are sent and parameters received by its operators; the updates are gone. The
        startup program given to `transpile` is rewritten too: it gets the parameters from the
        servers.

        Args:
            wait_port: first wait until all servers listen. `config.wait_port` False has the same
                effect as False here.

        Raises:
            ProgramError: `transpile` was not called, or the mode has no servers.
            UnsupportedError: updates of this kind cannot be left to servers.
            TimeoutError: a server does not listen within FLAGS_rpc_deadline.
        """
        return self._servers("get_trainer_program").trainer_program(wait_port)

    def get_pserver_program(self, endpoint: str) -> Program:
        """Return the program of the server at `endpoint`: one `listen_and_serv`, and a block for each piece there.

        A piece is a range of rows of a parameter.

        Raises ProgramError when `transpile` was not called or `endpoint` is none of its `pservers`.
        """
        return self._servers("get_pserver_program").server_program(endpoint)

    def get_pserver_programs(self, endpoint: str) -> tuple[Program, Program]:
        """Return the program of the server at `endpoint` and its startup program.

        Raises as `get_pserver_program`.
        """
        job = self._servers("get_pserver_programs")
        return job.server_program(endpoint), job.server_startup(endpoint)

    def get_startup_program(
        self, endpoint: str, pserver_program: Program | None = None, startup_program: Program | None = None
    ) -> Program:
        """Return the startup program of the server at `endpoint`, for the parameters and states that it holds.

        Args:
            pserver_program: the result of `get_pserver_program(endpoint)`; made anew if None.
            startup_program: the initializers are taken from it; the startup program given to
                `transpile`, as it was then, when None.

        Raises as `get_pserver_program`.
        """
        return self._servers("get_startup_program").server_startup(endpoint, pserver_program, startup_program)

    def _exchanged(self) -> dict[str, dict[str, list[str]]]:
        """Return the parameters that a communicator of geo_sgd_mode exchanges, by server; see `geo.exchanged`."""
        return geo.exchanged(self._servers("_exchanged").placement)
