"""Place of this process in its job, from the launcher's environment variables."""

from jfluid import errors, processes
from jfluid.environment.process import DeviceVariables, RoleVariables

__all__ = ["Env", "ParallelEnv", "ParallelStrategy"]


class ParallelEnv:
    """Place of this process in a job, from variables of `jfluid-launch` or Fluid's launcher.

    Outside of a job there is one process.
    """

    def __init__(self) -> None:
        role = RoleVariables.from_env()
        gpus = DeviceVariables.from_env().selected_gpus
        self._nranks, self._local_rank = role.trainers_num or 1, role.trainer_id or 0
        self._dev_id = int(gpus[0]) if gpus else 0
        self._current_endpoint = role.current_endpoint or ""
        self._trainer_endpoints = list(role.trainer_endpoints)

    @property
    def nranks(self) -> int:
        """Number of processes that train."""
        return self._nranks

    @property
    def local_rank(self) -> int:
        """The number of this process, from 0."""
        return self._local_rank

    @property
    def dev_id(self) -> int:
        """The number of this process's GPU; 0 without one."""
        return self._dev_id

    @property
    def current_endpoint(self) -> str:
        """The endpoint of this process, "ip:port"."""
        return self._current_endpoint

    @property
    def trainer_endpoints(self) -> list[str]:
        """The endpoints of all processes."""
        return self._trainer_endpoints


Env = ParallelEnv


class ParallelStrategy:
    """Place of this process among the processes that train together.

    Attributes:
        nranks: number of processes.
        local_rank: number of this process.
        trainer_endpoints: "ip:port" of each process.
        current_endpoint: "ip:port" of this process.
    """

    def __init__(self) -> None:
        self.nranks, self.local_rank = 1, 0
        self.trainer_endpoints: list[str] = []
        self.current_endpoint = ""


def joined_as(strategy: ParallelStrategy) -> None:
    """Join the processes of a strategy. Raises PlaceError or ProgramError as `processes.join`."""
    if not strategy.trainer_endpoints:
        raise errors.ProgramError(
            f"prepare_context: {strategy.nranks} processes train, but trainer_endpoints is empty: start the processes "
            "with jfluid-launch --cpus N or --gpus N"
        )
    processes.join(strategy.trainer_endpoints, strategy.local_rank)
