"""jfluid/doctor/fluid_api.json: index of Fluid's names for `jfluid doctor`, which imports none of them.

It has the state, parameters and methods of each object, and the operators, flags and dtypes.
"""

import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import jfluid
from jfluid import errors, flags, surface
from jfluid.compat import paddle
from jfluid.compat.paddle import aliases
from jfluid.ir.types import var_type
from jfluid.ops import registry

_SCHEMA = Path(__file__).resolve().parents[2] / "tests" / "golden" / "op_schema.json"
# First words of docstrings of functions that do not work as in Fluid, and the state of these functions.
_STATES = (
    (re.compile("Raises? UnsupportedError"), "refuses"),
    (re.compile("Dygraph only: raises DygraphError"), "imperative mode only"),
    (re.compile("No effect"), "no effect"),
)
# Names of dtypes in NumPy and Fluid; the index has the names that layers take.
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *(
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "complex64",
        "complex128",
        "float",
        "int",
        "double",
        "long",
    ),
)


def text() -> str:
    """Return the file's text."""
    table = _Table()
    files = {name for name in jfluid.__all__ if isinstance(getattr(jfluid, name), ModuleType)}
    paths = {
        *surface.NAMES,
        *surface.ALIASES,
        *surface._PACKAGES,
        *surface._WIDER,
        *surface.MODULES,
        *files,
    }
    for path in sorted(paths - {""}):
        table.add(f"paddle.fluid.{path}", importlib.import_module(f"jfluid.{path}"))
    table.add("paddle.fluid", jfluid)
    table.add("paddle", paddle)
    for name in aliases._PLACES:
        home = aliases.target(f"paddle.{name}")
        if name != "fluid" and (module := importlib.import_module(home)):
            table.add(f"paddle.{name}", module)
            for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
                table.add(f"paddle.{name}.{inner.name}", importlib.import_module(f"{home}.{inner.name}"))
    for name in ("launch", "launch_ps"):
        home = aliases.target(f"paddle.distributed.{name}")
        table.add(f"paddle.distributed.{name}", importlib.import_module(home))
    modules = table.modules
    parts = {
        "modules": dict(sorted(modules.items())),
        "objects": dict(sorted(table.objects.items())),
        "operators": _operators(),
        "reaches": {
            name: asdict(found) for name in registry.registered() if (found := registry.get(name).reaches) is not None
        },
        "activations": sorted(_activations()),
        "dtypes": [name for name in _DTYPES if _is_dtype(name)],
        "flags": {"effective": sorted(flags.EFFECTIVE), "without effect": sorted(flags.NO_EFFECT)},
    }
    return _laid_out(parts) + "\n"


def _laid_out(value: Any) -> str:
    """Return JSON text with a line for each name, so that changes merge; a function with its parameters is one line."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if value else "[]"
    if not isinstance(value, dict) or not value or isinstance(value.get("what"), str):
        return json.dumps(value)
    if isinstance(value.get("kind"), str):
        show = dict.fromkeys(("methods", "attributes", "fields"), _laid_out)
        return "{" + ", ".join(f"{json.dumps(k)}: {show.get(k, json.dumps)(v)}" for k, v in value.items()) + "}"
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {_laid_out(v)}" for k, v in value.items()) + "\n}"


class _Table:
    """Modules as names, and what the names stand for: "x" the object of that name, "x=y" object y."""

    def __init__(self) -> None:
        self.modules: dict[str, list[str]] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self._keys: dict[int, str] = {}
        self._alive: list[object] = []

    def add(self, path: str, module: ModuleType) -> None:
        """Take in the names of a module."""
        found = self.modules[path] = []
        inner = path.removeprefix("paddle.fluid").removeprefix(".")
        sources = [importlib.import_module(f"jfluid.{s}") for s in surface.ALIASES.get(inner, ())]
        public = set(surface._LAZY) if path == "paddle.fluid" else set()
        for holder in (module, *sources):
            public |= set(getattr(holder, "__all__", ()))
        if path.startswith("paddle.fluid"):  # what else is there is this package's own business
            public |= surface.NAMES.get(inner, frozenset()) | set(surface._imported(inner))
        else:
            public |= {name for name in dir(module) if name[0] != "_"}
        for name in sorted(public):
            value = getattr(module, name, None)
            if value is not None and _is_of_fluid(value):
                key = self._keys.setdefault(id(value), "") or self._key(value)
                found.append(name if key == name else f"{name}={key}")

    def _key(self, value: object) -> str:
        """Under which key an object is; each is there once."""
        described = _described(value)
        name = described.get("name", described["kind"])
        for key in (name, *(f"{name}#{i}" for i in range(2, 1000))):
            if self.objects.setdefault(key, described) == described:
                self._keys[id(value)] = str(key)
                self._alive.append(value)  # so that no other object gets its id
                return str(key)
        raise ValueError(f"too many objects are called {name}")


def _is_of_fluid(value: object) -> bool:
    """Whether a name is one of the package's, and not of a library that a module imports."""
    if isinstance(value, ModuleType):
        return False  # its path says so
    home = getattr(value, "__module__", None)
    return home is None or not isinstance(home, str) or home.startswith(("jfluid", "builtins"))


def _described(value: object) -> dict[str, Any]:
    """What the doctor has to know of an object, as `jfluid.doctor.fluid_api.FluidName` has it."""
    if isinstance(value, surface.Missing):
        return {"kind": "missing", "says": str(value._refuse()).partition(": ")[2]}
    if not callable(value):
        return _members(type(value)) | {"kind": "instance"} if _has_methods(value) else {"kind": "value"}
    found = {"kind": "class" if isinstance(value, type) else "function"} | _called(value)
    if isinstance(value, type) and not issubclass(value, BaseException):
        found |= _members(value)
        fields = _fields(value)
        if fields is not None:
            found["fields"] = fields
    return found


def _has_methods(value: object) -> bool:
    return type(value).__module__.startswith("jfluid") and not isinstance(value, enum.Enum)


def _members(holder: type) -> dict[str, Any]:
    """The methods and other attributes of a class."""
    members = {name: getattr(holder, name, None) for name in dir(holder) if name[0] != "_"}
    fields = {name for base in holder.__mro__ for name in getattr(base, "__annotations__", {})}
    return {
        "name": holder.__name__,
        "methods": {
            name: {"kind": "function"} | _called(method)
            for name, method in members.items()
            if callable(method) and not isinstance(method, type)
        },
        "attributes": sorted(
            fields | {name for name, value in members.items() if not callable(value) or isinstance(value, type)}
        ),
        "open": hasattr(holder, "__getattr__"),
    }


def _called(value: Any) -> dict[str, Any]:
    """What there is to know before something is called."""
    found = {
        "name": getattr(value, "__name__", type(value).__name__),
        "parameters": _parameters(value),
    }
    about = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    for start, state in _STATES:
        if match := start.match(about):
            found |= {"state": state, "says": about[match.end() :].lstrip(":., ")}
    returned = getattr(value, "__annotations__", {}).get("return")
    if isinstance(returned, str):
        returned = getattr(sys.modules[value.__module__], returned, None)
    if isinstance(returned, type) and returned.__module__.startswith("jfluid"):
        found["returns"] = returned.__name__
    return found


def _parameters(value: Any) -> list[str] | None:
    """Parameters as they are written, without self: "x", "x=", "*args", "*", "**kwargs". None: not
    known.
    """
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    found, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
            found.append(f"*{parameter.name}")
        elif parameter.kind is parameter.VAR_KEYWORD:
            found.append(f"**{parameter.name}")
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not star:
                star = True
                found.append("*")
            found.append(parameter.name + ("" if parameter.default is parameter.empty else "="))
    return found[1:] if found[:1] == ["self"] else found


def _fields(value: type) -> list[str] | None:
    """The fields of a class of settings, which refuses others; None for any other class."""
    if value.__setattr__ is object.__setattr__ or issubclass(value, tuple):
        return None
    try:
        settings = value()
        settings.no_such_field = None
    except errors.ProgramError:
        return sorted(name for name in dir(settings) if not name.startswith("_"))
    except Exception:
        return None
    return None


def _activations() -> set[str]:
    """Operators of one input and one output, which `act=` may name."""
    return {
        name
        for name in registry.registered()
        if (found := registry.get(name)).ins
        and [slot.name for slot in found.ins][:1] == ["X"]
        and "Out" in [slot.name for slot in found.outs]
        and all(slot.optional for slot in found.ins[1:])
    }


def _is_dtype(name: str) -> bool:
    try:
        return var_type(name) is not None
    except (TypeError, ValueError):
        return False


def _operators() -> dict[str, list[str]]:
    """Operators that run, those without a gradient among them, and those that only stand in programs."""
    registered = registry.registered()
    known = {name: registry.get(name) for name in registered}
    fluids = set(json.loads(_SCHEMA.read_text()))
    return {
        "run": [n for n in registered if not known[n].absent],
        "without gradient": [n for n in registered if not (known[n].grad and not known[n].host)],
        "in jobs with servers": [n for n in registered if known[n].absent and "never published" not in known[n].absent],
        "of Fluid, not here": sorted(n for n in fluids if registry.find(n) is None),
    }
