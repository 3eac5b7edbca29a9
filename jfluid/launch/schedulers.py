"""Variables by which schedulers tell a launcher its rank, and Fluid's variables about hosts."""

from typing import ClassVar

from jfluid.environment.variables import Count, Names, Natural, Port, Variables, variable
from jfluid.errors import JFluidError
from jfluid.job import JobError


class FluidVariables(Variables):
    """Fluid's launcher."""

    error: ClassVar[type[JFluidError]] = JobError

    nodes: Count | None = variable(
        "PADDLE_NUM_TRAINERS",
        "how many hosts there are, where the job does not say so; in a process that has "
        "`PADDLE_TRAINER_ENDPOINTS` it is the number of trainers, and says nothing of hosts",
    )
    trainer_endpoints: Names = variable("PADDLE_TRAINER_ENDPOINTS", "in a process of a job: where its trainers are", ())


class PaddleCloudVariables(Variables):
    """PaddleCloud, with `--use_paddlecloud`."""

    error: ClassVar[type[JFluidError]] = JobError

    trainers_num: Natural | None = variable(
        "PADDLE_TRAINERS_NUM", "how many hosts there are; with 1 the others do not count"
    )
    trainers: Names = variable("PADDLE_TRAINERS", "the addresses of all hosts", ())
    host: str | None = variable("POD_IP", "this host's address")
    trainer_id: Natural | None = variable("PADDLE_TRAINER_ID", "the number of this host")
    port: Port | None = variable("PADDLE_PORT", "the first port of its processes")
    endpoints: Names = variable(
        "DISTRIBUTED_TRAINER_ENDPOINTS",
        "the `host:port` of all processes, whose ports are taken",
        (),
    )


class SlurmVariables(Variables):
    """Slurm."""

    error: ClassVar[type[JFluidError]] = JobError

    tasks: Natural | None = variable("SLURM_STEP_NUM_TASKS", "how many launchers `srun` has started")
    rank: Natural | None = variable("SLURM_PROCID", "which of them this is")
    step_hosts: str | None = variable("SLURM_STEP_NODELIST", "their hosts, the first of which is the coordinator's")
    job_hosts: str | None = variable(
        "SLURM_JOB_NODELIST", "the same, where the other one is not set; also under `mpirun`"
    )
    tasks_per_host: str = variable("SLURM_STEP_TASKS_PER_NODE", "how many launchers share the GPUs of each host", "")
    host: Natural = variable("SLURM_NODEID", "the number of this host", 0)
    local_rank: Natural = variable("SLURM_LOCALID", "which launcher of its host this is", 0)
    job: str = variable("SLURM_JOB_ID", "with the step, from which the coordinator's port follows", "")
    step: str = variable("SLURM_STEP_ID", "see the job's", "")


class OpenMpiVariables(Variables):
    """Open MPI."""

    error: ClassVar[type[JFluidError]] = JobError

    tasks: Natural | None = variable("OMPI_COMM_WORLD_SIZE", "how many launchers `mpirun` has started")
    rank: Natural | None = variable("OMPI_COMM_WORLD_RANK", "which of them this is")
    local_tasks: Natural | None = variable("OMPI_COMM_WORLD_LOCAL_SIZE", "how many share the GPUs of this host")
    local_rank: Natural = variable("OMPI_COMM_WORLD_LOCAL_RANK", "which of those this is", 0)
    namespace: str = variable("PMIX_NAMESPACE", "the job's name, from which the coordinator's port follows", "")
    older_namespace: str = variable("OMPI_MCA_ess_base_jobid", "the same, where the other one is not set", "")
    daemon: str = variable("OMPI_MCA_orte_hnp_uri", "where `mpirun` runs, and so the coordinator", "")


class MpichVariables(Variables):
    """MPICH and Intel MPI."""

    error: ClassVar[type[JFluidError]] = JobError

    tasks: Natural | None = variable("PMI_SIZE", "how many processes `mpiexec` has started")
    rank: Natural | None = variable("PMI_RANK", "which of them this is")
    local_tasks: Natural | None = variable("MPI_LOCALNRANKS", "how many share this host")
    local_rank: Natural = variable("MPI_LOCALRANKID", "which of those this is", 0)


class KubernetesVariables(Variables):
    """Kubernetes."""

    error: ClassVar[type[JFluidError]] = JobError

    rank: Natural | None = variable("JOB_COMPLETION_INDEX", "which pod of an Indexed Job this is")


SCHEDULERS = (
    FluidVariables,
    PaddleCloudVariables,
    SlurmVariables,
    OpenMpiVariables,
    MpichVariables,
    KubernetesVariables,
)
