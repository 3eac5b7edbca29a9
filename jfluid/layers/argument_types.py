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
from typing import Any, NoReturn

import numpy as np

from jfluid import errors
from jfluid.ir.program import default_main_program
from jfluid.ir.types import HELD, np_dtype, var_type
from jfluid.ir.variable import Variable

# Numbers of NumPy count as Python's, and tuples as lists, which Fluid does not allow everywhere.
_KINDS: dict[str, tuple[type, ...]] = {
    "Variable": (Variable,),
    "bool": (bool, np.bool_),
    "dict": (dict,),
    "float": (float, np.floating),
    "int": (int, np.integer),
    "list": (list, tuple),
    "ndarray": (np.ndarray,),
    "None": (type(None),),
    "str": (str,),
    "tuple": (list, tuple),
}
_MISSING = object()


class _Rule:
    """Allowed types and dtypes of a layer's argument; an empty list allows any."""

    def __init__(self, layer: str, argument: str, each: bool, types: Sequence[str], dtypes: Sequence[str]) -> None:
        self.layer = layer
        self.argument = argument
        self._each = each
        self._types = types
        self._dtypes = dtypes
        self._is_dtype = types == ["dtype"]  # the argument is a dtype itself
        self._classes = () if self._is_dtype else tuple(c for t in types for c in _KINDS[t])
        # Fluid has no bfloat16: it goes where float32 does.
        known = [*dtypes, "bfloat16"] if "float32" in dtypes else dtypes
        # "int" is a name that Fluid allows somewhere, and no dtype
        self._kinds = tuple(var_type(d) for d in known if d != "int")

    def hold(self, value: Any) -> None:
        """Raise an error, which is a TypeError and a ValueError, for a value that Fluid refuses."""
        if self._is_dtype:
            if var_type(value) not in self._kinds:
                self._refuse_dtype(value, "")
            return
        for v in value if self._each and isinstance(value, (list, tuple)) else (value,):
            if self._classes and not isinstance(v, self._classes):
                raise errors.AttributeTypeError(
                    f"layers.{self.layer}, {self.argument}: expected {_either(self._types)}, "
                    f"found {type(v).__name__} ({v!r:.60})"
                )
            if self._kinds and isinstance(v, Variable) and v.dtype not in self._kinds and v.dtype in HELD:
                self._refuse_dtype(v.dtype, f" (variable {v.name}); use layers.cast")

    def _refuse_dtype(self, dtype: Any, whose: str) -> NoReturn:
        raise errors.DtypeError(
            f"layers.{self.layer}, {self.argument}: expected dtype {_either(self._dtypes)}, "
            f"found {np_dtype(dtype).name}{whose}"
        )


def _either(names: Sequence[str]) -> str:
    spoken = {"tuple": "list", "Variable": "a Variable"}
    names = list(dict.fromkeys(spoken.get(n, n) for n in names))
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@functools.cache
def _table() -> dict[str, list[_Rule]]:
    """Return the rules of each layer."""
    found: dict[str, list[_Rule]] = {}
    text = (Path(__file__).parent / "argument_types.txt").read_text(encoding="ascii")
    for line in text.splitlines():
        layer, argument, types, dtypes = (part.strip() for part in line.split("|"))
        name, _, each = argument.partition(" ")
        rule = _Rule(layer, name, bool(each), types.split(), dtypes.split())
        found.setdefault(layer, []).append(rule)
    return found


def _checked(function: Callable[..., Any], rules: Sequence[_Rule]) -> Callable[..., Any]:
    """Wrap `function` with checks of the arguments, in the order of the parameters."""

    @functools.cache  # when the layer is first used
    def wanted() -> list[tuple[int, str, bool, _Rule]]:
        """Return the position and name of each checked argument, True if None is allowed, and the rule."""
        known = inspect.signature(function).parameters
        places = {name: place for place, name in enumerate(known)}
        found = [(places[r.argument], r.argument, known[r.argument].default is None, r) for r in rules]
        return sorted(found, key=lambda argument: argument[0])

    @functools.wraps(function)
    def layer(*args: Any, **kwargs: Any) -> Any:
        if not default_main_program().eager:
            for place, name, optional, rule in wanted():
                value = args[place] if place < len(args) else kwargs.get(name, _MISSING)
                if value is not _MISSING and not (value is None and optional):
                    rule.hold(value)
        return function(*args, **kwargs)

    return layer


def install(names: MutableMapping[str, Any]) -> None:
    """Wrap the layers among `names` with argument checks, in `names` and in the layers' modules."""
    for name, rules in _table().items():
        function = names.get(name)
        if inspect.isfunction(function):
            names[name] = _checked(function, rules)
            setattr(sys.modules[function.__module__], name, names[name])
