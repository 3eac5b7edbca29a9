"""Interface through which programs query the definitions of operators.

The IR imports no JAX; `jfluid.ops` installs a `Schema` that knows the registered operators.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from jfluid.ir.reach import Reach

# of an operator: a gradient's gradient has twice the slots, and names in model files are arbitrary
MOST_GRADIENTS = 5
Op = TypeVar("Op", contravariant=True)  # an Operator, which is defined with the help of this module


class Schema(Protocol[Op]):
    """Interface for the IR's queries about operators."""

    def check(self, op: Op) -> None:
        """Check slots and attributes against the definition, and convert attributes to their types."""

    def infer(self, op: Op) -> None:
        """Set shape and dtype of the variables that `op` writes."""

    def keep(self) -> None:
        """Save inferred shapes on disk, for processes that build the same programs."""

    def default(self, op_type: str, attr: str) -> tuple[bool, Any]:
        """Return (True if the attribute has a default, the default)."""

    def defaults(self, op_type: str) -> dict[str, Any]:
        """Return every attribute that has a default, with it."""

    def kind(self, op_type: str, attr: str, value: Any) -> str:
        """Return Fluid's name of the attribute's type."""

    def gradient_inputs(self, op: Op) -> list[str] | None:
        """Return the input slots that can get a gradient; None when the operator has no gradient."""

    def grad_slots(self, op: Op) -> tuple[set[str], set[str]]:
        """Return the input and output slots of the operator's gradient operator."""

    def needs_whole(self, op_type: str) -> bool:
        """Return True if an update by this operator depends on the whole tensor.

        Parts of the tensor then cannot be updated separately.
        """

    def draws(self, op_type: str) -> bool:
        """Return True if operators of a type draw from a random stream.

        Gradient operators share the stream of the forward operator.
        """

    def is_declared_wrong(self, name: str, ops: Iterable[Op]) -> bool:
        """Return True if an operator reads the variable in a slot with shapes that differ from the declaration."""

    def reach(self, op_type: str) -> Reach | None:
        """Return the side effects of an operator type; None without side effects, or for an unknown type."""

    def acting(self) -> list[str]:
        """Return the types of all operators that act outside of their computation."""

    def set_types(self, op: Op) -> None:
        """Set the kinds of a gradient operator's outputs that are no dense tensors."""


_schema: Schema[Any] | None = None
_provide: Callable[[], object] | None = None


def install(schema: Schema[Any]) -> None:
    """Set the schema that all programs query."""
    global _schema
    _schema = schema


def provide(installs: Callable[[], object]) -> None:
    """Register `installs`, called at the first query if no schema is installed."""
    global _provide
    _provide = installs


def current() -> Schema[Any]:
    if _schema is None and _provide is not None:
        _provide()
    if _schema is None:
        raise RuntimeError("no operators are registered: import jfluid.ops")
    return _schema
