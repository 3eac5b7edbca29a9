"""Pending exchange of a step's gradients and parameters with the servers while the next step begins."""

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
    """Push of a step and the pull behind it.

    For a moment it waits for the next step, which asks for its rows and sends both in one call, from its own
    thread; when none comes another thread sends it.

    Args:
        start: starts a function in a thread.
        send: sends, and returns the pieces of the parameters, and rows of tables by the ids that it
            is given (None for none).

    Attributes:
        rows: that were asked for, when it has ended.
    """

    def __init__(
        self,
        start: "Callable[[Callable[[], Any]], object]",
        send: "Callable[[Mapping[str, Any] | None], PullResult]",
        program: TrainerProgram,
        scope: Scope,
    ):
        self._lock, self._begins = threading.Lock(), threading.Condition()
        self._send, self._wanted, self._begun = send, False, False
        self._pulled: Future[PullResult] = Future()
        self.rows: Mapping[str, PulledRows] = {}
        self._waiting = {dense.name: (dense, scope.var(dense.name).get_tensor()) for dense in program.received}
        self._before = {name: tensor.value for name, (_, tensor) in self._waiting.items()}
        for _, tensor in self._waiting.values():
            tensor.expect(self)
        start(self._run)

    def _run(self) -> None:
        with self._begins:
            self._begins.wait_for(lambda: self._wanted or self._begun, PATIENCE_S)
        self.send()

    def send(self, ids: Mapping[str, Any] | None = None) -> bool:
        """Send now, and ask for the rows of these ids, too. False where it was sent before."""
        with self._begins:
            if self._begun:
                return False
            self._begun = True
            self._begins.notify()
        try:
            self._pulled.set_result(self._send(ids))
        except BaseException as error:
            self._pulled.set_exception(error)  # `finish` raises it
        return True

    def begin(self) -> None:
        """Wait for the next step no longer."""
        with self._begins:
            self._wanted = True
            self._begins.notify()

    def finish(self) -> None:
        """Wait until the parameters are there.

        Raises the error of sending; then the gradients do not change.
        """
        self.send()
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
