"""Programs as JAX functions and as Flax modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors


@pytest.fixture
def net():
    """(x, label, probability, loss, gradients) of a trained-form net with ids, batch_norm and
    dropout off.
    """
    x = fluid.data("x", [None, 4])
    ids = fluid.data("ids", [None, 1], dtype="int64")
    label = fluid.data("label", [None, 1], dtype="int64")
    hidden = fluid.layers.concat([fluid.layers.fc(x, 6, act="tanh"), fluid.layers.embedding(ids, [10, 3])], axis=1)
    hidden = fluid.layers.batch_norm(hidden)
    probability = fluid.layers.fc(hidden, 3, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(probability, label))
    grads = fluid.append_backward(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe, probability, loss, grads


FEED = {
    "x": np.random.RandomState(0).randn(5, 4).astype("float32"),
    "ids": np.array([[1], [2], [2], [7], [9]]),
    "label": np.array([[0], [1], [2], [1], [0]]),
}


def test_values_gradients_and_state_are_the_executors(net):
    exe, probability, loss, grads = net
    program = fluid.default_main_program()
    apply, params = fluid.to_jax(program, ["x", "ids", "label"], [loss, probability])
    want = exe.run(feed=FEED, fetch_list=[loss, probability] + [g for _, g in grads])
    got, state = jax.jit(lambda p, *f: apply(p, *f, with_state=True))(params, *FEED.values())
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    moving = np.array(fluid.global_scope().find_var("batch_norm_0.w_1").get_tensor())
    np.testing.assert_allclose(state["batch_norm_0.w_1"], moving, rtol=1e-5)
    found = jax.jit(jax.grad(lambda p: apply(p, *FEED.values())[0][0]))(params)
    for (param, _), value in zip(grads, want[2:]):
        np.testing.assert_allclose(found[param.name], value, rtol=1e-4, atol=1e-6)


def test_narrow_ids_and_wide_mode(net):
    exe, probability, _, _ = net
    test = fluid.default_main_program().clone(for_test=True)
    apply, params = fluid.to_jax(test, ["x", "ids"], [probability])
    (want,) = exe.run(
        test,
        feed={"x": FEED["x"], "ids": FEED["ids"], "label": FEED["label"]},
        fetch_list=[probability],
    )
    narrow = jnp.asarray(FEED["ids"], jnp.int32)
    np.testing.assert_allclose(jax.jit(apply)(params, FEED["x"], narrow)[0], want, rtol=1e-5)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(apply)(params, FEED["x"], FEED["ids"])[0], want, rtol=1e-5)
    each = jax.jit(jax.vmap(lambda x, i: apply(params, x[None], i[None])[0][0]))
    rows = each(FEED["x"], narrow)
    np.testing.assert_allclose(rows, want, rtol=1e-5)
    slope = jax.jit(jax.grad(lambda x: apply(params, x, narrow)[0][:, 0].sum()))(FEED["x"])
    assert slope.shape == (5, 4) and float(jnp.abs(slope).max()) > 0


def test_feeds_by_name(net):
    _, _, loss, _ = net
    apply, params = fluid.to_jax(fluid.default_main_program(), ["x", "ids", "label"], [loss])
    want = jax.jit(apply)(params, *FEED.values())
    by_name = {n: FEED[n] for n in ("label", "ids", "x")}
    np.testing.assert_allclose(jax.jit(apply)(params, by_name), want, rtol=1e-5)
    slope = jax.jit(jax.grad(lambda f: apply(params, f)[0][0], allow_int=True))(by_name)["x"]
    assert slope.shape == (5, 4)


def test_state_keeps_its_dtypes_in_either_mode():
    counter = fluid.layers.create_global_var([1], 5, "int64", persistable=True)
    y = fluid.layers.scale(fluid.data("x", [None], "float64"), 2.0)
    after = fluid.layers.increment(counter, in_place=True)
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    for wide, dtypes in ((False, ["float32", "int32"]), (True, ["float64", "int64"])):
        with jax.enable_x64(wide):
            apply, params = fluid.to_jax(fluid.default_main_program(), ["x"], [y, after])
            found, state = jax.jit(lambda p, x: apply(p, x, with_state=True))(params, np.ones(3))  # noqa: B023
            assert [f.dtype.name for f in found] == dtypes and int(found[1][0]) == 6
            assert {n: v.dtype for n, v in state.items()} == {n: v.dtype for n, v in params.items()}


def test_parameters_outlive_training(net):
    exe, _, loss, grads = net
    _, params = fluid.to_jax(fluid.default_main_program(), ["x", "ids", "label"], [loss])
    kept = {n: np.array(v) for n, v in params.items()}
    fluid.optimizer.SGD(0.5).apply_gradients(grads)
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        exe.run(feed=FEED)
    assert all(np.array_equal(kept[n], v) for n, v in params.items())


def test_random_programs_need_a_key():
    y = fluid.layers.dropout(fluid.data("x", [100]), 0.5, dropout_implementation="upscale_in_train")
    apply, params = fluid.to_jax(fluid.default_main_program(), ["x"], [y])
    with pytest.raises(errors.ProgramError, match=r"key=jax\.random\.key"):
        apply(params, np.ones(100, "float32"))
    one, two = (jax.jit(apply)(params, np.ones(100, "float32"), key=jax.random.key(k))[0] for k in (0, 1))
    assert set(np.unique(one)) == {0.0, 2.0} and not np.array_equal(one, two)


def test_errors(net):
    _, _, loss, _ = net
    program = fluid.default_main_program()
    with pytest.raises(errors.UninitializedError, match=r"no value for .*fc_0\.w_0"):
        fluid.to_jax(program, ["x", "ids", "label"], [loss], scope=fluid.Scope())
    apply, params = fluid.to_jax(program, ["x", "ids", "label"], [loss])
    with pytest.raises(errors.FeedError, match=r"takes 3 feeds \(x, ids, label\), found 1"):
        apply(params, FEED["x"])
    with pytest.raises(errors.UninitializedError, match="params lacks"):
        apply({}, *FEED.values())
    with pytest.raises(errors.FeedError, match="takes the feeds x, ids, label; missing: ids, label; unknown: idz"):
        apply(params, {"x": FEED["x"], "idz": FEED["ids"]})
    with pytest.raises(errors.FeedError, match=r"feed x: expected rank 2 \(shape \[-1, 4\]\), found shape \[4\]"):
        apply(params, FEED["x"][0], FEED["ids"], FEED["label"])
    with pytest.raises(errors.FeedError, match="feed ids: values from 1 to 3000000000 exceed int32"):
        apply(params, FEED | {"ids": np.array([[1], [3_000_000_000]])})
    with pytest.raises(errors.FeedError, match=r"the fetches need ids, which feeds \(x, label\) lacks"):
        fluid.to_jax(program, ["x", "label"], [loss])
    with pytest.raises(errors.ProgramError, match=r"no variable lable \(did you mean label\?\)"):
        fluid.to_jax(program, ["x", "ids", "lable"], [loss])
    printed = fluid.layers.Print(loss)
    with pytest.raises(errors.UnsupportedError, match="print run on the host"):
        fluid.to_jax(program, ["x", "ids", "label"], [printed])


def test_flax_round_trip(net):
    from flax import nnx

    from jfluid.interop.flax import FluidModule, to_scope

    exe, _, loss, _ = net
    program = fluid.default_main_program()
    module = FluidModule(program, ["x", "ids", "label"], [loss])
    want, gradient = exe.run(feed=FEED, fetch_list=[loss, "fc_1.w_0@GRAD"])
    found = nnx.jit(nnx.grad(lambda m: m(*FEED.values())[0][0]))(module)
    np.testing.assert_allclose(found["params"]["fc_1.w_0"][...], gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(module(*FEED.values())[0], want, rtol=1e-5)
    module.params["fc_1.b_0"][...] = jnp.ones(3)
    scope = fluid.Scope()
    to_scope(module, scope)
    assert (np.array(scope.find_var("fc_1.b_0").get_tensor()) == 1).all()
    assert set(scope.local_var_names()) == set(fluid.to_jax(program, ["x", "ids", "label"], [loss])[1])
    exe.run(program.clone(for_test=True), feed=FEED, fetch_list=[loss], scope=scope)
    with pytest.raises(TypeError, match="expected a FluidModule"):
        to_scope(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), scope)


def test_flax_jit_dropout_and_statistics():
    from flax import nnx

    from jfluid.interop.flax import FluidModule, to_scope

    x = fluid.data("x", [None, 4])
    y = fluid.layers.dropout(fluid.layers.batch_norm(fluid.layers.fc(x, 3)), 0.5)
    steps = fluid.layers.create_global_var([1], 0, "int64", persistable=True)
    steps = fluid.layers.increment(steps, in_place=True)
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    module = FluidModule(fluid.default_main_program(), [x], [y, steps], rngs=nnx.Rngs(0))
    call = nnx.jit(lambda m, values: m(values)[0])
    before = np.array(module.stats["batch_norm_0.w_1"][...])
    one, two = call(module, FEED["x"]), call(module, FEED["x"])
    assert not np.array_equal(one, two)
    assert not np.array_equal(before, module.stats["batch_norm_0.w_1"][...])
    scope = fluid.Scope()
    to_scope(module, scope)
    held = np.array(scope.find_var(steps.name).get_tensor())
    assert held.tolist() == [2] and held.dtype == np.int64


def test_flax_missing(monkeypatch):
    import importlib
    import sys

    monkeypatch.delitem(sys.modules, "jfluid.interop.flax", raising=False)
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(ImportError, match=r"pip install 'jfluid\[flax\]'"):
        importlib.import_module("jfluid.interop.flax")
