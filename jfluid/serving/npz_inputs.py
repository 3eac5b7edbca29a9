"""Requests as an .npz: a zip file with an array in NumPy's format for each input."""

import io
import struct
import warnings
import zipfile
import zlib
from typing import Any

import numpy as np

from jfluid.serving.blocks import Block, block
from jfluid.serving.requests import BadRequest, Input, RequestLimits, check_names, shown
from jfluid.serving.turns import Pause, go_on

_END, _LARGE_END = b"PK\x05\x06", b"PK\x06\x07"  # of a zip file's directory
_END_BYTES, _LARGE_END_BYTES = 22, 20
_ENTRY_BYTES = 1 << 10  # of the directory, for each input
_HEAD_BYTES = 1 << 10  # of an array
_PIECE = 64 << 10  # bytes that are unpacked at once
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
_FORMAT: Any = np.lib.format  # NumPy 2.3 has no types for its functions
_READERS = {
    (1, 0): _FORMAT.read_array_header_1_0,
    (2, 0): _FORMAT.read_array_header_2_0,
}
# What these libraries raise for bytes that are not theirs.
_OF_ZIPS = (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError, NotImplementedError,
            RuntimeError, zlib.error, struct.error, IndexError, OverflowError)  # fmt: skip


class Archive:
    """Arrays of an .npz file with a checked directory, not unpacked yet."""

    def __init__(self, body: Block, inputs: tuple[Input, ...], limits: RequestLimits):
        """Read the directory, in a time that the number of inputs bounds. Raises BadRequest."""
        self._inputs, self._limits = inputs, limits
        _check_directory(body, len(inputs))
        try:
            # a mapping is a file, too
            file = io.BytesIO(body) if isinstance(body, bytearray) else body
            self._file = zipfile.ZipFile(file)  # type: ignore[arg-type]
        except _OF_ZIPS as error:
            raise _wrong(error) from None
        items = self._file.infolist()
        names = [item.filename.removesuffix(".npy") for item in items]
        check_names(names, inputs)
        self._items = dict(zip(names, items, strict=True))
        for name, item in self._items.items():
            if item.compress_type not in _METHODS or item.flag_bits & _ENCRYPTED:
                raise BadRequest(
                    f"{name}: expected an array that is stored or deflated, as numpy.savez and "
                    "numpy.savez_compressed write it"
                )
        self.bytes = sum(item.file_size for item in items)
        if self.bytes > limits.bytes:
            raise BadRequest(f"a request may have {limits.bytes} bytes, unpacked too", 413)

    def arrays(self, pause: Pause = go_on) -> dict[str, np.ndarray]:
        """Return the arrays of the inputs. Raises BadRequest.

        Args:
            pause: called between two pieces of a file.
        """
        found, elements = {}, 0
        for item in self._inputs:
            try:
                entry = self._items[item.name]
                with self._file.open(entry) as file:
                    data = _unpacked(file, entry.file_size, pause)
            except _OF_ZIPS as error:
                raise _wrong(error) from None
            array = _array(item, data)
            elements += array.size
            if elements > self._limits.elements:
                raise BadRequest(f"{item.name}: a request may have {self._limits.elements} numbers", 413)
            found[item.name] = item.fitted(array)
        return found


def _unpacked(file: Any, size: int, pause: Pause) -> memoryview:
    """Unpack the first `size` bytes of a file in an archive.

    The file is read in small pieces: no more than `size` bytes are unpacked, and other threads run between two pieces.
    """
    data, done = memoryview(block(size)), 0
    while done < size:
        count = file.readinto(data[done : done + _PIECE])
        if not count:
            raise EOFError(f"{done} bytes in place of {size}")
        done += count
        pause()
    return data


def _wrong(error: Any) -> BadRequest:
    return BadRequest(f"expected an .npz of arrays: {shown(error)}")


def _check_directory(body: Block, inputs: int) -> None:
    """Raise BadRequest for a directory that is larger than the inputs need.

    The library makes an object for each entry.
    """
    end = len(body) - _END_BYTES
    if end < 0 or body[end : end + 4] != _END:
        end = body.rfind(_END, max(0, end - (1 << 16)))
    if end < 0 or end + _END_BYTES > len(body):
        raise BadRequest("expected an .npz of arrays: this is no zip file")
    entries, size = struct.unpack_from("<HI", body, end + 10)
    large = body[max(0, end - _LARGE_END_BYTES) : end].startswith(_LARGE_END)
    if large or entries > inputs or size > inputs * _ENTRY_BYTES:
        raise BadRequest(
            f"expected an .npz with {inputs} arrays, found {'more' if large else entries}, in a "
            f"directory of {size} bytes"
        )


def _array(item: Input, data: memoryview) -> np.ndarray:
    """Return the array of a file in NumPy's format; the array shares the file's memory."""
    file = io.BytesIO(data[: _HEAD_BYTES + 16])
    try:
        version = _FORMAT.read_magic(file)
        if version not in _READERS:
            raise ValueError(f"version {version}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a literal with odd escapes
            shape, by_columns, dtype = _READERS[version](file, max_header_size=_HEAD_BYTES)
    except Exception as error:  # all that a literal can be wrong in
        raise BadRequest(f"{item.name}: expected an array in NumPy's format: {shown(error)}") from None
    if dtype.kind not in "iubf":
        raise item.wrong(f": found elements of {shown(dtype)}")
    if any(type(size) is not int or size < 0 for size in shape):
        raise item.wrong_shape(shown(list(shape)))
    item.check_shape(shape)
    count, place = 1, file.tell()
    for size in shape:
        count *= size
    if count * dtype.itemsize != len(data) - place:
        raise item.wrong_shape(
            f"{len(data) - place} bytes in place of the {shown(count * dtype.itemsize)} of {list(shape)}"
        )
    array = np.frombuffer(data, dtype, count, place)
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)
