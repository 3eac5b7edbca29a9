"""The page of a program's graph: one file of HTML that folds by name scope, zooms and searches."""

import json
from pathlib import Path
from typing import Any

from jfluid.ir.block import Block
from jfluid.ir.folding import scope_of
from jfluid.ir.variable import EMPTY_NAME
from jfluid.printable import printable

_TEMPLATE = Path(__file__).with_name("graph.html")
_LONGEST = 200  # characters of an attribute's value
_PROVENANCE = frozenset({"op_callstack", "op_namescope", "op_role", "op_role_var"})


def page(block: Block, title: str) -> str:
    """Return the page of a block. Names of the program are text in it, and are never read as HTML."""
    text = json.dumps(_described(block, title)).replace("<", "\\u003c")
    return _TEMPLATE.read_text().replace("PROGRAM", text, 1)


def _described(block: Block, title: str) -> dict[str, Any]:
    """Return the operators and variables of a block as JSON of the page."""
    ops = [op for op in block.ops if op.type not in ("feed", "fetch")]
    names = {name for op in ops for name in (*op.input_arg_names, *op.output_arg_names)} - {EMPTY_NAME}
    variables = {name: block.find_var_recursive(name) for name in sorted(names)}
    known = {name: var for name, var in variables.items() if var is not None and var._shape is not None}
    return {
        "title": printable(title, lines=False),
        "ops": [
            {
                "type": printable(op.type, lines=False),
                "scope": [printable(part, lines=False) for part in scope_of(op)],
                "reads": _shown(op.input_arg_names),
                "writes": _shown(op.output_arg_names),
                "inputs": [[slot, _shown(found)] for slot, found in op.inputs.items() if found],
                "outputs": [[slot, _shown(found)] for slot, found in op.outputs.items() if found],
                "attrs": [
                    [key, printable(repr(value)[:_LONGEST], lines=False)]
                    for key, value in sorted(op.attrs.items())
                    if key not in _PROVENANCE
                ],
            }
            for op in ops
        ],
        "kept": _shown(name for name, var in variables.items() if var is not None and var.persistable),
        "shapes": {
            printable(name, lines=False): [var.np_dtype.name, str(list(var.shape))] for name, var in known.items()
        },
    }


def _shown(names: Any) -> list[str]:
    return [printable(name, lines=False) for name in names if name != EMPTY_NAME]
