"""Profiles of steps: one script's, a job's, and what asks for them."""

import gzip
import json
import os
import time
from pathlib import Path

import pytest

from jfluid import errors
from jfluid.command import profile
from jfluid.dashboard.runs import Runs
from jfluid.record import profiles, step_traces
from tests import forked
from tests.dashboard.test_dashboard import get, job, served  # noqa: F401
from tests.launch_case import ENVIRONMENT, gang

STEPS = """
import jfluid as fluid, numpy as np, sys, time
x = fluid.data("x", [None, 8])
loss = fluid.layers.mean(fluid.layers.fc(x, 8, act="relu"))
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
for step in range({steps}):
    exe.run(feed={{"x": np.ones((4, 8), "float32")}}, fetch_list=[loss])
"""


def events_of(path):
    return json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]


def slices(events, process):
    (pid,) = [e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == process]
    return [e for e in events if e["ph"] == "X" and e["pid"] == pid]


@pytest.mark.parametrize("text", ["", "5", "10:10", "10:5", "a:b", "-1:4", "0:1001", "1:2:3"])
def test_other_texts_are_no_steps(text):
    with pytest.raises(errors.DataError, match="expected FIRST:END, such as 100:110"):
        profiles.parse_steps(text)


def test_steps():
    assert profiles.parse_steps("100:110") == (100, 10) and profiles.parse_steps("0:1000") == (0, 1000)


@pytest.mark.process
def test_some_steps_of_a_script(tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys\nassert sys.argv[1:] == ['--epochs', '3', '--steps', '9']\n" + STEPS.format(steps=12)
    )
    # steps are compiled, which have instructions to measure, though the flag is not given
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "FLAGS_interpret_first_steps"}
    words = "profile train.py --steps 4:7 --epochs 3 -- --steps 9".split()
    done = forked.jfluid(words, tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert "Time by operator type" in done.stdout and "mul" in done.stdout
    found = slices(events_of(tmp_path / "profile.json.gz"), "trainer 0")
    assert len([e for e in found if e["name"] == "compute"]) == 3
    assert len([e for e in found if e["name"].startswith("jit_fluid_")]) == 3
    assert any("mul" in e["name"] for e in found)
    assert not any(".py" in e["name"] for e in found)  # no Python frames
    assert min(e["ts"] for e in found) == 0
    assert os.stat(tmp_path / "profile.json.gz").st_mode & 0o777 == 0o600


@pytest.mark.process
def test_a_script_that_ends_before_the_steps(tmp_path):
    (tmp_path / "train.py").write_text(STEPS.format(steps=2))
    done = forked.jfluid(["profile", "--steps", "100:110", "train.py"], tmp_path, ENVIRONMENT)
    assert done.returncode == 1 and "the script took 2 steps, and none from step 100 on" in done.stderr
    assert not (tmp_path / "profile.json.gz").exists()


def test_wrong_steps_are_refused(capsys):
    assert profile.main(["--steps", "9:3", "train.py"]) == 2
    assert "expected FIRST:END" in capsys.readouterr().err


@pytest.mark.process
def test_one_trace_of_all_trainers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = gang(STEPS.format(steps=8), "--cpus", "2", "--profile", "3:5", forks=True)
    assert done.returncode == 0, done.stderr
    assert "the profile of 2 processes is in" in done.stderr
    (path,) = Path("mylog").glob("profile-*.json.gz")
    assert [*Path("mylog").glob("profile-*")] == [path]  # the parts are gone
    events = events_of(path)
    for rank in (0, 1):
        found = slices(events, f"trainer {rank}")
        assert len([e for e in found if e["name"] == "compute"]) == 2
        assert any(e["name"].startswith("jit_fluid_") for e in found)
    text = Path("mylog/record/launcher.0.jsonl").read_text()
    assert path.name in text


@pytest.mark.process
def test_a_job_that_ends_before_the_steps_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = gang(STEPS.format(steps=1), "--cpus", "1", "--profile", "30:50", forks=True)
    assert done.returncode == 0
    assert "there is no profile: no trainer has reached step 50" in done.stderr


@pytest.mark.process
def test_a_job_refuses_other_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = gang("", "--cpus", "1", "--profile", "5:4", forks=True)
    assert done.returncode == 2 and "expected FIRST:END" in done.stderr
    done = gang("", "--cpus", "1", "--profile", "4:5", "--set", "record=false", forks=True)
    assert done.returncode == 2 and "remove record: false" in done.stderr


# ---- requests and parts --------------------------------------------------------------------------


def test_requests(tmp_path):
    folder = tmp_path / "record"
    assert profiles.read_request(folder) is None
    for request in (profiles.ProfileRequest("a1", 5, 10), profiles.ProfileRequest("a2", None, 1, 2.5, 3.5)):
        profiles.write_request(folder, request)
        assert profiles.read_request(folder) == request
    for text in ("", "{", "[]", '{"id":"../x","first":1,"steps":1}', '{"id":"a","first":"1","steps":1}'):
        (folder / profiles.REQUEST).write_text(text)
        assert profiles.read_request(folder) is None
    for steps in ("0", "1001", "1.5", "null", '"1"'):
        (folder / profiles.REQUEST).write_text(f'{{"id":"a","first":1,"steps":{steps}}}')
        assert profiles.read_request(folder) is None


def test_a_server_gives_the_calls_of_the_time_that_was_profiled(tmp_path):
    folder = tmp_path / "record"
    watcher = profiles.Watcher(folder, "server", 1, ahead=100.0)
    profiles.write_request(folder, profiles.ProfileRequest("a1", 5, 10))
    watcher.look()
    assert profiles.CALLS.on
    now, clock = time.time(), time.perf_counter()
    profiles.CALLS.add("Before", clock - 9, clock - 8)
    profiles.CALLS.add("Pull", clock, clock + 0.5)
    profiles.write_request(folder, profiles.ProfileRequest("a1", 5, 10, now - 101, now - 99))
    watcher.look()
    assert not profiles.CALLS.on
    part = profiles.read_part(profiles.part_of(folder, "a1", "server", 1))
    (call,) = [e for e in part["events"] if e["ph"] == "X"]
    assert call["name"] == "Pull" and call["ts"] / 1e6 == pytest.approx(now - 100, abs=1)
    assert call["dur"] / 1e6 == pytest.approx(0.5)


def test_parts_of_other_forms_are_left_out(tmp_path):
    folder = tmp_path / "record"
    place = profiles.part_of(folder, "a1", "trainer", 0).parent
    place.mkdir(parents=True)
    good = {"begin": 1, "end": 2, "events": step_traces.of_phases([("reader", 1.0, 1.5)]) + [5, {"ph": "X"}]}
    step_traces.write_json(place / "trainer.0.json.gz", good)
    step_traces.write_json(place / "trainer.1.json.gz", [1])
    (place / "trainer.2.json.gz").write_bytes(b"none")
    path, count = profiles.joined(folder, "a1")
    assert count == 1 and not place.exists()
    assert [e["name"] for e in slices(events_of(path), "trainer 0")] == ["reader"]


# ---- the page's button ---------------------------------------------------------------------------


def post(port, path, **headers):
    return get(port, path, method="POST", **headers)


def test_the_button_asks_for_a_profile(job):  # noqa: F811
    own = {"x-jfluid-dashboard": "1"}
    found = Runs([job])
    found.look()
    with served(found) as port:
        assert post(port, "/profile?run=0&steps=10", **own)[0] == 409  # the job has ended
        found.runs[0].ended = False
        assert post(port, "/profile?run=0&steps=10")[0] == 403  # as a form of another site is
        assert post(port, "/profile?run=0&steps=0", **own)[0] == 400
        assert post(port, "/profile?run=7&steps=10", **own)[0] == 404
        assert profiles.read_request(job / "record") is None
        assert post(port, "/profile?run=0&steps=10", **own)[0] == 202
        request = profiles.read_request(job / "record")
        assert (request.first, request.steps) == (None, 10)
        assert post(port, "/profile?run=0&steps=10", **own)[0] == 409  # one at a time
        trace = profiles.file_of(job / "record", request.id)
        assert get(port, f"/profile?run=0&name={trace.name}")[0] == 404
        step_traces.write(trace, {})
        status, headers, body = get(port, f"/profile?run=0&name={trace.name}")
        assert status == 200 and gzip.decompress(body) and "attachment" in headers["content-disposition"]
        for name in ("secrets.txt", "../mylog/secrets.txt", "profile-../x.json.gz", ""):
            assert get(port, f"/profile?run=0&name={name}")[0] == 404
