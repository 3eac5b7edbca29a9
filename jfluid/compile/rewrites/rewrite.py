"""Interface of a rewrite of traced steps."""

from collections.abc import Sequence
from typing import Any

from jfluid.compile.rewrites.traced_value import TracedValue


class Rewrite:
    """Rewrite of the equations of a jaxpr. A rewrite keeps its state by value, and has an instance for each trace.

    `jaxpr_rewrites` asks its rewrites in order for each equation; the first result counts.
    """

    def begin(self, filters: Sequence[Sequence[int]]) -> None:
        """Prepare for a trace.

        Args:
            filters: the shapes of the filters that the step holds in the kernels' layout.
        """

    def apply(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Return the results of an equation, or None to leave the equation as it is."""
        return None

    def follow(self, equation: Any, values: Sequence[TracedValue], results: Sequence[TracedValue]) -> None:
        """Record facts about the results of an equation that any rewrite or none has applied."""

    def scope(self, values: Sequence[TracedValue]) -> str | None:
        """Return the name scope for an equation's work, or None to keep the traced scope."""
        return None
