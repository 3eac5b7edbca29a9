"""Turns pydantic's errors of a job into sentences with their place in the file."""

from collections.abc import Mapping
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from jfluid.errors import close_to
from jfluid.job.document import Key
from jfluid.job.errors import short
from jfluid.job.model import JOBS, Job


def modes_with(key: str) -> list[str]:
    """Return the modes that have a key."""
    return [mode for mode, kind in JOBS.items() if key in kind.model_fields]


# Pydantic's kinds of errors of numbers beyond a bound: our words, and the name of the bound.
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("from", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("up to", "le"),
}


def explain(error: ErrorDetails, places: Mapping[Key, str], kind: type[Job]) -> str:
    """Return a mistake as `place: key: problem`."""
    at = tuple(part for part in error["loc"] if part not in ("<mapping>", "<list>", "[key]"))
    place = next(places[at[:end]] for end in range(len(at), -1, -1) if at[:end] in places)
    key = ".".join(map(str, at))
    match error["type"]:
        case "extra_forbidden":
            other = modes_with(key)
            if other:
                return f"{place}: the key {key!r} belongs to jobs with mode: {' or '.join(other)}"
            section = section_of(kind, at[:-1])
            return f"{place}: unknown key {key!r}{close_to(str(at[-1]), section.model_fields) or _known_keys(section)}"
        case "missing":
            return f"{place}: the key {key!r} is missing"
        case "string_type":
            problem = "must be text; quote it"
        case "bool_type" | "bool_parsing":
            problem = "must be true or false"
        case "int_type" | "int_parsing" | "int_from_float":
            problem = "must be a whole number"
        case "secret":
            return f"{place}: {key}: {error['msg']}"
        case "dict_type" | "model_type":
            problem = "must be a mapping"
        case "string_pattern_mismatch":
            problem = f"must match {error['ctx']['pattern']}"
        case kind_of_bound if kind_of_bound in _BOUNDS:
            bound, limit = _BOUNDS[kind_of_bound]
            problem = f"expected a number {bound} {error['ctx'][limit]:g}"
        case _:
            problem = error["msg"].removeprefix("Value error, ")
    if not key:
        return f"{place}: {problem}"
    return f"{place}: {key}: {problem}, found {short(error['input'])}"


def section_of(kind: type[BaseModel], at: Key) -> type[BaseModel]:
    """Return the model of a job, or of the section of it at `at`."""
    for key in at:
        annotation = kind.model_fields[str(key)].annotation
        parts = (annotation, *get_args(annotation))
        kind = next(part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
    return kind


def _known_keys(kind: type[BaseModel]) -> str:
    return f"; {'a job' if issubclass(kind, Job) else 'it'} has the keys {', '.join(kind.model_fields)}"
