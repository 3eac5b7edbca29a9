"""Programs with distributed tables without servers, and saved tables (`fluid.contrib.utils`)."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.distributed import checkpoint, saved_tables
from jfluid.engine import HasEngine
from jfluid.files.file_sets import Files, read_whole
from jfluid.files.saved_model import read_program
from jfluid.files.storage import MODEL, path_below
from jfluid.files.tensor_format import Stored
from jfluid.files.variables import check_fits, chosen, is_persistable, read_vars, write_scope
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.scope import global_scope

__all__ = ["convert_dist_to_sparse_program", "load_persistables_for_increment", "load_persistables_for_inference"]


_Found = list[tuple[str, Stored]]


def convert_dist_to_sparse_program(program: Program) -> Program:
    """Return a trainer's program before its division, with look-ups that read tables of the scope.

    It is for inference without servers.

    Args:
        program: of `DistributeTranspiler.get_trainer_program`, or a clone of it.

    Raises ProgramError for one that is none of a trainer.
    """
    return checkpoint.without_servers(checkpoint.division_of(program, "convert_dist_to_sparse_program").origin)


def load_persistables_for_inference(
    dirname: str, executor: HasEngine, program: Program | None, lookup_table_var_name: str, allow: Iterable[str] = ()
) -> Program:
    """Load the variables that a trainer saved by `fluid.io.save_persistables` into the global scope.

    A distributed table becomes an ordinary one with all rows.

    Args:
        dirname: the folder, with a file for each variable, and a folder of the table's name.
        executor: any.
        program: the program that is to run, such as `convert_dist_to_sparse_program` gives; None
            for the one in the folder's file `__model__`.
        lookup_table_var_name: the table.
        allow: types of operators of the folder's program that may act when it runs, as of
            `fluid.io.load_inference_model`.

    Returns the program.

    Raises ProgramError for a table that the program does not have; ValueError for what is no folder
    and no program; FileFormatError for files that are missing or damaged.
    """
    if not os.path.isdir(dirname):
        raise ValueError(f"dirname: there is no folder {dirname}")

    def read(files: Files) -> tuple[Program, _Found]:
        found = read_program(files.path(MODEL), allow) if program is None else program
        if not isinstance(found, Program):
            raise ValueError(f"program: expected a Program, found {type(found).__name__}")
        table = found.global_block().var(lookup_table_var_name)
        others = {v.name: v for v in found.list_vars() if is_persistable(v) and v.name != table.name}
        there = [n for n in others if files.exists(n)]
        tested = found.clone(for_test=True).global_block().ops
        needed = {n for op in tested for n in op.input_arg_names}
        if missing := sorted(set(others) & needed - set(there)):
            raise errors.FileFormatError(f"{dirname}: there are no files of {', '.join(missing)}")
        return found, _read(files, found, [others[n] for n in there] + [table])

    loaded, values = read_whole(dirname, read)
    write_scope(values)
    return loaded


def load_with_tables(dirname: str, program: Program, wanted: Sequence[Variable]) -> None:
    """Load variables as `load_vars` does.

    Variables with a folder in `dirname` are distributed tables that servers saved; they become
    ordinary tables of their declared height.

    Raises the errors of `load_vars`, also for folders that are damaged.
    """
    write_scope(read_whole(dirname, lambda files: _read(files, program, wanted)))


def _read(files: Files, program: Program, wanted: Sequence[Variable]) -> _Found:
    """Return the values of variables and of tables, by name."""
    folders = {v.name: path_below(files.folder, v.name) for v in wanted}
    tables = [v for v in wanted if os.path.isdir(folders[v.name])]
    folders |= {v.name: saved_tables.place(files, v.name) for v in tables}
    held = {v.name for v in tables}
    others = chosen(program, [v for v in wanted if v.name not in held])
    return read_vars(files, others, None) + [(v.name, Stored(_values(folders[v.name], v))) for v in tables]


def _values(folder: str, table: Variable) -> np.ndarray[Any, Any]:
    """Return rows 0 ... height - 1 of a saved table; ids that no trainer has shown have their initial row."""
    from jfluid.ps_server import snapshot
    from jfluid.ps_server.store import Store

    store = Store()
    try:
        snapshot.restore(store, folder, 0, 1)
    except errors.ServerError as error:
        raise errors.FileFormatError(
            f"{folder}: a folder, which is none that servers have saved a table in: {error}"
        ) from error
    rows = store.table(table.name).look_up(np.arange(table.shape[0], dtype=np.int64), train=False)
    check_fits(table, np.asarray(rows), folder)
    return rows


def load_persistables_for_increment(
    dirname: str, executor: HasEngine, program: Program, lookup_table_var: str, lookup_table_var_path: str
) -> None:
    """Restore the saved variables of a server and its rows of a distributed table.

    Call it before the server serves, and after its startup program.

    Args:
        dirname: a folder of `fluid.io.save_persistables`.
        executor: the server's.
        program: of `DistributeTranspiler.get_pserver_program`.
        lookup_table_var: the table.
        lookup_table_var_path: the folder of the table: the folder of the table's name in `dirname`.

    Raises ValueError for a different folder of the table, or one that is not there, and what
    `fleet.init_server` does.
    """
    if not os.path.isdir(dirname):
        raise ValueError(f"dirname: there is no folder {dirname}")
    expected = os.path.join(dirname, lookup_table_var)
    if not os.path.exists(lookup_table_var_path) or not os.path.samefile(lookup_table_var_path, expected):
        raise ValueError(
            f"lookup_table_var_path: expected {expected}, where save_persistables puts the table's "
            f"rows, found {lookup_table_var_path}"
        )
    checkpoint.load(dirname, program, executor, global_scope())
