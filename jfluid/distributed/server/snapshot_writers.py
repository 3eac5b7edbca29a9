"""Snapshots while servers serve: each server writes a snapshot periodically, and resumes from the last one.

Variables say where and how often (jfluid.environment.process.SnapshotVariables). Trainers need the
folder too: with it they keep pushes for each server, to send them again, and in synchronous
training all servers apply a round or none does, so that a trainer may be killed at any moment.

In synchronous training the servers cut at the same rounds (see jfluid.ps_server.recovery);
otherwise each server chooses the time of its snapshots.
"""

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jfluid import errors
from jfluid.security import snapshot_owner

if TYPE_CHECKING:
    from jfluid.ps_server.recovery import PeerServers
    from jfluid.ps_server.server import Server
    from jfluid.ps_server.service import Service

_LOG = logging.getLogger(__name__)


class ServerSnapshots:
    """The snapshots of one server.

    Args:
        folder: this server's own.
        every_s: seconds between two.
        restore: True if the server continues from a snapshot in the folder.
        restarted: True if the launcher has started the server again.
        peers: the folders of the job's other servers.
    """

    def __init__(
        self, folder: Path, every_s: float, restore: bool, restarted: bool = False, peers: Sequence[Path] = ()
    ):
        self.folder, self.every_s, self.restore = folder, every_s, restore
        self._restarted, self._peers = restarted, peers

    @classmethod
    def of_server(cls, number: int, servers: int) -> "ServerSnapshots | None":
        """Return the snapshot settings of server `number` of `servers` from the environment.

        Raises ServerError for variables that make no sense.
        """
        from jfluid.environment.process import RoleVariables, SnapshotVariables

        told = SnapshotVariables.from_env()
        if told.snapshot_folder is None:
            if told.restore:
                raise errors.ServerError("JFLUID_PS_RESTORE=1: set JFLUID_PS_SNAPSHOT_FOLDER to where snapshots are")
            return None
        folders = [told.snapshot_folder.absolute() / f"server-{n}" for n in range(servers)]
        return cls(
            folders[number],
            told.snapshot_every_s,
            told.restore,
            RoleVariables.from_env().restarts > 0,
            folders[:number] + folders[number + 1 :],
        )

    @contextlib.contextmanager
    def claimed(self, token: str) -> Iterator[str]:
        """Hold the folder for the job that has this secret; yields the job's id.

        Raises ServerError where it is another job's (see jfluid.security.snapshot_owner), and when a server
        that was not started again finds a snapshot: an earlier job's work is neither taken up nor
        written over unasked.
        """
        from jfluid.ps_server import snapshot

        if not self.restore and self.folder.is_dir() and snapshot.complete(self.folder):
            owner = snapshot_owner.read(self.folder)
            raise errors.ServerError(
                f"{self.folder} holds a snapshot of an earlier job. Set JFLUID_PS_RESTORE=1 to go on "
                "with that job; otherwise remove the folder, or name a different one"
                + (f". It belongs to {owner}" if owner is not None else "")
            )
        earlier = snapshot.job_of(self.folder) if self.restore else None
        with snapshot_owner.claimed(self.folder, token, self._restarted, earlier, self._peers) as job:
            yield job

    def writer(self, server: "Server", peers: "PeerServers") -> "Writer":
        """Return the writer of the snapshots: together with the other servers, or alone."""
        return _RoundWriter(self, server, peers) if server.store.synchronous else _PeriodicWriter(self, server)


class Writer(ABC):
    """Writer of a server's snapshots, which also restores the last one."""

    @abstractmethod
    def begin(self) -> None:
        """Go on from a snapshot if the server was started again.

        Raises ServerError if the snapshot belongs to a different program, or if the servers cannot agree.
        """

    @abstractmethod
    def start(self) -> None:
        """Write snapshots until `stop`, and one more when a trainer leaves: a restarted server need not wait for it."""

    @abstractmethod
    def stop(self) -> None:
        """Write no more."""


class _PeriodicWriter(Writer):
    """Writes snapshots of this server alone, periodically."""

    def __init__(self, snapshots: ServerSnapshots, server: "Server"):
        self._snapshots, self._server = snapshots, server
        self._due, self._ended = threading.Event(), threading.Event()
        server.trainer_group.on_leave = self._due.set
        if snapshots.restore:
            server.service.ready.clear()  # until it has read it

    def begin(self) -> None:
        if self._snapshots.restore:
            self._restore()
            self._server.service.ready.set()

    def _restore(self) -> None:
        from jfluid.ps_server import snapshot

        folder, store, trainer_group = (self._snapshots.folder, self._server.store, self._server.trainer_group)
        for newest in snapshot.sound(folder, store.job)[:1]:
            manifest = snapshot.restore(store, folder, 0, 1, newest.id)
            trainer_group.resume(manifest.left)
            _LOG.warning(
                "restored snapshot %s: %d rows", manifest.id, sum(len(table) for table in store.tables.values())
            )
            return
        trainer_group.resume({})
        _LOG.warning("%s holds no complete snapshot: this server begins anew", folder)

    def start(self) -> None:
        threading.Thread(target=self._run, args=[self._server.service], name="jfluid-ps-snapshots", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()
        self._due.set()

    def _run(self, service: "Service") -> None:
        folder = self._snapshots.folder
        while True:
            self._due.wait(self._snapshots.every_s)
            if self._ended.is_set():
                return
            self._due.clear()
            try:
                saved = service.save_alone(folder)
            except OSError as error:  # the last one is as it was
                _LOG.error("no snapshot could be written into %s: %s", folder, error)
            except Exception:
                _LOG.exception("no snapshot could be written into %s", folder)
            else:
                _LOG.info("snapshot of %d rows, %d bytes, in %.1f s", saved.rows, saved.bytes, saved.seconds)


class _RoundWriter(Writer):
    """Writes the snapshots that all servers of a synchronous job take after the same rounds."""

    def __init__(self, snapshots: ServerSnapshots, server: "Server", peers: "PeerServers"):
        from jfluid.ps_server.recovery import Coordinator
        from jfluid.ps_server.round_snapshots import RoundSnapshots

        self._snapshots, self._server, self._peers = snapshots, server, peers
        service, trainer_group = server.service, server.trainer_group
        self._own = RoundSnapshots(snapshots.folder, server.store, trainer_group.left, service.is_saved)
        self._coordinator = None if peers.server else Coordinator(service, peers, snapshots.every_s)
        service.round_snapshots = self._own
        trainer_group.on_round = self._own.on_round
        if self._coordinator is not None:
            trainer_group.on_leave = self._coordinator.hurry
        if snapshots.restore:
            service.ready.clear()  # until the snapshot to restore is known
            self._own.look()
        else:
            self._own.decide(0)

    def begin(self) -> None:
        if not self._snapshots.restore:
            return
        rounds = self._peers.agree(self._own)
        self._own.decide(rounds)
        if not rounds:
            _LOG.warning(
                "%s holds no snapshot that all servers could go on from: this server begins anew",
                self._snapshots.folder,
            )
        self._server.trainer_group.resume(self._own.left())
        self._server.service.ready.set()

    def start(self) -> None:
        if self._coordinator is not None:
            self._coordinator.start()

    def stop(self) -> None:
        if self._coordinator is not None:
            self._coordinator.stop()
        self._peers.close()
        self._own.settle(self._peers.timeout_s)
