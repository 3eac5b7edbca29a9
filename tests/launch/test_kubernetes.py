"""Manifests for Kubernetes, held against its own schemas of several versions, for jobs of any name,
arguments and size.
"""

import functools
import json
import os
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jfluid import launch
from jfluid.job import CollectiveJob, JobError, ParameterServerJob, Snapshots, read_job
from jfluid.launch.kubernetes import kubernetes_manifest, name_of
from tests.fuzz.harness import fuzzed
from tests.launch_case import write

VERSIONS = ("1.28", "1.32", "1.37")
_TEXT = {"type": "string"}
# What the definition of JobSet (jobset.x-k8s.io/v1alpha2) says of the fields around its Jobs.
JOB_SET = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "network": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "enableDNSHostnames": {"type": "boolean"},
                        "subdomain": _TEXT,
                        "publishNotReadyAddresses": {"type": "boolean"},
                    },
                },
                "failurePolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"maxRestarts": {"type": "integer", "minimum": 0}},
                },
                "replicatedJobs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["name", "template"],
                        "properties": {
                            "name": _TEXT,
                            "replicas": {"type": "integer"},
                            "template": {
                                "type": "object",
                                "additionalProperties": False,
                                "properties": {"spec": {"type": "object"}},
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture(scope="module", autouse=True)
def script(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("jobs"))
        write("train.py", "")
        yield


@pytest.fixture(scope="module", autouse=True)
def schemas_that_are_read_once():
    """kubernetes_validate reads a file for each document."""
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(kubernetes_validate.utils.schema_contents)
        patch.setattr(kubernetes_validate.utils, "schema_contents", read)
        yield


def validated(text):
    """The documents of a manifest, by kind, each held against the strict schemas."""
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        checked = document
        if document["kind"] == "JobSet":
            jsonschema.validate(document, JOB_SET)
            (replicated,) = document["spec"]["replicatedJobs"]
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": document["metadata"]}
            checked = job | replicated["template"]
        for version in VERSIONS:
            kubernetes_validate.validate(checked, version, strict=True)
    return {document["kind"]: document for document in documents}


def with_servers(**fields):
    return ParameterServerJob(script="train.py", servers=1, trainers=2, nodes=3, **fields)


def test_a_job_with_servers():
    job = with_servers(name="ctr", max_restarts=4, snapshots=Snapshots(folder="cuts"))
    found = validated(kubernetes_manifest(job, "image", memory="16Gi", storage="2Ti"))
    assert list(found) == ["Secret", "ConfigMap", "PersistentVolumeClaim", "Service", "Job"]
    claim = found["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Ti"
    pod = found["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "3", "memory": "16Gi"},
        "limits": {"memory": "16Gi"},
    }
    assert {"name": "snapshots", "mountPath": "/snapshots"} in container["volumeMounts"]
    assert container["readinessProbe"] == {"tcpSocket": {"port": "metrics"}}
    assert container["ports"] == [{"name": "metrics", "containerPort": 9100}]
    assert {"name": "JFLUID_PS_METRICS_PORT", "value": "9100"} in container["env"]
    (spread,) = pod["topologySpreadConstraints"]
    labels = found["Job"]["spec"]["template"]["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"] == labels
    inside = read_job(write("inside.yaml", found["ConfigMap"]["data"]["job.yaml"]))
    # the volume is new: nothing is there at first, and a pod that comes later goes on from it
    assert (inside.snapshots.folder, inside.snapshots.resume) == ("/snapshots", True)


def test_a_job_set():
    job = CollectiveJob(script="train.py", name="net", nodes=4, gpus=8, max_restarts=2)
    found = validated(kubernetes_manifest(job, "image", as_set=True))
    assert list(found) == ["Secret", "NetworkPolicy", "ConfigMap", "JobSet"]
    spec = found["JobSet"]["spec"]
    assert spec["failurePolicy"] == {"maxRestarts": 2}
    (replicated,) = spec["replicatedJobs"]
    indexed = replicated["template"]["spec"]
    assert (indexed["completions"], indexed["backoffLimit"]) == (4, 0)
    inside = read_job(write("inside.yaml", found["ConfigMap"]["data"]["job.yaml"]))
    assert inside.coordinator.startswith("net-hosts-0-0.net:")
    assert "subdomain" not in indexed["template"]["spec"], "the JobSet gives it"


_ANY_TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]))


@fuzzed(25)
@given(
    name=st.text("abzAZ019_.-é日", min_size=1, max_size=120),
    arguments=st.lists(_ANY_TEXT | st.integers() | st.booleans(), max_size=4),
    value=_ANY_TEXT,
    pods=st.integers(1, 5000),
    as_set=st.booleans(),
)
def test_any_name_argument_and_size(name, arguments, value, pods, as_set):
    job = CollectiveJob(script="train.py", name=name, args=arguments, env={"A": value}, nodes=pods, processes=1)
    text = kubernetes_manifest(job, "registry/a:1", as_set=as_set)
    by_kind = validated(text)
    called = by_kind["JobSet" if as_set else "Job"]["metadata"]["name"]
    last = f"{called}-hosts-0-{pods - 1}" if as_set else f"{called}-{pods - 1}"
    # names of Services and hosts: RFC 1035, and a random end of five characters for pods
    assert called[0].isalpha() and called.isascii() and called == called.lower(), called
    assert called.replace("-", "a").isalnum() and not called.endswith("-")
    assert len(last) <= 63 - 6
    inside = yaml.safe_load(by_kind["ConfigMap"]["data"]["job.yaml"])
    assert inside["env"] == {"A": value} and inside["args"] == json.loads(json.dumps(arguments))


def test_names():
    assert name_of("Big_Job") == "big-job"
    assert name_of("3d.net") == "job-3d-net"
    assert name_of("..") == "job" and name_of("日本") == "job"


def test_mistakes(capsys):
    huge = CollectiveJob(script="train.py", env={"A": "x" * (1 << 19)}, nodes=2, processes=1)
    with pytest.raises(JobError, match="more than the 524288 that a ConfigMap takes"):
        kubernetes_manifest(huge, "image")
    for arguments, said in (
        (["--emit", "k8s", "--image", "i", "--memory", "much"], "--memory much: expected a size"),
        (["--emit", "slurm", "--storage", "1Gi"], "--storage goes with --emit k8s (or jobset)"),
        (["--emit", "jobset"], "--emit k8s (or jobset) and --image NAME"),
    ):
        assert launch.main([*arguments, "--cpus", "1", "train.py"]) == 2
        assert said in capsys.readouterr().err


def test_who_could_read_a_manifest_in_a_file_is_told_of(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    arguments = ["--emit", "k8s", "--image", "train:1", "--cpus", "2", write("train.py", "")]
    for mode, warned in ((0o644, 1), (0o600, 0)):
        with open("manifest.yaml", "w") as file:
            os.fchmod(file.fileno(), mode)
            monkeypatch.setattr("sys.stdout", file)
            assert launch.main(arguments) == 0
        assert capfd.readouterr().err.count("run chmod 600 on it") == warned
    assert "kind: " in Path("manifest.yaml").read_text()
