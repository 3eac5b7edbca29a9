"""Manifests: the files of one server in a snapshot (see snapshot.py), as checked plain data.

A manifest is checked when it is read, so that later uses cannot fail by it: numbers that fit their
place, only files of its server, and a checksum over all of it.
"""

import math
import re
import zlib
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, FailFast, Field, FiniteFloat, TypeAdapter, ValidationError, model_validator

from jfluid import errors
from jfluid.ps_server import specs, validation
from jfluid.ps_server.errors import DamagedError
from jfluid.ps_server.ledger import MOST_TRAINERS, WINDOW
from jfluid.ps_server.table_state import LAST_STEP

FORMAT = 2
ID = r"^[A-Za-z0-9_-]{1,64}$"
FILE = re.compile(
    r"([A-Za-z0-9_-]{1,64})\.(\d{5})-of-(\d{5})\.(json|\d{1,9}\.(?:rows|numbers|state))(\.partial)?", re.ASCII
)
LAST_NUMBER = 2**62
_MOST_SERVERS = 99_999
_LARGEST = 1 << 28  # bytes of a manifest
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Unsigned = Annotated[int, Field(ge=0, lt=2**64)]  # as numbers of calls are
Trainer = Annotated[int, Field(ge=0, lt=2**32)]


class File(validation.Spec):
    """File of a snapshot: name in the directory, size in bytes, and CRC-32 of the content."""

    name: Annotated[str, Field(max_length=128)]
    size: Natural
    crc32: Natural


class TablePart(validation.Spec):
    """A server's part of a table."""

    spec: specs.TableSpec
    step: Annotated[int, Field(ge=0, le=LAST_STEP)]
    learning_rate: FiniteFloat
    segments: Annotated[int, Field(ge=1, lt=2**48)]
    rows: Natural
    waiting: Natural
    rows_file: File
    waiting_file: File | None
    rates_file: File

    @model_validator(mode="after")
    def _waits_by_a_rule(self) -> Self:
        if (self.spec.entry is None) != (self.waiting_file is None):
            raise ValueError("a file of ids that wait is there where the table has an entry rule")
        return self


def _state(value: dict[str, Any]) -> dict[str, Any]:
    """Check the state of a block: counts, learning rate, and the description of the variables."""
    for name in ("version", "step"):
        if name in value and (type(value[name]) is not int or not 0 <= value[name] < 2**63):
            raise ValueError(f"{name}: expected a whole number, found {str(value[name])[:40]}")
    rate = value.get("learning_rate", 0.0)
    if type(rate) not in (int, float) or not math.isfinite(rate):
        raise ValueError(f"learning_rate: expected a finite number, found {str(rate)[:40]}")
    if unknown := value.keys() - {"version", "step", "learning_rate", "variables"}:
        raise ValueError(f"a block has no {', '.join(sorted(unknown))[:100]}")
    # variables that others change have no version of their own
    if not value.keys() & {"version", "variables"}:
        raise ValueError("it has no version")
    return value


class BlockPart(validation.Spec):
    """A dense block: `state` without its numbers, which are in the file."""

    name: Annotated[str, Field(pattern=validation.NAME)]
    spec: specs.BlockSpec | None
    state: Annotated[dict[str, Any], AfterValidator(_state)]
    file: File


class StatePart(validation.Spec):
    """State that only this trainer had (see TrainerState in ps.proto)."""

    trainer: Trainer
    file: File


class PiecePart(validation.Spec):
    """Place of a server's variable in a variable of the undivided program.

    It is `rows` rows from `first` on; without both it is a copy of all.
    """

    variable: Annotated[str, Field(pattern=validation.NAME)]
    shape: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**48)], ...], Field(max_length=32)]
    first: Natural | None = None
    rows: Natural | None = None

    @model_validator(mode="after")
    def _is_within(self) -> Self:
        if (self.first is None) != (self.rows is None):
            raise ValueError("first and rows are there together, or neither is")
        if self.first is not None and self.rows is not None:
            if not self.shape or self.first + self.rows > self.shape[0]:
                raise ValueError(f"{self.rows} rows from {self.first} on are none of a variable {self.shape}")
        return self


class _Calls(validation.Spec):
    """Applied calls of a trainer (see Ledger.state)."""

    incarnation: Unsigned
    through: Unsigned
    beyond: Annotated[list[Unsigned], FailFast(), Field(max_length=WINDOW)]


_CALLS = TypeAdapter(dict[Trainer, _Calls])


def _ledger(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) > MOST_TRAINERS:
        raise ValueError(f"expected at most {MOST_TRAINERS} trainers, found {len(value)}")
    try:
        return {str(trainer): calls.model_dump() for trainer, calls in _CALLS.validate_python(value).items()}
    except ValidationError as error:
        raise ValueError(
            f"expected incarnation, through and beyond of each trainer; {error.error_count()} are wrong"
        ) from None


# As Ledger.state gives it, and Ledger.restore takes it.
LedgerState = Annotated[dict[str, Any], AfterValidator(_ledger)]


class Manifest(validation.Spec):
    """Manifest of one server in a snapshot.

    `created_ns` is for people; `number` says which snapshot of a folder is the newer one; `crc32` is that of
    the manifest as it would be written with a `crc32` of 0.
    """

    format: int
    id: Annotated[str, Field(pattern=ID)]
    server: Natural
    servers: Annotated[int, Field(ge=1, le=_MOST_SERVERS)]
    created_ns: Natural
    tables: Annotated[list[TablePart], FailFast()]
    blocks: Annotated[list[BlockPart], FailFast()]
    ledger: LedgerState
    # the pulls whose shows are counted in the tables
    shown: LedgerState = Field(default_factory=dict)
    lost: Unsigned = 0  # acknowledged calls that the server did not have any more
    rounds: Natural
    # the trainers that had left, with their incarnations
    left: dict[Trainer, Unsigned] = Field(default_factory=dict)
    number: Annotated[int, Field(ge=0, le=LAST_NUMBER)] = 0
    states: Annotated[list[StatePart], FailFast()] = Field(default_factory=list)
    # by its name on the server what a variable, or a table of consecutive rows, is of the program's;
    # None where nothing tells it: of servers without a program, and of earlier releases
    pieces: dict[str, PiecePart] | None = None
    # whose it is (jfluid.security.snapshot_owner); empty where no job has the folder, and of earlier releases
    job: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""
    crc32: Natural = 0

    @property
    def stem(self) -> str:
        """Prefix of the names of the snapshot's files, the manifest included."""
        return f"{self.id}.{self.server:05d}-of-{self.servers:05d}"

    @property
    def files(self) -> list[File]:
        """All files that it lists."""
        tables = [f for t in self.tables for f in (t.rows_file, t.waiting_file, t.rates_file) if f is not None]
        return tables + [block.file for block in self.blocks] + [state.file for state in self.states]

    def text(self) -> bytes:
        """Return as it is written."""
        told = {"pieces": self.pieces is not None, "job": bool(self.job)}
        untold = {name for name, there in told.items() if not there}
        return self.model_dump_json(indent=1, exclude=untold).encode()

    def checked(self) -> "Manifest":
        """Return the manifest with its checksum."""
        return self.model_copy(update={"crc32": zlib.crc32(self.model_copy(update={"crc32": 0}).text())})


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in a file. Only the format number of an unknown format is read.

    Raises DamagedError where it cannot be read, is not as it was written, or names files that are
    not its own.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise errors.ServerError(f"{path}: expected at most {_LARGEST} bytes, found {path.stat().st_size}")
        manifest = validation.read(Manifest, path.read_bytes(), str(path))
    except (errors.ServerError, OSError) as error:
        raise DamagedError(f"{path}: damaged: {error}") from None
    if manifest.format != FORMAT:
        return manifest
    if manifest.checked() != manifest:
        raise DamagedError(f"{path}: damaged: the checksum does not match the content")
    for name in (path.name, *(file.name for file in manifest.files)):
        if not name.startswith(f"{manifest.stem}.") or not FILE.fullmatch(name) or name.endswith(".partial"):
            raise DamagedError(f"{path}: damaged: expected file names that begin with {manifest.stem}, found {name!r}")
    return manifest
