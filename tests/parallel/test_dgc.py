"""Deep gradient compression against NumPy: replicas that exchange their gradients' largest elements."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.op_case import check

ROWS, WIDTH = 4, 16384
BEGIN, RAMP, SPARSITY = 2, 4, [0.9, 0.999]
RATE, MU = 0.1, 0.9


@pytest.fixture(autouse=True)
def two_replicas(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")


def rand(*shape):
    return np.random.RandomState(sum(shape)).uniform(-1, 1, shape).astype("float32")


X = rand(ROWS, WIDTH)
START = rand(WIDTH, 1)


def net(**options):
    """The mean of x w, whose gradient is the mean of the rows of x; a bias is too small for
    compression.
    """
    x = fluid.data("x", [None, WIDTH])
    initial = fluid.initializer.NumpyArrayInitializer(START)
    attr = fluid.ParamAttr(name="w", initializer=initial)
    loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=attr, bias_attr="b"))
    optimizer = fluid.optimizer.DGCMomentumOptimizer(RATE, MU, BEGIN, rampup_step=RAMP, sparsity=SPARSITY, **options)
    optimizer.minimize(loss)
    return loss


def trained(steps, replicas=2, **options):
    """The parameter after each step."""
    loss = net(**options)
    program = fluid.default_main_program()
    if replicas > 1:
        program = fluid.CompiledProgram(program).with_data_parallel(loss_name=loss.name)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return [exe.run(program, {"x": X}, ["w"])[0][:WIDTH].ravel() for _ in range(steps)]


def expected(steps, replicas=2, nesterov=False, decay=0.0, clip=None):
    w, state = START.ravel().astype("float64"), np.zeros((2, replicas, WIDTH))
    shares = X.reshape(replicas, -1, WIDTH).mean(1)
    for step in range(steps):
        grads = shares
        if clip is not None and step >= BEGIN:
            norms = np.linalg.norm(grads / replicas, axis=1, keepdims=True)
            grads = grads * np.minimum(1, clip / norms)
        grads = grads + decay * w
        u, v = state
        if step < BEGIN:
            u[:] = MU * u + grads.mean(0)
            along = grads.mean(0) + MU * u[0] if nesterov else u[0]
        else:
            stage = min(int((step - BEGIN) * len(SPARSITY) / RAMP), len(SPARSITY) - 1)
            k = int(WIDTH * (1 - SPARSITY[stage]))
            u[:] = MU * (u + grads) if nesterov else MU * u + grads
            v += u + grads if nesterov else u
            along = np.zeros(WIDTH)
            for own_u, own_v in zip(u, v):
                chosen = np.argsort(-abs(own_v))[:k]
                along[chosen] += own_v[chosen] / replicas
                own_u[chosen] = own_v[chosen] = 0
        w = w - RATE * along
        yield w


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, {}),
        (
            {"use_nesterov": True, "regularization": fluid.regularizer.L2Decay(0.1)},
            {"nesterov": True, "decay": 0.1},
        ),
        (
            {"grad_clip": fluid.clip.GradientClipByNorm(20.0), "num_trainers": 2},
            {"clip": 20.0 * 2**-0.5},
        ),
    ],
)
def test_replicas_exchange_the_largest_elements(options, reference):
    for found, target in zip(trained(7, **options), expected(7, **reference)):
        np.testing.assert_allclose(found, target, rtol=2e-4, atol=2e-5)


def test_one_device_keeps_the_rest_for_later():
    for found, target in zip(trained(5, replicas=1), expected(5, replicas=1)):
        np.testing.assert_allclose(found, target, rtol=2e-4, atol=2e-5)


def test_reduce_is_refused():
    loss = net()
    build = fluid.BuildStrategy()
    build.reduce_strategy = build.ReduceStrategy.Reduce
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, build_strategy=build
    )
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.UnsupportedError, match=r"operator dgc .* ReduceStrategy.AllReduce"):
        exe.run(program, {"x": X}, [loss])


def number(x):
    return np.array([x], "float32")


@pytest.mark.parametrize(
    ("step", "nesterov", "begin", "param", "velocity"),
    [  # as the real Fluid gave
        (3, False, 5.0, -4.25, 10.5),
        (3, True, 5.0, -4.475, 10.5),
        (5, False, 5.0, 0.25, 10.0),
    ],
)
def test_dgc_momentum(step, nesterov, begin, param, velocity):
    ins = {"current_step": number(step), "nranks": number(2), "LearningRate": number(0.5)}
    ins |= {"Param": number(1), "Grad": number(3), "Velocity": number(10)}
    attrs = {"mu": 0.9, "use_nesterov": nesterov, "rampup_begin_step": begin}
    expect = {"ParamOut": number(param), "VelocityOut": number(velocity), "Grad_out": number(1.5)}
    check("dgc_momentum", ins, attrs, expect=expect, rows=())


def test_dgc_momentum_without_a_first_step_does_nothing():
    ins = dict.fromkeys(("current_step", "nranks", "Param", "Grad", "Velocity"), number(2))
    ins["LearningRate"] = number(1)
    attrs = {"mu": 0.9, "rampup_begin_step": -1.0}
    check("dgc_momentum", ins, attrs, expect={"ParamOut": number(2), "Grad_out": number(2)}, rows=())


def test_dgc_clip_by_norm():
    x = np.array([[3, 0], [0, 4]], "float32")
    for step, scale in ((1, 1), (2, 0.2)):
        ins, attrs = {"X": x, "current_step": number(step)}, {"rampup_begin_step": 2.0}
        check("dgc_clip_by_norm", ins, attrs | {"max_norm": 1.0}, expect={"Out": x * scale}, rows=())
