"""Manifests that run a job in Kubernetes: an Indexed Job or a JobSet, and the objects that pods need."""

import re
from typing import Any, TypeGuard

import yaml

from jfluid.environment.process import ServerVariables
from jfluid.job import CollectiveJob, GangJob, Job, JobError, ParameterServerJob, Snapshots
from jfluid.launch.emit import gpus_of, needs_secret, nodes_of, plain_yaml, processes_of, unplaced
from jfluid.launch.nodes import FIRST_PORT
from jfluid.security import secret

# Kubernetes has 63 characters for the names of pods, which end with numbers (and "-hosts-0")
_LONGEST_NAME = 45
_METRICS_PORT = 9100
_PODS_OF_SET = "hosts"
_SNAPSHOTS = "/snapshots"  # of a job whose folder is relative
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?"
_LARGEST_JOB = 1 << 19  # bytes; a ConfigMap has room for twice as many


def kubernetes_manifest(
    job: Job,
    image: str,
    *,
    as_set: bool = False,
    memory: str | None = None,
    storage: str = "100Gi",
) -> str:
    """Return the YAML documents that run a job in Kubernetes.

    The documents are a ConfigMap with the job; an Indexed Job (or a JobSet, where its controller is
    installed) with a pod for each host; a headless Service by which pods find the first; a Secret,
    that of the job's file or a new one; a NetworkPolicy; and for snapshots a claim of a volume that
    all pods share. Pods with one machine each are preferred. Where there are servers, a pod is
    ready when the first server of its host answers at its port for metrics.

    Args:
        image: a container image with jfluid and the script.
        as_set: a JobSet instead of a Job: it starts all pods again when one is lost.
        memory: request and limit of each pod, such as "16Gi".
        storage: the size of the volume for snapshots.

    Raises JobError for a job that names its hosts, one that is too large for a ConfigMap, and a
    `memory` or `storage` that is no quantity.
    """
    for option, quantity in (("memory", memory), ("storage", storage)):
        if quantity is not None and not re.fullmatch(_QUANTITY, quantity):
            raise JobError(f"jfluid-launch: --{option} {quantity}: expected a size such as 16Gi")
    name = name_of(job.name)
    pods = nodes_of(job)
    inside = _inside(job, name, as_set)
    text = plain_yaml(inside)
    if len(text.encode()) > _LARGEST_JOB:
        raise JobError(
            f"jfluid-launch: --emit: the job has {len(text.encode())} bytes, more than the "
            f"{_LARGEST_JOB} that a ConfigMap takes safely: put large values into a file of the image"
        )
    indexed: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0 if as_set else job.max_restarts,
        "template": {
            "metadata": {"labels": _labels(name)},
            "spec": _pod(job, name, image, memory, as_set),
        },
    }
    documents = [
        *_guards(job, name),
        _document("v1", "ConfigMap", name, data={"job.yaml": text}),
        *_claims(job, name, storage),
    ]
    if pods > 1 and not as_set:  # a JobSet makes its own
        documents.append(_service(name))
    documents.append(
        _job_set(name, indexed, job.max_restarts) if as_set else _document("batch/v1", "Job", name, spec=indexed)
    )
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, default_flow_style=False)


def name_of(job: str) -> str:
    """Return the name that Kubernetes' objects of a job have: small letters, digits and hyphens, from a letter on."""
    found = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
    if not found[:1].isalpha():  # names of Services begin with a letter
        found = f"job-{found}".rstrip("-")
    return found[:_LONGEST_NAME].rstrip("-")


def _document(version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name}


def _inside(job: Job, name: str, as_set: bool) -> Job:
    """Return the job as the launchers in the pods read it."""
    inside = unplaced(job, "Kubernetes")
    if isinstance(inside, GangJob):
        inside = inside.model_copy(update={"secret_file": None})  # which is not in the container
    if nodes_of(job) > 1:
        first = f"{name}-{_PODS_OF_SET}-0-0" if as_set else f"{name}-0"
        inside = inside.model_copy(update={"coordinator": f"{first}.{name}:{FIRST_PORT - 1}"})
    if isinstance(inside, ParameterServerJob) and inside.snapshots is not None:
        # The claim is this job's own. A pod in place of one that was lost goes on from it.
        snapshots = inside.snapshots.model_copy(update={"resume": True, "folder": _snapshots_folder(inside.snapshots)})
        inside = inside.model_copy(update={"snapshots": snapshots})
    return inside


def _snapshots_folder(snapshots: Snapshots) -> str:
    return snapshots.folder if snapshots.folder.startswith("/") else _SNAPSHOTS


def _pod(job: Job, name: str, image: str, memory: str | None, as_set: bool) -> dict[str, Any]:
    mounts = [
        {"name": "job", "mountPath": "/etc/jfluid"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": name}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if isinstance(job, ParameterServerJob) and job.snapshots is not None:
        mounts.append({"name": "snapshots", "mountPath": _snapshots_folder(job.snapshots)})
        volumes.append({"name": "snapshots", "persistentVolumeClaim": {"claimName": f"{name}-snapshots"}})
    container: dict[str, Any] = {
        "name": "launcher",
        "image": image,
        "command": ["jfluid-launch", "/etc/jfluid/job.yaml"],
        "resources": _resources(job, memory),
        "volumeMounts": mounts,
    }
    environment = _environment(job, name)
    if environment:
        container["env"] = environment
    if _tells_metrics(job):
        container |= _readiness(job)
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        # What the launcher takes to end its processes, and to say why.
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
        "volumes": volumes,
    }
    if nodes_of(job) > 1:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _labels(name)},
            }
        ]
        if not as_set:
            pod["subdomain"] = name
    return pod


def _resources(job: Job, memory: str | None) -> dict[str, Any]:
    requests: dict[str, Any] = {"cpu": str(processes_of(job))}
    limits: dict[str, Any] = {}
    if memory is not None:
        requests["memory"] = limits["memory"] = memory
    if gpus := gpus_of(job):
        limits["nvidia.com/gpu"] = str(gpus)
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _tells_metrics(job: Job) -> TypeGuard[ParameterServerJob]:
    # (Servers of a job on one host listen on its loopback.)
    return isinstance(job, ParameterServerJob) and nodes_of(job) > 1


def _metrics_port(job: ParameterServerJob) -> int:
    return int(job.env.get(ServerVariables.name_of("metrics_port"), _METRICS_PORT))


def _environment(job: Job, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if _tells_metrics(job):
        found.append(
            {
                "name": ServerVariables.name_of("metrics_port"),
                "value": str(_metrics_port(job)),
            }
        )
    if _has_secret(job):
        reference = {"secretKeyRef": {"name": name, "key": "secret"}}
        found.append({"name": secret.VARIABLE, "valueFrom": reference})
    return found


def _readiness(job: ParameterServerJob) -> dict[str, Any]:
    """Return the readiness probe of a pod's first server.

    No probe ends a pod: the launcher restarts servers as the job asks.
    """
    return {
        "ports": [{"name": "metrics", "containerPort": _metrics_port(job)}],
        "readinessProbe": {"tcpSocket": {"port": "metrics"}},
    }


def _service(name: str) -> dict[str, Any]:
    # Pods must find each other before they are ready.
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(name)}
    return _document("v1", "Service", name, spec=spec)


def _claims(job: Job, name: str, storage: str) -> list[dict[str, Any]]:
    if not isinstance(job, ParameterServerJob) or job.snapshots is None:
        return []
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": storage}},
    }
    return [_document("v1", "PersistentVolumeClaim", f"{name}-snapshots", spec=spec)]


def _job_set(name: str, indexed: dict[str, Any], max_restarts: int) -> dict[str, Any]:
    replicated = {"name": _PODS_OF_SET, "replicas": 1, "template": {"spec": indexed}}
    return _document(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        name,
        spec={
            "network": {
                "enableDNSHostnames": True,
                "subdomain": name,
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": max_restarts},
            "replicatedJobs": [replicated],
        },
    )


def _has_secret(job: Job) -> bool:
    return needs_secret(job) or (isinstance(job, GangJob) and job.secret_file is not None)


def _guards(job: Job, name: str) -> list[dict[str, Any]]:
    """Return the objects that protect a job's pods: a Secret and a NetworkPolicy.

    The NetworkPolicy is for jobs with a JAX coordinator that does not authenticate.
    """
    if not _has_secret(job):
        return []
    given = job.secret_file if isinstance(job, GangJob) else None
    text = secret.fresh() if given is None else secret.from_file(given)
    found = [_document("v1", "Secret", name, type="Opaque", immutable=True, stringData={"secret": text})]
    if isinstance(job, CollectiveJob) and nodes_of(job) > 1:
        pods = {"podSelector": {"matchLabels": _labels(name)}}
        spec = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
        found.append(_document("networking.k8s.io/v1", "NetworkPolicy", name, spec=spec))
    return found


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and everything in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)
