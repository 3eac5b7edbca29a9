"""Parameter-server jobs: what servers and trainers are given, and how they end together."""

import json
import os
import signal
from pathlib import Path

import pytest

from jfluid.job import JobError, ParameterServerJob, Restarts, Snapshots, read_job
from jfluid.launch.command import parse
from jfluid.launch.gang import parameter_server_gang
from jfluid.security import snapshot_owner
from tests.launch_case import (
    ENVIRONMENT,
    ESCAPED,
    PROLOGUE,
    Launcher,
    alive,
    launched,
    numbers,
    untimed,
    wait_until,
    write,
)
from tests.ports import free_port

SERVERS, TRAINERS = ["10.0.0.1:6170", "10.0.0.2:6170"], ["10.0.0.1:6180", "10.0.0.2:6180"]
GRACE = ["--set", "server_grace=0.2"]
# Servers serve until they are ended; trainers train when all servers are there.
SCRIPT = (
    PROLOGUE.replace(
        'int(os.environ["PADDLE_TRAINER_ID"])',
        """(
    int(os.environ["PADDLE_TRAINER_ID"]) if os.environ["TRAINING_ROLE"] == "TRAINER"
    else "s" + os.environ["PADDLE_PSERVER_ID"])""",
    )
    + """
import json
print(json.dumps({name: os.environ[name] for name in os.environ
                  if name.startswith(("PADDLE", "POD", "TRAINING"))}))
ready()
if os.environ["TRAINING_ROLE"] == "PSERVER":
    serve()
wait_for("pid.s0", "pid.s1")
"""
)


PREPARED = (
    SCRIPT.partition("import json")[0]
    + """
import subprocess
server = os.environ["TRAINING_ROLE"] == "PSERVER"
def alive(file):
    try:
        return "State:\\tZ" not in pathlib.Path("/proc", pathlib.Path(file).read_text(), "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
"""
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(trainers="pass", servers="wait_for('never')"):
    return write("train.py", f"def serve():\n    {servers}\n{SCRIPT}{trainers}\n")


def job(**fields):
    write("train.py", "")
    return ParameterServerJob(script="train.py", **fields)


def test_servers_and_trainers_of_one_host(monkeypatch):
    monkeypatch.delenv("FLAGS_interpret_first_steps")  # of all tests
    members = parameter_server_gang(job(), SERVERS, TRAINERS, [SERVERS[1], TRAINERS[1]], ["4", "5"], "secret")
    assert [(member.role, member.rank, str(member.log)) for member in members] == [
        ("server", 1, "mylog/serverlog.1"),
        ("trainer", 1, "mylog/workerlog.1"),
    ]
    server, trainer = (
        {
            name: member.env[name]
            for name in member.env
            if name.startswith(("PADDLE", "POD", "TRAINING", "FLAGS", "CUDA", "JFLUID_JOB"))
        }
        for member in members
    )
    common = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(SERVERS),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(TRAINERS),
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_NUM_TRAINERS": "2",
        "POD_IP": "10.0.0.2",
        "JFLUID_JOB_TOKEN": "secret",
    }
    assert server == common | {
        "TRAINING_ROLE": "PSERVER",
        "PADDLE_PSERVER_ID": "1",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6170",
        "PADDLE_PORT": "6170",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert trainer == common | {
        "TRAINING_ROLE": "TRAINER",
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6180",
        "PADDLE_PORT": "6180",
        "CUDA_VISIBLE_DEVICES": "4,5",
        "FLAGS_selected_gpus": "0,1",
    }
    assert [member.label for member in members] == ["server 1", "rank 1"]


def test_all_on_this_host():
    members = parameter_server_gang(job(), SERVERS, TRAINERS, SERVERS + TRAINERS, [], "secret")
    assert [member.label for member in members] == ["server 0", "server 1", "rank 0", "rank 1"]


def test_snapshots_and_restarts(folder):
    snapshots = {"folder": "cuts", "every_s": 0.5, "keep_bytes": 1000}
    server, _, trainer, _ = parameter_server_gang(
        job(restarts={"servers": 3, "trainers": 1}, snapshots=snapshots),
        SERVERS,
        TRAINERS,
        SERVERS + TRAINERS,
        [],
        "secret",
    )
    given = {
        "JFLUID_PS_SNAPSHOT_FOLDER": str(folder / "cuts"),
        "JFLUID_PS_SNAPSHOT_EVERY_S": "0.5",
        "JFLUID_PS_KEEP_BYTES": "1000",
    }
    assert given.items() <= server.env.items() and given.items() <= trainer.env.items()
    assert "JFLUID_PS_RESTORE" not in server.env
    assert (server.restarts, server.env_again) == (3, {"JFLUID_PS_RESTORE": "1"})
    assert (trainer.restarts, trainer.env_again) == (1, {})
    server = parameter_server_gang(
        job(snapshots=snapshots | {"resume": True}), SERVERS, TRAINERS, SERVERS, [], "secret"
    )[0]
    assert (server.env["JFLUID_PS_RESTORE"], server.restarts) == ("1", 0)


def test_members_get_the_secret_of_the_job_and_no_other(monkeypatch):
    monkeypatch.setenv("JFLUID_PS_TOKEN", "of the launcher's own")
    monkeypatch.setenv("JFLUID_JOINED", "1")
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "of the launcher's own")
    for member in parameter_server_gang(job(), SERVERS, TRAINERS, SERVERS + TRAINERS, [], "secret"):
        assert member.env["JFLUID_JOB_TOKEN"] == "secret" and "JFLUID_PS_TOKEN" not in member.env
        assert "JFLUID_JOINED" not in member.env
        assert not any("secret" in word for word in member.command), "what others see in a list of processes"


def test_fluids_options_and_names():
    write("train.py", "")
    servers = "10.0.0.1:6170,10.0.0.1:6171"
    for options in (
        ["--servers", servers, "--workers", "10.0.0.1:6180"],
        [
            "--endpoints",
            servers,
            "--server_num",
            "2",
            "--workers",
            "10.0.0.1:6180",
            "--worker_num",
            "1",
        ],
        ["--server_num", "2", "--endpoints", servers, "--trainers", "10.0.0.1:6180"],
    ):
        found = parse([*options, "train.py"]).job
        assert (found.mode, found.servers, found.trainers) == (
            "parameter_server",
            servers.split(","),
            ["10.0.0.1:6180"],
        )
    assert job(mode="ps").mode == "parameter_server"
    write("job.yaml", "script: train.py\nmode: ps\nservers: 3\nrestarts: 2\nsnapshots: {folder: cuts}")
    found = read_job("job.yaml")
    assert (found.mode, found.servers, found.trainers, found.server_grace) == (
        "parameter_server",
        3,
        1,
        10,
    )
    assert found.restarts == Restarts(servers=2, trainers=2)
    assert found.snapshots == Snapshots(folder="cuts", every_s=60, keep_bytes=256 << 20, resume=False)
    write("again.yaml", found.to_yaml())
    assert read_job("again.yaml") == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "restarts: {servers: 1}",
            "job.yaml: a server that is started again needs snapshots, or it has lost its rows",
        ),
        (
            "restarts: {server: 1}",
            "job.yaml:3:12: unknown key 'restarts.server' (did you mean servers?)",
        ),
        (
            "restarts: -1",
            "job.yaml:3:1: restarts.servers: expected a number from 0, found -1",
        ),
        ("restarts: no", "job.yaml:3:1: restarts: must be a mapping, found 'no'"),
        ("snapshots: {every_s: 5}", "job.yaml:3:1: the key 'snapshots.folder' is missing"),
        (
            "snapshots: {folder: x, every_s: 0}",
            "job.yaml:3:24: snapshots.every_s: expected a number above 0, found 0",
        ),
        (
            "snapshots: {folder: x, speed: 0}",
            "unknown key 'snapshots.speed'; it has the keys folder, every_s, keep_bytes, resume",
        ),
        (
            "snapshots: {folder: x}\nenv: {JFLUID_PS_KEEP_BYTES: 5}",
            "env sets JFLUID_PS_KEEP_BYTES, which the section snapshots does; remove it",
        ),
        (
            "env: {JFLUID_PS_RESTORE: 1}",
            "the launcher sets JFLUID_PS_RESTORE for each process; remove it",
        ),
        ("servers: ['a:1', 'a:2']\nips: [a]", "ips does not go with lists of host:port"),
        ("servers: ['a:1', 'a:2']\nnodes: 2", "must both be lists of host:port, or both numbers"),
    ],
)
def test_mistakes(text, expected):
    write("train.py", "")
    write("job.yaml", f"script: train.py\nmode: ps\n{text}")
    with pytest.raises(JobError) as error:
        read_job("job.yaml")
    assert expected in str(error.value)


def test_options_that_contradict_each_other(capsys):
    with pytest.raises(SystemExit):
        parse(["--endpoints", "a:1,a:2", "--server_num", "3", "train.py"])
    assert "--server_num 3 does not go with --endpoints a:1,a:2" in capsys.readouterr().err


# ---- real jobs -----------------------------------------------------------------------------------

process = pytest.mark.process


@process
def test_servers_that_do_not_end_by_themselves_are_ended():
    result = launched(
        "--server_num",
        "2",
        "--worker_num",
        "3",
        *GRACE,
        script(servers="sys.exit(wait_for('never'))"),
    )
    assert result.returncode == 0, result.stderr
    assert "server 0 and server 1 still ran 0.2 s after all trainers had finished, and were ended" in result.stderr
    assert not any(map(alive, numbers()))
    given = [json.loads(untimed(f"mylog/serverlog.{rank}")) for rank in range(2)]
    given += [json.loads(untimed(f"mylog/workerlog.{rank}")) for rank in range(3)]
    servers = given[0]["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    assert [item["PADDLE_CURRENT_ENDPOINT"] for item in given] == servers + given[0]["PADDLE_TRAINER_ENDPOINTS"].split(
        ","
    )
    assert [f"{item['POD_IP']}:{item['PADDLE_PORT']}" for item in given[:2]] == servers
    assert result.stdout == untimed("mylog/workerlog.0")


@process
def test_given_endpoints():
    result = launched(
        "--servers",
        "127.0.0.1:6170,127.0.0.1:6171",
        "--workers",
        "127.0.0.1:6180",
        *GRACE,
        script(),
    )
    assert result.returncode == 0, result.stderr
    given = json.loads(result.stdout)
    assert given["PADDLE_PSERVERS_IP_PORT_LIST"] == "127.0.0.1:6170,127.0.0.1:6171"
    assert given["PADDLE_CURRENT_ENDPOINT"] == "127.0.0.1:6180"


@process
def test_a_server_that_fails_ends_all():
    write("job.yaml", "script: train.py\nmode: parameter_server\nservers: 2\ntrainers: 2")
    script(
        trainers="wait_for('never')",
        servers="wait_for('pid.0', 'pid.1')\n"
        "    if rank == 's1': raise RuntimeError('the table is full')\n"
        "    wait_for('never')",
    )
    result = launched("job.yaml")
    assert result.returncode == 1
    assert "server 1 failed first (exit code 1)" in result.stderr
    assert "    RuntimeError: the table is full" in result.stderr
    assert "its log: mylog/serverlog.1" in result.stderr
    assert not any(map(alive, numbers()))


@process
def test_a_trainer_that_fails_ends_all():
    result = launched(
        "--servers",
        "2",
        "--trainers",
        "2",
        script("sys.exit(6) if rank == 1 else wait_for('never')"),
    )
    assert result.returncode == 6
    assert "rank 1 failed first (exit code 6)" in result.stderr
    assert not any(map(alive, numbers()))


@process
def test_a_signal_ends_servers_and_trainers():
    with Launcher("--servers", "2", "--trainers", "1", script("wait_for('never')")) as launcher:
        wait_until(lambda: len(list(Path().glob("pid.*[012]"))) == 3)
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate()
    assert launcher.returncode == 128 + signal.SIGTERM
    assert not any(map(alive, numbers()))


@process
def test_servers_of_another_host_end_when_the_trainers_have():
    options = [
        "--servers",
        "127.0.0.1:6170,127.0.0.1:6171",
        "--trainers",
        "127.0.0.2:6180,127.0.0.2:6181",
        "--coordinator",
        f"127.0.0.1:{free_port()}",
        *GRACE,
        script(),
    ]
    on_two_hosts(options)
    assert not any(map(alive, numbers()))
    assert sorted(path.name for path in Path("mylog").glob("*log.*")) == [
        "serverlog.0",
        "serverlog.1",
        "workerlog.0",
        "workerlog.1",
    ]


@process
def test_servers_and_trainers_on_each_of_two_hosts():
    on_two_hosts(
        [
            "--servers",
            "1",
            "--trainers",
            "2",
            "--nodes",
            "2",
            "--coordinator",
            f"127.0.0.1:{free_port()}",
            *GRACE,
            script("print(os.environ['JFLUID_JOB_TOKEN'])"),
        ],
        "--node-rank",
        "{}",
    )
    given = [json.loads(untimed(f"mylog/workerlog.{rank}").splitlines()[0]) for rank in range(4)]
    assert [item["PADDLE_TRAINER_ID"] for item in given] == ["0", "1", "2", "3"]
    assert all(len(item["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")) == 2 for item in given)
    tokens = {untimed(f"mylog/workerlog.{rank}").splitlines()[1] for rank in range(4)}
    assert tokens == {ENVIRONMENT["JFLUID_JOB_TOKEN"]}
    assert [json.loads(untimed(f"mylog/serverlog.{rank}"))["PADDLE_PSERVER_ID"] for rank in range(2)] == [
        "0",
        "1",
    ]


def on_two_hosts(options, *rank):
    """Two launchers, which both end well."""
    rank = rank or ("--node_ip", "127.0.0.{next}")
    hosts = [Launcher(*(word.format(number, next=number + 1) for word in rank), *options) for number in range(2)]
    errors = [host.communicate()[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], errors


# ---- servers and trainers that are started again -------------------------------------------------

# Each life leaves a file; the others go on.
AGAIN = """
life = int(os.environ["JFLUID_RESTARTS"])
pathlib.Path(f"life.{rank}.{life}").write_text(os.environ.get("JFLUID_PS_RESTORE", "no"))
"""


@process
def test_one_server_is_started_again():
    write(
        "train.py",
        PREPARED
        + AGAIN
        + """
if server:
    wait_for("life.0.0")
    if rank == "s1" and life < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for("done")
    sys.exit(0)
wait_for("life.s1.2")
pathlib.Path("done").touch()
""",
    )
    result = launched(
        "--servers",
        "2",
        "--trainers",
        "1",
        "--set=restarts.servers=2",
        "--set=snapshots.folder=cuts",
        "train.py",
    )
    assert result.returncode == 0, result.stderr
    assert (
        "server 1 failed (signal SIGKILL) and is started again; 1 more restart of it; its log: mylog/serverlog.1"
        in result.stderr
    )
    assert {path.name: path.read_text() for path in Path().glob("life.*")} == {
        "life.0.0": "no",
        "life.s0.0": "no",
        "life.s1.0": "no",
        "life.s1.1": "1",
        "life.s1.2": "1",
    }


@process
def test_a_trainer_is_started_again_until_its_restarts_are_used_up():
    write(
        "train.py",
        PREPARED
        + AGAIN
        + """
if server or rank == 0:
    wait_for("never")
child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
pathlib.Path(f"child.{life}").write_text(str(child.pid))
raise RuntimeError(f"life {life}")
""",
    )
    result = launched("--servers", "1", "--trainers", "2", "--set=restarts.trainers=2", "train.py")
    assert result.returncode == 1
    assert result.stderr.count("rank 1 failed (exit code 1) and is started again") == 2
    assert "    RuntimeError: life 2" in result.stderr and "rank 1 failed first (exit code 1)" in result.stderr
    assert sorted(path.name for path in Path().glob("life.*")) == [
        "life.0.0",
        "life.1.0",
        "life.1.1",
        "life.1.2",
        "life.s0.0",
    ]
    assert untimed("mylog/workerlog.1").count("RuntimeError: life") == 3
    assert len(numbers("child.*")) == 3
    wait_until(lambda: not any(map(alive, numbers("child.*"))))  # they were sent SIGKILL


@process
def test_servers_are_restored_when_all_start_again():
    write(
        "train.py",
        PREPARED
        + AGAIN
        + """
if server:
    wait_for("never")
wait_for(f"life.s0.{life}")
sys.exit(3 if life == 0 else 0)
""",
    )
    result = launched(
        "--servers",
        "1",
        "--trainers",
        "1",
        "--max-restarts",
        "1",
        "--set=snapshots.folder=cuts",
        *GRACE,
        "train.py",
    )
    assert result.returncode == 0, result.stderr
    assert [Path(f"life.s0.{life}").read_text() for life in range(2)] == ["no", "1"]


@process
def test_a_trainer_whose_rounds_are_lost_has_all_start_again():
    """It is not started again by itself, however often it may be."""
    write(
        "train.py",
        PREPARED
        + AGAIN
        + """
if server:
    wait_for("never")
if life == 0:
    import jfluid
    from jfluid.ps_server.errors import RollbackError
    raise RollbackError("gradients that nobody has")
""",
    )
    result = launched(
        "--servers",
        "1",
        "--trainers",
        "1",
        "--max-restarts",
        "1",
        "--set=snapshots.folder=cuts",
        "--set=restarts.trainers=5",
        *GRACE,
        "train.py",
    )
    assert result.returncode == 0, result.stderr
    assert (
        "and is started again" not in result.stderr and "rank 0 failed (exit code 1); restart 1 of 1" in result.stderr
    )
    assert [Path(f"life.s0.{life}").read_text() for life in range(2)] == ["no", "1"]


@process
def test_a_server_that_fails_after_the_trainers_have_finished_is_named_and_changes_nothing():
    write(
        "train.py",
        PREPARED
        + """
if server:
    while alive("pid.0"):
        time.sleep(0.01)
    raise RuntimeError("the disk is full")
ready()
wait_for("pid.s0")
""".replace("if server:", "if server:\n    ready()\n    wait_for('pid.0')"),
    )
    result = launched("--servers", "1", "--trainers", "1", "train.py")
    assert result.returncode == 0, result.stderr
    assert (
        "server 0 ended with exit code 1 after all trainers had finished; its log: mylog/serverlog.0" in result.stderr
    )


@process
def test_a_folder_of_a_job_that_runs_is_refused_by_the_name_of_the_job():
    secret = "the-secret-of-another-job"
    with snapshot_owner.claimed(Path("cuts/server-0"), secret, False, None) as job:
        for resume in ("true", "false"):
            result = launched(
                "--servers",
                "1",
                "--set=snapshots.folder=cuts",
                f"--set=snapshots.resume={resume}",
                *GRACE,
                script(),
            )
            assert result.returncode == 2
            assert f"cuts belongs to job {job} (" in result.stderr
            assert f"process {os.getpid()} on " in result.stderr


@process
def test_snapshots_of_an_earlier_job_are_not_taken_for_this_ones():
    Path("cuts/server-0").mkdir(parents=True)
    write("cuts/server-0/a.00000-of-00001.json", "{}")
    result = launched("--servers", "1", "--set=snapshots.folder=cuts", *GRACE, script())
    assert result.returncode == 2
    assert "snapshots.folder: cuts holds snapshots of an earlier job; resume with" in result.stderr


@process
def test_what_left_a_member_that_is_started_again_ends_with_it():
    write(
        "train.py",
        PREPARED
        + ESCAPED
        + """
if rank == 0 and life == "0":
    wait_for("child.1.0.bare", "child.s0.0.bare")
    raise RuntimeError("out of luck")
if rank == 0:
    left = [name for name in ("child.0.0", "child.0.0.bare") if alive(name)]
    others = [name for name in ("child.1.0", "child.s0.0") if alive(name)]
    pathlib.Path("found").write_text(f"{left} {others}")
    raise RuntimeError("enough")
wait_for("never")
""",
    )
    result = launched("--servers", "1", "--trainers", "2", "--set=restarts.trainers=1", "train.py")
    assert result.returncode == 1, result.stderr
    assert Path("found").read_text() == "[] ['child.1.0', 'child.s0.0']"
    daemons = numbers("child.*")
    assert len(daemons) == 8 and not any(map(alive, daemons))
