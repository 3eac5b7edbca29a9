"""Asynchronous training in which the gradients of each step go out on their own."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid.distributed.programs.trainer_program import TrainerProgram
from jfluid.distributed.trainer.strategies import current, install, send
from jfluid.distributed.wire.connections import Gradients, Strategy, TrainerConnection
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.ps_server.client import PullResult

Array = np.ndarray[Any, Any]


class AsyncSteps(Strategy):
    """Strategy that sends the gradients of a step after the look-up of the next step's rows.

    Servers look up the rows at once, and apply the gradients while the next step computes. The step after that
    takes the parameters that came back. A step waits for servers only if they take longer than the step.

    Args:
        before_receive: gradients (of one parameter and step each) after which parameters are received
            again.
    """

    def __init__(self, before_receive: int):
        self._before_receive, self._since = before_receive, 0
        # what leaves when the step has begun to compute, and what has left
        self._put_off: tuple[TrainerConnection, TrainerProgram, Gradients] | None = None
        self._under_way: Future[PullResult] | None = None
        # what came back for others who waited
        self._blocks: dict[str, Array] = {}
        self._lock = threading.RLock()
        self._last: tuple[TrainerConnection, TrainerProgram, Scope] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jfluid-communicator")

    def overlaps(self, program: TrainerProgram) -> bool:
        return True

    def push(
        self, connection: TrainerConnection, program: TrainerProgram, gradients: Gradients, scope: Scope
    ) -> dict[str, Array]:
        self._last = connection, program, scope

        def go_on(rows: "Mapping[str, Any] | None" = None) -> "PullResult":
            found = self._asked(connection, rows)
            self._put_off = connection, program, gradients
            if rows is None:  # no step begins
                self.computes()
            return found

        connection.exchange(go_on, program, scope, watched=True)
        return {}

    def computes(self) -> None:
        with self._lock:
            put_off, self._put_off = self._put_off, None
            if put_off is None:
                return
            connection, program, gradients = put_off
            self._since += len(program.dense) + len(program.rows)
            receives = self._since >= self._before_receive
            if receives:
                self._since = 0
            self._under_way = self._thread.submit(send, connection, program, gradients, receives)

    def arrive(self) -> None:
        if self._last is not None:
            with self._lock:
                self._blocks = self._came_back(self._last[0])

    def stop(self) -> None:
        if self._last is not None:
            connection, program, scope = self._last
            connection.settle()
            self.arrive()
            install(program, current(connection, program), scope)
        self._thread.shutdown()

    def _asked(self, connection: TrainerConnection, rows: "Mapping[str, Any] | None") -> "PullResult":
        """Return rows, and the parameters that came back for earlier gradients.

        The wait for parameters goes on while servers look up the rows.
        """
        from jfluid.ps_server.client import PullResult, RowRequest

        if not rows:
            return PullResult({}, self._came_back(connection), 0)
        came: Future[dict[str, Array]] = Future()

        def wait() -> None:
            if not came.done():
                try:
                    came.set_result(self._came_back(connection))
                except BaseException as error:  # to be raised when the rows are there
                    came.set_exception(error)

        asked = rows if isinstance(rows, RowRequest) else RowRequest(rows)
        found = connection.calls.pull(asked.then(wait), or_no_rows=True).rows
        wait()
        return PullResult(found, came.result(), 0)

    def _came_back(self, connection: TrainerConnection) -> dict[str, Array]:
        """Send deferred gradients and wait for all sent ones; return the pieces of parameters that came back."""
        with self._lock:
            self.computes()
            under_way, self._under_way = self._under_way, None
            blocks, self._blocks = self._blocks, {}
            return blocks if under_way is None else blocks | under_way.result().blocks
