"""Folders and downloads of data sets, and files of samples: Fluid's `paddle.dataset.common`."""

import glob
import hashlib
import http.client
import importlib
import os
import pickle
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from jfluid.errors import DownloadError, UnsupportedError
from jfluid.files.storage import atomic_write
from jfluid.security import private_files

__all__ = ["DATA_HOME", "cluster_files_reader", "download", "md5file", "split"]

Reader = Callable[[], Iterable[Any]]

DATA_HOME = os.path.expanduser("~/.cache/paddle/dataset")
"""The folder of all data sets. A script may set another one before it asks for data."""

_ATTEMPTS = 3
_TIMEOUT_S = 30
_CHUNK = 1 << 16  # bytes
_MODULES = (
    "cifar",
    "conll05",
    "flowers",
    "imdb",
    "imikolov",
    "mnist",
    "movielens",
    "mq2007",
    "sentiment",
    "uci_housing",
    "voc2012",
    "wmt14",
    "wmt16",
)


def must_mkdirs(path: str) -> None:
    """Make a folder with its parents, unless it exists."""
    os.makedirs(path, exist_ok=True)


def md5file(fname: str | os.PathLike[str]) -> str:
    """Return the MD5 of a file, as 32 hexadecimal digits."""
    with open(fname, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(url: str, module_name: str, md5sum: str, save_name: str | None = None) -> str:
    """Return the path of a file of a data set, which is downloaded unless it is there.

    It lies in `DATA_HOME`/`module_name` under the last part of its URL, or as `save_name`, and has
    the given MD5. A download shows its progress on standard error, and takes the file's place only
    when it is complete. Raises DownloadError, which says which file to put where, when there is
    none that can be had; ValueError for arguments that name no file.
    """
    if not re.fullmatch("[0-9a-fA-F]{32}", md5sum or ""):
        raise ValueError(f"md5sum must have 32 hexadecimal digits, found {md5sum!r}")
    name = url.split("/")[-1] if save_name is None else save_name
    if name in ("", ".", ".."):
        raise ValueError(f"the URL {url!r} does not end in a file's name; give save_name")
    path, md5sum = os.path.join(DATA_HOME, module_name, name), md5sum.lower()
    found = _md5_of_present(path)
    if found == md5sum:
        return path
    fault = ""
    for _ in range(_ATTEMPTS):
        try:
            _fetch(url, path, md5sum)
            return path
        except _Mismatch as e:
            fault = str(e)
        except (OSError, http.client.HTTPException, ValueError) as e:
            fault = f"{getattr(e, 'reason', None) or e or type(e).__name__}"
            break
    present = "is missing" if found is None else f"has md5 {found}: it is incomplete or another file"
    raise DownloadError(
        f"{path} {present}, and downloading it failed ({fault}). Fetch it by other means "
        f"and put it there:\n  from  {url}\n  as    {path}\n  md5   {md5sum}"
    )


def _md5_of_present(path: str) -> str | None:
    """Return the MD5 of a file, or None if it is missing. Raises DownloadError unless it is a file."""
    try:
        return md5file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise DownloadError(f"{path}: cannot be read ({e.strerror}); move it away") from None


class _Mismatch(Exception):
    """Error of a download with a wrong checksum."""


def _fetch(url: str, path: str, md5sum: str) -> None:
    """Download a file to its place. Raises OSError and its kin, or _Mismatch."""
    if not re.match("https?://", url):
        raise ValueError(f"expected a URL of http or https, found {url}")
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, atomic_write(path) as file:
        md5 = hashlib.md5(usedforsecurity=False)
        for chunk in _with_progress(response, os.path.basename(path)):
            md5.update(chunk)
            file.write(chunk)
        if md5.hexdigest() != md5sum:
            length = response.headers.get("Content-Length", "unknown")
            raise _Mismatch(f"received {file.tell()} of {length} bytes, of md5 {md5.hexdigest()}")


def _with_progress(response: Any, name: str) -> Iterator[bytes]:
    """Yield the chunks of a response, with a bar on a terminal, or a line at the end."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    length = response.headers.get("Content-Length", "")
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
    ) as bars:
        task = bars.add_task(f"downloading {name}", total=int(length) if length.isdigit() else None)
        while chunk := response.read(_CHUNK):
            bars.advance(task, len(chunk))
            yield chunk


def fetch_all() -> None:
    """Download the files of all data sets (several gigabytes)."""
    for name in _MODULES:
        importlib.import_module(f"jfluid.compat.dataset.{name}").fetch()


# ---- files of samples ----------------------------------------------------------------------------


class _SamplesUnpickler(pickle.Unpickler):
    """Unpickler that accepts numbers, texts, arrays and containers, and refuses further names."""

    def find_class(self, module: str, name: str) -> Any:
        arrays = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy._core.numeric")
        if (
            (module == "numpy" and name in ("ndarray", "dtype"))
            or (module in arrays and name in ("_reconstruct", "scalar", "_frombuffer"))
            or (module, name) in (("_codecs", "encode"), ("collections", "OrderedDict"))
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"the file names {module}.{name}, which numbers, texts and arrays have no use for; "
            "where you made it yourself, give loader=pickle.load"
        )


def load_samples(file: IO[bytes]) -> Any:
    """Return the samples that `split` wrote to a file: the default `loader` of `cluster_files_reader`.

    Raises pickle.UnpicklingError for pickles that hold more than numbers, texts and arrays.
    """
    return _SamplesUnpickler(file).load()


_BINARY = (pickle.dump, pickle.load, load_samples)


def split(
    reader: Reader,
    line_count: int,
    suffix: str = "%05d.pickle",
    dumper: Callable[[Any, Any], Any] = pickle.dump,
) -> None:
    """Write the samples of a reader to numbered files, each a list of `line_count` samples.

    As in Fluid the first file has one more. `suffix` holds a %d for the number of the file.
    `dumper(samples, file)` writes one: to a binary file where it is `pickle.dump`, to a text file
    (whose `buffer` is a binary one) otherwise. Raises TypeError for a dumper that is no function,
    ValueError for a `line_count` below 1 and a `suffix` without a number.
    """
    if not callable(dumper):
        raise TypeError(f"dumper must be a function of (object, file), found {dumper!r}")
    if line_count < 1:
        raise ValueError(f"line_count must be at least 1, found {line_count!r}")
    try:
        named = suffix % 0 != suffix % 1
    except (TypeError, ValueError):
        named = False
    if not named:
        raise ValueError(f"suffix must hold one %d for the number of the file, found {suffix!r}")
    samples: list[Any] = []
    files = 0

    def write() -> None:
        with open(suffix % files, "wb" if dumper in _BINARY else "w") as file:
            dumper(samples, file)

    for number, sample in enumerate(reader()):
        samples.append(sample)
        if number >= line_count and number % line_count == 0:
            write()
            samples, files = [], files + 1
    if samples:
        write()


def cluster_files_reader(
    files_pattern: str,
    trainer_count: int,
    trainer_id: int,
    loader: Callable[[Any], Iterable[Any]] = load_samples,
) -> Reader:
    """Return a reader of this trainer's share of files that `split` has written.

    Of the files that match `files_pattern`, in the order of their names, trainer i of n reads
    number i, i + n, i + 2n ... `loader(file)` reads one; the default takes numbers, texts and arrays
    only. It gets a binary file where it is the default or `pickle.load`, else a text file (whose
    `buffer` is a binary one). Raises TypeError for a loader that is no function, ValueError for
    numbers that do not fit, and FileNotFoundError when it is read and no file matches. A pickle can
    run commands: `pickle.load` reads files of this user (or root) alone, in folders where nobody else
    may write, and raises NotPrivateError for others.
    """
    if not callable(loader):
        raise TypeError(f"loader must be a function of a file, found {loader!r}")
    if not 0 <= trainer_id < trainer_count:
        raise ValueError(f"trainer_id must be in [0, {trainer_count}), found {trainer_id!r}")

    def reader() -> Iterator[Any]:
        paths = sorted(glob.glob(files_pattern))
        if not paths:
            raise FileNotFoundError(f"no file matches {files_pattern!r}")
        for path in paths[trainer_id::trainer_count]:
            with _opened(path, loader) as file:
                samples = loader(file)
                yield from samples

    return reader


def _opened(path: str, loader: Callable[[Any], Any]) -> IO[Any]:
    if loader is pickle.load:
        whole = Path(os.path.realpath(path))
        return private_files.open_trusted(private_files.trusted_folder(whole.parent) / whole.name)
    return open(path, "rb" if loader in _BINARY else "r")


def convert(*args: Any, **kwargs: Any) -> None:
    """Refused: it wrote RecordIO files, which Fluid 1.8 cannot read either."""
    raise UnsupportedError(
        "paddle.dataset.common.convert writes RecordIO files, which Fluid dropped before 1.8; "
        "write samples with split(), and read with cluster_files_reader()"
    )
