"""Field types that several pydantic models share, and descriptions of the values of a field."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Expected:
    """Metadata of a type: description of the type's values in errors and on reference pages."""

    words: str


Natural = Annotated[int, Field(ge=0), Expected("an integer from 0 on")]
Count = Annotated[int, Field(ge=1), Expected("an integer from 1 on")]
Port = Annotated[int, Field(ge=0, le=65535), Expected("an integer from 0 to 65535")]
Seconds = Annotated[float, Field(gt=0), Expected("a number of seconds above 0")]
FiniteSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Expected("a number of seconds above 0")]

_WORDS = {str: "text", Path: "a path", bool: "true or false", int: "an integer", float: "a number"}


def expected(field: FieldInfo) -> str:
    """Return the description of a field's values: the type's words, the values of a Literal, or a plain type's name."""
    for part in [*field.metadata, *_parts(field.annotation)]:
        if isinstance(part, Expected):
            return part.words
        if get_origin(part) is Literal:
            return " or ".join(map(str, get_args(part)))
    kinds = (part for part in _parts(field.annotation) if isinstance(part, type))
    return next((_WORDS[kind] for kind in kinds if kind in _WORDS), "a mapping")


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield a type and its parts, metadata included."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from _parts(part)
