"""Values of a traced step during rewrites: arrays in the program's layout, in a kernel's layout, or lazy."""

from collections.abc import Callable
from typing import Any

from jax import Array, lax

TURNED = (1, 0)  # layout of a transposed matrix
Order = tuple[int, ...]  # layout: the program's dimension at each dimension of the array


def inverse(order: Order) -> Order:
    """Return the position of each dimension in a layout."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def permuted(sequence: Any, order: Order) -> tuple[Any, ...]:
    """Return the elements of a sequence, one for each dimension, in a layout."""
    return tuple(sequence[d] for d in order)


def channels_last(rank: int) -> Order:
    """Return the channels-last layout of images that the program has channels first."""
    return (0, *range(2, rank), 1)


class TracedValue:
    """Array of a traced step, in the program's layout (`given`), in a kernel's layout (`laid`), or in both.

    Args:
        laid: the array in the layout `order`.
        make: computes the array in the program's layout at the first use.
        make_laid: another layout, and a function that computes the array in that layout at the first use.

    Attributes:
        order: the layout that results computed from the value should have; None for the program's layout.
    """

    def __init__(
        self,
        given: Any = None,
        laid: Array | None = None,
        order: Order | None = None,
        make: Callable[[], Array] | None = None,
        make_laid: tuple[Order, Callable[[], Array]] | None = None,
    ):
        self._given, self._laid, self._laid_order, self.order = given, laid, order, order
        self._make, self._make_laid = make, make_laid

    def is_computed(self) -> bool:
        """Return True if the array exists in any layout."""
        return self._given is not None or self._laid is not None

    def given(self) -> Any:
        """Return the array in the program's layout; compute or transpose it if necessary."""
        if self._given is None and self._laid is not None:
            assert self._laid_order is not None  # set together with `_laid`
            self._given = lax.transpose(self._laid, inverse(self._laid_order))
        elif self._given is None:
            assert self._make is not None  # a value has an array or `make`
            self._given = self._make()
        return self._given

    def laid(self, order: Order) -> Array:
        """Return the array in a layout; compute or transpose it if necessary."""
        if self._laid is None or self._laid_order != order:
            if self._given is None and self._make_laid is not None and self._make_laid[0] == order:
                self._laid = self._make_laid[1]()
            else:
                self._laid = self._transposed(order)
            self._laid_order = order
        return self._laid

    def _transposed(self, order: Order) -> Array:
        return lax.transpose(self.given(), order)


class Broadcast(TracedValue):
    """Result of `broadcast_in_dim`, which repeats the broadcast for a kernel's layout.

    XLA fuses a broadcast into its readers, but writes the transpose of a broadcast to memory.

    Attributes:
        dimensions: the dimensions of the result that the operand's dimensions become.
        operand: the array that is broadcast.
    """

    def __init__(self, given: Array, params: dict[str, Any], operand: Any):
        super().__init__(given)
        self._shape, self.dimensions, self.operand = params["shape"], params["broadcast_dimensions"], operand

    def _transposed(self, order: Order) -> Array:
        operand, places = self.operand, [inverse(order)[d] for d in self.dimensions]
        turned = sorted(range(len(places)), key=places.__getitem__)
        if turned != list(range(len(turned))):
            operand = lax.transpose(operand, turned)
        return lax.broadcast_in_dim(operand, permuted(self._shape, order), sorted(places))
