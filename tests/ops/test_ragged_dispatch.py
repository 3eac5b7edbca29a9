"""Operators that sum over rows, in buckets of different sizes: the same values and gradients."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.runtime import padding

RNG = np.random.RandomState(0)
ROWS = RNG.uniform(0.5, 2.0, (7, 4)).astype("float32")
LENGTHS = [[3, 0, 4]]


def reduced(name, **options):
    return lambda x: getattr(layers, name)(x, **options)


CASES = {
    "mean": layers.mean,
    "reduce_sum": reduced("reduce_sum"),
    "reduce_sum_rows": reduced("reduce_sum", dim=0),
    "reduce_mean_rows": reduced("reduce_mean", dim=[0]),
    "reduce_max_rows": reduced("reduce_max", dim=0),
    "reduce_min": reduced("reduce_min"),
    "reduce_prod_rows": reduced("reduce_prod", dim=0),
    "reduce_mean_columns": reduced("reduce_mean", dim=1),
    "softmax": layers.softmax,
    "batch_norm": layers.batch_norm,
    "layer_norm": layers.layer_norm,
    "l2_normalize": reduced("l2_normalize", axis=1),
    "cumsum": reduced("cumsum", axis=1),
    "reshape": reduced("reshape", shape=[-1, 2, 2]),
    "transpose": lambda x: layers.transpose(layers.reshape(x, [0, 2, 2]), [0, 2, 1]),
    "concat": lambda x: layers.concat([x, layers.square(x)], axis=1),
    "split": lambda x: layers.split(x, 2, dim=1)[1],
    "slice": reduced("slice", axes=[1], starts=[1], ends=[3]),
    "expand": reduced("expand", expand_times=[1, 3]),
    "stack": lambda x: layers.stack([x, x], axis=1),
    "unsqueeze": reduced("unsqueeze", axes=[1]),
    "matmul": lambda x: layers.matmul(x, layers.assign(ROWS[:4])),
    "prelu": reduced("prelu", mode="channel"),
    "log_of_padding": lambda x: layers.log(x),
}


@pytest.mark.parametrize("name", CASES)
def test_padding_changes_nothing(name, monkeypatch, request):
    if name != "batch_norm":  # its gradient cancels, and NumPy adds in another order for another size
        request.getfixturevalue("interpreted_steps")
    rounded, found = padding.ladder, []
    feed = {"x": fluid.create_lod_tensor(ROWS, LENGTHS, None)}
    for room in (0, 9):
        monkeypatch.setattr(padding, "ladder", lambda n, rungs=4, room=room: rounded(n, rungs) + room)
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 1
        with (
            fluid.program_guard(main, startup),
            fluid.unique_name.guard(),
            fluid.scope_guard(fluid.Scope()),
        ):
            x = layers.data("x", [4], lod_level=1)
            x.stop_gradient = False
            out = CASES[name](x)
            (grad,) = fluid.gradients(layers.reduce_sum(layers.square(out)), [x])
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            found.append([np.array(v) for v in exe.run(main, feed=feed, fetch_list=[out, grad], return_numpy=False)])
    for small, large in zip(*found):
        assert np.isfinite(small).all()
        np.testing.assert_allclose(large, small, rtol=1e-5, atol=1e-6)
    assert len(found[0][1]) == len(ROWS)


def test_metrics_do_not_count_padding():
    x, label = (
        layers.data("x", [4], lod_level=1),
        layers.data("label", [1], dtype="int64", lod_level=1),
    )
    scores = layers.softmax(x)
    accuracy = layers.accuracy(scores, label)
    area, *_ = layers.auc(layers.slice(scores, [1], [0], [2]), label, num_thresholds=15)
    labels = RNG.randint(0, 2, (7, 1))
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {
        "x": fluid.create_lod_tensor(ROWS, LENGTHS, None),
        "label": fluid.create_lod_tensor(labels, LENGTHS, None),
    }
    found, area = exe.run(feed=feed, fetch_list=[accuracy, area])
    assert found == pytest.approx((ROWS.argmax(1) == labels[:, 0]).mean())
    assert 0 <= area.item() <= 1
