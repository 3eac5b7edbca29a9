"""Host operators that read and write files of variables."""

import math
import os
from types import SimpleNamespace

import numpy as np

from jfluid import errors
from jfluid.files.tensor_format import Stored, load_tensors, save_tensors
from jfluid.ir.reach import Reach
from jfluid.ops.registry import Bool, Long, Longs, String, op

_FILE = Reach("files", ("file_path",))


def _narrowed(value: np.ndarray, half: bool) -> np.ndarray:
    return value.astype(np.float16) if half and value.dtype.kind == "f" else value


def _stored(value: np.ndarray, name: str, half: bool, ctx: SimpleNamespace) -> Stored:
    var = ctx.scope.find_var(name)
    return Stored(_narrowed(value, half), var.get_tensor().lod() if var is not None else [])


def _refuse_existing(path: str, overwrite: bool) -> None:
    if not overwrite and os.path.exists(path):
        raise errors.OpError(f"{path} exists, and the operator's attribute overwrite is False")


@op("save", ins=("X",), outs=("kLookupTablePath?",), host=True, grad=False, reaches=_FILE)
def save(
    x: np.ndarray, *, ctx: SimpleNamespace, file_path: String, overwrite: Bool = True, save_as_fp16: Bool = False
) -> None:
    """Write the variable to a file."""
    _refuse_existing(file_path, overwrite)
    save_tensors(file_path, [_stored(x, ctx.op.input("X")[0], save_as_fp16, ctx)])


@op("load", outs=("Out",), host=True, grad=False, reaches=_FILE)
def load(
    *, ctx: SimpleNamespace, file_path: String, load_as_fp16: Bool = False, seek: Long = -1, shape: Longs = ()
) -> np.ndarray:
    """Read the variable from a file; with `seek`, read a slice of `shape` from that element on."""
    found = load_tensors(file_path, ctx.op.output("Out"))[0].value
    if seek >= 0:
        flat, count = found.reshape(-1), math.prod(shape)
        if any(d < 0 for d in shape) or seek + count > flat.size:
            raise errors.FileFormatError(
                f"{file_path}, variable {ctx.op.output('Out')[0]}: {list(shape)} from element {seek} "
                f"on reaches beyond its {flat.size} elements"
            )
        found = flat[seek : seek + count].reshape(shape)
    return _narrowed(found, load_as_fp16)


@op("save_combine", ins=("X*",), outs=("Y?",), host=True, grad=False, reaches=_FILE)
def save_combine(
    xs: list[np.ndarray],
    *,
    ctx: SimpleNamespace,
    file_path: String,
    overwrite: Bool = True,
    save_as_fp16: Bool = False,
    save_to_memory: Bool = False,
) -> None:
    """Write the variables to one file, in order."""
    if save_to_memory:
        raise errors.UnsupportedError("save_combine: save_to_memory is not in this release; save to a file")
    _refuse_existing(file_path, overwrite)
    save_tensors(file_path, [_stored(x, n, save_as_fp16, ctx) for x, n in zip(xs, ctx.op.input("X"))])


@op("load_combine", outs=("Out*",), host=True, grad=False, reaches=_FILE)
def load_combine(
    *, ctx: SimpleNamespace, file_path: String, load_as_fp16: Bool = False, model_from_memory: Bool = False
) -> list[np.ndarray]:
    """Read the variables from one file, in order."""
    if model_from_memory:
        raise errors.UnsupportedError("load_combine: model_from_memory is not in this release; give the path of a file")
    return [_narrowed(t.value, load_as_fp16) for t in load_tensors(file_path, ctx.op.output("Out"))]
