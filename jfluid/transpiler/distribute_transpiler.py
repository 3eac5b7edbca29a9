"""DistributeTranspiler: one program, rewritten for each of several processes."""
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jfluid import errors
from jfluid.ir.program import Program, default_main_program, default_startup_program
from jfluid.transpiler import collective, nccl2
from jfluid.transpiler.config import SMALLEST_BLOCK, DistributeTranspilerConfig
from jfluid.transpiler.ps_dispatcher import RoundRobin

__all__ = ["DistributeTranspiler", "DistributeTranspilerConfig"]


@dataclass
class Request:
    """What `transpile` was asked for.

    Attributes:
        trainer_id: which trainer this process is.
        trainers: how many there are, or their endpoints.
    """

    config: DistributeTranspilerConfig
    trainer_id: int
    program: Program
    startup: Program
    pservers: str
    trainers: Any
    sync_mode: bool
    current_endpoint: str

    def endpoints(self) -> list[str]:
        """The trainers' endpoints. Raises ProgramError when `trainers` does not tell them."""
        given = self.trainers.split(",") if isinstance(self.trainers, str) else self.trainers
        if not isinstance(given, (list, tuple)) or not all(isinstance(e, str) and ":" in e for e in given):
            raise errors.ProgramError(f'trainers: mode {self.config.mode} needs all trainers\' endpoints, such as '
                                      f'"10.0.0.1:6170,10.0.0.2:6170"; found {self.trainers!r}')
        found = [e.strip() for e in given]
        if len(set(found)) < len(found):
            raise errors.ProgramError(f"trainers: an endpoint stands twice in {found}")
        if not 0 <= self.trainer_id < len(found):
            raise errors.ProgramError(f"trainer_id: expected 0 to {len(found) - 1}, found {self.trainer_id}")
        if found[self.trainer_id] != self.current_endpoint:
            raise errors.ProgramError(f"current_endpoint: trainer {self.trainer_id} of {found} is at "
                                      f"{found[self.trainer_id]}, found {self.current_endpoint!r}")
        return found


def _collective(request: Request) -> None:
    kind = collective.MODES.get(request.config.collective_mode or "")
    if kind is None:
        raise errors.ProgramError(f"collective_mode: expected {' or '.join(collective.MODES)}, found "
                                  f"{request.config.collective_mode!r}")
    kind(request.config.nccl_comm_num).transpile(request.startup, request.program, request.trainer_id, request.endpoints(),
                                                 request.current_endpoint, request.config.wait_port)


def _pserver(request: Request) -> None:
    raise errors.UnsupportedError('DistributeTranspiler, mode "pserver": parameter servers are not in this release; set '
                                  'config.mode to "nccl2" or "collective"')


def _nccl2(request: Request) -> None:
    nccl2.transpile(request.config, request.program, request.startup, request.trainer_id, request.endpoints())


MODES: dict[str, Callable[[Request], None]] = {"pserver": _pserver, "nccl2": _nccl2, "collective": _collective}


class DistributeTranspiler:
    """Rewrites a program so that several processes train together.

        config = fluid.DistributeTranspilerConfig()
        config.mode = "nccl2"
        t = fluid.DistributeTranspiler(config)
        t.transpile(trainer_id, trainers="10.0.0.1:6170,10.0.0.2:6170", current_endpoint="10.0.0.1:6170")

    Args:
        config: a DistributeTranspilerConfig; its defaults when None, which is mode "pserver".

    Raises TypeError for a config of another type, ProgramError for one that makes no sense.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None):
        if config is not None and not isinstance(config, DistributeTranspilerConfig):
            raise TypeError(f"config: expected a DistributeTranspilerConfig, found {type(config).__name__}")
        self.config = config if config is not None else DistributeTranspilerConfig()
        if self.config.split_method is None:
            self.config.split_method = RoundRobin
        if self.config.mode not in MODES:
            raise errors.ProgramError(f"mode: expected {', '.join(MODES)}, found {self.config.mode!r}"
                                      + errors.close_to(self.config.mode, MODES))
        if self.config.min_block_size < SMALLEST_BLOCK:
            raise errors.ProgramError(f"min_block_size: at least {SMALLEST_BLOCK}, found {self.config.min_block_size}")
        if self.config.nccl_comm_num < 1:
            raise errors.ProgramError(f"nccl_comm_num: at least 1, found {self.config.nccl_comm_num}")

    def transpile(self, trainer_id: int, program: Program | None = None, pservers: str = "127.0.0.1:6174",
                  trainers: int | str = 1, sync_mode: bool = True, startup_program: Program | None = None,
                  current_endpoint: str = "127.0.0.1:6174") -> None:
        """Rewrite the programs in place.

        With mode "nccl2" the startup program gets the operator by which trainers meet, and the program is marked: run it
        with a ParallelExecutor or CompiledProgram whose BuildStrategy says `num_trainers` and `trainer_id`. With mode
        "collective" the program itself sums gradients (or parameters): run it with `Executor.run`. In both modes run the
        startup program before any other program.

        Args:
            trainer_id: which trainer this process is, counted from 0.
            program: the program to rewrite; the default main program when None.
            pservers: the parameter servers' endpoints, of mode "pserver".
            trainers: all trainers' endpoints, "ip:port,ip:port"; the trainer of id 0 is the first. In mode "pserver" how
                many there are.
            sync_mode: of mode "pserver".
            startup_program: the default startup program when None.
            current_endpoint: this trainer's.

        Raises:
            ProgramError: an argument is wrong.
            UnsupportedError: mode "pserver".
        """
        for name, given in (("program", program), ("startup_program", startup_program)):
            if given is not None and not isinstance(given, Program):
                raise TypeError(f"{name}: expected a Program, found {type(given).__name__}")
        if isinstance(trainer_id, bool) or not isinstance(trainer_id, int):
            raise TypeError(f"trainer_id: expected a whole number, found {trainer_id!r}")
        self.trainer_id = trainer_id
        self.origin_program = program if program is not None else default_main_program()
        self.startup_program = startup_program if startup_program is not None else default_startup_program()
        self.origin_startup_program = self.startup_program.clone()
        MODES[self.config.mode](Request(self.config, trainer_id, self.origin_program, self.startup_program, pservers, trainers,
                                        sync_mode, current_endpoint))

    def _of_servers(self, method: str) -> errors.UnsupportedError:
        return errors.UnsupportedError(f"DistributeTranspiler.{method}: parameter servers are not in this release")

    def get_trainer_program(self, wait_port: bool = True) -> Program:
        """Of mode "pserver". Raises UnsupportedError."""
        raise self._of_servers("get_trainer_program")

    def get_pserver_program(self, endpoint: str) -> Program:
        """Of mode "pserver". Raises UnsupportedError."""
        raise self._of_servers("get_pserver_program")

    def get_pserver_programs(self, endpoint: str) -> tuple[Program, Program]:
        """Of mode "pserver". Raises UnsupportedError."""
        raise self._of_servers("get_pserver_programs")

    def get_startup_program(self, endpoint: str, pserver_program: Program | None = None,
                            startup_program: Program | None = None) -> Program:
        """Of mode "pserver". Raises UnsupportedError."""
        raise self._of_servers("get_startup_program")
