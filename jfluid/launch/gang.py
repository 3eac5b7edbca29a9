"""The processes of one job on this host: a gang is a list of members, started and ended together."""
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jfluid.job import ASSIGNED, CollectiveJob, Job, JobError

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
    return [Member("trainer", 0, job.command(), os.environ | _DEFAULTS | job.env, Path(job.log_dir) / "workerlog.0")]


def processes_per_host(job: CollectiveJob, gpus: Sequence[str]) -> int:
    """How many processes a collective job runs on a host with these GPUs. Raises JobError when they do not divide."""
    number = job.processes or len(gpus)
    if gpus and len(gpus) % number:
        raise JobError(f"jfluid-launch: {len(gpus)} GPUs cannot be shared evenly by {number} processes")
    return number


def collective_gang(job: CollectiveJob, endpoints: Sequence[Sequence[str]], node: int, gpus: Sequence[str]) -> list[Member]:
    """The processes on host number `node`; `endpoints` has a list of `host:port` for each host, one for each process.

    GPUs are shared evenly. A process sees only its own, and FLAGS_selected_gpus counts among those it sees.
    """
    everyone = [endpoint for host in endpoints for endpoint in host]
    first = sum(map(len, endpoints[:node]))
    share = len(gpus) // len(endpoints[node])
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_MEMBERS + ASSIGNED}
    members = []
    for local, own in enumerate(endpoints[node]):
        assigned = {
            "PADDLE_TRAINER_ID": str(first + local), "PADDLE_TRAINERS_NUM": str(len(everyone)),
            "PADDLE_CURRENT_ENDPOINT": own, "PADDLE_TRAINER_ENDPOINTS": ",".join(everyone)}
        if gpus:
            assigned |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus[local * share:(local + 1) * share]),
                         "FLAGS_selected_gpus": ",".join(map(str, range(share)))}
        else:
            assigned |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        members.append(Member("trainer", first + local, job.command(), _DEFAULTS | inherited | job.env | assigned,
                              Path(job.log_dir) / f"workerlog.{first + local}"))
    return members
