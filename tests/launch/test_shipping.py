"""Records of hosts that share no folder with host 0, which come over the launchers' connection."""

import base64
import json
from pathlib import Path

import pytest

from jfluid.launch import shipping
from jfluid.launch.command import parse
from jfluid.launch.messages import Recorded
from jfluid.launch.recording import JobRecord
from jfluid.launch.shipping import Receiver, Sender
from jfluid.record import lines, profiles
from tests.launch_case import PROLOGUE, Launcher, write
from tests.ports import free_port


@pytest.fixture
def record(tmp_path, monkeypatch):
    """The record of the launcher of host 0, and one of host 1 in another folder."""
    monkeypatch.chdir(tmp_path)
    write("train.py", "")
    made = [JobRecord(parse(["--log_dir", f"host{node}", "train.py"]).job, node) for node in (0, 1)]
    yield made
    for one in made:
        one.close()


def add(path, *steps):
    with path.open("ab") as file:
        for step in steps:
            file.write(lines.encode("scalars", step, {"step": step, "scalars": {"x": 1}}))


def steps(path):
    found = (line for line in lines.Tail(path).lines() if line["kind"] == "scalars")
    return [line["step"] for line in found if line["step"] is not None]


def ship(sender, receiver, node=1):
    for piece in sender.rest():
        receiver.take(node, piece)


def test_each_line_comes_once(record):
    head, other = record
    receiver, sender = Receiver(head), Sender(other, 1)
    sender.begin(receiver.token, [("trainer", 1)])
    assert sender.on
    own, there = other.folder / "trainer.1.jsonl", head.folder / "trainer.1.jsonl"
    ship(sender, receiver)
    assert not there.exists()
    add(own, 0, 1)
    with own.open("ab") as file:
        file.write(b'{"t":1,"kind":"scal')  # a line that is being written
    ship(sender, receiver)
    assert steps(there) == [0, 1]
    with own.open("ab") as file:
        file.write(b'ars","step":2,"scalars":{}}\n')
    ship(sender, receiver)
    # thinned: another file, in which the last line stays
    add(own.with_name("thin"), 0)
    with own.with_name("thin").open("ab") as file:
        file.write(b'{"t":1,"kind":"scalars","step":2,"scalars":{}}\n')
    own.with_name("thin").replace(own)
    add(own, 3)
    ship(sender, receiver)
    assert steps(there) == [0, 1, 2, 3]
    assert there.stat().st_mode & 0o777 == 0o600
    events = [line["event"] for line in lines.Tail(head.folder / "launcher.1.jsonl").lines() if line["kind"] == "event"]
    assert events == ["job"]


def test_what_is_sent_in_a_second_is_bounded(record, monkeypatch):
    head, other = record
    receiver, sender = Receiver(head), Sender(other, 1)
    sender.begin(receiver.token, [("trainer", 1)])
    add(other.folder / "trainer.1.jsonl", *range(20_000))
    sent = sum(len(base64.b64decode(piece.data)) for piece in sender.due())
    assert sent <= shipping._BYTES_A_SECOND + shipping._PIECE
    assert [*sender.due()] == []  # in the same second


def test_launchers_that_share_the_folder_send_nothing(record):
    head, _ = record
    sender = Sender(head, 1)
    sender.begin(Receiver(head).token, [("trainer", 1)])
    assert not sender.on and [*sender.rest()] == []


@pytest.mark.parametrize(
    "name",
    [
        "launcher.0.jsonl",
        "launcher.2.jsonl",
        "trainer.0.jsonl",
        "../trainer.1.jsonl",
        "/etc/passwd",
        "trainer.1.jsonl/..",
        "profile-a/../x.json.gz",
        "profile.json",
        "",
    ],
)
def test_other_names_are_passed_over(record, tmp_path, name):
    head, _ = record
    receiver = Receiver(head)
    receiver.begin([("trainer", 0)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    data = base64.b64encode(lines.encode("scalars", 1, {"step": 1, "scalars": {}})).decode()
    receiver.take(1, Recorded(name=name, data=data, last=False))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_file_belongs_to_the_host_that_sent_it_first(record):
    head, _ = record
    receiver = Receiver(head)
    for node, step in ((1, 1), (2, 2)):
        data = base64.b64encode(lines.encode("scalars", 1, {"step": step, "scalars": {}})).decode()
        receiver.take(node, Recorded(name="trainer.5.jsonl", data=data, last=False))
    assert steps(head.folder / "trainer.5.jsonl") == [1]


def test_what_is_no_line_is_passed_over_and_files_are_thinned(record, monkeypatch):
    head, _ = record
    receiver = Receiver(head)
    monkeypatch.setattr(shipping, "MAX_BYTES", 4000)
    for step in range(200):
        line = lines.encode("scalars", step, {"step": step, "scalars": {"x": step}})
        data = base64.b64encode(b"no line\n" + line).decode()
        receiver.take(1, Recorded(name="trainer.1.jsonl", data=data, last=False))
    receiver.take(1, Recorded(name="trainer.1.jsonl", data="no base64", last=False))
    path = head.folder / "trainer.1.jsonl"
    assert path.stat().st_size <= 4100 and b"no line" not in path.read_bytes()
    assert steps(path)[-1] == 199 and steps(path)[0] == 0


@pytest.mark.process
def test_two_hosts_without_a_common_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = """
import jfluid
from jfluid import record
from jfluid.record.phases import PHASES
for step in range(6):
    with PHASES.phase("compute"):
        jfluid.log(step, loss=float(rank))
    if step == 0:
        record.current()
        ready()
        wait_for("pid.0", "pid.1")
        while PHASES.on_step is None:
            record.current().flush()
            time.sleep(0.05)
    PHASES.step()
"""
    write("train.py", PROLOGUE + script)
    port = free_port()
    options = ["--cpus", "1", "--nodes", "2", "--coordinator", f"127.0.0.1:{port}", "--profile", "2:4"]
    hosts = [
        Launcher("--node-rank", str(node), "--log_dir", f"host{node}", *options, "train.py", forks=True)
        for node in (0, 1)
    ]
    ended = [host.communicate() for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], ended
    there = Path("host0/record")
    assert steps(there / "trainer.1.jsonl") == steps(Path("host1/record/trainer.1.jsonl")) == [*range(6)]
    events = [line for line in lines.Tail(there / "launcher.1.jsonl").lines() if line["kind"] == "event"]
    assert [e["event"] for e in events][:2] == ["job", "start"]
    (path,) = Path("host0").glob("profile-*.json.gz")
    found = profiles.step_traces.read_json(path)["traceEvents"]
    names = {e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert names == {"trainer 0", "trainer 1"}, json.dumps(found)[:500]
    assert not [*Path("host1").glob("profile-*/*")]
