"""Fluid's names, read from fluid_api.json, which `python -m scripts.pages` makes from the package."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jfluid.ir.reach import Reach

# What was Fluid's interface of this package, and the package itself: the same names.
ROOTS = ("paddle.fluid", "jfluid")


@dataclass(frozen=True)
class FluidName:
    """A name of Fluid.

    Attributes:
        kind: "function", "class", "value", "instance" (of a class), or "missing" here.
        name: what it is called where it is defined.
        state: "works", "refuses" (raises UnsupportedError when called), "no effect".
        says: why it refuses, or has no effect, or is missing.
        parameters: of a function or class, as written ("x", "x=", "*args", "*", "**kwargs"); None
            where they are not known.
        methods: of a class; each is an entry.
        fields: of settings that refuse to be given others; else None.
        open: whether the class makes attributes up.
        returns: the name of the class of what it returns, where that is one of the package's.
    """

    kind: str
    name: str = ""
    state: str = "works"
    says: str = ""
    parameters: tuple[str, ...] | None = None
    methods: Mapping[str, "FluidName"] = field(default_factory=dict)
    attributes: frozenset[str] = frozenset()
    fields: frozenset[str] | None = None
    open: bool = False
    returns: str = ""

    def takes(self, name: str) -> bool:
        """Return whether it has a parameter of that name."""
        return name in self.parameter_names or any(p[:2] == "**" for p in self.parameters or ())

    @property
    def parameter_names(self) -> list[str]:
        """Names of the parameters, without starred parameters."""
        return [p.rstrip("=") for p in self.parameters or () if not p.startswith("*")]


def _entry(record: dict[str, Any]) -> FluidName:
    methods = {name: _entry(method) for name, method in record.get("methods", {}).items()}
    many: dict[str, Any] = {
        key: kind(record[key])
        for key, kind in (("parameters", tuple), ("fields", frozenset), ("attributes", frozenset))
        if record.get(key) is not None
    }
    plain = ("kind", "name", "state", "says", "open", "returns")
    return FluidName(**{key: record[key] for key in plain if key in record}, **many, methods=methods)


def _reach(record: dict[str, Any]) -> Reach:
    only_with = tuple(tuple(names) for names in record["only_with"])
    return Reach(record["what"], tuple(record["chosen_by"]), only_with)


def _named(text: str, entries: Mapping[str, FluidName]) -> tuple[str, FluidName]:
    name, _, key = text.partition("=")
    return name, entries[key or name]


class Api:
    """All of it."""

    def __init__(self, record: dict[str, Any]):
        entries = {key: _entry(one) for key, one in record["objects"].items()}
        self._modules = {
            path: dict(_named(text, entries) for text in names) for path, names in record["modules"].items()
        }
        self._packages = {
            ".".join(path.split(".")[:n]) for path in self._modules for n in range(1, path.count(".") + 1)
        }
        self._classes = {e.name: e for e in entries.values() if e.kind == "class"}
        self._methods = {name for e in entries.values() for name in e.methods}
        self.operators = {state: frozenset(names) for state, names in record["operators"].items()}
        self.reaches = {name: _reach(one) for name, one in record["reaches"].items()}
        self.activations = frozenset(record["activations"])
        self.dtypes = frozenset(record["dtypes"])
        self.flags: dict[str, list[str]] = record["flags"]

    def is_module(self, path: str) -> bool:
        """Return whether Fluid has a module of that path ("paddle.fluid.layers")."""
        return path in self._modules or path in self._packages

    def names(self, path: str) -> Mapping[str, FluidName]:
        """Return the names of a module."""
        return self._modules.get(path, {})

    def is_method(self, name: str) -> bool:
        """Return whether any class has a method of that name."""
        return name in self._methods

    def class_of(self, name: str) -> FluidName | None:
        """Return the class of that name."""
        return self._classes.get(name)


@functools.cache
def load() -> Api:
    """Return the table; read once."""
    return Api(json.loads(files("jfluid.doctor").joinpath("fluid_api.json").read_text("utf-8")))


def canonical(path: str) -> str:
    """Return a module's path as the table has it: `jfluid.layers` is `paddle.fluid.layers`."""
    for root in ROOTS[1:]:
        if path == root or path.startswith(root + "."):
            return ROOTS[0] + path.removeprefix(root)
    return path


def shown(path: str) -> str:
    """Return a path as messages have it: `fluid.layers.fc`."""
    return path.removeprefix("paddle.") if path.startswith("paddle.fluid") else path
