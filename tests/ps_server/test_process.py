"""`python -m jfluid.ps_server` as a process: started by hand, killed, stopped, restored."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import specs
from jfluid.ps_server.__main__ import main
from jfluid.ps_server.client import Client
from jfluid.ps_server.server import Server
from jfluid.ps_server.store import Change
from jfluid.security import secret
from tests import forked
from tests.ports import free_port
from tests.ps_server.test_table import ones

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
TABLE = specs.TableSpec(name="t", width=4, optimizer=specs.Sgd(learning_rate=1))
TOKEN = "a-token-of-the-job"


def begin(arguments):
    sys.exit(main(arguments))


class Process:
    """A server in a process of its own.

    Args:
        fresh: the command as users start it; else the process is forked.
    """

    def __init__(self, *arguments, fresh=False, **variables):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)} | (variables or {"JFLUID_JOB_TOKEN": TOKEN})
        arguments = list(map(str, arguments))
        self.process = (
            subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "jfluid.ps_server", *arguments],
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            if fresh
            else forked.Popen(begin, arguments, environment)
        )
        # A server that does not come up must not stop the tests.
        guard = threading.Timer(300, self.process.kill)
        guard.start()
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("listening on "):
                self.endpoint = line.split()[-1]
                break
        guard.cancel()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        if not self.process.stdout.closed:
            self.process.communicate(timeout=300)


def client(server, **more):
    return Client([server.endpoint], TOKEN, **{"heartbeat_s": 0, "timeout_s": 120} | more)


def test_by_hand(tmp_path):
    (tmp_path / "tables.yaml").write_text(
        "tables:\n- {name: t, width: 4, optimizer: {type: sgd, learning_rate: 1}}\nblocks:\n- {name: w, shape: [2], "
        "initializer: {type: constant, value: 3}, optimizer: {type: sgd, learning_rate: 1}}\n"
    )
    with Process(
        "--tables",
        tmp_path / "tables.yaml",
        "--metrics-port",
        0,
        "--save-root",
        tmp_path / "saves",
        fresh=True,
        XDG_CACHE_HOME=str(tmp_path),
    ) as server:
        assert server.lines == [f"listening on {server.endpoint}"]
        with Client([server.endpoint], secret.from_file(tmp_path / "jfluid" / "secret")) as one:
            one.create([TABLE])
            assert one.pull({"t": np.array([1])}).rows["t"].values.tolist() == [[0] * 4] and one.status()[0].blocks == {
                "w": 0
            }
            one.save(str(tmp_path / "saves"))
            with pytest.raises(errors.ServerError, match="the server's save root"):
                one.save(str(tmp_path))
        server.process.send_signal(signal.SIGTERM)
        try:
            assert server.process.wait(300) == 0
        except subprocess.TimeoutExpired:
            server.process.send_signal(signal.SIGABRT)  # it tells where its threads are
            pytest.fail(server.process.communicate(timeout=300)[1])
        assert "metrics on http://127.0.0.1:" in server.process.stdout.read()


def test_a_signal_that_wakes_nobody_ends_the_server(monkeypatch, capsys):
    """The system may tell it when the main thread is about to wait."""
    handlers, waits = {}, []
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr("jfluid.host.heap.keep_for_messages", lambda: None)  # of the whole process
    monkeypatch.setenv("JFLUID_JOB_TOKEN", TOKEN)

    def wait(server, timeout_s=None):
        waits.append(timeout_s)
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        return False

    monkeypatch.setattr(Server, "wait", wait)
    assert main([]) == 0 and len(waits) == 1 and waits[0] < 1
    assert "listening on" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--server", "3"], "server: expected a number below 1, found 3"),
        (["--restore", "/does/not/exist"], "no such directory to restore from"),
        (["--tables", "/does/not/exist"], "No such file"),
        (["--port", "70000"], "options: port"),
        (["--secret-file", "/does/not/exist"], "/does/not/exist: cannot read the job's secret"),
    ],
)
def test_what_cannot_start_says_why(arguments, message):
    with Process(*arguments) as server:
        output = server.process.communicate(timeout=300)[1]
    assert server.process.returncode == 2 and message in output and "Traceback" not in output


@pytest.mark.parametrize(
    "text, message",
    [
        ("tables: " + "[" * 100_000, "nested too deeply"),
        ("a: &a [x, x]\nb: &b [*a, *a]\ntables: [*b, *b]", "aliases (*name) are not supported"),
    ],
)
def test_a_file_of_tables_of_which_few_bytes_stand_for_many(tmp_path, text, message):
    (tmp_path / "tables.yaml").write_text(text)
    with Process("--tables", tmp_path / "tables.yaml") as server:
        output = server.process.communicate(timeout=300)[1]
    assert server.process.returncode == 2 and message in output and "Traceback" not in output


def test_a_server_that_others_can_reach_needs_a_secret(tmp_path):
    with Process("--host", "0.0.0.0", XDG_CACHE_HOME=str(tmp_path)) as server:
        output = server.process.communicate(timeout=300)[1]
    assert server.process.returncode == 2
    assert "0.0.0.0: other machines can connect there, so the job needs a secret: set JFLUID_JOB_TOKEN" in output
    with Process("--host", "0.0.0.0") as server:
        assert server.endpoint.startswith("0.0.0.0:")


def test_a_server_that_is_killed_goes_on_from_its_snapshot(tmp_path):
    ids, port = np.arange(1000), free_port()
    with Process("--port", port) as server:
        one = client(server, heartbeat_s=0.05)
        one.create([TABLE])
        for _ in range(5):
            one.push({"t": (ids, ones(ids))}, change=Change.ADD)
        one.save(str(tmp_path))
        for _ in range(2):
            one.push({"t": (ids, ones(ids))}, change=Change.ADD)
        server.process.kill()
        server.process.wait(300)
        finished = threading.Event()

        def push():  # finds no server, and goes on trying
            one.push({"t": (ids, ones(ids))}, change=Change.ADD)
            finished.set()

        threading.Thread(target=push, daemon=True).start()
        with Process("--port", port, "--restore", tmp_path) as again:
            assert again.lines[0].startswith("restored snapshot ")
            assert finished.wait(300)
            assert (one.look_up("t", ids) == 6).all()
            (status,) = one.status()
            assert status.lost == 2 and status.tables["t"].rows == 1000
            one.leave()


def test_a_server_that_stands_still_for_a_while():
    with Process() as server:
        one, ids = client(server), np.arange(10)
        one.create([TABLE])
        server.process.send_signal(signal.SIGSTOP)
        threading.Timer(1.5, server.process.send_signal, [signal.SIGCONT]).start()
        one.push({"t": (ids, ones(ids))}, change=Change.ADD)
        assert (one.look_up("t", ids) == 1).all()
        one.leave()


def test_a_server_ends_with_its_trainers():
    with Process("--end-with-trainers", "--trainers", 2) as server:
        trainers = [client(server, trainer=i) for i in range(2)]
        for one in trainers:
            one.create([TABLE])
            one.push({"t": (np.array([1]), ones([1]))})
        for one in trainers:
            one.leave()
        assert server.process.wait(300) == 0


@pytest.mark.parametrize("saved", [True, False])
def test_nothing_is_lost_when_pushes_are_kept(tmp_path, saved):
    """In synchronous training, with a server killed in the middle: the model of an undisturbed run,
    bit for bit.
    """
    spec = specs.TableSpec(
        name="t",
        width=4,
        initializer=specs.Normal(),
        optimizer=specs.Momentum(learning_rate=0.1, mu=0.9),
    )
    batches = [
        [(rng.randint(0, 50, 20), rng.randn(20, 4).astype(np.float32)) for _ in range(12)]
        for rng in map(np.random.RandomState, range(2))
    ]

    def train(server, kill_at):
        meanwhile = threading.Barrier(2, timeout=300)
        again = []

        def one(trainer):
            with client(server, trainer=trainer, keep_bytes=1 << 20, timeout_s=120) as mine:
                mine.create([spec])
                for number, (ids, gradients) in enumerate(batches[trainer], 1):
                    if number == kill_at - 3 and saved:
                        meanwhile.wait()
                        if trainer == 0:
                            mine.save(str(tmp_path))
                        meanwhile.wait()
                    if number == kill_at and meanwhile.wait() == 0:
                        server.process.kill()
                        server.process.wait(300)
                        restore = ["--restore", tmp_path] if saved else []
                        again.append(Process("--port", server.endpoint.split(":")[1], "--trainers", 2, *restore))
                    mine.exchange({"t": (ids, gradients)}, {}, {"t": ids}, round=number)
                assert mine.status()[0].lost == 0 and mine.restarts == (kill_at > 0)
                return mine.look_up("t", np.arange(50))

        with ThreadPoolExecutor(2) as threads:
            results = list(threads.map(one, range(2)))
        for process in again:
            process.__exit__()
        np.testing.assert_array_equal(*results)
        return results[0]

    found = []
    for kill_at in (0, 8):
        with Process("--port", free_port(), "--trainers", 2) as server:
            found.append(train(server, kill_at))
    np.testing.assert_array_equal(*found)
