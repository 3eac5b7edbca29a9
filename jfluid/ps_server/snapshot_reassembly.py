"""Variables of a program, reassembled from the pieces in the snapshots of all servers.

The manifest of a server describes its pieces of each variable. Only the rows that are asked for are joined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from jfluid import errors
from jfluid.ps_server.dense import SavedBlock
from jfluid.ps_server.errors import DamagedError
from jfluid.ps_server.manifest import BlockPart, File, Manifest, PiecePart
from jfluid.ps_server.snapshot_files import read_file

Array = np.ndarray[Any, Any]
_DESCRIBED = TypeAdapter(list[tuple[str, str, tuple[Annotated[int, Field(ge=0, lt=2**48)], ...]]])


class ReshardedBlock(SavedBlock, Protocol):
    """A block of variables of a program, which other servers had in other pieces."""

    def reshard(self, reassembly: "SnapshotReassembly") -> dict[str, Any]:
        """Return the block's state as a snapshot by the current number of servers would hold it."""
        ...


@dataclass(frozen=True)
class HeldPiece:
    """Piece of a variable that one server had: an array in a file, or a table."""

    piece: PiecePart
    file: File
    dtype: str = ""
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the piece."""
        return self.piece.shape if self.piece.first is None else (self.rows, *self.piece.shape[1:])

    @property
    def first(self) -> int:
        return self.piece.first or 0

    @property
    def rows(self) -> int:
        return self.piece.rows if self.piece.rows is not None else (*self.piece.shape, 1)[0]


class SnapshotReassembly:
    """The variables of a snapshot, whichever pieces its servers held.

    Attributes:
        version: the largest of all blocks.

    Raises DamagedError for manifests that contradict each other or themselves.
    """

    def __init__(self, folder: Path, manifests: Sequence[Manifest]):
        self._folder = folder
        self._held: dict[str, list[HeldPiece]] = {}
        self._files: dict[str, bytes] = {}
        self.version = 0
        for manifest in manifests:
            if manifest.rounds != manifests[0].rounds:
                raise DamagedError(
                    f"{folder / manifest.stem}.json: expected {manifests[0].rounds} rounds, as server "
                    f"{manifests[0].server} of the same snapshot has, found {manifest.rounds}"
                )
            for part in manifest.blocks:
                self.version = max(self.version, part.state.get("version", 0))
                if part.spec is None and "variables" in part.state:
                    self._add(part, manifest.pieces or {})

    def _add(self, part: BlockPart, pieces: Mapping[str, PiecePart]) -> None:
        path = self._folder / part.file.name
        try:
            described = _DESCRIBED.validate_python(part.state["variables"])
            sizes = [np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object)) for _, dtype, shape in described]
        except (ValidationError, TypeError):
            raise DamagedError(
                f"{path}: block {part.name}: expected names, types and shapes of variables, found "
                f"{str(part.state['variables'])[:200]}"
            ) from None
        if -(-sum(sizes) // 4) * 4 != part.file.size:
            raise DamagedError(
                f"{path}: block {part.name}: expected {sum(sizes)} bytes of variables, found {part.file.size}"
            )
        offset = 0
        for (name, dtype, shape), size in zip(described, sizes, strict=True):
            if name in pieces:  # what trainers got last is no variable of the program
                held = HeldPiece(pieces[name], part.file, dtype, offset)
                if held.shape != shape:
                    raise DamagedError(
                        f"{path}: variable {held.piece.variable}: expected {dtype} "
                        f"{list(held.shape)} as {name}, found {list(shape)}"
                    )
                self._held.setdefault(held.piece.variable, []).append(held)
            offset += size

    def read(self, wanted: PiecePart, dtype: str) -> Array:
        """Return the rows of a variable that a piece stands for, or all of it.

        Raises DamagedError where they are not in the snapshot once each, ServerError for a variable
        of a different shape or type.
        """
        found = self._held.get(wanted.variable, [])
        for held in found:
            if (held.piece.shape, held.dtype) != (wanted.shape, dtype):
                raise errors.ServerError(
                    f"{self._folder / held.file.name}: variable {wanted.variable}: expected {dtype} "
                    f"{list(wanted.shape)}, found {held.dtype} {list(held.piece.shape)}"
                )
        found = in_order(self._folder, wanted, found)
        if wanted.first is None and found[0].piece.first is None:
            return self._value(found[0])
        want = HeldPiece(wanted, found[0].file)
        parts = [
            self._value(held)[max(want.first - held.first, 0) : want.first + want.rows - held.first]
            for held in found
            if held.first < want.first + want.rows and want.first < held.first + held.rows
        ]
        return np.concatenate(parts)

    def forget(self) -> None:
        """Release the files of a parameter before the next one is read."""
        self._files.clear()

    def _value(self, held: HeldPiece) -> Array:
        name = held.file.name
        if name not in self._files:
            self._files[name] = read_file(self._folder, held.file)
        count = int(np.prod(held.shape))
        data = self._files[name][held.offset : held.offset + count * np.dtype(held.dtype).itemsize]
        return np.frombuffer(data, held.dtype).reshape(held.shape)


def in_order(folder: Path, wanted: PiecePart, found: Sequence[HeldPiece]) -> list[HeldPiece]:
    """Return the pieces of a variable in the order of rows, or the first of several copies.

    Raises DamagedError where rows are missing, or there twice.
    """
    if not found:
        raise DamagedError(f"{folder}: variable {wanted.variable}: no server of the snapshot has it")
    if all(held.piece.first is None for held in found):
        return list(found[:1])
    found, end = sorted(found, key=lambda held: held.first), 0
    for held in found:
        if held.piece.first is None or held.first != end:
            raise DamagedError(
                f"{folder / held.file.name}: variable {wanted.variable}: expected rows from {end} on, "
                + ("found a copy of all rows" if held.piece.first is None else f"found {held.first}")
            )
        end += held.rows
    if end != wanted.shape[0]:
        raise DamagedError(
            f"{folder / found[-1].file.name}: variable {wanted.variable}: expected {wanted.shape[0]} rows, found {end}"
        )
    return found
