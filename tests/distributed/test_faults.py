"""Jobs of real processes that are killed, stopped and cut off."""

import contextlib
import functools
import itertools
import os
import random
import re
import resource
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.distributed.server.snapshot_writers import ServerSnapshots
from jfluid.distributed.wire.settings import kept_bytes
from jfluid.files.tensor_format import load_tensors
from tests import forked
from tests.chaos.entry import publish
from tests.distributed import process
from tests.distributed.job import Job, batches, net
from tests.ports import free_endpoints

pytestmark = [pytest.mark.process, pytest.mark.slow]
LIMIT_S = 180
STEPS = 8


class Process:
    """A process of a job; what it prints is at hand."""

    def __init__(self, spec, environment):
        self.lines = []
        self._process, (self._printed,) = forked.start(process.begin, spec, os.environ | environment)
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self._printed:
            for line in self._printed:
                self.lines.append(line)

    @property
    def output(self):
        return "".join(self.lines)

    def signal(self, number):
        if self._process.is_alive():
            os.kill(self.pid, number)

    def stand_still(self):
        """Stop all its threads, and wait until they have: one takes the signal, when it gets a
        processor, and then stops the others.
        """
        self.signal(signal.SIGSTOP)
        end = time.monotonic() + LIMIT_S
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                while (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T":
                    assert time.monotonic() < end
                    time.sleep(0.01)

    def fill_disk(self):
        """From now on it can write no file."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (100, 100))  # bytes

    def kill(self):
        self._process.kill()
        self._process.join()
        self._reader.join()

    def ends(self, code=0):
        self._process.join(LIMIT_S)
        assert self._process.exitcode == code, self.output
        self._reader.join()

    def fails(self, pattern):
        """Wait until it has ended with an error that matches."""
        self.ends(1)
        assert re.search(pattern, self.output, re.DOTALL), self.output

    def until(self, text, count=1):
        """Wait until it has printed a text so often."""
        end = time.monotonic() + LIMIT_S
        while self.output.count(text) < count:
            assert time.monotonic() < end and self._process.is_alive(), f"no {text!r} in:\n{self.output}"
            time.sleep(0.02)

    @property
    def steps(self):
        return [int(line.split()[1]) for line in self.lines if line.startswith("step ")]


class Processes:
    """A job of processes.

    Args:
        wide: messages have more than 64 KiB.
        environment: of all of them.
    """

    def __init__(
        self,
        folder,
        kind="sparse",
        optimizer="adam",
        servers=2,
        trainers=2,
        sync=True,
        saves_at=-1,
        own_state=False,
        wide=False,
        **environment,
    ):
        self.folder, self.endpoints = folder, free_endpoints(servers)
        self._spec = {
            "kind": kind,
            "optimizer": optimizer,
            "endpoints": self.endpoints,
            "trainers": trainers,
            "sync": sync,
            "saves_at": saves_at,
            "folder": str(folder),
            "own_state": own_state,
            "wide": wide,
        }
        self._environment = {"JFLUID_PS_SNAPSHOT_FOLDER": str(folder / "snapshots"), **environment}
        self.all = []
        self.servers = [self.server(n) for n in range(servers)]
        self.hold(0, *range(trainers))
        self.trainers = [self.trainer(n) for n in range(trainers)]

    def _start(self, role, number, environment):
        self.all.append(Process({**self._spec, "role": role, "number": number}, self._environment | environment))
        return self.all[-1]

    def server(self, number, **environment):
        return self._start("server", number, environment)

    def trainer(self, number):
        return self._start("trainer", number, {})

    def hold(self, step, *trainers):
        """Let trainers (all by default) go no further than this step."""
        self._held = step
        for number in trainers or range(len(self.trainers)):
            publish(self.folder / f"go-{number}", str(step))

    def train_until(self, text, count=1, pace_s=0.05):
        """Let all take one step after the other until server 0 has printed a text so often; the
        step that comes next.
        """
        end = time.monotonic() + LIMIT_S
        for step in itertools.count(self._held + 1):
            self.hold(step)
            for trainer in self.trainers:
                trainer.until(f"waits at {step};")
            # servers plan snapshots for rounds to come, so time must pass between steps
            time.sleep(pace_s)
            if self.servers[0].output.count(text) >= count:
                return step
            assert time.monotonic() < end, f"{step} steps, and no {text!r} in:\n{self.servers[0].output}"

    def finish(self, steps=STEPS):
        """Let all go to the end, after so many steps in all; the saved variables."""
        publish(self.folder / "end", str(steps))
        self.hold(steps)
        for trainer in self.trainers:
            trainer.ends()
        for server in self.servers:
            server.ends()
        return saved(self.folder / "saved")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.all:
            each.signal(signal.SIGCONT)
            each.kill()


def saved(folder):
    return {
        p.name: load_tensors(p, [p.name])[0].value for p in folder.iterdir() if p.is_file() and p.name != "__model__"
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a job of two servers and two trainers saves that nothing happens to."""

    @functools.cache
    def saved_by(steps=STEPS, own_state=False, wide=False, **job):
        folder = tmp_path_factory.mktemp("undisturbed")
        spec = {
            "steps": steps,
            "own_state": own_state,
            "wide": wide,
            "job": job,
            "folder": str(folder),
        }
        # In a process that computes as those of the other jobs do: what it saves is to be the same,
        # bit for bit.
        running, (printed,) = forked.start(process.undisturbed, spec, os.environ)
        with printed:
            said = printed.read()
        running.join()
        assert running.exitcode == 0, said
        return saved(folder)

    return saved_by


def assert_same(found, wanted):
    assert found.keys() == wanted.keys() and len(found) > 10
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_trainer_is_killed(tmp_path, undisturbed):
    with Processes(tmp_path) as job:
        job.hold(3)
        job.trainers[1].until("waits at 3;")
        job.hold(STEPS, 0)  # it waits at the servers for the other one's gradients
        job.trainers[1].kill()
        job.trainers[1] = job.trainer(1)
        job.trainers[1].until("begins 3")
        found = job.finish()
        assert job.trainers[1].steps == list(range(3, STEPS)) and job.trainers[0].steps == list(range(STEPS))
    assert_same(found, undisturbed())


@pytest.mark.nightly  # tests/chaos kills trainers at random steps
def test_trainers_are_killed_anywhere(tmp_path, undisturbed):
    """At whatever point of a step: with several servers a round is applied by all of them or by
    none.
    """
    with Processes(tmp_path) as job:
        job.hold(60)
        job.trainers[1].until("step 0")
        for number in (1, 0, 1):
            time.sleep(random.uniform(0, 0.03))
            job.trainers[number].kill()
            killed = job.trainers[number].steps[-1]
            job.trainers[number] = job.trainer(number)
            job.trainers[number].until(f"step {killed + 2}")
        found = job.finish(60)
    assert_same(found, undisturbed(steps=60))


def test_a_server_is_killed(tmp_path, undisturbed):
    """It goes on from its last snapshot; what that does not have is sent to it again, by trainers
    that are idle meanwhile.
    """
    with Processes(tmp_path, wide=True, JFLUID_PS_SNAPSHOT_EVERY_S="0.2") as job:
        step = job.train_until("all servers have a snapshot of round")
        job.hold(step + 2)
        job.trainers[0].until(f"waits at {step + 2};")
        job.servers[1].kill()
        job.servers[1] = job.server(1, JFLUID_PS_RESTORE="1")
        job.servers[1].until("restored snapshot")
        for trainer in job.trainers:
            trainer.until(f"server {job.endpoints[1]} has started again")
        found = job.finish(step + 5)
        assert "lost 0" in job.trainers[0].output
    assert_same(found, undisturbed(wide=True, steps=step + 5))


def test_a_server_is_killed_before_its_first_snapshot(tmp_path, undisturbed):
    with Processes(tmp_path, JFLUID_PS_SNAPSHOT_EVERY_S="1000") as job:
        job.hold(5)
        job.trainers[0].until("waits at 5;")
        job.servers[0].kill()
        job.servers[0] = job.server(0, JFLUID_PS_RESTORE="1")
        job.servers[0].until("begins anew")
        found = job.finish()
        assert "5 later pushes are sent again" in job.trainers[0].output
    assert_same(found, undisturbed())


def _newest(folder, server):
    """The round of the newest snapshot of a server, and the file of its rows."""
    return max(
        (int(path.name.split(".")[0].removeprefix("round-")), path)
        for path in (folder / "snapshots" / f"server-{server}").glob("round-*.rows")
    )


def test_all_are_killed(tmp_path, undisturbed):
    """Everything goes on from the newest snapshot that all servers have: servers, and what only
    trainers have.

    On the way: a trainer that is lost together with a server says that all have to start again; and
    the newest snapshot of one server is damaged, so that all go back to the one before.
    """
    with Processes(tmp_path, own_state=True, JFLUID_PS_SNAPSHOT_EVERY_S="0.1") as job:
        step = job.train_until("all servers have a snapshot of round", 2)
        job.servers[1].fill_disk()  # so that the rounds to come are in none of its snapshots
        job.hold(step + 3)
        for trainer in job.trainers:
            trainer.until(f"waits at {step + 3};")
        job.servers[1].kill()
        job.trainers[1].kill()
        job.servers[1] = job.server(1, JFLUID_PS_RESTORE="1")
        job.trainers[1] = job.trainer(1)
        job.trainers[1].fails(
            "RollbackError: trainer 1: .*start all processes again, which go on from the newest snapshots"
        )
        for each in job.all:
            each.kill()
        round, newest = _newest(tmp_path, 1)
        newest.write_bytes(bytes(newest.stat().st_size))
        job.servers = [job.server(n, JFLUID_PS_RESTORE="1") for n in range(2)]
        job.trainers = [job.trainer(n) for n in range(2)]
        found = job.finish(step + 6)
        assert f"is passed over: {newest}: damaged" in job.servers[1].output
        (first,), (second,) = [re.findall("restored snapshot round-([0-9]+)", s.output) for s in job.servers]
        assert first == second and 0 < int(first) < round
        for each in (job.servers[0], *job.trainers):
            assert re.search(
                rf"goes back from round \d+, .* to round {first}: .*server 1 has no whole snapshot of it",
                each.output,
            )
        assert [t.steps for t in job.trainers] == [list(range(int(first), step + 6))] * 2
    assert_same(found, undisturbed(steps=step + 6, own_state=True))


@pytest.mark.parametrize("keeps", [True, False])
def test_an_asynchronous_server_is_killed(keeps, tmp_path, undisturbed):
    """What its snapshot does not have is sent again, or counted as lost; nothing is applied
    twice.
    """
    environment = {} if keeps else {"JFLUID_PS_KEEP_BYTES": "0"}
    with Processes(tmp_path, servers=1, trainers=1, sync=False, saves_at=3, **environment) as job:
        job.hold(6)
        job.trainers[0].until("waits at 6;")
        job.servers[0].kill()
        job.servers[0] = job.server(0, JFLUID_PS_RESTORE="1")
        job.servers[0].until("restored snapshot")
        found = job.finish()
        assert f"lost {0 if keeps else 3} applied {{{STEPS - (0 if keeps else 3)}}}" in job.trainers[0].output
        assert ("3 acknowledged calls are not in the snapshot" in job.servers[0].output) == (not keeps)
    if keeps:
        assert_same(found, undisturbed(servers=1, trainers=1, sync=False))


@pytest.mark.parametrize("seconds", [6, pytest.param(25, marks=pytest.mark.nightly)])
def test_a_server_stands_still(seconds, tmp_path, undisturbed):
    """For longer than the time between heartbeats; at night for longer than that of gRPC's pings."""
    with Processes(tmp_path) as job:
        job.hold(3)
        job.trainers[0].until("waits at 3;")
        job.servers[0].stand_still()
        job.hold(STEPS)
        time.sleep(seconds)  # what is tested: so long a standstill does no harm
        assert max(job.trainers[0].steps) == 2
        job.servers[0].signal(signal.SIGCONT)
        found = job.finish()
    assert_same(found, undisturbed())


def test_the_disk_is_full(tmp_path, undisturbed):
    """Snapshots fail, the server serves on, and the last complete one is there when it is
    killed.
    """
    with Processes(tmp_path, JFLUID_PS_SNAPSHOT_EVERY_S="0.2") as job:
        job.train_until("all servers have a snapshot of round")
        job.servers[0].fill_disk()
        step = job.train_until("not every server could write it")
        assert "no snapshot could be written" in job.servers[0].output
        assert not list((tmp_path / "snapshots" / "server-0").glob("*.partial"))
        job.servers[0].kill()
        job.servers[0] = job.server(0, JFLUID_PS_RESTORE="1")
        job.servers[0].until("restored snapshot")
        found = job.finish(step + 5)
        assert re.search("[1-9][0-9]* later pushes are sent again", job.trainers[0].output)
    assert_same(found, undisturbed(steps=step + 5))


def test_a_new_job_does_not_take_up_an_old_one(tmp_path, monkeypatch):
    monkeypatch.setenv("JFLUID_PS_SNAPSHOT_FOLDER", str(tmp_path))
    monkeypatch.setenv("JFLUID_PS_SNAPSHOT_EVERY_S", "0.05")
    with Job(net("dense", "sgd")) as job:
        job.begin()
        job.steps(batches(2))
        end = time.monotonic() + LIMIT_S
        while not list(tmp_path.glob("server-0/*.json")):
            assert time.monotonic() < end
            time.sleep(0.01)
        folder = ServerSnapshots.of_server(0, 1)
        with (
            pytest.raises(errors.ServerError, match=r"server-0 holds a snapshot of an earlier job"),
            folder.claimed("the-secret-of-another-job"),
        ):
            pass
        monkeypatch.setenv("JFLUID_PS_RESTORE", "1")
        with (
            pytest.raises(errors.ServerError, match=r"server-0 belongs to job .* which is running"),
            ServerSnapshots.of_server(0, 1).claimed("the-secret-of-another-job"),
        ):
            pass
        monkeypatch.delenv("JFLUID_PS_RESTORE")
    fluid.set_flags({"FLAGS_rpc_deadline": 1000})  # for the trainers of servers that do not start
    with (
        pytest.raises(
            errors.ServerError,
            match=r"server-0 holds a snapshot of an earlier job. Set JFLUID_PS_RESTORE=1",
        ),
        Job(net("dense", "sgd")) as job,
    ):
        job.begin()
    monkeypatch.setenv("JFLUID_PS_RESTORE", "1")
    with (
        pytest.raises(errors.ServerError, match="other pieces of .*moment1_0"),
        Job(net("dense", "adam")) as job,
    ):
        job.begin()
    for name, value in (("JFLUID_PS_RESTORE", "yes"), ("JFLUID_PS_SNAPSHOT_EVERY_S", "0")):
        with (
            monkeypatch.context() as patch,
            pytest.raises(errors.ServerError, match=f"{name}: expected"),
        ):
            patch.setenv(name, value)
            ServerSnapshots.of_server(0, 1)
    monkeypatch.setenv("JFLUID_PS_KEEP_BYTES", "1 GB")
    with pytest.raises(
        errors.ServerError,
        match="JFLUID_PS_KEEP_BYTES: expected an integer from 0 on, found '1 GB'",
    ):
        kept_bytes()
