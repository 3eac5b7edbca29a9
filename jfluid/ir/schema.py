"""The one hook through which programs learn what operators mean.

The IR imports no JAX; `jfluid.ops` installs a `Schema` that knows the registered operators.
"""
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from jfluid.ir.operator import Operator


class Schema(Protocol):
    """What the IR asks about operators."""

    def check(self, op: "Operator") -> None:
        """Hold slots and attributes against the definition; attribute values are brought to their types."""

    def infer(self, op: "Operator") -> None:
        """Set shape and dtype of the variables that `op` writes."""

    def default(self, op_type: str, attr: str) -> tuple[bool, Any]:
        """(whether the attribute has a default, the default)."""

    def defaults(self, op_type: str) -> dict[str, Any]:
        """Every attribute that has a default."""

    def kind(self, op_type: str, attr: str, value: Any) -> str:
        """Fluid's name of the attribute's type."""

    def gradient_inputs(self, op: "Operator") -> list[str] | None:
        """Input slots that can get a gradient; None when the operator has no gradient."""

    def grad_slots(self, op: "Operator") -> tuple[set[str], set[str]]:
        """Input and output slots of the operator's gradient operator."""

    def needs_whole(self, op_type: str) -> bool:
        """Whether an update by this operator depends on the whole tensor, so that parts of it cannot be updated apart."""

    def set_types(self, op: "Operator") -> None:
        """Record the kinds of the outputs of a gradient operator that are no dense tensors."""


_schema: Schema | None = None


def install(schema: Schema) -> None:
    """Make `schema` the one that all programs use."""
    global _schema
    _schema = schema


def current() -> Schema:
    if _schema is None:
        raise RuntimeError("no operators are registered: import jfluid.ops")
    return _schema
