"""Several hosts: how a launcher finds its place, and how launchers meet and end together."""

import contextlib
import itertools
import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from jfluid import errors
from jfluid.job import CollectiveJob, JobError
from jfluid.launch import main, rendezvous
from jfluid.launch.failure import Failure
from jfluid.launch.messages import (
    End,
    Failed,
    Finished,
    Join,
    Message,
    Profile,
    Recorded,
    Refused,
    Start,
    decode,
    encode,
)
from jfluid.launch.nodes import Node, NodeOptions, find_node, first_host
from jfluid.launch.rendezvous import Follower, Head
from jfluid.security import sockets
from tests.launch_case import (
    ENVIRONMENT,
    LIMIT,
    PROLOGUE,
    Clock,
    Launcher,
    alive,
    launched,
    numbers,
    untimed,
    wait_until,
    write,
)
from tests.ports import free_port

SECRET = "a-secret-of-the-tests"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("train.py", "")
    return tmp_path


def found(options=None, environment=None, **fields):
    return find_node(
        CollectiveJob(script="train.py", processes=2, **fields),
        NodeOptions(**options or {}),
        environment or {},
    )


# ---- where a launcher stands ---------------------------------------------------------------------


def test_one_host():
    assert found() == Node()
    assert found(started_port=6170) == Node(first_port=6170)
    assert found(ips=["10.0.0.1"], options={"rank": 0}) == Node(host="10.0.0.1")


def test_explicit_hosts():
    assert found(nodes=3, coordinator="a:7000", options={"rank": 2}) == Node(2, 3, None, ("a", 7000))
    environment = {"PADDLE_NUM_TRAINERS": "3"}
    assert found({"rank": 1}, environment, coordinator="a:7000") == Node(1, 3, None, ("a", 7000))


def test_lists_of_addresses():
    ips = ["10.0.0.1", "10.0.0.2"]
    assert found(ips=ips, options={"ip": "10.0.0.2"}) == Node(1, 2, "10.0.0.2", ("10.0.0.1", 6069), 6070)
    assert found(ips=ips, options={"rank": 0}, started_port=7000) == Node(0, 2, "10.0.0.1", ("10.0.0.1", 6999), 7000)
    assert found(ips=["203.0.113.9", "127.0.0.1"]).rank == 1, "127.0.0.1 is an address of this host"
    assert found(ips=["fd77::0:1", "[FD77::2]"], options={"rank": 1}) == Node(
        1, 2, "[fd77::2]", ("[fd77::1]", 6069), 6070
    )


def test_paddlecloud():
    environment = {
        "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2",
        "POD_IP": "10.0.0.2",
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_PORT": "6200",
    }
    options = {"use_paddlecloud": True}
    assert found(options, environment) == Node(1, 2, "10.0.0.2", ("10.0.0.1", 6199), 6200)
    environment["DISTRIBUTED_TRAINER_ENDPOINTS"] = "10.0.0.1:71,10.0.0.1:72,10.0.0.2:81,10.0.0.2:82"
    assert found(options, environment).ports == (81, 82)
    assert found(options, {"PADDLE_TRAINERS_NUM": "1"}) == Node()
    with pytest.raises(JobError, match="PaddleCloud sets PADDLE_TRAINERS, POD_IP, but this environment has none"):
        found(options, {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"})


SLURM = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}


def test_slurm():
    node = found(environment=SLURM)
    assert (node.rank, node.count, node.task, node.tasks) == (3, 6, 1, 2)
    host, port = node.coordinator
    assert host == "gpu07"
    assert 61440 <= port < 65536
    assert found(environment=SLURM | {"SLURM_PROCID": "0"}).coordinator == node.coordinator, "the same for all tasks"
    assert found(environment=SLURM | {"SLURM_JOB_ID": "13"}).coordinator != node.coordinator, "another for another job"
    assert found(environment={"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == Node(), (
        "a batch script"
    )
    assert found(environment=SLURM, nodes=1) == Node(), "what the job says comes first"
    with pytest.raises(JobError, match="the job wants 4 hosts, but there are 6"):
        found(environment=SLURM, nodes=4)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("gpu[07-09,12],cpu3", "gpu07"),
        ("cpu3,gpu[1-2]", "cpu3"),
        ("a", "a"),
        ("r[1,3]-x", "r1-x"),
        ("n[3]", "n3"),
    ],
)
def test_first_host(hosts, expected):
    assert first_host(hosts) == expected


def test_openmpi():
    environment = {
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "prterun-1@1",
    }
    assert found(environment=environment, coordinator="a:7000") == Node(3, 4, None, ("a", 7000), task=1, tasks=2)
    uri = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
    assert found(environment=environment | uri).coordinator[0] == "10.96.0.1"
    assert found(environment=environment | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).coordinator[0] == "127.0.0.1"
    with pytest.raises(JobError, match="Say --coordinator HOST:PORT"):
        found(environment=environment)


def test_mpich():
    environment = {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "3"}
    assert found(environment=environment, coordinator="a:7000") == Node(3, 4, None, ("a", 7000), task=3, tasks=4)
    assert found(environment=environment).coordinator[0] == "127.0.0.1"
    with pytest.raises(JobError, match="Say --coordinator HOST:PORT"):
        found(environment=environment | {"MPI_LOCALNRANKS": "2"})


def test_kubernetes(monkeypatch):
    monkeypatch.setattr(socket, "getfqdn", lambda: "digits-2.digits.prod.svc.cluster.local")
    environment = {"JOB_COMPLETION_INDEX": "2"}
    assert found(environment=environment, nodes=4) == Node(2, 4, None, ("digits-0.digits.prod.svc.cluster.local", 6069))
    assert found(environment=environment | {"PADDLE_NUM_TRAINERS": "4"}).rank == 2
    assert found(environment=environment) == Node(), "an Indexed Job without a number of hosts runs jobs of their own"


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({"nodes": 2}, {}, "2 hosts, and the number of this host is unknown: give --node-rank K"),
        ({"nodes": 2}, {"rank": 1}, "where do the hosts meet? Say --coordinator HOST:PORT"),
        (
            {"nodes": 2, "coordinator": "a:7000"},
            {"rank": 2},
            "--node-rank 2: a job of 2 hosts has the ranks 0 to 1",
        ),
        (
            {},
            {"rank": 1},
            "--node-rank 1: a job of 1 hosts has the ranks 0 to 0 (say how many hosts there are with --nodes N)",
        ),
        (
            {"ips": ["10.0.0.1", "10.0.0.2"]},
            {"ip": "10.0.0.3"},
            "--node_ip 10.0.0.3 is not among --ips 10.0.0.1,10.0.0.2",
        ),
        (
            {"ips": ["203.0.113.1", "203.0.113.2"]},
            {},
            "none of --ips 203.0.113.1,203.0.113.2 is an address of this host",
        ),
        (
            {"ips": ["127.0.0.1", "127.0.0.2"]},
            {},
            "more than one of --ips 127.0.0.1,127.0.0.2 is an address of this host",
        ),
    ],
)
def test_mistakes(fields, options, expected):
    with pytest.raises(JobError) as raised:
        found(options, **fields)
    assert expected in str(raised.value)


def test_a_variable_that_is_no_number():
    with pytest.raises(JobError, match="PADDLE_NUM_TRAINERS: expected an integer from 1 on, found 'two'"):
        found(environment={"PADDLE_NUM_TRAINERS": "two"})


def test_a_number_of_hosts_from_outside_says_what_else_is_needed(capfd, monkeypatch):
    hosts = {"PADDLE_NUM_TRAINERS": "2"}
    with pytest.raises(JobError) as raised:
        found(environment=hosts)
    assert str(raised.value) == (
        "jfluid-launch: PADDLE_NUM_TRAINERS says 2 hosts, and the number of this host is unknown: give --node-rank K "
        "(from 0) on each, and --coordinator HOST:PORT, an address of host 0; or --ips with the "
        "addresses of all"
    )
    with pytest.raises(JobError, match="where do the hosts meet"):
        found({"rank": 1}, hosts)
    with pytest.raises(JobError, match="PADDLE_NUM_TRAINERS says 2 hosts, but there are 3"):
        found({"rank": 0}, hosts, ips=["a", "b", "c"])
    assert found(environment=hosts | {"PADDLE_TRAINER_ENDPOINTS": "a:1,a:2"}) == Node(), (
        "a trainer that starts a job of its own: the number is that of its fellow trainers"
    )
    # A script on its own does not ignore it either.
    monkeypatch.setenv("PADDLE_NUM_TRAINERS", "2")
    assert main(["train.py"]) == 2
    expected = "PADDLE_NUM_TRAINERS says 2 hosts, but the job is one process: say how many there are"
    assert expected in capfd.readouterr().err


# ---- rendezvous, in this process -----------------------------------------------------------------


@contextlib.contextmanager
def head(count, port, name="job", clock=time.monotonic):
    launcher = Head(Node(0, count, None, ("127.0.0.1", port)), name, 0, SECRET, clock)
    agreed = []
    thread = threading.Thread(target=lambda: agreed.append(launcher.rendezvous([1], lambda: False)), daemon=True)
    thread.start()
    with contextlib.closing(launcher):
        yield launcher, agreed, thread


def follower(rank, count, port, name="job", secret=SECRET):
    return Follower(Node(rank, count, None, ("127.0.0.1", port)), name, secret)


def test_launchers_agree_on_the_endpoints():
    port = free_port()
    with head(2, port) as (_, agreed, thread):
        second = follower(1, 2, port)
        members = second.rendezvous([7, 8], lambda: False)
        thread.join(LIMIT)
        assert agreed == [members]
        assert members.endpoints == [["127.0.0.1:1"], ["127.0.0.1:7", "127.0.0.1:8"]]
        second.close()


def test_a_run_that_ends_before_a_host_has_seen_that_it_began():
    """Its launcher had no processor meanwhile: it learns of both at once."""
    port, clock = free_port(), Clock()
    with head(2, port, clock=clock) as (first, _, thread):
        second = follower(1, 2, port)
        looks = itertools.count()

        def interrupted():
            if next(looks) == 1:  # it has joined, and is about to look for an answer
                thread.join(LIMIT)
                first.failed(Failure("rank 0", 3, "exit code 3", "", ""), age=0.0)
                clock.seconds.value += rendezvous.SECONDS_TO_COMPARE
                first.look()
            return False

        assert second.rendezvous([7], interrupted) is not None
        assert second.verdict == first.verdict and second.verdict.failure.exit_code == 3
        second.close()


@pytest.mark.parametrize(
    ("rank", "count", "name", "expected"),
    [
        (1, 3, "job", "the job at the coordinator is 'job' on 2 hosts, not 'job' on 3"),
        (1, 2, "other", "the job at the coordinator is 'job' on 2 hosts, not 'other' on 2"),
        (5, 2, "job", "there is no host 5"),
    ],
)
def test_a_launcher_that_does_not_belong(rank, count, name, expected):
    port = free_port()
    with head(2, port) as (_, _, thread):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(JobError) as raised:
                follower(rank, count, port, name).rendezvous([7], lambda: False)
        assert f"host {rank} cannot join: {expected}" in str(raised.value)
        right = follower(1, 2, port)
        assert right.rendezvous([7], lambda: False) is not None
        thread.join(LIMIT)
        right.close()


def test_a_launcher_that_does_not_come():
    # each look at it is 200 s later than the one before
    port, clock = free_port(), itertools.count(0, 200.0).__next__
    with contextlib.closing(Head(Node(0, 3, None, ("127.0.0.1", port)), "job", 0, SECRET, clock)) as first:
        with pytest.raises(JobError, match="host 1, 2 of 3 did not come to the coordinator within 300 s"):
            first.rendezvous([1], lambda: False)
        with pytest.raises(JobError, match=f"cannot listen at the coordinator's address 127.0.0.1:{port}: "):
            Head(Node(0, 3, None, ("127.0.0.1", port)), "job", 0, SECRET)
        assert first.rendezvous([1], lambda: True) is None
    with pytest.raises(JobError, match=f"the launcher of host 0 did not answer at 127.0.0.1:{port} within 300 s"):
        Follower(Node(1, 3, None, ("127.0.0.1", port)), "job", SECRET, clock).rendezvous([1], lambda: False)


# ---- strangers at the coordinator ----------------------------------------------------------------


def joined_as(port, message, secret=SECRET):
    """What the coordinator answers to a process that has the secret, and says this."""
    with sockets.connect(("127.0.0.1", port), secret, rendezvous._PURPOSE, 1 << 20, LIMIT) as connection:
        connection.send(message)
        return connection.receive()


def test_without_the_secret_nobody_learns_or_joins(monkeypatch):
    port = free_port()
    with head(2, port) as (_, agreed, thread):
        with pytest.raises(
            JobError,
            match=f"host 1 cannot join: the process that listens at 127.0.0.1:{port} does not have .* "
            "the same JFLUID_JOB_TOKEN",
        ):
            follower(1, 2, port, secret="another-secret-of-another").rendezvous([7], lambda: False)
        with monkeypatch.context() as patch:
            patch.setattr(sockets, "_SECONDS_TO_PROVE", 0.5)  # for strangers that send nothing, or too little
            for said in (
                b"",
                json.dumps(["join", {"job": "?", "node": 1, "count": 1, "endpoints": []}]).encode() + b"\n",
                b"[" * 200_000 + b"\n",
            ):
                with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as stranger:
                    heard = stranger.recv(1000)
                    assert len(heard) == 40 and heard.startswith(b"jfluid 1")
                    with contextlib.suppress(ConnectionError):  # it is closed while this is sent
                        stranger.sendall(said)
                        assert stranger.recv(1000) in (b"", bytes(32))
        assert thread.is_alive() and not agreed
        right = follower(1, 2, port)
        assert right.rendezvous([7], lambda: False) is not None
        right.close()


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 200_000,
        b"",
        b"\xff",
        b"{}",
        b"[]",
        b'{"kind": "end", "failure": null, "again": false}',
        b'{"kind": "finished"}',
        b'{"kind": "join", "job": "job", "node": "1", "count": 2, "endpoints": []}',
        b'{"kind": "join", "job": "job", "node": 1, "count": 2, "endpoints": ["a"]}',
    ],
)
def test_what_is_no_message_of_a_launcher_costs_its_connection_only(said):
    port = free_port()
    with head(2, port):
        with pytest.raises(ConnectionError):
            joined_as(port, said)
        right = follower(1, 2, port)
        assert right.rendezvous([7], lambda: False) is not None
        right.close()


def test_strangers_during_a_run_are_turned_away_and_members_wait_for_the_next():
    port = free_port()
    with head(2, port) as (first, _, thread):
        one = follower(1, 2, port)
        assert one.rendezvous([7], lambda: False) is not None
        thread.join(LIMIT)
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT))
                first.look()
            assert len(first._listener._newcomers) <= 128 and first.verdict is None
            again = []
            second = follower(1, 2, port)
            waiting = threading.Thread(target=lambda: again.append(second.rendezvous([8], lambda: False)))
            waiting.start()
            wait_until(lambda: first.look() or first._early)
            assert first.verdict is None
            one.close()
            first.part()
            assert first.rendezvous([1], lambda: False).attempt == 1
            waiting.join(LIMIT)
            assert again[0].attempt == 1
            second.close()


def test_a_member_that_speaks_nonsense_is_as_one_that_is_gone():
    port, clock = free_port(), Clock()
    with head(2, port, clock=clock) as (first, _, thread):
        one = follower(1, 2, port)
        assert one.rendezvous([7], lambda: False) is not None
        thread.join(LIMIT)
        one._connection._connection.send(b"[" * 200_000)
        (connection,) = first.connections()
        wait_until(lambda: first.receive(connection) or not first.connections())
        clock.seconds.value += rendezvous.SECONDS_TO_COMPARE
        wait_until(lambda: first.look() or first.verdict is not None)
        assert first.verdict.failure.label == "host 1"
        one.close()


MESSAGES = [
    Join(job="j", node=1, count=2, endpoints=["a:1"]),
    Refused(problem="no"),
    Start(endpoints=[["a:1"], []], attempt=3, record="token", time=1.5),
    Recorded(name="trainer.1.jsonl", data="e30K", last=False),
    Profile(id="a1", first=None, steps=3, begin=None, end=2.5),
    Failed(failure=Failure("rank 1", 1, "exit code 1", "log", "Traceback\n\0\u2028"), age=0.5),
    Finished(),
    End(failure=None, again=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_messages_of_launchers(message):
    data = encode(message)
    assert decode(data) == message
    for i in range(len(data)):
        with pytest.raises(errors.MessageError, match="expected a message of a launcher; "):
            decode(data[:i])
        for changed in (data[:i] + b"\xff" + data[i + 1 :], data[:i] + b"[" * 5000 + data[i:]):
            with contextlib.suppress(errors.MessageError):
                assert isinstance(decode(changed), Message)


def test_a_path_that_is_no_text_can_be_told():
    failure = Failure("rank 1", 1, "exit code 1", b"log-\xff".decode(errors="surrogateescape"), "")
    assert decode(encode(Failed(failure=failure, age=0.0))).failure.log == "log-?"


def test_a_host_that_vanishes_is_missed_after_20_seconds():
    """As docs/clusters.md says; tests/cluster/test_hosts.py takes hosts off a network."""
    given = rendezvous._KEEPALIVE
    assert given["TCP_KEEPIDLE"] + given["TCP_KEEPCNT"] * given["TCP_KEEPINTVL"] == 20
    assert given["TCP_USER_TIMEOUT"] == 20_000  # milliseconds


# ---- real launchers on two addresses of this host ------------------------------------------------

process = pytest.mark.process


class Hosts:
    """Two launchers, as on two hosts."""

    def __init__(self, script, *options):
        write("train.py", PROLOGUE + script)
        port = free_port()
        self.launchers = [
            Launcher(
                "--cpus",
                "2",
                "--nnodes",
                "2",
                "--node-rank",
                str(rank),
                "--coordinator",
                f"127.0.0.1:{port}",
                "--log_dir",
                f"log{rank}",
                *options,
                "train.py",
            )
            for rank in range(2)
        ]

    def ended(self):
        self.errors = [launcher.communicate()[1] for launcher in self.launchers]
        return [launcher.returncode for launcher in self.launchers]


@process
def test_two_hosts():
    hosts = Hosts("""
import json
print(json.dumps([os.environ["PADDLE_TRAINER_ENDPOINTS"].split(","), os.environ["PADDLE_CURRENT_ENDPOINT"]]))
""")
    assert hosts.ended() == [0, 0]
    given = [json.loads(untimed(f"log{rank // 2}/workerlog.{rank}")) for rank in range(4)]
    assert all(endpoints == given[0][0] for endpoints, _ in given)
    assert [own for _, own in given] == given[0][0]
    assert len(set(given[0][0])) == 4


@process
@pytest.mark.parametrize("failing", [1, 3])
def test_a_failure_on_one_host_ends_all(failing):
    hosts = Hosts(f"""
ready()
if rank == {failing}:
    wait_for(*(f"pid.{{other}}" for other in range(4)))
    raise RuntimeError("out of luck")
wait_for("never")
""")
    assert hosts.ended() == [1, 1]
    assert not any(map(alive, numbers()))
    for said in hosts.errors:
        assert f"rank {failing} failed first (exit code 1)" in said
        assert "    RuntimeError: out of luck" in said
        assert f"its log: log{failing // 2}/workerlog.{failing}" in said


@process
@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_goes_takes_all_with_it(host, number):
    hosts = Hosts("ready()\nwait_for('never')")
    wait_until(lambda: len(list(Path().glob("pid.[0-3]"))) == 4)
    hosts.launchers[host].send_signal(number)
    codes = hosts.ended()
    wait_until(lambda: not any(map(alive, numbers())))
    assert codes[host] == (128 + number if number == signal.SIGTERM else -number)
    other = hosts.errors[1 - host]
    if number == signal.SIGTERM:
        assert codes[1 - host] == 128 + number
        assert f"host {host} failed first (SIGTERM to its launcher)" in other
    else:
        assert codes[1 - host] == 1
        assert f"host {host} failed first (its launcher is gone)" in other


@process
def test_hosts_need_a_secret(monkeypatch):
    monkeypatch.delitem(ENVIRONMENT, "JFLUID_JOB_TOKEN")
    write("train.py", "")
    several = ["--cpus", "1", "--nnodes", "2", "--node-rank", "0", "--coordinator"]
    refused = launched(*several, "10.1.2.3:7000", "train.py")
    assert refused.returncode == 2
    assert (
        "a job on several hosts needs a secret, by which its processes know each other: set JFLUID_JOB_"
        in refused.stderr
    )
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(Path("cache").absolute()))
    hosts = Hosts("print(os.environ['JFLUID_JOB_TOKEN'])")
    assert hosts.ended() == [0, 0], "on one machine nothing has to be set"
    own = Path("cache/jfluid/secret").read_text()
    assert [untimed(f"log{rank // 2}/workerlog.{rank}") for rank in range(4)] == [own] * 4


@process
def test_nobody_restarts_without_the_first_host():
    hosts = Hosts("ready()\nwait_for('never')", "--max-restarts", "3")
    wait_until(lambda: len(list(Path().glob("pid.[0-3]"))) == 4)
    hosts.launchers[0].send_signal(signal.SIGTERM)
    assert hosts.ended() == [128 + signal.SIGTERM] * 2


@process
def test_all_hosts_restart():
    hosts = Hosts(
        """
attempt = os.environ["JFLUID_RESTARTS"]
pathlib.Path(f"done.{rank}.{attempt}").touch()
if attempt == "0":
    wait_for(*(f"done.{other}.0" for other in range(4)))
    if rank == 2:
        sys.exit(3)
    wait_for("never")
""",
        "--max-restarts",
        "1",
    )
    assert hosts.ended() == [0, 0]
    assert all("rank 2 failed (exit code 3); restart 1 of 1" in said for said in hosts.errors)
    assert len(list(Path().glob("done.?.1"))) == 4
