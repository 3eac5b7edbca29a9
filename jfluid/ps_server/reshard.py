"""Resharding of snapshots: the pieces of each variable are joined, and divided for a new number of servers.

Manifests describe the pieces in a snapshot; the store describes the pieces here (`Store.pieces`).
Rows of tables travel from file to table.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ps_server import specs
from jfluid.ps_server.dense import SavedBlock
from jfluid.ps_server.errors import DamagedError
from jfluid.ps_server.manifest import Manifest, PiecePart, TablePart
from jfluid.ps_server.snapshot_files import read_clock, read_rows
from jfluid.ps_server.snapshot_reassembly import HeldPiece, SnapshotReassembly, in_order
from jfluid.ps_server.store import Store
from jfluid.ps_server.table import SparseTable

Array = np.ndarray[Any, Any]


def other_pieces(store: Store, manifest: Manifest) -> set[str]:
    """Return the variables with other pieces in a manifest than here; none if a side does not describe its pieces."""
    here, there = store.pieces(), manifest.pieces
    if here is None or there is None:
        return set()
    every = [*here.items(), *there.items()]
    return {piece.variable for name, piece in every if here.get(name) != there.get(name)}


def told(store: Store, manifests: Sequence[Manifest]) -> bool:
    """Return True if the snapshot and the store describe their pieces."""
    return store.pieces() is not None and all(m.pieces is not None for m in manifests)


def read(
    store: Store, folder: Path, manifests: Sequence[Manifest]
) -> tuple[list[tuple[SavedBlock, dict[str, Any]]], dict[str, SparseTable]]:
    """Return the store's blocks with their new states, and its tables of consecutive rows, with the rows.

    Raises DamagedError where rows are not in the snapshot once each, or where its servers
    contradict each other, ServerError for variables of a different program.
    """
    reassembly = SnapshotReassembly(folder, manifests)
    known = store.variables()
    for manifest in manifests:
        for piece in (manifest.pieces or {}).values():
            if piece.variable not in known:
                raise errors.ServerError(
                    f"{folder / manifest.stem}.json: variable {piece.variable}: this program has none of that name"
                )
    blocks: list[tuple[SavedBlock, dict[str, Any]]] = []
    for block in store.resharded_blocks():
        state = block.reshard(reassembly)
        block.check(state)
        blocks.append((block, state))
        reassembly.forget()
    return blocks, _tables(store, folder, manifests)


def _tables(store: Store, folder: Path, manifests: Sequence[Manifest]) -> dict[str, SparseTable]:
    pieces = store.pieces() or {}
    held: dict[str, list[tuple[HeldPiece, TablePart, Manifest]]] = {}
    for manifest in manifests:
        for part in manifest.tables:
            piece = (manifest.pieces or {}).get(part.spec.name)
            if piece is not None:
                held.setdefault(piece.variable, []).append((HeldPiece(piece, part.rows_file), part, manifest))
    return {
        name: _table(store, folder, name, pieces, held.get(pieces[name].variable, []))
        for name in store.tables
        if name in pieces
    }


def _table(
    store: Store,
    folder: Path,
    name: str,
    pieces: Mapping[str, PiecePart],
    found: Sequence[tuple[HeldPiece, TablePart, Manifest]],
) -> SparseTable:
    spec, want = store.tables[name].spec, pieces[name]
    expected = _named_whole(spec, pieces)
    for held, part, manifest in found:
        there = _named_whole(part.spec.bounded_as(spec), manifest.pieces or {})
        if (held.piece.shape, there.model_copy(update={"shards": spec.shards})) != (want.shape, expected):
            raise errors.ServerError(
                f"{folder / held.file.name}: table {want.variable}: the snapshot holds a different table: "
                f"expected {list(want.shape)} {expected!r}, found {list(held.piece.shape)} {there!r}"
            )
    in_order(folder, want, [held for held, _, _ in found])
    table = store.new_table(spec)
    read_clock(folder, max((part for _, part, _ in found), key=lambda part: part.step), table)
    first, rows = want.first or 0, HeldPiece(want, found[0][0].file).rows
    for held, part, _ in found:
        if held.first >= first + rows or first >= held.first + held.rows:
            continue

        def chosen(records: Array, held: HeldPiece = held) -> Array:
            ids = records["head"]["id"]
            if len(ids) and (ids.min() < 0 or ids.max() >= held.rows):
                raise DamagedError(
                    f"{folder / held.file.name}: table {want.variable}: expected rows 0 ... "
                    f"{held.rows - 1}, found {ids.min()} ... {ids.max()}"
                )
            ids = ids + (held.first - first)
            mine = (ids >= 0) & (ids < rows)
            records = records[mine]  # a copy
            records["head"]["id"] = ids[mine]
            return records

        read_rows(folder, part.rows_file, part.rows, table, False, chosen)
    if len(table) != rows:
        raise DamagedError(
            f"{folder / found[0][0].file.name}: table {want.variable}: expected the rows {first} ... "
            f"{first + rows - 1}, found {len(table)} of them"
        )
    return table


def _named_whole(spec: specs.TableSpec, pieces: Mapping[str, PiecePart]) -> specs.TableSpec:
    """Return a spec with the names of the variables in the undivided program."""

    def whole(name: str) -> str:
        return pieces[name].variable if name in pieces else name

    optimizer = spec.optimizer
    if isinstance(optimizer, specs.Program):
        slots = tuple(s.model_copy(update={"name": whole(s.name)}) for s in optimizer.slots)
        optimizer = optimizer.model_copy(update={"slots": slots})
    return spec.model_copy(update={"name": whole(spec.name), "optimizer": optimizer})
