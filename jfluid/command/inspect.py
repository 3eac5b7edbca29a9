"""`jfluid inspect`: summary of a saved model."""

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from jfluid import errors
from jfluid.command import outputs
from jfluid.command.graph_page import page
from jfluid.doctor.fluid_api import load
from jfluid.doctor.models import runs
from jfluid.files.saved_model import SavedModel, read_saved_model
from jfluid.ir.reach import refused
from jfluid.ir.svg import block_to_svg
from jfluid.printable import printable, printable_json

_MOST_ACTING = 20  # operators of a text; --json has all
_MOST_PARAMETERS = 20  # of a table; --json has all


def main(arguments: Sequence[str]) -> int:
    """Print the summary of a model and return the exit code.

    It is 1 where files have faults or an operator is missing or acts, 2 where the model cannot be read.
    """
    options = arguments_parser().parse_args(arguments)
    try:
        model = read_saved_model(options.model, options.model_filename, options.params_filename)
        if options.svg:
            drawing = block_to_svg(model.program.global_block())
            outputs.write(options.svg, drawing.encode(), "--svg")
        if options.html:
            drawing = page(model.program.global_block(), os.path.basename(os.path.abspath(options.model)))
            outputs.write(options.html, drawing.encode(), "--html")
    except (errors.JFluidError, OSError, ValueError) as error:
        print(printable(f"jfluid inspect: {outputs.reason(error)}"), file=sys.stderr)
        return 2
    record = described(model)
    if options.json:
        print(printable_json(json.dumps(record, indent=1, ensure_ascii=False)))
    else:
        for line in _lines(record):
            print(printable(line, lines=False))
        for path in filter(None, (options.svg, options.html)):
            print(printable(f"drawing: {path}"))
    wrong = ("faults", "operators not here", "operators that act")
    return 1 if any(record[key] for key in wrong) else 0


def described(model: SavedModel) -> dict[str, Any]:
    """Return the summary of a model as JSON."""
    block = model.program.global_block()
    types = Counter(op.type for b in model.program.blocks for op in b.ops)
    parameters = [
        {"name": p.name, "dtype": p.dtype.name, "shape": list(p.shape), "bytes": p.size}
        for p in sorted(model.parameters.values(), key=lambda p: (-p.size, p.name))
    ]
    return {
        "folder": model.folder,
        "program": model.model_file,
        "parameters file": model.params_file,
        "feeds": [_variable(block, name) for name in model.feeds],
        "fetches": [_variable(block, name) for name in model.fetches],
        "blocks": len(model.program.blocks),
        "operators": dict(types.most_common()),
        "operators not here": sorted(t for t in types if not runs(t, load())),
        "operators that act": [op._asdict() for op in refused(model.program.blocks, load().reaches.get)],
        "parameters": parameters,
        "elements": sum(math.prod(p.shape) for p in model.parameters.values()),
        "bytes": sum(p.size for p in model.parameters.values()),
        "program bytes": os.path.getsize(os.path.join(model.folder, model.model_file)),
        "faults": model.faults,
    }


def _variable(block: Any, name: str) -> dict[str, Any]:
    var = block.vars.get(name)
    if var is None or var._shape is None:
        return {"name": name}
    found = {"name": name, "dtype": str(var.np_dtype), "shape": list(var.shape)}
    return found | ({"lod_level": var.lod_level} if var.lod_level else {})


def _lines(record: dict[str, Any]) -> Iterator[str]:
    for title in ("feeds", "fetches"):
        yield f"{title}:"
        for var in record[title]:
            lod = f", {var['lod_level']} level(s) of sequences" if "lod_level" in var else ""
            yield f"  {var['name']}: {var.get('dtype', '?')}{var.get('shape', '')}{lod}"
    found = record["operators"]
    yield f"operators: {sum(found.values())} in {record['blocks']} block(s)"
    yield "  " + ", ".join(f"{name} {count}" for name, count in found.items())
    parameters = record["parameters"]
    where = f" in {record['parameters file']}" if record["parameters file"] else ""
    size = _bytes(record["bytes"])
    yield f"parameters: {len(parameters)}{where}, {record['elements']:,} elements, {size}"
    for one in parameters[:_MOST_PARAMETERS]:
        yield f"  {one['name']}: {one['dtype']}{one['shape']}, {_bytes(one['bytes'])}"
    if len(parameters) > _MOST_PARAMETERS:
        yield f"  and {len(parameters) - _MOST_PARAMETERS} smaller ones"
    yield f"program: {record['program']}, {_bytes(record['program bytes'])}"
    for name in record["operators not here"]:
        yield f"operator {name} is not in this release"
    acting = [errors.ActingOperator(**op) for op in record["operators that act"]]
    for op in acting[:_MOST_ACTING]:
        yield f"operator {op}: it is refused unless it is allowed"
    if len(acting) > _MOST_ACTING:
        yield f"and {len(acting) - _MOST_ACTING} more that act"
    for fault in record["faults"]:
        yield f"fault: {fault}"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a model."""
    parser.add_argument("model", metavar="MODEL_DIR", help="the model's folder, or its program file")
    add_file_arguments(parser)


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a model's files."""
    parser.add_argument("--model-filename", help="the program's file (default __model__)")
    parser.add_argument("--params-filename", help="the file of all parameters, where there is one")


def add_allow_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that lets operators of a model act."""
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="OPERATOR",
        help="let operators of this type act on files, networks, processes, Python or the terminal, "
        "if you trust who made the model (may be given again)",
    )


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid inspect",
        description="Says what a saved model holds: feeds, fetches, operators, parameters, sizes.",
        epilog="Exit codes: 0; 1 where files have faults, or an operator is not in this release or acts "
        "on files, networks, processes, Python or the terminal; 2 where the model cannot be read.",
    )
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument("--svg", metavar="FILE", help="draw the program's graph")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page of the graph that folds by name scope, zooms and searches"
    )
    return parser
