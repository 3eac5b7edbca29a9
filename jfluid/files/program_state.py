"""A program with its state: `.pdparams` (parameters), `.pdopt` (optimizer state) and `.pdmodel` (the program)."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.files.file_sets import Files, Read, check_local, current, read_whole, saving
from jfluid.files.pickled import load_arrays, write_arrays
from jfluid.files.storage import bounded_reader
from jfluid.files.tensor_format import Stored, load_tensors, read_tensor
from jfluid.files.variables import (
    check_fits,
    file_of,
    is_optimizer_state,
    is_parameter,
    is_persistable,
    read_scope,
    write_scope,
)
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor
from jfluid.printable import printable

_SUFFIXES = (".pdparams", ".pdopt", ".pdmodel")


def save(program: Program, model_path: str) -> None:
    """Save a program and its state: `<model_path>.pdparams`, `.pdopt` and `.pdmodel`.

    All three are saved, or none is. Raises ValueError for a path without a file's name,
    UninitializedError when a variable has no value, OSError where the disk does not take them.
    """
    check_local(model_path)
    if not os.path.basename(model_path):
        raise ValueError(f"model_path: expected folder/name, found {model_path!r}")
    parameters = [v.name for v in program.list_vars() if is_parameter(v)]
    optimizer = [v.name for v in program.list_vars() if is_optimizer_state(v)]
    values = {n: t.value for n, t in zip(parameters + optimizer, read_scope(parameters + optimizer))}
    folder, name = os.path.split(os.path.abspath(model_path))
    with saving(folder) as files:
        for suffix, names in ((".pdparams", parameters), (".pdopt", optimizer)):
            with files.open(name + suffix) as file:
                write_arrays(file, model_path + suffix, {n: values[n] for n in names})
        with files.open(name + ".pdmodel") as file:
            file.write(program.serialize_to_string())


def _prefix(model_path: str) -> str:
    """Return the path without the suffix of a program or parameter file. Raises UnsupportedError for an address."""
    check_local(model_path)
    return next((model_path.removesuffix(s) for s in _SUFFIXES if model_path.endswith(s)), model_path)


def load(program: Program, model_path: str, executor: Any = None, var_list: Sequence[Variable] | None = None) -> None:
    """Load the state that `save` saved, or `save_params`, `save_persistables` or `save_vars`.

    Args:
        program: the program whose variables are set, in the global scope.
        model_path: the path that was given to `save`; else a folder, or a file that holds all
            variables of `var_list`.
        executor: not needed: the scope makes its variables by itself.
        var_list: for a folder or a single file, which variables; None is all that a folder holds.

    Raises FileFormatError, naming file and variable, where something is missing or does not fit the
    program. The scope is then as it was.
    """
    write_scope(
        _read(
            model_path,
            lambda: _load_tensor_files(program, model_path, var_list),
            lambda files, name: _of_pickles(files, name, program),
        )
    )


def _of_pickles(files: Files, name: str, program: Program) -> list[tuple[str, Stored]]:
    """Return a program's state in the pickles of `save`."""
    parameters = [v for v in program.list_vars() if is_parameter(v)]
    optimizer = [v for v in program.list_vars() if is_optimizer_state(v)]
    found = _pick(files.path(name + ".pdparams"), parameters)
    return found + (_pick(files.path(name + ".pdopt"), optimizer) if optimizer else [])


def _read(model_path: str, others: Callable[[], Read], pickles: Callable[[Files, str], Read]) -> Read:
    """Return the result of `pickles` from the files of `save`, or the fallback without such files."""
    folder, name = os.path.split(os.path.abspath(_prefix(model_path)))
    there = Files(folder).exists(name + ".pdparams")
    return read_whole(folder, lambda files: pickles(files, name)) if there else others()


def _pick(path: str, wanted: Iterable[Variable]) -> list[tuple[str, Stored]]:
    """Return the variables' arrays from a pickle; each must be there and fit."""
    arrays, found = load_arrays(path), []
    for var in wanted:
        value = arrays.get(var.name)
        if not isinstance(value, np.ndarray):
            raise errors.FileFormatError(
                f"{path}, variable {var.name}: the file does not hold it" + errors.close_to(var.name, arrays)
            )
        check_fits(var, value, path)
        found.append((var.name, Stored(value)))
    return found


def _load_tensor_files(program: Program, path: str, var_list: Sequence[Variable] | None) -> list[tuple[str, Stored]]:
    """Load variables from a folder of tensor files, or from one combined file."""
    found = []
    if os.path.isdir(path):

        def read(files: Files) -> list[tuple[Variable, Stored, str]]:
            paths = [
                (var, file_of(files, var.name))
                for var in (program.list_vars() if var_list is None else var_list)
                if var_list is not None or (is_persistable(var) and files.exists(var.name))
            ]
            return [(v, load_tensors(file, [v.name])[0], file) for v, file in paths]

        found = read_whole(path, read)
    elif os.path.isfile(current(*os.path.split(path))):
        found = [(v, t, path) for v, t in _combined(path, var_list)]
    else:
        raise errors.NoSuchFileError(f"{path}: there is neither {path}.pdparams nor a folder or file of that name")
    for var, tensor, file in found:
        check_fits(var, tensor.value, file)
    return [(v.name, t) for v, t, _ in found]


def _combined(path: str, var_list: Sequence[Variable] | None) -> list[tuple[Variable, Stored]]:
    if var_list is None:
        raise ValueError(
            f"var_list: {path} holds several variables without their names; say which, as a list of Variables"
        )
    ordered = sorted(var_list, key=lambda v: v.name)
    return list(zip(ordered, load_tensors(path, [v.name for v in ordered])))


def load_program_state(model_path: str, var_list: Sequence[Variable] | None = None) -> dict[str, np.ndarray]:
    """Return the state that `save` saved (or a folder of tensor files, or one combined file) as arrays by name.

    Args:
        model_path: as that of `load`.
        var_list: for a folder or a single file, which variables.

    Raises FileFormatError where a file is missing or damaged, ValueError for a combined file
    without `var_list`.
    """

    def pickles(files: Files, name: str) -> dict[str, np.ndarray]:
        state = load_arrays(files.path(name + ".pdparams"))
        if files.exists(name + ".pdopt"):
            state |= load_arrays(files.path(name + ".pdopt"))
        return state

    return _read(model_path, lambda: _tensors_of(model_path, var_list), pickles)


def _tensors_of(model_path: str, var_list: Sequence[Variable] | None) -> dict[str, np.ndarray]:
    """Return the arrays of a folder of tensor files, or of one combined file, by name."""
    if os.path.isdir(model_path):

        def read(files: Files) -> dict[str, np.ndarray]:
            if var_list is not None:
                paths = {v.name: file_of(files, v.name) for v in var_list}
                return {name: load_tensors(path, [name])[0].value for name, path in paths.items()}
            found = {name: _tensor_file(files.path(name), name) for name in files.names()}
            return {name: value for name, value in found.items() if value is not None}

        return read_whole(model_path, read)
    if os.path.isfile(current(*os.path.split(model_path))):
        return {v.name: t.value for v, t in _combined(model_path, var_list)}
    raise errors.NoSuchFileError(
        f"{model_path}: there is neither {model_path}.pdparams nor a folder or file of that name"
    )


def _tensor_file(path: str, name: str) -> np.ndarray | None:
    """Return the tensor of a file; None for any other file, such as `__model__`."""
    with bounded_reader(path) as reader:
        reader.what = name
        if reader.begin(4) not in (b"", b"\0\0\0\0"):  # every tensor's version
            return None
        value = read_tensor(reader).value
        reader.finish()
        return value


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Set the program's persistable variables, in the global scope, to the arrays of `state_dict`.

    Variables that it does not name stay as they are; names that the program does not have cause a
    warning.

    Raises ShapeError, before anything is set, where a shape or dtype differs from the variable's.
    """
    wanted = {v.name: v for v in program.list_vars() if is_persistable(v)}
    found = []
    for name, value in state_dict.items():
        var = wanted.get(name)
        if var is None:
            continue
        # of a file, they may stand for more than there is memory for
        if isinstance(value, (list, tuple, dict, str, bytes)):
            raise errors.ShapeError(f"state_dict, variable {name}: expected an array, found a {type(value).__name__}")
        value = np.asarray(value)
        try:
            check_fits(var, value, "state_dict")
        except errors.FileFormatError as e:
            raise errors.ShapeError(str(e).replace("the file holds", "found")) from None
        found.append((name, Stored(value, value_lod(state_dict[name]))))
    write_scope(found)
    unused = [n for n in state_dict if n not in wanted]
    if unused:
        names = printable(", ".join(unused), lines=False)
        warnings.warn(f"set_program_state: the program has no variables {names}", stacklevel=2)


def value_lod(value: Any) -> list[list[int]]:
    """Return the offsets of a LoDTensor's sequences; none for other arrays."""
    return value.lod() if isinstance(value, LoDTensor) else []
