"""Environment variables as fields of pydantic models, with errors that name the variable."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from jfluid import errors
from jfluid.environment import field_types
from jfluid.environment.endpoints import fault_of
from jfluid.environment.field_types import Expected, expected


def _integer(value: Any) -> Any:
    if isinstance(value, str) and not value.strip().isdecimal():
        raise ValueError("only digits")  # pydantic takes 1_0 and 1.0, too
    return value


def _switch(value: Any) -> Any:
    if value not in ("0", "1", False, True):
        raise ValueError("0 or 1")
    return bool(int(value))


def _parts(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _endpoints(value: Any) -> Any:
    found = _parts(value)
    if found and (wrong := fault_of(found)):
        raise ValueError(wrong)
    return found


Natural = Annotated[field_types.Natural, BeforeValidator(_integer)]
Count = Annotated[field_types.Count, BeforeValidator(_integer)]
Port = Annotated[field_types.Port, BeforeValidator(_integer)]
Switch = Annotated[bool, BeforeValidator(_switch), Expected("0 or 1")]
Names = Annotated[tuple[str, ...], BeforeValidator(_parts), Expected("names with commas between them")]
Gpus = Annotated[tuple[Natural, ...], BeforeValidator(_parts), Expected("numbers of GPUs such as 0,1")]
Endpoints = Annotated[
    tuple[str, ...],
    BeforeValidator(_endpoints),
    Expected("different endpoints with ports up to 65535, such as 10.0.0.1:6170,10.0.0.2:6170"),
]


def variable(
    name: str,
    description: str,
    default: Any = None,
    by_launcher: bool = False,
    secret: bool = False,
) -> Any:
    """Return a field that the variable `name` sets.

    Args:
        description: what the variable says, for the page of variables.
        default: the field's value when the variable is not set.
        by_launcher: whether jfluid-launch gives it to each process, so that a job file must not.
        secret: whether it is not shown with the others.
    """
    return Field(
        default,
        validation_alias=name,
        description=description,
        repr=not secret,
        json_schema_extra={"by_launcher": by_launcher},
    )


class Variables(BaseModel):
    """Variables that are read together. An empty one counts as not set."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    error: ClassVar[type[errors.JFluidError]] = errors.ProgramError
    empty_counts: ClassVar[bool] = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the values of the variables.

        Raises the error of this class, with a line for each variable that is wrong.
        """
        found = {
            name: environ[name] for name in cls.fields() if environ.get(name) or (cls.empty_counts and name in environ)
        }
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            wrong = dict.fromkeys(str(mistake["loc"][0]) for mistake in error.errors(include_url=False))
        raise cls.error(
            "\n".join(f"{name}: expected {expected(cls.fields()[name])}, found {found[name]!r}" for name in wrong)
        )

    def to_env(self) -> dict[str, str]:
        """Return the variables of the fields that were given a value."""
        return {
            self.name_of(field): to_text(getattr(self, field))
            for field in type(self).model_fields
            if field in self.model_fields_set
        }

    def required(self, field: str) -> Any:
        """Return a field's value. Raises the error of this class when its variable is not set."""
        if field not in self.model_fields_set:
            raise self.error(
                f"the environment variable {self.name_of(field)} is not set: start the script with "
                "jfluid-launch, or set the variables of the job"
            )
        return getattr(self, field)

    @classmethod
    def name_of(cls, field: str) -> str:
        """Return the variable of a field."""
        return str(cls.model_fields[field].validation_alias)

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """Return the fields by the names of their variables."""
        return {str(field.validation_alias): field for field in cls.model_fields.values()}


def to_text(value: Any) -> str:
    """Return a value as its variable has it."""
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
