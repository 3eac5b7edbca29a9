"""Functions that Numba compiles, and keeps on the disk as pickles and machine code.

Numba keeps the files beside the source, which is as trusted as the source. If it cannot write there, it uses a
folder of the user (or NUMBA_CACHE_DIR); files of such a folder are read only if no other user can write to it.
"""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import NullCache

from jfluid import errors
from jfluid.security import private_files


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function, which runs without the interpreter's lock.

    Args:
        options: options of numba.njit, beside the options of its cache.
    """

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        made: Any = njit(nogil=True, **options)(function)
        try:
            made.enable_caching()
        except RuntimeError:  # there is no folder that Numba can write to: it compiles anew
            return made  # type: ignore[no-any-return]
        source = Path(function.__code__.co_filename).resolve().parent
        folder = Path(made._cache.cache_path)
        if folder.resolve().parent != source and not _is_trusted(folder):
            made._cache = NullCache()
        return made  # type: ignore[no-any-return]

    return compiled


@functools.cache
def _is_trusted(folder: Path) -> bool:
    try:
        private_files.trusted_folder(folder, lambda name: True)
    except (errors.NotPrivateError, OSError) as error:
        warnings.warn(
            f"{error}. Numba's files in this folder are passed over, since other users may have written it: "
            "make the folder and its files this user's alone, or name a different folder by NUMBA_CACHE_DIR",
            RuntimeWarning,
            stacklevel=4,
        )
        return False
    return True
