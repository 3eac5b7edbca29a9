"""Declared functions and traced layers of dygraph mode: Programs that run as one operator."""

import gc
import json
import operator
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import command, errors
from jfluid.dygraph import (
    BatchNorm,
    Dropout,
    Layer,
    Linear,
    ProgramTranslator,
    TracedLayer,
    declarative,
    dygraph_to_static_func,
    guard,
    to_variable,
)
from jfluid.dygraph.dygraph_to_static.program_translator import DygraphToStaticWarning
from tests.parity.dygraph import train

pytestmark = pytest.mark.usefixtures("interpreted_steps")

layers = fluid.layers
X = np.random.RandomState(0).rand(4, 3).astype("float32")


@pytest.fixture(autouse=True)
def forget():
    ProgramTranslator.reset()
    yield
    ProgramTranslator.reset()


class Net(Layer):
    """A net whose loss takes another way where its hidden values are large, and a loop."""

    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.out = Linear(3, 5), BatchNorm(5), Linear(5, 1)

    def forward(self, x, steps=2):
        h = self.norm(self.hidden(x))
        for _ in range(layers.fill_constant([1], "int64", steps)):
            h = layers.tanh(h)
        if layers.reduce_max(x) > 0.9:
            h = h * 2.0
        return self.out(h)


class Declared(Net):
    forward = declarative(Net.forward)


def losses(kind, steps=4):
    with guard():
        net = kind()
        for i, p in enumerate(net.parameters()):
            if p.trainable:
                p.set_value(np.random.RandomState(i).rand(*p.shape).astype("float32"))
        # no Adam: what is added before a normalisation has no gradient, and Adam makes whole steps of its rounding
        optimizer = fluid.optimizer.Momentum(0.1, 0.9, parameter_list=net.parameters())
        found = []
        for step in range(steps):
            loss = layers.mean(layers.square(net(to_variable(X * (step + 1) / 3.0)) - 1.0))
            loss.backward()
            optimizer.minimize(loss)
            net.clear_gradients()
            found.append(float(loss.numpy()[0]))
        return found, [p.numpy() for p in net.parameters()], net


def test_a_declared_layer_trains_as_an_eager_one():
    expected, parameters, _ = losses(Net)
    found, trained, net = losses(Declared)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for a, b in zip(trained, parameters, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert len(ProgramTranslator().get_program_cache()) == 1
    del net
    gc.collect()
    assert not len(ProgramTranslator().get_program_cache())  # programs go with their layer


def test_gradients_reach_inputs_and_stop_where_they_are_stopped():
    @declarative
    def function(x, y):
        z = x * y
        z.stop_gradient = True
        return {"sum": layers.reduce_sum(x * x + z * y), "same": (x, 3)}

    with guard():
        x, y = to_variable(X), to_variable(X + 1.0)
        x.stop_gradient = y.stop_gradient = False
        found = function(x, y)
        assert found["same"][1] == 3
        found["sum"].backward()
        np.testing.assert_allclose(x.gradient(), 2.0 * X, rtol=1e-6)
        np.testing.assert_allclose(y.gradient(), X * (X + 1.0), rtol=1e-6)


def test_a_program_is_made_for_each_kind_of_arguments():
    made = []

    @declarative
    def function(x, scale=2.0, parts=()):
        made.append(tuple(x.shape))
        for part in parts:
            x = x + part
        return x * scale

    with guard():
        for _ in range(2):
            np.testing.assert_allclose(function(X).numpy(), X * 2.0, rtol=1e-6)
            function(X[:2])
            np.testing.assert_allclose(function(X, 3.0).numpy(), X * 3.0, rtol=1e-6)
            found = function(to_variable(X), parts=[X, to_variable(X)])
            np.testing.assert_allclose(found.numpy(), X * 6.0, rtol=1e-6)
    assert made == [(4, 3), (2, 3), (4, 3), (4, 3)]
    assert len(ProgramTranslator().get_program_cache()) == 4


def test_modes_of_layers_make_programs_of_their_own():
    class Dropping(Layer):
        def __init__(self):
            super().__init__()
            self.drop = Dropout(0.5)

        @declarative
        def forward(self, x):
            return self.drop(x)

    with guard():
        fluid.default_main_program().random_seed = 3
        layer, ones = Dropping(), to_variable(np.ones((50, 50), "float32"))
        first = layer(ones).numpy()
        assert 0.3 < (first == 0).mean() < 0.7
        layer.eval()
        assert (layer(ones).numpy() == 0.5).all()


def test_what_the_translator_tells(tmp_path):
    net_seen = []

    @declarative
    def function(x):
        """Its documentation."""
        net_seen.append(type(x).__name__)
        if layers.mean(x) > 10.0:
            x = x * 2.0
        return x

    translator = ProgramTranslator.get_instance()
    assert translator is ProgramTranslator() and function.__doc__ == "Its documentation."
    with pytest.raises(errors.ProgramError, match="no function was made"):
        translator.get_program_cache().last()
    with guard():
        main, startup, inputs, outputs = translator.get_program(function, X)
        assert [v.name for v in inputs] == ["feed_0"] and tuple(outputs[0].shape) == (4, 3)
        assert "conditional_block" in [op.type for op in main.global_block().ops]
        assert not startup.global_block().ops
        assert "fluid.layers.cond(" in translator.get_code(function)
        np.testing.assert_allclose(translator.get_output(lambda_free, X).numpy(), X + 1.0)
        translator.enable(False)
        assert net_seen == ["Variable"]
        np.testing.assert_allclose(function(to_variable(X)).numpy(), X)
        assert net_seen == ["Variable", "VarBase"]
        assert translator.get_func(lambda_free) is lambda_free
        translator.enable(True)
    for call in (translator.get_output, translator.get_program, translator.get_code):
        with pytest.raises(TypeError, match="expected a function"):
            call(3)
    with pytest.raises(TypeError, match="True or False"):
        translator.enable(1)


def lambda_free(x):
    return x + 1.0


def test_under_program_guard_operators_are_built():
    @dygraph_to_static_func
    def function(x):
        if layers.mean(x) > 0.0:
            return x + 1.0
        return x - 1.0

    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [2], "float32")
        first, second = function(x), declarative(lambda_free)(x)
    value = np.array([1.0, -3.0], "float32")
    found = fluid.Executor().run(main, feed={"x": value}, fetch_list=[first, second])
    np.testing.assert_allclose(found, [value - 1.0, value + 1.0])
    with guard():
        np.testing.assert_allclose(function(to_variable(value)).numpy(), value - 1.0)


def test_a_declared_layer_is_saved_as_an_inference_model(tmp_path):
    with guard():
        net = Declared()
        net(to_variable(X))
        net.eval()
        expected = net(to_variable(X)).numpy()
        translator = ProgramTranslator()
        translator.save_inference_model(str(tmp_path / "all"))
        translator.save_inference_model(str(tmp_path / "some"), feed=[0], fetch=[0])
        with pytest.raises(IndexError, match="nothing at 3"):
            translator.save_inference_model(str(tmp_path / "none"), feed=[3])
        with pytest.raises(TypeError, match="list of places"):
            translator.save_inference_model(str(tmp_path / "none"), fetch="x")
    for name in ("all", "some"):
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor()
            program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path / name), exe)
            (found,) = exe.run(program, feed={feeds[0]: X}, fetch_list=fetches)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_declared_program_is_transpiled_inspected_and_exported_as_others(tmp_path, capsys):
    endpoint = "127.0.0.1:6174"
    with guard():
        net = Declared()
        net(to_variable(X))
        program, startup, _, (predicted,) = ProgramTranslator().get_program(net.forward, X)
        net.eval()
        net(to_variable(X))
        ProgramTranslator().save_inference_model(str(tmp_path / "model"))
    with fluid.program_guard(program, startup):
        fluid.optimizer.SGD(0.1).minimize(layers.mean(predicted))
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, program=program, pservers=endpoint, trainers=2, startup_program=startup)
    trainer = transpiler.get_trainer_program(wait_port=False)
    sent = [op.type for op in trainer.global_block().ops]
    assert "conditional_block" in sent and "sgd" not in sent and "send" in sent
    served = [op.type for b in transpiler.get_pserver_program(endpoint).blocks for op in b.ops]
    assert served.count("sgd") == 6 and "listen_and_serv" in served
    for arguments in (["inspect"], ["export", "--to", "jax", "--output", str(tmp_path / "m.jax")]):
        assert command.main([arguments[0], str(tmp_path / "model"), *arguments[1:]]) == 0
    said = capsys.readouterr().out
    assert "parameters: 8, 46 elements" in said and "differs from jfluid by" in said


def test_what_cannot_be_one_operator_runs_one_by_one_and_says_so(capfd):
    @declarative
    def prints(x):
        print("value", x)
        return x * 2.0

    @declarative
    def unbounded(x):
        while layers.reduce_sum(x) < 100.0:
            x = x * 2.0
        return x

    with guard():
        with pytest.warns(DygraphToStaticWarning, match="operator by operator.*print"):
            prints(to_variable(X))
        x = to_variable(X)
        x.stop_gradient = False
        with pytest.warns(DygraphToStaticWarning, match="bound"):
            found = unbounded(x)
        found.backward()
        assert x.gradient()[0, 0] in (2.0**k for k in range(12))
        assert float(layers.reduce_sum(unbounded(to_variable(X))).numpy()[0]) >= 100.0


def test_what_a_declared_function_may_not_do():
    @declarative
    def makes_parameters(x):
        return layers.fc(x, 2)

    @declarative
    def returns_a_list(x):
        found = []
        for v in x:
            found.append(v)
        return found

    @declarative
    def other_types(x):
        y = None
        if layers.mean(x) > 0.0:
            y = x
        return y

    @declarative
    def asks_for_numbers(x):
        return to_variable(operator.methodcaller("numpy")(x))

    @declarative
    def reads_numbers(x):
        return to_variable(x.numpy()) * 2.0

    with guard():
        np.testing.assert_array_equal(reads_numbers(to_variable(X)).numpy(), X * 2)
        with pytest.raises(errors.DygraphError, match=r"feed_0 .* has no value yet: compute with"):
            asks_for_numbers(to_variable(X))
        with pytest.raises(errors.UnsupportedError, match="makes parameters"):
            makes_parameters(X)
        with pytest.raises(errors.UnsupportedError, match="list that a loop"):
            returns_a_list(X)
        with pytest.raises(TypeError, match="y is a tensor .* and None where"):
            other_types(X)


class Two(Layer):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = Linear(3, 2), BatchNorm(2)

    def forward(self, x):
        h = self.fc(x)
        return self.norm(h), [h + 1.0 for _ in range(2)]


def test_a_traced_layer(tmp_path):
    with guard():
        net = Two()
        (_, parts), traced = TracedLayer.trace(net, [to_variable(X)])
        net.eval()
        expected = [net(to_variable(X))[0].numpy(), parts[0].numpy(), parts[1].numpy()]
        types = [op.type for op in traced.program.global_block().ops]
        assert "batch_norm" in types and not traced.program.all_parameters()[0].name == "x"
        assert [p.name for p in net.parameters() if traced.program.global_block().has_var(p.name)]
        for given in (X, to_variable(X)):
            for a, b in zip(traced([given]), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5)
        net.fc.bias.set_value(np.ones(2, "float32"))
        np.testing.assert_allclose(traced([X])[1], expected[1] + 1.0, rtol=1e-5)
        with pytest.raises(errors.DygraphError, match="before the layer's first call"):
            traced.set_strategy(fluid.BuildStrategy())
        traced.save_inference_model(str(tmp_path), fetch=[1])
        with pytest.raises(IndexError):
            traced.save_inference_model(str(tmp_path), fetch=[7])
        for wrong in (X, [X, X], 3):
            with pytest.raises(TypeError):
                traced(wrong)
        with pytest.raises(TypeError, match="expected a Layer"):
            TracedLayer.trace(3, [])
        with pytest.raises(TypeError, match="expected VarBases"):
            TracedLayer.trace(net, [X])
        _, again = TracedLayer.trace(net, [to_variable(X)])
        again.set_strategy(fluid.BuildStrategy(), fluid.ExecutionStrategy())
        np.testing.assert_allclose(again([X])[1], expected[1] + 1.0, rtol=1e-5)
    with pytest.raises(errors.DygraphError):
        TracedLayer.trace(net, [])
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe)
        (found,) = exe.run(program, feed={feeds[0]: X}, fetch_list=fetches)
    np.testing.assert_allclose(found, expected[1] + 1.0, rtol=1e-5)


@pytest.mark.parametrize("time", range(3))
def test_a_layer_is_traced_although_its_operators_could_be_replayed(time):
    with guard():
        net = Linear(3, 2)
        found, traced = TracedLayer.trace(net, [to_variable(X)])
        assert [op.type for op in traced.program.global_block().ops] == ["matmul", "elementwise_add"]
        np.testing.assert_allclose(traced([X])[0], found.numpy(), rtol=1e-5)


def test_sparse_look_ups_keep_sparse_gradients():
    class Looking(Layer):
        def __init__(self):
            super().__init__()
            self.table = fluid.dygraph.Embedding([6, 2], is_sparse=True)

        @declarative
        def forward(self, ids):
            return layers.reduce_sum(self.table(ids), dim=[1])

        @declarative
        def looping(self, ids):
            total = 0.0
            for i in range(layers.fill_constant([1], "int64", 2)):
                total = total + layers.reduce_sum(self.table(ids)) * i
            return total

    with guard():
        layer = Looking()
        ids = to_variable(np.array([1, 3, 1], "int64"))
        layer(ids).backward()
        values, rows = layer.table.weight.gradient()
        np.testing.assert_array_equal(rows, [1, 3, 1])
        np.testing.assert_array_equal(values, np.ones((3, 2)))
        with pytest.warns(DygraphToStaticWarning, match="sparse look-ups"):
            layer.looping(ids)


@pytest.mark.parametrize("name", ["digits", "word2vec"])
def test_declared_programs_give_fluids_losses(name):
    build = next(p for p in train.PROGRAMS if p.__name__ == name)
    golden = json.loads((Path(__file__).parents[1] / "golden/dygraph.json").read_text())
    losses, _ = train.train(build, train.declared)
    np.testing.assert_allclose(losses, golden[name]["losses"], rtol=1e-4)


@fluid.dygraph.declarative
def _converts(x):
    x = fluid.dygraph.to_variable(x)
    return x + fluid.dygraph.to_variable(np.full([1], 2, "float32"))


def test_arrays_are_converted_in_a_declared_function():
    ones = np.ones((2, 3), "float32")
    with fluid.dygraph.guard():
        for given in (ones, fluid.dygraph.to_variable(ones), 4 * ones):
            expect = (given if isinstance(given, np.ndarray) else ones) + 2
            np.testing.assert_array_equal(_converts(given).numpy(), expect)
