"""Saved models: their operators and files."""

from collections.abc import Iterator

from jfluid import errors
from jfluid.doctor.findings import Finding, Severity
from jfluid.doctor.fluid_api import Api, load
from jfluid.doctor.rules import rules
from jfluid.files.saved_model import read_saved_model
from jfluid.ir.program import Program
from jfluid.ir.reach import refused
from jfluid.ir.schema import MOST_GRADIENTS


def examine(path: str) -> list[Finding]:
    """Return the findings of the model with the program file `path`."""
    try:
        model = read_saved_model(path)
    except errors.FileFormatError as error:
        happens = f"the program cannot be read: {str(error).removeprefix(f'{path}: ')}"
        do = "copy or save the model again"
        return [Finding(Severity.BLOCKER, path, 0, "broken-model", path, happens, do)]
    except OSError as error:
        happens = f"the program cannot be read: {error.strerror}"
        return [Finding(Severity.BLOCKER, path, 0, "broken-model", path, happens)]
    types = list(dict.fromkeys(op.type for block in model.program.blocks for op in block.ops))
    found = [finding for type_ in types for finding in _of_operator(path, type_, load())]
    found += _acting(path, model.program, load())
    # Only an inference model has its parameters beside it.
    for fault in _some(model.faults) if model.feeds or model.fetches else ():
        do = "copy or save the model again, all of its files"
        found.append(Finding(Severity.BLOCKER, path, 0, "broken-model", path, fault, do))
    return found


def _some(faults: list[str], most: int = 3) -> list[str]:
    more = len(faults) - most
    return faults if more <= 1 else [*faults[:most], f"and {more} more files like these"]


def _acting(path: str, program: Program, api: Api) -> Iterator[Finding]:
    """Yield a finding for each type of operator that acts outside of the computation."""
    first: dict[str, errors.ActingOperator] = {}
    for op in refused(program.blocks, api.reaches.get):
        first.setdefault(op.type, op)
    for type_, op in first.items():
        yield Finding(
            Severity.CHANGE,
            path,
            0,
            "acts",
            f"operator {type_}",
            f"{op}; a model may come from anybody, so that running it raises UntrustedOperatorError",
            f"if you trust who made it, load it with allow=({type_!r},); else save it without the operator",
        )


def _of_operator(path: str, type_: str, api: Api) -> Iterator[Finding]:
    if not runs(type_, api):
        if type_ in api.operators["in jobs with servers"]:
            happens = f"operator {type_} is a part of a job with parameter servers"
            do = "save the model with save_inference_model in such a job, or load what it was made from"
        else:
            happens, do = f"operator {type_} is not in this release", "save a model without it"
        yield Finding(Severity.BLOCKER, path, 0, "operator", f"operator {type_}", happens, do)
    for rule in rules():
        if type_ in rule.operators:
            yield Finding(rule.severity, path, 0, rule.code, type_, rule.happens, rule.do)


def runs(type_: str, api: Api) -> bool:
    """Return True if an operator runs here, gradient operators included."""
    for _ in range(MOST_GRADIENTS + 1):
        if type_ in api.operators["run"]:
            return True
        forward = type_.removesuffix("_grad")
        if forward == type_ or forward in api.operators["without gradient"]:
            return False
        type_ = forward
    return False
