"""Half-asynchronous steps: what is exchanged after a step goes on while the next one begins."""
import functools
import threading
from concurrent.futures import Future

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.distributed import links
from jfluid.distributed.coming import Coming, Exchange
from jfluid.distributed.communicator import Communicator
from jfluid.distributed.work import Dense, Piece, read
from jfluid.lod_tensor import LoDTensor
from jfluid.ps_server.client import Client
from tests.distributed.job import click_model, clicks, parameters, trainer_of

MODEL = functools.partial(click_model, functools.partial(fluid.optimizer.Adam, 0.02))
HALF_ASYNC, STEPS = 2, 4
W = Dense("w", (Piece("w.block0", 0, (2, 3)), Piece("w.block1", 1, (1, 3))))


class Received:
    """Work of which `Exchange` wants to know only this."""

    def __init__(self, *received):
        self.received = list(received)


@pytest.fixture
def under_way():
    """(scope, the tensor, its exchange, the future of what comes)."""
    scope, future = fluid.Scope(), Future()
    scope.var("w").get_tensor().set(np.zeros((3, 3), np.float32))
    exchange = Exchange(lambda send: future, dict, Received(W), scope)
    return scope, scope.find_var("w").get_tensor(), exchange, future


def pieces(value):
    return W.cut(np.full((3, 3), value, np.float32))


def test_who_reads_a_parameter_waits_for_it(under_way):
    scope, tensor, _, future = under_way
    assert type(tensor) is Coming
    read = []
    reader = threading.Thread(target=lambda: read.append(np.array(scope.find_var("w").get_tensor())))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()
    future.set_result(pieces(7))
    reader.join(10)
    assert (read[0] == 7).all() and type(tensor) is LoDTensor and "exchange" not in vars(tensor)


def test_what_is_set_meanwhile_stays(under_way):
    _, tensor, exchange, future = under_way
    tensor.set(np.ones((3, 3), np.float32))
    assert type(tensor) is LoDTensor and (np.array(tensor) == 1).all()
    future.set_result(pieces(7))
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
    future.set_result({"w.block0": pieces(7)["w.block0"]})
    assert (np.array(tensor) == 0).all()


def trained(sparse, depth):
    """Losses, the parameters that a user reads after each step, and the state in the end."""
    with trainer_of(functools.partial(MODEL, sparse), sync=False) as (executor, program, (loss, *_)):
        communicator = Communicator(program, HALF_ASYNC, envs={"communicator_prefetch_depth": depth})
        communicator.start()
        losses, seen = [], []
        names = [d.param for d in read(program).received]
        for step in range(STEPS):
            value, first = executor.run(program, feed=clicks(step), fetch_list=[loss, names[0]])
            losses.append(value)
            seen += [first, *(np.array(fluid.global_scope().find_var(n).get_tensor()) for n in names)]
        communicator.stop()
        return losses, seen, parameters(program)


def test_steps_of_whole_parameters_are_the_same_with_overlap_and_without():
    with_overlap, without = trained(False, 1), trained(False, 0)
    for mine, other in zip(with_overlap[:2], without[:2], strict=True):
        for one, two in zip(mine, other, strict=True):
            np.testing.assert_array_equal(one, two)
    for name, value in without[2].items():
        np.testing.assert_array_equal(with_overlap[2][name], value)


def test_rows_are_asked_for_while_the_exchange_is_under_way(monkeypatch):
    begun, may_end, order = threading.Event(), threading.Event(), []
    exchange, pull = Client.exchange, Client.pull

    def slow(self, *args, **kwargs):
        begun.set()
        assert may_end.wait(20)
        found = exchange(self, *args, **kwargs)
        order.append("exchange")
        return found

    def noted(self, *args, **kwargs):
        found = pull(self, *args, **kwargs)
        order.append("pull")
        if begun.is_set():
            may_end.set()
        return found
    with trainer_of(functools.partial(MODEL, True), sync=False) as (executor, program, (loss, *_)):
        communicator = Communicator(program, HALF_ASYNC)
        communicator.start()
        monkeypatch.setattr(Client, "exchange", slow)
        monkeypatch.setattr(Client, "pull", noted)
        for step in range(2):
            executor.run(program, feed=clicks(step), fetch_list=[loss])
        assert order[:3] == ["pull", "pull", "exchange"]
        communicator.stop()
        assert order == ["pull", "pull", "exchange", "exchange"]


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
        assert links.link(read(program)).client.status()[0].trainers == [0]
        communicator.stop()
