"""Mixed precision: where casts stand, training in 16 bits, loss scaling."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.contrib.mixed_precision import AutoMixedPrecisionLists, decorate


def _net():
    image = fluid.data("image", [None, 1, 8, 8])
    label = fluid.data("label", [None, 1], dtype="int64")
    out = fluid.layers.batch_norm(fluid.layers.conv2d(image, 4, 3, act="relu"))
    logits = fluid.layers.fc(fluid.layers.pool2d(out, 2), 3)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, label))


def _feed(scale=1.0):
    r = np.random.RandomState(0)
    return {
        "image": (r.randn(16, 1, 8, 8) * scale).astype("float32"),
        "label": r.randint(0, 3, (16, 1)),
    }


def _losses(optimizer, steps=20):
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        fluid.default_startup_program().random_seed = 1
        loss = _net()
        optimizer().minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        return [float(exe.run(feed=_feed(), fetch_list=[loss])[0][0]) for _ in range(steps)]


def test_casts_stand_where_fluid_puts_them():
    loss = _net()
    decorate(fluid.optimizer.Momentum(0.1, 0.9), dtype="float16").minimize(loss)
    ops = fluid.default_main_program().global_block().ops
    forward = [
        (op.type, op.output_arg_names[0] if op.type == "cast" else "") for op in ops if op.attr("op_role") in (0, 256)
    ]
    assert forward[:15] == [
        ("cast", "image.cast_fp16"),
        ("cast", "conv2d_0.w_0.cast_fp16"),
        ("conv2d", ""),
        ("cast", "conv2d_0.b_0.cast_fp16"),
        ("elementwise_add", ""),
        ("relu", ""),
        ("batch_norm", ""),
        ("pool2d", ""),
        ("cast", "fc_0.w_0.cast_fp16"),
        ("mul", ""),
        ("cast", "fc_0.b_0.cast_fp16"),
        ("elementwise_add", ""),
        ("cast", "fc_0.tmp_1.cast_fp32"),
        ("softmax_with_cross_entropy", ""),
        ("mean", ""),
    ]
    names = {v.name for v in fluid.default_main_program().list_vars() if v.persistable}
    assert {"loss_scaling_0", "num_good_steps_0", "num_bad_steps_0"} <= names
    block = fluid.default_main_program().global_block()
    assert block.var("fc_0.tmp_1").np_dtype == np.float16 and block.var("batch_norm_0.tmp_0").np_dtype == np.float32
    assert all(p.np_dtype == np.float32 for p in block.all_parameters())
    assert all(block.var(op.input("Grad")[0]).np_dtype == np.float32 for op in ops if op.type == "momentum")


@pytest.fixture(scope="module")
def full():
    """Losses in float32."""
    return _losses(lambda: fluid.optimizer.Adam(0.01))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_training_follows_float32(dtype, full):
    low = _losses(lambda: decorate(fluid.optimizer.Adam(0.01), dtype=dtype))
    np.testing.assert_allclose(low, full, rtol=0.1, atol=0.03)
    assert low != full and low[-1] < 0.5 * low[0]


def _train(exe, scale, names):
    exe.run(feed=_feed(scale))
    return [np.array(fluid.global_scope().find_var(n).get_tensor()) for n in names]


@pytest.mark.usefixtures("interpreted_steps")
def test_dynamic_scaling_shrinks_and_grows_and_bad_steps_change_nothing():
    loss = _net()
    optimizer = decorate(
        fluid.optimizer.SGD(0.1),
        init_loss_scaling=16.0,
        incr_every_n_steps=2,
        decr_every_n_nan_or_inf=1,
        decr_ratio=0.5,
    )
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    names = [optimizer.get_loss_scaling().name, "num_good_steps_0", "num_bad_steps_0", "fc_0.w_0"]
    start = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    seen = [_train(exe, np.inf, names) for _ in range(2)]
    assert [(s[0].item(), s[1].item(), s[2].item()) for s in seen] == [(16, 0, 1), (8, 0, 0)]
    assert all(np.array_equal(s[3], start) for s in seen)
    for name in ("batch_norm_0.w_1", "batch_norm_0.w_2"):
        fluid.global_scope().find_var(name).get_tensor().set(np.ones(4, "float32"))
    seen = [_train(exe, 1.0, names) for _ in range(3)]
    assert [(s[0].item(), s[1].item(), s[2].item()) for s in seen] == [
        (8, 1, 0),
        (8, 2, 0),
        (16, 0, 0),
    ]
    assert not np.array_equal(seen[0][3], start)


@pytest.mark.usefixtures("interpreted_steps")
def test_static_scaling_gives_the_same_step():
    def run(scale):
        return _losses(
            lambda: decorate(fluid.optimizer.SGD(0.1), init_loss_scaling=scale, use_dynamic_loss_scaling=False),
            5,
        )

    one, many = run(1.0), run(1024.0)
    np.testing.assert_allclose(one, many, rtol=2e-2)


def test_lists():
    lists = AutoMixedPrecisionLists(
        custom_white_list={"softmax"}, custom_black_list={"conv2d"}, custom_black_varnames={"x"}
    )
    assert "softmax" in lists.white_list and "softmax" not in lists.black_list
    assert "conv2d" in lists.black_list and "conv2d" not in lists.white_list
    loss = _net()
    decorate(fluid.optimizer.SGD(0.1), AutoMixedPrecisionLists(custom_black_varnames={"conv2d_0.w_0"})).minimize(loss)
    conv = next(op for op in fluid.default_main_program().global_block().ops if op.type == "conv2d")
    assert conv.input("Filter") == ["conv2d_0.w_0"]


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda: AutoMixedPrecisionLists({"mean"}, {"mean"}),
            "mean on both custom_white_list and custom_black_list",
        ),
        (
            lambda: decorate(None, dtype="float8"),
            'dtype \'float8\', expected "bfloat16" or "float16"',
        ),
        (lambda: decorate(None, incr_ratio=0.5), "incr_ratio above 1"),
        (lambda: decorate(None, incr_every_n_steps=0), "must be at least 1"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(errors.ProgramError, match=text):
        make()


@pytest.mark.usefixtures("interpreted_steps")
def test_sparse_gradients_are_scaled_back_too():
    words, label = (
        layers.data("words", [1], dtype="int64"),
        layers.data("label", [1], dtype="int64"),
    )
    scores = layers.fc(layers.embedding(words, [20, 8], is_sparse=True, param_attr="table"), 2, act="softmax")
    loss = layers.mean(layers.cross_entropy(scores, label))
    fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.5)).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"words": np.array([[1], [7], [1], [4]]), "label": np.array([[0], [1], [0], [1]])}
    before = np.array(fluid.global_scope().find_var("table").get_tensor())
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(20)]
    after = np.array(fluid.global_scope().find_var("table").get_tensor())
    assert losses[-1] < 0.7 * losses[0]
    assert sorted(np.flatnonzero((before != after).any(1))) == [1, 4, 7]
