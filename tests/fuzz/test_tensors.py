"""Tensor files: LoDTensors, SelectedRows, several in one file; and the status of a checkpoint."""

import io as streams

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jfluid import errors
from jfluid.files.tensor_format import load_rows, load_tensors, write_selected_rows, write_tensor
from jfluid.fleet import numbered_checkpoints
from jfluid.ir import framework_pb2 as pb
from tests.fuzz.harness import fuzzed, grows_linearly, mutated, reads_or_refuses


def stream(write, *values):
    out = streams.BytesIO()
    write(out, *values)
    return out.getvalue()


RAGGED = stream(write_tensor, np.arange(5).reshape(5, 1), [[0, 2, 3], [0, 1, 2, 5]])
DENSE = [
    stream(write_tensor, np.arange(12).reshape(3, 4).astype(dtype)) for dtype in ("float32", "bool", "int8", "float64")
]
ROWS = stream(write_selected_rows, [3, 7, 3], 10, np.ones((3, 2), "float32"))


def dims(*sizes):
    """A LoDTensor of float32 that claims this shape, and has no element."""
    desc = pb.VarType.TensorDesc(data_type=pb.VarType.FP32, dims=sizes).SerializeToString()
    return bytes(16) + len(desc).to_bytes(4, "little") + desc


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "w"


def read(file, data, load):
    file.write_bytes(data)
    return reads_or_refuses(lambda path: load(path), file, errors.FileFormatError, len(data))


@fuzzed(150)
@given(data=mutated([RAGGED, *DENSE]))
@example(data=dims(0, 2**40, 2**40))
@example(data=dims(2**62, 2**62, 4))
@example(data=dims(*[1] * 80))
@example(data=dims(-1))
def test_tensors(file, data):
    read(file, data, lambda path: load_tensors(path, ["w"]))


@fuzzed(120)
@given(data=mutated([ROWS]))
def test_selected_rows(file, data):
    read(file, data, lambda path: load_tensors(path, ["w"], frozenset(["w"])))


@fuzzed(80)
@given(data=mutated([b"".join([RAGGED, *DENSE])]))
def test_several_in_one_file(file, data):
    read(file, data, lambda path: load_tensors(path, list("abcde")))


@fuzzed(80)
@given(data=mutated(DENSE), first=st.integers(0, 3), rows=st.integers(0, 3))
def test_some_rows(file, data, first, rows):
    read(
        file,
        data,
        lambda path: load_rows(path, "w", "float32", (3, 4), first, min(rows, 3 - first)),
    )


@fuzzed(80)
@given(data=mutated([b'{"epoch_no": 3}']))
def test_status(file, data):
    read(file, data, lambda path: numbered_checkpoints._status(str(path)))


def test_time(file):
    def load(data):
        file.write_bytes(data)
        load_tensors(file, ["w"])

    grows_linearly(
        load,
        lambda size: stream(write_tensor, np.ones((size, 1)), [list(range(size + 1))]),
        20_000,
        errors.FileFormatError,
    )
