"""The guard of `make bench`: ratios are compared, engines take turns, and figures stay by part."""

import contextlib
import json
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import bench
import noisy_neighbours
import servers
import turns

from jfluid.distributed.wire.settings import server_settings

MACHINE = {"processor": "P", "cores": 2, "load": 0.0, "python": "3.11.7", "jax": "0.10.2"}


def engine(*rounds, memory=100.0):
    return {"rounds": list(rounds), "model_mb": memory, "ms": rounds[0]}


def part(found, **others):
    about = {"command": "python benchmarks/host.py", "machine": MACHINE, "commit": "abc"}
    return {**about, "date": "2026-11-22", "seconds": 1, "found": found, **others}


def results(ours=(10, 20, 30), host=80.0, height=1.02):
    engines = {"mlp": {"jfluid": engine(*ours), "JAX": engine(10, 20, 30)}}
    replicas = {
        "mlp": {
            "jfluid one": engine(10, 20, 30),
            "jfluid apart": engine(20, 40, 60),
            "jfluid replicas": engine(*ours),
        }
    }
    local = {"ms": 8.0}
    ways = {"local": local, "sync, memory": {"to_local": {"ratio": 1.3}}, "sync, fluid": {}}
    return {
        "limit": part({"engines": engines}),
        "replicas": part(replicas),
        "host": part({"dict": {"run_us": host, "call_us": 40.0}}),
        "heights": part({"sgd": {"ratio": height}}),
        "detection": part({"ssd": {"ratio": 2.0}}),
        "dygraph": part({"mlp": {"jfluid, eager": engine(1, 2, 3), "jfluid, static": engine(2, 4, 6)}}),
        "servers": part({"1+1": ways}),
        "memory": part({"optimizers": {"sgd": {"one device": 10.0, "Reduce": 13.0}}}),
        "startup": part({"linear": 1.0}),
        "quality": part({"best": 0.8, "auc": {"sync": {"jfluid": [0.7, 0.5]}}}),
    }


def test_ratios_are_of_the_rounds_and_less_is_better():
    assert bench.ratios(results(ours=(5, 20, 60))) == {
        "limit: mlp against JAX": 1,
        "limit: mlp against JAX, memory": 1,
        "replicas: mlp against one": 1,
        "replicas: mlp against apart": 0.5,
        "host: dict": 2,
        "heights: sgd": 1.02,
        "detection: ssd against Fluid": 0.5,
        "dygraph: mlp against jfluid, static": 0.5,
        "servers: 1+1, sync, memory against none": 1.3,
        "memory: sgd": 1.3,
        "startup: operators compile in linear time": 1.0,
        "quality: sync, what is left below the best": pytest.approx(0.25),
    }


def test_times_may_change_and_ratios_may_not():
    slow = json.loads(json.dumps(results()))
    for name in ("limit", "replicas"):
        found = slow[name]["found"]
        for one in (found["engines"] if name == "limit" else found)["mlp"].values():
            one["rounds"] = [7 * ms for ms in one["rounds"]]
    assert bench.worse(slow, results()) == []
    lines = bench.worse(results(ours=(20, 40, 60), host=110.0), results())
    assert [line.split(": ")[:2] for line in lines] == [
        ["host", "dict"],
        ["limit", "mlp against JAX"],
        ["replicas", "mlp against apart"],
        ["replicas", "mlp against one"],
    ]
    assert "2.000, was 1.000 (abc)" in lines[1]


def test_a_ratio_that_is_gone_is_said_and_a_part_that_was_not_measured_is_not():
    now = {"host": part({}), "startup": part({"linear": 1.1})}
    assert bench.worse(now, results()) == ["host: dict: not measured any more"]


def test_ratios_of_another_processor_are_not_compared(capsys):
    elsewhere = {"heights": part({"sgd": {"ratio": 9.0}}, machine={**MACHINE, "processor": "Q"})}
    assert bench.worse(elsewhere, results()) == []
    assert "another processor" in capsys.readouterr().out


def test_a_file_is_held_against_the_committed_one(tmp_path, capsys):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    new.write_text(json.dumps({"parts": results(height=2.0)}))
    assert bench.check(new, old) == 0 and "nothing to compare with" in capsys.readouterr().out
    old.write_text(json.dumps({"parts": results()}))
    assert bench.check(new, old) == 1 and "heights: sgd" in capsys.readouterr().out


@pytest.mark.process
def test_a_part_that_fails_is_named_and_the_others_are_kept(tmp_path, monkeypatch):
    (tmp_path / "host.py").write_text(
        "import json, sys\njson.dump({'given': sys.argv[1:-2]}, open(sys.argv[-1], 'w'))\n"
    )
    (tmp_path / "fails.py").write_text("raise SystemExit(3)\n")
    parts = {
        "fails": bench.Part("fails.py"),
        "works": bench.Part("host.py", "--rounds 8", "--rounds 2", ("fluid", "torch")),
        "compares": bench.Part("fails.py", needs_fluid=True),
        "long": bench.Part("fails.py", "", None),
    }
    monkeypatch.setattr(bench, "PARTS", parts)
    monkeypatch.setattr(bench, "HERE", str(tmp_path))
    monkeypatch.setattr(bench, "commit", lambda: "abc")
    out = tmp_path / "out" / "bench.json"
    failed = bench.run(list(parts), True, {"torch": "T"}, str(out))
    assert list(failed) == ["fails"]
    kept = json.loads(out.read_text())["parts"]
    assert list(kept) == ["works"] and kept["works"]["commit"] == "abc"
    assert kept["works"]["found"] == {"given": ["--rounds", "2", "--torch", "T"]}
    assert kept["works"]["command"] == "python benchmarks/host.py --rounds 2 --torch PYTHON"


def test_kept_figures_replace_those_of_the_same_parts_only(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(bench.subprocess, "run", lambda *a, **k: made.append(a) or Ended())
    new, kept = tmp_path / "new.json", tmp_path / "kept.json"
    new.write_text(json.dumps({"parts": {"startup": part({"linear": 2.0})}}))
    kept.write_text(json.dumps({"parts": results()}))
    assert bench.keep(new, kept) == 0 and "scripts.pages" in made[0][0]
    parts = json.loads(kept.read_text())["parts"]
    assert parts["startup"]["found"] == {"linear": 2.0} and parts["heights"] == results()["heights"]


class Ended:
    returncode = 0


class Worker:
    """Answers as a process does: `first` ms for each step of the first turn, then `ms`."""

    def __init__(self, first, ms, log):
        self.first, self.ms, self.log, self.failure = first, ms, log, None

    def ask(self, count):
        if self.first is None:
            return None
        self.log.append((self, count))
        ms, self.first = self.first, self.ms
        return {"ms": [ms] * count, "cpu_ms": 2.0 * ms, "peak_mb": 50.0, "model_mb": 20.0}


class Alone:
    """A machine that nothing slows."""

    def undisturbed(self, turn):
        return turn()


def machine_of(*speeds):
    """A machine that is seen five times at first, and then at each of these speeds; what it has waited."""
    left, waited = [10.0] * 5 + list(speeds), []
    return noisy_neighbours.Machine(lambda: left.pop(0), waited.append), left, waited


def test_a_turn_beside_a_neighbour_is_taken_again(capsys):
    machine, left, waited = machine_of(9.9, 6.0, 6.0, 9.8, 9.9)
    given = iter([170, 90])
    assert machine.undisturbed(lambda: next(given)) == 90  # the first was slowed at its end
    assert not left and len(waited) == 5 and not capsys.readouterr().err


def test_a_turn_after_one_that_nothing_slowed_waits_for_nothing_more():
    machine, left, waited = machine_of(9.9, 9.9, 12.0, 9.9)
    assert [machine.undisturbed(lambda n=n: n) for n in (1, 2)] == [1, 2]
    assert len(waited) == 3 and left == [9.9]


def test_the_best_speed_is_learned():
    machine, *_ = machine_of(20.0, 9.9)
    assert machine.is_whole() and not machine.is_whole()


def test_a_neighbour_that_stays_is_said(capsys):
    machine, _, waited = machine_of(*[6.0] * 200)
    taken = []
    machine.undisturbed(lambda: taken.append(1))
    assert len(taken) == 1 + noisy_neighbours.AGAIN and "slowed" in capsys.readouterr().err
    assert len(waited) < 200


def test_this_machine_has_a_speed():
    assert noisy_neighbours.speed() > 0


def test_engines_take_turns_and_those_that_fail_are_left_out():
    log = []
    workers = {"a": Worker(40.0, 4.0, log), "b": Worker(400.0, 8.0, log), "c": Worker(None, 1, log)}
    found = turns.in_turn(workers, 3, milliseconds=400, machine=Alone())
    assert list(found) == ["a", "b"] and found["a"]["cpu_ms"] == 8.0
    assert found["a"]["model_mb"] == 20.0
    assert [count for worker, count in log[2:] if worker is workers["a"]] == [10] * 3
    assert [w is workers["a"] for w, _ in log[2:]] == [False, True, True, False, False, True]
    assert turns.ratio(found["a"], found["b"]) == pytest.approx(2)


def test_modes_that_share_a_process_are_told_apart():
    asked = []

    class Shared:
        def ask(self, line):
            asked.append(line)
            return {"ms": [1.0], "cpu_ms": 1.0, "peak_mb": 1.0, "model_mb": 1.0}

    worker = Shared()
    modes = {mode: turns.Mode(worker, mode) for mode in ("one", "replicas")}
    assert list(turns.in_turn(modes, 1, milliseconds=3, machine=Alone())) == ["one", "replicas"]
    assert asked == ["8 one", "8 replicas", "3 replicas", "3 one"]


def test_servers_have_consecutive_ports_for_their_metrics(monkeypatch):
    """A server takes the port of its number from the first on, which its job is told."""
    first = servers.free_run(3)
    monkeypatch.setenv("JFLUID_PS_METRICS_PORT", str(first))
    ports = [server_settings(number, number, token="x" * 16).metrics_port for number in range(3)]
    assert ports == [first, first + 1, first + 2]
    with contextlib.ExitStack() as held:
        for port in ports:
            held.enter_context(socket.create_server(("127.0.0.1", port)))
