"""Values of a traced step on a CPU, while it is rewritten: in the order of dimensions that the program has or in
another one, computed when they are asked for, and what is known of where they come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax import Array, lax

from jfluid.compile.rewrites.concat_of_slices import Columns, Strips
from jfluid.compile.rewrites.embedding_concat import Taken
from jfluid.compile.rewrites.image_convolution import HELD

TURNED = (1, 0)  # the order of a matrix that is turned round
MADE = {**HELD, len(TURNED): TURNED}  # orders that values may be computed in
_FEW = 16  # readers of a value that are told from each other
Order = tuple[int, ...]  # the dimensions of an array, as they are held in another order


def inverse(order: Order) -> Order:
    """Return where each dimension is in an order."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


class Value:
    """An array as the program has it (`given`), or in another order of its dimensions, or both.

    Args:
        laid: it, in `order`.
        make: computes it, as the program has it or in the other order that it may be computed in,
            whichever is asked for first.

    Attributes:
        order: that what is computed from it should have; None for the program's.
        broadcast: of a value that is a broadcast: its parameters and its operand.
        mirror: the filter that this one is, turned round in its windows.
        columns: those of a matrix that this is.
        strips: those of a matrix that this is.
        taken: the rows of a table that this is.
        readers: the equations that read it, but calls whose own equations are among them; None for one
            that is not known.
        origin: what it comes from, where that matters to products.
    """

    def __init__(
        self,
        given: Any = None,
        laid: Array | None = None,
        order: Order | None = None,
        make: Callable[[bool], Array] | None = None,
    ):
        self._given, self._laid, self._laid_order, self.order = given, laid, order, order
        self._make = make
        self.broadcast: tuple[Any, Any] | None = None
        self.mirror: Value | None = None
        self.columns: Columns | None = None
        self.strips: Strips | None = None
        self.taken: Taken | None = None
        self.readers: list[Any] = []
        self.origin: Origin | None = None

    def read_by(self, equations: Sequence[Any]) -> None:
        """Add readers. Of more than a few none is told from the others: each asks for all of them."""
        if len(self.readers) + len(equations) > _FEW:
            self.readers = [None] * (_FEW + 1)
        else:
            self.readers += equations

    def is_computed(self) -> bool:
        """Whether it is there, in any order."""
        return self._given is not None or self._laid is not None

    def known(self) -> Any:
        """It as the program has it, if it is there; None if it would have to be computed."""
        return self._given

    def given(self) -> Any:
        if self._given is None and self._laid is not None:
            assert self._laid_order is not None  # what is laid has one
            self._given = lax.transpose(self._laid, inverse(self._laid_order))
        elif self._given is None:
            assert self._make is not None  # one of the three is there
            self._given = self._make(False)
        return self._given

    def laid(self, order: Order) -> Array:
        if self._laid is None or self._laid_order != order:
            if self._given is None and self._make is not None and order == MADE.get(len(order)):
                self._laid = self._make(True)
            elif self.broadcast:
                self._laid = _laid_broadcast(*self.broadcast, order)
            else:
                self._laid = lax.transpose(self.given(), order)
            self._laid_order = order
        return self._laid


def _laid_broadcast(params: dict[str, Any], operand: Any, order: Order) -> Array:
    """Return a broadcast in another order: XLA makes no array of it, but would of its transpose."""
    places = [inverse(order)[d] for d in params["broadcast_dimensions"]]
    turned = sorted(range(len(places)), key=places.__getitem__)
    if turned != list(range(len(turned))):
        operand = lax.transpose(operand, turned)
    return lax.broadcast_in_dim(operand, permuted(params["shape"], order), sorted(places))


def permuted(sequence: Any, order: Order) -> tuple[Any, ...]:
    return tuple(sequence[d] for d in order)


# What a value comes from, as far as products are concerned (see `matmul_epilogues.py`).


@dataclass
class Product:
    """A product of two matrices, which may have been given another shape with the same last dimension.

    Attributes:
        bias: what is added to each row, if it is that of a layer.
        done: of this and the products that were made of it: holds the value that has been computed in
            their place.
        scope: the operator that it is of, by which profiles tell what takes time.
    """

    x: Array
    y: Array
    over: tuple[int, int]
    bias: Array | None = None
    done: list[Value] = field(default_factory=list)
    scope: str = ""

    @property
    def finished(self) -> Value | None:
        return self.done[0] if self.done else None


@dataclass
class Positive:
    """Where a value is above zero."""

    of: Value


@dataclass
class Complement:
    """One less a value."""

    of: Value


@dataclass
class SlopeOfTanh:
    """One less the square of a value, as JAX has it from 0.11 on for the gradient of tanh."""

    of: Value


@dataclass
class Sloped:
    """A product times one less the output of tanh: half of the gradient of its input."""

    product: Product
    out: Value


@dataclass
class OtherHalf:
    """`Sloped` times the output of tanh: the other half."""

    of: Value


@dataclass
class Change:
    """A rate times a product."""

    rate: Array
    product: Product


Origin = Product | Positive | Complement | SlopeOfTanh | Sloped | OtherHalf | Change
