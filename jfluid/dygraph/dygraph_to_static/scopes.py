"""Names in a function's syntax tree: which it binds, which it reads."""

import ast
from collections.abc import Iterable, Iterator

# Nodes with a separate scope.
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def inside(nodes: ast.AST | Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes and their descendants, without the bodies of inner functions and classes."""
    for node in [nodes] if isinstance(nodes, ast.AST) else nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from inside(ast.iter_child_nodes(node))


def bound(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Return the names that statements bind in the enclosing function."""
    found: set[str] = set()
    for node in [nodes] if isinstance(nodes, ast.AST) else nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, _COMPREHENSIONS):
            found |= {n.target.id for n in inside(node) if isinstance(n, ast.NamedExpr)}
        elif not isinstance(node, ast.Lambda):
            found |= bound(ast.iter_child_nodes(node))
    return found


def read(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Return the names that statements read, in functions inside, too."""
    every = [n for s in ([nodes] if isinstance(nodes, ast.AST) else nodes) for n in ast.walk(s)]
    names = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return names.union(*(getattr(n, "until", ()) for n in every))


def reads_outside(function: ast.FunctionDef, part: ast.AST) -> set[str]:
    """Return the names that a function reads outside of a given statement."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if node is part:
            return
        found.update(getattr(node, "until", ()))  # flags that end a loop (jumps.py)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(function)
    return found


def in_loop(function: ast.FunctionDef, part: ast.AST) -> bool:
    """Return True if a statement of a function is in a loop."""
    return any(
        part in ast.walk(s)
        for n in inside(function.body)
        if isinstance(n, (ast.For, ast.While)) and n is not part
        for s in (*n.body, *n.orelse)
    )


def has(nodes: ast.AST | Iterable[ast.AST], *kinds: type[ast.AST]) -> bool:
    """Return True if nodes contain a node of given kinds, outside of inner functions."""
    return any(isinstance(n, kinds) for n in inside(nodes))


def parameters(function: ast.FunctionDef) -> list[str]:
    """Return the names of a function's parameters."""
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return [a.arg for a in every if a is not None]
