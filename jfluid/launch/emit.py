"""Manifests that run a job elsewhere: an Indexed Job of Kubernetes, a batch script of Slurm."""

import re
import shlex
import sys
from typing import Any

import yaml

from jfluid.job import CollectiveJob, GangJob, Job, JobError, ParameterServerJob
from jfluid.launch.nodes import FIRST_PORT
from jfluid.security import secret

_LONGEST_NAME = 50  # Kubernetes has 63 characters for the names of pods, which end with a number


def slurm_script(job: Job) -> str:
    """A script for `sbatch`, which starts one launcher on each host; they find each other by
    Slurm's variables.

    It makes a secret each time that it runs, unless the job names a file or the environment of
    `sbatch` has one. Raises JobError for a job that names its hosts, which Slurm chooses.
    """
    text = _plain_yaml(_without_hosts(job, "Slurm"))
    mark = "END_OF_JOB"
    while mark in text:
        mark += "_"
    gpus, processes = _gpus(job), _processes(job)
    options = [f"--job-name={job.name}", f"--nodes={_nodes(job)}", "--ntasks-per-node=1"]
    options.append(f"--gpus-per-node={gpus}" if gpus else f"--cpus-per-task={processes}")
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
            f"mkdir -p {folder}",
            f"job={folder}/job-$SLURM_JOB_ID.yaml",
            f"cat > \"$job\" <<'{mark}'",
            text + mark,
            *(secrets if _needs_secret(job) else []),
            f'srun --export=ALL --kill-on-bad-exit=1 {python} -m jfluid.launch "$job"',
            "",
        ]
    )


def kubernetes_manifest(job: Job, image: str) -> str:
    """A ConfigMap with the job, an Indexed Job that runs it, a Service by which its pods find the
    first, and the protection of the pods: a Secret, that of the job's file or a new one, and a
    NetworkPolicy.

    `image` is a container image with jfluid and the script. Raises JobError for a job that names
    its hosts.
    """
    name = (
        re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:_LONGEST_NAME].rstrip("-") or "job"
    )
    nodes, gpus = _nodes(job), _gpus(job)
    inside = _without_hosts(job, "Kubernetes")
    if isinstance(inside, GangJob):
        inside = inside.model_copy(update={"secret_file": None})  # which is not in the container
    if nodes > 1:
        inside = inside.model_copy(update={"coordinator": f"{name}-0.{name}:{FIRST_PORT - 1}"})
    container: dict[str, Any] = {
        "name": name,
        "image": image,
        "command": ["jfluid-launch", "/etc/jfluid/job.yaml"],
        "volumeMounts": [
            {"name": "job", "mountPath": "/etc/jfluid"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    guards = _guards(job, name)
    if guards:
        container["env"] = [
            {
                "name": secret.VARIABLE,
                "valueFrom": {"secretKeyRef": {"name": name, "key": "secret"}},
            }
        ]
    volumes = [
        {"name": "job", "configMap": {"name": name}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": volumes,
    }
    labels = _labels(name)
    documents: list[dict[str, Any]] = [
        *guards,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"job.yaml": _plain_yaml(inside)},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            # Pods must find each other before they are ready.
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "completionMode": "Indexed",
                "completions": nodes,
                "parallelism": nodes,
                "backoffLimit": job.max_restarts,
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]
    if nodes == 1:
        del documents[-2], pod["subdomain"]
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, default_flow_style=False)


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name}


def _guards(job: Job, name: str) -> list[dict[str, Any]]:
    """The protection of a job's pods: a Secret; and a NetworkPolicy for jobs whose JAX coordinator
    does not authenticate.
    """
    given = job.secret_file if isinstance(job, GangJob) else None
    if given is None and not _needs_secret(job):
        return []
    found: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "type": "Opaque",
            "immutable": True,
            "stringData": {"secret": secret.fresh() if given is None else secret.from_file(given)},
        }
    ]
    if isinstance(job, CollectiveJob) and _nodes(job) > 1:
        pods = {"podSelector": {"matchLabels": _labels(name)}}
        found.append(
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": name},
                "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
            }
        )
    return found


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and everything in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def _plain_yaml(job: Job) -> str:
    """The job file without its comment, which names this machine's interpreter."""
    return job.to_yaml().partition("\n")[2]


def _without_hosts(job: Job, scheduler: str) -> Job:
    """The job as the scheduler runs it, which chooses the hosts."""
    if isinstance(job, ParameterServerJob) and (
        isinstance(job.servers, list) or isinstance(job.trainers, list)
    ):
        raise JobError(
            f"jfluid-launch: --emit: {scheduler} chooses the hosts; give servers and trainers as numbers"
        )
    if isinstance(job, GangJob):
        return job.model_copy(update={"nodes": _nodes(job), "ips": None, "coordinator": None})
    return job


def _nodes(job: Job) -> int:
    if not isinstance(job, GangJob):
        return 1
    return job.nodes or len(job.ips or [None])


def _needs_secret(job: Job) -> bool:
    """Whether the job's launchers need a secret that neither the job nor the environment gives
    them.
    """
    return isinstance(job, GangJob) and _nodes(job) > 1 and job.secret_file is None


def _gpus(job: Job) -> int:
    """How many GPUs a host must have."""
    if not isinstance(job, GangJob) or job.gpus is None:
        return 0
    if job.gpus == "all":
        raise JobError("jfluid-launch: --emit: say how many GPUs of a host the job needs: --gpus N")
    return len(job.gpus) if isinstance(job.gpus, list) else int(job.gpus)


def _processes(job: Job) -> int:
    if isinstance(job, CollectiveJob):
        return job.processes or 1
    return int(job.servers) + int(job.trainers) if isinstance(job, ParameterServerJob) else 1
