"""A program's graph, folded: its operators by role, by name scope and by type, and which groups feed which."""

from collections.abc import Sequence
from typing import Any

from jfluid.ir.operator import Operator, OpRole
from jfluid.record import lines

_MOST_NODES = 1000
_MOST_SOURCES = 20
_DEEPEST = 12
Node = dict[str, Any]


def folded(operators: Sequence[Operator]) -> Node:
    """Return the tree of the operators of a block.

    A node has its `name`, the number of its operators (`ops`), the names of the sibling nodes whose outputs it reads
    (`reads`) and its `children`.
    """
    root: Node = _node("program")
    count, paths = 1, []
    for operator in operators:
        path, at = [], root
        at["ops"] += 1
        for name in _path(operator):
            found = at["children"].get(name)
            if found is None:
                if count == _MOST_NODES:  # the rest counts in the node that it lies in
                    break
                found = at["children"][name] = _node(name)
                count += 1
            found["ops"] += 1
            path.append(name)
            at = found
        paths.append(path)
    _connect(root, operators, paths)
    return _listed(root)


def _node(name: str) -> Node:
    return {"name": name, "ops": 0, "reads": {}, "children": {}}


def _path(operator: Operator) -> list[str]:
    """Return the names of the nodes in which an operator lies, from the outermost one."""
    scopes = str(operator.attrs.get("op_namescope") or "").split("/")
    named = [lines.shortened(name, lines.LONGEST_NAME) for name in scopes if name]
    return [_role(operator), *named[:_DEEPEST], operator.type]


def _role(operator: Operator) -> str:
    role = operator.attrs.get("op_role")
    bits = role if isinstance(role, int) else OpRole.Forward
    if bits & OpRole.Backward:
        return "backward"
    return "update" if bits & (OpRole.Optimize | OpRole.LRSched) else "forward"


def _connect(root: Node, operators: Sequence[Operator], paths: Sequence[Sequence[str]]) -> None:
    """Note in each node the sibling nodes that it reads from."""
    made: dict[str, Sequence[str]] = {}
    for operator, path in zip(operators, paths):
        for name in operator.input_arg_names:
            at = root
            for own, other in zip(path, made.get(name, ())):
                if own != other:
                    reads = at["children"][own]["reads"]
                    if len(reads) < _MOST_SOURCES:
                        reads[other] = True
                    break
                at = at["children"][own]
        made.update(dict.fromkeys(operator.output_arg_names, path))


def _listed(node: Node) -> Node:
    """Convert a node to JSON."""
    children = [_listed(child) for child in node["children"].values()]
    return {"name": node["name"], "ops": node["ops"], "reads": [*node["reads"]], "children": children}
