"""Blocks as SVG drawings, without Graphviz: operators in layers, each below all that it reads from."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

from jfluid.ir.folding import runs
from jfluid.printable import printable

MOST_DRAWN = 200  # operators of a drawing in a notebook; more are folded by name scope
_WIDTH, _LINE, _GAP_X, _GAP_Y, _MARGIN = 210, 15, 24, 44, 20
_SWEEPS = 4  # over the layers, each of which brings operators nearer to what they are joined to
_LONGEST = 30  # characters of a line
_MOST_NAMES = 6  # parameters of a box

_STYLE = """
  text { font: 11px Helvetica, Arial, sans-serif; text-anchor: middle; }
  .op { fill: #303a3a; } .data { fill: #e0ecf4; stroke: #7f9db9; }
  .op + text { fill: white; } .names { fill: #c8d6d6; font-size: 10px; }
  path { fill: none; stroke: #888; }
"""


class _Node:
    """Box of a drawing: an operator, or an outer variable."""

    def __init__(self, title: str, lines: list[str], is_op: bool, layer: int):
        self.title, self.lines, self.is_op, self.layer = title, lines, is_op, layer
        self.above: list[_Node] = []
        self.below: list[_Node] = []
        self.x = self.y = 0.0

    @property
    def height(self) -> int:
        return _LINE * (1 + len(self.lines)) + 8


class DrawnBlock(Protocol):
    """A block of a program, as far as drawings need it."""

    ops: list[Any]

    def find_var_recursive(self, name: str) -> Any: ...


def block_to_svg(block: DrawnBlock, most: int | None = None) -> str:
    """Return the block as an SVG document.

    Operators stand with the parameters that they read and the shapes that they write; fed variables have boxes of
    their own. More than `most` operators are folded by name scope.
    """
    nodes = _nodes(block, most)
    layers: dict[int, list[_Node]] = {}
    for node in nodes:
        layers.setdefault(node.layer, []).append(node)
    width, height = _place([layers[i] for i in sorted(layers)])
    edges = [_edge(node, other) for node in nodes for other in node.below]
    boxes = [_box(node) for node in nodes]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<style>{_STYLE}</style>",
            *edges,
            *boxes,
            "</svg>",
            "",
        ]
    )


@dataclass
class _Part:
    """Some operators of a block."""

    ops: list[Any]
    find_var_recursive: Callable[[str], Any]


def variable_to_svg(block: DrawnBlock, name: str, most: int | None = None) -> str:
    """Return the operators of the block from which a variable is computed as an SVG document."""
    kept: list[Any] = []
    wanted = {name}
    for op in reversed(block.ops):
        if wanted & set(op.output_arg_names):
            wanted |= set(op.input_arg_names)
            kept.insert(0, op)
    return block_to_svg(_Part(kept, block.find_var_recursive), most)


def _nodes(block: DrawnBlock, most: int | None) -> list[_Node]:
    """Return the boxes with their neighbours above and below."""
    made: dict[str, _Node] = {}  # the box that gives each variable now
    nodes: list[_Node] = []

    def source(name: str) -> _Node | None:
        var = block.find_var_recursive(name)
        if name not in made and (var is None or not var.persistable):
            made[name] = _Node(name, [_shape(block, name)], False, 0)
            nodes.append(made[name])
        return made.get(name)

    for run in runs([op for op in block.ops if op.type not in ("feed", "fetch")], most):
        read, written = run.read, run.written
        above = [node for name in read if (node := source(name)) is not None]
        kept = [name for name in read if name not in made]
        lines = [f"{name} {_shape(block, name)}" for name in kept[:_MOST_NAMES]]
        lines += [f"and {len(kept) - _MOST_NAMES} more"] * (len(kept) > _MOST_NAMES)
        lines += [f"→ {name} {_shape(block, name)}" for name in written[:3]]
        node = _Node(run.title, lines, True, 1 + max((n.layer for n in above), default=-1))
        for other in dict.fromkeys(above):
            node.above.append(other)
            other.below.append(node)
        made.update(dict.fromkeys(written, node))
        nodes.append(node)
    return nodes


def _shape(block: DrawnBlock, name: str) -> str:
    var = block.find_var_recursive(name)
    return "" if var is None or var._shape is None else str(list(var._shape))


def _place(layers: list[list[_Node]]) -> tuple[float, float]:
    """Give every box its place; returns the size of the drawing."""
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            for i, node in enumerate(layer):
                joined = node.above if sweep % 2 == 0 else node.below
                node.y = sum(n.x for n in joined) / len(joined) if joined else float(i)
            layer.sort(key=lambda n: n.y)
            for i, node in enumerate(layer):
                node.x = i - len(layer) / 2
    widest = max((len(layer) for layer in layers), default=1)
    width = widest * (_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    y = float(_MARGIN)
    for layer in layers:
        for node in layer:
            node.x = width / 2 + node.x * (_WIDTH + _GAP_X) + _GAP_X / 2
            node.y = y
        y += max(node.height for node in layer) + _GAP_Y
    return float(width), y - _GAP_Y + _MARGIN


def _edge(above: _Node, below: _Node) -> str:
    x, y = above.x + _WIDTH / 2, above.y + above.height
    to_x, to_y = below.x + _WIDTH / 2, below.y
    middle = (to_y - y) / 2
    return (
        f'<path d="M{x:.0f} {y:.0f} C{x:.0f} {y + middle:.0f} {to_x:.0f} {to_y - middle:.0f} {to_x:.0f} {to_y:.0f}"/>'
    )


def _box(node: _Node) -> str:
    kind = "op" if node.is_op else "data"
    x, middle = node.x, node.x + _WIDTH / 2
    title = escape(printable("\n".join([node.title, *node.lines])))
    parts = [
        f'<g><title>{title}</title><rect class="{kind}" x="{x:.0f}" y="{node.y:.0f}" width="{_WIDTH}" '
        f'height="{node.height}" rx="6"/>',
        f'<text x="{middle:.0f}" y="{node.y + _LINE:.0f}">{escape(_cut(node.title))}</text>',
    ]
    for i, line in enumerate(node.lines, 2):
        css = ' class="names"' if node.is_op else ""
        parts.append(f'<text{css} x="{middle:.0f}" y="{node.y + i * _LINE:.0f}">{escape(_cut(line))}</text>')
    return "".join(parts) + "</g>"


def _cut(text: str) -> str:
    text = printable(text, lines=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
