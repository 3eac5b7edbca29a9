"""What a server writes into the job's record."""

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter

import jfluid as fluid
from jfluid import record
from jfluid.ps_server import recording, specs
from jfluid.ps_server.metrics import Counted, ServerMetrics
from jfluid.ps_server.recording import SECONDS_BETWEEN_LOOKS, ServerRecord
from jfluid.ps_server.round_waits import Wait
from jfluid.ps_server.server import Server, Settings
from jfluid.ps_server.service import Service
from jfluid.ps_server.store import Store
from jfluid.ps_server.sync_rounds import TrainerGroup
from jfluid.record import lines
from tests.launch_case import wait_until


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINING_ROLE", "PSERVER")
    monkeypatch.setenv("PADDLE_PSERVER_ID", "3")
    fluid.set_flags({"FLAGS_record_dir": str(tmp_path)})
    yield tmp_path / "server.3.jsonl"
    fluid.set_flags({"FLAGS_record_dir": ""})
    record.current()


def recorded(path):
    record.current().flush()
    return [line["scalars"] for line in lines.Tail(path).lines() if line["kind"] == "scalars"]


def test_what_grows_is_by_the_second(path):
    now = [100.0]
    registry = CollectorRegistry()
    calls = Counter("jfluid_ps_calls", "Calls", ["method", "status"], registry=registry)
    stale = Counted("jfluid_ps_staleness_steps", "Steps", "name", (0, 1, 8))
    registry.register(stale)
    server = ServerRecord(registry, lambda: now[0])
    server.look()
    calls.labels("Pull", "OK").inc(10)
    calls.labels("Pull", "ABORTED").inc(5)
    stale.observe([("w 1", 2), ("w 1", 4)])
    now[0] += SECONDS_BETWEEN_LOOKS
    server.look()
    server.look()  # too early
    now[0] += SECONDS_BETWEEN_LOOKS
    server.look()
    assert recorded(path) == [
        {"calls/s: Pull": 15 / SECONDS_BETWEEN_LOOKS, "staleness of w 1": 3.0},
        {"calls/s: Pull": 0.0},
    ]


def test_rows_that_were_made_and_rows_that_expired_are_recorded(path):
    store = Store()
    table = store.create_table(specs.TableSpec(name="t", width=1, optimizer=specs.Sgd(learning_rate=1)))
    for first in (0, 10):
        ids = np.arange(first, first + 10)
        table.look_up(ids)
        table.push(ids, np.ones((10, 1), np.float32))
    assert table.shrink(1) == 10
    ServerRecord(ServerMetrics(store).registry).look()
    (found,) = recorded(path)
    assert (found["rows of t"], found["rows made of t"], found["rows expired of t"]) == (10, 20, 10)


def test_a_server_records_its_tables_and_rounds(path):
    with Server(Settings(token="a-secret-of-the-job")):
        wait_until(lambda: path.exists() and recorded(path))
        (found, *_) = recorded(path)
        assert found["rounds"] == 0 and found["lost calls"] == 0


def test_the_trainers_that_rounds_waited_for_the_longest_are_recorded(path, monkeypatch):
    monkeypatch.setattr(recording, "_MOST_TRAINERS", 2)
    store = Store()
    metrics = ServerMetrics(store)
    metrics.waits = lambda: {3: Wait(1, 2.0, 0.0), 7: Wait(0, 0.5, 0.0), 9: Wait(4, 1.0, 30.0)}
    server = ServerRecord(metrics.registry)
    server.look()
    record.current().flush()
    (line,) = [line for line in lines.Tail(path).lines() if line["kind"] == "waits"]
    assert line["trainers"] == {"9": [4, 1.0, 30.0], "3": [1, 2.0, 0.0]}
    assert Service(store, TrainerGroup(store, 2), metrics=metrics).metrics.waits() == {}
