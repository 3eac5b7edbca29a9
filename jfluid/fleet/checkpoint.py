"""Numbered checkpoints in a folder, laid out as Fluid's.

<path>/__paddle_fleet_checkpoint__.<number>/_paddle_fleet_param__   all persistable variables
<path>/__paddle_fleet_checkpoint__.<number>/fleet_train_status      {"epoch_no": ...}
"""

import json
import os
from collections.abc import Callable

from jfluid import errors
from jfluid.files.storage import bounded_reader
from jfluid.fleet.filesystem import FS, LocalFS

PREFIX = "__paddle_fleet_checkpoint__"
PARAMETERS = "_paddle_fleet_param__"
STATUS = "fleet_train_status"
_LARGEST_STATUS = 1 << 16  # bytes


class TrainStatus:
    """How far training has come.

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
    """Return the numbers of a folder's checkpoints, in rising order."""
    named = (name.split(".") for name in fs.list_dirs(path))
    return sorted(
        int(parts[1])
        for parts in named
        if len(parts) == 2 and parts[0] == PREFIX and parts[1].isdecimal()
    )


def clean(path: str, fs: FS, keep: int) -> None:
    """Remove all checkpoints of a folder but the newest `keep` (at least one)."""
    found = numbers(path, fs)
    for number in found:
        if number <= found[-1] - max(keep, 1):
            fs.rmr(f"{path}/{PREFIX}.{number}")


def save(path: str, status: TrainStatus, fs: FS, cache: str, write: Callable[[str], None]) -> None:
    """Add a checkpoint to a folder. It gets its name only when it is complete.

    Args:
        path: the folder, in `fs`.
        status: how far training has come.
        fs: the file system of the folder.
        cache: a folder of this host, for what is then uploaded.
        write: a function that writes the variables to a folder of this host.
    """
    if not isinstance(status, TrainStatus):
        raise TypeError(f"train_status: expected a TrainStatus, found {type(status).__name__}")
    fs.mkdir(path)
    number = next(reversed(numbers(path, fs)), -1) + 1
    final = f"{path}/{PREFIX}.{number}"
    unfinished = f"{final}.tmp"
    fs.delete(unfinished)  # of a job that was stopped here
    folder = f"{cache}/{PREFIX}.{number}.saved_cache" if fs.need_upload_download() else unfinished
    LocalFS().delete(folder)
    os.makedirs(folder)
    write(folder)
    with open(os.path.join(folder, STATUS), "w") as file:
        json.dump({"epoch_no": status._epoch_no}, file)
    if fs.need_upload_download():
        fs.upload(folder, unfinished)
        LocalFS().delete(folder)
    fs.mv(unfinished, final)


def load(
    path: str, trainer_id: int, fs: FS, cache: str, read: Callable[[str], None]
) -> TrainStatus | None:
    """Read the newest checkpoint of a folder; returns how far training had come, or None when there
    is no checkpoint.

    Args:
        path: the folder, in `fs`.
        trainer_id: of this process, which downloads to a folder of its own.
        fs: the file system of the folder.
        cache: a folder of this host, for what is downloaded.
        read: a function that reads the variables from a folder of this host.

    Raises FileFormatError when the checkpoint does not say how far training had come.
    """
    found = numbers(path, fs)
    if not found:
        return None
    folder = f"{path}/{PREFIX}.{found[-1]}"
    if fs.need_upload_download():
        local = f"{cache}/{PREFIX}.{found[-1]}.load_cache.{trainer_id}"
        LocalFS().delete(local)
        fs.download(folder, local)
        folder = local
    read(folder)
    return _status(os.path.join(folder, STATUS))


def _status(name: str) -> TrainStatus:
    if not os.path.isfile(name):
        return TrainStatus()
    with bounded_reader(name) as reader:
        if reader.remaining > _LARGEST_STATUS:
            raise reader.refuse(f'expected {{"epoch_no": number}}, found {reader.remaining} bytes')
        data = reader.take(reader.remaining, "the status")
    try:
        epoch = json.loads(data)["epoch_no"]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise errors.FileFormatError(f'{name}: expected {{"epoch_no": number}}: {e}') from e
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not -1 <= epoch < 2**63:
        raise errors.FileFormatError(
            f"{name}: epoch_no: expected a whole number below 2**63, found {repr(epoch)[:40]}"
        )
    return TrainStatus(epoch)
