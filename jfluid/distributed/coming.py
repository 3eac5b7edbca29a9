"""Parameters on their way: an exchange with the servers that goes on while the trainer's next step begins."""
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from jfluid.distributed.work import Work
from jfluid.lod_tensor import LoDTensor
from jfluid.scope import Scope

Pieces = Mapping[str, np.ndarray[Any, Any]]


class Coming(LoDTensor):
    """A tensor whose value is on its way: who reads it waits for it, and who sets it does not. Then it is a LoDTensor."""

    @property
    def _value(self) -> Any:
        vars(self)["exchange"].finish()
        return self._value

    @_value.setter
    def _value(self, value: Any) -> None:
        self.__class__ = LoDTensor  # type: ignore[assignment]
        self._value = value


class Exchange:
    """A push and what comes back for it, in a thread.

    Args:
        start: starts a function in a thread.
        send: sends, and returns the pieces of the parameters.
    """

    def __init__(self, start: Callable[[Callable[[], Pieces]], "Future[Pieces]"], send: Callable[[], Pieces], work: Work,
                 scope: Scope):
        self._lock = threading.Lock()
        self._waiting = {dense.param: (dense, scope.var(dense.param).get_tensor()) for dense in work.received}
        self._before = {name: tensor._value for name, (_, tensor) in self._waiting.items()}
        for _, tensor in self._waiting.values():
            vars(tensor)["exchange"] = self
            tensor.__class__ = Coming
        self._pieces = start(send)

    def finish(self) -> None:
        """Wait until the parameters are there. Raises what sending raised; then they are as they were before."""
        with self._lock:
            pieces: Pieces = {}
            try:
                pieces = self._pieces.result()
            finally:
                for name, (dense, tensor) in self._waiting.items():
                    if type(tensor) is Coming:  # nobody has set it meanwhile
                        whole = all(p.name in pieces for p in dense.pieces)
                        tensor._value = dense.joined(pieces) if whole else self._before[name]
                    vars(tensor).pop("exchange", None)
                self._waiting, self._before = {}, {}
