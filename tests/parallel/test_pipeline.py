"""Programs in sections on several devices: as the undivided ones, step for step."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors

RNG = np.random.RandomState(0)
X, Y = RNG.rand(6, 4).astype("float32"), RNG.rand(6, 1).astype("float32")


@pytest.fixture(autouse=True)
def cpu_num(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")


def net(norm=False):
    """Two sections that share a parameter; (variables of the cut, loss, a prediction)."""
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
    shared = fluid.ParamAttr(name="shared")
    with fluid.device_guard("gpu:0"):
        hidden = fluid.layers.fc(x, 4, act="tanh", param_attr=shared, bias_attr="b0")
        if norm:
            hidden = fluid.layers.batch_norm(hidden, moving_mean_name="mean")
    with fluid.device_guard("gpu:1"):
        top = fluid.layers.fc(hidden, 4, act="tanh", param_attr=shared, bias_attr="b1")
        out = fluid.layers.fc(top, 1, param_attr="w")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(out, y))
    return [hidden], loss, out


def trained(pipeline, steps=3, norm=False, **options):
    """Losses, predictions, and the parameters after the last step."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        cut, loss, out = net(norm)
        rate = fluid.layers.exponential_decay(0.5, 1, 0.9)
        clip = fluid.clip.GradientClipByGlobalNorm(0.5)
        optimizer = fluid.optimizer.Momentum(rate, 0.9, grad_clip=clip)
        if pipeline == "cuts":
            options |= {"cut_list": [cut, [loss]], "place_list": [fluid.CPUPlace()] * 3}
        if pipeline:
            optimizer = fluid.optimizer.PipelineOptimizer(optimizer, **options)
        optimizer.minimize(loss)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = {"x": X, "y": Y}
    found = [exe.run(main, feed, [loss, out], scope=scope) for _ in range(steps)]
    names = ["shared", "b0", "b1", "w"] + ["mean"] * norm
    return found, {n: scope.find_var(n).get_tensor() for n in names}


@pytest.fixture(scope="module")
def undivided():
    return trained(None)


@pytest.mark.parametrize(("pipeline", "options"), [("devices", {"num_microbatches": 3}), ("cuts", {})])
def test_sections_equal_the_undivided_program(pipeline, options, undivided):
    found, parameters = trained(pipeline, **options)
    for ours, theirs in zip(found, undivided[0]):
        for a, b in zip(ours, theirs):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for name, value in undivided[1].items():
        np.testing.assert_allclose(np.array(parameters[name]), np.array(value), rtol=1e-5)
    if len(jax.local_devices(backend="cpu")) > 1:
        homes = [parameters[n].value.devices() for n in ("b0", "b1", "w")]
        assert homes[0] != homes[1] == homes[2]


def test_statistics_are_updated_by_one_part_after_the_other():
    found, parameters = trained("devices", steps=1, norm=True)
    assert np.isfinite(found[0][0]) and found[0][1].shape == (6, 1)
    parts = np.split(np.tanh(X @ _start("shared")), 2)
    mean = np.zeros(4)
    for part in parts:
        mean = 0.9 * mean + 0.1 * part.mean(0)
    np.testing.assert_allclose(np.array(parameters["mean"]), mean, rtol=1e-4, atol=1e-6)


def _start(name):
    """The parameter as the startup program makes it."""
    _, parameters = trained("devices", steps=0, norm=True)
    return np.array(parameters[name])


def test_sections_that_read_from_later_ones_are_refused():
    x = fluid.data("x", [None, 4])
    with fluid.device_guard("gpu:0"):
        first = fluid.layers.fc(x, 4)
    with fluid.device_guard("gpu:1"):
        second = fluid.layers.fc(first, 4)
    with fluid.device_guard("gpu:0"):
        loss = fluid.layers.mean(second)
    fluid.optimizer.PipelineOptimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.ProgramError, match="reads what section 1 computes"):
        exe.run(feed={"x": X}, fetch_list=[loss])


def test_what_sections_cannot_hold_is_refused():
    x = fluid.data("x", [None, 4])
    loss = fluid.layers.mean(fluid.layers.Print(fluid.layers.fc(x, 1)))
    optimizer = fluid.optimizer.PipelineOptimizer(fluid.optimizer.SGD(0.1), [[loss]])
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.UnsupportedError, match="run on the host"):
        exe.run(feed={"x": X}, fetch_list=[loss])


def test_a_value_that_is_not_finite_is_named():
    fluid.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with pytest.raises(errors.OpError, match="not finite"):
            x = X.copy()
            x[0] = np.inf
            X[:], kept = x, X.copy()
            trained("devices", steps=1)
    finally:
        X[:] = kept
        fluid.set_flags({"FLAGS_check_nan_inf": False})
