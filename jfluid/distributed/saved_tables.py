"""Distributed tables in a folder of `save_persistables`: servers' rows, and a file that names the valid save.

The small file is saved together with the other variables.

    FOLDER/<table>/.jfluid-whole-<random>/   the servers' files of one save
    FOLDER/<table>.saved                     the name of that folder

Without such a file the files in FOLDER/<table>/ itself count: of an operator `checkpoint_notify`, or
an earlier release.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from jfluid import errors
from jfluid.files import file_sets
from jfluid.files.file_sets import Files, FileSet
from jfluid.files.storage import bounded_reader, path_below, paths_to_write

if TYPE_CHECKING:
    from jfluid.ps_server.client import Client


def told_in(table: str) -> str:
    """Return the name of the file that says which files of a table count."""
    return f"{table}.saved"


def save(client: "Client", table: str, files: FileSet) -> None:
    """Make the servers save a table as a part of a set of files.

    Raises ServerError where a server cannot write, or writes into a different folder than this process
    sees.
    """
    from jfluid.ps_server import snapshot

    folder = files.folder(table)
    client.save(str(folder), tables=[table])
    if not (folder.is_dir() and snapshot.complete(folder)):
        raise errors.ServerError(
            f"{folder}: the servers have saved table {table}, and their files are not there: the folder has to be the "
            "same one for all hosts"
        )
    with files.open(told_in(table)) as file:
        file.write(folder.name.encode())


def save_directly(client: "Client", table: str, dirname: str) -> None:
    """Make the servers save a table into a folder, which this process need not see."""
    dirname = os.path.abspath(os.fspath(dirname))
    client.save(paths_to_write(dirname, [table])[0], tables=[table])
    with contextlib.suppress(FileNotFoundError):  # the named folder was saved earlier
        file_sets.finish(dirname)
        os.unlink(path_below(dirname, told_in(table)))


def place(files: Files, table: str) -> str:
    """Return the folder with the valid files of a table.

    Raises FileFormatError if the name is no name of a table's folder.
    """
    path_below(files.folder, table)
    if not files.exists(told_in(table)):
        return path_below(files.folder, table)
    with bounded_reader(files.path(told_in(table))) as reader:
        name = reader.take(min(reader.remaining, 100), "the name of a folder").decode("latin-1")
        if not file_sets.is_whole(name):
            raise reader.refuse(f"expected the name of a folder of table {table}, found {name!r}")
    return files.path(f"{table}/{name}")


def clear(dirname: str, table: str) -> None:
    """Remove older saves of a table before the valid one, as far as this process may."""
    from jfluid.ps_server.manifest import FILE

    with contextlib.suppress(OSError):
        found = list(Path(path_below(dirname, table)).iterdir())  # later saves stay
        name = os.path.basename(place(Files(dirname), table))
        for path in found:
            if file_sets.is_whole(path.name) and path.name != name:
                shutil.rmtree(path, ignore_errors=True)
            elif FILE.fullmatch(path.name):
                path.unlink(missing_ok=True)
