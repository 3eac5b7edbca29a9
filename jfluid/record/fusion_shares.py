"""The operators in an XLA instruction, with their shares of the instruction's cost, from the text of a module.

XLA fuses operators. The instructions in a fusion keep the names of their operators, and a fusion's time is given to
these by the cost of each: the elements that an instruction makes, times the elements that are summed up for each.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

OTHER = "(XLA)"  # an instruction that comes from no operator
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_NAME = re.compile(r'metadata=\{[^}]*op_name="([^"]+)"')
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
_SHAPE = re.compile(r"[a-z]\w*\[([\d,]*)\]")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_KERNEL = re.compile(r"dim_labels=\w+_(\w+)->")
_OPERAND = re.compile(r"%?([\w.\-]+)")
_FREE = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element")
Shares = Mapping[str, float]


@dataclass
class _Instruction:
    """An XLA instruction: its operator type, its cost, and the computation that it calls."""

    operator: str
    cost: float
    called: str | None


def operator_type(path: str) -> str:
    """Return the operator of an instruction's name: the first scope after `jit(...)`."""
    parts = [part for part in path.split("/") if part and not part.startswith("jit(")]
    return re.sub(r"^(?:\w+\()*|\)+$", "", parts[0]) if len(parts) > 1 else OTHER


def shares_of(module: str) -> dict[str, Shares]:
    """Return instruction -> operator type -> share, of the text of an HLO module; shares add up to 1."""
    computations = _computations(module)
    found: dict[str, Shares] = {}
    for instructions in computations.values():
        for name, instruction in instructions.items():
            inside = computations.get(instruction.called or "", {})
            costs: dict[str, float] = {}
            for inner in inside.values():
                if inner.operator != OTHER and inner.cost:
                    costs[inner.operator] = costs.get(inner.operator, 0.0) + inner.cost
            total = sum(costs.values())
            if total:
                found[name] = {operator: cost / total for operator, cost in costs.items()}
            else:
                found[name] = {instruction.operator: 1.0}
    return found


def instructions(module: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield (computation, name, shape, kind, operands and attributes) of each instruction of an HLO module's text."""
    computation = ""
    for line in module.splitlines():
        if match := _INSTRUCTION.match(line):
            name, shape, kind, rest = match.groups()
            yield computation, name, shape, kind, rest
        elif match := _COMPUTATION.match(line):
            computation = match[1]


def called_by(rest: str) -> str | None:
    """Return the computation that an instruction calls, from its operands and attributes."""
    match = _CALLED.search(rest)
    return match[1] if match else None


def operands(rest: str) -> list[str]:
    """Return the names of an instruction's operands."""
    return _OPERAND.findall(rest.partition(")")[0])


def _computations(module: str) -> dict[str, dict[str, _Instruction]]:
    """Return the instructions of each computation, by name."""
    found: dict[str, dict[str, _Instruction]] = {}
    shapes: dict[str, list[int]] = {}
    current: dict[str, _Instruction] = {}
    for computation, name, shape, kind, rest in instructions(module):
        if computation not in found:
            current, shapes = found.setdefault(computation, {}), {}
        shapes[name] = _dimensions(shape)
        path = _NAME.search(rest)
        current[name] = _Instruction(
            operator_type(path[1]) if path else OTHER,
            0.0 if kind in _FREE else _cost(kind, shapes[name], rest, shapes),
            called_by(rest) if kind in ("fusion", "call") else None,
        )
    return found


def _dimensions(shape: str) -> list[int]:
    """Return the sizes of an array; for a tuple, the sizes of the first array."""
    match = _SHAPE.search(shape)
    return [int(size) for size in match[1].split(",") if size] if match else []


def _cost(kind: str, made: list[int], rest: str, shapes: Mapping[str, list[int]]) -> float:
    """Return the number of elements that an instruction makes, times the elements summed up for each."""
    given = [shapes.get(name, []) for name in operands(rest)]
    summed = 1
    if kind == "dot" and (match := _CONTRACTED.search(rest)) and given:
        summed = math.prod(given[0][int(at)] for at in match[1].split(",") if at and int(at) < len(given[0]))
    elif kind == "convolution" and (match := _KERNEL.search(rest)) and len(given) > 1:
        kernel = given[1]
        summed = math.prod(size for label, size in zip(match[1], kernel) if label != "o")
    elif kind == "reduce" and given:
        return float(math.prod(given[0]))
    return float(math.prod(made) * max(summed, 1))
