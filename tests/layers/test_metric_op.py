"""Metrics computed inside a program."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers

SCORES = np.array([[0.9, 0.1], [0.2, 0.8], [0.35, 0.65], [0.5, 0.5], [0.7, 0.3], [0, 1]], "float32")
LABEL = np.array([[0], [1], [1], [0], [1], [1]])


def net(build, dtypes=("float32", "int64"), shapes=((-1, 2), (-1, 1))):
    """(program, scope, executor, what `build` returned) after the startup program ran."""
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        data = [
            program.global_block().create_var(name=n, shape=s, dtype=d, is_data=True, stop_gradient=True)
            for n, s, d in zip(("x", "label"), shapes, dtypes)
        ]
        built = build(*data)
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    return program, scope, exe, built


def test_accuracy():
    def build(x, label):
        counts = [layers.create_tensor("int32") for _ in range(2)]
        return [layers.accuracy(x, label), layers.accuracy(x, label, 2, *counts), *counts]

    program, scope, exe, built = net(build, shapes=((-1, 3), (-1, 1)))
    assert built[0].name == "accuracy_0.tmp_0"
    x = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.1, 0.4, 0.5], [0.6, 0.3, 0.1]], "float32")
    one, two, correct, total = exe.run(
        program,
        feed={"x": x, "label": np.array([[1], [1], [0], [0]])},
        fetch_list=built,
        scope=scope,
    )
    np.testing.assert_array_equal([one, two, correct, total], [[0.5], [0.75], [3], [4]])
    assert one.dtype == "float32" and correct.dtype == total.dtype == "int32"


def area(positive, negative):
    """The share of (positive, negative) pairs in the right order; a tie counts half."""
    difference = np.subtract.outer(np.floor(positive * 4095), np.floor(negative * 4095))
    return ((difference > 0) + 0.5 * (difference == 0)).mean()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_auc_over_batches(steps):
    program, scope, exe, (total, recent, states) = net(lambda x, y: layers.auc(x, y, slide_steps=steps))
    assert (total.name, recent.name) == ("auc_0.tmp_0", "auc_0.tmp_1")
    assert [v.name for v in states] == [f"_generated_var_{i}" for i in range(4)]
    assert states[0].shape == (((1 + steps) * 4096 + 1,) if steps else (1, 4096)) and states[2].shape == (1, 4096)
    assert all(v.persistable for v in states)
    rng = np.random.RandomState(1)
    seen = []
    for _ in range(4):
        score, label = rng.uniform(size=8).astype("float32"), np.arange(8) % 2
        seen.append((score, label))
        found = exe.run(
            program,
            feed={"x": np.stack([1 - score, score], 1), "label": label[:, None]},
            fetch_list=[total, recent],
            scope=scope,
        )
        for value, batches in zip(found, (seen, seen[-steps:])):
            scores, labels = (np.concatenate(v) for v in zip(*batches))
            np.testing.assert_allclose(value, [area(scores[labels == 1], scores[labels == 0])])
            assert value.dtype == "float64"


def test_auc_takes_the_state_that_fluid_saved(tmp_path):
    """With slide_steps=0 Fluid's startup program makes one element more than its layer declares."""
    program, scope, exe, (total, recent, states) = net(lambda x, y: layers.auc(x, y, num_thresholds=7, slide_steps=0))
    fluids = np.array([0, 2, 0, 2, 2, 0, 0, 0, 0]), np.array([0, 0, 2, 2, 2, 0, 0, 0, 0])
    with fluid.scope_guard(scope):
        for state, value in zip(states, fluids):
            scope.find_var(state.name).get_tensor().set(value)
        fluid.io.save_persistables(exe, str(tmp_path), program)
        for state in states[:2]:
            scope.find_var(state.name).get_tensor().set(np.zeros((1, 8), np.int64))
        fluid.io.load_persistables(exe, str(tmp_path), program)
        feed = {
            "x": np.array([[0.9, 0.1]], np.float32),
            "label": np.array([[1]]),
        }
        exe.run(program, feed=feed, fetch_list=[total, recent])
        assert np.array(scope.find_var(states[0].name).get_tensor()).tolist()[:2] == [1, 2]
        scope.find_var(states[0].name).get_tensor().set(np.zeros((2, 8), np.int64))
        with pytest.raises(errors.JFluidError, match="auc: expected 8 elements"):
            exe.run(program, feed=feed, fetch_list=[total, recent])


def test_auc_refuses_other_arguments():
    for options in ({"curve": "XX"}, {"topk": 2}, {"slide_steps": -1}):
        with pytest.raises(ValueError, match="auc"):
            net(lambda x, y, o=options: layers.auc(x, y, **o))


def test_mean_iou():
    program, scope, exe, built = net(lambda x, y: layers.mean_iou(x, y, 3), ("int32", "int32"), ((-1, 2), (-1, 2)))
    feed = {"x": np.array([[0, 1], [2, 1]], "int32"), "label": np.array([[0, 1], [1, 1]], "int32")}
    mean, wrong, correct = exe.run(program, feed=feed, fetch_list=list(built), scope=scope)
    np.testing.assert_allclose(mean, [(1 + 2 / 3 + 0) / 3], rtol=1e-6)
    np.testing.assert_array_equal([wrong, correct], [[0, 1, 1], [1, 2, 0]])
