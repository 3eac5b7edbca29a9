"""Fluid's binary format of tensors.

A LoDTensor is, little-endian and without padding:

    uint32 version (0) | uint64 levels | for each level: uint64 bytes, its uint64 offsets | the dense tensor

and a dense tensor is

    uint32 version (0) | int32 length | TensorDesc message of that length | the elements, row-major

SelectedRows are

    uint32 version (0) | uint64 rows | their int64 numbers | int64 height | the dense tensor

A combined file holds such streams one after the other, without names.
"""

import math
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError

from jfluid.files.storage import BoundedReader, atomic_write, bounded_reader
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.codec import number_of
from jfluid.ir.types import np_dtype, var_type

_MAX_DESC = 1 << 16  # a TensorDesc of 64 KiB has thousands of dimensions
_MAX_RANK = 64  # NumPy's own limit
_MAX_LEVELS = 64
_MOST_ELEMENTS = 1 << 56


@dataclass
class Stored:
    """A tensor as files hold it.

    Attributes:
        value: the elements.
        lod: the offsets of its sequences, a list for each level.
        rows: for SelectedRows, the number of each row of `value`.
        height: for SelectedRows, how many rows the whole has.
    """

    value: np.ndarray
    lod: list[list[int]] = field(default_factory=list)
    rows: np.ndarray | None = None
    height: int | None = None


def write_dense(file: BinaryIO, value: Any) -> None:
    """Write the dense tensor's part of the format."""
    value = np.asarray(value)
    _write_head(file, value.dtype, value.shape)
    _write_elements(file, value)


def _write_head(file: BinaryIO, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    desc = pb.VarType.TensorDesc(data_type=number_of(var_type(dtype)), dims=shape).SerializeToString()
    file.write(struct.pack("<Ii", 0, len(desc)) + desc)


def _write_elements(file: BinaryIO, value: np.ndarray) -> None:
    value = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    file.write(value.reshape(-1).view(np.uint8).data)


def save_in_parts(path: str | os.PathLike[str], dtype: Any, shape: Sequence[int], parts: Iterable[np.ndarray]) -> None:
    """Write a file of one LoDTensor from parts with consecutive rows.

    Raises ValueError, and leaves no file, when the parts are not the rows of that shape.
    """
    with atomic_write(path) as file:
        write_in_parts(file, os.fspath(path), dtype, shape, parts)


def write_in_parts(file: BinaryIO, name: str, dtype: Any, shape: Sequence[int], parts: Iterable[np.ndarray]) -> None:
    """Write one LoDTensor from parts with consecutive rows.

    Raises ValueError, which names the file, when the parts are not the rows of that shape.
    """
    dtype, rows = np.dtype(dtype), 0
    file.write(struct.pack("<IQ", 0, 0))
    _write_head(file, dtype, shape)
    for part in parts:
        if part.shape[1:] != tuple(shape[1:]) or part.dtype != dtype:
            raise ValueError(
                f"{name}: expected rows of {dtype}{list(shape[1:])}, found {part.dtype}{list(part.shape[1:])}"
            )
        _write_elements(file, part)
        rows += len(part)
    if rows != shape[0]:
        raise ValueError(f"{name}: expected {shape[0]} rows, found {rows}")


def load_rows(
    path: str | os.PathLike[str], name: str, dtype: Any, shape: Sequence[int], first: int, rows: int
) -> np.ndarray:
    """Read `rows` rows, from `first` on, of the one LoDTensor in a file, and no other rows.

    Raises FileFormatError, naming file and variable, where the file is truncated or damaged, or
    holds another tensor.
    """
    dtype = np.dtype(dtype)
    with bounded_reader(path) as reader:
        reader.what = name
        _lod(reader)
        found = _head(reader)
        if found != (dtype, tuple(shape)):
            raise reader.refuse(f"expected {dtype}{list(shape)}, found {found[0]}{list(found[1])}")
        reader.skip(first * math.prod(shape[1:]) * dtype.itemsize, "the rows before")
        value = np.empty((rows, *shape[1:]), dtype.newbyteorder("<"))
        reader.take_into(value.reshape(-1).view(np.uint8), f"{rows} rows")
        return value.astype(dtype, copy=False)


def write_tensor(file: BinaryIO, value: Any, lod: Sequence[Sequence[int]] = ()) -> None:
    """Write a LoDTensor."""
    file.write(struct.pack("<IQ", 0, len(lod)))
    for level in lod:
        offsets = np.asarray(level, "<u8")
        file.write(struct.pack("<Q", offsets.nbytes) + offsets.tobytes())
    write_dense(file, value)


def write_selected_rows(file: BinaryIO, rows: Any, height: int, value: Any) -> None:
    """Write SelectedRows."""
    rows = np.asarray(rows, "<i8")
    file.write(struct.pack("<IQ", 0, len(rows)) + rows.tobytes() + struct.pack("<q", height))
    write_dense(file, value)


def read_dense(reader: BoundedReader) -> np.ndarray:
    """Read a dense tensor.

    Raises FileFormatError before memory is taken for what the file does not hold.
    """
    dtype, shape = _head(reader)
    value = np.empty(shape, dtype.newbyteorder("<"))
    reader.take_into(value.reshape(-1).view(np.uint8), f"{dtype}{list(shape)}")
    if dtype.kind == "b":  # any other byte than 0 is true, and NumPy takes 1 only
        np.not_equal(value.view(np.uint8), 0, out=value)
    return value.astype(dtype, copy=False)


def _head(reader: BoundedReader) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Read (dtype, shape) of a dense tensor, and check that all elements follow."""
    version = reader.number("<I", "the version of the tensor")
    if version != 0:
        raise reader.refuse(f"unknown version {version} of the tensor, expected 0: this is no file of Fluid 1.x")
    length = reader.number("<i", "the length of the tensor's description")
    if not 0 < length <= _MAX_DESC:
        raise reader.refuse(f"the tensor's description has an impossible length, {length}")
    try:
        desc = pb.VarType.TensorDesc.FromString(reader.take(length, "the tensor's description"))
        dtype = np_dtype(desc.data_type)
    except (DecodeError, TypeError) as e:
        raise reader.refuse(f"the tensor's description is damaged: {e}") from e
    shape = tuple(desc.dims)
    if len(shape) > _MAX_RANK or any(d < 0 for d in shape):
        raise reader.refuse(f"impossible shape {list(shape)[:8]}")
    reader.need(math.prod(shape) * dtype.itemsize, f"{dtype}{list(shape)[:8]}")
    # NumPy multiplies what stands beside a dimension of 0, too
    if math.prod(d or 1 for d in shape) >= _MOST_ELEMENTS:
        raise reader.refuse(f"impossible shape {list(shape)[:8]}")
    return dtype, shape


def read_tensor(reader: BoundedReader) -> Stored:
    """Read a LoDTensor.

    Raises FileFormatError where the stream is truncated or contradicts itself.
    """
    lod = _lod(reader)
    value = read_dense(reader)
    for i, level in enumerate(lod):
        below = len(lod[i + 1]) - 1 if i + 1 < len(lod) else (value.shape or (1,))[0]
        if not level or level[0] != 0 or level[-1] != below or any(b < a for a, b in zip(level, level[1:])):
            raise reader.refuse(f"lod level {i} does not divide the {below} rows below it")
    return Stored(value, lod)


def pass_tensor(reader: BoundedReader) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return (dtype, shape) of a LoDTensor, and skip the elements.

    Raises FileFormatError where the stream is truncated or contradicts itself.
    """
    _lod(reader)
    dtype, shape = _head(reader)
    reader.skip(math.prod(shape) * dtype.itemsize, f"{dtype}{list(shape)}")
    return dtype, shape


def _lod(reader: BoundedReader) -> list[list[int]]:
    """Read the offsets of a LoDTensor, up to the beginning of the dense tensor."""
    _version(reader, "LoDTensor")
    levels = reader.number("<Q", "the number of lod levels")
    if levels > _MAX_LEVELS:
        raise reader.refuse(f"impossible number of lod levels, {levels}")
    lod = []
    for i in range(levels):
        size = reader.number("<Q", f"the size of lod level {i}")
        if size % 8:
            raise reader.refuse(f"lod level {i} has an impossible size, {size} bytes")
        lod.append(np.frombuffer(reader.take(size, f"lod level {i}"), "<u8").tolist())
    return lod


def read_selected_rows(reader: BoundedReader) -> Stored:
    """Read SelectedRows.

    Raises FileFormatError where the stream is truncated or contradicts itself.
    """
    _version(reader, "SelectedRows")
    count = reader.number("<Q", "the number of rows")
    rows = np.frombuffer(reader.take(count * 8, "the row numbers"), "<i8").astype(np.int64)
    height = reader.number("<q", "the height")
    value = read_dense(reader)
    if not value.shape or value.shape[0] != count:
        raise reader.refuse(f"{count} row numbers, but a tensor of shape {list(value.shape)}")
    if height < 0 or (count and not 0 <= rows.min() <= rows.max() < height):
        raise reader.refuse(f"row numbers must lie between 0 and the height, {height}")
    return Stored(value, rows=rows, height=height)


def _version(reader: BoundedReader, kind: str) -> None:
    version = reader.number("<I", f"the version of the {kind}")
    if version != 0:
        raise reader.refuse(f"unknown version {version} of the {kind}, expected 0: this is no file of Fluid 1.x")


def save_tensors(path: str | os.PathLike[str], tensors: Sequence[Stored]) -> None:
    """Write one file that holds the tensors in order."""
    with atomic_write(path) as file:
        write_tensors(file, tensors)


def write_tensors(file: BinaryIO, tensors: Sequence[Stored]) -> None:
    """Write tensors in order."""
    for tensor in tensors:
        if tensor.rows is None:
            write_tensor(file, tensor.value, tensor.lod)
        else:
            write_selected_rows(file, tensor.rows, tensor.height or 0, tensor.value)


def load_tensors(
    path: str | os.PathLike[str], names: Sequence[str], selected_rows: frozenset[str] = frozenset()
) -> list[Stored]:
    """Return the tensors of a file that holds exactly the tensors of `names`, in that order.

    Args:
        selected_rows: the names among them that are stored as SelectedRows.

    Raises FileFormatError naming the file and the variable where it is truncated, oversized or
    damaged.
    """
    found = []
    with bounded_reader(path) as reader:
        for name in names:
            reader.what = name
            found.append(read_selected_rows(reader) if name in selected_rows else read_tensor(reader))
        reader.finish()
    return found
