"""Synchronous and half-asynchronous steps: what is exchanged after a step is pending while the next one
begins.
"""

import functools
import gc
import threading
import time
import weakref
from concurrent.futures import Future

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.distributed.programs.trainer_program import read
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.distributed.trainer.early_step import EarlyStep
from jfluid.distributed.wire import connections, pending_exchange
from jfluid.distributed.wire.pending_exchange import Exchange
from jfluid.ps_server.client import Client, PullResult
from jfluid.transpiler.parameter_server.layout import ParameterLayout, Piece
from tests.distributed.job import click_model, clicks, parameters, trainer_of

MODEL = functools.partial(click_model, functools.partial(fluid.optimizer.Adam, 0.02))
SYNC, HALF_ASYNC, STEPS = 0, 2, 3
W = ParameterLayout("w", (3, 3), (Piece("w.block0", 0, 0, (2, 3)), Piece("w.block1", 1, 2, (1, 3))))


class Received:
    """A trainer's program of which `Exchange` wants to know only this."""

    def __init__(self, *received):
        self.received = list(received)


@pytest.fixture
def under_way():
    """(scope, the tensor, its exchange, the future of what comes)."""
    scope, future = fluid.Scope(), Future()
    scope.var("w").get_tensor().set(np.zeros((3, 3), np.float32))
    exchange = Exchange(lambda run: None, lambda ids: future.result(), Received(W), scope)
    return scope, scope.find_var("w").get_tensor(), exchange, future


def test_what_no_step_asks_for_is_sent_by_another_thread(monkeypatch):
    monkeypatch.setattr(pending_exchange, "PATIENCE_S", 0.0)
    scope, sent, rest = fluid.Scope(), [], []
    scope.var("w").get_tensor().set(np.zeros((3, 3), np.float32))

    def send(ids):
        sent.append((ids, threading.current_thread()))
        return pulled(7)

    exchange = Exchange(rest.append, send, Received(W), scope)
    (later,) = rest
    thread = threading.Thread(target=later)
    thread.start()
    thread.join(120)
    assert not exchange.send({"table": 1})  # too late to ask for rows
    exchange.finish()
    assert sent == [(None, thread)] and (np.array(scope.find_var("w").get_tensor()) == 7).all()


def test_a_step_that_asks_sends_it_itself():
    scope, sent, rest = fluid.Scope(), [], []
    scope.var("w").get_tensor().set(np.zeros((3, 3), np.float32))
    exchange = Exchange(rest.append, lambda ids: sent.append(ids) or pulled(7), Received(W), scope)
    assert exchange.send({"table": 1})
    (later,) = rest
    later()  # the other thread finds nothing to do
    exchange.finish()
    assert sent == [{"table": 1}] and (np.array(scope.find_var("w").get_tensor()) == 7).all()


def is_pending(tensor):
    return "value" not in vars(tensor)


def pulled(value):
    return PullResult({}, W.split(np.full((3, 3), value, np.float32)), 0)


def test_who_reads_a_parameter_waits_for_it(under_way):
    scope, tensor, _, future = under_way
    assert is_pending(tensor)
    read = []
    reader = threading.Thread(target=lambda: read.append(np.array(scope.find_var("w").get_tensor())))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()
    future.set_result(pulled(7))
    reader.join(120)
    assert (read[0] == 7).all() and not is_pending(tensor)


def test_what_is_set_meanwhile_stays(under_way):
    _, tensor, exchange, future = under_way
    tensor.set(np.ones((3, 3), np.float32))
    assert not is_pending(tensor) and (np.array(tensor) == 1).all()
    future.set_result(pulled(7))
    exchange.finish()
    assert (np.array(tensor) == 1).all()


def test_a_failure_is_told_and_leaves_the_parameter_as_it_was(under_way):
    _, tensor, exchange, future = under_way
    future.set_exception(errors.ServerError("no answer"))
    with pytest.raises(errors.ServerError, match="no answer"):
        np.array(tensor)
    with pytest.raises(errors.ServerError, match="no answer"):
        exchange.finish()
    assert (np.array(tensor) == 0).all()


def test_parameters_of_which_pieces_are_missing_stay(under_way):
    _, tensor, _, future = under_way
    future.set_result(PullResult({}, {"w.block0": pulled(7).blocks["w.block0"]}, 0))
    assert (np.array(tensor) == 0).all()


def trained(sparse, depth, mode=HALF_ASYNC):
    """Losses, the parameters that a user reads after each step, and the state in the end."""
    with trainer_of(functools.partial(MODEL, sparse), sync=mode == SYNC) as (
        executor,
        program,
        (loss, *_),
    ):
        communicator = Communicator(program, mode, envs={"communicator_prefetch_depth": depth})
        communicator.start()
        losses, seen = [], []
        names = [d.name for d in read(program).received]
        for step in range(STEPS):
            value, first = executor.run(program, feed=clicks(step), fetch_list=[loss, names[0]])
            losses.append(value)
            seen += [
                first,
                *(np.array(fluid.global_scope().find_var(n).get_tensor()) for n in names),
            ]
        communicator.stop()
        return losses, seen, parameters(program)


@functools.cache
def without_overlap(sparse, mode):
    return trained(sparse, 0, mode)


@pytest.mark.parametrize(
    ("mode", "sparse", "patience"),
    [
        pytest.param(HALF_ASYNC, False, 0.0, marks=pytest.mark.nightly),
        (HALF_ASYNC, True, 0.0),
        pytest.param(HALF_ASYNC, True, 5.0, marks=pytest.mark.nightly),
        (SYNC, True, 0.0),
        (SYNC, True, 5.0),
    ],
)
def test_steps_are_the_same_with_overlap_and_without(mode, sparse, patience, monkeypatch):
    """Also where the next step comes too late to ask for its rows in the same call."""
    monkeypatch.setattr(pending_exchange, "PATIENCE_S", patience)
    with_overlap, without = trained(sparse, 1, mode), without_overlap(sparse, mode)
    for mine, other in zip(with_overlap[:2], without[:2], strict=True):
        for one, two in zip(mine, other, strict=True):
            np.testing.assert_array_equal(one, two)
    for name, value in without[2].items():
        np.testing.assert_array_equal(with_overlap[2][name], value)


@pytest.mark.parametrize("mode", [SYNC, HALF_ASYNC])
def test_a_step_sends_gradients_and_asks_for_its_rows_in_one_call(mode, monkeypatch):
    calls = []

    def noting(name):
        of = getattr(Client, name)

        def noted(self, *args, **kwargs):
            calls.append((name, threading.current_thread() is threading.main_thread()))
            return of(self, *args, **kwargs)

        return noted

    for name in ("pull", "exchange"):
        monkeypatch.setattr(Client, name, noting(name))
    monkeypatch.setattr(pending_exchange, "PATIENCE_S", 20.0)
    with trainer_of(functools.partial(MODEL, True), sync=mode == SYNC) as (
        executor,
        program,
        (loss, *_),
    ):
        communicator = Communicator(program, mode)
        communicator.start()
        calls.clear()
        for step in range(3):
            executor.run(program, feed=clicks(step), fetch_list=[loss])
        assert calls == [("pull", True), ("exchange", True), ("exchange", True)]
        communicator.stop()  # does not wait for a step that never comes
        assert [name for name, _ in calls[3:]] == ["exchange"]


def test_a_step_is_made_ready_while_servers_are_asked(monkeypatch):
    """Its numbers are those of a step that is made ready when they have answered."""
    made, finish, begin = [], EarlyStep.finish, EarlyStep.begin

    def noted(self, *given):
        made.append(finish(self, *given))
        return made[-1]

    monkeypatch.setattr(EarlyStep, "finish", noted)
    early = trained(True, 1, SYNC)
    assert made[0] is None and len(made) == 1 + STEPS and all(made[1:])  # first: startup program
    made.clear()
    monkeypatch.setattr(EarlyStep, "begin", lambda self, wanted: None)
    late = trained(True, 1, SYNC)
    assert made == [None] * (1 + STEPS)
    monkeypatch.setattr(EarlyStep, "begin", begin)
    for mine, other in zip(early[0] + early[1], late[0] + late[1], strict=True):
        np.testing.assert_array_equal(mine, other)
    for name, value in late[2].items():
        np.testing.assert_array_equal(early[2][name], value)


def test_a_step_is_let_go_without_the_collector(monkeypatch):
    """Its batch, rows and parameters would otherwise stay until a collection."""
    steps, begin = [], EarlyStep.begin

    def noted(self, wanted):
        steps.append(weakref.ref(self))
        begin(self, wanted)

    monkeypatch.setattr(EarlyStep, "begin", noted)
    with trainer_of(functools.partial(MODEL, True), sync=True) as (executor, program, (loss, *_)):
        communicator = Communicator(program, SYNC)
        communicator.start()
        executor.run(program, feed=clicks(0), fetch_list=[loss])
        gc.disable()
        try:
            for step in range(1, 4):
                executor.run(program, feed=clicks(step), fetch_list=[loss])
            assert len(steps) == 4
            deadline = time.monotonic() + 120  # the thread of an exchange may still be at its end
            while any(step() for step in steps[:3]):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            gc.enable()
        communicator.stop()


def test_a_bad_feed_costs_the_step_before_nothing():
    """It is found while the gradients of the step before are on their way."""

    def states(bad):
        with trainer_of(functools.partial(MODEL, True), sync=False) as (exe, program, (loss, *_)):
            communicator = Communicator(program, HALF_ASYNC)
            communicator.start()
            exe.run(program, feed=clicks(0), fetch_list=[loss])
            if bad:
                feed = clicks(1)
                feed["dense"] = feed["dense"].astype("float64")
                with pytest.raises(errors.FeedError, match="dense: expected dtype float32"):
                    exe.run(program, feed=feed, fetch_list=[loss])
            exe.run(program, feed=clicks(1), fetch_list=[loss])
            communicator.stop()
            return parameters(program)

    found = states(True)
    for name, value in states(False).items():
        np.testing.assert_array_equal(found[name], value)


def test_a_failed_exchange_is_told_by_the_next_step(monkeypatch):
    def refuse(self, *args, **kwargs):
        raise errors.ServerError("the disk is full")

    with trainer_of(functools.partial(MODEL, True), sync=False) as (executor, program, (loss, *_)):
        communicator = Communicator(program, HALF_ASYNC)
        communicator.start()
        with monkeypatch.context() as broken:
            broken.setattr(Client, "exchange", refuse)
            executor.run(program, feed=clicks(0), fetch_list=[loss])
            with pytest.raises(errors.ServerError, match="the disk is full"):
                executor.run(program, feed=clicks(1), fetch_list=[loss])
        assert np.isfinite(executor.run(program, feed=clicks(1), fetch_list=[loss])[0]).all()
        assert connections.connect(read(program)).client.status()[0].trainers == [0]
        communicator.stop()
