"""Manifests for Kubernetes and Slurm: what they hold, and that the launcher inside finds its
place.
"""

import os
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from jfluid import launch
from jfluid.job import JobError, read_job
from jfluid.launch.emit import slurm_script
from jfluid.launch.nodes import Node, NodeOptions, find_node
from jfluid.security import secret
from tests.launch_case import ENVIRONMENT, LIMIT, untimed, write


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("train.py", "")
    return tmp_path


def job(text):
    return write("job.yaml", f"name: Big_Job\nscript: train.py\nargs: {{lr: 1e-3}}\n{text}")


def emitted(capsys, *arguments):
    assert launch.main(list(arguments)) == 0
    return capsys.readouterr().out


def test_kubernetes(capsys, monkeypatch):
    text = emitted(
        capsys,
        "--emit",
        "k8s",
        "--image",
        "registry/train:1",
        "--max-restarts",
        "3",
        job("mode: collective\ngpus: [0, 1]\nips: [10.0.0.1, 10.0.0.2]"),
    )
    documents = list(yaml.safe_load_all(text))
    assert [document["kind"] for document in documents] == [
        "Secret",
        "NetworkPolicy",
        "ConfigMap",
        "Service",
        "Job",
    ]
    _, policy, config, service, indexed = documents
    labels = indexed["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"] == {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": labels}}]}],
    }
    spec, pod = indexed["spec"], indexed["spec"]["template"]["spec"]
    assert (
        spec["completionMode"],
        spec["completions"],
        spec["parallelism"],
        spec["backoffLimit"],
    ) == ("Indexed", 2, 2, 3)
    assert pod["subdomain"] == service["metadata"]["name"] == indexed["metadata"]["name"] == "big-job"
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    assert container["image"] == "registry/train:1"
    assert container["resources"] == {
        "requests": {"cpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    folder = container["volumeMounts"][0]["mountPath"]
    assert container["command"] == ["jfluid-launch", f"{folder}/job.yaml"]
    # In the second pod:
    inside = read_job(write("inside.yaml", config["data"]["job.yaml"]))
    assert (inside.gpus, inside.args) == (["0", "1"], {"lr": 0.001})
    monkeypatch.setattr(socket, "getfqdn", lambda: "big-job-1.big-job.default.svc.cluster.local")
    node = find_node(inside, NodeOptions(), {"JOB_COMPLETION_INDEX": "1"})
    assert node == Node(1, 2, None, ("big-job-0.big-job", 6069))


def test_kubernetes_with_one_pod(capsys):
    config, indexed = yaml.safe_load_all(emitted(capsys, "--emit", "k8s", "--image", "i", "train.py"))
    assert indexed["spec"]["completions"] == 1
    (container,) = indexed["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "1"}}
    assert "mode: local" in config["data"]["job.yaml"]


def test_slurm(capsys):
    text = emitted(capsys, "--emit", "slurm", job("mode: collective\ngpus: 4\nnodes: 2\nlog_dir: a b"))
    assert text.startswith(
        "#!/bin/bash\n#SBATCH --job-name=Big_Job\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --gpus-per-node=4\n"
    )
    assert "#SBATCH --cpus-per-task=3\n" in emitted(capsys, "--emit", "slurm", "--cpus", "3", "train.py")
    assert "#SBATCH --cpus-per-task=5\n" in emitted(
        capsys, "--emit", "slurm", "--servers", "2", "--trainers", "3", "train.py"
    )


def test_servers_in_pods_and_batch_scripts(capsys, monkeypatch):
    described = job("mode: ps\nservers: 2\ntrainers: 2\nnodes: 3\nsnapshots: {folder: /data/cuts}")
    _, config, _, service, indexed = yaml.safe_load_all(emitted(capsys, "--emit", "k8s", "--image", "i", described))
    assert indexed["spec"]["completions"] == 3 and service["spec"]["clusterIP"] == "None"
    inside = read_job(write("inside.yaml", config["data"]["job.yaml"]))
    assert (inside.servers, inside.trainers, inside.nodes, inside.snapshots.folder) == (
        2,
        2,
        3,
        "/data/cuts",
    )
    monkeypatch.setattr(socket, "getfqdn", lambda: "big-job-2.big-job.default.svc.cluster.local")
    assert find_node(inside, NodeOptions(), {"JOB_COMPLETION_INDEX": "2"}) == Node(
        2, 3, None, ("big-job-0.big-job", 6069)
    )
    text = emitted(capsys, "--emit", "slurm", described)
    assert (
        "#SBATCH --nodes=3\n" in text
        and "#SBATCH --cpus-per-task=4\n" in text
        and "\nservers: 2\ntrainers: 2\n" in text
    )
    assert "#SBATCH --requeue\n" in text and "${SLURM_RESTART_COUNT:+--set snapshots.resume" in text
    task = {
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_PROCID": "1",
        "SLURM_STEP_NODELIST": "cpu[1-3]",
        "SLURM_NODEID": "1",
    }
    node = find_node(inside.model_copy(update={"coordinator": None}), NodeOptions(), task)
    assert (node.rank, node.count, node.coordinator[0]) == (1, 3, "cpu1")


@pytest.mark.process
def test_the_script_for_slurm_runs(folder, monkeypatch):
    """With an srun of its own, which starts the command once for each host, as Slurm's does."""
    write(
        "train.py",
        "from os import environ\n"
        "print(*map(environ.get, ['PADDLE_TRAINER_ID', 'PADDLE_TRAINERS_NUM', 'JFLUID_JOB_TOKEN']))",
    )
    os.mkdir("bin")
    srun = Path("bin/srun")
    srun.write_text("""#!/bin/bash
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE="1(x2)"
shift 2
SLURM_PROCID=0 SLURM_NODEID=0 "$@" & SLURM_PROCID=1 SLURM_NODEID=1 "$@" & wait -n && wait -n
""")
    srun.chmod(0o755)
    script = slurm_script(read_job(job("mode: collective\nprocesses: 2\nnodes: 2\nlog_dir: a b")))
    environment = ENVIRONMENT | {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(os.getpid()),
    }
    del environment["JFLUID_JOB_TOKEN"]
    subprocess.run(["bash", write("script.sh", script)], env=environment, check=True, timeout=LIMIT)
    lines = [untimed(f"a b/workerlog.{rank}").split() for rank in range(4)]
    assert [line[:2] for line in lines] == [[str(rank), "4"] for rank in range(4)]
    assert len({line[2] for line in lines}) == 1 and len(lines[0][2]) == 32, "a new secret, the same for all"


def test_secrets_of_manifests(capsys, monkeypatch):
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "of-who-emits-it-not-of-the-job")
    k8s, slurm = ("--emit", "k8s", "--image", "i"), ("--emit", "slurm")
    plain = job("mode: ps\nservers: 1\ntrainers: 1\nnodes: 2")
    texts = [emitted(capsys, *k8s, plain) for _ in range(2)]
    documents = [list(yaml.safe_load_all(text)) for text in texts]
    made = [found[0]["stringData"]["secret"] for found in documents]
    assert made[0] != made[1] and all(secret.checked(text, "the manifest") for text in made)
    for text, found, own in zip(texts, documents, made):
        assert text.count(own) == 1, "in the Secret, and nowhere else"
        (container,) = found[-1]["spec"]["template"]["spec"]["containers"]
        assert container["env"][1:] == [
            {
                "name": "JFLUID_JOB_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": found[0]["metadata"]["name"], "key": "secret"}},
            }
        ]
    assert "of-who-emits-it" not in texts[0] + emitted(capsys, *slurm, plain)

    write("secret", "the-secret-of-the-file")
    os.chmod("secret", 0o600)
    own = job("mode: ps\nservers: 1\ntrainers: 1\nsecret_file: secret")
    found = list(yaml.safe_load_all(emitted(capsys, *k8s, own)))
    assert found[0]["stringData"] == {"secret": "the-secret-of-the-file"}
    assert "secret_file" not in found[1]["data"]["job.yaml"], "the file is not in the container"
    text = emitted(capsys, *slurm, own)
    assert "secret_file: secret" in text and "the-secret" not in text and "security new" not in text
    assert [d["kind"] for d in yaml.safe_load_all(emitted(capsys, *k8s, "--cpus", "2", "train.py"))] == [
        "ConfigMap",
        "Job",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--emit", "k8s", "train.py"],
            "--emit k8s (or jobset) and --image NAME (a container image with jfluid and the script) go together",
        ),
        (
            ["--image", "x", "train.py"],
            "--emit k8s (or jobset) and --image NAME (a container image with jfluid and the script) go together",
        ),
        (
            ["--emit", "slurm", "--gpus", "all", "train.py"],
            "say how many GPUs of a host the job needs: --gpus N",
        ),
        (
            ["--emit", "slurm", "--servers", "a:1,b:1", "--workers", "a:2", "train.py"],
            "Slurm chooses the hosts; give servers",
        ),
    ],
)
def test_mistakes(capsys, arguments, expected):
    assert launch.main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_a_job_that_holds_the_end_mark():
    text = slurm_script(read_job(job("env: {A: END_OF_JOB}")))
    assert text.count("END_OF_JOB_\n") == 1
    with pytest.raises(JobError):
        read_job(job("env: {A: [1]}"))
