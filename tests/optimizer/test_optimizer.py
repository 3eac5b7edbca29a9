"""Optimizers through the public API, against golden values of the real Fluid
(tests/oracle/golden.py).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests import optimizer_cases as cases

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "optimizer.json").read_text())
OPTIMIZE, SCHEDULE = 2, 16


def build(case):
    return cases.build(fluid, case, cases.optimizers(fluid)[case])


def same_state(main, scope, expect):
    found = cases.state(main, scope)
    assert sorted(found) == sorted(expect)
    for name, values in expect.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-4, atol=2e-6, err_msg=name)


def same_operators(found, expect):
    """The same operators in the same order with the same variables; attributes as far as Fluid
    writes them.
    """
    assert [op[0] for op in found] == [op[0] for op in expect]
    for (kind, ins, outs, attrs), (_, want_ins, want_outs, want_attrs) in zip(found, expect, strict=True):
        want_outs = {s: n for s, n in want_outs.items() if s != "Scope"}
        assert ins == want_ins, kind
        assert {s: n for s, n in outs.items() if s != "Scope"} == want_outs, kind
        for name, value in want_attrs.items():
            if name in attrs or name in ("op_role", "op_role_var"):
                got = attrs[name]
                assert got == value or np.allclose(got, value, rtol=1e-6), (kind, name, got, value)


@pytest.mark.filterwarnings("ignore:Ftrl")
@pytest.mark.parametrize("case", sorted(GOLDEN["optimizers"]))
def test_trains_as_fluid_does(case):
    expect = GOLDEN["optimizers"][case]
    main, startup, loss, optimizer = build(case)
    assert optimizer.get_opti_var_name_list() == expect["names"]
    same_operators(cases.describe(main, OPTIMIZE | SCHEDULE), expect["operators"])
    losses, scope = cases.train(fluid, main, startup, loss)
    np.testing.assert_allclose(losses, expect["losses"], rtol=1e-4)
    same_state(main, scope, expect["state"])


def test_ftrl_says_what_it_does_with_l2():
    with pytest.warns(UserWarning, match=r"l1=0\.1 replaces l2=0\.2"):
        fluid.optimizer.Ftrl(0.1, l1=0.1, l2=0.2)


@pytest.mark.filterwarnings("ignore:Ftrl")
def test_every_optimizer_has_a_case():
    covered = {type(cases.build(fluid, n, m)[3]) for n, m in cases.optimizers(fluid).items()}
    classes = {getattr(fluid.optimizer, n) for n in fluid.optimizer.__all__}
    others = {
        "ModelAverage",
        "ExponentialMovingAverage",
        "LookaheadOptimizer",
        "RecomputeOptimizer",
        "DGCMomentumOptimizer",
        "PipelineOptimizer",
    }
    assert classes == covered | {getattr(fluid.optimizer, n) for n in others}


def test_lookahead():
    main, startup, loss, _ = cases.build(fluid, "lookahead", cases.lookahead(fluid))
    losses, scope = cases.train(fluid, main, startup, loss)
    np.testing.assert_allclose(losses, GOLDEN["lookahead"]["losses"], rtol=1e-4)
    same_state(main, scope, GOLDEN["lookahead"]["state"])
    assert not any("SLOW" in n for op in main.clone(for_test=True).global_block().ops for n in op.output_arg_names)


@pytest.mark.parametrize("case", sorted(GOLDEN["averages"]))
def test_averages(case):
    found, expect = cases.average(fluid, cases.averages(fluid)[case]), GOLDEN["averages"][case]
    np.testing.assert_allclose(found["values"], expect["values"], rtol=1e-4, atol=1e-6)
    assert {n for n in expect["state"] if "average" in n or "ema" in n} <= set(found["state"])
    for name in expect["state"]:
        np.testing.assert_allclose(found["state"][name], expect["state"][name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_averages_can_stay_until_restore():
    main, startup, _, _ = cases.build(fluid, "sgd", lambda: fluid.optimizer.SGD(0.1))
    with fluid.program_guard(main, startup):
        average = fluid.optimizer.ModelAverage(1.0, 2, 4)
    executor, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    with fluid.scope_guard(scope):
        executor.run(startup)
        weight = lambda: np.array(scope.find_var("fc_0.w_0").get_tensor())  # noqa: E731
        trained = []
        for _ in range(3):
            executor.run(main, feed={"x": cases.X, "y": cases.Y})
            trained.append(weight())
        with average.apply(executor, need_restore=False):
            pass
        np.testing.assert_allclose(weight(), np.mean(trained, axis=0), rtol=1e-5)
        average.restore(executor)
        np.testing.assert_array_equal(weight(), trained[-1])


def test_an_integer_step_count_leaves_the_decay_alone():
    build("sgd")
    step = fluid.layers.autoincreased_step_counter()
    with pytest.warns(UserWarning, match="cast it to float32"):
        fluid.optimizer.ExponentialMovingAverage(0.5, thres_steps=step)


def test_learning_rate_may_be_a_variable():
    rate = fluid.layers.create_global_var([1], 0.5, "float32", persistable=True, name="rate")
    main, _, _, optimizer = cases.build(fluid, "sgd", lambda: fluid.optimizer.SGD(0.5))
    assert optimizer._global_learning_rate(main).name == "learning_rate_0"
    assert optimizer._global_learning_rate(fluid.Program()) is None
    x = fluid.data("x", [4, 3])
    loss = fluid.layers.mean(fluid.layers.fc(x, 2))
    ops, pairs = fluid.optimizer.SGD(rate).minimize(loss)
    assert [op.input("LearningRate") for op in ops] == [["rate"]] * 2
    assert [p.name for p, _ in pairs] == ["fc_0.w_0", "fc_0.b_0"]


def test_beta_may_be_a_variable():
    beta = fluid.layers.create_global_var([1], 0.8, "float32", persistable=True, name="beta")
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [4, 3]), 2))
    ops, _ = fluid.optimizer.Adam(0.1, beta1=beta).minimize(loss)
    assert ops[0].input("Beta1Tensor") == ["beta"] and not ops[0].input("Beta2Tensor")


def net():
    return fluid.layers.mean(fluid.layers.fc(fluid.data("x", [4, 3]), 2))


@pytest.mark.parametrize("arguments", [{"parameter_list": ["fc_0.w_0"]}, {"no_grad_set": {"fc_0.b_0"}}])
def test_part_of_the_parameters(arguments):
    _, pairs = fluid.optimizer.SGD(0.1).minimize(net(), **arguments)
    assert [p.name for p, _ in pairs] == ["fc_0.w_0"]


def test_parameter_list_of_the_constructor():
    _, pairs = fluid.optimizer.SGD(0.1, parameter_list=["fc_0.b_0"]).minimize(net())
    assert [p.name for p, _ in pairs] == ["fc_0.b_0"]


def test_untrainable_parameters_stay():
    x = fluid.data("x", [4, 3])
    loss = fluid.layers.mean(fluid.layers.fc(x, 2, param_attr=fluid.ParamAttr(trainable=False)))
    ops, _ = fluid.optimizer.Adam(0.1).minimize(loss)
    assert [op.input("Param") for op in ops] == [["fc_0.b_0"]]


def test_minimize_outside_of_the_guard():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        loss = net()
    fluid.optimizer.Adam(0.1).minimize(loss, startup_program=startup)
    assert not fluid.default_main_program().global_block().ops
    assert any("moment1" in n for op in startup.global_block().ops for n in op.output_arg_names)


def test_backward_and_apply_gradients_are_the_parts_of_minimize():
    loss = net()
    optimizer = fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(1.0))
    pairs = optimizer.backward(loss)
    before = len(loss.block.ops)
    ops = optimizer.apply_gradients(pairs)
    assert [op.type for op in ops] == ["sgd", "sgd"]
    assert [op.type for op in loss.block.ops[before:]] == [
        "clip_by_norm",
        "clip_by_norm",
        "sgd",
        "sgd",
    ]
    assert fluid.optimizer.SGD(0.1).apply_gradients([]) == []


def test_parameters_without_a_gradient_are_left_out():
    loss = net()
    with fluid.program_guard(loss.block.program):
        assert fluid.optimizer.Adam(0.1).apply_gradients([(loss.block.var("fc_0.w_0"), None)]) == []


def test_the_same_optimizer_twice():
    loss = net()
    optimizer = fluid.optimizer.Adam(0.1)
    optimizer.minimize(loss)
    with pytest.raises(errors.ProgramError, match=r"already updates fc_0\.b_0"):
        optimizer.minimize(loss)


def test_two_losses_that_share_parameters():
    """Golden losses of the real Fluid: the second loss sees the parameters as the first optimizer
    left them.
    """

    def attr(name, value):
        return fluid.ParamAttr(name=name, initializer=fluid.initializer.Constant(value))

    def net(x):
        hidden = fluid.layers.fc(x, 2, param_attr=attr("a", 0.3), bias_attr=attr("ab", 0.1))
        return fluid.layers.mean(
            fluid.layers.fc(hidden, 2, param_attr=attr("b", 0.2), bias_attr=attr("bb", 0.0), act="tanh")
        )

    x = fluid.data("x", [4, 3])
    first = net(x)
    fluid.optimizer.Adam(0.1).minimize(first, parameter_list=["a", "ab"])
    second = net(x)
    _, pairs = fluid.optimizer.Momentum(0.1, 0.9).minimize(second)
    assert [p.name for p, _ in pairs] == ["a", "ab", "b", "bb"]
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    feed = {"x": np.arange(12).reshape(4, 3).astype("float32") / 10}
    losses = [[float(v[0]) for v in executor.run(feed=feed, fetch_list=[first, second])] for _ in range(4)]
    np.testing.assert_allclose(
        losses,
        [
            [0.23043221, 0.13040887],
            [0.0585252, -0.03861032],
            [-0.15528321, -0.24061432],
            [-0.38699731, -0.45826393],
        ],
        rtol=1e-4,
    )


def test_recompute_changes_no_number():
    def train(wrap):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            x, y = fluid.data("x", [4, 3]), fluid.data("y", [4, 2])
            hidden = [fluid.layers.fc(x, 4, act="tanh")]
            for _ in range(2):
                hidden.append(fluid.layers.fc(fluid.layers.fc(hidden[-1], 4, act="relu"), 4, act="tanh"))
            loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden[-1], 2), y))
            startup.random_seed = 4
            optimizer = wrap(fluid.optimizer.Momentum(0.1, 0.9), hidden)
            optimizer.minimize(loss)
        return cases.train(fluid, main, startup, loss)[0], main, optimizer

    def wrapped(optimizer, checkpoints):
        outer = fluid.optimizer.RecomputeOptimizer(optimizer)
        outer._set_checkpoints(checkpoints)
        return outer

    plain, before, _ = train(lambda optimizer, checkpoints: optimizer)
    again, after, optimizer = train(wrapped)
    np.testing.assert_allclose(again, plain, rtol=1e-5)
    muls = [[op.type for op in p.global_block().ops].count("mul") for p in (before, after)]
    assert muls[0] == 6 and muls[1] > 6
    assert len(optimizer.get_opti_var_name_list()) == 12
    assert optimizer._global_learning_rate(after).name == "learning_rate_0"


def test_float64_parameters_get_float64_state():
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [4, 3], "float64"), 2))
    fluid.optimizer.Adam(0.1).minimize(loss)
    kinds = {v.np_dtype for v in loss.block.vars.values() if v.persistable}
    assert kinds == {np.dtype("float64")}


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda o: o.SGD(1), TypeError, "learning_rate: expected a float or a Variable, found int"),
        (lambda o: o.SGD("fast"), TypeError, "found str"),
        (lambda o: o.SGD(0.1, grad_clip=3), TypeError, "grad_clip: expected a gradient clip"),
        (lambda o: o.SGD(0.1).minimize(3), TypeError, "loss: expected a Variable"),
        (lambda o: o.SGD(0.1).state_dict(), errors.DygraphError, "fluid.save"),
        (lambda o: o.SGD(0.1).set_dict({}), errors.DygraphError, "fluid.load"),
        (lambda o: o.SGD(0.1).clear_gradients(), errors.DygraphError, "anew"),
        (
            lambda o: o.SGD(0.1).current_step_lr(),
            errors.DygraphError,
            "Fetch the learning rate",
        ),
        (lambda o: o.LookaheadOptimizer(None), TypeError, "inner_optimizer"),
        (lambda o: o.LookaheadOptimizer(o.SGD(0.1), alpha=2.0), ValueError, "alpha"),
        (
            lambda o: o.LookaheadOptimizer(o.SGD(0.1), k=1.5),
            ValueError,
            "k: expected a positive integer",
        ),
        (
            lambda o: o.RecomputeOptimizer(o.SGD(0.1))._set_checkpoints("a"),
            TypeError,
            "checkpoints",
        ),
        (
            lambda o: o.RecomputeOptimizer(o.SGD(0.1)).minimize(net()),
            errors.ProgramError,
            "_set_checkpoints",
        ),
        (
            lambda o: o.RecomputeOptimizer(o.SGD(0.1)).load({}),
            errors.UnsupportedError,
            "fluid.load",
        ),
        (lambda o: o.DGCMomentumOptimizer(0.1, 0.9, -1), ValueError, "rampup_begin_step"),
        (lambda o: o.DGCMomentumOptimizer(0.1, 0.9, 0, 1, [1.0]), ValueError, "sparsity"),
        (
            lambda o: o.DGCMomentumOptimizer(0.1, 0.9, 0, grad_clip=fluid.clip.GradientClipByValue(1.0)),
            TypeError,
            "GradientClipByNorm",
        ),
        (
            lambda o: o.DGCMomentumOptimizer(0.1, 0.9, 0, grad_clip=fluid.clip.GradientClipByNorm(1.0)),
            ValueError,
            "num_trainers",
        ),
        (lambda o: o.PipelineOptimizer(None), TypeError, "expected an optimizer"),
        (lambda o: o.PipelineOptimizer(o.SGD(0.1), [["x"]]), TypeError, "lists of Variables"),
        (lambda o: o.PipelineOptimizer(o.SGD(0.1), None, ["cpu"]), TypeError, "expected places"),
        (
            lambda o: o.PipelineOptimizer(o.SGD(0.1), [[net()], [net()]], [fluid.CPUPlace()] * 4),
            ValueError,
            "2 or 3 places",
        ),
        (
            lambda o: o.PipelineOptimizer(o.SGD(0.1), num_microbatches=0),
            ValueError,
            "num_microbatches",
        ),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make(fluid.optimizer)


def test_a_schedule_is_the_learning_rate_before_minimize():
    """The image classification script of Fluid's models asks for it then."""
    rate = fluid.layers.cosine_decay(0.1, 10, 5)
    optimizer = fluid.optimizer.Momentum(rate, 0.9)
    assert optimizer._global_learning_rate() is rate
    assert optimizer._global_learning_rate(fluid.Program()) is None
    optimizer.minimize(fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1)))
    assert optimizer._global_learning_rate() is rate
