"""The simulation of jobs that share a machine, against formulas, and against jobs that it plays."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def check():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        spec = importlib.util.spec_from_file_location("scale_check", BENCHMARKS / "scale_check.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "scale_check", module)
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("scale", None)


def work(check, **fields):
    nothing = dict.fromkeys(("own", "talk", "call", "asked", "shared", "update", "pull"), 0.0)
    return check.Work(**{**nothing, "cores": 1.0, **fields})


def seconds(check, trainers, servers, given, cores=2, steps=5):
    return check.SharedJob(trainers, servers, given, cores, spread=0.0).seconds(steps)


def test_one_trainer_does_one_thing_after_the_other(check):
    given = work(check, own=8.0, cores=2.0, talk=1.0, call=0.5, asked=0.25, shared=2.0, update=3.0, pull=0.25)
    assert seconds(check, 1, 1, given) == pytest.approx(8 / 2 + 1.5 + 2.25 + 3)
    # two servers work at the same time, each on its share
    share = check.shares(2).max()
    expected = 8 / 2 + 2 + 0.25 + 2 * share + 3 * share
    assert seconds(check, 1, 2, given) == pytest.approx(expected, rel=0.01)


def test_trainers_share_the_processors(check):
    assert seconds(check, 2, 1, work(check, own=4.0)) == pytest.approx(4)
    assert seconds(check, 4, 1, work(check, own=4.0)) == pytest.approx(8)
    assert seconds(check, 3, 1, work(check, own=4.0, cores=2.0)) == pytest.approx(6)
    assert seconds(check, 4, 1, work(check, own=4.0), cores=8) == pytest.approx(4)


def test_a_server_does_one_thing_at_a_time(check):
    assert seconds(check, 4, 1, work(check, asked=1.0)) == pytest.approx(4)
    assert seconds(check, 4, 2, work(check, asked=1.0)) == pytest.approx(4)
    assert seconds(check, 4, 2, work(check, asked=1.0), cores=1) == pytest.approx(8)


def test_slow_steps_hold_up_the_others(check):
    even = check.SharedJob(4, 1, work(check, own=1.0), 4, spread=0.0).seconds(200)
    uneven = check.SharedJob(4, 1, work(check, own=1.0), 4, spread=0.1).seconds(200)
    draws = np.random.RandomState(0).randn(4, 100_000).max(0).mean()  # of the slowest of four
    assert uneven / even == pytest.approx(1 + 0.1 * draws, abs=0.02)


def test_pushes_beside_the_computing(check):
    def step(given, strategy, cores=2, trainers=1):
        return check.SharedJob(trainers, 1, given, cores, 0.0, strategy).seconds()

    given = work(check, own=4.0, talk=1.0, shared=2.0)
    for strategy in ("sync", "half_async"):
        assert step(given, strategy) == pytest.approx(7)
    for strategy in ("async", "geo"):
        assert step(given, strategy) == pytest.approx(4)  # a second processor has the rest
        assert step(given, strategy, cores=1) == pytest.approx(7)
        # a trainer does not wait for its pushes, but for one too many of them
        assert step(work(check, own=4.0, shared=6.0), strategy) == pytest.approx(6)
        # one server has all trainers' pushes
        busy = work(check, own=2.0, shared=3.0)
        assert step(busy, strategy, cores=8, trainers=4) == pytest.approx(12, rel=0.05)
    # rows that come before the computing are waited for
    waits = work(check, own=4.0, talk=2.0, pull=0.5)
    assert step(waits, "async", cores=8) == pytest.approx(4 + 1)


def test_only_rounds_wait_for_the_slowest(check):
    given = work(check, own=1.0)
    took = {s: check.SharedJob(4, 1, given, 4, 0.3, s).seconds(200) for s in check.AHEAD}
    assert took["sync"] > 1.2
    assert all(abs(took[s] - 1) < 0.05 for s in took if s != "sync")


def played(check, truth, spread=0.0, strategy="sync", left=2):
    """What jobs would take for which a step takes `truth`, and varies, of processors of which others
    leave some. With one trainer a step takes as long as it works and waits.
    """

    def measure(trainers, servers):
        own = truth.own + truth.talk + servers * truth.call
        exchange = truth.talk + servers * truth.call + truth.asked + truth.shared + truth.update
        late = max(truth.cores / left, 1.0)  # what computes has that much less
        job = check.SharedJob(trainers, servers, truth, left, spread, strategy)
        return {
            "step": job.seconds(),
            "processor": own * (truth.crowd if trainers > 1 else 1.0),
            "demanded": own * late * (truth.crowd if trainers > 1 else 1.0),
            "servers": trainers * (servers * truth.asked + truth.shared) + truth.update,
            "left": left,
            "parts": {
                "rows": truth.pull * exchange * late,
                "exchange": (1 - truth.pull) * exchange * late,
                "encode": 0.0,
                "call": exchange * late,
                "decode": 0.0,
            },
        }

    return measure


def test_three_jobs_tell_of_the_others(check):
    truth = check.Work(0.02, 1.5, 0.001, 0.002, 0.003, 0.001, 0.002, 0.25)
    measure = played(check, truth)
    work = check.work_of(*(measure(*size) for size in check.MEASURED))
    for name, value in vars(truth).items():
        assert getattr(work, name) == pytest.approx(value, rel=0.05), name
    sizes = [*check.MEASURED, (4, 3)]
    _, rows = check.simulated({size: played(check, truth, 0.4)(*size) for size in sizes})
    for _, _, measured, simulated in rows[2:]:  # steps of one trainer vary by chance
        assert simulated / measured == pytest.approx(1, abs=0.05)
    assert not check.beyond(rows)
    far = [(4, 3, 1.0, 1.21), (2, 1, 1.0, 5.0), (3, 3, 1.0, 0.81)]
    assert check.beyond(far) == far[:1], "those that were given do not count"


@pytest.mark.parametrize("strategy", ["half_async", "async", "geo"])
@pytest.mark.parametrize(("crowd", "left"), [(1.0, 2), (1.2, 2), (1.0, 0.5)])
def test_three_jobs_of_other_strategies_tell_of_the_others(check, strategy, crowd, left):
    pull = 0.0 if strategy == "geo" else 0.3
    truth = check.Work(0.02, 1.0, 0.001, 0.0005, 0.001, 0.003, 0.0, pull, crowd)
    measure = played(check, truth, 0.0, strategy, left)
    found = {(t, s): measure(t, s) for t in (1, 2, 3, 4) for s in (1, 2, 3)}
    work, rows = check.simulated(found, strategy)
    assert work.crowd == pytest.approx(crowd)
    for _, _, measured, simulated in rows:
        assert simulated / measured == pytest.approx(1, abs=0.1)


RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "scale_jobs.json").read_text())


@pytest.mark.parametrize("strategy", ["sync", "half_async", "async", "geo"])
def test_jobs_that_ran_are_simulated(check, strategy):
    """What they took is as `scale_check.py --json` writes it."""
    found = {(one["trainers"], one["count"]): one for one in RECORDED[strategy]["jobs"]}
    assert {*check.MEASURED, (4, 3)} < set(found)
    _, rows = check.simulated(found, strategy)
    assert not check.beyond(rows)


def test_the_middle_of_several_runs_counts_by_the_processors_that_were_left(check):
    runs = [{"step": 1.0, "left": 2.0}, {"step": 9.0, "left": 0.1}, {"step": 3.0, "left": 0.5}]
    assert check.middle(runs) == runs[2]


def test_the_command_names_the_strategies_that_are_off(check, monkeypatch, tmp_path, capsys):
    truth = check.Work(0.02, 1.0, 0.001, 0.0005, 0.001, 0.003, 0.0, 0.0)

    def measure(trainers, servers, steps, strategy):
        found = played(check, truth, 0.0, strategy)(trainers, servers)
        odd = strategy == "geo" and (trainers, servers) == (2, 2)
        return found | {"step": found["step"] * (1.5 if odd else 1.0)}

    jobs = types.ModuleType("scale_jobs")
    jobs.measure = measure
    monkeypatch.setitem(sys.modules, "scale_jobs", jobs)
    words = "x --strategies async geo --trainers 2 --servers 1 2 --times 1 --page --json"
    monkeypatch.setattr(sys, "argv", [*words.split(), str(tmp_path / "found")])
    assert check.main() is True
    said = capsys.readouterr().out
    assert "further off than 20%: geo: 1 of 4" in said
    assert "  given" in said and "\n| 2 | 2 | " in said and "\n| 2 | 1 | " not in said
    found = json.loads((tmp_path / "found").read_text())
    assert len(found["async"]["rows"]) == 4 and found["geo"]["work"]["own"] > 0


def test_snapshots_take_processors_from_the_job(check):
    without = {"step": 0.010, "servers": 0.004, "processor": 0.016, "left": 2}
    found = {"step": 0.0125, "servers": 0.008, "processor": 0.017, "left": 2}
    assert check.compare_snapshots(without, found) == pytest.approx((1.25, 1.25, 0.4))
    alone = without | {"step": 0.005, "left": 4}
    assert check.compare_snapshots(alone, found) == pytest.approx((1.25, 1.25, 0.4))
