"""TableView: a table as it was at one moment, which can be read while the table keeps changing."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from jfluid.ps_server import specs
from jfluid.ps_server.shard import Shard
from jfluid.ps_server.update_rule import Rates, UpdateRule, rule_of

Array = np.ndarray[Any, Any]
_BLOCK = 1 << 16
# `page_bits` of one page that holds all rows.
_ONE_PAGE = 48


def moved(rule: UpdateRule, heads: Array, bodies: Array, width: int, until: int, rates: Rates) -> None:
    """Apply missed steps to copied rows (heads [n] of kernels.HEAD, bodies float32 [n, stride])."""
    pages = np.array([heads.ctypes.data]), np.array([bodies.ctypes.data])
    rule.catch_up(*pages, _ONE_PAGE, bodies.shape[1], width, np.arange(len(heads)), until, rates)


class TableView:
    """Table as at one moment, attributes included."""

    def __init__(
        self,
        spec: specs.TableSpec,
        step: int,
        learning_rate: float,
        steps: Array,
        rates: Array,
        rows: list[Shard],
        waiting: list[Shard],
    ):
        self.spec, self.step, self.learning_rate = spec, step, learning_rate
        self.steps, self.rates = steps, rates
        self._rows, self._waiting = rows, waiting

    def blocks(self, waiting: bool = False, size: int = _BLOCK) -> Iterator[tuple[Array, Array]]:
        """Return (heads [n] of kernels.HEAD, bodies float32 [n, stride]) of all rows, or `waiting` ids, in blocks.

        Each row comes once, in any order, at most `size` at a time. Rows are as their last touch left them: `rows`
        applies the steps that they have missed.
        """
        for shard in self._waiting if waiting else self._rows:
            for begin in range(0, 1 << 62, size):
                with shard.lock:
                    block = shard.view_rows(begin, size)
                    if block is None:
                        aside = shard.end_view()
                if block is None:
                    for heads, bodies in aside:
                        for at in range(0, len(heads), size):
                            yield heads[at : at + size], bodies[at : at + size]
                    break
                if len(block[0]):
                    yield block

    def rows(self, size: int = _BLOCK) -> Iterator[tuple[Array, Array, dict[str, Array]]]:
        """Return (ids int64 [n], values float32 [n, width], slots by name) of all rows, at most `size` at a time.

        Each row comes once, in any order: what look-ups would have returned at that moment. To be read once, instead
        of `blocks`.
        """
        rule, rates, width = rule_of(self.spec.optimizer), Rates(), self.spec.width
        rates.restore(self.steps, self.rates)
        for heads, bodies in self.blocks(size=size):
            moved(rule, heads, bodies, width, self.step, rates)
            values, *slots = (
                np.ascontiguousarray(bodies[:, begin : begin + width]) for begin in range(0, bodies.shape[1], width)
            )
            yield np.ascontiguousarray(heads["id"]), values, dict(zip(rule.names, slots))
