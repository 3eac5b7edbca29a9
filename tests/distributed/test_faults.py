"""Jobs of real processes that are killed, stopped and cut off."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from jfluid.files.tensor_format import load_tensors
from tests.distributed.jobs import ports

pytestmark = pytest.mark.process
LIMIT_S = 60
STEPS = 8


class Process:
    """A process of a job; what it prints is at hand."""

    def __init__(self, spec, environment, limit=""):
        command = [sys.executable, "-m", "tests.distributed.process", json.dumps(spec)]
        if limit:
            command = ["bash", "-c", f'{limit}; exec "$0" "$@"', *command]
        self.lines = []
        self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       env=os.environ | environment)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._popen.stdout:
            self.lines.append(line)

    @property
    def output(self):
        return "".join(self.lines)

    def signal(self, number):
        self._popen.send_signal(number)

    def kill(self):
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()
        self._reader.join()
        self._popen.stdout.close()

    def ends(self):
        assert self._popen.wait(LIMIT_S) == 0, self.output
        self.kill()

    def until(self, text, count=1):
        """Wait until it has printed a text so often."""
        end = time.monotonic() + LIMIT_S
        while self.output.count(text) < count:
            assert time.monotonic() < end and self._popen.poll() is None, f"no {text!r} in:\n{self.output}"
            time.sleep(0.02)

    @property
    def steps(self):
        return [int(line.split()[1]) for line in self.lines if line.startswith("step ")]


class Processes:
    """A job of processes.

    Args:
        environment: of all of them.
    """

    def __init__(self, folder, kind="sparse", optimizer="adam", servers=2, trainers=2, sync=True, steps=STEPS, **environment):
        self.folder, self.endpoints = folder, [f"127.0.0.1:{port}" for port in ports(servers)]
        self._spec = {"kind": kind, "optimizer": optimizer, "endpoints": self.endpoints, "trainers": trainers, "sync": sync,
                      "steps": steps, "folder": str(folder)}
        self._environment = {"JFLUID_PS_SNAPSHOT_FOLDER": str(folder / "snapshots"), **environment}
        self.all = []
        self.servers = [self.server(n) for n in range(servers)]
        self.hold(0, *range(trainers))
        self.trainers = [self.trainer(n) for n in range(trainers)]

    def _start(self, role, number, limit="", endpoints=None, **environment):
        spec = {**self._spec, "role": role, "number": number, "endpoints": endpoints or self.endpoints}
        self.all.append(Process(spec, self._environment | environment, limit))
        return self.all[-1]

    def server(self, number, **more):
        return self._start("server", number, **more)

    def trainer(self, number, **more):
        return self._start("trainer", number, **more)

    def hold(self, step, *trainers):
        """Let trainers (all by default) go no further than this step."""
        for number in trainers or range(len(self.trainers)):
            path = self.folder / f"go-{number}"
            (self.folder / "go").write_text(str(step))
            os.replace(self.folder / "go", path)

    def finish(self):
        """Let all go to the end; the saved variables."""
        self.hold(self._spec["steps"])
        for trainer in self.trainers:
            trainer.ends()
        for server in self.servers:
            server.ends()
        return saved(self.folder / "saved")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            process.signal(signal.SIGCONT)
            process.kill()


def saved(folder):
    return {p.name: load_tensors(p, [p.name])[0].value for p in folder.iterdir() if p.is_file() and p.name != "__model__"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What an undisturbed synchronous job of two servers and two trainers saves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JFLUID_PS_TOKEN", "0123456789-token-of-the-tests")
        with Processes(folder) as job:
            return job.finish()


def assert_same(found, wanted):
    assert found.keys() == wanted.keys() and len(found) > 10
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_trainer_is_killed(tmp_path, undisturbed):
    with Processes(tmp_path) as job:
        job.hold(3)
        job.trainers[1].until("step 2")
        job.hold(STEPS, 0)  # it waits at the servers for the other one's gradients
        job.trainers[1].kill()
        job.trainers[1] = job.trainer(1)
        job.trainers[1].until("begins 3")
        found = job.finish()
        assert job.trainers[1].steps == list(range(3, STEPS)) and job.trainers[0].steps == list(range(STEPS))
    assert_same(found, undisturbed)


def test_trainers_are_killed_anywhere(tmp_path, undisturbed):
    """At whatever point of a step."""
    with Processes(tmp_path) as job:
        job.hold(1)
        job.trainers[0].until("step 0")
        job.hold(STEPS)
        for number, pause in ((1, 0.01), (0, 0.03), (1, 0.02)):
            time.sleep(pause)
            job.trainers[number].kill()
            job.trainers[number] = job.trainer(number)
            job.trainers[number].until("begins")
        found = job.finish()
    assert_same(found, undisturbed)


def test_a_server_is_killed(tmp_path, undisturbed):
    with Processes(tmp_path, JFLUID_PS_SNAPSHOT_EVERY_S="0.3") as job:
        job.hold(3)
        job.trainers[0].until("step 2")
        job.servers[1].until("snapshot of", job.servers[1].output.count("snapshot of") + 2)  # one is of now
        job.servers[1].signal(signal.SIGSTOP)  # none of later
        job.servers[1].signal(signal.SIGCONT)
        job.hold(6)
        job.trainers[0].until("step 4")
        job.servers[1].kill()
        job.servers[1] = job.server(1, JFLUID_PS_RESTORE="1")
        job.servers[1].until("restored snapshot")
        found = job.finish()
        assert "server 127.0.0.1" in job.trainers[0].output and "has started again" in job.trainers[0].output
        assert job.trainers[0].output.rstrip().splitlines()[-1] == "lost 0" or "lost 0" in job.trainers[0].output
    assert_same(found, undisturbed)


def test_a_server_is_killed_between_snapshots(tmp_path, undisturbed):
    """Trainers send again what the snapshot does not have."""
    with Processes(tmp_path, JFLUID_PS_SNAPSHOT_EVERY_S="1000") as job:
        job.hold(5)
        job.trainers[0].until("step 4")
        job.servers[0].kill()
        job.servers[0] = job.server(0, JFLUID_PS_RESTORE="1")
        job.servers[0].until("begins anew")
        found = job.finish()
        assert "5 kept ones are sent again" in job.trainers[0].output
    assert_same(found, undisturbed)


def test_a_server_stands_still(tmp_path, undisturbed):
    with Processes(tmp_path) as job:
        job.hold(3)
        job.trainers[0].until("step 2")
        job.servers[0].signal(signal.SIGSTOP)
        job.hold(STEPS)
        time.sleep(20)  # what is tested: that so long a standstill does no harm
        assert max(job.trainers[0].steps) == 2
        job.servers[0].signal(signal.SIGCONT)
        found = job.finish()
    assert_same(found, undisturbed)


class Proxy:
    """A TCP proxy that cuts all its connections when so many bytes have come from the client since the last time."""

    def __init__(self, to, every):
        self._to, self._every, self.cuts = to, every, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._to)
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._copy, args=[client, server, True], daemon=True).start()
                threading.Thread(target=self._copy, args=[server, client, False], daemon=True).start()

    def _copy(self, source, sink, counted):
        count = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 12):
                sink.sendall(data)
                count += len(data)
                if counted and count > self._every:
                    self.cuts += 1
                    break
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self):
        self._listener.close()


@pytest.mark.parametrize("sync", [True, False])
def test_connections_are_cut(tmp_path, sync):
    def run(folder, cut):
        folder.mkdir()
        with contextlib.ExitStack() as open_, Processes(folder, servers=1, trainers=1, sync=sync) as job:
            proxy = Proxy(("127.0.0.1", int(job.endpoints[0].rpartition(":")[2])), 2500)
            open_.callback(proxy.close)
            if cut:
                job.trainers[0].kill()
                job.trainers[0] = job.trainer(0, endpoints=[proxy.endpoint])
            found = job.finish()
            assert (proxy.cuts > 3) == cut
            return found
    assert_same(run(tmp_path / "cut", True), run(tmp_path / "whole", False))
