"""All variables that a process of a job reads, by subject; `ProcessEnvironment` has all subjects."""

from pathlib import Path
from typing import ClassVar, Literal

from jfluid import environment, errors
from jfluid.environment.field_types import FiniteSeconds, Seconds
from jfluid.environment.variables import (
    Count,
    Endpoints,
    Gpus,
    Names,
    Natural,
    Port,
    Switch,
    Variables,
    variable,
)


class RoleVariables(Variables):
    """The role of a process in its job, and the addresses of all processes."""

    training_role: Literal["TRAINER", "PSERVER"] | None = variable(
        "TRAINING_ROLE", "the role of this process in a job with parameter servers", by_launcher=True
    )
    collective_role: str = variable("PADDLE_TRAINING_ROLE", "the role in a collective job: always `TRAINER`", "TRAINER")
    trainer_id: Natural | None = variable("PADDLE_TRAINER_ID", "the number of this trainer", by_launcher=True)
    trainers_num: Natural | None = variable("PADDLE_TRAINERS_NUM", "the number of trainers", by_launcher=True)
    num_trainers: Natural | None = variable(
        "PADDLE_NUM_TRAINERS", "the same number, for scripts that read this name", by_launcher=True
    )
    trainer_endpoints: Endpoints = variable(
        environment.TRAINER_ENDPOINTS, "the endpoints of all trainers", (), by_launcher=True
    )
    pserver_id: Natural | None = variable("PADDLE_PSERVER_ID", "the number of this server", by_launcher=True)
    pserver_endpoints: Endpoints = variable(
        "PADDLE_PSERVERS_IP_PORT_LIST", "the endpoints of all servers", (), by_launcher=True
    )
    current_endpoint: str | None = variable(
        "PADDLE_CURRENT_ENDPOINT", "the `host:port` of this process", by_launcher=True
    )
    joined: Switch = variable(
        environment.JOINED,
        "1 in child processes of a trainer that has joined the job: a child is not a trainer",
        False,
    )
    host: str | None = variable("POD_IP", "the host of this process", by_launcher=True)
    port: Port | None = variable("PADDLE_PORT", "the port of this process", by_launcher=True)
    restarts: Natural = variable("JFLUID_RESTARTS", "the number of restarts of this process by the launcher", 0)


class DeviceVariables(Variables):
    """Devices."""

    error: ClassVar[type[errors.JFluidError]] = errors.PlaceError

    cpu_num: Count = variable(
        "CPU_NUM",
        "the number of CPU devices of replicas; may be set in Python at any time",
        environment.DEFAULT_CPU_NUM,
    )
    selected_gpus: Gpus = variable(
        "FLAGS_selected_gpus",
        "the GPUs of replicas, as indices into the GPUs visible to the process; by default all",
        (),
        by_launcher=True,
    )
    visible_gpus: Names | None = variable(
        "CUDA_VISIBLE_DEVICES",
        "read by CUDA: the GPUs visible to the process; empty: none",
        by_launcher=True,
    )
    jax_platforms: str | None = variable(
        "JAX_PLATFORMS",
        "read by JAX: its platforms; the launcher sets `cpu` for a process without a GPU",
    )
    coordinator_bind_address: str | None = variable(
        "JAX_COORDINATOR_BIND_ADDRESS",
        "the listening address of JAX's coordinator in the first trainer; by default its address "
        "in `PADDLE_TRAINER_ENDPOINTS`",
    )
    nccl_interface: str | None = variable(
        "NCCL_SOCKET_IFNAME",
        "read by NCCL: the network interfaces between GPUs of several hosts, such as `eth0`; gloo, which carries "
        "arrays between CPUs, has no such variable and takes the interface of the address of this host's name",
    )
    xla_threads: Count | None = variable(
        "PJRT_NPROC",
        "read by XLA when JAX starts: the number of threads of steps on the CPU; by default one "
        "for each available processor",
    )
    bind_threads: Switch | None = variable(
        "JFLUID_BIND_THREADS",
        "1: binds each of these threads to a processor; 0: binds no thread; by default 1 for a "
        "process with 2 to 8 processors that is alone in its job",
    )
    xla_flags: str = variable(
        "XLA_FLAGS",
        "read by XLA; an option named here is not changed by jfluid",
        "",
    )


class TlsVariables(Variables):
    """Certificates of parameter servers and of their clients."""

    error: ClassVar[type[errors.JFluidError]] = errors.ServerError

    tls_certificate: Path | None = variable(
        "JFLUID_PS_TLS_CERTIFICATE",
        "a PEM file with the certificate of a server, which then accepts TLS connections only; or"
        " of a trainer, if servers require it",
    )
    tls_key: Path | None = variable("JFLUID_PS_TLS_KEY", "a PEM file with the key of the certificate")


class ServerVariables(TlsVariables):
    """Parameter servers."""

    silence_s: Seconds = variable("JFLUID_PS_SILENCE_S", "a trainer not heard for longer counts as silent", 60.0)
    on_silence: Literal["fail", "leave out"] = variable(
        "JFLUID_PS_ON_SILENCE",
        "the effect of a silent trainer: the job fails, or goes on without it until it is heard again",
        "fail",
    )
    start_s: Seconds = variable(
        "JFLUID_PS_START_S",
        "after a restore of a server, a trainer not heard for longer counts as silent, too",
        600.0,
    )
    max_rows: Count | None = variable("JFLUID_PS_MAX_ROWS", "the limit for rows of all tables of one server")
    max_bytes: Count | None = variable("JFLUID_PS_MAX_BYTES", "the limit for bytes of all tables of one server")
    metrics_port: Port | None = variable(
        "JFLUID_PS_METRICS_PORT",
        "the Prometheus port of a host's first server; the second server uses the next port, and so on",
    )
    tls_clients: Path | None = variable(
        "JFLUID_PS_TLS_CLIENTS",
        "a PEM file of authorities: clients, also of metrics, must show a certificate of a listed authority",
    )


class ConnectionVariables(TlsVariables):
    """Connections to parameter servers."""

    tls_authority: Path | None = variable(
        "JFLUID_PS_TLS_AUTHORITY",
        "a PEM file of the authority of the servers' certificates: makes trainers use TLS, and "
        "servers that ask each other about snapshots",
    )


class SnapshotVariables(Variables):
    """Snapshots of parameter servers."""

    error: ClassVar[type[errors.JFluidError]] = errors.ServerError

    snapshot_folder: Path | None = variable(
        "JFLUID_PS_SNAPSHOT_FOLDER",
        "the folder of snapshots, with a separate folder for each server; without it no snapshots"
        " are written. Trainers need it, too",
    )
    snapshot_every_s: FiniteSeconds = variable("JFLUID_PS_SNAPSHOT_EVERY_S", "the time between two snapshots", 60.0)
    restore: Switch = variable(
        "JFLUID_PS_RESTORE",
        "1: a restarted server goes on from its last snapshot, if there is one",
        False,
        by_launcher=True,
    )
    keep_bytes: Natural = variable(
        "JFLUID_PS_KEEP_BYTES",
        "with a snapshot folder: bytes of pushes that a trainer keeps for each server since its "
        "last snapshot, to repeat the pushes after a restore; 0 without a folder",
        256 << 20,
    )


class SecretVariables(Variables):
    """The job's secret, and the launcher."""

    error: ClassVar[type[errors.JFluidError]] = errors.SecretError
    empty_counts: ClassVar[bool] = True

    job_token: str | None = variable(environment.JOB_TOKEN, "the job's secret (docs/security.md)", secret=True)
    older_job_token: str | None = variable(
        environment.OLDER_JOB_TOKEN, "an older name, read if `JFLUID_JOB_TOKEN` is not set", secret=True
    )
    progress_channel: str | None = variable(
        environment.PROGRESS_CHANNEL,
        "the pipe for progress reports to the launcher, and the launcher's process number",
    )
    record_dir: str | None = variable(
        environment.RECORD_DIR,
        "the job's log folder, below which processes of the launcher write records; empty: no records",
    )
    clock_ahead: float | None = variable(
        environment.CLOCK_AHEAD,
        "the seconds that this host's clock is ahead of that of host 0, for profiles of several hosts",
    )
    gang_member: str | None = variable(
        environment.GANG_MEMBER,
        "a mark by which the launcher finds child processes of its members, to end these with the job",
    )


class FolderVariables(Variables):
    """Folders of this user."""

    cache_home: Path = variable(
        "XDG_CACHE_HOME",
        "the folder of `jfluid/secret`, the secret of this user's jobs on this machine",
        Path("~/.cache"),
    )


class StartupVariables(Variables):
    """Scripts that import `paddle`."""

    as_paddle: Switch | None = variable(
        "JFLUID_AS_PADDLE",
        "1: `import paddle` finds jfluid; 0: never; by default, if no PaddlePaddle is installed",
    )
    disable_plot: str | None = variable(
        environment.DISABLE_PLOT,
        "`True`: `paddle.utils.Ploter` draws nothing and needs no matplotlib",
    )


class ThreadVariables(Variables):
    """Fluid's threads of parameter servers, which have no effect."""

    rpc_send_thread_num: Count = variable("FLAGS_rpc_send_thread_num", "threads for pushes", 12)
    rpc_get_thread_num: Count = variable("FLAGS_rpc_get_thread_num", "threads for pulls", 12)
    rpc_prefetch_thread_num: Count = variable("FLAGS_rpc_prefetch_thread_num", "threads for look-ups", 12)


class ProcessEnvironment(
    RoleVariables,
    DeviceVariables,
    ServerVariables,
    ConnectionVariables,
    SnapshotVariables,
    SecretVariables,
    FolderVariables,
    StartupVariables,
    ThreadVariables,
):
    """The variables of one process of a job.

    `to_env` is what its launcher gives it, `from_env` what it is given.
    """

    error: ClassVar[type[errors.JFluidError]] = errors.ProgramError
    empty_counts: ClassVar[bool] = False


ASSIGNED = tuple(
    name
    for name, field in ProcessEnvironment.fields().items()
    if isinstance(field.json_schema_extra, dict) and field.json_schema_extra["by_launcher"]
)
