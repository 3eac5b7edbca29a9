"""Making a step ready while servers are asked for its rows and parameters."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid.compile.runtime.padding import ladder
from jfluid.engine import Prepared
from jfluid.host import aligned_memory
from jfluid.ir.variable import Variable

if TYPE_CHECKING:
    from jfluid.ps_server.client import PulledRows, RowRequest

Array = np.ndarray[Any, Any]
Feed = dict[str, Any]


def buffer_of(count: int, width: int) -> Array:
    """Return a buffer for `count` rows of a table, and zeros up to a size that many batches share."""
    found = aligned_memory.empty((ladder(count), width), np.float32)
    found[count:] = 0
    return found


@functools.lru_cache(1024)  # each step has the same parameters
def _form(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return a read-only array of this dtype and shape without separate memory."""
    return np.broadcast_to(dtype.type(0), shape)


class EarlyStep:
    """Step with feeds that are checked and padded before the values of rows and parameters arrive.

    Args:
        fill: returns the feed without parameters for the rows that are asked for, the buffers of the
            tables' rows that are in it, and where the ids of the batch are in them.
        prepare: prepares the program with a feed that nobody else holds.
        parameters: variables whose values come from servers before the step.

    Attributes:
        inverse: where the ids of the batch are; None before `begin`.
    """

    def __init__(
        self,
        fill: "Callable[[RowRequest], tuple[Feed, dict[str, Array], Any]]",
        prepare: Callable[[Feed], Prepared],
        parameters: Sequence[Variable],
    ):
        self._fill, self._prepare, self._parameters = fill, prepare, parameters
        self._prepared: Prepared | None = None
        self._rows: dict[str, Array] = {}
        self._failed: Exception | None = None
        self.inverse: Any = None

    def begin(self, wanted: "RowRequest") -> None:
        """Prepare the step. `finish` raises errors of this."""
        try:
            feed, self._rows, self.inverse = self._fill(wanted)
            # nothing but their form is looked at
            forms = {v.name: _form(v.np_dtype, tuple(v.shape)) for v in self._parameters}
            self._prepared = self._prepare(feed | forms)
            self._prepared.enter()
        except Exception as error:
            self._failed = error

    def finish(self, found: "Mapping[str, PulledRows]", parameters: Mapping[str, Array]) -> Prepared | None:
        """Give the step its rows and parameters; None if the step was prepared for different ones.

        Raises the error of the feed.
        """
        if self._failed is not None:
            raise self._failed
        if self._prepared is None or {n: v.shape for n, v in parameters.items()} != {
            v.name: tuple(v.shape) for v in self._parameters
        }:
            return None
        for table, buffer in self._rows.items():
            buffer[: len(found[table].ids)] = found[table].values
        self._prepared.feeds |= parameters
        return self._prepared
