"""Trainers of a job as one server sees the job: membership, barriers, and rounds of synchronous training."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from jfluid import errors
from jfluid.ps_server import cancellation
from jfluid.ps_server.errors import JobFailedError, RollbackError, StateError
from jfluid.ps_server.ledger import MutationId
from jfluid.ps_server.round_waits import RoundWaits, Wait
from jfluid.ps_server.store import BlockUpdate, Change, RowsUpdate, Store
from jfluid.ps_server.table import merge

# How long to answer repeated `Leave` calls after the last one of a trainer that has not confirmed
# the answer.
_GOODBYE_S = 30.0
logger = logging.getLogger(__name__)


@dataclass
class _Deposit:
    """The gradients of one trainer for the next round; later `applied`, or `refused` with a reason."""

    call: MutationId
    rows: list[RowsUpdate]
    blocks: list[BlockUpdate]
    state: bytes
    confirmed: bool = False
    applied: bool = False
    refused: str = ""


@dataclass
class _Trainer:
    heard_s: float
    incarnation: int
    state: Literal["expected", "at work", "silent", "left"] = "at work"
    knows: bool = False  # it has the answer to its `Leave`


@dataclass
class _Barrier:
    passed: int = 0
    # trainer -> the barrier generation that it waits for
    waiting: dict[int, int] = field(default_factory=dict)


class TrainerGroup:
    """Barriers and rounds of `trainers` trainers, numbered from 0. Safe for threads.

    Barriers and rounds wait for every trainer except trainers that have left (and, with "leave out",
    silent trainers). In a new job they wait without limit for a trainer that has never
    called: it may be starting, or waiting for a host. After a restore such a trainer may
    also be dead: then they wait for `start_s`.

    Args:
        silence_s: a trainer that has made no call for longer than this is silent.
        on_silence: "fail" fails the job: all waiting calls, and all later ones, are refused with
            the number of the trainer; "leave out" continues without it until it calls again.
            Gradients that it has deposited and not confirmed are refused after the round is applied
            without these gradients.
        start_s: a trainer that has made no call for longer than this since `resume` is silent, too.

    Attributes:
        failed: why the job has failed; empty while it has not.
        on_leave: called when a trainer has left.
        on_finished: called when all trainers have left and have the answers to their `Leave`.
        on_round: called with the number of each round right after it is applied, before any trainer
            can see that.
    """

    def __init__(
        self,
        store: Store,
        trainers: int,
        silence_s: float = 60.0,
        on_silence: Literal["fail", "leave out"] = "fail",
        clock: Callable[[], float] = time.monotonic,
        start_s: float = 600.0,
    ):
        self.store, self.trainers, self.silence_s, self.on_silence = (store, trainers, silence_s, on_silence)
        self.start_s = max(start_s, silence_s)
        self.failed = ""
        self.on_leave: Callable[[], None] = lambda: None
        self.on_finished: Callable[[], None] = lambda: None
        self.on_round: Callable[[int], None] = lambda number: None
        self._clock = clock
        self._known: dict[int, _Trainer] = {}
        self._barriers: dict[str, _Barrier] = {}
        self._deposits: dict[int, _Deposit] = {}
        # trainer -> the last round that was applied without its deposit
        self._left_out: dict[int, int] = {}
        self._round_waits = RoundWaits()
        self._changed = threading.Condition()

    # ---- members ----

    def heard(self, trainer: int, incarnation: int) -> None:
        """Note a call of this trainer.

        Raises ServerError for a number that no trainer has, StateError for an ended incarnation,
        JobFailedError when the job has failed.

        Incarnation 0 is a process that has not asked for an incarnation yet: the call is a sign of life and
        changes nothing else.
        """
        if not 0 <= trainer < self.trainers:
            raise errors.ServerError(f"trainer {trainer}: this job has {self.trainers} trainers, numbered from 0")
        with self._changed:
            self._check()
            known = self._known.get(trainer)
            if incarnation == 0:
                if known is not None:
                    known.heard_s = self._clock()
            elif known is None or incarnation > known.incarnation:
                self._known[trainer] = _Trainer(self._clock(), incarnation)
                self._left_out.pop(trainer, None)
                for barrier in self._barriers.values():
                    barrier.waiting.pop(trainer, None)
                self._changed.notify_all()
            else:
                self._check_incarnation(trainer, incarnation)
                known.heard_s = self._clock()
                if known.state == "silent":
                    logger.warning("trainer %d is heard again", trainer)
                if known.state != "left":
                    known.state = "at work"

    def incarnation(self, trainer: int) -> int:
        """Return the highest incarnation of a trainer that has called here, even if it has only pulled; 0 for none."""
        with self._changed:
            known, ledgers = self._known.get(trainer), (self.store.ledger, self.store.shown)
            return max(known.incarnation if known else 0, *(ledger.through(trainer)[0] for ledger in ledgers))

    def leave(self, trainer: int, knows: bool = False) -> None:
        """Record that this incarnation of the trainer has finished. Repeating the call is harmless.

        Args:
            knows: the trainer has the answer to its `Leave`, and will not repeat it.
        """
        with self._changed:
            known = self._known.get(trainer)
            leaves = known is not None and known.state != "left"
            if known is not None:
                known.state, known.knows = "left", known.knows or knows
            self._advance()
        if leaves:
            self.on_leave()
        if self.finished:
            self.on_finished()

    def at_work(self) -> list[int]:
        """Return the trainers that have called and have neither left nor become silent."""
        with self._changed:
            return sorted(t for t, known in self._known.items() if known.state == "at work")

    @property
    def over(self) -> bool:
        """True if all trainers have joined and left."""
        with self._changed:
            return len(self._known) == self.trainers and all(known.state == "left" for known in self._known.values())

    @property
    def finished(self) -> bool:
        """True if the job is over and no trainer is going to repeat its `Leave`."""
        with self._changed:
            if not self.over:
                return False
            heard_s = max(known.heard_s for known in self._known.values())
            return all(known.knows for known in self._known.values()) or self._clock() - heard_s > _GOODBYE_S

    def look_for_silence(self) -> None:
        """Find trainers that have been silent for too long. To be called regularly."""
        with self._changed:
            for number, known in self._known.items():
                silent_s = self._clock() - known.heard_s
                limit_s, since = (
                    (self.start_s, " since the server was restored")
                    if known.state == "expected"
                    else (self.silence_s, "")
                )
                if known.state not in ("expected", "at work") or silent_s <= limit_s:
                    continue
                known.state = "silent"
                self._round_waits.give_up(number, self._clock())
                logger.warning("trainer %d has been silent for %.0f s%s", number, silent_s, since)
                if self.on_silence == "fail":
                    self._fail(f"trainer {number} has been silent for {silent_s:.0f} s{since} (limit {limit_s:g} s)")
            self._advance()

    def _fail(self, why: str) -> None:
        self.failed = self.failed or why
        for deposit in self._deposits.values():
            self._refuse(deposit, self.failed)
        self._deposits = {}
        self._changed.notify_all()

    def _check(self) -> None:
        if self.failed:
            raise JobFailedError(f"the job has failed: {self.failed}")

    def _check_incarnation(self, trainer: int, incarnation: int) -> None:
        """Check the incarnation again under the lock of the change: `heard` was a while ago."""
        known = self._known.get(trainer)
        if known is not None and incarnation < known.incarnation:
            raise StateError(
                f"trainer {trainer}: incarnation {incarnation} has ended; incarnation {known.incarnation} is at work"
            )

    def _awaited(self) -> set[int]:
        return {
            t for t in range(self.trainers) if t not in self._known or self._known[t].state in ("expected", "at work")
        }

    def _advance(self) -> None:
        """Release the barriers, and apply the round, that no trainer is missing from any more."""
        if self.failed:
            return
        awaited = self._awaited()
        for barrier in self._barriers.values():
            if barrier.waiting and awaited <= barrier.waiting.keys():
                barrier.passed = max(barrier.passed, min(barrier.waiting.values()))
                barrier.waiting = {t: n for t, n in barrier.waiting.items() if n > barrier.passed}
        if self._deposits and awaited <= {t for t, deposit in self._deposits.items() if deposit.confirmed}:
            self._apply_round()
        self._changed.notify_all()

    def _wait(self, done: Callable[[], bool], alive: cancellation.Alive) -> None:
        """Wait for `done`, unless the caller goes away.

        Raises JobFailedError when the job fails in the meantime.
        """

        def met() -> bool:
            if done():
                return True
            self._check()
            return False

        cancellation.wait(self._changed, met, alive)

    # ---- barriers ----

    def barrier(
        self,
        trainer: int,
        name: str,
        number: int,
        alive: cancellation.Alive = cancellation.always,
        passed: bool = False,
    ) -> None:
        """Wait until all trainers have reached generation `number` (from 1) of the barrier.

        Repeating a generation is harmless.

        Args:
            passed: the trainer has passed it at the server that this one replaces, so all trainers
                had reached it.
        """
        if number < 1 or not name or len(name) > 256:
            raise errors.ServerError(f"barrier: expected a name and a number from 1, found {name[:256]!r} and {number}")
        with self._changed:
            if name not in self._barriers and len(self._barriers) >= 4096:
                raise errors.ServerError("barrier: this job has 4096 barriers and makes no more")
            barrier = self._barriers.setdefault(name, _Barrier())
            if passed:
                barrier.passed = max(barrier.passed, number)
                barrier.waiting = {t: n for t, n in barrier.waiting.items() if n > barrier.passed}
                self._changed.notify_all()
            elif number > barrier.passed:
                barrier.waiting[trainer] = number
                self._advance()
            self._wait(lambda: barrier.passed >= number, alive)

    # ---- rounds ----

    def deposit(
        self,
        call: MutationId,
        number: int,
        rows: list[RowsUpdate],
        blocks: list[BlockUpdate],
        alive: cancellation.Alive = cancellation.always,
        hold: bool = False,
        state: bytes = b"",
    ) -> bool:
        """Deposit this trainer's gradients for round `number`, and wait for the round; False for a duplicate.

        With `hold` the gradients wait for `confirm`, and this call returns at once. When the round
        is applied the store takes over the trainer's `state`.

        The round sums the gradients of all trainers in the order of their numbers and divides by
        the number of trainers. A trainer that restarts replaces its earlier incarnation. Raises
        StateError when the round is applied without these gradients, or is not the next one;
        RollbackError when the rounds in between are missing.
        """
        updates: list[RowsUpdate | BlockUpdate] = [*rows, *blocks]
        if any(update.change != Change.GRADIENT for update in updates):
            raise errors.ServerError("a round takes gradients only; send other changes with round 0")
        with self._changed:
            there = self._deposits.get(call.trainer)
            if there is not None and there.call[:3] == call[:3]:
                self._settle(there, hold, alive)
                return False
            # Under the same lock, so that a repeated call finds the deposit, or is the first: one
            # that is held has no end that the ledger could wait for.
            if not self.store.ledger.begin(call, alive):
                self.wait_for_round(number, alive)
                return False
            try:
                self._check()
                self._check_incarnation(call.trainer, call.incarnation)
                earlier = self._deposits.get(call.trainer)
                if number > self.store.rounds + 1:
                    raise _rollback(call.trainer, number, self.store.rounds)
                if number == self._left_out.get(call.trainer):
                    raise StateError(_without(call.trainer, number))
                if number != self.store.rounds + 1 or (earlier and earlier.call.incarnation >= call.incarnation):
                    raise StateError(
                        f"trainer {call.trainer}: gradients of round {number}: round {self.store.rounds + 1} "
                        "comes next" + ", and has this trainer's already" * bool(earlier)
                    )
            except errors.ServerError:
                self.store.ledger.abort(call)
                raise
            if earlier:
                self._refuse(earlier, f"trainer {call.trainer}: incarnation {earlier.call.incarnation} has ended")
                self._round_waits.withdraw(call.trainer)
            there = self._deposits[call.trainer] = _Deposit(call, rows, blocks, state)
            # When the caller goes away its deposit stays: the next attempt finds it.
            self._settle(there, hold, alive)
        return True

    def _settle(self, deposit: _Deposit, hold: bool, alive: cancellation.Alive) -> None:
        """Confirm a deposit, unless it is to be held, and wait until it is applied.

        Raises StateError if it is not.
        """
        if hold:
            return
        self._confirm(deposit)
        self._wait(lambda: deposit.applied or bool(deposit.refused), alive)
        if deposit.refused:
            self._check()
            raise StateError(deposit.refused)

    def _confirm(self, deposit: _Deposit) -> None:
        """Let a deposit be applied."""
        deposit.confirmed = True
        self._round_waits.arrive(deposit.call.trainer, self._clock())
        self._advance()

    def _refuse(self, deposit: _Deposit, why: str) -> None:
        """Note that a deposit will not be applied."""
        deposit.refused = why
        self.store.ledger.abort(deposit.call)

    def confirm(self, trainer: int, incarnation: int, number: int) -> None:
        """Let this trainer's gradients of round `number` be applied: all servers have the gradients.

        Repeating this is harmless.

        Raises StateError if this server does not have the gradients, or has applied the round without
        the gradients, or if the incarnation has ended; JobFailedError if the job has failed.
        """
        with self._changed:
            self._check()
            self._check_incarnation(trainer, incarnation)
            if number == self._left_out.get(trainer):
                raise StateError(_without(trainer, number))
            if number <= self.store.rounds:
                return
            if number > self.store.rounds + 1:
                raise _rollback(trainer, number, self.store.rounds)
            deposit = self._deposits.get(trainer)
            if deposit is None or number != self.store.rounds + 1:
                raise StateError(
                    f"trainer {trainer}: round {number} cannot be confirmed: this server has applied "
                    f"{self.store.rounds} rounds, and holds {'other' if deposit else 'no'} gradients of it"
                )
            self._confirm(deposit)

    def progress(self, trainer: int) -> tuple[int, bool]:
        """Return (applied rounds, True if this trainer's gradients for the next round are confirmed).

        While a round is applied this waits for its end, so that both are of one moment.
        """
        with self._changed:
            deposit = self._deposits.get(trainer)
            return self.store.rounds, deposit is not None and deposit.confirmed

    def waits(self) -> Mapping[int, Wait]:
        """Return how long rounds have waited for each trainer."""
        with self._changed:
            return self._round_waits.totals(() if self.failed else self._awaited(), self._clock())

    def left(self) -> dict[int, int]:
        """Return the trainers that have left, with their incarnations."""
        with self._changed:
            return {t: known.incarnation for t, known in self._known.items() if known.state == "left"}

    def resume(self, left: Mapping[int, int]) -> None:
        """Continue after a restart.

        `left` names the trainers that had left when the snapshot was written. The remaining trainers may have left
        since, and their silence counts from now.
        """
        with self._changed:
            for trainer in range(self.trainers):
                heard = (
                    _Trainer(self._clock(), left[trainer], "left", knows=True)
                    if trainer in left
                    else _Trainer(self._clock(), self.store.ledger.through(trainer)[0], "expected")
                )
                self._known.setdefault(trainer, heard)

    def wait_for_round(self, number: int, alive: cancellation.Alive = cancellation.always) -> None:
        """Wait until round `number` was applied."""
        with self._changed:
            self._wait(lambda: self.store.rounds >= number, alive)

    def _apply_round(self) -> None:
        deposits = [self._deposits[t] for t in sorted(self._deposits) if self._deposits[t].confirmed]
        for trainer, deposit in self._deposits.items():
            if not deposit.confirmed:  # of a trainer that is silent, or has left
                self._left_out[trainer] = self.store.rounds + 1
                self._refuse(deposit, _without(trainer, self.store.rounds + 1))
        self._deposits = {}
        self._round_waits.end_round()
        try:
            with self.store.changing():
                self.store.apply(*averaged(deposits))
                self.store.rounds += 1
                self.store.ledger.commit(deposit.call for deposit in deposits)
                self.store.trainer_states |= {
                    deposit.call.trainer: deposit.state for deposit in deposits if deposit.state
                }
            self.on_round(self.store.rounds)
        except Exception as error:
            logger.exception("round %d could not be applied", self.store.rounds + 1)
            self._deposits = {deposit.call.trainer: deposit for deposit in deposits}
            self._fail(f"round {self.store.rounds + 1} could not be applied: {error}")
            return
        for deposit in deposits:
            deposit.applied = True


def _without(trainer: int, number: int) -> str:
    return (
        f"trainer {trainer}: round {number} was applied without its gradients, which it had not confirmed; start it "
        "again, and it goes on with the round that comes next"
    )


def _rollback(trainer: int, number: int, applied: int) -> RollbackError:
    return RollbackError(
        f"trainer {trainer}: round {number}: this server has applied {applied} rounds, and no process has "
        "the gradients of the rounds between any more: start all processes again, which go on from the newest "
        "snapshots that all servers have"
    )


def averaged(deposits: Sequence[_Deposit]) -> tuple[list[RowsUpdate], list[BlockUpdate]]:
    """Merge the updates of several trainers: their sum, in the order of the trainers, over the number of trainers."""
    if len(deposits) == 1:
        return deposits[0].rows, deposits[0].blocks
    share = np.float32(1 / len(deposits))
    rows: dict[str, list[RowsUpdate]] = {}
    blocks: dict[str, list[BlockUpdate]] = {}
    for deposit in deposits:
        for update in deposit.rows:
            rows.setdefault(update.table, []).append(update)
        for change in deposit.blocks:
            blocks.setdefault(change.block, []).append(change)
    joined_rows = []
    for table, updates in rows.items():
        ids, values = merge(np.concatenate([u.ids for u in updates]), np.concatenate([u.values for u in updates]))
        joined_rows.append(RowsUpdate(table, Change.GRADIENT, ids, values * share, updates[0].learning_rate))
    joined_blocks = []
    for block, changes in blocks.items():
        total = changes[0].value.copy()
        for change in changes[1:]:
            total += change.value
        joined_blocks.append(BlockUpdate(block, Change.GRADIENT, total * share, changes[0].learning_rate))
    return joined_rows, joined_blocks
