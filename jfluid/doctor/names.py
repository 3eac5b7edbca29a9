"""Meanings of a script's names: modules and names of Fluid, through imports, aliases and assignments.

A name is followed in the order of the source. What is bound to something else, or in a way that
cannot be followed, stands for nothing (None), and is left alone.
"""

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jfluid.doctor.fluid_api import Api, FluidName, canonical

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class NamedModule:
    """Module of Fluid, or `paddle` itself, or a foreign module ("numpy", "os.path")."""

    path: str
    of_fluid: bool


@dataclass(frozen=True)
class Named:
    """A name of Fluid: `path` is as the script reaches it ("paddle.fluid.layers.fc")."""

    path: str
    entry: FluidName


@dataclass(frozen=True)
class Instance:
    """An object of a class of Fluid. `exact`: not of one that extends the class."""

    entry: FluidName
    exact: bool = True


@dataclass(frozen=True)
class UnknownName:
    """A name that neither Fluid nor this package has in a module or class of theirs."""

    owner: str
    name: str
    known: tuple[str, ...]


@dataclass(frozen=True)
class Literal:
    """Value of a constant in the script."""

    value: object


Value = NamedModule | Named | Instance | UnknownName | Literal | None


@dataclass
class NameScope:
    """The names of a module, a function or a class.

    Functions do not see those of a class around them.
    """

    parent: "NameScope | None" = None
    names: dict[str, Value] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    of_class: bool = False

    def bind(self, name: str, value: Value, maybe: bool = False) -> None:
        """Let a name stand for a value.

        `maybe`: in a branch, where what it stood for is kept when the new value is not known.
        """
        holder = self._outermost() if name in self.shared else self
        if maybe and value is None and isinstance(holder.names.get(name), NamedModule | Named):
            return
        holder.names[name] = value

    def find(self, name: str) -> Value:
        """Return the object that a name stands for."""
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not scope.of_class):
                return scope.names[name]
            scope = scope.parent
        return None

    def _outermost(self) -> "NameScope":
        return self if self.parent is None else self.parent._outermost()


class Resolver:
    """Resolver of expressions to modules, names and objects of Fluid."""

    def __init__(self, api: Api):
        self._api = api

    # ---- imports

    def bindings(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Value]]:
        """Return the names that an import binds, and their values."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                module = self.module(path)
                yield alias.asname or path, module if self.exists(module) else None
            return
        if node.level:
            yield from ((alias.asname or alias.name, None) for alias in node.names)
            return
        holder, own = self.module(node.module or ""), (node.module or "").startswith("jfluid")
        for alias in node.names:
            if not self.exists(holder):
                yield alias.asname or alias.name, None
            elif alias.name != "*":
                value = self.member(holder, alias.name)
                unknown = own and isinstance(value, UnknownName)  # of this package, and not of Fluid
                yield alias.asname or alias.name, None if unknown else value
            elif holder.of_fluid:
                for name, entry in self._api.names(holder.path).items():
                    if not name.startswith("_"):
                        yield name, Named(f"{holder.path}.{name}", entry)

    def module(self, path: str) -> NamedModule:
        """Return a module by its path.

        Modules of this package that Fluid does not have are none of it.
        """
        inner, path = path, canonical(path)
        if inner != path and not self._api.is_module(path):
            return NamedModule(inner, False)
        return NamedModule(path, path == "paddle" or path.startswith("paddle."))

    def exists(self, module: NamedModule) -> bool:
        """Return whether a module of Fluid is there."""
        return not module.of_fluid or self._api.is_module(module.path)

    # ---- expressions

    def value(self, node: ast.expr, scope: NameScope, of: Callable[[ast.expr], Value]) -> Value:
        """Return the object that an expression stands for.

        Args:
            of: says it of the expressions inside.
        """
        match node:
            case ast.Name():
                return scope.find(node.id)
            case ast.Attribute():
                return self.member(of(node.value), node.attr)
            case ast.Constant():
                return Literal(node.value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return Literal(-number)
            case ast.Call():
                return self._result(node, of)
            case ast.BinOp():
                sides = (of(node.left), of(node.right))
                return next((s for s in sides if isinstance(s, Instance)), None)
            case ast.NamedExpr():
                return of(node.value)
            case ast.List() | ast.Tuple():
                items = [of(item) for item in node.elts]
                if all(isinstance(item, Literal) for item in items):
                    return Literal([item.value for item in items if isinstance(item, Literal)])
        return None

    def member(self, holder: Value, name: str) -> Value:
        """Return the object that `holder.name` stands for."""
        if isinstance(holder, NamedModule):
            return self._of_module(holder, name)
        if isinstance(holder, Instance):
            found = self._of_instance(holder.entry, name)
            of_another = not holder.exact and self._api.is_method(name)
            return None if of_another and isinstance(found, UnknownName) else found
        if isinstance(holder, Named):
            if holder.entry.kind == "missing":
                return Named(holder.path, holder.entry)
            if holder.entry.kind == "instance":
                return self._of_instance(holder.entry, name)
            if name in holder.entry.methods:
                return Named(f"{holder.path}.{name}", holder.entry.methods[name])
        return None

    def _of_module(self, holder: NamedModule, name: str) -> Value:
        path = f"{holder.path}.{name}"
        if not holder.of_fluid:
            return NamedModule(path, False)
        entry = self._api.names(holder.path).get(name)
        if entry is not None:
            return Named(path, entry)
        if self._api.is_module(path):
            return NamedModule(path, True)
        if name.startswith("__"):
            return None
        if _is_own_module(path):  # of this package, and not of Fluid
            return NamedModule(path, False)
        return UnknownName(holder.path, name, tuple(self._api.names(holder.path)))

    def _of_instance(self, holder: FluidName, name: str) -> Value:
        if name in holder.methods:
            return Named(f"{holder.name}.{name}", holder.methods[name])
        settled = holder.attributes | (holder.fields or frozenset())
        if holder.open or name in settled or name.startswith("_"):
            return None
        return UnknownName(holder.name, name, (*holder.methods, *settled))

    def _result(self, node: ast.Call, of: Callable[[ast.expr], Value]) -> Value:
        """Return the object that a call returns."""
        called = of(node.func)
        if isinstance(called, Named):
            if called.entry.kind == "missing":
                return None
            return self.made_by(called.entry)
        if isinstance(called, NamedModule) and called.path == "importlib.import_module" and node.args:
            path = _text(of(node.args[0]))
            return self.module(path) if path else None
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "__import__"):
            return self._by_name(node, of)
        return None

    def made_by(self, called: FluidName) -> Value:
        """Return the object that a call of an entry returns, if its class is Fluid's."""
        if called.kind == "class":
            return Instance(called)
        entry = self._api.class_of(called.returns)
        return None if entry is None else Instance(entry, exact=False)

    def _by_name(self, node: ast.Call, of: Callable[[ast.expr], Value]) -> Value:
        """Return the object that `getattr(x, "name")` or `__import__("name")` stands for."""
        values = [of(argument) for argument in node.args]
        if len(values) == 1:
            path = _text(values[0])
            return self.module(path) if path else None
        if len(values) > 1 and (name := _text(values[1])):
            found = self.member(values[0], name)
            return None if len(values) == 3 and isinstance(found, UnknownName) else found
        return None


@functools.cache
def _is_own_module(path: str) -> bool:
    file = _PACKAGE.joinpath(*path.removeprefix("paddle.fluid.").split("."))
    return file.with_suffix(".py").is_file() or file.is_dir()


def _text(value: Value) -> str:
    """Return the text of a constant; empty for any other value."""
    return value.value if isinstance(value, Literal) and isinstance(value.value, str) else ""
