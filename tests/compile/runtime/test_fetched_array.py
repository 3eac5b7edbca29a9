"""Fetches convert to numbers as they did with NumPy of 2020; in all else they are arrays."""

import copy
import io
import math
import pickle

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.runtime.fetched_array import FetchedArray, fetched

LINES = {
    "float": lambda v: float(v),
    "int": lambda v: int(v * 4),
    "complex": lambda v: complex(v),
    "percent": lambda v: "%.2f" % v,  # noqa: UP031, as scripts have it
    "digits": lambda v: "%d" % (v * 4),  # noqa: UP031, as scripts have it
    "format": lambda v: f"{v:6.3f}",
    "math": lambda v: math.isnan(v),
    "assigned": lambda v: _assigned(v),
    "of an expression": lambda v: float(v * 2 + 1),
}


def _assigned(value):
    kept = np.zeros(3)
    kept[1] = value
    return kept.sum()


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_a_number(line, shape):
    assert LINES[line](fetched(np.full(shape, 0.25, np.float32))) == LINES[line](np.float32(0.25))
    if len(shape) == 2:
        assert float(fetched(np.full(shape, 0.25))[0]) == 0.25


@pytest.mark.parametrize("convert", [float, int, complex, lambda v: f"{v:.2f}"])
def test_several_elements_are_none(convert):
    with pytest.raises(TypeError):
        convert(fetched(np.ones(2)))


def test_in_all_else_it_is_an_array():
    plain = np.arange(6, dtype=np.int64).reshape(2, 3)
    value = fetched(plain)
    assert isinstance(value, np.ndarray) and value.dtype == plain.dtype and value.shape == plain.shape
    assert repr(value) == repr(plain) and str(value) == str(plain) and f"{value}" == f"{plain}"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert type(again) is np.ndarray and (again == plain).all()
    assert (copy.deepcopy(value) == plain).all() and (
        np.concatenate([value, plain]) == np.concatenate([plain, plain])
    ).all()
    assert type(value.sum()) is type(value[0, 0]) is type(np.max(value)) is np.int64
    assert value.tolist() == plain.tolist() and value.flags.writeable and value.base is not plain
    file = io.BytesIO()
    np.save(file, value)
    assert file.getvalue().startswith(b"\x93NUMPY")


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_commonest_line_of_old_scripts(replicas, monkeypatch):
    monkeypatch.setenv("CPU_NUM", str(replicas))
    x = fluid.data("x", [None, 2])
    loss = layers.mean(layers.fc(x, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.default_main_program()
    if replicas > 1:
        program = fluid.CompiledProgram(program).with_data_parallel(loss.name)
    feed = np.ones((4, 2), np.float32)
    for _ in range(3):  # the third takes the short way
        found = exe.run(program, feed={"x": feed}, fetch_list=[loss])
        assert type(found[0]) is FetchedArray
        if replicas == 1:
            assert found[0].shape == (1,) and float(found[0]) == found[0].item() and f"{found[0]:f}"
        else:
            assert found[0].shape == (2,) and float(found[0][:1]) == found[0][0]
    # what was fetched may be fed
    again = exe.run(program, feed={"x": fetched(feed)}, fetch_list=[loss])
    assert np.isfinite(again[0]).all()
