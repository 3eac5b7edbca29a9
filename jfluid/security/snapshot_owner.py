"""The owner of a folder of snapshots.

One job writes into a folder. A file `owner` in the folder of each server names the job, and is locked as long as
the server lives.

A job is known by its secret, which only its processes have
(the launcher draws a new secret for each start on one host). The job that begins a folder gives
it its id. A job that goes on from the snapshots, by JFLUID_PS_RESTORE=1, takes over the folder and the id.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from jfluid import errors
from jfluid.security import private_files, secret

_NAME = "owner"
# Seconds to wait for a lock: its process may be ending, or reading the lock's state.
_PATIENCE_S, _LOOK_S = 2.0, 0.1
# The same of an earlier life of the server on a different host, which may be lost: network file systems
# (NFS) let its locks go after 90 s.
_LOST_HOST_S = 120.0
_LARGEST = 1 << 16
_ID = re.compile("[A-Za-z0-9_-]{1,64}")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Owner:
    """The contents of an owner file.

    Attributes:
        job: the id of the job that began the folder.
        by: the mark of the job that has it now (see `mark_of`).
        host, process, script, since: of its server.
    """

    job: str
    by: str
    host: str
    process: int
    script: str
    since: str

    def __str__(self) -> str:
        return f"job {self.job} ({self.script}; process {self.process} on {self.host}, since {self.since})"


def mark_of(token: str) -> str:
    """Return the mark of the job with this secret, which does not reveal the secret."""
    return secret.key_for(token, "snapshot folders").hex()[:16]


def read(folder: Path) -> Owner | None:
    """Return the owner of a server's folder, or None if it has no readable owner file."""
    try:
        with open(folder / _NAME, "rb") as file:
            told = json.loads(file.read(_LARGEST))
        found = Owner(**{field.name: told[field.name] for field in fields(Owner)})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = (found.job, found.by, found.host, found.script, found.since)
    if type(found.process) is not int or not all(
        isinstance(t, str) and len(t) <= 1024 and t.isprintable() for t in texts
    ):
        return None
    return found if _ID.fullmatch(found.job) else None


def of_another_job(folders: Iterable[Path], token: str) -> Owner | None:
    """Return the owner of a folder if its server lives and its job has a different secret, else None."""
    for folder in folders:
        with contextlib.suppress(OSError):
            handle = os.open(folder / _NAME, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found = read(folder)
                if found is not None and found.by != mark_of(token):
                    return found
            finally:
                os.close(handle)
    return None


@contextlib.contextmanager
def claimed(
    folder: Path, token: str, restarted: bool, earlier: str | None, peers: Iterable[Path] = ()
) -> Iterator[str]:
    """Hold the folder of a server's snapshots for one job, as long as the context lasts.

    Args:
        token: the job's secret.
        restarted: True if the job's launcher started the server again: then only snapshots of the same job
            count. False for a server that a user started.
        earlier: the id of the job that wrote the restored snapshots (empty if the snapshots have none);
            None for a server that begins anew.
        peers: folders of the job's servers on this host, without this server's.

    Yields the id of the job that the folder belongs to.

    Raises ServerError, which names the job, if the folder belongs to a different job, and if
    the folder is not writable.
    """
    mark = mark_of(token)
    with contextlib.ExitStack() as stack:
        try:
            private_files.make_folder(folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            handle = os.open(folder / _NAME, flags, 0o600)
        except OSError as error:
            raise errors.ServerError(f"{folder}: no snapshots can be written there: {error}") from None
        stack.callback(os.close, handle)
        _lock(handle, folder, mark)
        before = read(folder)
        job = mark
        if earlier is not None:
            _check_restart(folder, before, mark, restarted)
            job = _continued(folder, before, earlier, peers) or mark
        own = Owner(
            job,
            mark,
            socket.gethostname()[:256],
            os.getpid(),
            os.path.basename(sys.argv[0] if sys.argv else "")[:256] or "?",
            datetime.now(UTC).isoformat(" ", "seconds"),
        )
        _write(handle, folder, own)
        yield job


def _lock(handle: int, folder: Path, mark: str) -> None:
    start = time.monotonic()
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() - start > _patience_s(read(folder), mark):
                raise errors.ServerError(_taken(folder)) from None
            time.sleep(_LOOK_S)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            _LOG.warning(
                "%s: its file system has no locks (%s): a second job could write there",
                folder,
                error.strerror,
            )
            return


def _patience_s(owner: Owner | None, mark: str) -> float:
    earlier_life = owner is not None and owner.by == mark and owner.host != socket.gethostname()[:256]
    return _LOST_HOST_S if earlier_life else _PATIENCE_S


def _taken(folder: Path) -> str:
    return (
        f"{folder} belongs to {read(folder) or 'another job'}, which is running: two jobs cannot write their snapshots "
        "into one folder. Name a different one (snapshots.folder of the job file, JFLUID_PS_SNAPSHOT_FOLDER), or end "
        "that job"
    )


def _check_restart(folder: Path, before: Owner | None, mark: str, restarted: bool) -> None:
    if before is None or before.by == mark:
        return
    if restarted:
        raise errors.ServerError(
            f"{folder} belongs to {before}, which has taken it since this server's job began. Name a different folder, "
            "or start the job with snapshots.resume (JFLUID_PS_RESTORE=1) to go on from the snapshots in the folder"
        )
    _LOG.warning("%s belonged to %s: this job goes on from the snapshots in the folder", folder, before)


def _continued(folder: Path, before: Owner | None, earlier: str, peers: Iterable[Path]) -> str:
    """Return the id of the job that a server goes on with.

    Raises ServerError if the folder of a peer belongs to a different job.
    """
    job = before.job if before is not None else earlier
    for peer in peers:
        other = read(peer)
        if other is None:
            continue
        job = job or other.job
        if other.job != job:
            raise errors.ServerError(
                f"{folder} has snapshots of job {job}, and {peer} has snapshots of {other}: the folders do not belong "
                "together. Put back the missing folder, or remove all folders to begin anew"
            )
    return job


def _write(handle: int, folder: Path, owner: Owner) -> None:
    content = json.dumps(asdict(owner)).encode()
    try:
        os.pwrite(handle, content, 0)
        os.ftruncate(handle, len(content))
        os.fsync(handle)
    except OSError as error:  # the lock counts, this is for people and for a restart
        _LOG.warning("%s: the owner could not be written: %s", folder, error)
