"""Barriers, rounds and silence, without a network."""

import threading

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import specs
from jfluid.ps_server.errors import JobFailedError, StateError
from jfluid.ps_server.ledger import MutationId
from jfluid.ps_server.store import BlockUpdate, Change, RowsUpdate, Store
from jfluid.ps_server.sync_rounds import TrainerGroup
from tests.launch_case import wait_until

IDS = np.array([5, -5], np.int64)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def group(trainers=2, **more):
    store = Store()
    store.create_table(specs.TableSpec(name="t", width=1, optimizer=specs.Sgd(learning_rate=1)))
    store.create_block(specs.BlockSpec(name="w", shape=(2,), optimizer=specs.Sgd(learning_rate=1)))
    return TrainerGroup(store, trainers, **more)


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
        self.join(120)
        assert not self.is_alive()
        if self.error:
            raise self.error
        return self.result

    def waits(self):
        self.join(0.05)
        return self.is_alive()


def deposit(m, trainer, number, gradient, incarnation=1, ids=IDS, alive=lambda: True, hold=False):
    rows = [RowsUpdate("t", Change.GRADIENT, ids, np.full((len(ids), 1), gradient, np.float32))]
    blocks = [BlockUpdate("w", Change.GRADIENT, np.full(2, gradient, np.float32))]
    m.heard(trainer, incarnation)
    return Running(m.deposit, MutationId(trainer, incarnation, number, 1), number, rows, blocks, alive, hold)


def row(m, id_=5):
    return float(m.store.table("t").look_up(np.array([id_]), train=False)[0, 0])


# ---- rounds --------------------------------------------------------------------------------------


def test_a_round_applies_the_average_when_all_have_come():
    m = group()
    first = deposit(m, 1, 1, 4.0)
    assert first.waits() and row(m) == 0
    second = deposit(m, 0, 1, 2.0, ids=IDS[:1])
    assert first.end() and second.end()
    assert row(m) == -3 and row(m, -5) == -2
    assert m.store.block("w").read()[0].tolist() == [-3, -3] and m.store.rounds == 1 and m.store.table("t").step == 1


def test_the_order_of_arrival_changes_no_bit():
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        m = group(3)
        running = [deposit(m, trainer, 1, np.float32(0.1) * (3**trainer * 7)) for trainer in order]
        for one in running:
            one.end()
        results.append(row(m))
    assert results[0] == results[1] != 0


def test_a_duplicate_of_a_round_waits_and_changes_nothing():
    m = group()
    first, again = deposit(m, 0, 1, 2.0), deposit(m, 0, 1, 2.0)
    assert first.waits() and again.waits()
    deposit(m, 1, 1, 2.0).end()
    assert {first.end(), again.end()} == {True, False} and deposit(m, 1, 1, 2.0).end() is False
    assert row(m) == -2


def test_a_trainer_that_started_again_takes_its_own_place():
    m = group()
    lost = deposit(m, 0, 1, 100.0)
    assert lost.waits()
    anew = Running(m.heard, 0, 2)
    anew.end()
    rows = [RowsUpdate("t", Change.GRADIENT, IDS, np.full((2, 1), 2, np.float32))]
    anew = Running(m.deposit, MutationId(0, 2, 1, 1), 1, rows, [])
    assert anew.waits()
    deposit(m, 1, 1, 4.0).end()
    anew.end()
    assert row(m) == -3
    with pytest.raises(StateError, match="incarnation 1 has ended"):
        m.heard(0, 1)


def test_rounds_come_one_after_the_other():
    m = group(1)
    deposit(m, 0, 1, 1.0).end()
    with pytest.raises(StateError, match="round 5: this server has applied 1 rounds, and no process has"):
        deposit(m, 0, 5, 1.0).end()
    with pytest.raises(errors.ServerError, match="a round takes gradients only"):
        m.deposit(
            MutationId(0, 1, 9, 9),
            2,
            [RowsUpdate("t", Change.ADD, IDS, np.zeros((2, 1), np.float32))],
            [],
        )
    deposit(m, 0, 2, 1.0).end()
    assert row(m) == -2


def test_a_round_goes_on_without_those_that_left():
    m = group(2)
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
    """The deposit of a waiting round is neither in the rows nor in the ledger of a view."""
    m = group()
    waiting = deposit(m, 0, 1, 2.0)
    assert waiting.waits()
    with m.store.view() as view:
        assert view.rounds == 0 and view.ledger["0"]["through"] == 0 and view.tables["t"].step == 0
    deposit(m, 1, 1, 2.0).end()
    waiting.end()
    with m.store.view() as view:
        assert view.rounds == 1 and view.ledger["0"]["through"] == view.ledger["1"]["through"] == 1


def test_a_round_that_cannot_be_applied_fails_the_job(monkeypatch, caplog):
    m = group()
    waiting = deposit(m, 0, 1, 2.0)
    assert waiting.waits()
    monkeypatch.setattr(m.store, "apply", lambda *_: (_ for _ in ()).throw(MemoryError("no more")))
    with pytest.raises(JobFailedError, match="round 1 could not be applied: no more"):
        deposit(m, 1, 1, 2.0).end()
    with pytest.raises(JobFailedError):
        waiting.end()
    assert m.store.rounds == 0 and "round 1 could not be applied" in caplog.text


def test_gradients_whose_caller_goes_stay_and_its_next_attempts_wait_no_longer_than_they_live():
    """As over a connection that is lost again and again: every attempt ends with its caller, and
    the gradients are applied.
    """
    m = group()
    for _ in range(3):
        there = threading.Event()
        there.set()
        attempt = deposit(m, 0, 1, 2.0, alive=there.is_set)
        assert attempt.waits()
        there.clear()
        with pytest.raises(StateError, match="the caller has gone"):
            attempt.end()
    last = deposit(m, 0, 1, 2.0)
    assert last.waits()
    deposit(m, 1, 1, 2.0).end()
    assert last.end() is False and row(m) == -2


def test_the_gradients_of_an_earlier_life_are_refused_when_a_new_one_takes_its_place():
    m = group()
    first = deposit(m, 0, 1, 100.0)
    assert first.waits()
    anew = deposit(m, 0, 1, 2.0, incarnation=2)
    with pytest.raises(StateError, match="trainer 0: incarnation 1 has ended"):
        first.end()
    deposit(m, 1, 1, 4.0).end()
    assert anew.end() and row(m) == -3


# ---- barriers ------------------------------------------------------------------------------------


def test_a_barrier_opens_when_all_have_come():
    m = group(3)
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
        group().barrier(0, name, number)


def test_a_caller_that_has_gone_waits_no_longer():
    m, there = group(), threading.Event()
    there.set()
    waiting = Running(m.barrier, 0, "b", 1, there.is_set)
    assert waiting.waits()
    there.clear()
    with pytest.raises(StateError, match="the caller has gone"):
        waiting.end()


# ---- silence -------------------------------------------------------------------------------------


def test_silence_fails_the_job_and_names_the_trainer(caplog):
    clock = Clock()
    m = group(2, silence_s=10, clock=clock)
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
    m = group(2, silence_s=10, on_silence="leave out", clock=clock)
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


def test_gradients_that_are_held_are_answered_when_the_job_goes_on_without_their_trainer():
    """Held and not confirmed when their trainer fell silent: whoever sends or confirms them again
    is told.
    """
    clock = Clock()
    m = group(2, silence_s=10, on_silence="leave out", clock=clock)
    assert deposit(m, 1, 1, 4.0, hold=True).end()
    clock.now = 11.0
    going_on = deposit(m, 0, 1, 2.0)
    assert going_on.waits()
    m.look_for_silence()
    assert going_on.end() and row(m) == -2
    for again in (
        lambda: m.confirm(1, 1, 1),
        deposit(m, 1, 1, 4.0, hold=True).end,
        deposit(m, 1, 1, 4.0).end,
    ):
        with pytest.raises(
            StateError,
            match="round 1 was applied without its gradients, which it had not confirmed",
        ):
            again()
    # started again, it goes on with the round that comes next
    anew = deposit(m, 1, 2, 4.0, incarnation=2)
    m.confirm(1, 2, 1)
    deposit(m, 0, 2, 2.0).end()
    assert anew.end() and row(m) == -5


def test_what_an_earlier_life_has_sent_changes_no_round_from_the_moment_that_a_new_one_is_heard():
    """A call may have been heard before that, and come to its round after it."""
    m = group(1)
    assert deposit(m, 0, 1, 2.0, hold=True).end()
    m.heard(0, 2)
    for late in (
        lambda: m.confirm(0, 1, 1),
        lambda: m.deposit(MutationId(0, 1, 2, 1), 1, [], [BlockUpdate("w", Change.GRADIENT, np.ones(2, np.float32))]),
    ):
        with pytest.raises(StateError, match="incarnation 1 has ended; incarnation 2 is at work"):
            late()
    assert m.progress(0) == (0, False)
    m.confirm(0, 2, 1)
    assert m.progress(0) == (1, False) and row(m) == -2


def test_held_gradients_that_come_twice_at_a_time_are_answered_at_once(monkeypatch):
    m, again = group(), []

    def begin(*call, begin=m.store.ledger.begin):
        first = begin(*call)
        if not again:  # the call is sent again before its gradients are there
            again.append(deposit(m, 0, 1, 2.0, hold=True))
            again[0].join(0.05)
        return first

    monkeypatch.setattr(m.store.ledger, "begin", begin)
    assert deposit(m, 0, 1, 2.0, hold=True).end() is True
    assert again[0].end() is False and m.store.rounds == 0


def test_gradients_that_are_held_are_answered_when_the_job_fails():
    clock = Clock()
    m = group(2, silence_s=10, clock=clock)
    deposit(m, 0, 1, 2.0, hold=True).end()
    waiting = deposit(m, 1, 1, 2.0)
    assert waiting.waits()
    clock.now = 11.0
    m.look_for_silence()
    for answer in (
        waiting.end,
        lambda: m.confirm(0, 1, 1),
        lambda: m.deposit(MutationId(0, 1, 1, 1), 1, [], [BlockUpdate("w", Change.GRADIENT, np.ones(2, np.float32))]),
    ):
        with pytest.raises(JobFailedError, match="has been silent for 11 s"):
            answer()


def test_a_restored_server_waits_for_nobody_without_limit(caplog):
    """Who had left when its snapshot was written is not waited for; who is not heard may have left
    since.
    """
    clock = Clock()
    m = group(3, silence_s=10, start_s=100, clock=clock)
    with m.store.ledger.once(MutationId(1, 7, 1, 1)):
        pass
    m.resume({2: 5})
    assert m.left() == {2: 5} and m.at_work() == [] and m.incarnation(1) == 7
    with pytest.raises(StateError, match="trainer 1: incarnation 6 has ended; incarnation 7 is at work"):
        m.heard(1, 6)
    waiting = deposit(m, 0, 1, 2.0)
    clock.now = 99.0
    m.heard(0, 1)
    m.look_for_silence()
    assert waiting.waits()
    clock.now = 101.0
    m.look_for_silence()
    with pytest.raises(JobFailedError, match="trainer 1 has been silent for 101 s since the server was restored"):
        waiting.end()


def test_a_trainer_that_comes_late_to_a_restored_server_is_one_like_others():
    clock = Clock()
    m = group(2, silence_s=10, start_s=100, on_silence="leave out", clock=clock)
    m.resume({})
    clock.now = 101.0
    m.heard(0, 1)
    m.look_for_silence()
    m.barrier(0, "b", 1)  # trainer 1 is left out
    m.heard(1, 1)
    assert m.at_work() == [0, 1]
    clock.now = 112.0
    m.heard(0, 1)
    m.look_for_silence()
    assert m.at_work() == [0]


def test_a_life_that_has_no_incarnation_yet_is_not_silent():
    clock = Clock()
    m = group(1, silence_s=10, clock=clock)
    m.heard(0, 0)
    assert m.at_work() == []
    m.heard(0, 3)
    for clock.now in (9.0, 18.0):
        m.heard(0, 0)
        m.look_for_silence()
    assert not m.failed and m.incarnation(0) == 3


def test_a_trainer_that_never_came_is_waited_for():
    clock = Clock()
    m = group(2, silence_s=10, clock=clock)
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


# ---- goodbyes ------------------------------------------------------------------------------------


def test_leaving_again_is_harmless():
    m, told = group(1), []
    m.on_leave = lambda: told.append(1)
    m.heard(0, 1)
    for _ in range(3):
        m.leave(0)
        m.heard(0, 1)
    assert m.over and told == [1]


def test_the_last_goodbye_is_told():
    m, told = group(2), []
    m.on_finished = lambda: told.append(1)
    for trainer in (0, 1):
        m.heard(trainer, 1)
    for trainer, knows in ((0, False), (0, True), (1, False)):
        m.leave(trainer, knows)
        assert not told
    m.leave(1, knows=True)
    assert told == [1]


def test_the_job_is_finished_when_all_know_that_they_have_left():
    """A goodbye whose answer was lost is said again, and answered, for a while."""
    clock = Clock()
    m = group(2, clock=clock)
    for trainer in (0, 1):
        m.heard(trainer, 1)
        assert not m.finished
        m.leave(trainer)
    m.leave(0, knows=True)
    assert m.over and not m.finished
    clock.now = 20.0
    m.heard(1, 1)
    m.leave(1)
    clock.now = 49.0
    assert not m.finished
    clock.now = 51.0
    assert m.finished  # trainer 1 will not ask again
    m.heard(1, 1)
    m.leave(1, knows=True)
    assert m.finished


def test_a_generation_that_was_passed_before_the_server_was_restored_is_passed():
    m = group(2)
    m.heard(0, 1)
    m.heard(1, 1)
    waiting = Running(m.barrier, 0, "b", 3)  # its answer was lost with the server
    assert waiting.waits()
    m.barrier(1, "b", 3, passed=True)
    waiting.end()


def test_a_new_life_comes_to_a_barrier_itself():
    m = group(2)
    m.heard(0, 1)
    waits = Running(m.barrier, 0, "b", 1)
    assert waits.waits()
    m.heard(0, 2)
    other = Running(m.barrier, 1, "b", 1)
    assert other.waits()
    m.barrier(0, "b", 1)
    other.end()


def test_trainers_have_numbers():
    with pytest.raises(errors.ServerError, match="trainer 2: this job has 2 trainers, numbered from 0"):
        group().heard(2, 1)


def test_each_trainer_is_named_that_rounds_wait_for():
    clock = Clock()
    m = group(3, silence_s=100, on_silence="leave out", clock=clock)
    for trainer in range(3):
        m.heard(trainer, 1)
    assert m.waits() == {}

    def arrives(trainer, number, hold=False):
        running.append(deposit(m, trainer, number, 1.0, hold=hold))
        wait_until(lambda: trainer in m._deposits or m.store.rounds >= number)

    running = []
    arrives(0, 1)
    clock.now = 2.0
    arrives(1, 1)
    clock.now = 7.0
    assert m.waits() == {2: (0, 0.0, 7.0)}
    arrives(2, 1)
    for thread in running:
        thread.end()
    assert m.waits() == {0: (0, 0.0, 0.0), 1: (0, 2.0, 0.0), 2: (1, 7.0, 0.0)}
    # held gradients count from their confirmation on, and a silent trainer until it is given up
    arrives(0, 2, hold=True)
    clock.now = 10.0
    assert m.waits()[1].pending == 0
    m.confirm(0, 1, 2)
    clock.now = 50.0
    assert m.waits()[1] == (0, 2.0, 40.0)
    m.heard(0, 1)
    m.heard(1, 1)
    clock.now = 120.0
    m.look_for_silence()
    assert m.at_work() == [0, 1]
    deposit(m, 1, 2, 1.0).end()
    assert m.waits() == {0: (0, 0.0, 0.0), 1: (1, 112.0, 0.0), 2: (1, 117.0, 0.0)}
