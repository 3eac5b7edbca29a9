"""The kinds of jobs, as validated models."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from jfluid import known_sizes
from jfluid.environment.endpoints import host_and_port
from jfluid.environment.field_types import Count, FiniteSeconds, Natural
from jfluid.environment.process import ASSIGNED, SnapshotVariables
from jfluid.errors import SecretError
from jfluid.job.document import Dumper
from jfluid.job.fields import (
    Arguments,
    Endpoint,
    Environment,
    FolderText,
    Gpus,
    Grace,
    Hosts,
    JobName,
    LogBytes,
    Mode,
    PageAddress,
    PathText,
    Places,
    Ranks,
    ShapeBuckets,
    StartedPort,
)
from jfluid.record import profiles
from jfluid.security import secret

_SNAPSHOTS = SnapshotVariables()  # what there is without anybody's word


class Job(BaseModel):
    """Job of one process, and the keys that jobs of all modes have.

    With mode local a script runs in one process.

    A full disk ends the log and not the job.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    module: bool = Field(
        default=False,
        description="true: `script` names a module",
    )
    script: PathText = Field(description="the script, relative to the current folder of the launcher; or a module")
    name: JobName = Field(
        default_factory=lambda data: _short_name(data.get("script", ""), data.get("module", False)),
        description="the job's name (by default the script's)",
    )
    mode: Mode = Field(
        default="local",
        description="one process, several processes that train together, or servers and trainers",
    )
    args: Arguments = Field(
        default_factory=dict,
        description="the script's arguments: `{epochs: 10, sizes: [8, 16], verbose: true, quiet: false}` is "
        "`--epochs 10 --sizes 8 16 --verbose`; a list is passed unchanged",
    )
    env: Environment = Field(default_factory=dict, description="variables added to the processes' environment")
    shape_buckets: ShapeBuckets = Field(
        default_factory=dict,
        description="sizes to pad batches to, by the name of a feed and its dimension; by default sizes "
        "follow from the batches",
    )
    log_dir: FolderText = Field(
        default="mylog",
        description="the folder of `workerlog.RANK` and `serverlog.RANK`, the output of the processes",
    )
    log_max_bytes: LogBytes = Field(
        default=256 << 20,
        description="the size at which a process's log is renamed to LOG.1 and a new log begins",
    )
    log_backups: Natural = Field(default=1, description="the number of older logs kept for each process")
    log_times: bool = Field(
        default=True,
        description="true: lines of these logs begin with the time of their arrival, unless a line begins with a date",
    )
    record: bool = Field(
        default=True,
        description="true: the folder `record` in `log_dir` gets logged values and reports of the processes, "
        "for `jfluid dashboard`",
    )
    dashboard: PageAddress | None = Field(
        default=None,
        description="the address of the job's page, served by the launcher of host 0; a port listens on this "
        "machine only, and a `host:port` needs the key in the printed link",
    )
    profile: str | None = Field(
        default=None,
        description="the steps that all trainers profile, such as 100:110 (from 100 up to 110, counted from 0): "
        "`log_dir` gets one trace of all processes, which https://ui.perfetto.dev opens",
    )
    stall_timeout: FiniteSeconds | None = Field(
        default=None, description="seconds without a step after which the job has failed"
    )
    max_restarts: Natural = Field(default=0, description="the number of restarts of all processes after a failure")

    @field_validator("script")
    @classmethod
    def _is_a_file(cls, script: str, info: ValidationInfo) -> str:
        if info.data.get("module"):
            if not all(part.isidentifier() for part in script.split(".")):
                raise ValueError("with module: true it must be a module's name, such as news.train")
        elif not os.path.isfile(script):  # nor one that no file can have
            raise ValueError(f"there is no such file (looked in {Path.cwd()})")
        return script

    @field_validator("env")
    @classmethod
    def _has_no_secret(cls, env: dict[str, str]) -> dict[str, str]:
        shown = [name for name in env if name in (secret.VARIABLE, secret.OLDER_VARIABLE)]
        if shown:
            # The value must not show up in the error either.
            raise PydanticCustomError(
                "secret",
                f"a job file is shown and copied, and no place for {shown[0]}: set it where "
                "jfluid-launch runs, or name a file that has the secret: secret_file",
            )
        return env

    @model_validator(mode="after")
    def _says_sizes_once(self) -> Self:
        if self.shape_buckets and known_sizes.FLAG in self.env:
            raise ValueError(f"env sets {known_sizes.FLAG}, which shape_buckets does; remove it")
        return self

    def variables(self) -> dict[str, str]:
        """Return the environment variables that the job adds to its processes."""
        text = known_sizes.text_of(self.shape_buckets)
        return self.env | ({known_sizes.FLAG: text} if text else {})

    @field_validator("mode")
    @classmethod
    def _is_of_this_class(cls, mode: str) -> str:
        if JOBS.get(full_mode(mode)) is not cls:
            raise ValueError(f"must be {' or '.join(JOBS)}")
        return str(full_mode(mode))

    @model_validator(mode="after")
    def _has_what_its_page_shows(self) -> Self:
        if self.dashboard is not None and not self.record:
            raise ValueError("dashboard shows the record; remove record: false")
        if self.profile is not None:
            if not self.record:
                raise ValueError("profile is asked for through the record; remove record: false")
            profiles.parse_steps(self.profile)
        return self

    def arguments(self) -> list[str]:
        """Return the script's command line arguments."""
        if isinstance(self.args, list):
            return [str(value) for value in self.args]
        words: list[str] = []
        for key, value in self.args.items():
            if value is False:
                continue
            words.append(f"--{key}")
            if value is not True:
                words += map(str, value if isinstance(value, list) else [value])
        return words

    def command(self) -> list[str]:
        """Return the command line that runs the job."""
        return [sys.executable, *(["-m"] if self.module else []), self.script, *self.arguments()]

    def to_yaml(self) -> str:
        """Return the job as YAML that reads back as the same job, below a comment with its command line."""
        values = self.model_dump(exclude_defaults=True) | {
            key: getattr(self, key) for key in ("script", "name", "mode", "args", "env", "log_dir")
        }
        ordered = {key: values[key] for key in type(self).model_fields if key in values}
        text = yaml.dump(ordered, Dumper=Dumper, sort_keys=False, default_flow_style=False)
        command = shlex.join(self.command())
        visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in command)
        return f"# {visible}\n{text}"


def _short_name(script: str, is_module: bool) -> str:
    """Return the default name of a job: the script's or module's."""
    return script.rpartition(".")[2] if is_module else Path(script).stem


class GangJob(Job):
    """Job of several processes. All modes but local have these keys."""

    gpus: Gpus = Field(default=None, description="the GPUs of each host; by default processes run on the CPU")
    nodes: Count | None = Field(default=None, description="the number of hosts, each with a `jfluid-launch`")
    ips: Hosts | None = Field(default=None, description="the hosts' addresses")
    coordinator: Endpoint | None = Field(
        default=None, description="the endpoint at which the launcher of host 0 waits for further launchers"
    )
    started_port: StartedPort | None = Field(
        default=None, description="the first port of a host's processes; by default free ports"
    )
    secret_file: PathText | None = Field(
        default=None,
        description="a file (chmod 600) with the job's secret; by default the variable `JFLUID_JOB_TOKEN`, or"
        " on one host a new secret of the launcher",
    )
    console: Ranks = Field(default_factory=lambda: [0], description="the trainers with output on the console")

    @field_validator("env")
    @classmethod
    def _leaves_the_launchers_variables_alone(cls, env: dict[str, str]) -> dict[str, str]:
        taken = [name for name in env if name in ASSIGNED]
        if taken:
            raise ValueError(f"the launcher sets {' and '.join(taken)} for each process; remove it")
        return env

    @field_validator("secret_file")
    @classmethod
    def _has_a_secret(cls, path: str | None) -> str | None:
        if path is not None:
            try:
                secret.from_file(path)
            except SecretError as error:
                raise ValueError(str(error)) from None
        return path

    @model_validator(mode="after")
    def _lists_every_host(self) -> Self:
        if self.ips is not None and self.nodes not in (None, len(self.ips)):
            raise ValueError(f"nodes is {self.nodes}, but ips has {len(self.ips)} addresses")
        return self

    def check_shares(self, processes: int | None) -> None:
        """Raise ValueError unless `processes` processes can share the GPUs evenly."""
        number = len(self.gpus) if isinstance(self.gpus, list) else self.gpus
        if processes is not None and isinstance(number, int) and number % processes:
            raise ValueError(f"{number} gpus cannot be shared evenly by {processes} processes")


class CollectiveJob(GangJob):
    """Processes that train together, on one host or several.

    Each host runs `processes` processes, which share its `gpus` evenly (one each when `processes`
    is left out), or run on the CPU when there are no `gpus`.
    """

    mode: Mode = "collective"
    processes: Count | None = Field(
        default=None, description="the number of processes on each host; by default one for each GPU"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.gpus is None and self.processes is None:
            raise ValueError("a collective job needs gpus (such as gpus: 2) or processes (on the CPU), for each host")
        self.check_shares(self.processes)
        return self


class Restarts(BaseModel):
    """Numbers of restarts of a single server or trainer, while the remaining processes go on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    servers: Natural = Field(default=0, description="restarts of each server; needs `snapshots`")
    trainers: Natural = Field(default=0, description="restarts of each trainer")


class Snapshots(BaseModel):
    """Snapshots of the servers' tables and blocks, from which a restarted server begins.

    Each server has a separate folder in `folder`, on its host. Each trainer keeps up to `keep_bytes` of pushes to a
    server since the last snapshot, and repeats these pushes to a restored server. With `resume` the servers begin with
    the newest snapshots, if there are any; without `resume` the folder must hold none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    folder: FolderText = Field(
        description="the folder of snapshots, with a separate folder for each server on its host"
    )
    every_s: FiniteSeconds = Field(default=_SNAPSHOTS.snapshot_every_s, description="the time between two snapshots")
    keep_bytes: Natural = Field(
        default=_SNAPSHOTS.keep_bytes,
        description="bytes of pushes that a trainer keeps for each server since the last snapshot, to repeat "
        "the pushes after a restore",
    )
    resume: bool = Field(
        default=False,
        description="true: the servers begin with the newest snapshots; false: the folder must hold none",
    )

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which servers and trainers learn of this."""
        return SnapshotVariables(
            snapshot_folder=Path(os.path.abspath(self.folder)),
            snapshot_every_s=self.every_s,
            keep_bytes=self.keep_bytes,
        ).to_env()


class ParameterServerJob(GangJob):
    """Parameter servers and trainers: numbers for each host, or lists of `host:port`.

    The trainers on a host share its `gpus` evenly; servers run on the CPU. When all trainers have
    ended, the servers have `server_grace` seconds to end by themselves.
    """

    mode: Mode = "parameter_server"
    servers: Places = Field(
        default=1, description="the number of servers on each host, or the endpoints of all servers"
    )
    trainers: Places = Field(
        default=1, description="the number of trainers on each host, or the endpoints of all trainers"
    )
    server_grace: Grace = Field(default=10.0, description="seconds for servers to end after all trainers have ended")
    restarts: Restarts = Field(
        default_factory=Restarts,
        description="the number of restarts of a single process while the job goes on; one number for both roles",
    )
    snapshots: Snapshots | None = Field(default=None, description="periodic snapshots of the servers' state")

    @field_validator("restarts", mode="before")
    @classmethod
    def _of_both_roles(cls, value: Any) -> Any:
        return {"servers": value, "trainers": value} if type(value) is int else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lists = self._lists()
        both = [place for places in lists for place in places]
        if len(set(both)) < len(both):
            raise ValueError("servers and trainers must all have different endpoints")
        if lists and self.ips is not None:
            raise ValueError("ips does not go with lists of host:port, which say where servers and trainers are")
        if (self.hosts() or self.nodes not in (None, 1)) and len(lists) == 1:
            raise ValueError("on several hosts servers and trainers must both be lists of host:port, or both numbers")
        if lists and self.nodes not in (None, len(self.hosts()) or 1):
            raise ValueError(f"nodes is {self.nodes}, but servers and trainers are on {len(self.hosts()) or 1} hosts")
        if not self.hosts():
            self.check_shares(len(self.trainers) if isinstance(self.trainers, list) else self.trainers)
        return self

    @model_validator(mode="after")
    def _keeps_what_servers_hold(self) -> Self:
        if self.restarts.servers and self.snapshots is None:
            raise ValueError(
                "a server that is started again needs snapshots, or it has lost its rows: add "
                "snapshots: {folder: ...}, or set restarts.servers to 0"
            )
        taken = [] if self.snapshots is None else [name for name in self.snapshots.variables() if name in self.env]
        if taken:
            raise ValueError(f"env sets {' and '.join(taken)}, which the section snapshots does; remove it")
        return self

    def _lists(self) -> list[list[str]]:
        return [places for places in (self.servers, self.trainers) if isinstance(places, list)]

    @property
    def is_listed(self) -> bool:
        """True if endpoints of servers or trainers are given."""
        return bool(self._lists())

    def hosts(self) -> list[str]:
        """Return the hosts of the lists of endpoints, if there are several, in order."""
        hosts = list(dict.fromkeys(host_and_port(place)[0] for places in self._lists() for place in places))
        return hosts if len(hosts) > 1 else []


JOBS: dict[str, type[Job]] = {
    "local": Job,
    "collective": CollectiveJob,
    "parameter_server": ParameterServerJob,
}


def full_mode(mode: Any) -> Any:
    """Return the mode without its short name."""
    return "parameter_server" if mode == "ps" else mode
