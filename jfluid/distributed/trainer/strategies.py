"""Strategies: how a trainer's gradients go out and its parameters come in."""

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid import errors
from jfluid.distributed.programs.trainer_program import TrainerProgram
from jfluid.distributed.trainer import local_state
from jfluid.distributed.wire.connections import Gradients, Strategy, TrainerConnection
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.ps_server.client import PulledRows, PullResult

Array = np.ndarray[Any, Any]


def send(
    connection: TrainerConnection,
    program: TrainerProgram,
    gradients: Gradients,
    receive: bool,
    round: int = 0,
    rows: Mapping[str, Array] | None = None,
    state: bytes = b"",
) -> "PullResult":
    """Push gradients and, if asked, pull all parameters and rows by ids, in one call to each server.

    A round of a careful connection takes two calls.

    Args:
        state: of a round: the state that only this trainer has.
    """
    from jfluid.ps_server.client import PullResult
    from jfluid.ps_server.store import Change

    wanted = pieces(program) if receive else []
    if gradients.counts and not round:  # servers count rounds themselves
        counts = {
            f"{name}@{i}": value for name, value in gradients.counts.items() for i in range(len(connection.endpoints))
        }
        connection.calls.push(blocks=counts, change=Change.ADD)
    if round and connection.careful:
        connection.calls.push(gradients.rows, gradients.dense, round=round, hold=True, state=state, merged=True)
        return connection.calls.pull(rows, wanted, round=round, confirm=True, or_no_rows=True)
    if not wanted and not rows:
        connection.calls.push(gradients.rows, gradients.dense, round=round, state=state, merged=True)
        return PullResult({}, {}, 0)
    return connection.calls.exchange(
        gradients.rows,
        gradients.dense,
        {} if rows is None else rows,
        wanted,
        round=round,
        state=state,
        or_no_rows=True,  # rows are of the next step: a refusal must not lose the gradients of this step
        merged=True,
    )


def current(connection: TrainerConnection, program: TrainerProgram) -> dict[str, Array]:
    """Return the current pieces of all parameters."""
    return connection.client.pull(blocks=pieces(program), train=program.trains).blocks


def pieces(program: TrainerProgram) -> list[str]:
    """Return the names of the pieces of all parameters."""
    return [p.name for d in program.received for p in d.pieces]


def install(program: TrainerProgram, pieces: Mapping[str, Array], scope: Scope) -> None:
    """Give the trainer the parameters with a complete set of pieces."""
    for dense in program.received:
        if all(p.name in pieces for p in dense.pieces):
            scope.var(dense.name).get_tensor().value = dense.join(pieces)


class Direct(Strategy):
    """Strategy of one call a step.

    Args:
        synchronous: True if servers wait for all trainers and average the gradients; None for the mode of the
            program's operators.
        pending: True if the call is pending while the next step begins, and brings its rows, too, unless
            the prefetch depth is 0. Calls of a round are always pending: trainers wait until it is applied.
    """

    def __init__(self, synchronous: bool | None = None, pending: bool = False):
        self._synchronous, self._pending = synchronous, pending

    def in_rounds(self, program: TrainerProgram) -> bool:
        return program.synchronous if self._synchronous is None else self._synchronous

    def overlaps(self, program: TrainerProgram) -> bool:
        return not self.in_rounds(program)

    def push(
        self, connection: TrainerConnection, program: TrainerProgram, gradients: Gradients, scope: Scope
    ) -> dict[str, Array]:
        in_rounds = self.in_rounds(program)
        number = connection.rounds + 1 if in_rounds else 0
        state = (
            local_state.packed(program, scope, number, connection.sizes) if in_rounds and connection.recovers else b""
        )

        def exchange(rows: Mapping[str, Array] | None = None) -> "PullResult":
            pulled = send(connection, program, gradients, True, number, rows, state)
            connection.rounds = max(number, connection.rounds)
            return pulled

        if (self._pending or in_rounds) and connection.prefetch_depth:
            connection.exchange(exchange, program, scope)
            return {}
        return exchange().blocks


@dataclass(frozen=True)
class AsyncSettings:
    """Settings of an asynchronous trainer's sends.

    Attributes:
        queue_size: when the gradients of so many steps wait to be merged, the trainer waits, too.
        max_merge: steps whose gradients are sent together.
        wait_times: when no more come for this many hundredths of a second, those that are there are
            sent.
        sums: gradients that are sent together are added up, else averaged.
        before_receive: gradients (of one parameter and step each) after which parameters are
            received again.

    Raises ProgramError for a number that is too small: a queue without a bound would fill the
    memory of a trainer whose servers are slow.
    """

    queue_size: int = 20
    max_merge: int = 20
    wait_times: int = 5
    sums: bool = True
    before_receive: int = 20

    def __post_init__(self) -> None:
        for name, value, least in (
            ("send_queue_size", self.queue_size, 1),
            ("max_merge_var_num", self.max_merge, 1),
            ("send_wait_times", self.wait_times, 0),
            ("min_send_grad_num_before_recv", self.before_receive, 1),
        ):
            if value < least:
                raise errors.ProgramError(f"communicator_{name}: expected at least {least}, found {value}")


class Async(Strategy):
    """Strategy with a thread that merges queued gradients, sends the sum and receives parameters.

    No step waits for the thread, unless the queue is full.
    """

    def __init__(self, settings: AsyncSettings):
        self._settings = settings
        self._queue: queue.Queue[tuple[TrainerConnection, TrainerProgram, Gradients] | None] = queue.Queue()
        self._taken = threading.Condition()  # an item has left the queue
        self._fresh: dict[str, Array] = {}
        self._lock = threading.Lock()
        self._last: tuple[TrainerConnection, TrainerProgram, Scope] | None = None
        self._failed: BaseException | None = None
        self._since = 0  # gradients since parameters were received
        self._thread = threading.Thread(target=self._send_all, name="jfluid-communicator", daemon=True)
        self._thread.start()

    def overlaps(self, program: TrainerProgram) -> bool:
        return True

    def pull(self, connection: TrainerConnection, ids: Mapping[str, Array]) -> "dict[str, PulledRows]":
        return connection.client.pull(ids).rows if ids else {}

    def push(
        self, connection: TrainerConnection, program: TrainerProgram, gradients: Gradients, scope: Scope
    ) -> dict[str, Array]:
        # The thread reads the gradients when this step's buffers may be in use again.
        self._last = connection, program, scope
        own = Gradients({n: np.array(v) for n, v in gradients.dense.items()}, gradients.rows, gradients.counts)
        self._check()
        self._queue.put((connection, program, own))
        # Now, not before the next put: so the parameters of the step before have arrived.
        with self._taken:
            while self._queue.qsize() >= self._settings.queue_size:
                self._check()
                self._taken.wait(timeout=0.5)
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        return fresh

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._check()
        if self._last is not None:
            connection, program, scope = self._last
            install(program, current(connection, program), scope)

    def _check(self) -> None:
        if self._failed is not None:
            raise errors.ServerError(f"gradients could not be sent: {self._failed}") from self._failed

    def _send_all(self) -> None:
        try:
            while self._send_some():
                pass
        except BaseException as error:  # the next step, or stop, raises it
            self._failed = error

    def _send_some(self) -> bool:
        """Merge arriving gradients and send the sum; False at the end."""
        first = self._take_step()
        if first is None:
            return False
        (connection, program, gradients), ended = first, False
        merged = Merged(self._settings.sums)
        merged.add(gradients)
        self._since += merged.count(program)
        while merged.steps < self._settings.max_merge and not ended:
            if self._since >= self._settings.before_receive:
                self._take(current(connection, program))
            try:
                step = self._take_step(timeout_s=self._settings.wait_times / 100)
            except queue.Empty:
                break
            if step is None:
                ended = True
            else:
                merged.add(step[2])
                self._since += merged.count(program)
        due = self._since >= self._settings.before_receive
        fresh = send(connection, program, merged.gradients(), due).blocks
        if due:
            self._take(fresh)
        return not ended

    def _take_step(self, timeout_s: float | None = None) -> tuple[TrainerConnection, TrainerProgram, Gradients] | None:
        """Return the next step of the queue; raises queue.Empty where none comes in time."""
        step = self._queue.get(timeout=timeout_s)
        with self._taken:
            self._taken.notify_all()
        return step

    def _take(self, pieces: dict[str, Array]) -> None:
        self._since = 0
        with self._lock:
            self._fresh = pieces


class Merged:
    """Gradients of several steps, added up or averaged to one step. Counts are added up.

    Attributes:
        steps: number of the steps.
    """

    def __init__(self, sums: bool):
        self.steps, self._sums = 0, sums
        self._dense: dict[str, Array] = {}
        self._rows: dict[str, list[tuple[Array, Array]]] = {}
        self._counts: dict[str, Array] = {}

    @staticmethod
    def count(program: TrainerProgram) -> int:
        """Return how many gradients a step has."""
        return len(program.dense) + len(program.rows)

    def add(self, step: Gradients) -> None:
        """Add a step; its arrays belong to this object from now on."""
        self.steps += 1
        for name, value in step.dense.items():
            if name in self._dense:
                self._dense[name] += value
            else:
                self._dense[name] = value
        for name, rows in step.rows.items():
            self._rows.setdefault(name, []).append(rows)
        for name, value in step.counts.items():
            self._counts[name] = self._counts.get(name, np.float32(0)) + value

    def gradients(self) -> Gradients:
        """Return the merged gradients as the gradients of one step."""
        from jfluid.ps_server import table

        share = np.float32(1.0 if self._sums else 1.0 / self.steps)
        out = Gradients(
            self._dense if self._sums else {n: v * share for n, v in self._dense.items()}, counts=self._counts
        )
        for name, parts in self._rows.items():
            ids, values = (
                parts[0]
                if len(parts) == 1
                else table.merge(np.concatenate([i for i, _ in parts]), np.concatenate([v for _, v in parts]))
            )
            out.rows[name] = ids, values if self._sums else values * share
        return out


DIRECT = Direct()
