"""Checked plain data of calls, snapshots and files."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import from_json

from jfluid import errors

_MOST_FIELDS, _MOST_MISTAKES = 64, 16
# Bytes of memory: what any JSON may take, a list or mapping, a value in one.
_LEAST, _BRACKET, _VALUE = 1 << 18, 90, 60
NAME = r"^[^\x00-\x1f\x7f]{1,512}$"


class Spec(BaseModel):
    """Checked and immutable; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _not_too_many(cls, value: Any) -> Any:
        """Report one mistake for very many unknown fields, rather than one for each."""
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            raise ValueError(f"expected some of {', '.join(cls.model_fields)}; found {len(value)} fields")
        return value


Kind = TypeVar("Kind", bound=Spec)


def read(kind: type[Kind], value: Any, what: str) -> Kind:
    """`value` (a mapping, or JSON as text or bytes) as a `kind`.

    Raises ServerError that names `what` and the fields that are wrong, also for JSON that would
    take more than ten times its size in memory.
    """
    if isinstance(value, (str, bytes)):
        value = _from_json(value.encode(errors="replace") if isinstance(value, str) else value, what)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if error.error_count() > _MOST_MISTAKES:
            raise errors.ServerError(f"{what}: {error.error_count()} mistakes: no {kind.__name__}") from None
        lines = [
            f"{what}: {'.'.join(map(str, e['loc']))[:200] or 'the whole'}: {e['msg'][:300]}"
            for e in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise errors.ServerError("\n".join(lines)) from None


def _from_json(data: bytes, what: str) -> Any:
    """Parse JSON into plain values.

    The characters that each value needs bound the memory before the values are made.
    """
    most = max(10 * len(data), _LEAST)
    if _BRACKET * (data.count(b"{") + data.count(b"[")) + _VALUE * data.count(b",") > most:
        raise errors.ServerError(f"{what}: these {len(data)} bytes of JSON would take more than {most} bytes of memory")
    try:
        return from_json(data, cache_strings="keys")
    except ValueError as error:
        raise errors.ServerError(f"{what}: the whole: no JSON: {error}") from None
