"""What a table is, as checked plain data: it travels in calls, stands in snapshots and is read from files."""
import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from jfluid import errors

WIDEST_ROW = 1 << 16
MOST_SLOTS = 16
_MOST_FIELDS, _MOST_MISTAKES = 64, 16
# Bytes of memory: what any JSON may take, a list or mapping, a value in one.
_LEAST, _BRACKET, _VALUE = 1 << 18, 90, 60
NAME = r"^[^\x00-\x1f\x7f]{1,512}$"


class Spec(BaseModel):
    """Checked and immutable; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _not_too_many(cls, value: Any) -> Any:
        """One mistake for very many unknown fields, rather than one for each."""
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            raise ValueError(f"expected some of {', '.join(cls.model_fields)}; found {len(value)} fields")
        return value


Kind = TypeVar("Kind", bound=Spec)


def read(kind: type[Kind], value: Any, what: str) -> Kind:
    """`value` (a mapping, or JSON as text or bytes) as a `kind`.

    Raises ServerError that names `what` and the fields that are wrong, also for JSON that would take more than ten times its
    size in memory.
    """
    if isinstance(value, (str, bytes)):
        value = _from_json(value.encode(errors="replace") if isinstance(value, str) else value, what)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if error.error_count() > _MOST_MISTAKES:
            raise errors.ServerError(f"{what}: {error.error_count()} mistakes: no {kind.__name__}") from None
        lines = [f"{what}: {'.'.join(map(str, e['loc']))[:200] or 'the whole'}: {e['msg'][:300]}"
                 for e in error.errors(include_url=False, include_context=False, include_input=False)]
        raise errors.ServerError("\n".join(lines)) from None


def _from_json(data: bytes, what: str) -> Any:
    """Plain values. The memory that they take is bounded beforehand, by the characters that each of them needs."""
    most = max(10 * len(data), _LEAST)
    if _BRACKET * (data.count(b"{") + data.count(b"[")) + _VALUE * data.count(b",") > most:
        raise errors.ServerError(f"{what}: these {len(data)} bytes of JSON would take more than {most} bytes of memory")
    try:
        return from_json(data, cache_strings="keys")
    except ValueError as error:
        raise errors.ServerError(f"{what}: the whole: no JSON: {error}") from None


# ---- first values ------------------------------------------------------------------------------------------------

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

# ---- optimizers: those that take sparse rows in Fluid and need nothing but the row, and FTRL ----------------------

Decay = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[FiniteFloat, Field(gt=0)]


class Optimizer(Spec):
    """The base: every optimizer has a learning rate, which a push may replace."""

    learning_rate: FiniteFloat


class Sgd(Optimizer):
    """value - learning_rate * gradient."""

    type: Literal["sgd"] = "sgd"


class Momentum(Optimizer):
    """Descent along a decaying sum of gradients. Rows without a gradient go on moving, unless `lazy_mode`."""

    type: Literal["momentum"] = "momentum"
    mu: Decay
    use_nesterov: bool = False
    lazy_mode: bool = False


class Adagrad(Optimizer):
    """Rates that shrink with the sum of squared gradients."""

    type: Literal["adagrad"] = "adagrad"
    epsilon: Positive = 1e-6
    initial_accumulator_value: Annotated[FiniteFloat, Field(ge=0)] = 0.0


class Adam(Optimizer):
    """Adam. Rows without a gradient go on moving, unless `lazy_mode`."""

    type: Literal["adam"] = "adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8
    lazy_mode: bool = False


class RMSProp(Optimizer):
    """Rates that shrink with an average of squared gradients. Rows without a gradient go on moving, unless `lazy_mode`."""

    type: Literal["rmsprop"] = "rmsprop"
    rho: Decay = 0.95
    epsilon: Positive = 1e-6
    momentum: Decay = 0.0
    centered: bool = False
    lazy_mode: bool = False


class Ftrl(Optimizer):
    """Follow the regularized leader. A row's values follow from its slots: the first gradient overwrites the first values.

    Fluid 1.8.5 has it for whole parameters only, where a step makes rows zero that never had a gradient; here they stay.
    """

    type: Literal["ftrl"] = "ftrl"
    l1: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    l2: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    lr_power: Annotated[FiniteFloat, Field(le=0)] = -0.5


AnyOptimizer = Annotated[Sgd | Momentum | Adagrad | Adam | RMSProp | Ftrl, Field(discriminator="type")]


class Slot(Spec):
    """What an optimizer keeps beside the values of a row: `width` numbers that begin as `initial`."""

    name: Annotated[str, Field(pattern=NAME)]
    initial: FiniteFloat = 0.0


class Program(Optimizer):
    """An optimizer that the caller of a table computes: see `SparseTable.update`. Only tables have it.

    The table keeps `slots` with each row, in this order, and `learning_rate` for the caller to read and to set.
    """

    type: Literal["program"] = "program"
    slots: Annotated[tuple[Slot, ...], Field(max_length=MOST_SLOTS)] = ()

    @field_validator("slots")
    @classmethod
    def _names_differ(cls, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        names = [slot.name for slot in slots]
        if len(set(names)) < len(names):
            raise ValueError(f"two slots have one name: {', '.join(names)}")
        return slots


TableOptimizer = Annotated[Sgd | Momentum | Adagrad | Adam | RMSProp | Ftrl | Program, Field(discriminator="type")]

# ---- entry --------------------------------------------------------------------------------------------------------

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
        seed: with the id it determines a row's first values, whatever the process, server or number of servers.
        entry: None gives every id a row when it is first shown.
        shards: a power of two; each has a lock and grows on its own.
        max_rows: so many rows the table may have on one server; None for any number. A call that would add more is refused as
            a whole with TooLargeError, and the rows that are there go on. Not counted: ids that wait for an entry rule.
        max_bytes: so many bytes. A row counts 4 for each of its values and of its optimizer's numbers, and 24 more for its id,
            its statistics and the index; an id that waits for an entry rule counts 24.

    Bounds are no part of what a table is: creating it again with others changes them, and snapshots fit any.
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
        """This spec with the bounds of another."""
        return self.model_copy(update={"max_rows": other.max_rows, "max_bytes": other.max_bytes})


_MOST_DIMENSIONS = 32


class BlockSpec(Spec):
    """A dense block: a float32 array of `shape` whose elements the optimizer updates all at once."""

    name: Annotated[str, Field(pattern=NAME)]
    shape: Annotated[tuple[Annotated[int, Field(ge=1, lt=2**48)], ...], Field(max_length=_MOST_DIMENSIONS)]
    initializer: Initializer = Constant()
    optimizer: AnyOptimizer
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)
