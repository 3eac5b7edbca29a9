"""Ledger of applied mutations by trainer, for exactly-once calls."""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jfluid import errors
from jfluid.ps_server import cancellation
from jfluid.ps_server.errors import StateError, TooLargeError

# How far a sequence may run ahead of the first that the trainer has no answer for.
WINDOW = 1 << 16
MOST_TRAINERS = 1 << 16
logger = logging.getLogger(__name__)


class MutationId(NamedTuple):
    """Identity of a mutation: its trainer and its sequence number.

    Attributes:
        trainer: its number.
        incarnation: higher for each life of the trainer.
        sequence: from 1 in each incarnation; a call that is sent again keeps it.
        outstanding: the lowest sequence that the trainer has no answer for; all before it were
            acknowledged.
    """

    trainer: int
    incarnation: int
    sequence: int
    outstanding: int


@dataclass
class _Trainer:
    incarnation: int
    through: int = 0  # all sequences up to here were applied
    beyond: set[int] = field(default_factory=set)  # and these
    running: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)  # sequences of calls that were not applied

    def applied(self, sequence: int) -> bool:
        return sequence <= self.through or sequence in self.beyond

    def record(self, sequence: int) -> None:
        if sequence > self.through:  # otherwise the trainer has given it up meanwhile
            self.beyond.add(sequence)
        self.refused.discard(sequence)
        while self.through + 1 in self.beyond:
            self.through += 1
            self.beyond.remove(self.through)

    def forget(self, outstanding: int) -> int:
        """Move `through` up to before `outstanding`; return the number of skipped sequences that never came here."""
        if outstanding - 1 <= self.through:
            return 0
        known = {s for s in self.beyond | self.running | self.refused if self.through < s < outstanding}
        lost = outstanding - 1 - self.through - len(known)
        self.beyond -= known
        self.refused -= known
        self.through = outstanding - 1
        return lost


class Ledger:
    """The applied (trainer, incarnation, sequence).

    Sequences may come in any order. A trainer that starts again takes a higher incarnation, and
    nothing of its earlier life is applied from then on. Acknowledged calls that are not known here were lost
    when a server was restored from a snapshot; the ledger counts lost calls.

    Args:
        count_lost: whether that is worth telling.

    Attributes:
        lost: acknowledged calls that this server does not have.
    """

    def __init__(self, count_lost: bool = True) -> None:
        self.lost = 0
        self._count_lost = count_lost
        self._trainers: dict[int, _Trainer] = {}
        self._changed = threading.Condition()

    def begin(self, call: MutationId, alive: cancellation.Alive = cancellation.always) -> bool:
        """Return whether the mutation is to be applied; then `commit` or `abort` must follow.

        A duplicate of one that is being applied waits for its end. Raises StateError for an earlier
        incarnation, or when the caller has gone, and ServerError for sequences that cannot be.
        """
        with self._changed:
            entry = self._entry(call)
            if call.sequence in entry.running:
                cancellation.wait(self._changed, lambda: call.sequence not in self._entry(call).running, alive)
                entry = self._entry(call)
            if entry.applied(call.sequence):
                return False
            entry.running.add(call.sequence)
            return True

    def commit(self, calls: Iterable[MutationId]) -> None:
        """Record that these calls were applied."""
        with self._changed:
            for call in calls:
                entry = self._end(call)
                if entry:
                    entry.record(call.sequence)
            self._changed.notify_all()

    def abort(self, call: MutationId) -> None:
        """Record that this call was not applied, and may be sent again."""
        with self._changed:
            self._end(call)
            self._changed.notify_all()

    @contextlib.contextmanager
    def refusing(self, call: MutationId) -> Iterator[None]:
        """When the block raises, the call is refused, and not among the lost ones when its trainer goes on without it.

        It may be sent again.
        """
        try:
            yield
        except Exception:
            with self._changed, contextlib.suppress(errors.ServerError):
                self._entry(call).refused.add(call.sequence)
            raise

    @contextlib.contextmanager
    def once(self, call: MutationId, alive: cancellation.Alive = cancellation.always) -> Iterator[bool]:
        """Yield True if the mutation is to be applied; commit it, or abort it when the block raises."""
        if not self.begin(call, alive):
            yield False
            return
        try:
            yield True
        except BaseException:
            self.abort(call)
            raise
        self.commit([call])

    def _entry(self, call: MutationId) -> _Trainer:
        entry = self._trainers.get(call.trainer)
        if entry is None and len(self._trainers) >= MOST_TRAINERS:
            raise TooLargeError(f"trainer {call.trainer}: the server knows {MOST_TRAINERS} trainers and takes no more")
        if entry is not None and call.incarnation < entry.incarnation:
            raise StateError(
                f"trainer {call.trainer}: incarnation {call.incarnation} has ended; incarnation "
                f"{entry.incarnation} is at work"
            )
        if not 1 <= call.outstanding <= call.sequence < call.outstanding + WINDOW:
            raise errors.ServerError(
                f"trainer {call.trainer}: expected 1 <= outstanding <= sequence < outstanding + "
                f"{WINDOW}, found outstanding {call.outstanding} and sequence {call.sequence}"
            )
        if entry is None or call.incarnation > entry.incarnation:
            entry = self._trainers[call.trainer] = _Trainer(call.incarnation)
        lost = entry.forget(call.outstanding)
        if lost and self._count_lost:
            self.lost += lost
            logger.warning(
                "trainer %d: %d acknowledged calls are not in the snapshot that this server was restored from, and "
                "are lost",
                call.trainer,
                lost,
            )
        return entry

    def _end(self, call: MutationId) -> _Trainer | None:
        """Return the entry of a call that ran; None if the incarnation has ended."""
        entry = self._trainers[call.trainer]
        if entry.incarnation != call.incarnation:
            return None
        entry.running.discard(call.sequence)
        return entry

    def through(self, trainer: int) -> tuple[int, int]:
        """Return (incarnation, the sequence up to which all were applied) of a trainer; (0, 0) for an unknown one."""
        with self._changed:
            entry = self._trainers.get(trainer)
            return (entry.incarnation, entry.through) if entry else (0, 0)

    def trainers(self) -> list[int]:
        """Return the numbers of all trainers that ever sent a mutation."""
        with self._changed:
            return sorted(self._trainers)

    def state(self) -> dict[str, Any]:
        """Return the state for a snapshot, as JSON data."""
        with self._changed:
            return {
                str(number): {"incarnation": t.incarnation, "through": t.through, "beyond": sorted(t.beyond)}
                for number, t in self._trainers.items()
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state`."""
        with self._changed:
            self._trainers = {
                int(number): _Trainer(t["incarnation"], t["through"], set(t["beyond"])) for number, t in state.items()
            }

    def restore_ended(self, states: list[dict[str, Any]]) -> None:
        """Take over the incarnations of trainers from other servers as ended, since sequences are per server."""
        with self._changed:
            self._trainers = {}
            for number in {n for state in states for n in state}:
                last = max(state[number]["incarnation"] for state in states if number in state)
                self._trainers[int(number)] = _Trainer(last + 1)
