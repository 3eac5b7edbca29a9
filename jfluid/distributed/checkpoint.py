"""Saving and loading the variables that parameter servers hold.

A folder of `save_persistables` has a file for each variable of the program before its division, by the
variable's name and in Fluid's format, with the pieces of all servers. `fluid.io.load_persistables` reads the
folder, and any number of servers does. Only the rows of distributed tables are written by the servers, while
they serve, since no process needs to hold a whole table: each server writes its rows into a folder with the
table's name, which has to be the same for all servers.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.distributed import saved_tables
from jfluid.distributed.wire import connections
from jfluid.engine import HasEngine
from jfluid.files import inference_model as models
from jfluid.files.file_sets import Files, FileSet, read_whole, saving
from jfluid.files.storage import paths_to_write
from jfluid.files.tensor_format import Stored, load_rows, write_in_parts, write_tensors
from jfluid.files.variables import file_of, is_persistable, read_scope
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.scope import Scope
from jfluid.transpiler.parameter_server import remote_look_ups
from jfluid.transpiler.parameter_server.division import Division, SavedVariable
from jfluid.transpiler.parameter_server.layout import Piece

Array = np.ndarray[Any, Any]
ASKED_BYTES = 16 << 20  # of rows in one question
# A distributed table of more bytes does not become a file of an inference model.
LARGEST_TABLE = 64 << 30
_LOG = logging.getLogger(__name__)


def save_persistables(executor: HasEngine, dirname: str, main_program: Program) -> None:
    """Save all persistable variables, with the parameters, optimizer states and step counts that servers hold.

    In synchronous training the servers stand still while a trainer saves between two steps;
    otherwise each variable has its value at the moment of its call.

    Args:
        executor: an Executor of a trainer; variables that no server holds come from the global scope.
        dirname: the folder, made if need be; an absolute path for servers on other machines, that
            is the same folder for all, where the program has distributed tables.
        main_program: a trainer's program, that `DistributeTranspiler.get_trainer_program` returned,
            or a clone of it.

    Raises:
        ProgramError: the program is none of a trainer.
        UninitializedError: the scope has no value of a variable that servers do not hold.
        FileFormatError: a variable's name leads out of the folder; nothing is written then.
        ServerError: a server does not answer, or cannot write. OSError: this process cannot.
    """
    division = division_of(main_program, "save_persistables")
    saver = _Saver(division, executor)
    variables = [v for v in division.origin.list_vars() if is_persistable(v)]
    tables = saver.remote()
    paths_to_write(dirname, [v.name for v in variables], map(saved_tables.told_in, tables))
    with saving(os.path.abspath(dirname)) as files:
        saver.save(variables, files)
        for name in tables:
            saved_tables.save(saver.client, name, files)
    for name in tables:
        saved_tables.clear(dirname, name)


def save_inference_model(
    executor: HasEngine,
    dirname: str,
    feeded_var_names: Sequence[str] | str,
    target_vars: Sequence[Variable] | Variable,
    main_program: Program,
    export_for_deployment: bool = True,
    origin_program: Program | None = None,
    program_only: bool = False,
) -> list[str]:
    """Save a program that computes the targets, as `fluid.io.save_inference_model` does, with servers' parameters.

    The saved model needs no servers: `fluid.io.load_inference_model` loads it anywhere. Distributed
    tables become ordinary ones, of their declared height: ids that no trainer has shown have the
    row with which they would be initialized. Its look-ups name the servers' tables, so that it asks
    servers for rows where it is loaded with `pserver_endpoints`.

    Args:
        executor, dirname, feeded_var_names, target_vars, export_for_deployment: as of
            `fluid.io.save_inference_model`.
        main_program: a trainer's program.
        origin_program: the program to save; by default the trainer's program before the division.
        program_only: leave the parameters out: `save_persistables` into the same folder has all that
            a model with `pserver_endpoints` needs, however large its tables are.

    Returns:
        Names of the targets in the saved program.

    Raises the errors of `save_persistables`, and UnsupportedError for a distributed table of more than
    64 GiB.
    """
    division = division_of(main_program, "save_inference_model")
    program = without_servers(origin_program if origin_program is not None else division.origin)
    persistable = [v.name for v in program.list_vars() if is_persistable(v)]
    paths_to_write(dirname, persistable)
    tables = {n: division.layout.parameters[n] for n, v in division.variables.items() if v.table == n}
    remote_look_ups.mark(program, tables)
    file, model, names = models.model_to_save(feeded_var_names, target_vars, program, None, export_for_deployment)
    with saving(dirname) as files:
        with files.open(file) as output:
            output.write(model.serialize_to_string())
        if not program_only:
            saver = _Saver(division, executor, whole=True)
            saver.save([v for v in model.list_vars() if is_persistable(v)], files)
    return names


def without_servers(program: Program) -> Program:
    """Return a copy of a program with look-ups that read tables of the scope."""
    twin = program._copy()
    for op in (op for block in twin.blocks for op in block.ops):
        for name in ("is_distributed", "remote_prefetch"):
            if op.attrs.get(name):
                op.attrs[name] = False
    twin._touch()
    return twin


def save_one_table(executor: HasEngine, name: str, dirname: str, program: Program) -> None:
    """Save one parameter with sparse gradients, and the optimizer's state of the parameter.

    Args:
        executor: a trainer's.
        name: the parameter.
        dirname: as of `save_persistables`.
        program: a trainer's program.

    Raises ProgramError for a name that is none of a table, and the errors of `save_persistables`.
    """
    division = division_of(program, "save_one_table")
    table = _table(division, name, "save_one_table")
    saver = _Saver(division, executor)
    own = {n for n, saved in division.variables.items() if saved.table == name}
    paths_to_write(dirname, [name] if table.distributed else sorted(own))
    with saving(os.path.abspath(dirname)) as files:
        if table.distributed:
            saved_tables.save(saver.client, name, files)
        else:
            saver.save([v for v in division.origin.list_vars() if v.name in own], files)
    if table.distributed:
        saved_tables.clear(dirname, name)


def load_one_table(executor: HasEngine, name: str, dirname: str, program: Program) -> None:
    """Restore a distributed table that `save_one_table` or `save_persistables` saved, while servers serve.

    The number of servers may differ from the number at the save. Arguments and errors are the arguments and errors of
    `save_one_table`; UnsupportedError for a table that is not distributed, and ServerError when a file is missing or
    damaged, or belongs to a different table.
    """
    division = division_of(program, "load_one_table")
    if not _table(division, name, "load_one_table").distributed:
        raise errors.UnsupportedError(
            f"load_one_table: {name} is not distributed: its rows are loaded before servers serve, "
            "with fleet.init_server(model_dir)"
        )
    folder = saved_tables.place(Files(os.path.abspath(dirname)), name)
    _Saver(division, executor).client.restore(folder, tables=[name])


def shrink(executor: HasEngine, name: str | None, age: int, program: Program) -> int:
    """Drop rows of distributed tables that none of the last `age` updates of their server has touched.

    Args:
        executor: a trainer's.
        name: the table; all distributed ones when None.
        age: updates, at least 1.
        program: a trainer's program.

    Returns:
        How many rows were dropped.

    Raises ProgramError for a name that is none of a distributed table, ServerError for an age below
    1.
    """
    division = division_of(program, "shrink")
    saver = _Saver(division, executor)
    if name is not None and not _table(division, name, "shrink").distributed:
        raise errors.ProgramError(
            f"shrink: {name} is not distributed: all its rows are part of the parameter, and stay"
        )
    return sum(saver.client.shrink(table, age) for table in ([name] if name is not None else saver.remote()))


def division_of(program: Program, what: str) -> Division:
    division = getattr(program, "division", None)
    if not isinstance(division, Division):
        raise errors.ProgramError(
            f"{what}: expected a trainer's program, that DistributeTranspiler.get_trainer_program (or "
            "fleet.main_program) gave in this process: other programs do not name the servers' variables"
        )
    return division


def _table(division: Division, name: str, what: str) -> SavedVariable:
    found = division.variables.get(name)
    if found is None or found.table != name:
        tables = [k for k, saved in division.variables.items() if saved.table == k]
        raise errors.ProgramError(
            f"{what}: {name} is no table; there is: {', '.join(tables) or 'none'}" + errors.close_to(name, tables)
        )
    return found


class _Saver:
    """Pulls and saves, for a trainer, the variables that servers hold.

    Args:
        whole: distributed tables are pulled too, instead of being saved by the servers.
    """

    def __init__(self, division: Division, executor: HasEngine, whole: bool = False):
        self._division, self._whole = division, whole
        self.client = connections.borrow(division.layout.endpoints, division.trainer, executor.engine).client

    def remote(self) -> list[str]:
        """Names of distributed tables, which servers save themselves."""
        return [name for name, saved in self._division.variables.items() if saved.distributed and saved.parameter]

    def save(self, variables: Iterable[Variable], files: FileSet) -> None:
        """Save variables by name; variables that no server holds come from the scope."""
        for var in variables:
            saved = self._division.variables.get(var.name)
            if saved is not None and saved.distributed:
                if not self._whole:
                    continue
                self._check_size(saved)
            with files.open(var.name) as file:
                if saved is None:
                    write_tensors(file, read_scope([var.name]))
                elif not saved.table:
                    write_tensors(file, [Stored(self._dense(saved))])
                else:
                    rows = self._rows(saved)
                    write_in_parts(file, var.name, saved.dtype, saved.shape, rows)

    def _check_size(self, saved: SavedVariable) -> None:
        size = 4 * saved.width * saved.shape[0]
        if size > LARGEST_TABLE:
            raise errors.UnsupportedError(
                f"save_inference_model: table {saved.name} has {saved.shape[0]} rows, {size >> 30} GiB; a model takes "
                "tables "
                f"of up to {LARGEST_TABLE >> 30} GiB. Declare it with the height that ids need, or let servers answer: "
                "save with program_only=True, save_persistables into the same folder, and load with pserver_endpoints"
            )

    def _dense(self, saved: SavedVariable) -> Array:
        parts = [self._part(saved, piece) for piece in (saved.pieces if saved.cut else saved.pieces[:1])]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _part(self, saved: SavedVariable, piece: Piece) -> Array:
        """Return the piece of one server: parameters as arrays, other variables as bytes."""
        name, dtype = f"{piece.name}@{piece.server}@saved", np.dtype(saved.dtype)
        count = int(np.prod(piece.shape))
        words = count if saved.parameter else -(-count * dtype.itemsize // 4)
        self.client.place_block(name, piece.server, (words,), piece.name)
        try:
            value = self.client.pull(blocks=[name], train=False).blocks[name]
        finally:
            self.client.forget_block(name)
        if saved.parameter:
            return value.astype(dtype, copy=False).reshape(piece.shape)
        return np.frombuffer(value.tobytes()[: count * dtype.itemsize], dtype).reshape(piece.shape)

    def _rows(self, saved: SavedVariable) -> Iterator[Array]:
        """Yield a table's values, or a part of the optimizer's state, in the order of rows."""
        from jfluid.ps_server.client import RowRange

        table, own = self._division.variables[saved.table], saved.name != saved.table
        if saved.distributed:
            self.client.place_table(saved.table, saved.width)
            yield from self._looked_up(saved, saved.table, saved.shape[0], saved.name if own else "")
            return
        for there, piece in zip(table.pieces, saved.pieces, strict=True):
            name = f"{there.name}@{there.server}@saved"
            self.client.place_table(name, saved.width, [RowRange(there.name, there.server, 0, there.shape[0])])
            yield from self._looked_up(saved, name, there.shape[0], piece.name if own else "")

    def _looked_up(self, saved: SavedVariable, table: str, rows: int, slot: str) -> Iterator[Array]:
        step = max(ASKED_BYTES // (4 * max(saved.width, 1)), 1)
        for begin in range(0, rows, step):
            ids = np.arange(begin, min(begin + step, rows), dtype=np.int64)
            values = self.client.look_up(table, ids, slot)
            yield values.astype(saved.dtype, copy=False).reshape(len(ids), *saved.shape[1:])


# ---- servers -------------------------------------------------------------------------------------


def load(model_dir: str, server_main_program: Program, executor: Any, scope: Scope) -> None:
    """Restore the saved variables of a server, before it serves and after its startup program.

    The folder is one of `save_persistables`, here or of Fluid, whichever number of servers there
    was; or one with the parameters alone, such as a saved inference model: then the optimizer's
    state begins anew. Learning rates are those of the program.

    Args:
        model_dir: the folder.
        server_main_program: of `DistributeTranspiler.get_pserver_program`.
        executor: a server's; values go to the scope directly.
        scope: where the startup program ran.

    Raises:
        ProgramError: the program is none of a server.
        FileFormatError: a file is missing, damaged, or of a different shape. The scope is then as it
            was.
    """
    division = division_of(server_main_program, "load")
    serving = [op for op in server_main_program.global_block().ops if op.type == "listen_and_serv"]
    if not serving:
        raise errors.ProgramError(
            "load: expected a server's program, that DistributeTranspiler.get_pserver_program gave"
        )
    _Loader(Path(model_dir), division, serving[0].attr("pserver_id")).into(scope)


class _Loader:
    """Loads the variables of one server from a folder."""

    def __init__(self, folder: Path, division: Division, server: int):
        if not folder.is_dir():
            raise errors.FileFormatError(f"{folder}: there is no such folder")
        self._folder = folder
        mine = [
            (saved, piece) for saved in division.variables.values() for piece in saved.pieces if piece.server == server
        ]
        self._parameters = [m for m in mine if m[0].parameter]
        self._state = [m for m in mine if not (m[0].parameter or m[0].setting or m[0].distributed)]

    def into(self, scope: Scope) -> None:
        """Set all variables, after all files were read."""
        for saved, piece, value in read_whole(self._folder, self._found):
            if isinstance(value, str):
                scope.var(piece.name).saved = value
                continue
            scope.var(piece.name).get_tensor().set(value)
            for i, count in enumerate(saved.counts):
                scope.var(count).get_tensor().set(value if i == 0 else np.zeros_like(value))

    def _found(self, files: Files) -> list[tuple[SavedVariable, Piece, Array | str]]:
        there = [m for m in self._state if os.path.exists(self._path(files, m[0]))]
        if there and len(there) < len(self._state):
            missing = sorted({saved.name for saved, piece in self._state} - {saved.name for saved, _ in there})
            raise errors.FileFormatError(
                f"{self._folder}: the optimizer's state is there in part: {', '.join(missing)} "
                "missing. Remove the other files of it to begin it anew, or complete the folder"
            )
        if not there and self._state:
            _LOG.info("%s holds parameters only: the optimizer's state begins anew", self._folder)
        return [(saved, piece, self._read(files, saved, piece)) for saved, piece in self._parameters + there]

    def _read(self, files: Files, saved: SavedVariable, piece: Piece) -> Array | str:
        """Return a piece of a variable; for a distributed table a path, read when the server has the table."""
        path = self._path(files, saved)
        if saved.distributed:
            if not os.path.exists(path):
                raise errors.FileFormatError(
                    f"{path}: there is no such file or folder, and table {saved.name} needs it"
                )
            return saved_tables.place(files, saved.name) if os.path.isdir(path) else path
        rows = piece.shape[0] if saved.cut else saved.shape[0]
        return load_rows(path, saved.name, saved.dtype, saved.shape, piece.first if saved.cut else 0, rows)

    def _path(self, files: Files, saved: SavedVariable) -> str:
        return file_of(files, saved.name)
