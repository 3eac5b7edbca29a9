"""Definitions of tables and blocks."""

import math
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from jfluid.ps_server.optimizers import *  # noqa: F403  whichever there are
from jfluid.ps_server.optimizers import AnyOptimizer, TableOptimizer
from jfluid.ps_server.validation import NAME, Spec

WIDEST_ROW = 1 << 16


# ---- first values --------------------------------------------------------------------------------


class Constant(Spec):
    """Every element of a new row is `value`."""

    type: Literal["constant"] = "constant"
    value: FiniteFloat = 0.0


class Uniform(Spec):
    """Numbers spread evenly over [low, high)."""

    type: Literal["uniform"] = "uniform"
    low: FiniteFloat = -1.0
    high: FiniteFloat = 1.0


class Normal(Spec):
    """Gaussian numbers."""

    type: Literal["normal"] = "normal"
    mean: FiniteFloat = 0.0
    std: Annotated[FiniteFloat, Field(ge=0)] = 1.0


class TruncatedNormal(Spec):
    """Gaussian numbers, drawn again beyond two standard deviations."""

    type: Literal["truncated_normal"] = "truncated_normal"
    mean: FiniteFloat = 0.0
    std: Annotated[FiniteFloat, Field(ge=0)] = 1.0


Initializer = Annotated[Constant | Uniform | Normal | TruncatedNormal, Field(discriminator="type")]

# ---- entry ---------------------------------------------------------------------------------------


class CountEntry(Spec):
    """An id gets a row when it is shown for the `count`-th time; before, it reads as zeros and takes no gradient."""

    type: Literal["count"] = "count"
    count: Annotated[int, Field(ge=1, lt=2**31)]


class ProbabilityEntry(Spec):
    """Each time that an id is shown it gets a row with this probability; before, as with CountEntry."""

    type: Literal["probability"] = "probability"
    probability: Annotated[float, Field(gt=0, le=1)]


Bound = Annotated[int, Field(ge=1)] | None
AnyEntry = Annotated[CountEntry | ProbabilityEntry, Field(discriminator="type")]


class TableSpec(Spec):
    """A sparse table: rows of `width` float32 values by int64 id.

    Attributes:
        seed: with the id it determines a row's first values, whatever the process, server or number
            of servers.
        entry: None gives every id a row when it is first shown.
        shards: a power of two; each has a lock and grows on its own.
        max_rows: bound on the table's rows on one server; None for no bound. A call that
            would add more rows is refused as a whole with TooLargeError, and the existing rows
            stay. Ids that wait for an entry rule do not count.
        max_bytes: so many bytes. A row counts 4 for each of its values and of its optimizer's
            numbers, and 24 more for its id, its statistics and the index; an id that waits for an
            entry rule counts 24.

    Bounds are no part of a table's identity: creating the table again with different bounds changes the bounds, and
    snapshots fit any bounds.
    """

    name: Annotated[str, Field(pattern=NAME)]
    width: Annotated[int, Field(ge=1, le=WIDEST_ROW)]
    initializer: Initializer = Constant()
    optimizer: TableOptimizer
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    entry: AnyEntry | None = None
    shards: Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] = 16
    max_rows: Bound = None
    max_bytes: Bound = None

    def bounded_as(self, other: "TableSpec") -> "TableSpec":
        """Return this spec with the bounds of `other`."""
        return self.model_copy(update={"max_rows": other.max_rows, "max_bytes": other.max_bytes})


_MOST_DIMENSIONS = 32


class BlockSpec(Spec):
    """Dense block: a float32 array of `shape` that the optimizer updates as a whole."""

    name: Annotated[str, Field(pattern=NAME)]
    shape: Annotated[tuple[Annotated[int, Field(ge=1, lt=2**48)], ...], Field(max_length=_MOST_DIMENSIONS)]
    initializer: Initializer = Constant()
    optimizer: AnyOptimizer
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)
