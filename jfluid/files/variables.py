"""Saving and loading a program's variables: a file each, or all in one file.

`executor` is an argument because Fluid runs programs of save and load operators; here the values
move between the files and the global scope directly.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.files.file_sets import Files, FileSet, read_whole, saving
from jfluid.files.storage import MODEL, path_below, paths_to_write
from jfluid.files.tensor_format import Stored, load_tensors, save_tensors, write_tensors
from jfluid.ir import schema
from jfluid.ir.program import Program, default_main_program
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import Parameter, Variable
from jfluid.lod_tensor import SelectedRows
from jfluid.scope import global_scope

# What a step passes through, and no file holds.
_HOLDERS = frozenset({VarType.FEED_MINIBATCH, VarType.FETCH_LIST, VarType.READER, VarType.RAW})


def is_parameter(var: Variable) -> bool:
    """Return whether the variable is a Parameter."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Return whether files hold the variable: it outlives a run, and is no holder of feeds, fetches or readers."""
    return var.persistable and var.type not in _HOLDERS


def is_optimizer_state(var: Variable) -> bool:
    """Return whether the variable belongs into a `.pdopt` file: it is persistable, but no parameter and no input."""
    return is_persistable(var) and not is_parameter(var) and not var.need_check_feed


def program_of(program: Any) -> Program:
    """Return the Program itself, the default main program for None, or the one that a CompiledProgram holds."""
    program = default_main_program() if program is None else program
    program = getattr(program, "_program", program)
    if not isinstance(program, Program):
        raise TypeError(f"main_program: expected a Program or a CompiledProgram, found {type(program).__name__}")
    return program


def get_program_parameter(program: Program) -> list[Variable]:
    """Return the program's parameters."""
    return [v for v in program.list_vars() if is_parameter(v)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """Return the program's variables that outlive a run: parameters, running statistics, optimizer state."""
    return [v for v in program.list_vars() if is_persistable(v)]


def read_scope(names: Iterable[str]) -> list[Stored]:
    """Return the tensors of the global scope by name.

    Raises UninitializedError naming those without a value.
    """
    scope, found, absent = global_scope(), [], []
    for name in names:
        var = scope.find_var(name)
        tensor = None if var is None else var.get_tensor()
        if var is not None and var.holds_selected_rows():
            found.append(_stored_rows(name, var.get_selected_rows()))
        elif tensor is None or not tensor._is_initialized():
            absent.append(name)
        else:
            found.append(Stored(np.asarray(tensor), tensor.lod()))
    if absent:
        raise errors.UninitializedError(
            f"{', '.join(absent[:8])}{' ...' if len(absent) > 8 else ''} cannot be saved: the "
            "scope has no value of it; run the startup program, or load the parameters, first"
        )
    return found


def _stored_rows(name: str, rows: SelectedRows) -> Stored:
    rows.check(name)
    return Stored(np.asarray(rows.get_tensor()), rows=np.asarray(rows.rows(), np.int64), height=rows.height())


def write_scope(tensors: Iterable[tuple[str, Stored]]) -> None:
    """Set variables of the global scope."""
    scope = global_scope()
    for name, stored in tensors:
        if stored.rows is not None:
            found = scope.var(name).get_selected_rows()
            found.set_rows(stored.rows.tolist())
            found.set_height(stored.height or 0)
            found.get_tensor().set(stored.value)
            continue
        tensor = scope.var(name).get_tensor()
        tensor.set(stored.value)
        tensor.set_lod(stored.lod)


def check_fits(var: Variable, value: np.ndarray, path: str) -> None:
    """Raise FileFormatError, naming file and variable, unless `value` has the variable's shape and element type.

    State that Fluid declares with a different shape than it has may have any.
    """
    fits = len(var.shape) == value.ndim and all(w in (-1, g) for w, g in zip(var.shape, value.shape))
    if not fits and not schema.current().is_declared_wrong(var.name, var.block.ops):
        raise errors.FileFormatError(
            f"{path}, variable {var.name}: expected shape {list(var.shape)}, the file holds {list(value.shape)}"
        )
    if var_type(value.dtype) != var.dtype:
        raise errors.FileFormatError(
            f"{path}, variable {var.name}: expected dtype {var.np_dtype}, the file holds {value.dtype}"
        )


def chosen(
    program: Program, vars: Sequence[Variable | str] | None, predicate: Callable[[Variable], bool] | None = None
) -> list[Variable]:
    """Return the variables to save or load, once each, in the program's order."""
    if vars is not None:
        found = [program.global_block().var_recursive(v) if isinstance(v, str) else v for v in vars]
    else:
        found = [v for v in program.list_vars() if predicate is None or predicate(v)]
    for var in found:
        if not isinstance(var, Variable):
            raise TypeError(f"vars: expected Variables or their names, found {type(var).__name__}")
    return list({v.name: v for v in found if v.type != VarType.RAW}.values())


def _file_name(filename: str) -> str:
    if not isinstance(filename, str) or not filename:
        raise ValueError(f"filename: expected the name of a file, found {filename!r}")
    return filename


def save_vars(
    executor: Any,
    dirname: str,
    main_program: Program | None = None,
    vars: Sequence[Variable] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Save variables of the global scope in Fluid's format.

    Args:
        executor: an Executor; values come from the global scope.
        dirname: the folder, which is made if need be.
        main_program: the program that declares them; the default main program when None.
        vars: which variables; when None, those of the program that `predicate` accepts (without
            one, all).
        predicate: a function from a Variable to bool.
        filename: one file for all of them, in the order of their names; when None a file each, by
            name.

    Raises:
        UninitializedError: a variable has no value.
        FileFormatError: the name of a variable with a separate file leads out of the folder; or a file
            would replace the folder's program, `__model__`.
        OSError: the disk does not take the files. All of the variables are saved, or none is (see
            `jfluid.files.file_sets`).
    """
    dirname = os.fspath(dirname)
    found = chosen(program_of(main_program), vars, predicate)
    if filename is None:
        paths_to_write(dirname, [v.name for v in found])
        tensors = read_scope(v.name for v in found)
        with saving(dirname) as files:
            _write_each(files, found, tensors)
        return
    if _file_name(filename) == MODEL:
        raise errors.FileFormatError(
            f"{dirname}: filename: {MODEL} is the name of the program's file; choose a different name"
        )
    found = sorted(found, key=lambda v: v.name)
    tensors = read_scope(v.name for v in found)
    os.makedirs(dirname, exist_ok=True)
    if found:
        save_tensors(os.path.join(dirname, filename), tensors)


def write_persistables(files: FileSet, program: Program, filename: str | None) -> None:
    """Write the files of `save_persistables` as a set."""
    found = chosen(program, None, is_persistable)
    if filename is None:
        _write_each(files, found, read_scope(v.name for v in found))
        return
    found = sorted(found, key=lambda v: v.name)
    tensors = read_scope(v.name for v in found)
    if found:
        with files.open(filename) as file:
            write_tensors(file, tensors)


def _write_each(files: FileSet, found: Sequence[Variable], tensors: Sequence[Stored]) -> None:
    for var, tensor in zip(found, tensors, strict=True):
        with files.open(var.name) as file:
            write_tensors(file, [tensor])


def load_vars(
    executor: Any,
    dirname: str,
    main_program: Program | None = None,
    vars: Sequence[Variable] | None = None,
    predicate: Callable[[Variable], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Load variables that `save_vars`, or Fluid, saved, into the global scope.

    The arguments are the arguments of `save_vars`.

    Raises FileFormatError, naming file and variable, for a file that is missing, truncated,
    oversized or damaged, or holds another shape or dtype than the program declares, and for a
    variable whose name leads out of the folder. The scope is then as it was.
    """
    found = chosen(program_of(main_program), vars, predicate)
    write_scope(read_whole(dirname, lambda files: read_vars(files, found, filename)))


def read_vars(files: Files, found: Sequence[Variable], filename: str | None) -> list[tuple[str, Stored]]:
    """Return the values that `load_vars` puts into the scope, by name."""
    sparse = frozenset(v.name for v in found if v.type == VarType.SELECTED_ROWS)
    if filename is not None:
        found = sorted(found, key=lambda v: v.name)
        path = files.path(_file_name(filename))
        tensors = load_tensors(path, [v.name for v in found], sparse) if found else []
        loaded = [(v, t, path) for v, t in zip(found, tensors)]
    else:
        loaded = [
            (v, load_tensors(path, [v.name], sparse)[0], path) for v in found for path in [file_of(files, v.name)]
        ]
    for var, tensor, path in loaded:
        if tensor.height is None:
            check_fits(var, tensor.value, path)
        else:  # the declared shape is that of the whole table
            check_fits(var, _of_height(tensor.value, tensor.height), path)
    return [(v.name, t) for v, t, _ in loaded]


def file_of(files: Files, name: str) -> str:
    """Return the path of the file of variable `name` among the files of a folder.

    Raises FileFormatError for a name that leads out of it.
    """
    path_below(files.folder, name)
    return files.path(name)


def _of_height(values: np.ndarray, height: int) -> np.ndarray:
    """Return an array without memory that has the shape and the dtype of the whole table."""
    return np.broadcast_to(np.zeros((), values.dtype), (height, *values.shape[1:]))


def save_params(executor: Any, dirname: str, main_program: Program | None = None, filename: str | None = None) -> None:
    """Save the program's parameters, as `save_vars` does."""
    save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def save_persistables(
    executor: Any, dirname: str, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Save all variables that outlive a run (parameters, running statistics, optimizer state), as `save_vars` does."""
    save_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def works_with_servers(program: Program) -> bool:
    """Return True for a trainer's program with variables that parameter servers hold."""
    return program.division is not None and all(op.type != "listen_and_serv" for op in program.global_block().ops)
