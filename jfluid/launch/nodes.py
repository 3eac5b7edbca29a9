"""The rank of this launcher: there is one launcher on each host, or for each task of a scheduler.

The job file and the command line take precedence; then the variables of PaddleCloud (if enabled),
Slurm, OpenMPI and Kubernetes.
"""

import os
import re
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jfluid.environment.endpoints import host_and_port
from jfluid.job import GangJob, JobError, ParameterServerJob
from jfluid.launch.schedulers import (
    FluidVariables,
    KubernetesVariables,
    MpichVariables,
    OpenMpiVariables,
    PaddleCloudVariables,
    SlurmVariables,
)

FIRST_PORT = 6070  # Fluid's, for the processes of a host in a list of several
_CLOUD_PORT = 6170
# above those that Linux gives to clients: one for each job of a scheduler
_PORTS_OF_JOBS = 61440, 4096


@dataclass(frozen=True)
class NodeOptions:
    """Options that exist on the command line only, since each host has different values."""

    rank: int | None = None
    ip: str | None = None
    use_paddlecloud: bool = False


@dataclass(frozen=True)
class Node:
    """Launcher `rank` of `count`; `task` of `tasks` launchers on this host, which share its GPUs.

    `host` is this host's address, None if the route to the coordinator determines it. Its processes
    get `ports`, or ports from `first_port` on, or free ports.
    """

    rank: int = 0
    count: int = 1
    host: str | None = None
    coordinator: tuple[str, int] | None = None
    first_port: int | None = None
    ports: tuple[int, ...] | None = None
    task: int = 0
    tasks: int = 1


def find_node(job: GangJob, options: NodeOptions, environment: Mapping[str, str] = os.environ) -> Node:
    """Find this launcher's rank. Raises JobError for missing or contradictory settings."""
    said = hosts_outside(environment) if job.nodes is None else None
    count = job.nodes or said
    node = Node(options.rank or 0, count or 1, options.ip)
    is_listed = isinstance(job, ParameterServerJob) and job.is_listed
    ips = job.hosts() if isinstance(job, ParameterServerJob) and is_listed else job.ips
    cloud = PaddleCloudVariables.from_env(environment) if options.use_paddlecloud else PaddleCloudVariables()
    if cloud.trainers_num not in (None, 1):
        node = _of_paddlecloud(cloud, job.started_port)
    elif ips:
        node = _of_list(ips, options, job.started_port or FIRST_PORT)
    elif is_listed:
        node = Node(host=options.ip)
    elif options.rank is None and count != 1:
        placed = _of_scheduler(environment, count)
        if placed is None and count is not None:
            meet = "" if job.coordinator else ", and --coordinator HOST:PORT, an address of host 0"
            raise JobError(
                f"jfluid-launch: {_saying(said)}{count} hosts, and the number of this host is unknown: give "
                f"--node-rank K (from 0) on each{meet}; or --ips with the addresses of all"
            )
        node = placed or node
    if job.coordinator is not None:
        node = replace(node, coordinator=host_and_port(job.coordinator))
    if job.started_port is not None:
        node = replace(node, first_port=job.started_port)
    return _checked(node, options, count, _saying(said))


def hosts_outside(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of hosts in PADDLE_NUM_TRAINERS, or None.

    None if the variable is not set, or if a launcher set it for this process, a trainer. Raises JobError.
    """
    found = FluidVariables.from_env(environment)
    return None if found.trainer_endpoints else found.nodes


def check_alone(environment: Mapping[str, str] = os.environ) -> None:
    """Raise JobError if the environment asks for several hosts and the job is one process."""
    count = hosts_outside(environment)
    if count is not None and count > 1:
        raise JobError(
            f"jfluid-launch: {_saying(count)}{count} hosts, but the job is one process: say how many "
            "there are on each host with --gpus N or --cpus N (then also --node-rank K and "
            "--coordinator HOST:PORT, or --ips with the addresses of all), or unset the variable"
        )


def _saying(hosts: int | None) -> str:
    return "" if hosts is None else "PADDLE_NUM_TRAINERS says "


def _checked(node: Node, options: NodeOptions, count: int | None, saying: str) -> Node:
    if count is not None and node.count != count:
        raise JobError(f"jfluid-launch: {saying or 'the job wants '}{count} hosts, but there are {node.count}")
    if options.rank is not None and options.rank != node.rank:
        raise JobError(
            f"jfluid-launch: --node-rank {options.rank}, but this host is number {node.rank} of the listed hosts"
        )
    if not 0 <= node.rank < node.count:
        raise JobError(
            f"jfluid-launch: --node-rank {node.rank}: a job of {node.count} hosts has the ranks 0 to "
            f"{node.count - 1} (say how many hosts there are with --nodes N)"
        )
    if node.count > 1 and node.coordinator is None:
        raise JobError(
            "jfluid-launch: where do the hosts meet? Say --coordinator HOST:PORT with an address of host 0, or "
            "--ips with the addresses of all"
        )
    return node


# ---- lists of addresses --------------------------------------------------------------------------


def _of_list(ips: Sequence[str], options: NodeOptions, first_port: int) -> Node:
    rank = options.rank if options.rank is not None else _index_of_this_host(ips, options.ip)
    if not 0 <= rank < len(ips):
        raise JobError(f"jfluid-launch: --node-rank {rank}, but --ips has {len(ips)} addresses")
    return Node(
        rank,
        len(ips),
        ips[rank],
        (ips[0], first_port - 1) if len(ips) > 1 else None,
        first_port if len(ips) > 1 else None,
    )


def _index_of_this_host(ips: Sequence[str], own: str | None) -> int:
    if own is not None:
        if own not in ips:
            raise JobError(f"jfluid-launch: --node_ip {own} is not among --ips {','.join(ips)}")
        return ips.index(own)
    here = [number for number, ip in enumerate(ips) if _is_of_this_host(ip)]
    if len(here) != 1:
        raise JobError(
            f"jfluid-launch: {'none' if not here else 'more than one'} of --ips {','.join(ips)} is an address of "
            "this host; say which host this is with --node_ip or --node-rank"
        )
    return here[0]


def _is_of_this_host(host: str) -> bool:
    """Return True if a socket can be bound to the first address of `host`."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def _of_paddlecloud(cloud: PaddleCloudVariables, first_port: int | None) -> Node:
    missing = [
        cloud.name_of(field) for field in ("trainers", "host", "trainer_id") if field not in cloud.model_fields_set
    ]
    if missing:
        raise JobError(
            f"jfluid-launch: --use_paddlecloud: PaddleCloud sets {', '.join(missing)}, but this environment has none"
        )
    node = _of_list(cloud.trainers, NodeOptions(cloud.trainer_id), cloud.port or first_port or _CLOUD_PORT)
    if cloud.endpoints:
        ports = [host_and_port(text)[1] for text in cloud.endpoints]
        share = len(ports) // len(cloud.trainers)
        node = replace(node, ports=tuple(ports[node.rank * share : (node.rank + 1) * share]))
    return replace(node, host=cloud.host)


# ---- schedulers ----------------------------------------------------------------------------------


def _of_scheduler(environment: Mapping[str, str], count: int | None) -> Node | None:
    return _of_slurm(environment) or mpi_process(environment) or _of_kubernetes(environment, count)


def _port_of(job: str) -> int:
    first, number = _PORTS_OF_JOBS
    return first + zlib.crc32(job.encode()) % number


def _of_slurm(environment: Mapping[str, str]) -> Node | None:
    """Return the node of a task that srun started, or None; a batch script itself counts as a single host."""
    slurm = SlurmVariables.from_env(environment)
    hosts = slurm.step_hosts or slurm.job_hosts
    if slurm.tasks is None or slurm.tasks == 1 or slurm.rank is None or not hosts:
        return None
    per_host = _repeated(slurm.tasks_per_host)
    return Node(
        slurm.rank,
        slurm.tasks,
        coordinator=(first_host(hosts), _port_of(f"{slurm.job}.{slurm.step}")),
        task=slurm.local_rank,
        tasks=per_host[slurm.host] if slurm.host < len(per_host) else 1,
    )


def _repeated(text: str) -> list[int]:
    """Slurm's `2(x3),1` as [2, 2, 2, 1]."""
    return [int(number) for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]


def first_host(hosts: str) -> str:
    """Return the first of a list of hosts in Slurm's short form, such as gpu[07-09,12],cpu3."""
    match = re.match(r"([^,\[]*)(?:\[([^\]]*)\]([^,\[]*))?", hosts)
    assert match is not None  # every part may be empty
    prefix, numbers, suffix = match.groups(default="")
    return prefix + re.split("[-,]", numbers)[0] + suffix


def _of_openmpi(environment: Mapping[str, str]) -> Node | None:
    mpi, job_hosts = (
        OpenMpiVariables.from_env(environment),
        SlurmVariables.from_env(environment).job_hosts,
    )
    if mpi.tasks is None or mpi.tasks == 1 or mpi.rank is None:
        return None
    host = None
    if mpi.local_tasks == mpi.tasks:
        host = "127.0.0.1"
    elif job_hosts:
        host = first_host(job_hosts)
    elif match := re.search(r"tcp://([\d.]+)", mpi.daemon):
        host = match[1]  # where mpirun runs
    coordinator = (host, _port_of(mpi.namespace or mpi.older_namespace)) if host else None
    return Node(
        mpi.rank,
        mpi.tasks,
        coordinator=coordinator,
        task=mpi.local_rank,
        tasks=mpi.local_tasks or 1,
    )


def mpi_process(environment: Mapping[str, str] = os.environ) -> Node | None:
    """Return this process's rank in an MPI job, or None outside of MPI.

    Reads the variables of Open MPI, MPICH and Intel MPI. The coordinator is 127.0.0.1 if all ranks share this host.
    Raises JobError for variables that are no numbers.
    """
    found = _of_openmpi(environment)
    if found is not None:
        return found
    mpi = MpichVariables.from_env(environment)
    if mpi.tasks is None or mpi.tasks == 1 or mpi.rank is None:
        return None
    here = mpi.local_tasks in (None, mpi.tasks)
    return Node(
        mpi.rank,
        mpi.tasks,
        coordinator=("127.0.0.1", _port_of(f"mpich {mpi.tasks}")) if here else None,
        task=mpi.local_rank,
        tasks=mpi.local_tasks or 1,
    )


def _of_kubernetes(environment: Mapping[str, str], count: int | None) -> Node | None:
    """Return the node of a pod of an Indexed Job or JobSet; pod names determine the names of sibling pods."""
    rank = KubernetesVariables.from_env(environment).rank
    if rank is None or count is None:
        return None
    name, dot, domain = socket.getfqdn().partition(".")
    first = re.sub(r"-\d+$", "-0", name) + dot + domain
    return Node(rank, count, None, (first, FIRST_PORT - 1))
