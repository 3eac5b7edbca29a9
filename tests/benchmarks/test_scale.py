"""The simulation of large jobs, against what formulas say of jobs that one thing limits."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "scale.py"
spec = importlib.util.spec_from_file_location("scale", PATH)
scale = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scale)


def job(trainers, servers, **fields):
    return scale.Job(trainers, servers, **{"spread": 0.0, "dense": 0.0, **fields})


def test_one_trainer_waits_for_each_thing_in_turn():
    one = job(1, 1, compute=0.02, batch=1000, ids=10, distinct=0.5)
    rows, wire = 5000, 5000 * 40 / scale.Costs.wire
    step = 0.02 + 4 * scale.Costs.call + 2 * wire + scale.Costs.asked + scale.Costs.exchanged
    step += rows / scale.Costs.pulled + rows / scale.Costs.pushed
    np.testing.assert_allclose(scale.simulate(one).examples, 1000 / step, rtol=1e-6)


@pytest.mark.parametrize("strategy", ["sync", "half_async", "async"])
def test_servers_that_have_too_much_to_do_set_the_pace(strategy):
    found, costs = scale.simulate(job(64, 2, strategy=strategy)), scale.Costs
    rows = 4096 * 26 * 0.3 * scale.shares(2).max()
    calls = 2 * costs.handled if strategy == "async" else costs.exchanged
    pace = 1 / (rows / costs.pulled + rows / costs.pushed + calls)
    np.testing.assert_allclose(found.examples, 4096 * pace, rtol=0.1)
    assert found.bottleneck == "servers" and found.busy["servers"] > 0.9


def test_a_slow_trainer_holds_up_those_that_wait_for_it():
    alike = {"compute": 1.0, "batch": 10}
    even, slow = (
        {s: scale.simulate(job(8, 4, strategy=s, slow=k, **alike)) for s in ("sync", "async")} for k in (1.0, 3.0)
    )
    np.testing.assert_allclose(slow["sync"].examples / even["sync"].examples, 1 / 3, rtol=0.02)
    ratio = slow["async"].examples / even["async"].examples
    np.testing.assert_allclose(ratio, (7 + 1 / 3) / 8, rtol=0.05)
    assert slow["sync"].staleness == 0 and even["async"].staleness == pytest.approx(7, abs=1.5)
    geo = scale.simulate(job(8, 4, strategy="geo", compute=1e-3))
    assert geo.examples > scale.simulate(job(8, 4, compute=1e-3)).examples


def test_an_asynchronous_trainer_waits_for_no_push():
    fields = {"compute": 0.02, "batch": 1000, "ids": 10, "distinct": 0.5}
    rows, wire = 5000, 5000 * 40 / scale.Costs.wire
    costs = scale.Costs
    together, alone = (costs.asked + costs.exchanged) / 2, costs.asked + costs.handled
    pull, push = (2 * costs.call + wire + rows / one for one in (costs.pulled, costs.pushed))
    waits, goes_on = (scale.simulate(job(1, 1, strategy=each, **fields)).examples for each in ("half_async", "async"))
    np.testing.assert_allclose(waits, 1000 / (0.02 + pull + push + 2 * together), rtol=1e-6)
    # but a server takes a push before the pull that comes with it; the last one ends alone
    seconds = 30 * (0.02 + pull + alone) + 29 * (costs.handled + rows / costs.pushed) + push + alone
    np.testing.assert_allclose(goes_on, 30 * 1000 / seconds, rtol=1e-6)


def test_failures_cost_what_restarts_take():
    kept = scale.available(job(100, 20, mtbf=1000.0))
    assert kept == pytest.approx(1 / (1 + 120 * 120 / 3.6e6))
    assert scale.available(job(100, 20)) == 1.0
    assert scale.available(job(100, 20, mtbf=1000.0, strategy="async")) > kept


def test_snapshots_take_time_of_servers_and_bound_what_is_lost():
    many = {"compute": 1e-3}
    free = scale.simulate(job(64, 2, **many)).examples
    # each of two servers writes 350e6 bytes in a second, of two
    slow = scale.simulate(job(64, 2, state=700e6, snapshots=2.0, **many)).examples
    np.testing.assert_allclose(slow / free, 0.5, rtol=0.05)
    with pytest.raises(ValueError, match="writes a snapshot for 3 s: more servers, or more"):
        scale.simulate(job(1, 1, state=3 * 350e6, snapshots=2.0))
    often, seldom = (scale.available(job(1, 10, mtbf=100.0, snapshots=each), busy=0.5) for each in (60, 3600))
    assert often == pytest.approx(1 / (1 + (10 * (120 + 15) + 120) / 3.6e5))
    assert seldom < often


def test_the_picture_has_three_parts(tmp_path, monkeypatch, capsys):
    words = "--trainers 1 4 --servers 1 2 --mtbf 100 --strategy async --picture"
    monkeypatch.setattr("sys.argv", ["scale.py", *words.split(), str(tmp_path / "a.png")])
    scale.main()
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_rows_and_blocks_are_where_jobs_have_them():
    assert scale.shares(200).sum() == pytest.approx(1) and scale.shares(200).max() < 1 / 100
    assert scale.dense_bytes(job(1, 4, dense=4e6)).sum() == 4e6
    assert (scale.dense_bytes(job(1, 4, dense=4 * 8192)) > 0).tolist() == [True] + [False] * 3
    with pytest.raises(ValueError, match="strategy: expected one of"):
        job(1, 1, strategy="half")
