"""Types and dtypes of arguments that Fluid's layers accept, by one table.

`argument_types.txt` has a line for each argument: the layer, the argument ("each": the elements of
a list), its types, and the dtypes that a Variable may have ("dtype" as a type: the argument is one
itself). `tests/oracle/argument_types.py` makes it from the real Fluid.

Layers are held to it while a program is built. Imperative mode leaves it out, as Fluid does.
"""

import functools
import inspect
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jfluid.ir.program import default_main_program
from jfluid.ir.types import HELD, np_dtype
from jfluid.ir.variable import Variable

# Numbers of NumPy count as Python's, and tuples as lists, which Fluid does not allow everywhere.
_KINDS: dict[str, Any] = {
    "Variable": Variable,
    "bool": (bool, np.bool_),
    "dict": dict,
    "float": (float, np.floating),
    "int": (int, np.integer),
    "list": (list, tuple),
    "ndarray": np.ndarray,
    "None": type(None),
    "str": str,
    "tuple": (list, tuple),
}
_MISSING = object()


class _Rule(NamedTuple):
    """What one argument of a layer may be; no types or no dtypes: any."""

    layer: str
    argument: str
    each: bool
    types: tuple[str, ...]
    dtypes: tuple[str, ...]

    def _parts(self, value: Any) -> Sequence[Any]:
        return value if self.each and isinstance(value, (list, tuple)) else (value,)

    def hold_type(self, value: Any) -> None:
        """Raise TypeError for a value of a type that Fluid refuses."""
        if not self.types or self.types == ("dtype",):
            return
        for v in self._parts(value):
            if not any(isinstance(v, _KINDS[t]) for t in self.types):
                raise TypeError(
                    f"layers.{self.layer}, {self.argument}: expected {_either(self.types)}, "
                    f"found {type(v).__name__} ({v!r:.60})"
                )

    def hold_dtype(self, value: Any) -> None:
        """Raise TypeError for a dtype, or a Variable of a dtype, that Fluid refuses."""
        if self.types == ("dtype",):
            self._hold_dtype(np_dtype(value).name, "")
        elif self.dtypes:
            for v in self._parts(value):
                if isinstance(v, Variable) and v.dtype in HELD:
                    whose = f" (variable {v.name}); use layers.cast"
                    self._hold_dtype(np_dtype(v.dtype).name, whose)

    def _hold_dtype(self, name: str, whose: str) -> None:
        # Fluid has no bfloat16: it goes where float32 does.
        if name not in self.dtypes and not (name == "bfloat16" and "float32" in self.dtypes):
            raise TypeError(
                f"layers.{self.layer}, {self.argument}: expected dtype {_either(self.dtypes)}, "
                f"found {name}{whose}"
            )


def _either(names: tuple[str, ...]) -> str:
    spoken = {"tuple": "list", "Variable": "a Variable"}
    names = tuple(dict.fromkeys(spoken.get(n, n) for n in names))
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@functools.cache
def _table() -> dict[str, list[_Rule]]:
    """The rules of each layer."""
    found: dict[str, list[_Rule]] = {}
    text = (Path(__file__).parent / "argument_types.txt").read_text(encoding="ascii")
    for line in text.splitlines():
        layer, argument, types, dtypes = (part.strip() for part in line.split("|"))
        name, _, each = argument.partition(" ")
        rule = _Rule(layer, name, bool(each), tuple(types.split()), tuple(dtypes.split()))
        found.setdefault(layer, []).append(rule)
    return found


def _checked(function: Callable[..., Any], rules: list[_Rule]) -> Callable[..., Any]:
    """`function`, held to rules: first to those of types, Variables before others."""
    rules = sorted(rules, key=lambda rule: "Variable" not in rule.types)

    @functools.cache  # when the layer is first used
    def wanted() -> list[tuple[_Rule, int, bool]]:
        """Each rule, the place of its argument, and whether None stands for no argument."""
        known = inspect.signature(function).parameters
        places = list(known)
        return [
            (r, places.index(r.argument), known[r.argument].default is None)
            for r in rules
            if r.argument in known
        ]

    @functools.wraps(function)
    def layer(*args: Any, **kwargs: Any) -> Any:
        if not default_main_program().eager:
            given = []
            for rule, place, optional in wanted():
                value = args[place] if place < len(args) else kwargs.get(rule.argument, _MISSING)
                if value is not _MISSING and not (value is None and optional):
                    given.append((rule, value))
            for rule, value in given:
                rule.hold_type(value)
            for rule, value in given:
                rule.hold_dtype(value)
        return function(*args, **kwargs)

    return layer


def install(names: MutableMapping[str, Any]) -> None:
    """Replace the layers among `names`, here and in the modules that define them, by ones that hold
    their arguments to the table.
    """
    for name, rules in _table().items():
        function = names.get(name)
        if inspect.isfunction(function):
            names[name] = _checked(function, rules)
            setattr(sys.modules[function.__module__], name, names[name])
