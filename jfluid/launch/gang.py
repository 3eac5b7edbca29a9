"""The processes of one job on this host: a gang is a list of members, started and ended together."""
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from jfluid.job import ASSIGNED, CollectiveJob, GangJob, Job, JobError, ParameterServerJob, endpoint

# Variables that tell the launcher, not its processes, about the hosts; and proxies, which gRPC would use between hosts.
_NOT_FOR_MEMBERS = ("PADDLE_NUM_TRAINERS", "http_proxy", "https_proxy")
# A traceback of crashes and stalls; SIGTERM ends the process, which JAX's preemption service would swallow.
_DEFAULTS = {"PYTHONFAULTHANDLER": "1", "JAX_ENABLE_PREEMPTION_SERVICE": "false"}


@dataclass(frozen=True)
class Member:
    """One process: its role ("trainer" or "server"), rank within the role, command line, whole environment, log file."""

    role: str
    rank: int
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path

    @property
    def label(self) -> str:
        return f"rank {self.rank}" if self.role == "trainer" else f"{self.role} {self.rank}"


def local_gang(job: Job) -> list[Member]:
    """A script on its own."""
    return [Member("trainer", 0, job.command(), _DEFAULTS | os.environ | job.env, Path(job.log_dir) / "workerlog.0")]


def collective_gang(job: CollectiveJob, endpoints: Sequence[Sequence[str]], node: int, gpus: Sequence[str]) -> list[Member]:
    """The processes on host number `node`; `endpoints` has a list of `host:port` for each host, one for each process."""
    everyone = [endpoint for host in endpoints for endpoint in host]
    first = sum(map(len, endpoints[:node]))
    return [_trainer(job, first + local, everyone, devices)
            for local, devices in enumerate(shares(gpus, len(endpoints[node])))]


def parameter_server_gang(job: ParameterServerJob, servers: Sequence[str], trainers: Sequence[str], host: str | None,
                          gpus: Sequence[str]) -> list[Member]:
    """The servers and trainers, of all those with the given endpoints, on one host (None: all are)."""
    common = {"PADDLE_PSERVERS_IP_PORT_LIST": ",".join(servers), "PADDLE_TRAINERS_NUM": str(len(trainers)),
              "PADDLE_TRAINER_ENDPOINTS": ",".join(trainers)}
    members = []
    for rank, own in enumerate(servers):
        ip, port = endpoint(own)
        if host in (None, ip):
            assigned = common | {
                "TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": own,
                "POD_IP": ip, "PADDLE_PORT": str(port)}
            members.append(Member("server", rank, job.command(), _environment(job, assigned, []),
                                  Path(job.log_dir) / f"serverlog.{rank}"))
    here = [rank for rank, own in enumerate(trainers) if host in (None, endpoint(own)[0])]
    for rank, devices in zip(here, shares(gpus, len(here))):
        ip, port = endpoint(trainers[rank])
        members.append(_trainer(job, rank, trainers, devices,
                                common | {"TRAINING_ROLE": "TRAINER", "POD_IP": ip, "PADDLE_PORT": str(port)}))
    return members


def shares(gpus: Sequence[str], processes: int) -> list[Sequence[str]]:
    """Even parts of a host's GPUs, one for each process. Raises JobError when they do not divide."""
    if processes and len(gpus) % processes:
        raise JobError(f"jfluid-launch: {len(gpus)} GPUs cannot be shared evenly by {processes} processes")
    size = len(gpus) // max(processes, 1)
    return [gpus[number * size:(number + 1) * size] for number in range(processes)]


def _trainer(job: GangJob, rank: int, endpoints: Sequence[str], gpus: Sequence[str],
             more: Mapping[str, str] = MappingProxyType({})) -> Member:
    """A trainer; it sees only its own GPUs, and FLAGS_selected_gpus counts among those it sees."""
    assigned = {"PADDLE_TRAINER_ID": str(rank), "PADDLE_TRAINERS_NUM": str(len(endpoints)),
                "PADDLE_CURRENT_ENDPOINT": endpoints[rank], "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
                **more}
    return Member("trainer", rank, job.command(), _environment(job, assigned, gpus), Path(job.log_dir) / f"workerlog.{rank}")


def _environment(job: GangJob, assigned: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_MEMBERS + ASSIGNED}
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    if gpus:
        devices["FLAGS_selected_gpus"] = ",".join(map(str, range(len(gpus))))
    else:
        devices["JAX_PLATFORMS"] = "cpu"
    return {**_DEFAULTS, **inherited, **devices, **job.env, **assigned}
