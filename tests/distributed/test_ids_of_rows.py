"""Ids that a program computes from rows of tables: servers are asked several times in a step."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.distributed.programs.trainer_program import read
from tests.distributed.job import Job, alone, numbers

USERS, GROUPS = 20, 4
WEIGHTS = np.array([0.0, 0.002, 0.001, -0.002], "float32")


def net(servers):
    """What builds a regression on the row of a user, that of the group which the user's row names,
    and that of the user whom the group's row names.
    """

    def look_up(ids, table, height):
        return fluid.embedding(
            ids,
            [height, GROUPS],
            is_sparse=True,
            is_distributed=servers,
            param_attr=fluid.ParamAttr(table, initializer=fluid.initializer.Constant(0.1)),
        )

    def build():
        users = fluid.data("users", [None], dtype="int64")
        own = look_up(users, "users_table", USERS)
        scores = layers.elementwise_add(own, layers.assign(WEIGHTS))
        group = layers.argmax(scores, axis=1)
        shared = look_up(group, "groups_table", GROUPS)
        friend = layers.argmax(layers.elementwise_mul(shared, scores), axis=1)
        x = layers.concat([own, shared, look_up(friend, "users_table", USERS)], axis=1)
        weight = fluid.ParamAttr("w", initializer=numbers(3 * GROUPS, 1))
        predicted = layers.fc(x, 1, param_attr=weight, bias_attr="b")
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        fluid.optimizer.SGD(0.5).minimize(loss)
        return loss, group, friend

    return build


def feeds():
    random = np.random.RandomState(4)
    for _ in range(6):
        users = random.randint(0, USERS, 8)
        yield {"users": users, "y": np.sin(users)[:, None].astype("float32")}


@pytest.mark.parametrize("sync", [True, False])
def test_a_job_equals_one_process(sync):
    want, parameters = alone(net(False), feeds())
    with Job(net(True), servers=2, sync=sync) as job:
        job.begin()
        (trainer,) = job.trainers
        assert len(read(trainer.main).look_ups) == 2
        losses = job.steps(feeds())
        found = job.parameters()
        groups = [
            trainer.executor.run(
                trainer.main.clone(for_test=True),
                feed=feed,
                fetch_list=[built.name for built in trainer.built[1:]],
                scope=trainer.scope,
            )
            for feed in feeds()
        ]
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    for name, value in parameters.items():
        if name in found:
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
    chosen = [np.unique(np.concatenate([g[i] for g in groups])) for i in (0, 1)]
    assert all(len(ids) > 1 for ids in chosen)  # training makes rows name different ids
