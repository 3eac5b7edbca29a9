"""On-disk cache of executables and shapes, which later processes load.

Its files lie beside JAX's cache, and are used only where that cache is the folder of
FLAGS_compilation_cache_dir. Both hold pickles and machine code: files that other users may have written are
skipped.
"""

import contextlib
import functools
import hashlib
import os
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jfluid import errors, flags, installation
from jfluid.security import private_files

_DIRECTORY = "FLAGS_compilation_cache_dir"
_MOST_BYTES = "FLAGS_compilation_cache_max_bytes"
_WORTH_KEEPING = 0.3  # seconds of compilation of a function that each process traces
_KINDS = ("step-", "after-", "shapes-", "functions-", "sizes-")  # prefixes of the names of these files
_OF_JAX = ("-cache", "-atime")  # suffixes of the names of JAX's files


def folder() -> Path | None:
    """Return the folder of the cache, or None if nothing is cached. The first engine names the folder to JAX."""
    directory = flags.get(_DIRECTORY)
    if not directory:
        return None
    named = Path(os.path.expanduser(directory))
    try:
        found = _trusted(named)
    except errors.NotPrivateError as error:
        _pass_over(str(error))
        return None
    except OSError:  # it is not there yet
        found = named
    others = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    return found if others in (None, str(named), str(found)) else None


def use() -> None:
    """Enable JAX's compilation cache in the folder of FLAGS_compilation_cache_dir.

    A cache that the user has set in JAX stays, and an empty flag disables it.
    JAX keys its entries by jaxlib's version, the host's CPU and the program.
    """
    if not flags.get(_DIRECTORY) or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    if (path := folder_for_jax()) is not None:
        jax.config.update("jax_compilation_cache_dir", str(path))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)


def folder_for_jax() -> Path | None:
    """Return the folder for JAX's cache, created if it is missing.

    Returns None if it cannot be created, or other users could have written files there.
    """
    path = Path(os.path.expanduser(flags.get(_DIRECTORY)))
    try:
        private_files.make_folder(path)
        return private_files.trusted_folder(path, lambda name: not name.startswith(_KINDS))
    except errors.NotPrivateError as error:
        _pass_over(str(error))
        return None
    except OSError:
        return None  # the home folder is not writable: compile each time


@functools.cache
def _trusted(path: Path) -> Path:
    return private_files.trusted_folder(path)


@functools.cache
def _pass_over(problem: str) -> None:
    """Warn once about a file or folder that is skipped."""
    warnings.warn(
        f"{problem}. Compiled programs in this folder are passed over, since other users may have written it: make "
        f"the folder and its files this user's alone, or name a different folder by {_DIRECTORY}",
        RuntimeWarning,
        stacklevel=3,
    )


def read(path: Path) -> bytes | None:
    """Return the content of a cached file; None if it is missing, damaged, or not private."""
    try:
        with private_files.open_trusted(_trusted(path.parent) / path.name) as file:
            content = file.read()
            with contextlib.suppress(OSError):  # of root, or not writable
                os.utime(file.fileno())  # recently read files stay
    except errors.NotPrivateError as error:
        _pass_over(str(error))
        return None
    except OSError:
        return None
    digest, packed = content[:32], content[32:]
    return zlib.decompress(packed) if _digest(path, packed) == digest else None


def write(path: Path, content: bytes, most: int) -> None:
    """Write a file, if it can be.

    Of files with the same prefix, up to a "-", the `most` that were written or read last stay, and of all files
    the latest within FLAGS_compilation_cache_max_bytes.
    """
    assert path.name.startswith(_KINDS), path.name
    packed = zlib.compress(content, 1)
    with contextlib.suppress(OSError):  # the disk is full, or not writable
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(_digest(path, packed) + packed)
        os.replace(name, path)
        _make_room(path, most)


def _digest(path: Path, packed: bytes) -> bytes:
    """Return the digest of a file's name and content, with which the file begins."""
    return hashlib.sha256(path.name.encode() + packed).digest()


def _make_room(new: Path, most: int) -> None:
    """Evict the least recently used files, of the new file's kind and of all kinds, JAX's included.

    Other files of the folder stay.
    """
    kind, room, number = new.name.partition("-")[0] + "-", flags.get(_MOST_BYTES), 0
    found = [
        (e.name, e.stat())
        for e in os.scandir(new.parent)
        if e.is_file() and (e.name.startswith(_KINDS) or e.name.endswith(_OF_JAX))
    ]
    for name, about in sorted(found, key=lambda own: own[1].st_mtime_ns, reverse=True):
        number += name.startswith(kind)
        room -= about.st_size
        if name != new.name and ((number > most and name.startswith(kind)) or room < 0):
            (new.parent / name).unlink(missing_ok=True)


def settings() -> tuple[Any, ...]:
    """Return the cache key of tracing beside the program: JAX's configuration of this thread, flags, this package."""
    config = [
        (name, getattr(jax.config, name, value))
        for name, value in sorted(jax.config.values.items())
        if "cache" not in name
    ]
    chosen = [(name, flags.get(name)) for name in sorted(flags.EFFECTIVE) if name not in (_DIRECTORY, _MOST_BYTES)]
    return config, chosen, jax.__version__, sources()


def source_files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield the path, the time and the size of each Python file in a folder and the folders inside."""
    for found in os.scandir(folder):
        if found.is_dir():
            yield from source_files(found.path)
        elif found.name.endswith(".py"):
            stat = found.stat()
            yield found.path, stat.st_mtime_ns, stat.st_size


@functools.cache
def sources() -> str:
    """Return the digest of the times and sizes of this package's source files."""
    stated = sorted(source_files(str(Path(__file__).parents[1])))
    return hashlib.sha256(repr((installation.VERSION, stated)).encode()).hexdigest()
