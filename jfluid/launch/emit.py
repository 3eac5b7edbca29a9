"""A batch script by which Slurm runs a job, and the facts that all schedulers need of a job."""

import shlex
import sys

from jfluid.job import CollectiveJob, GangJob, Job, JobError, ParameterServerJob
from jfluid.security import secret


def slurm_script(job: Job) -> str:
    """Return a script for `sbatch`, which starts one launcher on each host.

    Launchers find each other by Slurm's variables.

    With snapshots, a job that Slurm has requeued (after a node failed, or by `scontrol requeue`)
    goes on from the snapshots; all hosts must see the snapshot folder. The script makes a secret each
    time that it runs, unless the job names a file or the environment of `sbatch` has one. Raises
    JobError for a job that names its hosts, which Slurm chooses.
    """
    text = plain_yaml(unplaced(job, "Slurm"))
    mark = "END_OF_JOB"
    while mark in text:
        mark += "_"
    gpus, processes = gpus_of(job), processes_of(job)
    options = [f"--job-name={job.name}", f"--nodes={nodes_of(job)}", "--ntasks-per-node=1"]
    options.append(f"--gpus-per-node={gpus}" if gpus else f"--cpus-per-task={processes}")
    again = ""
    if isinstance(job, ParameterServerJob) and job.snapshots is not None:
        options += ["--requeue", "--open-mode=append"]
        again = " ${SLURM_RESTART_COUNT:+--set snapshots.resume=true}"
    folder, python, name = shlex.quote(job.log_dir), shlex.quote(sys.executable), secret.VARIABLE
    # Tasks find it in their environment; on a command line all users of a host would see it.
    secrets = [
        f'if [ -z "${{{name}:-}}" ]; then {name}=$({python} -m jfluid.security new); fi',
        f"export {name}",
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            "set -eu",
            f"(umask 077; mkdir -p {folder})",
            f"job={folder}/job-$SLURM_JOB_ID.yaml",
            f"(umask 077; cat > \"$job\") <<'{mark}'",
            text + mark,
            *(secrets if needs_secret(job) else []),
            f'srun --export=ALL --kill-on-bad-exit=1 {python} -m jfluid.launch "$job"' + again,
            "",
        ]
    )


def plain_yaml(job: Job) -> str:
    """Return the job file without its comment, which names this machine's interpreter."""
    return job.to_yaml().partition("\n")[2]


def unplaced(job: Job, scheduler: str) -> Job:
    """Return the job as the scheduler runs it, which chooses the hosts. Raises JobError."""
    if isinstance(job, ParameterServerJob) and (isinstance(job.servers, list) or isinstance(job.trainers, list)):
        raise JobError(f"jfluid-launch: --emit: {scheduler} chooses the hosts; give servers and trainers as numbers")
    if isinstance(job, GangJob):
        return job.model_copy(update={"nodes": nodes_of(job), "ips": None, "coordinator": None})
    return job


def nodes_of(job: Job) -> int:
    """Return how many hosts the job has."""
    if not isinstance(job, GangJob):
        return 1
    return job.nodes or len(job.ips or [None])


def needs_secret(job: Job) -> bool:
    """Return True if neither the job nor the environment gives the launchers the secret that several hosts need."""
    return isinstance(job, GangJob) and nodes_of(job) > 1 and job.secret_file is None


def gpus_of(job: Job) -> int:
    """Return how many GPUs a host must have. Raises JobError."""
    if not isinstance(job, GangJob) or job.gpus is None:
        return 0
    if job.gpus == "all":
        raise JobError("jfluid-launch: --emit: say how many GPUs of a host the job needs: --gpus N")
    return len(job.gpus) if isinstance(job.gpus, list) else int(job.gpus)


def processes_of(job: Job) -> int:
    """Return how many processes of the job a host has."""
    if isinstance(job, CollectiveJob):
        return job.processes or gpus_of(job) or 1
    return int(job.servers) + int(job.trainers) if isinstance(job, ParameterServerJob) else 1
