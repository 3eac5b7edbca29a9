"""Dispatchers of variables to parameter servers."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from jfluid import errors

__all__ = ["HashName", "PSDispatcher", "RoundRobin"]


class PSDispatcher:
    """Divides variables among servers, by the rule of a subclass.

    Args:
        pserver_endpoints: "ip:port" of each server.

    Raises ProgramError when there are none.
    """

    def __init__(self, pserver_endpoints: Sequence[str]):
        if isinstance(pserver_endpoints, str) or not pserver_endpoints:
            raise errors.ProgramError(
                f"{type(self).__name__}: expected a list of endpoints, found {pserver_endpoints!r}"
            )
        self._eps = list(pserver_endpoints)
        self._step = 0

    @property
    def eps(self) -> list[str]:
        """The servers' endpoints."""
        return self._eps

    def reset(self) -> None:
        """Begin again with the first server."""
        self._step = 0

    def dispatch(self, varlist: Iterable[Any]) -> list[str]:
        """Return the endpoint of each variable. Raises NotImplementedError in this class."""
        raise NotImplementedError(f"{type(self).__name__}.dispatch: a subclass of PSDispatcher has to define it")


class HashName(PSDispatcher):
    """Dispatcher by a hash of the variable's name, equal in every process."""

    def dispatch(self, varlist: Iterable[Any]) -> list[str]:
        """Return the endpoint of each variable."""
        return [self._eps[zlib.crc32(_name(v).encode()) % len(self._eps)] for v in varlist]


class RoundRobin(PSDispatcher):
    """Dispatcher to one server after the other; a call continues after the last one."""

    def dispatch(self, varlist: Iterable[Any]) -> list[str]:
        """Return the endpoint of each variable."""
        found = []
        for _ in varlist:
            found.append(self._eps[self._step])
            self._step = (self._step + 1) % len(self._eps)
        return found


def _name(var: Any) -> str:
    """Return a variable's name; Fluid's own scripts also give objects with a method `name`."""
    return str(var.name() if callable(var.name) else var.name)
