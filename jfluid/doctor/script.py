"""Examination of a script: names, calls and settings of Fluid in its syntax tree."""

import ast
import os
from collections import deque
from collections.abc import Sequence

from jfluid import errors
from jfluid.doctor import calls, conditions
from jfluid.doctor.examination import Examination
from jfluid.doctor.findings import Severity
from jfluid.doctor.fluid_api import Api, shown
from jfluid.doctor.names import Instance, Literal, Named, NamedModule, NameScope, UnknownName, Value
from jfluid.doctor.rules import COMPUTED, RulesByUse

# Packages of Paddle 2 that no Fluid had.
_PADDLE_2 = frozenset(
    "Model amp audio autograd callbacks distribution distributed hapi hub inference io jit linalg metric nn onnx "
    "optimizer quantization regularizer signal sparse static text vision".split()
)


class Script(Examination):
    """Walks a tree in the order in which it runs: the module, then the functions that it defines."""

    def __init__(self, file: str, api: Api, rules: RulesByUse):
        super().__init__(file, api, rules)
        self.uses_fluid = False
        # imports with their cell, and whether a condition or `try` is around them
        self.imported: list[tuple[int, ast.Import | ast.ImportFrom, bool]] = []
        self.imports_paddle = False
        self._tried = 0  # short `try` statements around the node, which go on without it
        self._later: deque[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, NameScope]] = deque()

    def examine(self, tree: ast.Module, cell: int = 0) -> None:
        """Examine a tree; the tree of a further cell continues the examination."""
        self._cell = cell
        self._visit_all(tree.body)
        while self._later:
            node, scope = self._later.popleft()
            self._scope, outer = scope, self._scope
            self._visit_all([node.body] if isinstance(node, ast.Lambda) else node.body)
            self._scope = outer

    # ---- names

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(node, alias.name)
        self._bind_import(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level and self._imported(node, node.module or ""):
            holder = self._resolver.module(node.module or "")
            for alias in node.names if holder.of_fluid else ():
                found = self._resolver.member(holder, alias.name)
                if isinstance(found, UnknownName) and alias.name != "*":
                    if not (node.module or "").startswith("jfluid"):
                        self._unknown(node, found)
                elif isinstance(found, NamedModule | Named):
                    self._settled(node, found, used=False)
        self._bind_import(node)

    def _bind_import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.imported.append((self._cell, node, self._branches > 0))
        for name, value in self._resolver.bindings(node):
            self._bind(name, value, self._branches > 0)

    def _imported(self, node: ast.stmt, path: str) -> bool:
        """Note an import; return True if the module exists, as far as it belongs to Fluid."""
        module = self._resolver.module(path)
        self.uses_fluid |= module.of_fluid and path != "paddle"
        self.imports_paddle |= path.partition(".")[0] == "paddle"
        if self._resolver.exists(module):
            return True
        self._unknown(node, UnknownName(*path.rpartition(".")[::2], ()))
        return False

    def visit_Attribute(self, node: ast.Attribute) -> None:
        value = self.value(node)
        if value is None:
            self.visit(node.value)
        elif isinstance(value, UnknownName):
            if self.api.is_module(value.owner):  # attributes of objects are not all known
                self._unknown(node, value)
            else:
                self.visit(node.value)
        else:
            self._settled(node, value)
            if not isinstance(value, NamedModule) and not self._is_path(node.value):
                self.visit(node.value)

    def _is_path(self, node: ast.expr) -> bool:
        return isinstance(self.value(node), NamedModule)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._settled(node, self._scope.find(node.id))

    def _settled(self, node: ast.AST, value: Value, used: bool = True) -> None:
        """Add the finding of a name's state."""
        if isinstance(value, NamedModule):
            self.uses_fluid |= value.of_fluid and value.path != "paddle"
        if not isinstance(value, Named):
            return
        self.uses_fluid = True
        name, entry = shown(value.path), value.entry
        if used and value.path.startswith("paddle.dataset."):
            self._check_data_set(node, value.path.split(".")[2])
        if entry.kind == "missing" and used:
            self.add(
                Severity.BLOCKER,
                node,
                "missing",
                name,
                f"{name}: {entry.says or 'it is not in this release'}",
                "rewrite it with layers that are here",
            )

    def _check_data_set(self, node: ast.AST, name: str) -> None:
        """Say where the files of a data set have to lie, unless some are there."""
        folder = os.path.join("~/.cache/paddle/dataset", name)
        try:
            there = bool(os.listdir(os.path.expanduser(folder)))
        except OSError:
            there = False
        if name not in ("common", "image") and not there:
            happens = f"paddle.dataset.{name} has no files in {folder}: they are downloaded"
            do = f"without a network put them into {folder}"
            self.add(Severity.NOTE, node, "data-set", f"paddle.dataset.{name}", happens, do)

    def _unknown(self, node: ast.AST, found: UnknownName) -> None:
        """Add the finding of an unknown name."""
        path = f"{found.owner}.{found.name}".lstrip(".")
        if self._tried:
            happens = f"{path} is not here, and the script goes on without it"
            self.add(Severity.NOTE, node, "unknown-name", path, happens)
            return
        near = errors.close_to(found.name, found.known)
        if found.owner == "paddle" and found.name in _PADDLE_2:
            self.add(
                Severity.BLOCKER,
                node,
                "paddle-2",
                path,
                f"{path} is a part of Paddle 2, which is another framework than Fluid",
                "run such scripts with PaddlePaddle 2 or newer",
            )
        elif found.owner == "paddle":
            happens = f"neither Fluid 1.8.5 nor this package has {path}{near}"
            self.add(Severity.CHANGE, node, "unknown-name", path, happens, "delete or replace the line")
        else:
            self.add(
                Severity.CHANGE,
                node,
                "unknown-name",
                shown(path),
                f"neither Fluid 1.8.5 nor this package has {shown(path)}{near}",
                "use a name that there is",
            )

    # ---- statements

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _assign(self, target: ast.expr, value: Value, node: ast.expr | None) -> None:
        match target:
            case ast.Name(id=name):
                self._bind(name, value, self._branches > 0)
            case ast.Tuple() | ast.List():
                values = node.elts if isinstance(node, ast.Tuple | ast.List) else []
                same = len(values) == len(target.elts)
                for i, part in enumerate(target.elts):
                    self._assign(part, self.value(values[i]) if same else None, values[i] if same else None)
            case ast.Starred():
                self._assign(target.value, None, None)
            case ast.Attribute():
                self._set_attribute(target, value)
            case _:
                calls.check_item(self, target, value)
                self.visit(target)

    def _set_attribute(self, target: ast.Attribute, value: Value) -> None:
        if isinstance(target.value, ast.Name) and target.value.id == "self" and self._scope.parent:
            known = self._selves.setdefault(id(self._scope.parent), {})
            known[target.attr] = value if known.get(target.attr, value) == value else None
            self._values.clear()
            return
        holder = self.value(target.value)
        self.visit(target.value)
        if isinstance(holder, Instance):
            constant = value.value if isinstance(value, Literal) else COMPUTED
            calls.check_field(self, target, holder.entry)
            for rule in self._rules.of_assignment(holder.entry.name, target.attr, constant):
                self.add_rule(rule, target, f"{holder.entry.name}.{target.attr}")

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        value = self.value(node.value)
        for target in node.targets:
            self._assign(target, value, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, self.value(node.value), node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self._assign(node.target, None, None)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._assign(node.target, None, None)
        self._visit_all([*node.body, *node.orelse])

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, self.value(item.context_expr), None)
        self._visit_all(node.body)

    def visit_Try(self, node: ast.Try) -> None:
        with_handlers = bool(node.handlers)
        self._branches += with_handlers
        tried = conditions.tries(node)
        self._tried += tried
        self._visit_all(node.body)
        self._tried -= tried
        self._visit_all([s for handler in node.handlers for s in handler.body])
        self._branches -= with_handlers
        self._visit_all([*node.orelse, *node.finalbody])

    def visit_If(self, node: ast.If) -> None:
        holds = conditions.of_python(node.test)
        if holds is not None:
            self._visit_all(node.body if holds else node.orelse)
            return
        self.visit(node.test)
        certain, asks = self._is_true(node.test), conditions.asks_first(node.test)
        self._branches += not certain
        self._tried += asks
        self._visit_all(node.body)
        self._tried -= asks
        self._branches += certain
        self._visit_all(node.orelse)
        self._branches -= 1

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._branches += 1
        self._visit_all([node.body, node.orelse])
        self._branches -= 1

    def _is_true(self, test: ast.expr) -> bool:
        """Return True if constants make a condition true in any case."""
        if isinstance(test, ast.Compare):  # if __name__ == "__main__"
            return isinstance(test.left, ast.Name) and test.left.id == "__name__"
        value = self.value(test)
        return isinstance(value, Literal) and value.value is True

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.shared.update(node.names)

    # ---- functions, classes, scopes of their own

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all([*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)])
        self._bind(node.name, None)
        self._later.append((node, self._of_arguments(node.args)))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._later.append((node, self._of_arguments(node.args)))

    def _of_arguments(self, args: ast.arguments) -> NameScope:
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        return NameScope(self._scope, {a.arg: None for a in every if a is not None})

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *(k.value for k in node.keywords)])
        self._bind(node.name, None)
        self._scope, outer = NameScope(self._scope, of_class=True), self._scope
        self._visit_all(node.body)
        self._scope = outer

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self._scope, outer = NameScope(self._scope), self._scope
        for generator in node.generators:
            self.visit(generator.iter)
            self._assign(generator.target, None, None)
            self._visit_all(generator.ifs)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._visit_all(parts)
        self._scope = outer

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    # ---- calls

    def visit_Call(self, node: ast.Call) -> None:
        calls.check(self, node)
        self.visit(node.func)
        self._visit_all([*node.args, *(k.value for k in node.keywords)])
