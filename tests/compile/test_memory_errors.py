"""Programs that take more memory than there is: a named error, and the process goes on."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors

FAR_TOO_MANY = 2**45  # 128 TiB of float32: more than addresses reach, so that nothing of it is taken
layers = fluid.layers


def made(build):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        out = build()
    return main, out


BUILDS = {
    "constant": lambda: layers.exp(layers.fill_constant([FAR_TOO_MANY], "float32", 1.5)),
    "random": lambda: layers.exp(layers.gaussian_random([FAR_TOO_MANY])),
    "fed": lambda: layers.expand(fluid.data("x", [None, 1]), [1, 2**43]),
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_run_without_enough_memory(name):
    main, out = made(BUILDS[name])
    feed = {"x": np.ones((4, 1), np.float32)} if "x" in main.global_block().vars else {}
    with pytest.raises(errors.OutOfMemoryError, match="bytes were asked for|more than any memory") as e:
        fluid.Executor(fluid.CPUPlace()).run(main, feed, [out])
    assert isinstance(e.value, MemoryError)
    assert "the largest variable of the program" in str(e.value) and "test_memory_errors.py" in str(e.value)


@pytest.mark.parametrize("count", [2**61, 2**62, 2**63 - 1])
def test_sizes_that_overflow(count):
    main, out = made(lambda: layers.exp(layers.fill_constant([count], "float32", 1.5)))
    with pytest.raises(errors.OutOfMemoryError, match="(?s)operator fill_constant .*more than any memory"):
        fluid.Executor(fluid.CPUPlace()).run(main, fetch_list=[out])


def test_a_scope_keeps_its_values():
    main, start = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, start), fluid.unique_name.guard():
        w = layers.create_parameter([2], "float32", name="w")
        huge = layers.reduce_max(layers.exp(layers.gaussian_random([FAR_TOO_MANY])))
        layers.assign(layers.elementwise_add(w, layers.fill_constant([2], "float32", 1.0)), w)
        layers.assign(layers.expand(layers.reshape(huge, [1]), [2]), w)
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(start)
        small, out = made(lambda: layers.fill_constant([1], "float32", 3.0))
        try:
            executor.run(main, fetch_list=[w])
        except errors.OutOfMemoryError:
            pass  # XLA may also do it without the large array
        assert executor.run(small, fetch_list=[out])[0] == 3


def test_imperative_mode():
    with fluid.dygraph.guard():
        x = layers.exp(layers.fill_constant([FAR_TOO_MANY], "float32", 1.0))
        with pytest.raises(errors.OutOfMemoryError):
            x.numpy()
        assert layers.reduce_sum(fluid.dygraph.to_variable(np.ones(3, np.float32))).numpy() == 3


def test_replicas():
    import jax

    count = len(jax.devices("cpu"))
    main, out = made(BUILDS["random"])
    compiled = fluid.CompiledProgram(main).with_data_parallel(places=[fluid.CPUPlace()] * count)
    with pytest.raises(errors.OutOfMemoryError):
        fluid.Executor(fluid.CPUPlace()).run(compiled, fetch_list=[out])
