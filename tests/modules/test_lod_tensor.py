"""LoDTensor and places, as scripts use them."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.lod_tensor import LoDTensor, MeasuredLod


def test_lengths_and_offsets():
    tensor = fluid.create_lod_tensor(np.arange(6).reshape(6, 1), [[2, 1], [1, 2, 3]], fluid.CPUPlace())
    assert tensor.lod() == [[0, 2, 3], [0, 1, 3, 6]] and tensor.recursive_sequence_lengths() == [
        [2, 1],
        [1, 2, 3],
    ]
    assert tensor.has_valid_recursive_sequence_lengths() and tensor.shape() == [6, 1] and len(tensor) == 6
    with pytest.raises(errors.ProgramError, match="the tensor has 6 rows"):
        tensor.set_lod([[0, 5]])
    assert tensor.lod() == [[0, 2, 3], [0, 1, 3, 6]]
    tensor.set(np.zeros((5, 1)))
    assert not tensor.has_valid_recursive_sequence_lengths()
    copy = np.array(tensor)
    copy[:] = 9
    assert np.array(tensor)[0] == 0


def test_offsets_are_the_tensors_own():
    offsets = np.array([0, 1, 4])
    tensor = LoDTensor(np.zeros((4, 1)), [offsets])
    offsets[1] = 3
    assert tensor.lod() == [[0, 1, 4]]


@pytest.mark.parametrize(
    "made",
    [
        lambda rows, offsets: LoDTensor(rows, [offsets]),
        lambda rows, offsets: fluid.create_lod_tensor(rows, [np.diff(offsets).tolist()]),
        lambda rows, offsets: LoDTensor(rows, [[0, len(offsets) - 1], offsets]),
    ],
)
def test_offsets_are_measured_as_they_are_set(made):
    lod = made(np.zeros((5, 1)), [0, 1, 1, 5])._lod
    assert (lod.longest, lod.rows) == (4, 5)
    assert np.frombuffer(lod.packed, np.int32).tolist() == ([0, 1, 1, 5] if len(lod) == 1 else [])
    assert MeasuredLod([np.array([0], np.int64)]).rows == 0


def test_text():
    value = np.array([[1.5], [1e-9], [123456789.0]], "float32")
    tensor = fluid.create_lod_tensor(value, [[1, 1], [1, 2]], fluid.CPUPlace())
    assert str(tensor) == (
        "\tlod: {{0, 1, 2}{0, 1, 3}}\n\tdim: 3, 1\n\tlayout: NCHW\n\tdtype: float\n\tdata: [1.5 1e-09 1.23457e+08]\n"
    )
    tensor = fluid.LoDTensor(np.array([[True, False]]))
    assert str(tensor).endswith("dtype: bool\n\tdata: [1 0]\n")
    assert repr(tensor) == "<LoDTensor bool [1, 2] lod=[]>"
    assert str(fluid.LoDTensor()) == "<LoDTensor uninitialized lod=[]>"


def test_elements():
    tensor = fluid.LoDTensor()
    tensor._set_dims([2, 3])
    tensor._alloc_float(fluid.CPUPlace())
    tensor._set_float_element(4, 1.5)
    assert np.array(tensor).tolist() == [[0, 0, 0], [0, 1.5, 0]]
    assert tensor._get_float_element(4) == 1.5
    with pytest.raises(errors.DtypeError, match="holds float32, and no float64"):
        tensor._get_double_element(0)
    with pytest.raises(errors.PositionError, match="has 6 elements, and none at 6"):
        tensor._set_float_element(6, 0.0)
    tensor._set_dims([3, 2])
    assert tensor.shape() == [3, 2] and tensor._get_float_element(4) == 1.5
    with pytest.raises(errors.ShapeError, match=r"holds 6 elements of \[3, 2\]"):
        tensor._set_dims([4])
    tensor._clear()
    tensor._alloc_double(fluid.CPUPlace())
    tensor._set_double_element(1, 2.5)
    assert tensor._get_double_element(1) == 2.5 and tensor.shape() == [3, 2]
    tensor._alloc_int(fluid.CPUPlace())
    assert np.array(tensor).dtype == np.int32
    with pytest.raises(errors.UninitializedError, match="_set_dims"):
        fluid.LoDTensor()._alloc_float(fluid.CPUPlace())


def test_setting_an_element_leaves_other_holders_of_the_array_alone():
    array = np.zeros(3, "float32")
    tensor = fluid.LoDTensor(array)
    tensor._set_float_element(0, 1.0)
    assert array.tolist() == [0, 0, 0] and np.array(tensor).tolist() == [1, 0, 0]


def test_from_lists_and_random():
    tensor = fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]], fluid.CPUPlace())
    assert np.array(tensor).tolist() == [[1], [2], [3]]
    made = fluid.create_random_int_lodtensor([[2, 3]], [4], fluid.CPUPlace(), 5, 7)
    assert made.shape() == [5, 4] and set(np.unique(np.array(made))) <= {5, 6, 7}


def test_a_tensor_without_a_value_is_an_empty_array():
    empty = np.array(fluid.Scope().var("not_run_yet").get_tensor())
    assert empty.shape == (0,)
    assert empty.dtype == np.float64


def test_errors():
    with pytest.raises(errors.ProgramError, match="the tensor has 3 rows"):
        fluid.create_lod_tensor(np.zeros((3, 1)), [[1, 1]], fluid.CPUPlace())
    with pytest.raises(errors.ProgramError, match=r"do not match the lists, of lengths \[2\]"):
        fluid.create_lod_tensor([[1, 2]], [[3]], fluid.CPUPlace())
    with pytest.raises(errors.ProgramError, match="must start at 0 and never fall"):
        fluid.LoDTensor().set_lod([[0, 3, 2]])
    with pytest.raises(TypeError, match="no element type of Fluid"):
        fluid.LoDTensor().set(np.zeros(2, "complex64"))


@pytest.mark.parametrize(
    ("level", "found"),
    [([0, 2.5, 4], "2.5"), ([0, float("nan"), 4], "nan"), ([0, 1e30], "1e[+]30"), (["0", "2"], "'2'")]
    + [([0, 2**63], "9.22"), ([0, 2**64], str(2**64)), ([0, None], "None"), ([0, 1j], "1j"), ([[0, 2]], "0, 2")],
)
def test_offsets_are_integers(level, found):
    for take in (fluid.LoDTensor().set_lod, fluid.LoDTensor().set_recursive_sequence_lengths):
        with pytest.raises(errors.ProgramError, match=f"lod: expected a list of integers for each level.*{found}"):
            take([level])
    with pytest.raises(errors.ProgramError, match="lod: expected a list of integers"):
        fluid.LoDTensor(np.zeros((4, 1), "float32"), [level])


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool", "float32", "float64"])
def test_whole_numbers_of_any_dtype_are_offsets(dtype):
    tensor = fluid.LoDTensor(np.zeros((1, 1), "float32"), [np.array([0, 1], dtype)])
    assert tensor.lod() == [[0, 1]] and all(type(offset) is int for offset in tensor.lod()[0])


@pytest.mark.filterwarnings("ignore:this program is compiled anew:RuntimeWarning")
def test_ragged_rows_through_the_executor():
    x = fluid.data("x", [None, 1], dtype="int64", lod_level=1)
    y = fluid.layers.scale(x, 2.0)
    exe = fluid.Executor(fluid.CPUPlace())
    for lengths in ([1, 2], [4, 0, 9]):
        rows = np.arange(sum(lengths)).reshape(-1, 1)
        ragged = fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace())
        (found,) = exe.run(feed={"x": ragged}, fetch_list=[y], return_numpy=False)
        assert found.recursive_sequence_lengths() == [lengths]
        np.testing.assert_array_equal(np.array(found), 2 * rows)
    with pytest.raises(errors.FetchError, match=r"lod \[\[0, 4, 4, 13\]\].*return_numpy=False"):
        exe.run(feed={"x": ragged}, fetch_list=[y])
    ragged._lod = [np.array([0, 4])]
    with pytest.raises(errors.FeedError, match="does not describe its 13 rows"):
        exe.run(feed={"x": ragged}, fetch_list=[y])


def test_places(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "3")
    assert fluid.cpu_places() == [fluid.CPUPlace()] * 3 and len(fluid.cpu_places(2)) == 2
    assert len(fluid.cuda_pinned_places(2)) == 2
    assert repr(fluid.CUDAPlace(1)) == "CUDAPlace(1)" and fluid.CUDAPlace(1).get_device_id() == 1
    if not fluid.is_compiled_with_cuda():
        with pytest.raises(errors.PlaceError, match="JAX sees no GPU"):
            fluid.cuda_places()
    with pytest.raises(errors.PlaceError, match=r"CUDAPlace\(99\)"):
        fluid.cuda_places([99])


def test_a_tensor_tells_its_place():
    tensor = fluid.LoDTensor()
    tensor.set(np.ones(2, "float32"), fluid.CPUPlace())
    place = tensor._place()
    assert place.is_cpu_place() and not place.is_gpu_place() and not place.is_cuda_pinned_place()
    assert place._equals(fluid.CPUPlace()) and not place._equals(fluid.CUDAPinnedPlace())


def test_notebooks_show_tensors_as_tables():
    tensor = fluid.create_lod_tensor(np.float32([[1], [2], [3]]), [[2, 1]], fluid.CPUPlace())
    shown = tensor._repr_html_()
    assert "lod=[[0, 2, 3]]" in shown and "<td>0</td><td>2</td><td><code>[[1.] [2.]]</code></td>" in shown
    many = fluid.LoDTensor(np.zeros([50, 1000], "float32"))._repr_html_()
    assert many.count("<tr>") == 1 + 20 + 1 and "and 30 more" in many and len(many) < 5000
    assert "uninitialized" in fluid.LoDTensor()._repr_html_()
    assert "<code>7</code>" in fluid.LoDTensor(np.int64(7))._repr_html_()
