"""Snapshots of a serving job: each server writes its own every so often, and goes on from it when it is started again.

| environment variable | meaning |
|---|---|
| JFLUID_PS_SNAPSHOT_FOLDER | where servers write, each in `server-<number>`; none are written without it |
| JFLUID_PS_SNAPSHOT_EVERY_S | seconds between two snapshots (60) |
| JFLUID_PS_RESTORE | 1: this server was started again, and goes on from its last snapshot if it has one |
| JFLUID_PS_KEEP_BYTES | bytes of pushes since a server's last snapshot that a trainer keeps for it, to send them again |

Trainers need the first variable too: with it they keep 256 MiB of pushes for each server unless told otherwise, and in
synchronous training all servers apply a round or none does, so that a trainer may be killed at any moment.
"""
import logging
import math
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from jfluid import errors

if TYPE_CHECKING:
    from jfluid.distributed.program_store import ProgramStore
    from jfluid.ps_server.service import Service

FOLDER, EVERY, RESTORE, KEEP = (f"JFLUID_PS_{n}" for n in ("SNAPSHOT_FOLDER", "SNAPSHOT_EVERY_S", "RESTORE", "KEEP_BYTES"))
_LOG = logging.getLogger(__name__)


def wanted() -> bool:
    """Whether this job's servers write snapshots, so that processes of it may be killed and started again."""
    return bool(os.environ.get(FOLDER))


def kept_bytes() -> int:
    """How much a trainer keeps of its pushes for each server. Raises ServerError for a variable that is no number."""
    found = os.environ.get(KEEP, str(256 << 20) if wanted() else "0")
    if not found.isdecimal():
        raise errors.ServerError(f"{KEEP}: expected a number of bytes, found {found!r}")
    return int(found)


class Snapshots:
    """The snapshots of one server.

    Args:
        folder: this server's own.
        every_s: seconds between two.
        restore: the server was started again.
    """

    def __init__(self, folder: Path, every_s: float, restore: bool):
        self._folder, self._every_s, self._restore = folder, every_s, restore
        self._due, self._ended = threading.Event(), threading.Event()

    @classmethod
    def from_environment(cls, number: int) -> "Snapshots | None":
        """Those of server `number`, as the environment says. Raises ServerError for variables that make no sense."""
        folder, restore, every = os.environ.get(FOLDER), os.environ.get(RESTORE, "0"), os.environ.get(EVERY, "60")
        if restore not in ("0", "1"):
            raise errors.ServerError(f"{RESTORE}: expected 0 or 1, found {restore!r}")
        if not folder:
            if restore == "1":
                raise errors.ServerError(f"{RESTORE}=1: set {FOLDER} to where the snapshots are")
            return None
        try:
            every_s = float(every)
        except ValueError:
            every_s = math.nan
        if not (every_s > 0 and math.isfinite(every_s)):
            raise errors.ServerError(f"{EVERY}: expected a number of seconds above 0, found {every!r}")
        return cls(Path(folder).absolute() / f"server-{number}", every_s, restore == "1")

    def begin(self, store: "ProgramStore") -> dict[int, int]:
        """Put a server that was started again into the state of its last snapshot; the trainers that had left by then.

        Raises ServerError when one that was not finds a snapshot: an earlier job's work is neither taken up nor written over
        unasked. Raises it, too, when the snapshot is damaged or another program's.
        """
        from jfluid.ps_server import snapshot
        there = self._folder.is_dir() and snapshot.complete(self._folder)
        if there and not self._restore:
            raise errors.ServerError(f"{self._folder} holds a snapshot of an earlier job. Set {RESTORE}=1 to go on with that "
                                     "job; otherwise remove the folder, or name another one")
        if not there:
            if self._restore:
                _LOG.warning("%s holds no complete snapshot: this server begins anew", self._folder)
            return {}
        manifest = snapshot.restore(store, self._folder, 0, 1)
        _LOG.warning("restored snapshot %s: %d rounds, %d rows", manifest.id, manifest.rounds,
                     sum(len(table) for table in store.tables.values()))
        return manifest.left

    def start(self, service: "Service") -> None:
        """Write them, until `stop`; one more when a trainer leaves: a server that starts again need not wait for it then."""
        service.meeting.on_leave = self._due.set
        threading.Thread(target=self._run, args=[service], name="jfluid-ps-snapshots", daemon=True).start()

    def stop(self) -> None:
        """Write no more."""
        self._ended.set()
        self._due.set()

    def _run(self, service: "Service") -> None:
        while True:
            self._due.wait(self._every_s)
            if self._ended.is_set():
                return
            self._due.clear()
            try:
                saved = service.save_alone(self._folder)
            except OSError as error:  # the last one is as it was
                _LOG.error("no snapshot could be written into %s: %s", self._folder, error)
            except Exception:
                _LOG.exception("no snapshot could be written into %s", self._folder)
            else:
                _LOG.info("snapshot of %d rows, %d bytes, in %.1f s", saved.rows, saved.bytes, saved.seconds)
