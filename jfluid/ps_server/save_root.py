"""The folder below which a server writes and reads snapshots."""

import os
from pathlib import Path

from jfluid import errors


def folder_below(path: str, root: Path | None) -> Path:
    """Return the folder of a call.

    Raises ServerError for one that is not below the root when links and `..` are followed.
    """
    if not path or "\0" in path or not os.path.isabs(path):
        raise errors.ServerError(f"folder: expected an absolute path on the server's machine, found {path!r}")
    if root is None:
        return Path(path)
    folder = Path(os.path.realpath(path))
    if not folder.is_relative_to(root):
        raise errors.ServerError(f"folder: expected {root} or one below it (the server's save root), found {path!r}")
    return folder
