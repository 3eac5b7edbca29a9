"""What a table is, as checked plain data: it travels in calls, stands in snapshots and is read from files."""
import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from jfluid import errors

WIDEST_ROW = 1 << 16
NAME = r"^[^\x00-\x1f\x7f]{1,512}$"


class Spec(BaseModel):
    """Checked and immutable; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Kind = TypeVar("Kind", bound=Spec)


def read(kind: type[Kind], value: Any, what: str) -> Kind:
    """`value` (a mapping, or JSON as text or bytes) as a `kind`.

    Raises ServerError that names `what` and every field that is wrong.
    """
    try:
        return kind.model_validate_json(value) if isinstance(value, (str, bytes)) else kind.model_validate(value)
    except ValidationError as error:
        lines = [f"{what}: {'.'.join(map(str, e['loc'])) or 'the whole'}: {e['msg']}" for e in error.errors()]
        raise errors.ServerError("\n".join(lines)) from None


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

# ---- optimizers: those that take sparse rows in Fluid and need nothing but the row --------------------------------

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


AnyOptimizer = Annotated[Sgd | Momentum | Adagrad | Adam | RMSProp, Field(discriminator="type")]

# ---- entry --------------------------------------------------------------------------------------------------------

class CountEntry(Spec):
    """An id gets a row when it is shown for the `count`-th time; before, it reads as zeros and takes no gradient."""

    type: Literal["count"] = "count"
    count: Annotated[int, Field(ge=1, lt=2**31)]


class ProbabilityEntry(Spec):
    """Each time that an id is shown it gets a row with this probability; before, as with CountEntry."""

    type: Literal["probability"] = "probability"
    probability: Annotated[float, Field(gt=0, le=1)]


AnyEntry = Annotated[CountEntry | ProbabilityEntry, Field(discriminator="type")]


class TableSpec(Spec):
    """A sparse table: rows of `width` float32 values by int64 id.

    Attributes:
        seed: with the id it determines a row's first values, whatever the process, server or number of servers.
        entry: None gives every id a row when it is first shown.
        shards: a power of two; each has a lock and grows on its own.
    """

    name: Annotated[str, Field(pattern=NAME)]
    width: Annotated[int, Field(ge=1, le=WIDEST_ROW)]
    initializer: Initializer = Constant()
    optimizer: AnyOptimizer
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    entry: AnyEntry | None = None
    shards: Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] = 16


class BlockSpec(Spec):
    """A dense block: a float32 array of `shape` whose elements the optimizer updates all at once."""

    name: Annotated[str, Field(pattern=NAME)]
    shape: tuple[Annotated[int, Field(ge=1)], ...]
    initializer: Initializer = Constant()
    optimizer: AnyOptimizer
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)
