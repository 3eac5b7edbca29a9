"""The job that this process is one of, as the launcher's variables tell it."""

from jfluid import errors, processes
from jfluid.environment.process import DeviceVariables, RoleVariables

__all__ = ["Env", "ParallelEnv", "ParallelStrategy"]


class ParallelEnv:
    """Which process of a job this is, by the variables that `jfluid-launch` and Fluid's launcher set.

    Outside of a job it is the only one.
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
        """How many processes train."""
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
    """Which process of those that train together this is.

    Attributes:
        nranks: how many there are.
        local_rank: the number of this one.
        trainer_endpoints: where all are, "ip:port" each.
        current_endpoint: where this one is.
    """

    def __init__(self) -> None:
        self.nranks, self.local_rank = 1, 0
        self.trainer_endpoints: list[str] = []
        self.current_endpoint = ""


def joined_as(strategy: ParallelStrategy) -> None:
    """Join the processes of a strategy. Raises PlaceError or ProgramError as `processes.join`."""
    if not strategy.trainer_endpoints:
        raise errors.ProgramError(
            f"prepare_context: {strategy.nranks} processes train, but trainer_endpoints is empty: "
            "start them with jfluid-launch --cpus N or --gpus N"
        )
    processes.join(strategy.trainer_endpoints, strategy.local_rank)
