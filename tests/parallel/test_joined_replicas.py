"""Replicas on the CPU as one program: the numbers of replicas on devices of their own."""

import re

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.parallel.joined_replicas import JoinedReplicas
from jfluid.parallel.replicas import Replicas

STEPS = 3


@pytest.fixture(autouse=True)
def two_replicas(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")


def joined(on):
    fluid.set_flags({"FLAGS_cpu_replicas_joined": on})


@pytest.fixture(autouse=True)
def flag_as_it_was():
    yield
    joined(True)


def convolutional():
    x, label = fluid.data("x", [None, 2, 6, 6]), fluid.data("label", [None, 1], "int64")
    hidden = layers.conv2d(x, 4, 3, padding=1, bias_attr=False)
    hidden = layers.batch_norm(hidden, act="relu", momentum=0.5)
    hidden = layers.pool2d(hidden, 2, "max", 2)
    hidden = layers.dropout(layers.fc(hidden, 6), 0.5)
    # the mean of each replica, a number of each row
    hidden = layers.elementwise_sub(hidden, layers.reduce_mean(hidden, dim=0))
    hidden = layers.elementwise_mul(hidden, layers.reduce_sum(hidden, dim=1), axis=0)
    hidden = layers.concat([layers.tanh(hidden), hidden], 1)[:, :6]
    # a parameter that is used twice, and once without the batch
    shared = layers.create_parameter([6, 6], "float32", name="shared")
    hidden = layers.matmul(layers.matmul(hidden, shared), shared)
    loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 3), label))
    loss = loss + 0.1 * layers.reduce_sum(layers.square(shared))
    return loss, lambda r, rows: {
        "x": r.randn(rows, 2, 6, 6).astype("float32"),
        "label": r.randint(0, 3, (rows, 1)),
    }


def sequences():
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    hidden = layers.embedding(ids, [20, 8], is_sparse=True)
    hidden = layers.sequence_pool(layers.dynamic_gru(layers.fc(hidden, 12), 4), "max")
    loss = layers.mean(layers.square(layers.fc(hidden, 1)))

    def feed(r, rows):
        lengths = r.randint(1, 5, rows).tolist()
        return {"ids": fluid.create_lod_tensor(r.randint(0, 20, (sum(lengths), 1)), [lengths], None)}

    return loss, feed


def trained(build, rows):
    """(losses of each step, the state, the losses of the test program, the placement) of `rows` rows
    in each step.
    """
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 7
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = build()
        test = main.clone(for_test=True)
        fluid.optimizer.Adam(0.05).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        program = fluid.CompiledProgram(main).with_data_parallel(loss.name)
        random = np.random.RandomState(0)
        fetches = [loss, "fc_0.w_0@GRAD"]
        losses = [exe.run(program, feed=feed(random, rows), fetch_list=fetches) for _ in range(STEPS)]
        tests = fluid.CompiledProgram(test).with_data_parallel(share_vars_from=program)
        last = exe.run(tests, feed=feed(random, rows), fetch_list=[loss.name])
        state = {v.name: np.array(scope.find_var(v.name).get_tensor()) for v in main.list_vars() if v.persistable}
    placements = [s.placement for p in (program, tests) for s in p._parallel.steps.values()]
    return [*losses, last], state, placements


@pytest.mark.parametrize("build, rows", [(convolutional, 7), pytest.param(sequences, 6, marks=pytest.mark.nightly)])
def test_numbers_are_those_of_replicas_apart(build, rows):
    """Statistics that each replica has for itself, which the test program reads, and random numbers
    among them; 7 rows are 4 and 3. Before each change `test_replicas.py` has sequences and sparse rows in joined
    replicas.
    """
    found, state, placements = trained(build, rows)
    assert all(isinstance(p, JoinedReplicas) for p in placements)
    joined(False)
    expected, expected_state, apart = trained(build, rows)
    assert all(isinstance(p, Replicas) for p in apart)
    for values, others in zip(found, expected):
        for value, other in zip(values, others):
            np.testing.assert_allclose(value, other, rtol=2e-4, atol=1e-5)
    assert list(state) == list(expected_state)
    for name, value in state.items():
        np.testing.assert_allclose(value, expected_state[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_state_is_there_once_and_goes_from_mode_to_mode():
    """What each replica has for itself stays so where the program goes on in replicas apart, and
    back.
    """
    x = fluid.data("x", [None, 3])
    hidden = layers.batch_norm(x, momentum=0.5)
    loss = layers.mean(hidden)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.global_scope()
    exe.run(fluid.default_startup_program())
    test = fluid.default_main_program().clone(for_test=True)
    rows = np.array([[0, 0, 0], [0, 2, 4], [8, 8, 8], [8, 8, 12]], "float32")

    def run(program, fetch):
        compiled = fluid.CompiledProgram(program).with_data_parallel()
        return exe.run(compiled, feed={"x": rows}, fetch_list=[fetch])[0]

    mean, expected = "batch_norm_0.w_1", np.zeros((2, 3))
    for on in (True, False, True):
        joined(on)
        run(fluid.default_main_program(), loss)
        expected = 0.5 * expected + 0.5 * np.array([[0, 1, 2], [8, 8, 10]])
        np.testing.assert_allclose(np.array(scope.find_var(mean).get_tensor()), expected[0])
        devices = scope.find_var("batch_norm_0.w_0").get_tensor().value.sharding.device_set
        assert len(devices) == (1 if on else 2)
    joined(True)
    normalised = run(test, hidden)
    assert normalised.shape == (4, 3)
    # each replica by its own mean: what one device would give differs
    spread = np.diff((rows - expected.repeat(2, 0)), axis=1)
    assert np.sign(np.round(np.diff(normalised, axis=1), 3)).tolist()[0] == np.sign(spread)[0].tolist()
    (alone,) = exe.run(test, feed={"x": rows}, fetch_list=[hidden])
    np.testing.assert_allclose(alone[:2], normalised[:2], rtol=1e-4, atol=1e-5)
    assert np.abs(alone[2:] - normalised[2:]).max() > 0.1


def test_programs_that_cannot_be_joined_run_apart():
    x = fluid.data("x", [None, 4])
    hidden = layers.fc(x, 3)
    loss = layers.mean(hidden)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())

    def placement(program, fetches):
        compiled = fluid.CompiledProgram(program).with_data_parallel(loss.name)
        values = exe.run(compiled, feed={"x": np.ones((4, 4), "float32")}, fetch_list=fetches)
        (step,) = compiled._parallel.steps.values()
        return type(step.placement), values

    main = fluid.default_main_program()
    kind, (gradient,) = placement(main, ["fc_0.w_0@GRAD"])
    assert kind is JoinedReplicas and gradient.shape == (8, 3)  # the sum, once for each replica
    np.testing.assert_allclose(gradient, np.full((8, 3), 1 / 3), rtol=1e-5)
    with fluid.program_guard(main):
        layers.Print(loss)
    assert placement(main, [loss])[0] is Replicas


def lowered(exe, program, feed, loss):
    """The text of a step as it is passed to XLA."""
    exe.run(program, feed=feed, fetch_list=[loss])
    (step,) = program._parallel.steps.values()
    (segment,) = step.segments
    called, call = [], segment.call
    segment.call = lambda *given: called.append(given) or call(*given)
    exe.run(program, feed=feed, fetch_list=[loss])
    shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), called[0])
    with jax.enable_x64(True):
        return segment.exact.lower(*shapes).as_text()


def test_images_of_all_replicas_are_one_batch():
    """Only statistics of rows know of replicas: with a dimension more, XLA would make other kernels
    than for one device.
    """
    x = fluid.data("x", [None, 2, 6, 6])
    short = layers.conv2d(x, 4, 3, padding=1, bias_attr=False)
    hidden = layers.batch_norm(layers.conv2d(short, 4, 3, padding=1), act="relu")
    hidden = layers.pool2d(layers.elementwise_add(hidden, short), 2, "max", 2)
    loss = layers.mean(layers.fc(hidden, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
    text = lowered(exe, program, {"x": np.ones((6, 2, 6, 6), "float32")}, loss)
    stacked = [line for line in text.splitlines() if re.search(r"tensor<2x3x\d+x\d+x\d+xf32>", line)]
    kinds = {found[1] for line in stacked if (found := re.search(r"= \"?(stablehlo\.\w+)", line))}
    assert kinds <= {"stablehlo.reshape", "stablehlo.slice"} and len(stacked) > 4


def test_a_step_is_compiled_once():
    """What replicas have for themselves is at first the same in all, and afterwards what the step
    gave.
    """
    loss = layers.mean(layers.batch_norm(layers.fc(fluid.data("x", [None, 3]), 4)))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)

    def run():
        exe.run(program, feed={"x": np.ones((4, 3), "float32")}, fetch_list=[loss])

    run()
    compiled = []

    def note(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        run()
        assert not compiled
        jax.jit(lambda: jax.numpy.float32(len(compiled)))()
        assert compiled  # the event is still called so
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def test_gradients_of_shared_parameters_are_one_product():
    x = fluid.data("x", [None, 4])
    loss = layers.mean(layers.fc(layers.fc(x, 16, bias_attr=False), 5, bias_attr=False))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
    text = lowered(exe, program, {"x": np.ones((6, 4), "float32")}, loss)
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 5  # two forward, two of parameters, one of what is between them
    assert not any("batching_dims" in line for line in products)
    # XLA would turn round a copy of the gradient for a product over two dimensions
    assert not any("contracting_dims = [0, 1]" in line for line in products)
