"""Readers of the files of snapshots (see snapshot.py), checked against the manifests."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jfluid.ps_server.errors import DamagedError
from jfluid.ps_server.kernels import HEAD
from jfluid.ps_server.manifest import FILE, File, TablePart
from jfluid.ps_server.table import SparseTable

Array = np.ndarray[Any, Any]
_RECORDS = 1 << 16
# Of records of rows those that are wanted, with the ids that they have here.
Chosen = Callable[[Array], Array]


def record(stride: int) -> np.dtype[Any]:
    """Return the dtype of a row in a file, with a body of `stride` numbers."""
    return np.dtype([("head", HEAD), ("body", "<f4", (stride,))])


def read_clock(folder: Path, part: TablePart, table: SparseTable) -> None:
    """Give a table that is empty the steps of a part. Raises DamagedError."""
    rates = read_file(folder, part.rates_file)
    if not part.segments or len(rates) != 12 * part.segments:
        raise DamagedError(f"{folder / part.rates_file.name}: expected {part.segments} rates, found {len(rates)} bytes")
    at = 8 * part.segments
    table.restore_clock(
        part.step, part.learning_rate, np.frombuffer(rates[:at], "<i8"), np.frombuffer(rates[at:], "<f4")
    )


def read_rows(folder: Path, file: File, rows: int, table: SparseTable, waiting: bool, chosen: Chosen | None) -> None:
    """Put the rows of a file, or the chosen rows, into a table.

    Raises DamagedError; then some rows are in the table.
    """
    kind = record(0 if waiting else table.stride)
    path = _checked_size(folder, file)
    if file.size != rows * kind.itemsize:
        raise DamagedError(f"{path}: expected {rows} rows of {kind.itemsize} bytes, found {file.size} bytes")
    crc32 = 0
    with open(path, "rb") as raw:
        while data := raw.read(_RECORDS * kind.itemsize):
            crc32 = zlib.crc32(data, crc32)
            records = np.frombuffer(data, kind)
            if chosen is not None:
                records = chosen(records)
            table.put(np.ascontiguousarray(records["head"]), np.ascontiguousarray(records["body"]), waiting)
    if crc32 != file.crc32:
        raise DamagedError(f"{path}: damaged: its checksum is not that of the manifest")


def _checked_size(folder: Path, file: File) -> Path:
    name = FILE.fullmatch(file.name)
    path = folder / file.name
    if not name or name[5] or not path.is_file() or path.stat().st_size != file.size:
        raise DamagedError(f"{path}: expected a file of {file.size} bytes; it is missing or has a different size")
    return path


def check(folder: Path, file: File) -> None:
    """Raise DamagedError unless a file is as it was written."""
    path, crc32 = _checked_size(folder, file), 0
    with open(path, "rb") as raw:
        while data := raw.read(1 << 22):
            crc32 = zlib.crc32(data, crc32)
    if crc32 != file.crc32:
        raise DamagedError(f"{path}: damaged: its checksum is not that of the manifest")


def read_file(folder: Path, file: File) -> bytes:
    """Return the bytes of a file. Raises DamagedError if the size or the checksum differs."""
    path = _checked_size(folder, file)
    data = path.read_bytes()
    if zlib.crc32(data) != file.crc32:
        raise DamagedError(f"{path}: damaged: its checksum is not that of the manifest")
    return data
