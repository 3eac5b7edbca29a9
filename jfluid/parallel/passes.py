"""Fluid's graph passes. Only multi_batch_merge_pass has an effect: XLA does the work of all further passes."""

from typing import Any

from jfluid import errors

MERGE = "multi_batch_merge_pass"


class Pass:
    """Rewrite of a program, with settings."""

    def __init__(self, name: str):
        self._name, self._settings = name, dict[str, Any]()

    def type(self) -> str:
        """Return its name."""
        return self._name

    def set(self, name: str, value: Any, kind: str | None = None) -> None:
        """Set an attribute: `num_repeats` of multi_batch_merge_pass.

        `kind` names the value's type in Fluid.

        Raises ProgramError for any other attribute, or a value that does not fit.
        """
        if name != "num_repeats" or isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise errors.ProgramError(
                f"{self._name}: expected num_repeats, a whole number above 0, found {name} = {value!r}"
            )
        self._settings[name] = value


class PassBuilder:
    """Passes of a BuildStrategy."""

    def __init__(self) -> None:
        self._passes: list[Pass] = []

    def all_passes(self) -> list[Pass]:
        """Return the passes, in order."""
        return list(self._passes)

    def append_pass(self, name: str) -> Pass:
        """Add a pass at the end."""
        return self.insert_pass(len(self._passes), name)

    def insert_pass(self, position: int, name: str) -> Pass:
        """Add multi_batch_merge_pass at a position.

        The pass divides each replica's batch into `num_repeats` parts, runs forward and backward for each part in turn,
        and updates once by the mean of the gradients.

        Raises UnsupportedError for any other pass.
        """
        if name != MERGE:
            raise errors.UnsupportedError(
                f"pass {name}: XLA rewrites programs by itself; {MERGE} is the only pass here"
            )
        if self.num_repeats > 1:
            raise errors.ProgramError(f"{MERGE} was added already")
        self._passes.insert(position, Pass(name))
        return self._passes[position]

    def remove_pass(self, position: int) -> None:
        """Remove a pass."""
        del self._passes[position]

    @property
    def num_repeats(self) -> int:
        """The number of parts into which each replica's batch is divided."""
        return next((p._settings.get("num_repeats", 1) for p in self._passes), 1)
