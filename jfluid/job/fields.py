"""The types of the keys of a job file."""

import ipaddress
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, WithJsonSchema

from jfluid import known_sizes
from jfluid.environment.endpoints import host_and_port
from jfluid.environment.field_types import Expected
from jfluid.errors import AttributeTypeError


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError("must be text, a number, true or false")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("must not contain a null character")
    return value


def _argument(value: Any) -> Any:
    return [_scalar(item) for item in value] if isinstance(value, list) else _scalar(value)


def _environment_text(value: Any) -> str:
    if isinstance(value, bool):
        raise ValueError("must be text or a number: an environment variable has no true or false; quote it")
    return str(_scalar(value))


def _form_of_args(value: Any) -> str | None:
    if isinstance(value, dict):
        return "<mapping>"
    return "<list>" if isinstance(value, list) else None


def _shape_buckets(value: Any) -> Any:
    try:
        sizes = known_sizes.checked(value)
    except AttributeTypeError as error:
        raise ValueError(str(error).removeprefix("shape_buckets: ")) from None
    return {name: {str(dim): own for dim, own in dims.items()} for name, dims in sizes.items()}


ArgumentName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")]
Arguments = Annotated[
    Annotated[dict[ArgumentName, Annotated[Any, AfterValidator(_argument)]], Tag("<mapping>")]
    | Annotated[list[Annotated[Any, AfterValidator(_scalar)]], Tag("<list>")],
    Discriminator(
        _form_of_args,
        custom_error_type="args_form",
        custom_error_message="must be a mapping (epochs: 10 is passed as --epochs 10) or a list",
    ),
    Expected("a mapping or a list"),
]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Environment = Annotated[
    dict[EnvironmentName, Annotated[Any, AfterValidator(_environment_text)]],
    Expected("a mapping of names to text or numbers"),
]


def _gpus(value: Any) -> Any:
    if isinstance(value, list):
        if (
            value
            and all(
                isinstance(gpu, str | int) and not isinstance(gpu, bool) and re.fullmatch(r"[\w/-]+", str(gpu))
                for gpu in value
            )
            and len(set(map(str, value))) == len(value)
        ):
            return [str(gpu) for gpu in value]
        raise ValueError("a list of GPUs holds different numbers (or the names that nvidia-smi -L shows)")
    if value == "all" or (type(value) is int and value > 0):
        return value
    raise ValueError("must be a positive number of GPUs, a list such as [0, 1], or all")


def _ranks(value: Any) -> Any:
    if value == "all" or (isinstance(value, list) and all(type(rank) is int and rank >= 0 for rank in value)):
        return value
    raise ValueError("must be a list of ranks such as [0, 3], or all")


def address(text: str) -> str:
    """Return a host name or address as it stands in `host:port`; IPv6 addresses get brackets.

    Raises ValueError.
    """
    try:
        return f"[{ipaddress.IPv6Address(text.strip('[]')).compressed}]"
    except ValueError:
        if re.fullmatch(r"[\w.-]+", text):
            return text
        raise ValueError("must be a host's name or address, without a port") from None


def _endpoint(text: str) -> str:
    host_and_port(text)
    return text


def _places(value: Any) -> Any:
    if type(value) is int and value > 0:
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return [_endpoint(item) for item in value]
    raise ValueError("must be a positive number, or a list of host:port")


def _one_of(*kinds: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(kinds)})


_NUMBER, _ALL = {"type": "integer", "minimum": 1}, {"const": "all"}


def _page(value: Any) -> Any:
    if type(value) is int and 0 <= value < 65536:
        return value
    if isinstance(value, str):
        return _endpoint(value)
    raise ValueError("must be a port (0: any free one), or host:port")


Gpus = Annotated[
    Any,
    AfterValidator(_gpus),
    Expected("a number from 1 on, a list such as `[0, 2]`, or `all`"),
    _one_of(_NUMBER, {"type": "array", "minItems": 1, "uniqueItems": True}, _ALL, {"type": "null"}),
]
Ranks = Annotated[
    Any,
    AfterValidator(_ranks),
    Expected("a list such as `[0, 3]`, or `all`"),
    _one_of({"type": "array", "items": {"type": "integer", "minimum": 0}}, _ALL),
]
Places = Annotated[
    Any,
    AfterValidator(_places),
    Expected("a number from 1 on, or a list of `host:port`"),
    _one_of(_NUMBER, {"type": "array", "minItems": 1, "items": {"type": "string"}}),
]
PageAddress = Annotated[
    Any,
    AfterValidator(_page),
    Expected("a port (0: any free one), or `host:port`"),
    _one_of({"type": "integer", "minimum": 0, "maximum": 65535}, {"type": "string"}, {"type": "null"}),
]
StartedPort = Annotated[int, Field(ge=1024, le=65535), Expected("an integer from 1024 to 65535")]
Host = Annotated[str, AfterValidator(address)]
Hosts = Annotated[list[Host], Field(min_length=1), Expected("a list of addresses")]
Endpoint = Annotated[str, AfterValidator(_endpoint), Expected("`host:port`")]
JobName = Annotated[str, Field(pattern=r"^[\w.-]+$"), Expected("letters, digits, `_`, `.` and `-`")]
FolderText = Annotated[str, Field(min_length=1), Expected("a path")]
PathText = Annotated[str, Expected("a path")]
Mode = Annotated[str, Expected("`local`, `collective`, or `parameter_server` (`ps` for short)")]
LogBytes = Annotated[int, Field(ge=4096), Expected("an integer from 4096 on")]
ShapeBuckets = Annotated[
    Any,
    AfterValidator(_shape_buckets),
    Expected('a mapping such as `{src_ids: {"1": [32, 64, 128]}}`'),
]
Grace = Annotated[float, Field(ge=0, allow_inf_nan=False), Expected("a number of seconds from 0 on")]
