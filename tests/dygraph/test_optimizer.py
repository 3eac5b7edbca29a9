"""Optimizers, schedules, clips and saved states in dygraph mode, against golden values and files of
the real Fluid (tests/oracle/golden.py).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.dygraph import optimizer_cases as cases

pytestmark = pytest.mark.usefixtures("interpreted_steps")

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "dygraph_optimizer.json").read_text())
OPTIMIZERS = cases.optimizers(fluid)


@pytest.fixture
def guard():
    with fluid.dygraph.guard():
        yield


def linear():
    layer = fluid.dygraph.Linear(2, 2)
    fluid.layers.reduce_sum(layer(fluid.dygraph.to_variable(np.ones((1, 2), "float32")))).backward()
    return layer


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_optimizer_trains_as_fluids(case):
    found, expect = cases.result(fluid, case, OPTIMIZERS[case]), GOLDEN["optimizers"][case]
    for what in ("losses", "rates"):
        np.testing.assert_allclose(found[what], expect[what], rtol=1e-5, err_msg=what)
    for what in ("parameters", "state"):
        assert sorted(found[what]) == sorted(expect[what])
        for name, value in expect[what].items():
            values = [v[what][name] for v in (found, expect)]
            if isinstance(value, dict):
                values = [[float(d[key]) for key in value] for d in values]
            np.testing.assert_allclose(*values, rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore:LinearLrWarmup. the rise begins at 0")
def test_rates_are_fluids():
    found = cases.rates(fluid)
    assert sorted(found) == sorted(GOLDEN["rates"])
    for name, (rates, state) in GOLDEN["rates"].items():
        np.testing.assert_array_equal(np.float32(found[name][0]), np.float32(rates), err_msg=name)
        assert found[name][1] == pytest.approx(state, rel=1e-6), name


def test_training_goes_on_from_files_of_fluid(guard):
    net = cases.net_of(fluid)
    optimizer = OPTIMIZERS["noam"](net.parameters())
    state, slots = fluid.load_dygraph(str(FOLDER / "dygraph" / "net"))
    assert list(state) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    net.set_dict(state)
    optimizer.set_dict(slots)  # before there are accumulators
    losses, rates = cases.train(fluid, net, optimizer, "noam", 2)
    np.testing.assert_allclose([losses, rates], GOLDEN["resumed"], rtol=1e-5)


def test_files_are_byte_for_byte_what_fluid_reads(guard, tmp_path):
    """The same values under the same names: Fluid's own files, loaded and saved again."""
    golden = FOLDER / "dygraph" / "net"
    net = cases.net_of(fluid)
    optimizer = OPTIMIZERS["noam"](net.parameters())
    state, slots = fluid.load_dygraph(f"{golden}.pdparams", keep_name_table=True)
    assert state["StructuredToParameterName@@"]["1.bias"] == "linear_1.b_0"
    net.set_dict(state)
    optimizer.set_dict(slots)
    cases.train(fluid, net, optimizer, "noam", 1)
    prefix = str(tmp_path / "deep" / "er" / "net")
    fluid.save_dygraph(net.state_dict(), prefix)
    fluid.save_dygraph(optimizer.state_dict(), prefix)
    again, slots_again = fluid.load_dygraph(prefix, keep_name_table=True)
    assert list(again) == list(state) and sorted(slots_again) == sorted(slots)
    assert again["StructuredToParameterName@@"] == state["StructuredToParameterName@@"]
    assert slots_again["LR_Scheduler"] == {"step_num": 4}
    for name, value in slots.items():
        if isinstance(value, np.ndarray):
            assert (slots_again[name].dtype, slots_again[name].shape) == (value.dtype, value.shape)
    others = fluid.dygraph.Sequential(*(fluid.dygraph.Linear(*s) for s in ((3, 5), (5, 2))))
    others.set_dict(again)
    for mine, theirs in zip(others.parameters(), net.parameters()):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_what_cannot_be_saved_or_loaded(guard, tmp_path):
    layer = linear()
    with pytest.raises(errors.DygraphError, match="is empty"):
        fluid.save_dygraph({}, str(tmp_path / "a"))
    with pytest.raises(errors.DygraphError, match="expected folder/file"):
        fluid.save_dygraph(layer.state_dict(), f"{tmp_path}/")
    with pytest.raises(TypeError, match="save_dygraph, a: expected a variable"):
        fluid.save_dygraph({"a": {1, 2}}, str(tmp_path / "a"))
    for error in (RuntimeError, FileNotFoundError):  # Fluid's, and Python's
        with pytest.raises(error, match="no such file; load_dygraph reads what save_dygraph"):
            fluid.load_dygraph(str(tmp_path / "a"))
    with pytest.raises(TypeError, match="expected the result of layer.state_dict.. or .* found Linear"):
        fluid.save_dygraph(layer, str(tmp_path / "a"))
    assert not list(tmp_path.iterdir())
    adam = fluid.optimizer.Adam(0.1, parameter_list=layer.parameters())
    for loaded in (layer, adam):
        with pytest.raises(TypeError, match=r"set_dict: expected a dict .* found NoneType"):
            loaded.set_dict(None)
    with pytest.warns(UserWarning, match="not in this layer: c"):
        layer.set_dict(dict(layer.state_dict(), c=np.ones(1)))
    with pytest.raises(AssertionError, match="expected shape"):
        layer.set_dict({"weight": np.ones((2, 3), "float32"), "bias": np.ones(2, "float32")})


def test_updates(guard):
    layer = linear()
    sgd = fluid.optimizer.SGD(0.5, parameter_list=(p for p in layer.parameters()))
    before = layer.weight.numpy()
    loss = fluid.layers.reduce_sum(layer(fluid.dygraph.to_variable(np.ones((1, 2), "float32"))))
    assert [p.name for p, _ in sgd.backward(loss)] == ["linear_0.w_0", "linear_0.b_0"]
    operators, pairs = sgd.minimize(loss)
    assert operators == [] and [p.name for p, _ in pairs] == ["linear_0.w_0", "linear_0.b_0"]
    np.testing.assert_allclose(layer.weight.numpy(), before - 0.5, rtol=1e-6)
    sgd.clear_gradients()
    sgd.minimize(loss)
    np.testing.assert_allclose(layer.weight.numpy(), before - 0.5, rtol=1e-6)
    other = fluid.dygraph.Linear(2, 2)  # without gradients
    assert fluid.optimizer.SGD(0.5, parameter_list=other.parameters()).minimize(loss) == ([], [])
    layer.weight.trainable = False
    assert [p.name for p, _ in sgd.minimize(loss, no_grad_set={layer.bias.name})[1]] == []


def test_arguments_of_optimizers(guard):
    layer = linear()
    for wrong in (layer, layer.weight, 3, "weight"):
        with pytest.raises(TypeError, match="parameter_list: expected a list of parameters"):
            fluid.optimizer.SGD(0.1, parameter_list=wrong)
    with pytest.raises(TypeError, match="regularization: expected a regularizer of .*, found float"):
        fluid.optimizer.SGD(0.1, parameter_list=layer.parameters(), regularization=0.1)
    loss = fluid.layers.reduce_sum(layer.weight)
    with pytest.raises(errors.DygraphError, match=r"in dygraph mode call loss\.backward\(\)"):
        fluid.append_backward(loss)
    with pytest.raises(errors.DygraphError, match=r"in dygraph mode call fluid\.dygraph\.grad"):
        fluid.gradients(loss, layer.weight)


def test_states_that_do_not_fit(guard):
    layer = linear()
    optimizer, o = fluid.optimizer.Adam(0.1, parameter_list=layer.parameters()), fluid.optimizer
    loss = fluid.layers.reduce_sum(layer.weight)
    assert optimizer.state_dict() == {}
    optimizer.minimize(loss)
    state = optimizer.state_dict()
    del state["linear_0.w_0_moment1_0"]
    with pytest.raises(AssertionError, match=r"the state has no linear_0\.w_0_moment1_0"):
        optimizer.set_dict(state)
    second = o.Adam(0.1, parameter_list=layer.parameters())
    second.set_dict(state)
    with pytest.raises(AssertionError, match="names count up with each optimizer"):
        second.minimize(loss)
    scheduled = o.SGD(fluid.dygraph.StepDecay(0.1, 2), parameter_list=layer.parameters())
    with pytest.raises(AssertionError, match="the state has no LR_Scheduler"):
        scheduled.set_dict({})
    with pytest.raises(errors.UninitializedError, match="the state has no epoch_num"):
        scheduled.set_dict({"LR_Scheduler": {"learning_rate": 1}})


def test_what_works_on_programs_only(guard):
    o, params = fluid.optimizer, [linear().weight]
    for make in (
        lambda: o.ModelAverage(0.1),
        lambda: o.ExponentialMovingAverage(0.1),
        lambda: o.LookaheadOptimizer(o.SGD(0.1, parameter_list=params)),
        lambda: o.RecomputeOptimizer(o.SGD(0.1, parameter_list=params)),
        lambda: o.PipelineOptimizer(o.SGD(0.1, parameter_list=params)),
        lambda: o.DGCMomentumOptimizer(0.1, 0.9, 0, parameter_list=params),
        lambda: fluid.contrib.mixed_precision.decorate(o.SGD(0.1, parameter_list=params)).minimize(params[0]),
    ):
        with pytest.raises(errors.UnsupportedError, match="In dygraph, don.t support"):
            make()
    with pytest.raises(AttributeError, match="give the optimizer parameter_list"):
        o.SGD(0.1)
    with pytest.raises(TypeError, match=r"expected a float or a schedule of fluid\.dygraph"):
        o.SGD(params[0], parameter_list=params)
    with pytest.raises(TypeError, match="found the name 'w'"):
        o.SGD(0.1, parameter_list=["w"]).minimize(params[0])
    with pytest.raises(AssertionError, match="grad_clip="):
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByNorm(1.0))


@pytest.mark.parametrize("method", ["state_dict", "set_dict", "clear_gradients", "current_step_lr"])
def test_what_works_in_dygraph_mode_only(method):
    with pytest.raises(AssertionError, match=f"Optimizer.{method} is part of dygraph mode"):
        getattr(fluid.optimizer.SGD(0.1), method)(*[{}] * (method == "set_dict"))


@pytest.mark.parametrize(
    ("name", "args", "error", "says"),
    [
        ("LinearLrWarmup", ("x", 1, 0.0, 1.0), TypeError, "expected a number or a Learning"),
        ("LinearLrWarmup", (1.0, 1, 1.0, 0.0), ValueError, "end_lr must be above"),
        ("ReduceLROnPlateau", (1.0, "min", 1.0), ValueError, "decay_rate"),
        ("ReduceLROnPlateau", (1.0, "x"), ValueError, "mode"),
        ("StepDecay", (1.0, 2.0), TypeError, "step_size"),
        ("StepDecay", ("x", 2), TypeError, "learning_rate"),
        ("StepDecay", (1.0, 2, 1.0), ValueError, "decay_rate"),
        ("MultiStepDecay", (1.0, [3, 1]), ValueError, "rising"),
        ("MultiStepDecay", (1.0, 3), TypeError, "milestones"),
        ("LambdaDecay", (1.0, 3), TypeError, "lr_lambda"),
        ("PiecewiseDecay", ([1, 2], [1.0], 0), ValueError, "one value more"),
    ],
)
def test_arguments_of_schedules(name, args, error, says):
    with pytest.raises(error, match=says):
        getattr(fluid.dygraph, name)(*args)


def test_plateau_says_what_it_does(guard, capsys):
    schedule = fluid.dygraph.ReduceLROnPlateau(1.0, decay_rate=0.5, patience=0, verbose=True)
    for loss in (1.0, 2.0):
        schedule.step(fluid.dygraph.to_variable(np.array([loss], "float32")))
    assert capsys.readouterr().out == "Epoch 2: reducing learning rate from 1.0 to 0.5.\n"
    with pytest.raises(errors.ShapeError, match="expected one element"):
        schedule.step(np.ones(2))


def test_schedules_of_layers(guard):
    layers = fluid.layers
    for schedule, kind, rates in (
        (layers.exponential_decay(0.1, 1, 0.5), "ExponentialDecay", [0.1, 0.05]),
        (layers.piecewise_decay([1], [0.1, 0.2]), "PiecewiseDecay", [0.1, 0.2]),
        (layers.noam_decay(4, 1, learning_rate=2.0), "NoamDecay", [1.0, 0.7071068]),
        (layers.linear_lr_warmup(0.3, 2, 0.0, 0.1), "LinearLrWarmup", [0.05, 0.3]),
    ):
        assert type(schedule).__name__ == kind
        np.testing.assert_allclose([schedule().numpy()[0] for _ in rates], rates, rtol=1e-6)


def test_the_rate_prints_with_its_digits(guard):
    layer = linear()
    optimizer = fluid.optimizer.SGD(0.02, parameter_list=layer.parameters())
    optimizer.minimize(layer.weight)
    assert str(optimizer.current_step_lr()) == "0.02"
