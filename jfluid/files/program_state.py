"""A program with its state: `.pdparams` (parameters), `.pdopt` (optimizer state) and `.pdmodel`
(the program).
"""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.files.pickled import load_arrays, save_arrays
from jfluid.files.storage import atomic_write, bounded_reader, path_below
from jfluid.files.tensor_format import Stored, load_tensors, read_tensor
from jfluid.files.variables import (
    check_fits,
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

    Raises ValueError for a path without a file's name, UninitializedError when a variable has no
    value.
    """
    if not os.path.basename(model_path):
        raise ValueError(f"model_path: expected folder/name, found {model_path!r}")
    parameters = [v.name for v in program.list_vars() if is_parameter(v)]
    optimizer = [v.name for v in program.list_vars() if is_optimizer_state(v)]
    values = {
        n: t.value for n, t in zip(parameters + optimizer, read_scope(parameters + optimizer))
    }
    save_arrays(model_path + ".pdparams", {n: values[n] for n in parameters})
    save_arrays(model_path + ".pdopt", {n: values[n] for n in optimizer})
    with atomic_write(model_path + ".pdmodel") as file:
        file.write(program.serialize_to_string())


def _prefix(model_path: str) -> str:
    """Return the path without the ending of one of the three files."""
    return next(
        (model_path.removesuffix(s) for s in _SUFFIXES if model_path.endswith(s)), model_path
    )


def load(
    program: Program,
    model_path: str,
    executor: Any = None,
    var_list: Sequence[Variable] | None = None,
) -> None:
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
    prefix = _prefix(model_path)
    if not os.path.exists(prefix + ".pdparams"):
        write_scope(_load_tensor_files(program, model_path, var_list))
        return
    found = _pick(prefix + ".pdparams", [v for v in program.list_vars() if is_parameter(v)])
    optimizer = [v for v in program.list_vars() if is_optimizer_state(v)]
    if optimizer:
        found += _pick(prefix + ".pdopt", optimizer)
    write_scope(found)


def _pick(path: str, wanted: Iterable[Variable]) -> list[tuple[str, Stored]]:
    """Return the variables' arrays from a pickle; each must be there and fit."""
    arrays, found = load_arrays(path), []
    for var in wanted:
        value = arrays.get(var.name)
        if not isinstance(value, np.ndarray):
            raise errors.FileFormatError(
                f"{path}, variable {var.name}: the file does not hold it"
                + errors.close_to(var.name, arrays)
            )
        check_fits(var, value, path)
        found.append((var.name, Stored(value)))
    return found


def _load_tensor_files(
    program: Program, path: str, var_list: Sequence[Variable] | None
) -> list[tuple[str, Stored]]:
    """Load variables from a folder of tensor files, or from one combined file."""
    found = []
    if os.path.isdir(path):
        every = [
            v
            for v in program.list_vars()
            if is_persistable(v) and os.path.exists(path_below(path, v.name))
        ]
        for var in every if var_list is None else var_list:
            file = path_below(path, var.name)
            found.append((var, load_tensors(file, [var.name])[0], file))
    elif os.path.isfile(path):
        found = [(v, t, path) for v, t in _combined(path, var_list)]
    else:
        raise errors.NoSuchFileError(
            f"{path}: there is neither {path}.pdparams nor a folder or file of that name"
        )
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


def load_program_state(
    model_path: str, var_list: Sequence[Variable] | None = None
) -> dict[str, np.ndarray]:
    """Return the state that `save` saved (or a folder of tensor files, or one combined file) as
    arrays by name.

    Args:
        model_path: as that of `load`.
        var_list: for a folder or a single file, which variables.

    Raises FileFormatError where a file is missing or damaged, ValueError for a combined file
    without `var_list`.
    """
    prefix = _prefix(model_path)
    if os.path.exists(prefix + ".pdparams"):
        state = load_arrays(prefix + ".pdparams")
        if os.path.exists(prefix + ".pdopt"):
            state |= load_arrays(prefix + ".pdopt")
        return state
    if os.path.isdir(model_path):
        if var_list is not None:
            return {
                v.name: load_tensors(path_below(model_path, v.name), [v.name])[0].value
                for v in var_list
            }
        return {
            n: value
            for n in _files_below(model_path)
            if (value := _tensor_file(model_path, n)) is not None
        }
    if os.path.isfile(model_path):
        return {v.name: t.value for v, t in _combined(model_path, var_list)}
    raise errors.NoSuchFileError(
        f"{model_path}: there is neither {model_path}.pdparams nor a folder or file of that name"
    )


def _files_below(folder: str) -> list[str]:
    """Return the names of all files in a folder and its folders, such as "w" and "encoder/w": those
    that a variable may have.
    """
    return sorted(
        os.path.relpath(os.path.join(at, name), folder).replace(os.sep, "/")
        for at, _, names in os.walk(folder)
        for name in names
    )


def _tensor_file(folder: str, name: str) -> np.ndarray | None:
    """Return the tensor of a file; None for a file of another kind, such as `__model__`."""
    with bounded_reader(os.path.join(folder, name)) as reader:
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
            raise errors.ShapeError(
                f"state_dict, variable {name}: expected an array, found a {type(value).__name__}"
            )
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
