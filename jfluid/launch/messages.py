"""Messages between launchers: JSON objects, by `kind`; and reports of a script to its launcher."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError

from jfluid import errors
from jfluid.environment.field_types import Natural
from jfluid.job import Endpoint
from jfluid.launch.failure import Failure

# One mistake is enough: a list of them takes hundreds of bytes for each.
Endpoints = Annotated[list[Endpoint], FailFast()]
_MOST_MISTAKES = 16


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Join(Message):
    """Request of a follower to join: the job, the follower's number, the number of hosts, and its endpoints."""

    kind: Literal["join"] = "join"
    job: str
    node: Natural
    count: Natural
    endpoints: Endpoints


class Refused(Message):
    """The follower cannot join, with the reason."""

    kind: Literal["refused"] = "refused"
    problem: str


class Start(Message):
    """All hosts have joined: the endpoints of each host's processes, and the number of the run, from 0.

    `record` is the token of the head's record, empty without one; `time` is the head's clock.
    """

    kind: Literal["start"] = "start"
    endpoints: Annotated[list[Endpoints], FailFast()]
    attempt: Natural
    record: str
    time: Annotated[float, Field(allow_inf_nan=False)]


class Recorded(Message):
    """A piece of a file of a follower: whole lines of a record, or bytes of a part of a profile (base64)."""

    kind: Literal["recorded"] = "recorded"
    name: Annotated[str, Field(max_length=100)]
    data: Annotated[str, Field(max_length=1 << 19)]
    last: bool


class Profile(Message):
    """The head asks the processes of a follower for a profile: the fields of `record.profiles.ProfileRequest`."""

    kind: Literal["profile"] = "profile"
    id: Annotated[str, Field(pattern=r"^\w{1,32}$")]
    first: int | None
    steps: Natural
    begin: Annotated[float, Field(allow_inf_nan=False)] | None
    end: Annotated[float, Field(allow_inf_nan=False)] | None


class Failed(Message):
    """The gang of a follower failed, `age` seconds ago."""

    kind: Literal["failed"] = "failed"
    failure: Failure
    age: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Finished(Message):
    """The gang of a follower has finished."""

    kind: Literal["finished"] = "finished"


class End(Message):
    """The head's verdict."""

    kind: Literal["end"] = "end"
    failure: Failure | None
    again: bool


_ANY: TypeAdapter[Message] = TypeAdapter(
    Annotated[Join | Refused | Start | Recorded | Profile | Failed | Finished | End, Field(discriminator="kind")]
)


def encode(message: Message) -> bytes:
    # A path may contain bytes that are no text.
    return json.dumps(message.model_dump(), ensure_ascii=False).encode("utf-8", errors="replace")


def decode(data: bytes) -> Message:
    """Return the message in `data`. Raises MessageError."""
    try:
        return _ANY.validate_json(data)
    except ValidationError as error:
        if error.error_count() > _MOST_MISTAKES:
            raise errors.MessageError(
                f"expected a message of a launcher; {error.error_count()} parts are wrong"
            ) from None
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise errors.MessageError(
            f"expected a message of a launcher; {at or 'the whole'}: {first['msg'][:200]}"
        ) from None


class ProgressReport(BaseModel):
    """A report of a script's progress (jfluid.progress)."""

    model_config = ConfigDict(strict=True)

    description: str
    step: int
    total: int | None
    rate: float
    metrics: dict[str, float]
    done: bool
    unit: str = "examples"


class Ending(BaseModel):
    """A report that a script is about to end with a code (jfluid.launcher_pipe)."""

    model_config = ConfigDict(strict=True)

    ending: int
    time: float
    restarts_all: bool


_REPORT: TypeAdapter[ProgressReport | Ending] = TypeAdapter(ProgressReport | Ending)


def decode_report(data: bytes) -> dict[str, Any]:
    """Return a report. Raises MessageError, since forks of a script can write any bytes into its pipe."""
    try:
        return _REPORT.validate_json(data).model_dump()
    except ValidationError:
        raise errors.MessageError(f"expected a report of a script, found {data[:80]!r}") from None
