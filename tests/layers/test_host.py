"""Print and py_func within programs that train."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.ir import callables

X = np.arange(6, dtype="float32").reshape(2, 3)


def start(build, count=1):
    """(program, feed, what `build` returned): `build` gets variables [-1, 3] that gradients flow
    to.
    """
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        block = program.global_block()
        data = [block.create_var(name=f"x{i}", shape=[-1, 3], dtype="float32", is_data=True) for i in range(count)]
        built = build(*data)
    return program, {v.name: X + i for i, v in enumerate(data)}, built


def run(program, feed, fetch_list):
    return fluid.Executor(fluid.CPUPlace()).run(program, feed=feed, fetch_list=fetch_list, scope=fluid.Scope())


def out_like(x, name):
    return x.block.create_var(name=name, shape=x.shape, dtype=x.dtype)


def test_print_shows_value_and_gradient(capsys):
    def build(x):
        shown = layers.Print(layers.scale(x, 2.0), message="hello", summarize=2)
        return shown, fluid.gradients(layers.scale(shown, 3.0), x)[0]

    program, feed, (shown, grad) = start(build)
    assert shown.name == "print_scale_0.tmp_0_0.tmp_0" and shown.shape == (-1, 3) and not shown.stop_gradient
    shown, grad = run(program, feed, [shown, grad])
    np.testing.assert_array_equal(shown, 2 * X)
    np.testing.assert_array_equal(grad, np.full((2, 3), 6))
    lines = [line for line in capsys.readouterr().out.splitlines() if "hello" not in line]
    assert lines == [
        "Tensor[scale_0.tmp_0]",
        "\tshape: [2,3]",
        "\tdtype: float32",
        "\tdata: 0,2",
        "Tensor[print_scale_0.tmp_0_0.tmp_0@GRAD]",
        "\tshape: [2,3]",
        "\tdtype: float32",
        "\tdata: 3,3",
    ]


def test_print_stops_after_first_n(capsys):
    program, feed, out = start(lambda x: layers.Print(x, first_n=2, print_phase="forward"))
    exe = fluid.Executor(fluid.CPUPlace())
    for _ in range(4):
        exe.run(program, feed=feed, fetch_list=[out])
    assert capsys.readouterr().out.count("Tensor[x0]") == 2


def test_print_refuses_another_phase():
    with pytest.raises(ValueError, match="expected forward, backward or both, found 'never'"):
        start(lambda x: layers.Print(x, print_phase="never"))


def test_py_func_with_its_own_gradient():
    def build(x):
        hidden = layers.scale(x, 2.0)
        out = layers.py_func(np.tanh, hidden, out_like(x, "tanh"), lambda y, dy: dy * (1 - np.square(y)), hidden)
        return out, fluid.gradients(layers.scale(out, 3.0), x)[0]

    program, feed, (out, grad) = start(build)
    out, grad = run(program, feed, [out, grad])
    np.testing.assert_allclose(out, np.tanh(2 * X), rtol=1e-6)
    np.testing.assert_allclose(grad, 6 * (1 - np.tanh(2 * X) ** 2), rtol=1e-4, atol=1e-6)


def test_py_func_of_several_variables():
    seen = []

    def backward(a, b, product, total, d_product, d_total):
        seen.append((product, total, d_total))
        return d_product * b, None

    def build(a, b):
        outs = layers.py_func(
            lambda a, b: (a * b, a + b),
            [a, b],
            [out_like(a, "product"), out_like(a, "total")],
            backward,
        )
        return outs[0], fluid.gradients(outs[0], [a])[0]

    program, feed, (product, grad) = start(build, 2)
    product, grad = run(program, feed, [product, grad])
    np.testing.assert_array_equal(product, X * (X + 1))
    np.testing.assert_array_equal(grad, X + 1)
    # no gradient came for the sum
    np.testing.assert_array_equal(seen, [(X * (X + 1), 2 * X + 1, 0 * X)])


def test_without_a_backward_function_gradients_stop():
    def build(x):
        out = layers.py_func(lambda v: v + 1, x, out_like(x, "more"))
        return out, fluid.gradients(layers.scale(out, 3.0), x)[0]

    program, feed, (out, grad) = start(build)
    assert grad is None and out.stop_gradient
    np.testing.assert_array_equal(run(program, feed, [out])[0], X + 1)


def test_py_func_may_only_look():
    seen = []
    program, feed, _ = start(lambda x: layers.py_func(seen.append, layers.scale(x, 2.0), None))
    run(program, feed, [])
    np.testing.assert_array_equal(seen, [2 * X])


def test_py_func_refuses_wrong_arguments():
    for build, error, message in (
        (lambda x: layers.py_func(3, x, None), TypeError, "must be functions"),
        (lambda x: layers.py_func(len, X, None), TypeError, "expected list, a Variable or None"),
        (
            lambda x: layers.py_func(len, None, None, len, x),
            ValueError,
            "x0 are neither in x nor in out",
        ),
    ):
        with pytest.raises(error, match=message):
            start(build)
    with pytest.raises(errors.OpError, match=r"returned 1 values, expected 2 \(a, b\)"):
        program, feed, outs = start(lambda x: layers.py_func(lambda v: v, x, [out_like(x, "a"), out_like(x, "b")]))
        run(program, feed, outs)


def test_functions_go_with_the_last_program_that_calls_them():
    class Doubled:
        def __call__(self, value):
            return 2 * value

    def build(x):
        function = Doubled()
        called.append(weakref.ref(function))
        return layers.py_func(function, x, out_like(x, "y"), backward_func=lambda *_: _[-1])

    def count():
        gc.collect()
        return len(callables._entries)

    before, called = count(), []
    program, feed, y = start(build)
    copies = [program.clone(), program.clone(for_test=True), copy.deepcopy(program)]
    del y
    assert count() == before + 2
    while copies:
        del program
        program = copies.pop()
        gc.collect()
        np.testing.assert_array_equal(run(program, feed, ["y"])[0], 2 * X)
    number = program.global_block().ops[0].attr("forward_callable_id")
    assert type(pickle.loads(pickle.dumps(number))) is int
    plain = int(number)
    del program, number
    assert count() == before and called[0]() is None
    with pytest.raises(errors.OpError, match="no Python function has the number"):
        callables.find(plain)
