"""Steps that NumPy runs until they are compiled."""

import os
import subprocess
import sys
import threading
import weakref

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.dynamic_shapes.buckets import Buckets
from jfluid.compile.dynamic_shapes.traced import Traced
from jfluid.compile.numpy_steps import beside
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.compile.runtime import library_fusions
from jfluid.compile.runtime.executables import Executables


@pytest.fixture
def interprets(monkeypatch):
    """Switch the interpreter on; second calls begin compilations."""
    monkeypatch.setattr(beside, "_PAYS", 0.0)
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    yield
    fluid.set_flags({"FLAGS_interpret_first_steps": False})


@pytest.fixture
def held(monkeypatch):
    """Hold compilations in other threads until the event is set."""
    go, before = threading.Event(), beside.Beside._make

    def make(self):
        go.wait()
        before(self)

    monkeypatch.setattr(beside.Beside, "_make", make)
    yield go
    go.set()


def compiling():
    return [t for t in threading.enumerate() if t.name == beside.THREAD]


def finish():
    for thread in compiling():
        thread.join()


def classifier():
    image, label = layers.data("image", [3, 8, 8]), layers.data("label", [1], dtype="int64")
    hidden = layers.conv2d(image, 4, 3, padding=1, act="relu")
    hidden = layers.pool2d(layers.batch_norm(hidden), 2, pool_stride=2)
    loss = layers.mean(layers.cross_entropy(layers.fc(hidden, 5, act="softmax"), label))
    fluid.optimizer.SGD(0.01).minimize(loss)
    return loss


def batches(count):
    rng = np.random.RandomState(3)
    for _ in range(count):
        yield {
            "image": rng.rand(6, 3, 8, 8).astype("float32"),
            "label": rng.randint(0, 5, (6, 1)),
        }


def losses(loss, count):
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    main.random_seed = startup.random_seed = 7
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [float(exe.run(feed=batch, fetch_list=[loss])[0]) for batch in batches(count)]


def test_steps_do_not_wait_for_their_compilation(interprets, held):
    loss = classifier()
    fluid.set_flags({"FLAGS_interpret_first_steps": False})
    expected = losses(loss, 3)
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    found = losses(loss, 3)  # the compilation waits: all are interpreted
    assert len(compiling()) == 1
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_executable_takes_over(interprets):
    loss = classifier()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = next(batches(1))
    for _ in range(2):
        exe.run(feed=feed, fetch_list=[loss])
    finish()
    exe.run(feed=feed, fetch_list=[loss])
    (step,) = [s for s in exe.engine._steps.values() if s.whole is not None and s.plan.feeds]
    assert step.whole.exact.plain.count() == 1


def test_what_runs_once_is_not_compiled(interprets):
    function = Executables(lambda: jax.jit(lambda x: x * 2), interprets=jax.devices("cpu")[0])
    assert function(np.arange(3.0, dtype=np.float32)).tolist() == [0, 2, 4]
    assert function.count() == 0 and not compiling()


def test_small_steps_are_compiled_once_interpreting_took_as_long_as_tracing(interprets, held, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(beside, "_PAYS", 1.0)
    monkeypatch.setattr(beside.time, "perf_counter", lambda: next(clock) * 0.1)
    function = jax.jit(lambda x: x * 2).trace(np.ones(2, np.float32))
    step = beside.Beside(function, 1.5, lambda: None, jax.devices("cpu")[0])
    begun = []
    for _ in range(12):
        step.run((np.ones(2, np.float32),))
        begun.append(bool(compiling()))
    assert begun == sorted(begun) and begun[-1]
    assert 3 < begun.index(True) < 9  # a call takes 0.2 s of this clock


def test_results_do_not_share_memory_with_arguments(interprets):
    function = Executables(lambda: jax.jit(lambda x: x), interprets=jax.devices("cpu")[0])
    memory = np.zeros(4096 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64  # as XLA wants it to take an array as it lies
    given = memory[start : start + 4096 * 4].view(np.float32)
    given[:] = 1
    found = function(given)
    given[:] = 0
    assert np.asarray(found).min() == 1


def test_an_error_of_the_compilation_reaches_the_step(interprets, monkeypatch):
    function = Executables(lambda: jax.jit(lambda x: x + 1), interprets=jax.devices("cpu")[0])

    def fail(*args):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(library_fusions, "compiled", fail)
    x = np.ones(2, np.float32)
    assert function(x).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="no compiler"):
        function(x)  # begins the compilation, which may fail before the interpreter is done
        finish()
        function(x)


def test_a_file_is_read_once(interprets):
    class Kept:
        loads = 0

        def prepare(self, trace, arguments):
            return None

        def load(self, arguments):
            self.loads += 1
            return jax.jit(lambda x: x + 1).lower(*arguments).compile()

    kept, x = Kept(), np.ones(2, np.float32)
    function = Executables(lambda: jax.jit(lambda x: x), kept, jax.devices("cpu")[0])
    assert function.begin((x,))
    assert function(x).tolist() == [2, 2] and function(x).tolist() == [2, 2]
    assert kept.loads == 1 and function.count() == 1


@pytest.mark.parametrize("setting", ["FLAGS_cudnn_deterministic", "FLAGS_interpret_first_steps"])
def test_steps_wait_where_results_must_not_depend_on_the_clock(interprets, setting):
    cpu = jax.devices("cpu")[0]
    assert beside.device_of_interpreter(cpu) is cpu
    wish = setting == "FLAGS_cudnn_deterministic"
    fluid.set_flags({setting: wish})
    try:
        assert beside.device_of_interpreter(cpu) is None
    finally:
        fluid.set_flags({setting: not wish})


def test_imperative_steps_do_not_wait(interprets, held):
    with fluid.dygraph.guard(fluid.CPUPlace()):
        layer = fluid.dygraph.Linear(4, 3)
        adam = fluid.optimizer.SGDOptimizer(0.1, parameter_list=layer.parameters())
        x = fluid.dygraph.to_variable(np.ones((2, 4), np.float32))
        found = []
        for _ in range(5):
            loss = layers.mean(layers.square(layer(x)))
            loss.backward()
            adam.minimize(loss)
            layer.clear_gradients()
            found.append(float(loss.numpy()))
    assert found == sorted(found, reverse=True) and found[-1] < found[0]


def test_arguments_are_not_held_and_few_forms_are(interprets):
    function = Executables(lambda: jax.jit(lambda x: x * 2), interprets=jax.devices("cpu")[0])
    for size in range(1, 20):
        given = jax.numpy.ones(size, np.float32)
        function(given)
        held = weakref.ref(given)
        del given
        assert held() is None
    assert len(function._begun) <= 8


def test_half_precision_that_numpy_does_not_know_waits(interprets):
    function = Executables(lambda: jax.jit(lambda x: x @ x), interprets=jax.devices("cpu")[0])
    assert float(function(jax.numpy.ones((2, 2), jax.numpy.bfloat16))[0, 0]) == 2
    assert function.count() == 1


def test_batches_run_in_a_larger_bucket_until_their_own_is_compiled(interprets, held, monkeypatch):
    monkeypatch.setattr(Traced, "pays", lambda *_: True)
    x = fluid.data("x", [None, 4])
    loss = layers.mean(layers.fc(x, 3))
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())

    def run(rows):
        return exe.run(feed={"x": np.ones((rows, 4), "float32")}, fetch_list=[loss])[0]

    with monkeypatch.context() as patch:
        patch.setattr(Buckets, "refine", lambda self: False)
        for rows in (60, 50, 41):
            run(rows)
        held.set()
        finish()
        large = run(44)
    held.clear()
    *_, step = exe.engine._steps.values()
    traced = step.segments[-1].call._traces[-1]
    assert len(traced.compiled) == 1 and traced.compiled_bucket({"n0": 44})
    for _ in range(40):
        np.testing.assert_allclose(run(20), large, rtol=1e-5)
    assert len(compiling()) == 1 and len(traced.compiled) == 1
    held.set()
    finish()
    run(20)
    assert len(traced.compiled) == 2


@pytest.mark.process
def test_first_steps_are_interpreted_by_default():
    script = "from jfluid import flags; print(flags.get('FLAGS_interpret_first_steps'))"
    environment = {n: v for n, v in os.environ.items() if n != "FLAGS_interpret_first_steps"}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True"


def test_a_step_with_large_intermediate_results_waits_for_its_compilation(interprets, held, monkeypatch):
    monkeypatch.setattr(beside, "MOST_BYTES", 6 * 4 * 8 * 8 * 4 - 1)  # one feature map
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        loss = classifier()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    for feed in batches(3):
        exe.run(main, feed=feed, fetch_list=[loss])
    assert not compiling()


def test_most_bytes_of_a_listing():
    def function(x):  # y, then y and z, then z and the sum
        y = jax.numpy.sin(x)
        z = jax.numpy.cos(y)
        return z.reshape(2, 50) + 1

    x = np.ones(100, "float32")
    assert Listing(jax.make_jaxpr(function)(x)).most_bytes == 2 * 400
