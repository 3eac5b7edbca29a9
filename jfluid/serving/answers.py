"""Answers, encoded in small pieces so that the event loop stays responsive."""

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jfluid.exports.sequences import Sequences, Value
from jfluid.serving.blocks import block

# Names of element types in the Open Inference Protocol.
DATATYPES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
NUMBERS = 2048  # that become text at once: less than a millisecond
_NPZ_BYTES = 8 << 10  # of an .npz beside an array: heads, its name
PIECE = 32 << 10  # bytes that are sent at once


def json_pieces(outputs: Mapping[str, Value]) -> Iterator[bytes]:
    """Yield the text of `{"outputs": {name: lists}}`; numbers that JSON does not have are texts."""
    yield b'{"outputs":{'
    for i, (name, value) in enumerate(outputs.items()):
        yield b"," * (i > 0) + json.dumps(name).encode() + b":"
        yield from _pieces(value)
    yield b"}}"


def _pieces(value: Value) -> Iterator[bytes]:
    if isinstance(value, Sequences):
        yield b"["
        step = max(1, NUMBERS * len(value) // max(value.size, 1))
        for start in range(0, len(value), step):
            text = json.dumps(value[start : start + step].nested(_plain), separators=(",", ":"))
            yield b"," * (start > 0) + text.encode()[1:-1]
        yield b"]"
        return
    if value.size <= NUMBERS:
        yield json.dumps(_plain(value), separators=(",", ":")).encode()
        return
    rows = max(1, NUMBERS * len(value) // value.size)
    yield b"["
    for start in range(0, len(value), rows):
        if start:
            yield b","
        part = value[start : start + rows]
        if part.size > NUMBERS:  # one row
            yield from _pieces(part[0])
        else:
            yield json.dumps(_plain(part), separators=(",", ":")).encode()[1:-1]
    yield b"]"


def _plain(value: np.ndarray) -> Any:
    """Return an array as lists; numbers that JSON does not have are texts."""
    if value.dtype.kind not in "iub" and not np.isfinite(value).all():
        return [_plain(row) for row in value] if value.ndim else str(float(value))
    return value.tolist()


def tensor_pieces(head: Mapping[str, Any], outputs: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yield the text of an answer of the Open Inference Protocol: `head`, then the outputs as flat lists."""
    yield json.dumps(dict(head)).encode()[:-1] + b',"outputs":['
    for i, (name, value) in enumerate(outputs.items()):
        shape = {"name": name, "datatype": DATATYPES[str(value.dtype)], "shape": list(value.shape)}
        yield b"," * (i > 0) + json.dumps(shape).encode()[:-1] + b',"data":'
        yield from _pieces(value.reshape(-1))
        yield b"}"
    yield b"]}"


def npz_file(outputs: Mapping[str, np.ndarray]) -> memoryview:
    """Return the .npz of the outputs."""
    room = block(sum(value.nbytes + _NPZ_BYTES for value in outputs.values()) + _NPZ_BYTES)
    file: Any = io.BytesIO(room) if isinstance(room, bytearray) else room
    np.savez(file, allow_pickle=False, **outputs)
    size = file.tell()
    return memoryview(file.getbuffer() if isinstance(file, io.BytesIO) else file)[:size]


def parts(file: memoryview) -> Iterator[bytes]:
    """Yield a file in parts that are sent one by one."""
    for start in range(0, len(file), PIECE):
        yield bytes(file[start : start + PIECE])
