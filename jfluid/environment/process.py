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
        "TRAINING_ROLE", "of a job with parameter servers: what this process does", by_launcher=True
    )
    collective_role: str = variable(
        "PADDLE_TRAINING_ROLE", "of a collective job: `TRAINER`, there are no others", "TRAINER"
    )
    trainer_id: Natural | None = variable("PADDLE_TRAINER_ID", "the number of this trainer", by_launcher=True)
    trainers_num: Natural | None = variable("PADDLE_TRAINERS_NUM", "how many trainers there are", by_launcher=True)
    num_trainers: Natural | None = variable(
        "PADDLE_NUM_TRAINERS", "the same, for scripts that read this name", by_launcher=True
    )
    trainer_endpoints: Endpoints = variable(
        environment.TRAINER_ENDPOINTS, "where all trainers are", (), by_launcher=True
    )
    pserver_id: Natural | None = variable("PADDLE_PSERVER_ID", "the number of this server", by_launcher=True)
    pserver_endpoints: Endpoints = variable(
        "PADDLE_PSERVERS_IP_PORT_LIST", "where all servers are", (), by_launcher=True
    )
    current_endpoint: str | None = variable(
        "PADDLE_CURRENT_ENDPOINT", "the `host:port` of this process", by_launcher=True
    )
    joined: Switch = variable(
        environment.JOINED,
        "1 in what a trainer that has joined the others starts: such a process is no trainer of its number",
        False,
    )
    host: str | None = variable("POD_IP", "its host", by_launcher=True)
    port: Port | None = variable("PADDLE_PORT", "its port", by_launcher=True)
    restarts: Natural = variable("JFLUID_RESTARTS", "how often the launcher has started it again", 0)


class DeviceVariables(Variables):
    """Devices."""

    error: ClassVar[type[errors.JFluidError]] = errors.PlaceError

    cpu_num: Count = variable(
        "CPU_NUM",
        "how many CPU devices replicas run on; it may be set in Python at any time",
        environment.DEFAULT_CPU_NUM,
    )
    selected_gpus: Gpus = variable(
        "FLAGS_selected_gpus",
        "what replicas run on, by the numbers of the GPUs that the process sees; all of them without it",
        (),
        by_launcher=True,
    )
    visible_gpus: Names | None = variable(
        "CUDA_VISIBLE_DEVICES",
        "read by CUDA: the GPUs that the process sees; empty: none",
        by_launcher=True,
    )
    jax_platforms: str | None = variable(
        "JAX_PLATFORMS",
        "read by JAX: what it runs on; the launcher says `cpu` where a process has no GPU",
    )
    coordinator_bind_address: str | None = variable(
        "JAX_COORDINATOR_BIND_ADDRESS",
        "where the first of the processes that train together listens to the others, "
        "if not at its address in `PADDLE_TRAINER_ENDPOINTS`",
    )
    nccl_interface: str | None = variable(
        "NCCL_SOCKET_IFNAME",
        "read by NCCL: the network interfaces between GPUs of several hosts, such as `eth0`; gloo, which carries arrays "
        "between CPUs, has no such variable and takes the interface of the address of this host's name",
    )
    xla_threads: Count | None = variable(
        "PJRT_NPROC",
        "read by XLA when JAX starts: how many threads steps on the CPU use; one for each "
        "processor that the process may use without it",
    )
    bind_threads: Switch | None = variable(
        "JFLUID_BIND_THREADS",
        "1: each of these threads stays on a processor of its own, 0: none does; without it they do "
        "where the process may use 2 to 8 processors and is not one of several of a job",
    )
    xla_flags: str = variable(
        "XLA_FLAGS",
        "read by XLA; what jfluid would set by itself, and is named here, stays as it is here",
        "",
    )


class TlsVariables(Variables):
    """Certificates of parameter servers and of their clients."""

    error: ClassVar[type[errors.JFluidError]] = errors.ServerError

    tls_certificate: Path | None = variable(
        "JFLUID_PS_TLS_CERTIFICATE",
        "a PEM file: of a server, which then takes TLS connections only; of a trainer, where servers want one",
    )
    tls_key: Path | None = variable("JFLUID_PS_TLS_KEY", "a PEM file with its key")


class ServerVariables(TlsVariables):
    """Parameter servers."""

    silence_s: Seconds = variable("JFLUID_PS_SILENCE_S", "a trainer not heard for longer is silent", 60.0)
    on_silence: Literal["fail", "leave out"] = variable(
        "JFLUID_PS_ON_SILENCE",
        "then the job fails, or goes on without it until it is heard again",
        "fail",
    )
    start_s: Seconds = variable(
        "JFLUID_PS_START_S",
        "after a server was restored, a trainer not heard for longer is silent, too",
        600.0,
    )
    max_rows: Count | None = variable("JFLUID_PS_MAX_ROWS", "how many rows the tables of one server may hold together")
    max_bytes: Count | None = variable("JFLUID_PS_MAX_BYTES", "how many bytes they may hold together")
    metrics_port: Port | None = variable(
        "JFLUID_PS_METRICS_PORT",
        "a host's first server answers Prometheus on this port, its second one on the next, and so on",
    )
    tls_clients: Path | None = variable(
        "JFLUID_PS_TLS_CLIENTS",
        "a PEM file of authorities: clients, also of metrics, must show a certificate of one of them",
    )


class ConnectionVariables(TlsVariables):
    """Connections to parameter servers."""

    tls_authority: Path | None = variable(
        "JFLUID_PS_TLS_AUTHORITY",
        "a PEM file of the authority whose certificates servers have: then trainers, and "
        "servers that ask each other about snapshots, use TLS",
    )
    share_memory: Switch = variable(
        "JFLUID_PS_SHARE_MEMORY",
        "0: large messages to servers on the same machine go over the network, too",
        True,
    )


class SnapshotVariables(Variables):
    """Snapshots of parameter servers."""

    error: ClassVar[type[errors.JFluidError]] = errors.ServerError

    snapshot_folder: Path | None = variable(
        "JFLUID_PS_SNAPSHOT_FOLDER",
        "where servers write them, each in a folder of its own; none are written without it. Trainers need it, too",
    )
    snapshot_every_s: FiniteSeconds = variable("JFLUID_PS_SNAPSHOT_EVERY_S", "the time between two", 60.0)
    restore: Switch = variable(
        "JFLUID_PS_RESTORE",
        "1: this server was started again, and goes on from its last one if it has one",
        False,
        by_launcher=True,
    )
    keep_bytes: Natural = variable(
        "JFLUID_PS_KEEP_BYTES",
        "with a snapshot folder: bytes of what it has pushed to a server since its last one "
        "that a trainer keeps, to send it again; 0 without a folder",
        256 << 20,
    )


class SecretVariables(Variables):
    """The job's secret, and the launcher."""

    error: ClassVar[type[errors.JFluidError]] = errors.SecretError
    empty_counts: ClassVar[bool] = True

    job_token: str | None = variable(environment.JOB_TOKEN, "the job's secret (docs/security.md)", secret=True)
    older_job_token: str | None = variable(
        environment.OLDER_JOB_TOKEN, "the same, where the other one is not set", secret=True
    )
    progress_channel: str | None = variable(
        environment.PROGRESS_CHANNEL,
        "the pipe on which a process tells its launcher of its progress, and the launcher's number",
    )
    record_dir: str | None = variable(
        environment.RECORD_DIR,
        "the job's log folder, below which processes of the launcher write their records; empty: they write none",
    )
    clock_ahead: float | None = variable(
        environment.CLOCK_AHEAD,
        "the seconds that this host's clock is ahead of that of host 0, for profiles of several hosts",
    )
    gang_member: str | None = variable(
        environment.GANG_MEMBER,
        "by which the launcher finds all that a process of its has started, to end it with the job",
    )


class FolderVariables(Variables):
    """Folders of this user."""

    cache_home: Path = variable(
        "XDG_CACHE_HOME",
        "its file `jfluid/secret` has the secret of this user's jobs that stay on this machine",
        Path("~/.cache"),
    )


class StartupVariables(Variables):
    """Scripts that import `paddle`."""

    as_paddle: Switch | None = variable(
        "JFLUID_AS_PADDLE",
        "1: `import paddle` finds jfluid, 0: it never does; without it it does where no PaddlePaddle is installed",
    )
    disable_plot: str | None = variable(
        environment.DISABLE_PLOT,
        "`True`: `paddle.utils.Ploter` draws nothing, and needs no matplotlib",
    )


class ThreadVariables(Variables):
    """Fluid's threads of parameter servers, which have no effect."""

    rpc_send_thread_num: Count = variable("FLAGS_rpc_send_thread_num", "for pushes", 12)
    rpc_get_thread_num: Count = variable("FLAGS_rpc_get_thread_num", "for pulls", 12)
    rpc_prefetch_thread_num: Count = variable("FLAGS_rpc_prefetch_thread_num", "for look-ups", 12)


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
