"""Barriers, rounds and silence, without a network."""
import threading

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import specs
from jfluid.ps_server.ledger import Call
from jfluid.ps_server.meeting import Meeting
from jfluid.ps_server.refusals import JobFailedError, StateError
from jfluid.ps_server.store import BlockUpdate, Change, RowsUpdate, Store

IDS = np.array([5, -5], np.int64)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def meeting(trainers=2, **more):
    store = Store()
    store.create_table(specs.TableSpec(name="t", width=1, optimizer=specs.Sgd(learning_rate=1)))
    store.create_block(specs.BlockSpec(name="w", shape=(2,), optimizer=specs.Sgd(learning_rate=1)))
    return Meeting(store, trainers, **more)


class Running(threading.Thread):
    """A function in a thread, with its result or error."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self.function, self.arguments, self.result, self.error = function, arguments, None, None
        self.start()

    def run(self):
        try:
            self.result = self.function(*self.arguments)
        except Exception as error:
            self.error = error

    def end(self):
        self.join(30)
        assert not self.is_alive()
        if self.error:
            raise self.error
        return self.result

    def waits(self):
        self.join(0.05)
        return self.is_alive()


def deposit(m, trainer, number, gradient, incarnation=1, ids=IDS):
    rows = [RowsUpdate("t", Change.GRADIENT, ids, np.full((len(ids), 1), gradient, np.float32))]
    blocks = [BlockUpdate("w", Change.GRADIENT, np.full(2, gradient, np.float32))]
    m.heard(trainer, incarnation)
    return Running(m.deposit, Call(trainer, incarnation, number, 1), number, rows, blocks)


def row(m, id_=5):
    return float(m.store.table("t").look_up(np.array([id_]), train=False)[0, 0])


# ---- rounds --------------------------------------------------------------------------------------------------------

def test_a_round_applies_the_average_when_all_have_come():
    m = meeting()
    first = deposit(m, 1, 1, 4.0)
    assert first.waits() and row(m) == 0
    second = deposit(m, 0, 1, 2.0, ids=IDS[:1])
    assert first.end() and second.end()
    assert row(m) == -3 and row(m, -5) == -2
    assert m.store.block("w").read()[0].tolist() == [-3, -3] and m.store.rounds == 1 and m.store.table("t").step == 1


def test_the_order_of_arrival_changes_no_bit():
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        m = meeting(3)
        running = [deposit(m, trainer, 1, np.float32(0.1) * (3 ** trainer * 7)) for trainer in order]
        for one in running:
            one.end()
        results.append(row(m))
    assert results[0] == results[1] != 0


def test_a_duplicate_of_a_round_waits_and_changes_nothing():
    m = meeting()
    first, again = deposit(m, 0, 1, 2.0), deposit(m, 0, 1, 2.0)
    assert first.waits() and again.waits()
    deposit(m, 1, 1, 2.0).end()
    assert {first.end(), again.end()} == {True, False} and deposit(m, 1, 1, 2.0).end() is False
    assert row(m) == -2


def test_a_trainer_that_started_again_takes_its_own_place():
    m = meeting()
    lost = deposit(m, 0, 1, 100.0)
    assert lost.waits()
    anew = Running(m.heard, 0, 2)
    anew.end()
    rows = [RowsUpdate("t", Change.GRADIENT, IDS, np.full((2, 1), 2, np.float32))]
    anew = Running(m.deposit, Call(0, 2, 1, 1), 1, rows, [])
    assert anew.waits()
    deposit(m, 1, 1, 4.0).end()
    anew.end()
    assert row(m) == -3
    with pytest.raises(StateError, match="incarnation 1 has ended"):
        m.heard(0, 1)


def test_rounds_come_one_after_the_other():
    m = meeting(1)
    deposit(m, 0, 1, 1.0).end()
    with pytest.raises(StateError, match="round 5: this server has applied 1 rounds, and nobody has"):
        deposit(m, 0, 5, 1.0).end()
    with pytest.raises(errors.ServerError, match="a round takes gradients only"):
        m.deposit(Call(0, 1, 9, 9), 2, [RowsUpdate("t", Change.ADD, IDS, np.zeros((2, 1), np.float32))], [])
    deposit(m, 0, 2, 1.0).end()
    assert row(m) == -2


def test_a_round_goes_on_without_those_that_left():
    m = meeting(2)
    deposit(m, 0, 1, 1.0)
    last = deposit(m, 1, 1, 3.0)
    last.end()
    waiting = deposit(m, 1, 2, 4.0)
    assert waiting.waits()
    m.leave(0)
    waiting.end()
    assert row(m) == -6 and m.at_work() == [1] and not m.over
    m.leave(1)
    assert m.over


def test_a_cut_has_whole_rounds():
    """The deposit of a waiting round is neither in the rows nor in the ledger of a cut."""
    m = meeting()
    waiting = deposit(m, 0, 1, 2.0)
    assert waiting.waits()
    with m.store.cut() as cut:
        assert cut.rounds == 0 and cut.ledger["0"]["through"] == 0 and cut.tables["t"].step == 0
    deposit(m, 1, 1, 2.0).end()
    waiting.end()
    with m.store.cut() as cut:
        assert cut.rounds == 1 and cut.ledger["0"]["through"] == cut.ledger["1"]["through"] == 1


def test_a_round_that_cannot_be_applied_fails_the_job(monkeypatch, caplog):
    m = meeting()
    waiting = deposit(m, 0, 1, 2.0)
    assert waiting.waits()
    monkeypatch.setattr(m.store, "apply", lambda *_: (_ for _ in ()).throw(MemoryError("no more")))
    with pytest.raises(JobFailedError, match="round 1 could not be applied: no more"):
        deposit(m, 1, 1, 2.0).end()
    with pytest.raises(JobFailedError):
        waiting.end()
    assert m.store.rounds == 0 and "round 1 could not be applied" in caplog.text


# ---- barriers ------------------------------------------------------------------------------------------------------

def test_a_barrier_opens_when_all_have_come():
    m = meeting(3)
    first = [Running(m.barrier, trainer, "b", 1) for trainer in (0, 1, 1)]
    assert all(one.waits() for one in first)
    m.barrier(2, "b", 1)
    for one in first:
        one.end()
    m.barrier(0, "b", 1)  # asked again: it is open
    assert Running(m.barrier, 0, "b", 2).waits() and Running(m.barrier, 0, "other", 1).waits()


@pytest.mark.parametrize("name, number", [("", 1), ("b", 0), ("x" * 300, 1)])
def test_barriers_that_cannot_be(name, number):
    with pytest.raises(errors.ServerError, match="barrier: expected a name and a number from 1"):
        meeting().barrier(0, name, number)


def test_a_caller_that_has_gone_waits_no_longer():
    m, there = meeting(), threading.Event()
    there.set()
    waiting = Running(m.barrier, 0, "b", 1, there.is_set)
    assert waiting.waits()
    there.clear()
    with pytest.raises(StateError, match="the caller has gone"):
        waiting.end()


# ---- silence -------------------------------------------------------------------------------------------------------

def test_silence_fails_the_job_and_names_the_trainer(caplog):
    clock = Clock()
    m = meeting(2, silence_s=10, clock=clock)
    m.heard(0, 1)
    m.heard(1, 1)
    waiting = Running(m.barrier, 0, "b", 1)
    clock.now = 9.0
    m.heard(0, 1)
    m.look_for_silence()
    assert waiting.waits()
    clock.now = 11.0
    m.look_for_silence()
    with pytest.raises(JobFailedError, match=r"trainer 1 has been silent for 11 s \(limit 10 s\)"):
        waiting.end()
    with pytest.raises(JobFailedError, match="trainer 1"):
        m.heard(0, 1)
    assert "trainer 1 has been silent for 11 s" in caplog.text


def test_silence_may_leave_a_trainer_out_until_it_is_heard_again(caplog):
    clock = Clock()
    m = meeting(2, silence_s=10, on_silence="leave out", clock=clock)
    m.heard(1, 1)
    clock.now = 11.0
    waiting = deposit(m, 0, 1, 2.0)
    assert waiting.waits()
    m.look_for_silence()
    waiting.end()
    assert row(m) == -2 and m.at_work() == [0]
    m.heard(1, 1)
    assert m.at_work() == [0, 1] and "trainer 1 is heard again" in caplog.text
    assert deposit(m, 0, 2, 2.0).waits()


def test_a_trainer_that_never_came_is_waited_for():
    clock = Clock()
    m = meeting(2, silence_s=10, clock=clock)
    m.heard(0, 1)
    waiting = Running(m.barrier, 0, "b", 1)
    assert waiting.waits()
    clock.now = 9.0
    m.heard(0, 1)
    clock.now = 18.0
    m.look_for_silence()
    assert waiting.waits() and not m.failed
    m.heard(1, 1)
    m.barrier(1, "b", 1)
    waiting.end()


def test_trainers_have_numbers():
    with pytest.raises(errors.ServerError, match="trainer 2: this job has 2 trainers, numbered from 0"):
        meeting().heard(2, 1)
