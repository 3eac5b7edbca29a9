"""The processes of one job on this host: a gang is a list of members, started and ended together."""

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jfluid.environment import JOINED, OLDER_JOB_TOKEN
from jfluid.environment.endpoints import host_and_port
from jfluid.environment.process import ASSIGNED, ProcessEnvironment
from jfluid.job import CollectiveJob, GangJob, Job, JobError, ParameterServerJob

# Proxies, which gRPC would use between hosts; the older name of a variable that members get; what
# the launcher's own parent has joined.
_NOT_FOR_MEMBERS = ("http_proxy", "https_proxy", OLDER_JOB_TOKEN, JOINED)
# A traceback of crashes and stalls; SIGTERM ends the process, which JAX's preemption service would
# swallow.
_DEFAULTS = {"PYTHONFAULTHANDLER": "1", "JAX_ENABLE_PREEMPTION_SERVICE": "false"}


@dataclass(frozen=True)
class Member:
    """A process of a gang: role ("trainer" or "server"), rank, command line, environment and log file.

    After a failure it is restarted up to `restarts` times while the gang keeps running. A restart adds `env_again` to
    the environment.
    """

    role: str
    rank: int
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    restarts: int = 0
    env_again: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"rank {self.rank}" if self.role == "trainer" else f"{self.role} {self.rank}"


def local_gang(job: Job) -> list[Member]:
    """Return the single process of a local job."""
    return [
        Member(
            "trainer",
            0,
            job.command(),
            _DEFAULTS | os.environ | job.variables(),
            Path(job.log_dir) / "workerlog.0",
        )
    ]


def collective_gang(
    job: CollectiveJob,
    endpoints: Sequence[Sequence[str]],
    node: int,
    gpus: Sequence[str],
    secret: str,
) -> list[Member]:
    """Return the processes on host number `node`.

    `endpoints` has for each host a list with the `host:port` of each process.
    """
    everyone = [endpoint for host in endpoints for endpoint in host]
    first = sum(map(len, endpoints[:node]))
    common = ProcessEnvironment(
        trainers_num=len(everyone),
        num_trainers=len(everyone),
        trainer_endpoints=tuple(everyone),
        job_token=secret,
    )
    return [
        _trainer(job, first + local, devices, common)
        for local, devices in enumerate(shares(gpus, len(endpoints[node])))
    ]


def parameter_server_gang(
    job: ParameterServerJob,
    servers: Sequence[str],
    trainers: Sequence[str],
    here: Container[str],
    gpus: Sequence[str],
    secret: str,
) -> list[Member]:
    """Return the servers and trainers with an endpoint in `here`; `secret` is the job's."""
    common = ProcessEnvironment(
        pserver_endpoints=tuple(servers),
        trainers_num=len(trainers),
        num_trainers=len(trainers),
        trainer_endpoints=tuple(trainers),
        job_token=secret,
    )
    snapshots = job.snapshots.variables() if job.snapshots else {}
    restored = ProcessEnvironment(restore=True).to_env() if job.snapshots else {}
    members = []
    for rank, own in enumerate(servers):
        if own in here:
            assigned = _placed(common, own, training_role="PSERVER", pserver_id=rank).to_env() | snapshots
            assigned |= restored if job.snapshots and job.snapshots.resume else {}
            members.append(
                Member(
                    "server",
                    rank,
                    job.command(),
                    _environment(job, assigned, []),
                    Path(job.log_dir) / f"serverlog.{rank}",
                    job.restarts.servers,
                    restored,
                )
            )
    ranks = [rank for rank, own in enumerate(trainers) if own in here]
    for rank, devices in zip(ranks, shares(gpus, len(ranks))):
        told = _placed(common, trainers[rank], training_role="TRAINER")
        members.append(replace(_trainer(job, rank, devices, told, snapshots), restarts=job.restarts.trainers))
    return members


def _placed(common: ProcessEnvironment, own: str, **fields: Any) -> ProcessEnvironment:
    """Return the environment of the process at endpoint `own` of a parameter server job."""
    host, port = host_and_port(own)
    return common.model_copy(update={"current_endpoint": own, "host": host, "port": port, **fields})


def shares(gpus: Sequence[str], processes: int) -> list[Sequence[str]]:
    """Even parts of a host's GPUs, one for each process.

    Raises JobError when they do not divide.
    """
    if processes and len(gpus) % processes:
        raise JobError(f"jfluid-launch: {len(gpus)} GPUs cannot be shared evenly by {processes} processes")
    size = len(gpus) // max(processes, 1)
    return [gpus[number * size : (number + 1) * size] for number in range(processes)]


def _trainer(
    job: GangJob,
    rank: int,
    gpus: Sequence[str],
    told: ProcessEnvironment,
    more: Mapping[str, str] = {},
) -> Member:
    """Return a trainer, which sees only its GPUs; FLAGS_selected_gpus counts visible GPUs."""
    told = told.model_copy(update={"trainer_id": rank, "current_endpoint": told.trainer_endpoints[rank]})
    return Member(
        "trainer",
        rank,
        job.command(),
        _environment(job, {**told.to_env(), **more}, gpus),
        Path(job.log_dir) / f"workerlog.{rank}",
    )


def _environment(job: GangJob, assigned: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_MEMBERS + ASSIGNED}
    devices = (
        ProcessEnvironment(visible_gpus=tuple(gpus), selected_gpus=tuple(range(len(gpus))))
        if gpus
        else ProcessEnvironment(visible_gpus=(), jax_platforms="cpu")
    )
    return {**_DEFAULTS, **inherited, **devices.to_env(), **job.variables(), **assigned}
