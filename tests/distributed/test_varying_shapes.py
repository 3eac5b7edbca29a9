"""Trainers with parameter servers pad batches that change shape; servers get the rows and gradients of true sizes."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from tests.distributed.job import Job, numbers
from tests.dynamic_shapes.test_placements import MOST, compilations

SIZES = [(3 + (5 * step) % 7, 4 + (11 * step) % 29) for step in range(16)]
TABLE, WIDTH = 200, 4


def network(kind):
    """What builds a loss over ids [N, length]; the rows are in a table of servers."""

    def build():
        ids = fluid.data("ids", [None, None], dtype="int64")
        first = fluid.initializer.Constant(0.1) if kind == "distributed" else numbers(TABLE, WIDTH)
        table = fluid.ParamAttr("table", initializer=first)
        rows = fluid.embedding(
            ids, [TABLE, WIDTH], is_sparse=True, is_distributed=kind == "distributed", param_attr=table
        )
        hidden = layers.fc(
            layers.reduce_mean(rows, dim=1),
            5,
            act="tanh",
            param_attr=fluid.ParamAttr("w", initializer=numbers(WIDTH, 5)),
        )
        predicted = layers.fc(hidden, 1, param_attr=fluid.ParamAttr("v", initializer=numbers(5, 1)))
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        fluid.optimizer.SGD(0.5).minimize(loss)
        return loss, predicted

    return build


def feeds():
    random = np.random.RandomState(0)
    for count, length in SIZES:
        ids = random.randint(1, TABLE, (count, length))
        yield {"ids": ids, "y": (ids.mean(1, keepdims=True) / TABLE).astype("float32")}


def trained(kind, padded, sync):
    """Losses, predictions and parameters of a trainer, and the number of compilations."""
    before = fluid.get_flags(["FLAGS_dynamic_shapes", "FLAGS_interpret_first_steps"])
    fluid.set_flags({"FLAGS_dynamic_shapes": padded, "FLAGS_interpret_first_steps": False})
    try:
        with Job(network(kind), 2, sync=sync) as job:
            job.begin()
            (trainer,) = job.trainers
            with compilations() as compiled:
                found = [trainer.run(feed, list(trainer.built)) for feed in feeds()]
            return found, job.parameters(), len(compiled)
    finally:
        fluid.set_flags(before)


@pytest.mark.parametrize("kind", ["sparse", "distributed"])
def test_asynchronous_trainers_pad(kind):
    expected, state, before = trained(kind, False, sync=False)
    found, padded_state, compiled = trained(kind, True, sync=False)
    assert compiled <= MOST < before
    for values, others in zip(found, expected, strict=True):
        for value, other in zip(values, others, strict=True):
            np.testing.assert_allclose(value, other, 1e-4, 1e-6)
    for name, value in state.items():
        np.testing.assert_allclose(padded_state[name], value, 1e-4, 1e-6, err_msg=name)
    untouched = np.setdiff1d(np.arange(TABLE), np.concatenate([feed["ids"].reshape(-1) for feed in feeds()]))
    if kind == "sparse":
        np.testing.assert_array_equal(padded_state["table"][untouched], numbers(TABLE, WIDTH)._value[untouched])


def test_synchronous_trainers_keep_exact_shapes_and_say_so():
    with pytest.warns(RuntimeWarning, match="synchronous jobs with servers keep exact shapes"):
        trained("sparse", True, sync=True)
