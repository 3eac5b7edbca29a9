"""Strategies: how a trainer's gradients go out and its parameters come in."""
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jfluid.distributed.work import Work

if TYPE_CHECKING:
    from jfluid.distributed.links import Link
    from jfluid.ps_server.client import Rows

Array = np.ndarray[Any, Any]


@dataclass
class Gradients:
    """What a step sends.

    Attributes:
        dense: by the names that pieces of parameters have at their servers.
        rows: by table: int64 [n], each id once, and float32 [n, width].
        counts: by the names of counters.
    """

    dense: dict[str, Array] = field(default_factory=dict)
    rows: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    counts: dict[str, Array] = field(default_factory=dict)

    def counted(self, servers: int) -> dict[str, Array]:
        """The counts, for all servers."""
        return {f"{name}@{i}": value for name, value in self.counts.items() for i in range(servers)}


class Strategy(Protocol):
    """How a trainer works together with servers."""

    def pull(self, link: "Link", ids: Mapping[str, Array]) -> "dict[str, Rows]":
        """Rows of tables for the step that begins."""
        ...

    def push(self, link: "Link", work: Work, gradients: Gradients) -> dict[str, Array]:
        """Take a step's gradients; the pieces of parameters that are new since the last one."""
        ...


class Direct:
    """One call a step, as the operators of the program itself say: in synchronous training it waits for all trainers."""

    def pull(self, link: "Link", ids: Mapping[str, Array]) -> "dict[str, Rows]":
        return link.client.pull(ids).rows if ids else {}

    def push(self, link: "Link", work: Work, gradients: Gradients) -> dict[str, Array]:
        from jfluid.ps_server.store import Change
        wanted = [p.name for d in work.received for p in d.pieces]
        if not work.synchronous:
            if gradients.counts:
                link.client.push(blocks=gradients.counted(len(link.endpoints)), change=Change.ADD)
            return link.client.exchange(gradients.rows, gradients.dense, {}, wanted).blocks
        pulled = link.client.exchange(gradients.rows, gradients.dense, {}, wanted, round=link.rounds + 1)
        link.rounds += 1
        return pulled.blocks


DIRECT = Direct()
