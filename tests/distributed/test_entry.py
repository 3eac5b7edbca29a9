"""Entry rules: which ids of a distributed table get a row on the servers."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ps_server.specs import CountEntry, ProbabilityEntry
from tests.distributed.job import transpile
from tests.distributed.test_tables import HEIGHT, assert_same, in_job, net

RATE = 0.1


def sgd():
    return fluid.optimizer.SGD(RATE)


def feed(ids, y):
    return {
        "ids": np.array(ids, np.int64).reshape(-1, 1),
        "y": np.array(y, np.float32).reshape(-1, 1),
    }


def test_rows_are_there_when_they_were_shown_often_enough():
    batches = [feed([1, 1, 2], [3, 0, 0]), feed([1], [5])]
    losses, found = in_job(net(sgd, distributed=True, entry=CountEntry(count=3)), batches)
    bias = RATE * 2 * 3 / 3
    predicted = 4 * 0.3 * 0.5 + bias  # the row of 1 is created when it is shown for the third time
    np.testing.assert_allclose(losses, [9 / 3, (predicted - 5) ** 2], rtol=1e-5)
    expected = np.zeros((HEIGHT, 4), np.float32)
    expected[1] = 0.3 - RATE * 2 * (predicted - 5) * 0.5
    np.testing.assert_allclose(found["table"], expected, rtol=1e-5)


def test_a_certain_entry_is_none():
    batches = [feed([1, 5], [3, 1]), feed([5, 2], [5, 0])]
    losses, found = in_job(net(sgd, distributed=True, entry=ProbabilityEntry(probability=1.0)), batches)
    expected_losses, expected = in_job(net(sgd, distributed=True), batches)
    for values in (found, expected):
        values["table"] = values["table"][[1, 5, 2]]  # those that were shown
    assert_same((losses, found), (expected_losses, expected))


def test_a_table_whose_rows_are_all_there_has_no_entry():
    with pytest.raises(
        errors.UnsupportedError,
        match="parameter table: entry: .*build the embedding with is_distributed",
    ):
        transpile(net(sgd, entry=CountEntry(count=3)), ["127.0.0.1:1", "127.0.0.1:2"], smallest=2)


def test_an_entry_is_a_rule():
    with pytest.raises(TypeError, match="entry: expected a CountEntry or ProbabilityEntry of .*, found int"):
        fluid.ParamAttr(entry=3)
