"""Tables of any 64-bit ids, by Fluid's layers for PSLib and BoxPS: a job equals one process that has
a table of the few ids there are.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.layers import nn
from tests.distributed.job import Job, alone

SIGNS = np.array([-(2**63), -7, 0, 1, 2**40 + 3, 2**63 - 1])  # their places are ids of `alone`


def net(kind, pulled):
    """What builds a net over two tensors of ids, which share a table."""

    def look_up(ids):
        if not pulled:
            return [
                layers.embedding(
                    one,
                    [len(SIGNS), 3],
                    True,
                    padding_idx=2 if kind != "box" else None,
                    param_attr=fluid.ParamAttr(name="few", initializer=fluid.initializer.Constant(0.0)),
                )
                for one in ids
            ]
        if kind == "box":
            return nn._pull_box_sparse(ids, 3)
        if kind == "v2":
            flat = [layers.reshape(one, [-1]) for one in ids]
            return nn._pull_sparse_v2(flat, 3, 1, "DownpourCtrAccessor")
        return [nn._pull_sparse(one, 3, 1, "DownpourCtrAccessor") for one in ids]

    def build():
        ids = [fluid.data(name, [None, 1], dtype="int64") for name in ("user", "item")]
        constant = fluid.initializer.Constant
        both = layers.concat(look_up(ids), axis=1)
        predicted = layers.fc(both, 1, param_attr=fluid.ParamAttr(name="w", initializer=constant(0.5)))
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return (loss,)

    return build


def feeds(pulled):
    rng = np.random.RandomState(2)
    for _ in range(4):
        places = {name: rng.randint(0, len(SIGNS), (8, 1)) for name in ("user", "item")}
        chosen = {n: SIGNS[at] if pulled else at for n, at in places.items()}
        yield chosen | {"y": rng.randn(8, 1).astype("float32")}


@pytest.mark.parametrize("kind", ["sparse", "v2", "box"])
def test_a_job_equals_one_process_with_few_ids(kind):
    with Job(net(kind, True), servers=2) as job:
        job.begin()
        losses = job.steps(feeds(True))
        (table,) = [name for name in job.parameters() if name.startswith("table_")]
    want, parameters = alone(net(kind, False), feeds(False))
    np.testing.assert_allclose(losses, want, atol=1e-3)  # rows begin at random, near zero
    assert abs(parameters["few"]).max() > 0.02 and table == {"box": "table_box"}.get(kind, "table_1")


def test_what_tables_do_not_have():
    ids = fluid.data("ids", [None, 1], dtype="int64")
    with pytest.raises(errors.UnsupportedError, match="ctr_label_name: tables here keep no counts"):
        nn._pull_sparse(ids, 3, 0, "DownpourCtrAccessor", ctr_label_name="click")
    with pytest.raises(ValueError, match="dtype: expected 'float32', found 'float64'"):
        nn._pull_box_sparse(ids, 3, "float64")
    block = fluid.default_main_program().global_block()
    block.append_op("pull_box_sparse", {"Ids": [ids]}, {"Out": ["rows"]}, {"size": 3})
    with pytest.raises(errors.UnsupportedError, match="pull_box_sparse: their servers were never"):
        fluid.Executor().run(feed={"ids": np.zeros((1, 1), "int64")}, fetch_list=["rows"])
