"""Gradients on CPUs hold few intermediate results of the forward pass."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.lowering import table_gradients
from jfluid.compile.runtime import executables

DEPTH = 8
IMAGE = 4 * 8 * 32 * 32 * 4  # bytes of the images between two layers


def _temporary_bytes(build, feed, monkeypatch, optimizer=None, loss_of=lambda x: layers.mean(layers.square(x))):
    """Bytes of intermediate results of a training step, and the losses of three steps."""
    found, made = [], executables.Executable.__init__

    def noted(self, run, arguments, owner):
        found.append(run.memory_analysis().temp_size_in_bytes)
        made(self, run, arguments, owner)

    monkeypatch.setattr(executables.Executable, "__init__", noted)
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        hidden = build()
        loss = loss_of(hidden[-1])
        sgd = fluid.optimizer.SGD(0.1)
        (optimizer(sgd, hidden) if optimizer else sgd).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        found.clear()
        before = fluid.get_flags("FLAGS_interpret_first_steps")
        fluid.set_flags({"FLAGS_interpret_first_steps": False})
        try:
            losses = [exe.run(main, feed=feed, fetch_list=[loss])[0].item() for _ in range(3)]
        finally:
            fluid.set_flags(before)
    return max(found), losses


def _images():
    return {"x": np.random.RandomState(0).randn(4, 8, 32, 32).astype("float32")}


def _convolved(groups):
    x = fluid.data("x", [None, 8, 32, 32])
    for _ in range(DEPTH):
        x = layers.conv2d(x, 8, 3, padding=1, groups=groups, use_cudnn=False, bias_attr=False)
        x = layers.batch_norm(x, act="relu")
    return [x]


@pytest.mark.parametrize("groups", [1, 8])
def test_a_convolution_with_batch_norm_holds_two_images(groups, monkeypatch):
    found, _ = _temporary_bytes(lambda: _convolved(groups), _images(), monkeypatch)
    assert found < (2 * DEPTH + 5) * IMAGE


def _perceptron(act):
    def build():
        x, found = fluid.data("x", [None, 64]), []
        for _ in range(DEPTH):
            x = layers.layer_norm(layers.fc(x, 64), begin_norm_axis=1)
            x = layers.gelu(x) if act == "gelu" else getattr(layers, act)(x)
            found.append(x)
        return found

    return build


ROWS = {"x": np.random.RandomState(0).randn(2048, 64).astype("float32")}


def test_a_layer_with_gelu_and_layer_norm_holds_three_results(monkeypatch):
    found, _ = _temporary_bytes(_perceptron("gelu"), ROWS, monkeypatch)
    assert found < (3 * DEPTH + 5) * ROWS["x"].nbytes


def test_a_layer_with_relu_holds_its_result(monkeypatch):
    def build():
        x = fluid.data("x", [None, 64])
        for _ in range(DEPTH):
            x = layers.fc(x, 64, act="relu")
        return [x]

    found, _ = _temporary_bytes(build, ROWS, monkeypatch)
    assert found < (DEPTH + 4) * ROWS["x"].nbytes


def test_gradient_descent_holds_no_gradient_of_a_table(monkeypatch):
    rows = 2 * table_gradients.LEAST // 150

    def build():
        return [layers.embedding(fluid.data("ids", [None, 1], "int64"), [rows, 150])]

    feed = {"ids": np.random.RandomState(0).randint(0, rows, (64, 1))}
    found, _ = _temporary_bytes(build, feed, monkeypatch)
    assert found < rows * 150 * 4 // 8


@pytest.mark.parametrize("is_sparse", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_table_is_updated_in_place_where_the_loss_is_linear(is_sparse, monkeypatch):
    rows = 2 * table_gradients.LEAST // 150
    ids = np.random.RandomState(0).randint(0, rows, (64, 1))

    def build():
        x = layers.embedding(fluid.data("ids", [None, 1], "int64"), [rows, 150], is_sparse=is_sparse)
        return [layers.fc(x, 1)]

    found, _ = _temporary_bytes(build, {"ids": ids}, monkeypatch, loss_of=layers.mean)
    assert found < rows * 150 * 4 // 8


def test_recomputed_segments_hold_their_checkpoints(monkeypatch):
    def recomputed(sgd, hidden):
        optimizer = fluid.optimizer.RecomputeOptimizer(sgd)
        optimizer._set_checkpoints(hidden[1::2])
        return optimizer

    plain, expected = _temporary_bytes(_perceptron("tanh"), ROWS, monkeypatch)
    found, losses = _temporary_bytes(_perceptron("tanh"), ROWS, monkeypatch, recomputed)
    assert found < 0.7 * plain
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
