"""Programs whose shapes follow from values that are fed or computed: one step for each combination
of values.
"""

import warnings

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.compile.runtime import specialize
from jfluid.parallel import replica_feeds
from tests.layers.run import run

pytestmark = pytest.mark.usefixtures("interpreted_steps")

X = np.arange(24, dtype="float32").reshape(2, 3, 4)


def number(n):
    return np.array([n], "int32")


def fetch(fetches, **feed):
    return fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=fetches)


@pytest.fixture(scope="module")
def by_one_number():
    """Values of each layer for a = 1 and for a = 2, from one program."""
    with fluid.program_guard(fluid.Program()), fluid.unique_name.guard():
        x, a = fluid.data("x", [-1, 3, 4]), fluid.data("a", [1], "int32")
        image = layers.reshape(x, [-1, 1, 3, 4])
        ids = layers.fill_constant([2, 1], "int64", 1)
        nets = {
            "slice": layers.slice(x, [2], [a], [4]),
            "strided_slice": layers.strided_slice(x, [1, 2], [0, 0], [3, 4], [a, a]),
            "unsqueeze": layers.unsqueeze(x, a),
            "crop_tensor": layers.crop_tensor(x, [2, a, -1], [0, 0, a]),
            "expand": layers.expand(x, [1, a, 1]),
            "reshape": layers.reshape(x, [-1, layers.scale(a, 6.0)]),
            "fill_constant": layers.fill_constant([a, 3], "float32", 2.5),
            "uniform_random": layers.shape(layers.uniform_random([a, 3])),
            "one_hot": fluid.one_hot(ids, layers.scale(a, bias=1)),
            "sequence_mask": layers.sequence_mask(ids, a, "float32"),
            "concat": layers.concat([x, x], a),
            "pad2d": layers.pad2d(image, layers.concat([a, a, layers.scale(a, 2.0), a])),
            "range": layers.range(0, a, 1, "int32"),
            "linspace": layers.linspace(0.0, 1.0, a, "float32"),
            "split": layers.split(x, [a, -1], 2)[1],
            "topk": layers.topk(x, a)[0],
        }
        found = [fetch(list(nets.values()), x=X, a=number(n)) for n in (1, 2)]
    return {name: [each[i] for each in found] for i, name in enumerate(nets)}


@pytest.mark.parametrize(
    "layer, expected",
    [
        ("slice", lambda a: X[..., a:]),
        ("strided_slice", lambda a: X[:, ::a, ::a]),
        ("unsqueeze", lambda a: np.expand_dims(X, a)),
        ("crop_tensor", lambda a: X[:, :a, a:]),
        ("expand", lambda a: np.tile(X, (1, a, 1))),
        ("reshape", lambda a: X.reshape(-1, 6 * a)),
        ("fill_constant", lambda a: np.full((a, 3), 2.5, "float32")),
        ("uniform_random", lambda a: np.array([a, 3], "int32")),
        ("one_hot", lambda a: np.eye(a + 1, dtype="float32")[[[1], [1]]][:, 0]),
        ("sequence_mask", lambda a: np.eye(a, dtype="float32")[[0, 0]][:, None]),
        ("concat", lambda a: np.concatenate([X, X], a)),
        ("pad2d", lambda a: np.pad(X[:, None], ((0, 0), (0, 0), (a, a), (2 * a, a)))),
        ("range", lambda a: np.arange(a, dtype="int32")),
        ("linspace", lambda a: np.linspace(0, 1, a, dtype="float32")),
        ("split", lambda a: X[..., a:]),
        ("topk", lambda a: -np.sort(-X)[..., :a]),
    ],
)
def test_a_shape_follows_from_a_fed_number(layer, expected, by_one_number):
    for a, found in zip((1, 2), by_one_number[layer]):
        np.testing.assert_array_equal(
            found.squeeze(-2) if layer == "one_hot" and found.ndim > 2 else found, expected(a)
        )


def test_bounds_in_one_tensor():
    found = run(lambda x, a: layers.slice(x, [1, 2], a, [3, 4]), x=X, a=np.array([1, 2], "int32"))
    np.testing.assert_array_equal(found, X[:, 1:, 2:])


def test_wrong_values_say_where():
    with pytest.raises(errors.ShapeError, match=r"unsqueeze: axis 9 .*(\n.*)*test_specialize"):
        run(lambda x, a: layers.unsqueeze(x, a), x=X, a=number(9))


def test_a_training_step_with_a_computed_bound():
    """The bound is computed from what the step has updated before, and changes while it trains."""
    x = fluid.data("x", [4, 3])
    w = layers.create_parameter([3, 6], "float32", "w", default_initializer=fluid.initializer.Constant(0.5))
    steps = layers.autoincreased_step_counter(begin=1)
    y = layers.slice(layers.tanh(layers.mul(x, w)), [1], [0], [layers.cast(steps + steps, "int32")])
    loss = layers.reduce_sum(y)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed, weight = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3), np.full((3, 6), 0.5)
    for width in (2, 4, 6):
        out = np.tanh(feed @ weight)[:, :width]
        (found,) = exe.run(feed={"x": feed}, fetch_list=[loss])
        np.testing.assert_allclose(found, out.sum(), rtol=1e-5)
        weight[:, :width] -= 0.1 * feed.T @ (1 - out**2)
    np.testing.assert_allclose(np.array(fluid.global_scope().find_var("w").get_tensor()), weight, rtol=1e-5)


def test_only_many_different_values_warn(monkeypatch):
    monkeypatch.setattr(specialize, "MOST", 2)
    x, a = fluid.data("x", [-1, 3, 4]), fluid.data("a", [1], "int32")
    part = layers.slice(x, [2], [a], [4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 2, 1, 2):
            fetch([part], x=X, a=number(n))
    exe = fluid.Executor(fluid.CPUPlace())
    with pytest.warns(RuntimeWarning, match="each value of a, on which shapes depend"):
        for n in (0, 1, 2):
            exe.run(feed={"x": X, "a": number(n)}, fetch_list=[part])


def test_replicas_that_are_fed_alike(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    x, a = fluid.data("x", [-1, 3]), fluid.data("a", [1], "int32")
    x.stop_gradient = False
    most = layers.cast(layers.reduce_max(layers.concat([a, layers.scale(a, 2.0)])), "int32")
    y = layers.slice(layers.fc(x, 4, bias_attr=False), [1], [a], [most])
    loss = layers.mean(y)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
    part = {"x": np.ones((2, 3), "float32"), "a": number(1)}
    (found,) = exe.run(program, feed=[part, part], fetch_list=[y])
    assert found.shape == (4, 1)
    (found,) = exe.run(program, feed=[part | {"a": number(2)}] * 2, fetch_list=[y])
    assert found.shape == (4, 2)
    (found,) = exe.run(program, feed=[part, part | {"a": number(2)}], fetch_list=[y], return_merged=False)
    assert [f.shape for f in found] == [(2, 1), (2, 2)]
    with pytest.raises(errors.UnsupportedError, match=r"a: .*differs by replica \(\[\[1\], \[2\]\]\)"):
        replica_feeds.the_same("a", np.array([[1], [2]]), joins=False)  # replicas on GPUs


def test_replicas_on_separate_devices_with_different_longest_sequences(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    rows = layers.sequence_pad(layers.embedding(ids, [9, 4]), layers.assign(np.float32([0])))[0]
    loss = layers.mean(rows)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
    feed = {"ids": fluid.create_lod_tensor(np.ones((7, 1), "int64"), [[2, 5]], fluid.CPUPlace())}
    fluid.set_flags({"FLAGS_cpu_replicas_joined": False})
    try:
        with pytest.raises(errors.UnsupportedError, match="set FLAGS_cpu_replicas_joined to 1, or feed"):
            exe.run(program, feed=feed, fetch_list=[loss])
    finally:
        fluid.set_flags({"FLAGS_cpu_replicas_joined": True})


def test_a_slice_that_grows_in_a_loop():
    """Unrolled where the loop's end is known, else run by the host."""
    x, n = fluid.data("x", [8]), fluid.data("n", [1], "int64")
    x.stop_gradient = False

    def loop(end):
        i, total = layers.fill_constant([1], "int64", 1), layers.fill_constant([1], "float32", 0.0)
        total.stop_gradient = False

        def body(i, total):
            part = layers.slice(x, [0], [0], [layers.cast(i, "int32")])
            return [layers.increment(layers.assign(i)), total + layers.reduce_sum(part)]

        return layers.while_loop(lambda i, total: layers.less_equal(i, end), body, [i, total])[1]

    known, fed = loop(layers.fill_constant([1], "int64", 6)), loop(n)
    (grad,) = fluid.gradients([known], [x])
    values = np.arange(8, dtype="float32")
    known, grad, fed = fetch([known, grad, fed], x=values, n=np.array([3]))
    np.testing.assert_array_equal(grad, [6, 5, 4, 3, 2, 1, 0, 0])
    assert known == grad @ values and fed == [0 + 1 + 3]


@pytest.fixture(scope="module")
def unbounded():
    """Sums of powers, by a loop inside a loop, neither of which has a bound before it runs."""
    main = fluid.Program()
    with fluid.program_guard(main), fluid.unique_name.guard():
        x, n = fluid.data("x", [1]), fluid.data("n", [1], "int64")
        x.stop_gradient = False
        i, zero = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "float32", 0.0)
        zero.stop_gradient = False
        sums = layers.array_write(zero, i)
        going = layers.less_than(i, n)
        with layers.While(going).block():
            j, one = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "float32", 1)
            one.stop_gradient = False
            power = layers.while_loop(
                lambda j, power: layers.less_equal(j, i),
                lambda j, power: [layers.increment(layers.assign(j)), power * x],
                [j, one],
            )[1]
            total = layers.array_read(sums, i) + power
            layers.increment(i)
            layers.array_write(total, i, sums)
            layers.less_than(i, n, cond=going)
        last = layers.array_read(sums, n)
        (grad,) = fluid.gradients([last], [x])
        fetches = [last, grad, layers.array_length(sums)]
    exe = fluid.Executor(fluid.CPUPlace())
    return lambda n: exe.run(main, feed={"x": np.array([1.1], "float32"), "n": np.array([n])}, fetch_list=fetches)


@pytest.mark.parametrize("n", [3, 0, 11])
def test_gradients_and_arrays_of_loops_without_a_bound(n, unbounded):
    last, grad, length = unbounded(n)
    powers = np.arange(1, n + 1)
    np.testing.assert_allclose(last, np.sum(1.1**powers, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(grad, np.sum(powers * 1.1 ** (powers - 1), keepdims=True), rtol=1e-5)
    assert length == n + 1


def test_the_gradient_of_a_loop_that_ends_by_its_values():
    x = fluid.data("x", [3])
    x.stop_gradient = False
    total, limit = layers.reduce_sum(x), layers.fill_constant([1], "float32", 100.0)
    going = layers.less_than(total, limit)
    with layers.While(going).block():
        layers.assign(layers.scale(total, 2.0), total)
        layers.less_than(total, limit, cond=going)
    (grad,) = fluid.gradients([layers.mean(total)], [x])
    total, grad = fetch([total, grad], x=np.array([1, 2, 3], "float32"))
    assert total == [192.0]
    np.testing.assert_array_equal(grad, [32, 32, 32])


@pytest.fixture(scope="module")
def by_condition():
    """A sum over a part that only one branch knows the size of, and branches of different shapes."""
    main = fluid.Program()
    with fluid.program_guard(main), fluid.unique_name.guard():
        x, n = fluid.data("x", [2, 4]), fluid.data("n", [1], "int32")
        x.stop_gradient = False
        large = layers.greater_than(n, layers.fill_constant([1], "int32", 2))

        def first_columns():
            end = layers.elementwise_sub(n, layers.fill_constant([1], "int32", 1))
            return layers.reduce_sum(layers.slice(x, [1], [0], [end]))

        part = layers.cond(large, first_columns, lambda: layers.reduce_sum(x) * 10.0)
        shaped = layers.cond(large, lambda: layers.reshape(x, [4, 2]), lambda: x * 1.0)
        (grad,) = fluid.gradients([part], [x])
    exe = fluid.Executor(fluid.CPUPlace())
    x = np.arange(8, dtype="float32").reshape(2, 4)
    return x, lambda n: exe.run(main, feed={"x": x, "n": number(n)}, fetch_list=[part, grad, shaped])


@pytest.mark.parametrize("n", [2, 3, 4])
def test_shapes_inside_of_conditions(n, by_condition):
    x, run_with = by_condition
    part, grad, shaped = run_with(n)
    weight = np.where(np.arange(4) < n - 1, 1.0, 0.0) if n > 2 else np.full(4, 10.0)
    np.testing.assert_allclose(part, [(x * weight).sum()])
    np.testing.assert_array_equal(grad, [weight, weight])
    np.testing.assert_array_equal(shaped, x.reshape(4, 2) if n > 2 else x)


def test_a_bound_that_python_computes():
    x = fluid.data("x", [2, 4])
    x.stop_gradient = False
    bound = fluid.default_main_program().current_block().create_var(name="bound", shape=[1], dtype="int32")
    layers.py_func(lambda v: np.array([int(v[0, 0])], "int32"), x, bound)
    part = layers.slice(x, [1], [0], [bound])
    (grad,) = fluid.gradients([part], [x])
    for n in (3, 1):
        values = np.full((2, 4), n, "float32")
        found, grads = fetch([part, grad], x=values)
        np.testing.assert_array_equal(found, values[:, :n])
        np.testing.assert_array_equal(grads, [np.arange(4) < n] * 2)


def test_an_array_of_any_length_joined():
    x, n = fluid.data("x", [2, 3]), fluid.data("n", [1], "int64")
    x.stop_gradient = False
    i = layers.fill_constant([1], "int64", 0)
    array = layers.array_write(x, i)
    going = layers.less_than(i, n)
    with layers.While(going).block():
        last = layers.array_read(array, i)
        layers.increment(i)
        layers.array_write(layers.scale(last, 2.0), i, array)
        layers.less_than(i, n, cond=going)
    joined, sizes = layers.tensor_array_to_tensor(array, axis=1)
    (grad,) = fluid.gradients([layers.reduce_sum(joined)], [x])
    values = np.arange(6, dtype="float32").reshape(2, 3)
    for n in (0, 5):
        powers = 2.0 ** np.arange(n + 1)
        found, widths, grads = fetch([joined, sizes, grad], x=values, n=np.array([n]))
        np.testing.assert_array_equal(found, np.concatenate([values * p for p in powers], 1))
        assert widths.tolist() == [3] * (n + 1)
        np.testing.assert_array_equal(grads, np.full((2, 3), powers.sum()))


@pytest.mark.parametrize("reduce", [False, True])
def test_loops_of_replicas_that_end_at_different_times(reduce, monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    x, n = fluid.data("x", [-1, 1]), fluid.data("n", [-1, 1], "int64")
    w = layers.create_parameter([1], "float32", "w", default_initializer=fluid.initializer.Constant(1.1))
    i = layers.fill_constant([1], "int64", 0)
    end = layers.reduce_max(n)
    power = layers.while_loop(
        lambda i, power: layers.less_than(i, end),
        lambda i, power: [layers.increment(layers.assign(i)), power * w],
        [i, layers.reduce_mean(x) * w],
    )[1]
    loss = layers.mean(power)
    fluid.optimizer.SGD(0.01).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    build = fluid.BuildStrategy()
    if reduce:
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name, build_strategy=build)
    ends = np.array([3, 9])
    feed = {"x": np.ones((2, 1), "float32"), "n": ends[:, None]}
    (found,) = exe.run(program, feed=feed, fetch_list=[loss])
    np.testing.assert_allclose(found, 1.1 ** (ends + 1), rtol=1e-5)
    found = np.array(fluid.global_scope().find_var("w").get_tensor())
    np.testing.assert_allclose(found, [1.1 - 0.01 * np.mean((ends + 1) * 1.1**ends)], rtol=1e-5)
