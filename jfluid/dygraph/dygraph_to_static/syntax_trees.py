"""`fluid.dygraph.dygraph_to_static`: helpers that tools call on syntax trees.

Trees are of Python's `ast`, or of the package `gast`, which Fluid uses: nodes are told by the names of
their classes.
"""

import ast
import linecache
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jfluid import errors, layers
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.creation import fill_constant

__all__ = [
    "ast_to_func",
    "ast_to_source_code",
    "data_layer_not_check",
    "get_name_ids",
    "index_in_list",
    "to_static_variable",
]

_CONSTANTS = ("True", "False", "None")


def kind(node: Any) -> str:
    """Return the name of a node's class."""
    return type(node).__name__


def children(node: Any) -> Iterator[Any]:
    """Yield the direct children of a node, in the order of the node's fields."""
    for field in node._fields:
        value = getattr(node, field, None)
        for part in value if isinstance(value, list) else [value]:
            if hasattr(part, "_fields"):
                yield part


def ast_to_source_code(ast_node: Any) -> str:
    """Return the source of a syntax tree. Raises TypeError unless it is a tree."""
    if type(ast_node).__module__.startswith("gast"):
        from gast import gast_to_ast  # type: ignore[import-not-found]  # it has made the tree

        ast_node = gast_to_ast(ast_node)
    if not isinstance(ast_node, ast.AST):
        raise TypeError(f"ast_to_source_code: expected a syntax tree, found {type(ast_node).__name__}")
    return ast.unparse(ast.fix_missing_locations(ast_node)) + "\n"


def ast_to_func(
    ast_root: Any, dyfunc: Callable[..., Any], delete_on_exit: bool = True
) -> tuple[Callable[..., Any], str]:
    """Compile a syntax tree to a function; return the function and the name of the source.

    Args:
        ast_root: the tree of a module, or of a function definition.
        dyfunc: the function that the tree was made from; its name is looked for, and its globals are
            seen.
        delete_on_exit: has no effect: the source is kept in memory (`linecache`), and no file is
            made.

    Raises ValueError where the tree defines no function of that name.
    """
    text = ast_to_source_code(ast_root)
    name = f"<{dyfunc.__name__} made of a syntax tree {id(ast_root):x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    seen = getattr(dyfunc, "__globals__", {})
    module = types.ModuleType(dyfunc.__name__)
    module.__dict__.update({n: v for n, v in seen.items() if not n.startswith("__")})
    module.__dict__["__name__"] = getattr(dyfunc, "__module__", dyfunc.__name__)
    before = dict(module.__dict__)
    exec(compile(text, name, "exec"), module.__dict__)
    made = vars(module).get(dyfunc.__name__)
    if made is None or made is before.get(dyfunc.__name__):
        raise ValueError(f"ast_to_func: the tree defines no function {dyfunc.__name__}")
    return made, name


def index_in_list(array_list: Sequence[Any], item: Any) -> int:
    """Return where a list has an item first; -1 where it does not have it."""
    return next((i for i, v in enumerate(array_list) if v == item), -1)


def get_name_ids(nodes: Iterable[Any], end_node: Any = None) -> dict[str, list[Any]]:
    """Return the names of variables in nodes, each with the contexts of the name's uses in order.

    Contexts are `Load`, `Store` and `Param`. Names of called functions are left out.

    Args:
        nodes: of the tree.
        end_node: where to stop. A branch before it gives the names that both its sides bind.
    """
    names = _Names(end_node)
    for node in nodes:
        names.visit(node)
    return names.found


class _Names:
    """The uses of names up to a node."""

    def __init__(self, end: Any):
        self.found: dict[str, list[Any]] = defaultdict(list)
        self._end, self._ended = end, False

    def visit(self, node: Any, called: bool = False) -> None:
        if self._ended or (self._end is not None and node is self._end):
            self._ended = True
            return
        match kind(node):
            case "Name" if node.id not in _CONSTANTS and not called:
                self.found[node.id].append(node.ctx)
            case "arg":
                self.found[node.arg].append(ast.Param())
            case "Call":
                self.visit(node.func, called=True)
                self._all([*node.args, *node.keywords])
            case "Attribute" if called:
                pass
            case "Return":
                pass
            case "Assign":
                self._all([node.value, *node.targets])
            case "If" if self._end is not None:
                self._branch(node)
            case "FunctionDef" if self._end is not None:
                self._apart(list(children(node)))
            case _:
                self._all(children(node))

    def _all(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            self.visit(node)

    def _apart(self, nodes: Iterable[Any]) -> dict[str, list[Any]]:
        """Visit nodes with local names; the names are kept if the visit ends there."""
        before, self.found = self.found, defaultdict(list)
        self._all(nodes)
        inside, self.found = self.found, before
        if self._ended:
            for name, uses in inside.items():
                self.found[name] += uses
        return inside

    def _branch(self, node: Any) -> None:
        body = self._apart(node.body)
        if self._ended:
            return
        orelse = self._apart(node.orelse)
        if self._ended:
            return

        def bound(names: dict[str, list[Any]]) -> set[str]:
            return {n for n, uses in names.items() if any(kind(c) == "Store" for c in uses)}

        for name in sorted(bound(body) & bound(orelse)):
            self.found[name].append(ast.Store())


def data_layer_not_check(
    name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0
) -> Variable:
    """Return a fed variable, as `fluid.data` does; feeds of different shapes and dtypes run unchanged."""
    found: Variable = (
        default_main_program()
        .global_block()
        .create_var(
            name=name,
            shape=[-1 if d is None else d for d in shape],
            dtype=dtype,
            type=VarType.LOD_TENSOR,
            lod_level=lod_level,
            is_data=True,
            need_check_feed=False,
        )
    )
    found.stop_gradient = True
    return found


def to_static_variable(x: Any) -> Any:
    """Return a constant of shape [1] for a bool, float (float64) or int (int64); further values unchanged."""
    for python, dtype in ((bool, "bool"), (float, "float64"), (int, "int64")):
        if isinstance(x, python):
            return fill_constant([1], dtype, x)
    return x


def called_function(node: Any) -> Any:
    """Return the function that a call names by the usual imports of Fluid or NumPy, or None."""
    fluid = sys.modules["jfluid"]  # an import would be a circle
    dygraph = fluid.dygraph
    known: dict[str, Any] = {
        "fluid": fluid,
        "layers": layers,
        "dygraph": dygraph,
        "to_variable": dygraph.to_variable,
        "np": np,
        "numpy": np,
    }
    path = ast_to_source_code(node.func).strip().split(".")
    if path[:2] == ["paddle", "fluid"]:
        path = path[1:]
    found: Any = known.get(path[0])
    for part in path[1:] if found is not None else ():
        try:
            found = getattr(found, part)
        except (AttributeError, errors.UnsupportedError):
            return None
    return found
