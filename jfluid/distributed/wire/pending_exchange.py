"""Pending parameters: the exchange with the servers after a step goes on while the next step
begins.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jfluid.distributed.programs.trainer_program import TrainerProgram
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.ps_server.client import PulledRows, PullResult

PATIENCE_S = 0.005


class Exchange:
    """A push and what comes back for it, in a thread. For a moment it waits for the next step,
    which asks for its rows: then that is one call together.

    Args:
        start: starts a function in a thread.
        send: sends, and returns the pieces of the parameters, and rows of tables by the ids that it
            is given (None for none).

    Attributes:
        rows: that were asked for, when it has ended.
    """

    def __init__(
        self,
        start: "Callable[[Callable[[], PullResult]], Future[PullResult]]",
        send: "Callable[[Mapping[str, Any] | None], PullResult]",
        program: TrainerProgram,
        scope: Scope,
    ):
        self._lock, self._begins = threading.Lock(), threading.Condition()
        self._send, self._wanted, self._begun = send, False, False
        self._ids: Mapping[str, Any] | None = None
        self.rows: Mapping[str, PulledRows] = {}
        self._waiting = {
            dense.name: (dense, scope.var(dense.name).get_tensor()) for dense in program.received
        }
        self._before = {name: tensor.value for name, (_, tensor) in self._waiting.items()}
        for _, tensor in self._waiting.values():
            tensor.expect(self)
        self._pulled = start(self._run)

    def _run(self) -> "PullResult":
        with self._begins:
            self._begins.wait_for(lambda: self._wanted, PATIENCE_S)
            self._begun = True
        return self._send(self._ids)

    def add(self, ids: Mapping[str, Any]) -> bool:
        """Ask for rows, too; False where it is too late for that."""
        with self._begins:
            if not self._begun:
                self._ids = ids
            return not self._begun

    def begin(self) -> None:
        """Wait for the next step no longer."""
        with self._begins:
            self._wanted = True
            self._begins.notify()

    def finish(self) -> None:
        """Wait until the parameters are there. Raises what sending raised; then they are as they
        were before.
        """
        self.begin()
        with self._lock:
            blocks: Mapping[str, Any] = {}
            try:
                pulled = self._pulled.result()
                blocks, self.rows = pulled.blocks, pulled.rows
            finally:
                for name, (dense, tensor) in self._waiting.items():
                    whole = all(p.name in blocks for p in dense.pieces)
                    tensor.settle(self, dense.join(blocks) if whole else self._before[name])
                self._waiting, self._before = {}, {}
