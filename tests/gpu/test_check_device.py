"""`python -m jfluid.check_device`, on the CPU: each section finds what is right and what is wrong."""

import contextlib
import json
import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from jfluid import install_check
from jfluid.check_device import __main__ as command
from jfluid.check_device import collectives, devices, goldens, jobs, operators, speed, structure
from jfluid.check_device.devices import Devices
from jfluid.check_device.report import Clock, Report, Row
from jfluid.compile.runtime import device_feeds
from jfluid.lod_tensor import LoDTensor
from jfluid.places import CPUPlace
from tests.launch_case import launched


@pytest.fixture
def two_cpus():
    return devices.found(cpu=True, quick=True, clock=Clock(1e6))


def test_it_checks_and_writes_a_report(monkeypatch, tmp_path, capsys):
    """All sections but the jobs, with one or two of everything."""
    monkeypatch.setattr(command, "QUICK_MINUTES", 1e6)  # however busy the machine is
    monkeypatch.setattr(operators, "QUICK_EVERY_ON_CPUS", 200)
    monkeypatch.setattr(goldens, "_QUICK", ("fit_a_line",))
    monkeypatch.setattr(goldens, "_QUICK_EAGER", ("word2vec",))
    monkeypatch.setattr(structure, "PROGRAMS", (structure.arrays,))
    monkeypatch.setattr(speed, "QUICK", 1)
    monkeypatch.setattr(speed, "QUICK_STEPS", 2)
    monkeypatch.setattr(jobs, "processes", lambda *_: Row(collectives.SECTION, "2 processes", "left out"))
    file = tmp_path / "report.json"
    sections = [name for name in command.SECTIONS if name != jobs.SERVERS]
    only = [word for name in sections for word in ("--only", name)]
    assert command.main(["--quick", "--cpu", "--json", str(file), *only]) == 0
    printed = capsys.readouterr().out
    assert "jfluid works on 2 x cpu, as far as it was checked: " in printed
    found = json.loads(file.read_text())
    assert found["right"] and found["machine"]["versions"]["jax"]
    states = {(row["section"], row["name"]): row["state"] for row in found["rows"]}
    assert states.pop((collectives.SECTION, "2 processes")) == "left out"
    assert set(states.values()) == {"right"} and {section for section, _ in states} == set(sections)
    measured, goals = [row for row in found["rows"] if row["section"] == speed.SECTION]
    assert measured["figures"]["ms a step"] > 0 and measured["figures"][speed.RATIO] > 0
    assert goals["name"] == "goals" and "of 1 at most 3 % idle" in goals["about"]


def run_forked(command, cwd, **_):
    """Run `python -m jfluid.launch ...`, with its processes forked."""
    assert command[:3] == [sys.executable, "-m", "jfluid.launch"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with contextlib.chdir(cwd):
        return launched(*command[3:], environment=environment, forks=True)


@pytest.mark.process
def test_jobs_reach_the_numbers_of_one_process(two_cpus, monkeypatch):
    forked = types.SimpleNamespace(run=run_forked, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(jobs, "subprocess", forked)
    monkeypatch.setattr(jobs, "_QUICK_TABLE", 1000)
    losses = jobs.processes(two_cpus, rows=8)
    assert isinstance(losses, list), losses
    np.testing.assert_allclose(losses, collectives._losses(two_cpus), rtol=1e-3)
    one = Devices((CPUPlace(),), two_cpus.quick, two_cpus.clock)
    job, ahead, copied = jobs.check(one)
    assert job.state == ahead.state == copied.state == "right", (job, ahead, copied)
    assert ahead.figures["examples/s"] > 0 and "ms of rows" in ahead.figures


def test_copies_of_rows_are_measured(two_cpus, monkeypatch):
    """The CPU needs none: here it is told to make them, as a GPU must."""
    monkeypatch.setattr(jobs, "_SIDE", 64)
    monkeypatch.setattr(jobs, "_REPEATS", 1)
    assert "where NumPy has them" in jobs._copied(two_cpus.first, 16).about
    monkeypatch.setattr(device_feeds, "reads_host_memory", lambda device: False)
    found = jobs._copied(two_cpus.first, 16)
    assert found.state == "right" and found.figures["GB/s from NumPy"] > 0
    assert 0 <= found.figures["% hidden behind a computation"] <= 100


def test_goldens_of_a_checkout_all_have_a_run():
    """Each is one of Fluid's numbers; the tests run the programs themselves."""
    found = goldens.runs()
    assert len(found) == 50
    values, wanted = found["case"](devices.On(CPUPlace()))
    assert len(values) == len(wanted) > 20
    np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-6)


def test_goldens_of_imperative_mode_all_have_a_run_at_the_place_that_is_checked():
    found = goldens.eager_runs()
    assert set(found) == set(goldens._golden("dygraph"))
    asked = []
    values, wanted = found["word2vec"](types.SimpleNamespace(CPUPlace=lambda: asked.append(0) or CPUPlace()))
    assert asked and len(values) == len(wanted) > 10
    np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-6)


def test_a_training_run_that_goes_elsewhere_is_found(two_cpus, monkeypatch):
    right = goldens._golden("dygraph")["word2vec"]
    wrong = {**right, "state": {name: 1.01 * norm for name, norm in right["state"].items()}}
    monkeypatch.setattr(goldens, "_golden", lambda name: {"word2vec": wrong})
    monkeypatch.setattr(goldens, "_QUICK_EAGER", ("word2vec",))
    (row,) = goldens.check_eager(two_cpus)
    assert row.state == "wrong" and 0.009 < min(row.figures.values()) < 0.011


def test_a_program_that_computes_something_else_is_found(two_cpus, monkeypatch):
    monkeypatch.setattr(structure, "PROGRAMS", (structure.parts,))
    found, calls = structure.values, []

    def off(build, place):
        calls.append(place)
        first, *others = found(build, place)
        return [LoDTensor(np.array(first) + len(calls)), *others]

    monkeypatch.setattr(structure, "values", off)
    wrong, row = structure.check(two_cpus)
    assert wrong.name == "parts" and wrong.about.startswith("fetch 0: off by 1")
    assert row.state == "wrong" and row.about.startswith("0 of 1 programs")


def test_a_wrong_value_is_found(two_cpus, monkeypatch):
    """A device that adds a little to what it computes."""
    finish = operators._finish
    calls = []

    def off(started):
        calls.append(started)
        values, gradients = finish(started)[0]
        shift = 1e-2 if len(calls) % 2 else 0.0
        return [({slot: v + shift for slot, v in values.items()}, gradients)]

    monkeypatch.setattr(operators, "_finish", off)
    lower, lowered = operators._lowered, []
    monkeypatch.setattr(operators, "_lowered", lambda *_: lowered.append(0) or lower(*_))
    case = next(case for case in operators.cases.recorded() if case.type == "tanh")
    one = [operators.cases.Computation(case)]
    wrong, row = operators._compared(two_cpus, [one], "float32", "values", None)
    assert wrong.name == "tanh" and "off by 0.01" in wrong.about
    assert len(lowered) == 1, "the CPU's program is lowered once"
    assert row.state == "wrong" and row.about.startswith("0 of 1 cases")


def test_of_a_part_that_xla_refuses_each_case_is_checked_alone(two_cpus, monkeypatch):
    named = {case.type: case for case in operators.cases.recorded()}
    part = [operators.cases.Computation(named[name]) for name in ("tanh", "relu")]
    started = operators._started

    def refused():
        raise jax.errors.JaxRuntimeError("INTERNAL: no such convolution\nmore")

    def start(pool, some, device, precision):
        there, here = started(pool, some, device, precision)
        return (refused if part[1] in some else there), here

    monkeypatch.setattr(operators, "_started", start)
    wrong, row = operators._compared(two_cpus, [part], "float32", "values", None)
    assert wrong.name == "relu" and wrong.about.startswith("INTERNAL: no such convolution")
    assert row.state == "wrong" and row.about.startswith("1 of 2 cases")


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (np.float32([1, np.nan, np.inf]), np.float32([1, np.nan, np.inf]), None),
        (np.float32([1, np.nan]), np.float32([1, 2]), "off by nan"),
        (np.float32([np.inf]), np.float32([1]), "off by inf"),
        (np.int64([1, 2]), np.int64([1, 3]), "1 elements differ"),
        (np.int32([1]), np.int64([1]), "on the CPU int64"),
        (np.float32([1000.1]), np.float32([1000.0]), None),
        (np.float64([1 + 1e-6]), np.float64([1.0]), "off by 1e-06"),
    ],
)
def test_differences(one, other, says):
    found = operators.distance(one, other, None)
    assert (found is None) if says is None else says in found


def test_errors_and_want_of_time_are_rows():
    late = Devices((CPUPlace(),), True, Clock(0.0))

    def broken(checked):
        yield Row("s", "first", "right")
        raise ValueError("no such thing\nmore")

    assert [r.state for r in command._rows("s", broken, late)] == ["left out"]
    case = operators.cases.recorded()[0]
    parts = [[operators.cases.Computation(case)]] * 2
    (row,) = operators._compared(late, parts, "float32", "values", None)
    assert (row.state, row.name) == ("left out", "values of 2 of 2 cases")
    assert {row.state for row in structure.check(late)} == {"left out"}
    in_time = Devices((CPUPlace(),), True, Clock(1e6))
    first, rest = command._rows("s", broken, in_time)
    assert first.state == "right"
    assert (rest.state, rest.about) == ("wrong", "ValueError: no such thing")


def test_the_verdict_names_what_was_left_out():
    rows = [Row("programs", "first", "right"), Row("speed", "mlp", "left out")]
    rows += [Row("programs", f"{i}", "left out") for i in range(7)]
    report = Report(install_check.machine(), "2 x cpu", rows, 1.0)
    assert "as far as it was checked: 1 right, 8 left out, 1 s; left out: " in report.verdict()
    assert report.verdict().endswith("left out: speed (mlp), programs (7 of them)")
    assert Report(report.machine, "2 x cpu", rows[:1], 1.0).verdict().endswith("1 right, 1 s")
