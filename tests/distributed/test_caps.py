"""Bounds on the rows of a program's tables: of ParamAttr, and of the servers' environment."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ps_server.errors import TooLargeError
from tests.distributed.job import Job, transpile
from tests.distributed.test_tables import HEIGHT, net


def sgd():
    return fluid.optimizer.SGD(0.1)


def feed(*ids):
    return {"ids": np.array(ids, np.int64).reshape(-1, 1), "y": np.ones((len(ids), 1), np.float32)}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("where", ["program", "server"])
def test_a_step_that_needs_too_many_rows_is_refused_and_the_next_trains(where, sync, monkeypatch):
    if where == "server":
        monkeypatch.setenv("JFLUID_PS_MAX_ROWS", "3")
    named = {
        "program": "table table: no room for 1 new rows .*max_rows is 3, 3 are taken",
        "server": "this server: no room for 1 new rows .*max_rows is 3, 3 are taken",
    }[where]
    bounds = {"max_rows": 3} if where == "program" else {}
    with Job(net(sgd, distributed=True, **bounds), sync=sync) as job:
        job.begin()
        (trainer,) = job.trainers
        (first,) = trainer.run(feed(1, 2, 3))
        with pytest.raises(TooLargeError, match=named):
            trainer.run(feed(1, 4))
        (second,) = trainer.run(feed(3, 2, 1))
        assert second < first
        found = job.parameters()["table"]
    assert (found[1:4] != 0.3).all() and (found[4:] == np.float32(0.3)).all() and len(found) == HEIGHT


def test_bounds_in_bytes_reach_the_tables_of_all_servers():
    with Job(net(sgd, distributed=True, max_bytes=4 * (24 + 16)), servers=2) as job:
        job.begin()
        (trainer,) = job.trainers
        with pytest.raises(TooLargeError, match="table table: .*max_bytes is 160"):
            trainer.run(feed(*range(HEIGHT)))
        trainer.run(feed(1, 2))


def test_a_table_whose_rows_are_all_there_has_no_bounds():
    with pytest.raises(
        errors.UnsupportedError,
        match="parameter table: max_rows: .*build the embedding with is_distributed",
    ):
        transpile(net(sgd, max_rows=3), ["127.0.0.1:1"], smallest=2)


@pytest.mark.parametrize("bad", [0, -3, True, 2.5, "all"])
def test_a_bound_is_a_positive_number(bad):
    with pytest.raises(TypeError, match="ParamAttr: max_bytes: expected a positive whole number or None"):
        fluid.ParamAttr(max_bytes=bad)


def test_a_wrong_bound_in_the_environment_is_named(monkeypatch):
    from jfluid.distributed.wire.settings import server_settings

    monkeypatch.setenv("JFLUID_PS_MAX_BYTES", "many")
    with pytest.raises(errors.ServerError, match="JFLUID_PS_MAX_BYTES: expected an integer from 1 on, found 'many'"):
        server_settings(0, 0, token="x" * 16)
    monkeypatch.setenv("JFLUID_PS_MAX_BYTES", "0")
    with pytest.raises(errors.ServerError, match="JFLUID_PS_MAX_BYTES: expected an integer from 1 on, found '0'"):
        server_settings(0, 0, token="x" * 16)
