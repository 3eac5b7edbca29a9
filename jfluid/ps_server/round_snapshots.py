"""Snapshots of one server of a synchronous job, each of the moment right after a round.

Servers of a job that all have a snapshot of one round can go on from it together, whatever was
lost: that is the job's recovery line. One server (see recovery.py) plans the round; each takes its
snapshot when it has applied it; when all have written theirs, all are told to retain it and its
predecessor.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from jfluid import errors, record
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import snapshot, validation
from jfluid.ps_server.store import Store, StoreView
from jfluid.security import private_files

_RETAINED = "recovery_line.json"
_OF_ROUND = re.compile(r"round-(\d{1,18})", re.ASCII)
logger = logging.getLogger(__name__)


class _Line(validation.Spec):
    rounds: list[Annotated[int, Field(ge=0)]]


class RoundSnapshots:
    """Planner, writer and keeper of the snapshots of rounds. Safe for threads.

    Args:
        folder: this server's own.
        left: tells which trainers have left, with their incarnations. It is asked where `on_round`
            is.
        on_durable: called with the snapshot's id and its ledgers of calls and pulls (see
            Store), when all servers have a snapshot of the round.

    Attributes:
        went_back: where the job goes on from an older round than the newest one that a server had a
            snapshot of: from which one to which one, and why; else empty.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        left: Callable[[], dict[int, int]],
        on_durable: Callable[[str, dict[str, Any], dict[str, Any]], None],
    ):
        self.folder, self._store, self._left, self._on_durable = folder, store, left, on_durable
        self.went_back = ""
        self._decided = False
        self._rounds = 0  # that the server will have applied when it has restored
        self._planned = self._writing = 0
        self._found: dict[int, str] = {}  # round -> id of a complete snapshot
        self._newest = 0
        self._ledgers: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._retained = self._read_retained()
        self._changed = threading.Condition()
        self._files = threading.Lock()  # held while files are written, or removed

    def status(self) -> pb.RecoveryReply:
        """Return where this server stands."""
        with self._changed:
            rounds = max(self._store.rounds, self._rounds)
            return pb.RecoveryReply(
                decided=self._decided,
                rounds=rounds,
                snapshots=sorted(self._found),
                planned=self._planned,
                writing=self._writing,
                retained=self._retained,
                newest=self._newest,
            )

    # ---- beginning ----

    def look(self) -> list[int]:
        """Return the rounds of the snapshots in the folder that are not damaged, in order."""
        there = snapshot.ids(self.folder)
        found = {manifest.rounds: manifest.id for manifest in reversed(snapshot.sound(self.folder, self._store.job))}
        with self._changed:
            self._found = found
            named = [int(match[1]) for match in map(_OF_ROUND.fullmatch, there) if match]
            self._newest = max([0, *named, *found, *self._retained])
        return sorted(found)

    def decide(self, rounds: int) -> None:
        """Go on from the snapshot of this round; 0 for a server that begins anew.

        Later ones are of a past that is not coming back, and are removed. Raises ServerError where the
        snapshot does not fit the program.
        """
        with self._changed:
            self._decided, self._rounds = True, rounds
            self._found = {number: name for number, name in self._found.items() if number <= rounds}
            before = self._retained
            self._retained = [number for number in before if number in self._found]
            chosen = self._found.get(rounds)
        if self._retained != before:
            try:
                self._write_retained()
            except OSError as error:  # it is found out again when it is read
                logger.warning("%s: the recovery line could not be written: %s", self.folder, error)
        if self.folder.is_dir():
            snapshot.retain(self.folder, list(self._found.values()), 0)
        if chosen is None:
            return
        manifest = snapshot.restore(self._store, self.folder, 0, 1, chosen)
        logger.warning(
            "restored snapshot %s: %d rounds, %d rows",
            manifest.id,
            manifest.rounds,
            sum(len(table) for table in self._store.tables.values()),
        )
        with self._changed:
            self._ledgers[rounds] = manifest.ledger, manifest.shown
        self._on_durable(chosen, manifest.ledger, manifest.shown)

    def left(self) -> dict[int, int]:
        """Return the trainers that had left when the snapshot was written that this server goes on from."""
        with self._changed:
            chosen = self._found.get(self._rounds)
        return snapshot.latest(self.folder, chosen)[0].left if chosen else {}

    # ---- while it serves ----

    def plan(self, number: int) -> bool:
        """Write a snapshot right after this round.

        False if that round is over, or a different snapshot is being written.
        """
        with self._changed:
            if number <= self._store.rounds or self._writing:
                return False
            self._planned = number
            return True

    def on_round(self, number: int) -> None:
        """Write a snapshot if this round was planned; called after a round, while no other change goes on."""
        with self._changed:
            if number != self._planned:
                if number > self._planned:
                    self._planned = 0
                return
            self._planned, self._writing = 0, number
        open_view = contextlib.ExitStack()
        try:
            view, left = open_view.enter_context(self._store.view()), self._left()
            threading.Thread(
                target=self._write, args=[number, view, left, open_view], name="jfluid-ps-snapshot", daemon=True
            ).start()
        except Exception:
            logger.exception("no snapshot of round %d could be taken", number)
            open_view.close()
            self._end(number)

    def _write(self, number: int, view: StoreView, left: dict[int, int], open_view: contextlib.ExitStack) -> None:
        name, start = f"round-{number}", time.monotonic()
        try:
            with open_view, self._files:
                manifest = snapshot.write(view, self.folder, name, 0, 1, left, keep=None)
                with self._changed:
                    self._found[number], self._ledgers[number] = name, (view.ledger, view.shown)
        except OSError as error:  # earlier snapshots do not change
            logger.error("no snapshot could be written into %s: %s", self.folder, error)
        except Exception:
            logger.exception("no snapshot could be written into %s", self.folder)
        else:
            rows, seconds = sum(t.rows for t in manifest.tables), time.monotonic() - start
            logger.info("snapshot of %d rows after round %d, in %.1f s", rows, number, seconds)
            record.event("snapshot", reason=f"round {number}, {rows:,} rows, {seconds:.1f} s")
            self._prune()
        finally:
            self._end(number)

    def _end(self, number: int) -> None:
        with self._changed:
            self._writing = 0
            self._changed.notify_all()

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is being written."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._writing, timeout_s)

    def retain(self, rounds: Sequence[int]) -> None:
        """Keep the snapshots of these rounds, which all servers have, and the newest; older ones may go."""
        with self._changed:
            missing = [r for r in rounds if r not in self._found]
            if missing or not rounds:
                raise errors.ServerError(
                    f"retain: expected rounds of snapshots that are here ({sorted(self._found)}), found {list(rounds)}"
                )
            self._retained = sorted(rounds)
            last = self._retained[-1]
            name, ledgers = self._found[last], self._ledgers.get(last)
        self._write_retained()
        self._prune()
        if ledgers is not None:
            self._on_durable(name, *ledgers)

    def _prune(self) -> None:
        """Remove snapshots that are neither the newest nor retained."""
        # a snapshot without an owner would look like a leftover
        with self._files:
            with self._changed:
                keep = {*self._retained, max(self._found)}
                self._found = {number: name for number, name in self._found.items() if number in keep}
                self._ledgers = {number: ledgers for number, ledgers in self._ledgers.items() if number in keep}
                names = list(self._found.values())
            snapshot.retain(self.folder, names, 0)

    # ---- snapshots that all servers have ----

    def _read_retained(self) -> list[int]:
        path = self.folder / _RETAINED
        if not path.is_file():
            return []
        try:
            return sorted(validation.read(_Line, path.read_bytes(), str(path)).rounds)
        except (errors.ServerError, OSError) as error:
            logger.warning("%s is passed over: %s", path, error)
            return []

    def _write_retained(self) -> None:
        """Write the list of retained snapshots. Raises OSError when the disk does not take it."""
        path = self.folder / _RETAINED
        fresh = path.with_suffix(".partial")
        with open(fresh, "w", opener=private_files.create) as file:
            file.write(_Line(rounds=self._retained).model_dump_json())
        fresh.replace(path)


def newest_common(own: Iterable[int], peers: Sequence[pb.RecoveryReply]) -> int:
    """Return the newest round that this server and its peers can go on from together; 0 for the beginning.

    A peer that has decided (it serves, or restores) has applied a number of rounds: what is newer
    than that does not fit. Of the others the snapshots count.
    """
    common = {0, *own}
    for peer in peers:
        if peer.decided:
            common = {number for number in common if number <= peer.rounds}
        else:
            common &= {0, *peer.snapshots}
    return max(common)
