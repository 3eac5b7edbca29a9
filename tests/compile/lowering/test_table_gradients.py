"""The gradient of a table that only gradient descent reads is never made as a whole table."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.lowering import table_gradients
from jfluid.compile.lowering.plan import live_ops
from jfluid.ops import embedding

pytestmark = pytest.mark.usefixtures("interpreted_steps")


def _net(padding=None, optimizer=None, dims=1, **settings):
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.data("ids", [None] + [3] * dims, "int64")
        rows = fluid.embedding(ids, [50, 6], padding_idx=padding, param_attr=fluid.ParamAttr("w", **settings))
        loss = layers.mean(layers.square(layers.fc(rows, 2, num_flatten_dims=2)))
        (optimizer or fluid.optimizer.SGD(0.3)).minimize(loss)
    return main, startup, loss


def _trained(main, startup, loss, fetch=()):
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    for seed in range(3):
        ids = np.random.RandomState(seed).randint(0, 9, (5, 3))  # rows occur several times
        found = exe.run(main, feed={"ids": ids}, fetch_list=[loss, *fetch], scope=scope)
    return [np.array(scope.find_var("w").get_tensor()), *found]


@pytest.mark.parametrize("padding", [None, 4])
def test_a_table_is_trained_by_its_rows_alike(padding, monkeypatch):
    net = _net(padding)
    whole = _trained(*net)
    monkeypatch.setattr(table_gradients, "pays", lambda *values: True)
    given, rows = [], embedding.gradient_rows

    def noted(*arguments):
        given.append(rows(*arguments))
        return given[-1]

    monkeypatch.setattr(embedding, "gradient_rows", noted)
    monkeypatch.setattr(embedding, "_table_grad", None)  # nobody makes the whole one
    for found, expected in zip(_trained(*net), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    assert given


@pytest.mark.parametrize(
    ("net", "wanted", "count"),
    [
        ({}, (), 1),
        ({}, ("w@GRAD",), 0),
        ({"optimizer": fluid.optimizer.Momentum(0.1, 0.9)}, (), 0),
        ({"regularizer": fluid.regularizer.L2Decay(0.1)}, (), 0),
    ],
    ids=["alone", "fetched", "momentum", "decay"],
)
def test_which_gradients_only_an_update_reads(net, wanted, count):
    main, _, _ = _net(**net)
    assert len(table_gradients.only_updated(live_ops(main.global_block()), wanted)) == count


def test_a_clipped_gradient_is_whole():
    clip = fluid.clip.GradientClipByGlobalNorm(1.0)
    main, _, _ = _net(optimizer=fluid.optimizer.SGD(0.1, grad_clip=clip))
    assert not table_gradients.only_updated(live_ops(main.global_block()), ())


def test_rows_pay_where_a_step_looks_up_little_of_a_large_table():
    def pays(height, width, ids):
        shapes = [(height, width), (ids, 1), (ids, width)]
        return table_gradients.pays(*(np.broadcast_to(np.float32(0), shape) for shape in shapes))

    assert pays(50_000, 128, 8192) and not pays(50_000, 128, 50_000)
    assert pays(1 << 22, 1, 1024) and not pays(1 << 22, 1, 65_536)  # many ids are sorted slowly
    assert not pays(1000, 128, 1)  # a small table
