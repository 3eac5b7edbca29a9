"""Loops, conditions, arrays and cells: the real Fluid's values and gradients
(tests/golden/control.json), and our own.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.layers import control_flow
from tests.parity.control import BATCH, PROGRAMS, _batch, run

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "control.json").read_text())


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda b: b.__name__)
def test_values_and_gradients_are_fluids(build):
    found = run(fluid, build)
    assert len(found) == len(GOLDEN[build.__name__])
    for (values, shape, lod), (want, want_shape, want_lod) in zip(found, GOLDEN[build.__name__]):
        assert (shape, lod) == (want_shape, want_lod)
        np.testing.assert_allclose(values, want, rtol=1e-4, atol=1e-5)


def _fetch(feed, fetches):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe.run(feed=feed, fetch_list=fetches)


def test_while_loop_has_the_gradient_of_its_iterations():
    # Fluid itself gives zeros here.
    _, x, feed = _batch(fluid)
    i, ten = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 10)
    i, y = layers.while_loop(lambda i, y: layers.less_than(i, ten), lambda i, y: [i + 1, layers.scale(y, 1.1)], [i, x])
    grad = fluid.append_backward(layers.mean(y))[0][1]
    i, y, grad = _fetch(feed, [i, y, grad])
    assert i == [10]
    np.testing.assert_allclose(y, BATCH * 1.1**10, rtol=1e-5)
    np.testing.assert_allclose(grad, BATCH.sum(0)[:, None] * np.full(4, 1.1**10 / 12), rtol=1e-4)


def test_loops_without_gradients_run_as_long_as_data_say():
    x = fluid.data("v", [3, 4])
    total, steps = layers.reduce_sum(x), layers.fill_constant([1], "int64", 0)
    limit = layers.fill_constant([1], "float32", 100.0)
    going = layers.less_than(total, limit)
    with layers.While(going).block():
        layers.assign(layers.scale(total, 2.0), total)
        layers.increment(steps)
        layers.less_than(total, limit, cond=going)
    total, steps = _fetch({"v": np.full((3, 4), 0.25, "float32")}, [total, steps])
    assert total == [192.0] and steps == [6]


def test_arrays_joined_and_stacked():
    _, x, feed = _batch(fluid)
    i = layers.fill_constant([1], "int64", 0)
    array = layers.array_write(x, i)
    array = layers.array_write(layers.square(x), layers.increment(i), array=array)
    joined, sizes = layers.tensor_array_to_tensor(array, axis=1)
    stacked, _ = layers.tensor_array_to_tensor(array, axis=0, use_stack=True)
    grad = fluid.append_backward(layers.mean(joined) + layers.scale(layers.reduce_sum(stacked), 0.1))[0][1]
    joined, sizes, stacked, grad = _fetch(feed, [joined, sizes, stacked, grad])
    np.testing.assert_allclose(joined, np.concatenate([BATCH, BATCH**2], 1), rtol=1e-6)
    np.testing.assert_allclose(stacked, np.stack([BATCH, BATCH**2]), rtol=1e-6)
    assert sizes.tolist() == [4, 4]
    # Fluid counts only one of the two gradients of the array.
    np.testing.assert_allclose(grad, BATCH.T @ ((1 + 2 * BATCH) * (1 / 24 + 0.1)), rtol=1e-4, atol=1e-6)


def test_concat_and_stack_take_an_array():
    x = fluid.data("x", [2, 3])
    array = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    layers.array_write(layers.square(x), layers.fill_constant([1], "int64", 1), array=array)
    made = [layers.concat(array, axis=-1), layers.stack([array], axis=1)]
    value = np.arange(6, dtype="float32").reshape(2, 3)
    joined, stacked = _fetch({"x": value}, made)
    np.testing.assert_array_equal(joined, np.concatenate([value, value**2], -1))
    np.testing.assert_array_equal(stacked, np.stack([value, value**2], 1))
    with pytest.raises(TypeError, match=r"layers\.concat: expected one array, or tensors alone"):
        layers.concat([array, x])


def test_an_element_that_was_never_written():
    _, x, feed = _batch(fluid)
    array = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    missing = layers.array_read(array, layers.fill_constant([1], "int64", 3))
    with pytest.raises(errors.OpError, match="the array holds nothing at 3; it has 1 elements"):
        _fetch(feed, [missing])


def test_loops_that_hold_host_operators_run_on_the_host():
    seen = []
    x = fluid.data("v", [2])
    out = layers.fill_constant([2], "float32", 0.0)
    i, limit = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    going = layers.less_than(i, limit)
    with layers.While(going).block():
        new = layers.elementwise_add(out, x)
        spied = new.block.create_var(name="spied", dtype="float32", shape=[2])
        layers.py_func(func=lambda a: seen.append(a.copy()) or a, x=new, out=spied)
        layers.assign(spied, out)
        layers.increment(i)
        layers.less_than(i, limit, cond=going)
    (found,) = _fetch({"v": np.array([1, 2], "float32")}, [out])
    assert found.tolist() == [3, 6] and [s.tolist() for s in seen] == [[1, 2], [2, 4], [3, 6]]


def test_wrong_use():
    v, x, _ = _batch(fluid)
    with pytest.raises(TypeError, match="While, cond: expected a boolean Variable, found FP32"):
        layers.While(x)
    with (
        pytest.raises(errors.ProgramError, match="the block never writes the condition"),
        layers.While(layers.reduce_sum(x) > 0.0).block(),
    ):
        layers.scale(x, 2.0)
    with pytest.raises(errors.ProgramError, match="cond: the branches return different structures"):
        layers.cond(layers.reduce_sum(x) > 0.0, lambda: [x, x], lambda: x)
    with pytest.raises(errors.ProgramError, match="body returns a different structure"):
        i = layers.fill_constant([1], "int64", 0)
        layers.while_loop(
            lambda i: layers.less_than(i, layers.fill_constant([1], "int64", 2)),
            lambda i: [i, i],
            [i],
        )
    rnn = layers.DynamicRNN()
    with pytest.raises(errors.ProgramError, match=r"DynamicRNN\.step_input: call it inside"):
        rnn.step_input(x)
    with pytest.raises(errors.ProgramError, match="call step_input first"), rnn.block():
        rnn.memory(shape=[3])
    static = layers.StaticRNN()
    with (
        pytest.raises(errors.ProgramError, match="is never updated; call update_memory"),
        static.step(),
    ):
        static.step_input(layers.reshape(x, [1, 3, 4]))
        static.memory(init=v)
    with pytest.raises(TypeError, match="array: expected an array made by layers.create_array"):
        layers.array_read(x, layers.fill_constant([1], "int64", 0))
    with pytest.raises(errors.ProgramError, match="an index occurs twice"):
        layers.switch_case(layers.fill_constant([1], "int32", 0), [(1, lambda: x), (1, lambda: x)])


@pytest.mark.parametrize("taken", [False, True])
def test_switch_passes_the_gradient_of_the_value_that_stays(taken):
    _, x, feed = _batch(fluid)
    out = layers.scale(x, 3.0)
    limit = layers.fill_constant([1], "float32", -1e3 if taken else 1e3)
    with layers.Switch() as switch, switch.case(layers.reduce_sum(x) > limit):
        layers.assign(layers.scale(x, 5.0), out)
    grad = fluid.append_backward(layers.reduce_sum(out))[0][1]
    (found,) = _fetch(feed, [grad])
    np.testing.assert_allclose(found, BATCH.sum(0)[:, None] * np.full(4, 5.0 if taken else 3.0), rtol=1e-5)


def test_a_block_that_runs_where_conditions_hold():
    x = fluid.data("x", [None, 1])
    low, always = (layers.create_global_var([1], 0.0, "float32", persistable=True) for _ in "ab")
    small = layers.less_than(layers.reduce_mean(x), layers.fill_constant([1], "float32", 2.0))
    with control_flow.ConditionalBlock([small], is_scalar_condition=True).block():
        layers.assign(layers.fill_constant([1], "float32", 7.0), low)
    with control_flow.ConditionalBlock([x]).block():
        layers.assign(layers.reduce_mean(x), always)
    numbers = [layers.fill_constant([1], "float32", n) for n in (5.0, 6.0)]
    chosen = control_flow.select_input(numbers, layers.cast(small, "int32"))
    for value, expected in ((3.0, [0.0, 3.0, 5.0]), (1.0, [7.0, 1.0, 6.0])):
        feed = {"x": np.full((2, 1), value, "float32")}
        assert np.ravel(_fetch(feed, [low, always, chosen])).tolist() == expected
    with pytest.raises(TypeError, match="expected Variables, found float"):
        control_flow.ConditionalBlock([1.0])
    with pytest.raises(TypeError, match="mask: expected a Variable of int32"):
        control_flow.select_input(numbers, small)


@pytest.mark.parametrize("bound, value, gradient", [(9.0, 6.0, 2.0), (1.0, 3.0, 1.0)])
def test_a_condition_that_is_known_while_the_step_is_compiled(bound, value, gradient):
    """The branch that is not taken has no values."""
    x = fluid.data("x", [1])
    x.stop_gradient = False
    three, limit = (layers.fill_constant([1], "float32", v) for v in (3.0, bound))
    y = layers.cond(layers.less_than(three, limit), lambda: x * 2.0, lambda: x)
    (dx,) = fluid.gradients(y, x)
    assert [v[0] for v in _fetch({"x": np.full(1, 3, "float32")}, [y, dx])] == [value, gradient]


@pytest.mark.parametrize("chosen", [[1, 1, 1], [0, 0, 0], [0, 1, 0]])
def test_documents_of_which_one_is_empty_in_an_if_else(chosen):
    x, c = layers.data("x", [1], lod_level=2), layers.data("c", [1])
    x.stop_gradient = False
    choice = layers.IfElse(layers.greater_than(c, layers.fill_constant([1], "float32", 0.5)))
    with choice.true_block():
        choice.output(layers.scale(choice.input(x), 2.0))
    with choice.false_block():
        choice.output(layers.scale(choice.input(x), 3.0))
    (out,) = choice()
    (grad,) = fluid.gradients([layers.reduce_sum(out + x)], [x])
    rows, lengths = np.arange(5, dtype="float32")[:, None], [[2, 0, 1], [1, 3, 1]]
    feed = {"x": fluid.create_lod_tensor(rows, lengths), "c": np.array(chosen, "float32")[:, None]}
    exe = fluid.Executor(fluid.CPUPlace())
    out, grad = exe.run(feed=feed, fetch_list=[out, grad], return_numpy=False)
    factor = np.repeat(3 - np.array(chosen, "float32"), [4, 0, 1])[:, None]
    np.testing.assert_array_equal(np.array(out), rows * factor)
    assert out.recursive_sequence_lengths() == lengths
    np.testing.assert_array_equal(np.array(grad), factor + 1)
