"""Arrays that XLA reads where they are: their numbers, and where readers and loaders leave batches."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid.host import aligned_memory
from jfluid.host.aligned_memory import ALIGNMENT

X = np.arange(6000, dtype="float32").reshape(20, 300)


def _is_aligned(array):
    return array.__array_interface__["data"][0] % ALIGNMENT == 0


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (20, 300)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", object])
def test_an_array_has_its_shape_and_type(shape, dtype):
    made = aligned_memory.empty(shape, dtype)
    assert made.shape == shape and made.dtype == dtype


def test_a_copy_begins_at_a_line_and_is_another_array():
    copy = aligned_memory.copied(X[:, ::2])
    np.testing.assert_array_equal(copy, X[:, ::2])
    assert _is_aligned(copy) and not np.shares_memory(copy, X)


def test_arrays_are_stacked_as_numpy_stacks_them():
    for values in ([X, X + 1], [X, X.astype("float64")], [1, 2.5], [[1, 2], [3, 4]], list(X)):
        found, expected = aligned_memory.stacked(values), np.stack(list(map(np.asarray, values)))
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    assert _is_aligned(aligned_memory.stacked(list(X)))
    converted = aligned_memory.stacked(list(X.astype("float64") + 0.5), "int64")
    np.testing.assert_array_equal(converted, X.astype("int64"))
    assert _is_aligned(converted)
    for wrong in ([], [X, X[:1]]):
        with pytest.raises(ValueError):
            aligned_memory.stacked(wrong)


def _samples():
    return ((row.astype("float64"),) for row in X)


def _batches():
    yield [X]


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("of_samples", [False, True])
def test_a_loader_leaves_batches_where_xla_reads_them(processes, of_samples):
    main = fluid.Program()
    with fluid.program_guard(main):
        x = fluid.data("x", [None, 300])
        loader = fluid.io.DataLoader.from_generator(
            [x], capacity=2, use_multiprocess=processes, use_double_buffer=False
        )
    if of_samples:
        loader.set_sample_generator(_samples, batch_size=len(X), places=fluid.cpu_places(1))
    else:
        loader.set_batch_generator(_batches, places=fluid.cpu_places(1))
    for feed in loader():
        array = (feed if isinstance(feed, dict) else feed[0])["x"].value
        np.testing.assert_array_equal(array, X)
        assert _is_aligned(array)


def _aligned(value):
    """An array that JAX would take as it lies."""
    made = aligned_memory.empty((64, 64), "float32")
    made[...] = value
    return made


def test_imperative_parameters_do_not_follow_the_arrays_they_were_set_to():
    given = _aligned(1)
    with fluid.dygraph.guard(fluid.CPUPlace()):
        layer = fluid.dygraph.Linear(64, 64)
        layer.weight.set_value(given)
        given[...] = 2
        assert layer.weight.numpy().max() == 1
        layer.set_dict({"weight": given, "bias": np.zeros(64, "float32")})
        given[...] = 3
        assert layer.weight.numpy().max() == 2


def test_variables_of_a_scope_do_not_follow_the_arrays_they_were_set_to():
    given, main, startup = _aligned(1), fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        weight = fluid.layers.create_parameter([64, 64], "float32", name="weight")
        out = fluid.layers.scale(weight, 2.0)
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        fluid.global_scope().find_var("weight").get_tensor().set(given, fluid.CPUPlace())
        for value in (2, 3):
            (found,) = executor.run(main, fetch_list=[out])
            assert found.max() == 2
            given[...] = value
