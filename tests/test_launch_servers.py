"""Parameter-server jobs: what servers and trainers are given, and how they end together."""
import json
import signal
import subprocess
from pathlib import Path

import pytest

from jfluid.job import ParameterServerJob
from jfluid.launch.gang import parameter_server_gang
from tests.launch_case import (
    COMMAND,
    ENVIRONMENT,
    LIMIT,
    PROLOGUE,
    alive,
    free_port,
    launched,
    numbers,
    started,
    wait_until,
    write,
)

SERVERS, TRAINERS = ["10.0.0.1:6170", "10.0.0.2:6170"], ["10.0.0.1:6180", "10.0.0.2:6180"]
# Servers serve until they are ended; trainers train when all servers are there.
SCRIPT = PROLOGUE.replace('int(os.environ["PADDLE_TRAINER_ID"])', """(
    int(os.environ["PADDLE_TRAINER_ID"]) if os.environ["TRAINING_ROLE"] == "TRAINER"
    else "s" + os.environ["PADDLE_PSERVER_ID"])""") + """
import json
print(json.dumps({name: os.environ[name] for name in os.environ
                  if name.startswith(("PADDLE", "POD", "TRAINING"))}))
ready()
if os.environ["TRAINING_ROLE"] == "PSERVER":
    serve()
wait_for("pid.s0", "pid.s1")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(trainers="pass", servers="wait_for('never')"):
    return write("train.py", f"def serve():\n    {servers}\n{SCRIPT}{trainers}\n")


def job(**fields):
    write("train.py", "")
    return ParameterServerJob(script="train.py", **fields)


def test_servers_and_trainers_of_one_host():
    members = parameter_server_gang(job(), SERVERS, TRAINERS, "10.0.0.2", ["4", "5"])
    assert [(member.role, member.rank, str(member.log)) for member in members] == [
        ("server", 1, "mylog/serverlog.1"), ("trainer", 1, "mylog/workerlog.1")]
    server, trainer = ({name: member.env[name] for name in member.env
                        if name.startswith(("PADDLE", "POD", "TRAINING", "FLAGS", "CUDA"))} for member in members)
    common = {"PADDLE_PSERVERS_IP_PORT_LIST": ",".join(SERVERS), "PADDLE_TRAINER_ENDPOINTS": ",".join(TRAINERS),
              "PADDLE_TRAINERS_NUM": "2", "POD_IP": "10.0.0.2"}
    assert server == common | {
        "TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_ID": "1", "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6170",
        "PADDLE_PORT": "6170", "CUDA_VISIBLE_DEVICES": ""}
    assert trainer == common | {
        "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1", "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6180",
        "PADDLE_PORT": "6180", "CUDA_VISIBLE_DEVICES": "4,5", "FLAGS_selected_gpus": "0,1"}
    assert [member.label for member in members] == ["server 1", "rank 1"]


def test_all_on_this_host():
    members = parameter_server_gang(job(), SERVERS, TRAINERS, None, [])
    assert [member.label for member in members] == ["server 0", "server 1", "rank 0", "rank 1"]


# ---- real jobs -------------------------------------------------------------------------------------------------

process = pytest.mark.process


@process
def test_servers_end_when_the_trainers_have():
    result = launched("--server_num", "2", "--worker_num", "3", script(servers="sys.exit(wait_for('never'))"))
    assert result.returncode == 0, result.stderr
    assert not any(map(alive, numbers()))
    given = [json.loads(Path(f"mylog/serverlog.{rank}").read_text()) for rank in range(2)]
    given += [json.loads(Path(f"mylog/workerlog.{rank}").read_text()) for rank in range(3)]
    servers = given[0]["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    assert [item["PADDLE_CURRENT_ENDPOINT"] for item in given] == servers + given[0]["PADDLE_TRAINER_ENDPOINTS"].split(",")
    assert [f"{item['POD_IP']}:{item['PADDLE_PORT']}" for item in given[:2]] == servers
    assert result.stdout == Path("mylog/workerlog.0").read_text()


@process
def test_given_endpoints():
    result = launched("--servers", "127.0.0.1:6170,127.0.0.1:6171", "--workers", "127.0.0.1:6180", script())
    assert result.returncode == 0, result.stderr
    given = json.loads(result.stdout)
    assert given["PADDLE_PSERVERS_IP_PORT_LIST"] == "127.0.0.1:6170,127.0.0.1:6171"
    assert given["PADDLE_CURRENT_ENDPOINT"] == "127.0.0.1:6180"


@process
def test_a_server_that_fails_ends_all():
    write("job.yaml", "script: train.py\nmode: parameter_server\nservers: 2\ntrainers: 2")
    script(trainers="wait_for('never')", servers="wait_for('pid.0', 'pid.1')\n"
                                                 "    if rank == 's1': raise RuntimeError('the table is full')\n"
                                                 "    wait_for('never')")
    result = launched("job.yaml")
    assert result.returncode == 1
    assert "server 1 failed first (exit code 1)" in result.stderr
    assert "    RuntimeError: the table is full" in result.stderr
    assert "its log: mylog/serverlog.1" in result.stderr
    assert not any(map(alive, numbers()))


@process
def test_a_trainer_that_fails_ends_all():
    result = launched("--servers", "2", "--trainers", "2", script("sys.exit(6) if rank == 1 else wait_for('never')"))
    assert result.returncode == 6
    assert "rank 1 failed first (exit code 6)" in result.stderr
    assert not any(map(alive, numbers()))


@process
def test_a_signal_ends_servers_and_trainers():
    with started("--servers", "2", "--trainers", "1", script("wait_for('never')")) as launcher:
        wait_until(lambda: len(list(Path().glob("pid.*[012]"))) == 3)
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate()
    assert launcher.returncode == 128 + signal.SIGTERM
    assert not any(map(alive, numbers()))


@process
def test_servers_of_another_host_end_when_the_trainers_have():
    options = ["--servers", "127.0.0.1:6170,127.0.0.1:6171", "--trainers", "127.0.0.2:6180,127.0.0.2:6181",
               "--coordinator", f"127.0.0.1:{free_port()}", script()]
    hosts = [subprocess.Popen([*COMMAND, "--node_ip", f"127.0.0.{rank + 1}", *options], env=ENVIRONMENT,
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) for rank in range(2)]
    try:
        errors = [host.communicate(timeout=LIMIT)[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], errors
    assert not any(map(alive, numbers()))
    assert sorted(path.name for path in Path("mylog").iterdir()) == [
        "serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"]
