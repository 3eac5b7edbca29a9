"""Role makers: the role of this process in a job, and the endpoints of the other processes."""

import socket
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid import errors, processes
from jfluid.environment.endpoints import fault_of

if TYPE_CHECKING:
    from jfluid.environment.process import RoleVariables
    from jfluid.launch.nodes import Node

__all__ = [
    "GeneralRoleMaker",
    "MPISymetricRoleMaker",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMakerBase",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
]

_REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "min": np.min, "max": np.max}


class Role:
    """Roles of processes: WORKER (a trainer) and SERVER, with Fluid's numbers."""

    WORKER = 1
    SERVER = 2


class RoleMakerBase:
    """The place of a process in a job. A subclass finds it out in `generate_role`."""

    def __init__(self) -> None:
        self._worker_endpoints: list[str] = []
        self._server_endpoints: list[str] = []
        self._role_is_generated = False
        self._role: int | None = None
        self._current_id = -1
        self._trainers_num = 0
        self._is_collective = False

    def _generate(self) -> None:
        """Set the fields. A subclass defines this."""
        raise NotImplementedError(f"{type(self).__name__}.generate_role: a subclass of RoleMakerBase has to define it")

    def generate_role(self) -> None:
        """Find out the role, once; every other method does it, too.

        Raises ProgramError when the job is not described.
        """
        if not self._role_is_generated:
            self._generate()
            self._role_is_generated = True

    def _known(self) -> "RoleMakerBase":
        self.generate_role()
        return self

    def is_worker(self) -> bool:
        """Return whether this process trains."""
        return self._known()._role == Role.WORKER

    def is_server(self) -> bool:
        """Return whether this process is a parameter server."""
        return self._known()._role == Role.SERVER

    def is_first_worker(self) -> bool:
        """Return whether this is the trainer of number 0, which saves models for all."""
        return self.is_worker() and self._current_id == 0

    def worker_num(self) -> int:
        """Return how many trainers there are."""
        return self._known()._trainers_num

    def worker_index(self) -> int:
        """Return the number of this process among the trainers, from 0."""
        return self._known()._current_id

    def server_index(self) -> int:
        """Return the number of this process among the servers, from 0."""
        return self._known()._current_id

    def get_trainer_endpoints(self) -> list[str]:
        """Return "ip:port" of each trainer; an empty list where the job does not tell."""
        return self._known()._worker_endpoints

    def get_pserver_endpoints(self) -> list[str]:
        """Return "ip:port" of each parameter server."""
        return self._known()._server_endpoints

    def to_string(self) -> str:
        """Return the role and all endpoints as a line of text."""
        self.generate_role()
        return (
            f"role: {self._role}, current_id: {self._current_id}, worker_endpoints: {self._worker_endpoints}, "
            f"server_endpoints: {self._server_endpoints}"
        )

    # Exchange between processes
    def _gather(self, value: Any, what: str) -> np.ndarray:
        """Return the arrays of all trainers, stacked."""
        if self.worker_num() == 1:
            return np.asarray(value)[None]
        if not self._is_collective:
            raise errors.UnsupportedError(
                f"{what}: a {type(self).__name__} does not tell where the trainers are; use "
                "GeneralRoleMaker, or a collective job"
            )
        processes.join(self._worker_endpoints, self._current_id)
        return processes.all_gather(np.asarray(value))

    def all_gather(self, input: Any) -> list[Any]:
        """Return the numbers of all trainers (in a collective job, of all processes).

        All processes must call it.

        Raises UnsupportedError where processes cannot reach each other.
        """
        return list(self._gather(input, "all_gather").tolist())

    def all_reduce_worker(self, input: Any, output: Any, mode: str = "sum") -> None:
        """Reduce numbers over all trainers, element by element. All trainers must call it.

        Args:
            input: a list or an array, of the same shape in all trainers.
            output: a list or an array of that shape, which gets the result.
            mode: "sum", "min" or "max".

        Raises UnsupportedError where trainers cannot reach each other.
        """
        if mode not in _REDUCTIONS:
            raise errors.ProgramError(f"all_reduce_worker, mode: expected {', '.join(_REDUCTIONS)}, found {mode!r}")
        result = _REDUCTIONS[mode](self._gather(input, "all_reduce_worker"), axis=0)
        output[:] = result if isinstance(output, np.ndarray) else result.tolist()

    def barrier_worker(self) -> None:
        """Wait until all trainers have called this.

        Raises UnsupportedError where they cannot reach each other.
        """
        self._gather(0, "barrier_worker")

    def barrier_all(self) -> None:
        """Wait until all processes have called this.

        Raises UnsupportedError where there are parameter servers.
        """
        if self.get_pserver_endpoints():
            raise errors.UnsupportedError(
                "barrier_all: trainers and parameter servers wait for each other when they start "
                "and stop; use barrier_worker among trainers"
            )
        self.barrier_worker()


def _role(environment: "RoleVariables") -> int:
    return Role.WORKER if environment.required("training_role") == "TRAINER" else Role.SERVER


def _number(environment: "RoleVariables", field: str, below: int) -> int:
    """Return the value of a field, which must be from 0 to `below` - 1."""
    number = int(environment.required(field))
    if number >= below:
        raise errors.ProgramError(
            f"{environment.name_of(field)}: expected an integer from 0 to {below - 1}, found {number}"
        )
    return number


def _place_of_server(environment: "RoleVariables", endpoints: Sequence[str]) -> int:
    """Return the server's number, which follows from the endpoint of this process."""
    own = f"{environment.required('host')}:{environment.required('port')}"
    if own not in endpoints:
        raise errors.ProgramError(
            f"POD_IP and PADDLE_PORT say {own}, which is not in PADDLE_PSERVERS_IP_PORT_LIST: {list(endpoints)}"
        )
    return list(endpoints).index(own)


def _endpoints_in_mpi(process: "Node", role_maker: str) -> list[str]:
    """Return an endpoint for each process of an MPI job.

    Raises UnsupportedError for processes on several hosts.
    """
    if process.coordinator is None or process.coordinator[0] != "127.0.0.1":
        raise errors.UnsupportedError(
            f"{role_maker}: the processes are on several hosts, and MPI's variables do not tell their addresses: "
            "start `mpirun -np HOSTS jfluid-launch ...` and use PaddleCloudRoleMaker()"
        )
    port = process.coordinator[1]
    return [f"127.0.0.1:{port + rank}" for rank in range(process.count)]


class PaddleCloudRoleMaker(RoleMakerBase):
    """The role that environment variables say, which jfluid-launch sets.

    In a collective job these are PADDLE_TRAINER_ENDPOINTS and PADDLE_TRAINER_ID (0 without it). In
    a job with parameter servers they are PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINERS_NUM,
    TRAINING_ROLE (TRAINER or PSERVER), PADDLE_TRAINER_ID of a trainer, POD_IP and PADDLE_PORT of a
    server. A collective job without PADDLE_TRAINER_ENDPOINTS may be one of MPI on this host
    (`mpirun -np 4 python train.py`), whose variables then say the place of each process.

    Unlike in Fluid, the processes of a collective job are workers, and process 0 is the first worker.
    In Fluid `is_worker` and `is_first_worker` of collective processes are always False.

    Args:
        is_collective: whether all processes train, and there are no servers.
    """

    def __init__(self, is_collective: bool = False):
        super().__init__()
        self._is_collective = is_collective

    def _generate(self) -> None:
        from jfluid.environment.process import RoleVariables
        from jfluid.launch.nodes import mpi_process

        environment = RoleVariables.from_env()
        if self._is_collective:
            if environment.collective_role != "TRAINER":
                raise errors.ProgramError(
                    "the environment variable PADDLE_TRAINING_ROLE: a collective job has only TRAINERs, "
                    f"found {environment.collective_role!r}"
                )
            self._role = Role.WORKER
            process = None if environment.trainer_endpoints else mpi_process()
            if process is not None:
                self._current_id, self._trainers_num = process.rank, process.count
                self._worker_endpoints = _endpoints_in_mpi(process, "PaddleCloudRoleMaker")
                return
            self._worker_endpoints = list(environment.required("trainer_endpoints"))
            self._trainers_num = len(self._worker_endpoints)
            self._current_id = (
                0 if environment.trainer_id is None else _number(environment, "trainer_id", self._trainers_num)
            )
            return
        servers = list(environment.required("pserver_endpoints"))
        number = int(environment.required("trainers_num"))
        role = _role(environment)
        if role == Role.WORKER:
            self._current_id = _number(environment, "trainer_id", number)
        else:
            self._current_id = _place_of_server(environment, servers)
        self._server_endpoints, self._trainers_num, self._role = servers, number, role


class GeneralRoleMaker(RoleMakerBase):
    """Role from environment variables, in a job with parameter servers and connected trainers.

    The variables are PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINER_ENDPOINTS, TRAINING_ROLE (TRAINER
    or PSERVER), PADDLE_TRAINER_ID of a trainer, PADDLE_PSERVER_ID (or POD_IP and PADDLE_PORT) of a
    server. Trainers connect to each other at their endpoints.

    Args:
        kwargs: Fluid's arguments that say where processes find each other (`http_ip_port`,
            `hdfs_name`, `hdfs_ugi`, `path`) and how long they wait (`init_timeout_seconds`,
            `run_timeout_seconds`). Here endpoints say that: each of these has no effect but a
            warning, and any other raises ProgramError.
    """

    _FLUIDS = ("hdfs_name", "hdfs_ugi", "path", "http_ip_port", "init_timeout_seconds", "run_timeout_seconds")

    def __init__(self, **kwargs: Any):
        super().__init__()
        for name, value in kwargs.items():
            if name not in self._FLUIDS:
                raise errors.ProgramError(
                    f"GeneralRoleMaker has no argument {name}" + errors.close_to(name, self._FLUIDS)
                )
            if value:
                warnings.warn(
                    f"GeneralRoleMaker, {name}: no effect: processes find each other by "
                    "PADDLE_TRAINER_ENDPOINTS and PADDLE_PSERVERS_IP_PORT_LIST",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _generate(self) -> None:
        from jfluid.environment.process import RoleVariables

        environment = RoleVariables.from_env()
        servers, trainers = (list(environment.required(f"{who}_endpoints")) for who in ("pserver", "trainer"))
        role = _role(environment)
        if role == Role.WORKER:
            self._current_id = _number(environment, "trainer_id", len(trainers))
        elif environment.pserver_id is not None:
            self._current_id = _number(environment, "pserver_id", len(servers))
        else:
            self._current_id = _place_of_server(environment, servers)
        self._role, self._server_endpoints = role, servers
        self._worker_endpoints, self._trainers_num = trainers, len(trainers)

    def server_num(self) -> int:
        """Return how many parameter servers there are."""
        return len(self.get_pserver_endpoints())

    def get_local_endpoint(self) -> str:
        """Return this process's own "ip:port"."""
        return (self.get_trainer_endpoints() if self.is_worker() else self.get_pserver_endpoints())[self._current_id]

    def _gather(self, value: Any, what: str) -> np.ndarray:
        if not self.is_worker():
            raise errors.UnsupportedError(f"{what}: only trainers tell each other numbers")
        from jfluid.dataset.exchange import gathered

        return gathered(np.asarray(value), self._current_id, self._worker_endpoints)


class MPISymetricRoleMaker(GeneralRoleMaker):
    """Role from MPI's variables: of each pair of processes the first is a parameter server, the second a trainer.

    The pairs are Fluid's. The variables are those of Open MPI (OMPI_COMM_WORLD_RANK and _SIZE), or of MPICH and Intel
    MPI (PMI_RANK, PMI_SIZE); mpi4py is not needed. They do not tell the addresses of hosts, so that all
    processes must be on this one; `mpirun jfluid-launch` starts jobs of several hosts.

    `generate_role` raises ProgramError outside of MPI and for an odd number of processes,
    UnsupportedError for several hosts.
    """

    def __init__(self) -> None:
        super().__init__()

    def _generate(self) -> None:
        from jfluid.launch.nodes import mpi_process

        process = mpi_process()
        if process is None:
            raise errors.ProgramError(
                "MPISymetricRoleMaker: there is no MPI job of several processes (OMPI_COMM_WORLD_SIZE or PMI_SIZE); "
                "start the script with mpirun -np 2, or use PaddleCloudRoleMaker() under jfluid-launch"
            )
        if process.count % 2:
            raise errors.ProgramError(
                f"MPISymetricRoleMaker: {process.count} processes; of each pair one is a server and one a trainer"
            )
        endpoints = _endpoints_in_mpi(process, "MPISymetricRoleMaker")
        self._server_endpoints, self._worker_endpoints = endpoints[::2], endpoints[1::2]
        self._role = Role.WORKER if process.rank % 2 else Role.SERVER
        self._current_id, self._trainers_num = process.rank // 2, process.count // 2

    @staticmethod
    def get_local_ip() -> str:
        """Return the address of this host."""
        return socket.gethostbyname(socket.gethostname())


def _checked_endpoints(what: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(e, str) for e in value):
        raise TypeError(f'{what}: expected a list of strings such as "10.0.0.1:6170", found {value!r}')
    if wrong := fault_of(value):
        raise errors.ProgramError(f"{what}, found {value}: {wrong}")
    return value


def _checked_number(what: str, value: Any, low: int, below: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}: expected a whole number, found {value!r}")
    if value < low or (below is not None and value >= below):
        raise errors.ProgramError(
            f"{what}: expected "
            + (f"{low} to {below - 1}" if below is not None else f"at least {low}")
            + f", found {value}"
        )
    return value


class UserDefinedRoleMaker(RoleMakerBase):
    """A role in a job with parameter servers that the script gives.

    Args:
        current_id: the number of this process among the processes of its role, from 0.
        role: Role.WORKER or Role.SERVER.
        worker_num: how many trainers there are.
        server_endpoints: "ip:port" of each server.

    Raises TypeError for an argument of a wrong type, ProgramError for a value that is impossible.
    """

    def __init__(
        self,
        current_id: int = 0,
        role: int = Role.WORKER,
        worker_num: int = 0,
        server_endpoints: list[str] | None = None,
    ):
        super().__init__()
        self._server_endpoints = _checked_endpoints("server_endpoints", server_endpoints)
        if role not in (Role.WORKER, Role.SERVER):
            raise TypeError(f"role: expected Role.WORKER or Role.SERVER, found {role!r}")
        self._role = role
        self._trainers_num = _checked_number("worker_num", worker_num, 1)
        self._current_id = _checked_number(
            "current_id", current_id, 0, len(self._server_endpoints) if role == Role.SERVER else None
        )

    def _generate(self) -> None:
        """Do nothing: the role is known from the start."""


class UserDefinedCollectiveRoleMaker(RoleMakerBase):
    """A role in a collective job that the script gives.

    Args:
        current_id: the number of this process, from 0.
        worker_endpoints: "ip:port" of each process.

    Raises TypeError for an argument of a wrong type, ProgramError for a value that is impossible.
    """

    def __init__(self, current_id: int = 0, worker_endpoints: list[str] | None = None):
        super().__init__()
        self._is_collective = True
        self._worker_endpoints = _checked_endpoints("worker_endpoints", worker_endpoints)
        self._current_id = _checked_number("current_id", current_id, 0, len(self._worker_endpoints))
        self._role, self._trainers_num = Role.WORKER, len(self._worker_endpoints)

    def _generate(self) -> None:
        """Do nothing: the role is known from the start."""
