"""Description of a saved model from its files, without values: program, feeds, fetches, places of parameters.

Nothing here imports JAX.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.files.file_sets import Files, check_local, read_whole
from jfluid.files.storage import MODEL, bounded_reader, path_below
from jfluid.files.tensor_format import pass_tensor
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable

# What files of all parameters are called, beside what a model's own name suggests.
_COMBINED = ("__params__", "params", "__variables__", "model.pdparams")
# Variables that are no state although programs call them persistable.
_NO_STATE = (VarType.FEED_MINIBATCH, VarType.FETCH_LIST, VarType.READER, VarType.RAW)


@dataclass(frozen=True)
class SavedParameter:
    """A variable that a file holds."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    file: str

    @property
    def size(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass
class SavedModel:
    """Description of a model's files.

    Attributes:
        folder, model_file: where it is.
        params_file: the name of the file that holds all parameters; None where each has its own.
        program: what the model computes.
        feeds, fetches: names of variables, in the order of their columns.
        parameters: those that were found, by name.
        faults: what is missing, truncated or of a different shape than the program declares.
    """

    folder: str
    model_file: str
    params_file: str | None
    program: Program
    feeds: list[str]
    fetches: list[str]
    parameters: dict[str, SavedParameter] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read_program(path: str | os.PathLike[str], allow: Iterable[str] = ()) -> Program:
    """Return the program that a file holds.

    Raises FileFormatError naming the file, and the errors of `Program.parse_from_string` of `allow`.
    """
    with bounded_reader(path) as reader:
        data = reader.take(reader.remaining, "the program")
    try:
        return Program.parse_from_string(data, allow)
    except errors.FileFormatError as e:
        raise errors.FileFormatError(f"{os.fspath(path)}: {e} (expected a program that Fluid or jfluid saved)") from e


def columns(program: Program) -> tuple[list[str], list[str]]:
    """Return the names of a program's feeds and fetches, in the order of their columns.

    Raises FileFormatError for a column that is no whole number.
    """
    ops = program.global_block().ops
    feeds = {_column(op): op.output("Out") for op in ops if op.type == "feed"}
    fetches = {_column(op): op.input("X") for op in ops if op.type == "fetch"}
    fed, given = ([n for col in sorted(by) for n in by[col]] for by in (feeds, fetches))
    return fed, given


def _column(op: Operator) -> int:
    column = op.attrs.get("col", 0)
    if not isinstance(column, int):
        raise errors.FileFormatError(
            f"operator {op.type} of {', '.join(op.output('Out') or op.input('X'))}: attribute col: expected "
            f"a whole number, found {type(column).__name__}"
        )
    return column


def state_of(program: Program) -> list[Variable]:
    """Return the variables of a program that outlive a run, by name."""
    return [
        var for _, var in sorted(program.global_block().vars.items()) if var.persistable and var.type not in _NO_STATE
    ]


def read_saved_model(
    path: str,
    model_filename: str | None = None,
    params_filename: str | None = None,
    elsewhere: Callable[[Program], Collection[str]] = lambda program: (),
) -> SavedModel:
    """Read a model's files.

    Args:
        path: the model's folder, or its program file.
        model_filename: the program's file in the folder; by default `__model__`, or `model`.
        params_filename: the file of all parameters; by default it is looked for where the
            parameters have no files of their own.
        elsewhere: returns the variables of the program without files: their values are not in the folder.

    Raises FileFormatError where there is no program, or a damaged one. Faults of parameters are
    listed, not raised.
    """
    check_local(path)
    if not os.path.lexists(path):
        raise errors.NoSuchFileError(
            f"{path}: there is no such file or folder: expected the folder that save_inference_model wrote, or its "
            "program file"
        )
    folder, name = (path, model_filename) if os.path.isdir(path) else os.path.split(path)
    return read_whole(folder or ".", lambda files: _read(files, name, params_filename, elsewhere))


def _read(
    files: Files, name: str | None, params_filename: str | None, elsewhere: Callable[[Program], Collection[str]]
) -> SavedModel:
    """Read a model among the files of a folder."""
    folder = files.folder
    if name is None:
        name = next((n for n in (MODEL, "model") if os.path.isfile(files.path(n))), None)
        if name is None:
            raise errors.FileFormatError(
                f"{folder}: there is no {MODEL}; give the name of the program's file (model_filename)"
            )
    program = read_program(files.path(name))
    feeds, fetches = columns(program)
    model = SavedModel(folder, name, params_filename, program, feeds, fetches)
    block = program.global_block()
    model.faults += [
        f"the program feeds or fetches {n}, but declares no such variable"
        for n in (*feeds, *fetches)
        if not block.has_var(n)
    ]
    wanted = state_of(program)
    if model.params_file is None and wanted:
        model.params_file = _combined_file(files, name, wanted)
    if model.params_file is None:
        without = elsewhere(program)
        wanted = [var for var in wanted if var.name not in without]
    try:
        _read_parameters(model, files, wanted)
    except errors.FileFormatError as error:
        model.faults.append(str(error))
    return model


def _combined_file(files: Files, model_file: str, wanted: list[Variable]) -> str | None:
    """Return the name of the file of all parameters, if no parameter has a separate file."""
    if any(os.path.exists(path) for path in _paths(files, wanted)):
        return None
    stem = os.path.splitext(model_file)[0]
    candidates = (*_COMBINED, f"{stem}.pdiparams", f"{stem}.params")
    return next((n for n in candidates if os.path.isfile(files.path(n))), None)


def _paths(files: Files, wanted: list[Variable]) -> Iterator[str]:
    for var in wanted:
        try:
            path_below(files.folder, var.name)
        except errors.FileFormatError:
            continue
        yield files.path(var.name)


def _read_parameters(model: SavedModel, files: Files, wanted: list[Variable]) -> None:
    """Find the parameters, and note missing or wrong ones."""
    if model.params_file is not None:
        path = files.path(model.params_file)
        with bounded_reader(path) as reader:
            for var in wanted:
                reader.what = var.name
                _note(model, var, path, *pass_tensor(reader))
            reader.finish()
        return
    for var in wanted:
        try:
            path_below(model.folder, var.name)
            path = files.path(var.name)
            with bounded_reader(path) as reader:
                reader.what = var.name
                found = pass_tensor(reader)
                reader.finish()
            _note(model, var, path, *found)
        except errors.FileFormatError as error:
            model.faults.append(str(error))


def _note(model: SavedModel, var: Variable, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    model.parameters[var.name] = SavedParameter(var.name, dtype, shape, path)
    declared = var._shape
    if declared is None:
        return
    fits = len(declared) == len(shape) and all(d in (-1, s) for d, s in zip(declared, shape))
    if not fits or dtype != var.np_dtype:
        model.faults.append(
            f"{path}, variable {var.name}: the program declares {var.np_dtype}{list(declared)}, the "
            f"file holds {dtype}{list(shape)}"
        )
