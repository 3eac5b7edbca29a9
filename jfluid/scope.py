"""Scopes: storage of variables between runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

from jfluid import errors
from jfluid.ir.counts import Counts
from jfluid.lod_tensor import LoDTensor, LoDTensorArray, SelectedRows

_MOST_STEPS = 1 << 16  # number of programs with a run count in a scope, about 250 bytes each


class ScopeVariable:
    """Variable of a Scope: a name and its tensor.

    Attributes:
        row_initializer: of a table that is never made as a whole: (the initializer of its rows, the
            seed), instead of a tensor.
        saved: of such a table: the folder with its saved rows.
    """

    def __init__(self, name: str):
        self.name = name
        self.tensor = LoDTensor()
        self._rows: SelectedRows | None = None
        self._array: LoDTensorArray | None = None
        self.row_initializer: tuple[Any, int] | None = None
        self.saved = ""
        self._number: int | float | None = None

    def set_int(self, value: int) -> None:
        """Store an integer, beside the tensor."""
        self._number = int(value)

    def set_float(self, value: float) -> None:
        """Store a float, beside the tensor."""
        self._number = float(value)

    def is_int(self) -> bool:
        return isinstance(self._number, int)

    def is_float(self) -> bool:
        return isinstance(self._number, float)

    def get_int(self) -> int:
        """Return the number of `set_int`, or raise UninitializedError if it was not the last value set."""
        if not isinstance(self._number, int):
            raise errors.UninitializedError(f"{self.name} holds {self._held()} and no integer: call set_int first")
        return self._number

    def get_float(self) -> float:
        """Return the number of `set_float`, or raise UninitializedError if it was not the last value set."""
        if not isinstance(self._number, float):
            raise errors.UninitializedError(f"{self.name} holds {self._held()} and no float: call set_float first")
        return self._number

    def _held(self) -> str:
        return repr(self.tensor if self._number is None else self._number)

    def get_tensor(self) -> LoDTensor:
        """Return the tensor; setting its value sets the variable."""
        return self.tensor

    def get_selected_rows(self) -> SelectedRows:
        """Return the variable's SelectedRows, which are stored beside its tensor and initially empty.

        They serve operators that run alone (`fluid.op.Operator`) and files.
        """
        if self._rows is None:
            self._rows = SelectedRows()
        return self._rows

    def get_lod_tensor_array(self) -> LoDTensorArray:
        """Return the array of tensors that the variable holds beside its tensor; the array is empty at first."""
        if self._array is None:
            self._array = LoDTensorArray()
        return self._array

    def holds_selected_rows(self) -> bool:
        """Return True if `get_selected_rows` was called."""
        return self._rows is not None


class Scope:
    """Variables by name; a missing name is looked up in the parent scope."""

    def __init__(self, parent: "Scope | None" = None):
        self.parent = parent
        self.kids: list[Scope] = []
        # incremented when a variable is dropped, which invalidates references to tensors
        self.epoch = 0
        # runs of each program so far, by fingerprint, for the keys of random operators
        self.steps = Counts(_MOST_STEPS)
        self._vars: dict[str, ScopeVariable] = {}

    def var(self, name: str) -> ScopeVariable:
        """Return the variable `name` of this scope, created if it is missing."""
        found = self._vars.get(name)
        if found is None:
            found = self._vars[name] = ScopeVariable(name)
        return found

    def find_var(self, name: str) -> ScopeVariable | None:
        """Return the variable `name` of this scope or of the nearest enclosing one; None when there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._vars:
                return scope._vars[name]
            scope = scope.parent
        return None

    def erase(self, names: list[str]) -> None:
        """Drop variables."""
        for name in names:
            self._vars.pop(name, None)
        self.epoch += 1

    def new_scope(self) -> "Scope":
        """Return a new child scope."""
        kid = Scope(self)
        self.kids.append(kid)
        return kid

    def drop_kids(self) -> None:
        """Drop all child scopes."""
        self.kids.clear()

    def local_var_names(self) -> list[str]:
        """Return the names of the variables; names of parent scopes are left out."""
        return list(self._vars)


_global_scope = Scope()


def global_scope() -> Scope:
    """Return the scope that an Executor uses unless told otherwise."""
    return _global_scope


@contextlib.contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Set the global scope to `scope` in this context. Raises TypeError if it is no Scope."""
    if not isinstance(scope, Scope):
        raise TypeError(f"scope_guard: expected a Scope, found {type(scope).__name__}")
    global _global_scope
    before, _global_scope = _global_scope, scope
    try:
        yield
    finally:
        _global_scope = before
