"""Numbered checkpoints in a folder, laid out as Fluid's.

<path>/__paddle_fleet_checkpoint__.<number>/_paddle_fleet_param__   all persistable variables
<path>/__paddle_fleet_checkpoint__.<number>/fleet_train_status      {"epoch_no": ..., "files": ...}

`files` has the bytes of each file of one that was uploaded, so that a listing of the store, which may
be out of date, does not say what belongs to it. Fluid reads `epoch_no` alone.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jfluid import errors
from jfluid.files.storage import atomic_write, bounded_reader, path_below
from jfluid.fleet.filesystem import FS, LocalFS

logger = logging.getLogger(__name__)

PREFIX = "__paddle_fleet_checkpoint__"
PARAMETERS = "_paddle_fleet_param__"
STATUS = "fleet_train_status"
_LARGEST_STATUS = 1 << 20  # bytes; a folder may have a file for each variable
# How many numbers beyond the last one that a listing has are looked for: object stores may list new
# files late, and have them nevertheless.
_UNLISTED = 4


class TrainStatus:
    """Progress of training in a checkpoint.

    Args:
        epoch_no: the number of the last epoch that was completed; -1 for none.
    """

    def __init__(self, epoch_no: int = -1):
        self._epoch_no = epoch_no

    def next(self) -> int:
        """Return the number of the epoch to continue with."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TrainStatus({self._epoch_no})"


def numbers(path: str, fs: FS) -> list[int]:
    """Return the numbers of a folder's checkpoints, whole or not, in rising order."""
    named = (name.split(".") for name in fs.list_dirs(path))
    return sorted(int(parts[1]) for parts in named if len(parts) == 2 and parts[0] == PREFIX and parts[1].isdecimal())


def _is_whole(path: str, number: int, fs: FS) -> bool:
    """Return True if a checkpoint was written completely.

    An uploaded checkpoint gets its status last, since renaming a folder is no single step of every file system;
    any other gets its name last.
    """
    return not fs.need_upload_download() or fs.stat(f"{path}/{PREFIX}.{number}/{STATUS}")


def _all_numbers(path: str, fs: FS) -> list[int]:
    """Return the ascending numbers of a folder's checkpoints, with complete ones that a listing still lacks."""
    found = numbers(path, fs)
    number, left = next(reversed(found), -1), _UNLISTED if fs.need_upload_download() else 0
    while left:
        number, left = number + 1, left - 1
        if _is_whole(path, number, fs):
            found.append(number)
            left = _UNLISTED
    return found


def clean(path: str, fs: FS, keep: int) -> None:
    """Remove all checkpoints of a folder but the newest `keep` whole ones (at least one)."""
    found = _all_numbers(path, fs)
    whole = [number for number in found if _is_whole(path, number, fs)]
    for number in found:
        if whole and number < whole[-max(keep, 1) :][0]:
            fs.rmr(f"{path}/{PREFIX}.{number}")


def save(path: str, status: TrainStatus, fs: FS, cache: str, write: Callable[[str], None]) -> None:
    """Add a checkpoint to a folder. It counts only when it is whole.

    Args:
        path: the folder, in `fs`.
        status: how far training has come.
        fs: the file system of the folder.
        cache: a folder of this host for the files before the upload.
        write: a function that writes the variables to a folder of this host.
    """
    if not isinstance(status, TrainStatus):
        raise TypeError(f"train_status: expected a TrainStatus, found {type(status).__name__}")
    fs.mkdir(path)
    number = next(reversed(_all_numbers(path, fs)), -1) + 1
    final = f"{path}/{PREFIX}.{number}"
    if fs.need_upload_download():
        folder = f"{cache}/{PREFIX}.{number}.saved_cache"
    else:
        folder = f"{final}.tmp"
    LocalFS().delete(folder)  # of a job that was stopped here
    os.makedirs(folder)
    try:
        write(folder)
        _publish(folder, final, status, fs, cache)
    finally:
        LocalFS().delete(folder)  # unless it was renamed


def _publish(folder: str, final: str, status: TrainStatus, fs: FS, cache: str) -> None:
    """Make a folder of this host a checkpoint of that name."""
    remote = fs.need_upload_download()
    own_status = os.path.join(cache if remote else folder, STATUS)
    told: dict[str, Any] = {"epoch_no": status._epoch_no}
    if remote:
        told["files"] = _sizes(folder)
    with atomic_write(own_status) as file:
        file.write(json.dumps(told).encode())
    if not remote:
        fs.mv(folder, final)
        return
    fs.upload(folder, final)
    fs.upload(own_status, f"{final}/{STATUS}")
    os.remove(own_status)


def _sizes(folder: str) -> dict[str, int]:
    """Return the bytes of each file of a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def load(path: str, trainer_id: int, fs: FS, cache: str, read: Callable[[str], None]) -> TrainStatus | None:
    """Read the newest whole checkpoint of a folder; returns how far training had come, or None when there is none.

    Others are passed over, and the log says so.

    Args:
        path: the folder, in `fs`.
        trainer_id: number of this process, which downloads to a separate folder.
        fs: the file system of the folder.
        cache: a folder of this host for the downloaded files.
        read: a function that reads the variables from a folder of this host.

    Raises FileFormatError when the checkpoint does not say how far training had come, and when one
    that was uploaded lacks a file.
    """
    for number in reversed(_all_numbers(path, fs)):
        folder = f"{path}/{PREFIX}.{number}"
        if not _is_whole(path, number, fs):
            logger.warning("%s is passed over: it has no %s, so it is not whole", folder, STATUS)
            continue
        if fs.need_upload_download():
            local = f"{cache}/{PREFIX}.{number}.load_cache.{trainer_id}"
            LocalFS().delete(local)
            _download(folder, local, fs)
            folder = local
        read(folder)
        return _status(os.path.join(folder, STATUS))[0]
    return None


def _download(folder: str, local: str, fs: FS) -> None:
    """Copy a checkpoint to a folder of this host: the files that its status lists.

    A listing of the file system may lack some of the files. Without a list in the status, as in Fluid's, all files
    are copied.
    """
    os.makedirs(local)
    own_status = os.path.join(local, STATUS)
    fs.download(f"{folder}/{STATUS}", own_status)
    _, sizes = _status(own_status)
    if sizes is None:
        LocalFS().delete(local)
        fs.download(folder, local)
        return
    for name, size in sizes.items():
        target = path_below(local, name)
        fs.download(f"{folder}/{name}", target)
        found = os.path.getsize(target)
        if found != size:
            raise errors.FileFormatError(f"{folder}/{name}: expected {size} bytes, as {STATUS} says, found {found}")


def _status(name: str) -> tuple[TrainStatus, dict[str, int] | None]:
    """Return the progress of training, and the bytes of each file of the checkpoint, if the status has both."""
    if not os.path.isfile(name):
        return TrainStatus(), None
    with bounded_reader(name) as reader:
        if reader.remaining > _LARGEST_STATUS:
            raise reader.refuse(f'expected {{"epoch_no": number}}, found {reader.remaining} bytes')
        data = reader.take(reader.remaining, "the status")
    try:
        told = json.loads(data)
        epoch, files = told["epoch_no"], told.get("files")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise errors.FileFormatError(f'{name}: expected {{"epoch_no": number}}: {e}') from e
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not -1 <= epoch < 2**63:
        raise errors.FileFormatError(f"{name}: epoch_no: expected a whole number below 2**63, found {repr(epoch)[:40]}")
    if files is not None and not (isinstance(files, dict) and all(type(size) is int for size in files.values())):
        raise errors.FileFormatError(f"{name}: files: expected the bytes of each, found {repr(files)[:40]}")
    return TrainStatus(epoch), files
