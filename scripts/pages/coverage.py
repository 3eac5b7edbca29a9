"""docs/coverage.md: Fluid's public names and operators, and what this release does with each.

Fluid's names are those of jfluid/fluid_names.txt, its operators those of
tests/golden/op_schema.json. What a name does is seen by looking it up: a docstring that begins with
"Raises UnsupportedError" or "No effect" says so.
"""

import importlib
import inspect
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path

from jfluid import surface
from jfluid.check_device import cases, structure
from jfluid.ops import registry
from scripts.pages.tables import NOTE, table

_TESTS = Path(__file__).resolve().parents[2] / "tests"
_SCHEMA = _TESTS / "golden" / "op_schema.json"
_DIMENSIONS = _TESTS / "dynamic_shapes" / "operator_dimensions.json"
_MOVES_NO_ROWS = ("feed", "fetch", "delete_var", "while", "conditional_block", "conditional_block_infer", "recurrent")
_STATES = ("works", "has no effect", "refuses, with a reason", "not in this release")
_ABOUT = """# Coverage of Fluid 1.8.5

This page is for users that look up a name or operator of Fluid. Every public name of Fluid can be imported. A name that
is not in this release raises `UnsupportedError` when it is called or subclassed. Loading a program with missing
operators raises one error that lists all missing operators. [differences.md](differences.md) lists differences in
behaviour.

Two groups of names refuse. PSLib's servers were never published. `Compressor` and the search controllers of
`fluid.contrib.slim` are not in this release. `load_op_library` loads a Python file of operators; it refuses a library
of operators compiled for Fluid, which calls Fluid's C++ framework.
"""
_ON_GPUS = """
### On GPUs

The operators of this table lower for CUDA (`tests/gpu`), and `python -m jfluid.check_device` compares results of a GPU
with results of the CPU: operators with a case (`jfluid/check_device/operators.jsonl`), and small programs for operators
that a case cannot show (`jfluid/check_device/structure.py`). The programs of the benchmarks, the gallery and the golden
runs lower, too.

"""
_ELSEWHERE = """
Operators that XLA computes without a case and without a small program:

"""
_ON_THE_HOST = """
The operators of this table do not lower and run on the host, between two parts that XLA compiles. XLA has no operation
for files, Python functions, remote processes and results of any size. Their inputs leave the device, which then waits
for their results. `sequence_mask` runs on the host, too, if `maxlen` is not given.

"""

_SIZES = """
### Sizes that vary

[Shapes that vary](dynamic_shapes.md) pads the feeds of a program to few sizes. This table has the dimensions of the
inputs of each operator with a recorded case, forward and backward together. `X[0, 2]` stands for dimensions 0 and 2 of
the input `X`. A fixed dimension follows from attributes or from other inputs, such as the channels of a filter. An
operator keeps exact shapes if one of its exact dimensions varies, for the reason given. The attributes are those of the
case: a pooling with windows of one size is padded, an adaptive pooling is not. Sizes of 0 and 1 are not in the table;
they are constants.

"""
_ROWS = """
Feeds with sequences are padded to larger numbers of rows. These operators keep the exact number of rows of an input
with sequences:

"""


def page() -> str:
    """Return the text of the page."""
    names = {path: _by_state(path) for path in sorted(surface.NAMES)}
    operators = _operators()
    modules = table(
        ["module", *_STATES],
        [
            [
                f"[`{_module(path)}`](#{_anchor(path)})",
                *(str(len(states[s]) or "") for s in _STATES),
            ]
            for path, states in names.items()
        ],
    )
    parts = [
        NOTE + _ABOUT,
        "\n## Names by module\n\n",
        modules,
        "\n## Operators\n\n",
        table(
            ["operators", "number"],
            [[state, str(len(found))] for state, found in operators.items()],
        ),
        "\n",
        *(_listed(state, found) for state, found in operators.items()),
        "Gradients are derived operators (`mul_grad`) and not listed.\n",
        _ON_GPUS,
        table(["operators, with their gradients", "number"], _lowered()),
        _ELSEWHERE,
        table(["operator", "reason"], [[f"`{n}`", why] for n, why in sorted(structure.ELSEWHERE.items())]),
        _ON_THE_HOST,
        table(
            ["operator", "what it does"],
            [[f"`{name}`", _first_line(registry.get(name).function)] for name in _on_the_host()],
        ),
        _sizes(),
    ]
    for path, states in names.items():
        parts += [
            f"\n## {_module(path)}\n\n",
            *(_listed(state, found) for state, found in states.items()),
        ]
    return "".join(parts)


def _module(path: str) -> str:
    return f"fluid.{path}" if path else "fluid"


def _anchor(path: str) -> str:
    return _module(path).replace(".", "")


def _listed(state: str, names: Iterable[str]) -> str:
    found = ",\n  ".join(f"`{name}`" for name in sorted(names))  # a line each, so that changes merge
    return f"- **{state}**:\n  {found}\n" if found else ""


def _sizes() -> str:
    """Return the section on dimensions that may be padded."""
    rows = []
    for name, inputs in json.loads(_DIMENSIONS.read_text()).items():
        reasons: dict[str, list[str]] = {}
        for slot, dims in inputs.items():
            for reason in dict.fromkeys(d for d in dims if d is not None):
                places = ", ".join(str(i) for i, d in enumerate(dims) if d == reason)
                reasons.setdefault(reason, []).append(f"`{slot}[{places}]`")
        padded, fixed = ("<br>".join(reasons.pop(kind, [])) for kind in ("", "fixed"))
        exact = "<br>".join(f"{', '.join(places)}: {reason}" for reason, places in reasons.items())
        rows.append([f"`{name}`", padded, fixed, exact])
    exact_rows = [
        f"`{name}`"
        for name in sorted(registry.registered())
        if (found := registry.get(name)).rows is None and not (found.host or found.absent or name in _MOVES_NO_ROWS)
    ]
    lines = textwrap.fill(", ".join(exact_rows) + ".", 120)
    return _SIZES + table(["operator", "padded", "fixed", "exact, and the reason"], rows) + _ROWS + lines + "\n"


def _by_state(path: str) -> dict[str, list[str]]:
    """Names of a module by their state."""
    module = importlib.import_module(f"jfluid.{path}" if path else "jfluid")
    found: dict[str, list[str]] = {state: [] for state in _STATES}
    for name in sorted(surface.NAMES[path]):
        found[_state(getattr(module, name))].append(name)
    return found


def _state(value: object) -> str:
    if isinstance(value, surface.Missing):
        return "not in this release"
    about = inspect.getdoc(value) or ""
    if about.startswith("Raise UnsupportedError"):
        return "refuses, with a reason"
    return "has no effect" if about.startswith("No effect") else "works"


def _lowered() -> list[list[str]]:
    with_case = {case.type for case in cases.recorded()}
    return [
        ["with a case", str(len(with_case))],
        ["in a small program, without a case", str(len(structure.shown() - with_case))],
        ["without either", str(len(structure.ELSEWHERE))],
    ]


def _on_the_host() -> list[str]:
    definitions = ((name, registry.get(name)) for name in registry.registered())
    return [name for name, found in definitions if found.host and not found.absent]


def _first_line(function: object) -> str:
    """The first sentence of a docstring, on one line."""
    about = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return about.partition(". ")[0].rstrip(".") + "."


def _operators() -> dict[str, list[str]]:
    """Operators by their state."""
    fluids = set(json.loads(_SCHEMA.read_text()))
    registered = {*registry.registered(), *(name for name in fluids if registry.find(name))}
    absent = {name for name in registered if registry.get(name).absent}
    unpublished = {name for name in absent if "never published" in registry.get(name).absent}
    elsewhere = {name for name in absent if "divide the program here" in registry.get(name).absent}
    return {
        "run": sorted(registered & fluids - absent),
        "run in programs that work with parameter servers": sorted(absent - unpublished - elsewhere),
        "refused in saved programs, since their servers were never published; layers build replacements": sorted(
            unpublished
        ),
        "refused in programs that Fluid's own DistributeTranspiler has divided": sorted(elsewhere),
        "not in this release": sorted(fluids - registered),
        "only here, or only in Fluid's build for GPUs": sorted(
            name for name in registered - fluids - absent if "_grad" not in name
        ),
    }
