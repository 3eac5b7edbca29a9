"""Drawings of blocks as Graphviz DOT text (`dot -Tsvg` renders it)."""

import re
from collections.abc import Sequence

from jfluid.ir.block import Block
from jfluid.ir.printer import type_to_code
from jfluid.ir.variable import EMPTY_NAME, Variable
from jfluid.printable import printable

_HIGHLIGHT = 'color="orangered", penwidth=2'
_OPERATOR = 'shape=box, style="rounded,filled", fillcolor="#303a3a", fontcolor=white'
_PERSISTABLE = 'shape=box, style=filled, fillcolor="#e0ecf4"'
_TEMPORARY = "shape=ellipse"


def _quote(text: str) -> str:
    """Return a DOT string; line breaks become DOT's."""
    return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def block_to_dot(block: Block, highlights: Sequence[str] | None = None) -> str:
    """Return the block as DOT text: operators, and their variables with shapes.

    Args:
        block: the block.
        highlights: regular expressions; names and operator types that match from their start are
            highlighted.
    """
    patterns = [re.compile(h) for h in highlights or ()]

    def style(base: str, name: str) -> str:
        return f"{base}, {_HIGHLIGHT}" if any(p.match(name) for p in patterns) else base

    lines = ["digraph block {", "  rankdir=TB;", "  node [fontname=Helvetica, fontsize=11];"]
    nodes: dict[str, str] = {}

    def node(name: str) -> str:
        if name not in nodes:
            nodes[name] = f"var_{len(nodes)}"
            var: Variable | None = block.find_var_recursive(name)
            base = _PERSISTABLE if var is not None and var.persistable else _TEMPORARY
            label = name if var is None else f"{name}\n{type_to_code(var)}"
            lines.append(f"  {nodes[name]} [label={_quote(label)}, {style(base, name)}];")
        return nodes[name]

    for i, op in enumerate(block.ops):
        lines.append(f"  op_{i} [label={_quote(op.type)}, {style(_OPERATOR, op.type)}];")
        for slots, reads in ((op.inputs, True), (op.outputs, False)):
            for slot, names in slots.items():
                for name in names:
                    if name != EMPTY_NAME:
                        ends = f"{node(name)} -> op_{i}" if reads else f"op_{i} -> {node(name)}"
                        lines.append(f"  {ends} [tooltip={_quote(slot)}];")
    return "\n".join([*lines, "}", ""])
