"""Snapshots: files of the state of every server at one consistent moment, complete or absent.

A snapshot is a directory. Each server writes files of rows and numbers, and last a manifest with the
sizes and checksums of the files; the snapshot is complete when the manifests of all servers are
there. Names carry the snapshot's id, so that a new one never overwrites the last before it is
complete:

    ID.00000-of-00002.json      manifest of server 0 of 2
    ID.00000-of-00002.0.rows    a file of the server

A file of rows holds records: id int64, times shown uint32, step of the last touch uint32, values
and slots float32; little endian. A file of numbers holds arrays end to end, as the manifest lists
them. A file of a trainer's state holds a serialized TrainerState of ps.proto.

Which of two snapshots is the newer one is told by a number that each has, one more than its
predecessor's in the folder: clocks of hosts differ, and are set.
"""

import contextlib
import logging
import os
import re
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jfluid import errors
from jfluid.ps_server import reshard, specs
from jfluid.ps_server.dense import DenseBlock, SavedBlock
from jfluid.ps_server.errors import DamagedError
from jfluid.ps_server.kernels import owners_of
from jfluid.ps_server.manifest import (
    FILE,
    FORMAT,
    ID,
    LAST_NUMBER,
    BlockPart,
    File,
    Manifest,
    StatePart,
    TablePart,
    read_manifest,
)
from jfluid.ps_server.snapshot_files import check, read_clock, read_file, read_rows, record
from jfluid.ps_server.store import Store, StoreView
from jfluid.ps_server.table import SparseTable
from jfluid.ps_server.table_view import TableView
from jfluid.ps_server.update_rule import rule_of
from jfluid.security import private_files

Array = np.ndarray[Any, Any]
logger = logging.getLogger(__name__)


# ---- writing -------------------------------------------------------------------------------------


class _Writer:
    """Files of one server's part. A file is under its name only when all of it is on the disk."""

    def __init__(self, folder: Path, stem: str):
        self.folder, self.stem, self.names = folder, stem, list[str]()

    @contextlib.contextmanager
    def file(self, suffix: str) -> "Iterator[_Output]":
        name = f"{self.stem}.{suffix}"
        self.names.append(name)
        with open(self.folder / f"{name}.partial", "wb", opener=private_files.create) as raw:
            output = _Output(name, raw)
            yield output
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(self.folder / f"{name}.partial", self.folder / name)

    def next(self, kind: str) -> str:
        return f"{len(self.names)}.{kind}"

    def discard(self) -> None:
        for name in self.names:
            for path in (self.folder / name, self.folder / f"{name}.partial"):
                path.unlink(missing_ok=True)


class _Output:
    def __init__(self, name: str, raw: BinaryIO):
        self.name, self.size, self.crc32, self._raw = name, 0, 0, raw

    def write(self, array: Array) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size += len(data)
        self._raw.write(data)

    @property
    def done(self) -> File:
        return File(name=self.name, size=self.size, crc32=self.crc32)


def write(
    view: StoreView,
    folder: str | Path,
    snapshot: str,
    server: int,
    servers: int,
    left: Mapping[int, int] | None = None,
    keep: int | None = 1,
) -> Manifest:
    """Write the part of server number `server` of `servers` of the snapshot with this id.

    When this makes the snapshot complete, files of earlier ones in the folder are removed, but for
    the newest `keep` - 1 complete ones; with None all stay. Raises OSError when the disk does not
    take it: then nothing of this part stays behind, and earlier snapshots do not change.
    """
    if not re.fullmatch(ID, snapshot):
        raise errors.ServerError(
            f"snapshot: expected an id of letters, digits, - and _ (64 at most), found {snapshot!r}"
        )
    folder = Path(folder)
    private_files.make_folder(folder)
    number = 1 + max(
        (
            _number(parts[server])
            for (name, _), parts in _manifests(folder).items()
            if name != snapshot and server in parts
        ),
        default=0,
    )
    writer = _Writer(folder, f"{snapshot}.{server:05d}-of-{servers:05d}")
    try:
        tables = [_write_table(writer, table) for table in view.tables.values()]
        blocks = [_write_block(writer, name, state, view.specs.get(name)) for name, state in view.blocks.items()]
        states = [_write_state(writer, trainer, state) for trainer, state in sorted(view.trainer_states.items())]
        manifest = Manifest(
            format=FORMAT,
            id=snapshot,
            server=server,
            servers=servers,
            created_ns=time.time_ns(),
            tables=tables,
            blocks=blocks,
            ledger=view.ledger,
            shown=view.shown,
            lost=view.lost,
            rounds=view.rounds,
            left=dict(left or {}),
            number=min(number, LAST_NUMBER),
            states=states,
            pieces=view.pieces,
            job=view.job,
        ).checked()
        with writer.file("json") as output:
            output.write(np.frombuffer(manifest.text(), np.uint8))
        _sync(folder)
    except BaseException:
        writer.discard()
        raise
    found = _manifests(folder)
    if keep is not None and len(found.get((snapshot, servers), {})) == servers:
        older = [key for key, parts in found.items() if len(parts) == key[1] and key != (snapshot, servers)]
        older.sort(key=lambda key: max(map(_number, found[key].values())), reverse=True)
        newest = max(map(_number, found[snapshot, servers].values()))
        retain(folder, [snapshot, *(name for name, _ in older[: keep - 1])], server, newest)
    return manifest


def _write_table(writer: _Writer, view: TableView) -> TablePart:
    rows_file, rows = _write_rows(writer, view, waiting=False)
    waiting_file, waiting = _write_rows(writer, view, waiting=True) if view.spec.entry else (None, 0)
    with writer.file(writer.next("numbers")) as output:
        output.write(view.steps.astype("<i8"))
        output.write(view.rates.astype("<f4"))
    return TablePart(
        spec=view.spec,
        step=view.step,
        learning_rate=view.learning_rate,
        segments=len(view.steps),
        rows=rows,
        waiting=waiting,
        rows_file=rows_file,
        waiting_file=waiting_file,
        rates_file=output.done,
    )


def _write_rows(writer: _Writer, view: TableView, waiting: bool) -> tuple[File, int]:
    count = 0
    with writer.file(writer.next("rows")) as output:
        for heads, bodies in view.blocks(waiting):
            records = np.empty(len(heads), record(bodies.shape[1]))
            records["head"], records["body"] = heads, bodies
            output.write(records)
            count += len(heads)
    return output.done, count


def _write_block(writer: _Writer, name: str, state: dict[str, Any], spec: specs.BlockSpec | None) -> BlockPart:
    state = dict(state)
    with writer.file(writer.next("numbers")) as output:
        output.write(state.pop("numbers").astype("<f4"))
    return BlockPart(name=name, spec=spec, state=state, file=output.done)


def _write_state(writer: _Writer, trainer: int, state: bytes) -> StatePart:
    with writer.file(writer.next("state")) as output:
        output.write(np.frombuffer(state, np.uint8))
    return StatePart(trainer=trainer, file=output.done)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def retain(folder: str | Path, snapshots: Sequence[str], server: int, before: int | None = None) -> None:
    """Remove the files of other snapshots from a folder, and leftovers of a server that was killed during a write.

    Args:
        before: remove only snapshots with a lower number; None for all.

    A server writes one snapshot after the other, so a snapshot without a manifest of this server
    will never have one.
    """
    folder = Path(folder)
    numbers = {name: max(map(_number, parts.values())) for (name, _), parts in _manifests(folder).items()}
    for path in folder.iterdir():
        name = FILE.fullmatch(path.name)
        if not name or name[1] in snapshots:
            continue
        if int(name[2]) == server if name[1] not in numbers else before is None or numbers[name[1]] < before:
            path.unlink(missing_ok=True)


def _number(manifest: Path) -> int:
    """Return the number in a manifest; 0 if it cannot be read."""
    try:
        return read_manifest(manifest).number
    except DamagedError:
        return 0


# ---- reading -------------------------------------------------------------------------------------


def _manifests(folder: Path) -> dict[tuple[str, int], dict[int, Path]]:
    """(id, servers) -> server -> manifest, of all snapshots in the folder, complete or not."""
    found: dict[tuple[str, int], dict[int, Path]] = {}
    for path in folder.iterdir():
        name = FILE.fullmatch(path.name)
        if name and name[4] == "json" and not name[5]:
            found.setdefault((name[1], int(name[3])), {})[int(name[2])] = path
    return found


def complete(folder: str | Path) -> bool:
    """Return whether a folder holds a complete snapshot."""
    return any(len(parts) == servers for (_, servers), parts in _manifests(Path(folder)).items())


def latest(folder: str | Path, snapshot: str = "") -> list[Manifest]:
    """Return the manifests of the newest complete snapshot in a folder, or of the one with the given id, by server.

    Raises ServerError when there is none, DamagedError when a manifest cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise errors.ServerError(f"{folder}: there is no such directory to restore from")
    found = _manifests(folder)
    complete = [
        [parts[i] for i in range(servers)]
        for (name, servers), parts in found.items()
        if len(parts) == servers and max(parts) == servers - 1 and snapshot in ("", name)
    ]
    if not complete:
        what = f"snapshot {snapshot}" if snapshot else "snapshot"
        parts = [f"{name}: {len(parts)} of {servers} parts" for (name, servers), parts in sorted(found.items())]
        raise errors.ServerError(f"{folder}: there is no complete {what}; found {', '.join(parts) or 'none'}")
    groups = [list(map(read_manifest, paths)) for paths in complete]
    manifests = max(groups, key=lambda group: max((m.number, m.created_ns) for m in group))
    for manifest in manifests:
        if manifest.format != FORMAT:
            raise errors.ServerError(
                f"{folder}: snapshot {manifest.id} has format {manifest.format}; this release reads {FORMAT}"
            )
    return manifests


def ids(folder: str | Path) -> set[str]:
    """Return the ids of the snapshots that a folder has manifests of, sound or not."""
    return {name for name, _ in _manifests(Path(folder))} if os.path.isdir(folder) else set()


def job_of(folder: str | Path) -> str:
    """Return the job's id in the newest snapshot of one server in a folder; empty without a snapshot or id."""
    found = list[Manifest]()
    for (_, servers), parts in _manifests(Path(folder)).items() if os.path.isdir(folder) else ():
        with contextlib.suppress(DamagedError):
            found += [read_manifest(parts[0])] if servers == 1 and 0 in parts else []
    return max(found, key=lambda m: (m.number, m.created_ns)).job if found else ""


def sound(folder: str | Path, job: str = "") -> list[Manifest]:
    """Return the manifests of a server's complete and undamaged snapshots of this job, the newest first.

    All files are read for that. Snapshots with a missing file, a wrong checksum or a different job are named in
    the log. A manifest without the id of a job counts as one of this job.
    """
    folder, found = Path(folder), list[Manifest]()
    for (name, servers), parts in _manifests(folder).items() if folder.is_dir() else ():
        if servers != 1 or 0 not in parts:
            continue
        try:
            manifest = read_manifest(parts[0])
            for file in manifest.files:
                check(folder, file)
        except DamagedError as error:
            logger.warning("snapshot %s is passed over: %s", name, error)
            continue
        if job and manifest.job not in ("", job):
            logger.warning(
                "snapshot %s in %s is passed over: it is of job %s, and the folder is job %s's",
                name,
                folder,
                manifest.job,
                job,
            )
            continue
        found.append(manifest)
    return sorted(found, key=lambda m: (m.number, m.created_ns), reverse=True)


def restore(
    store: Store, folder: str | Path, server: int, servers: int, snapshot: str = "", tables: Sequence[str] = ()
) -> Manifest:
    """Put server `server` of `servers` into the state of a snapshot, which any number of servers wrote.

    With `tables` only these tables are restored, and everything else stays, the ledger of the
    trainers' calls included.

    With another number of servers the rows go to the servers that they now belong to, the pieces of
    a program's variables are joined and cut anew, and the trainers must start anew (calls of their
    earlier incarnations are refused). Tables and blocks of the store that the snapshot does not
    have stay, but a program's variables must all be there.

    Returns the manifest of a part. Raises DamagedError when a file is missing or damaged, and
    ServerError when a file does not fit the store: then the store does not change.
    """
    folder, manifests = Path(folder), latest(folder, snapshot)
    same = len(manifests) == servers and (bool(tables) or _has_the_same_pieces(folder, manifests[server], store))
    own = [manifests[server]] if same else manifests
    owner = None if same else (server, servers)
    if tables:
        _restore_tables(store, folder, own, owner, tables)
        return own[0]
    if same or not any(part.spec is None for manifest in own for part in manifest.blocks):
        found = dict(_read_tables(folder, own, store, owner))
        states = list[tuple[SavedBlock, dict[str, Any]]]()
    else:
        states, found = _read_cut(folder, own, store, server, servers)
    blocks = dict[str, DenseBlock]()
    for name, (spec, state) in _read_blocks(folder, own, None if same else set(store.blocks)).items():
        if spec is not None:
            blocks[name] = _block(spec, state, store)
        elif same:
            block = store.saved_block(name)
            block.check(state)
            states.append((block, state))
    trainer_states = {
        part.trainer: read_file(folder, part.file)
        for manifest in own
        for part in manifest.states
        if same or not server  # trainers give theirs to server 0, and ask it
    }
    with store.exclusive():
        for block, state in states:
            block.restore(state)
        for name, table in found.items():
            store.put_table(name, table)
        store.blocks.update(blocks)
        store.rounds, store.trainer_states = own[0].rounds, trainer_states
        if same:
            store.ledger.restore(own[0].ledger)
            store.ledger.lost = own[0].lost
            store.shown.restore(own[0].shown)
        else:
            store.ledger.restore_ended([m.ledger for m in manifests])
            store.shown.restore_ended([m.shown for m in manifests])
    return own[0]


def _has_the_same_pieces(folder: Path, manifest: Manifest, store: Store) -> bool:
    """Return True if this server had the same pieces of a program's variables.

    Raises ServerError if it had not, and no part of the snapshot can have the missing values.
    """
    others = reshard.other_pieces(store, manifest)
    if others and manifest.servers == 1:
        raise errors.ServerError(
            f"{folder}: snapshot {manifest.id}: the server that wrote it had other pieces of "
            f"{', '.join(sorted(others))[:200]}. A snapshot that a server writes alone is for the same "
            "number of servers and the same division; snapshots of Client.save and save_persistables fit any number"
        )
    return not others


def _read_cut(
    folder: Path, manifests: list[Manifest], store: Store, server: int, servers: int
) -> tuple[list[tuple[SavedBlock, dict[str, Any]]], dict[str, SparseTable]]:
    """Return blocks with states, and tables, of a program's variables that were divided in a different way."""
    if not reshard.told(store, manifests):
        raise errors.ServerError(
            f"{folder}: snapshot {manifests[0].id} is of {len(manifests)} servers of a program, and "
            f"there are {servers} servers; it does not say how the variables were divided. Any number of "
            "servers loads a folder of save_persistables: fleet.init_server(folder)"
        )
    states, found = reshard.read(store, folder, manifests)
    hashed = set(store.tables) - set(found)
    found |= dict(_read_tables(folder, manifests, store, (server, servers), hashed))
    if missing := hashed - set(found):
        raise _no_table(folder, manifests[0], missing)
    return states, found


def _restore_tables(
    store: Store, folder: Path, manifests: list[Manifest], owner: tuple[int, int] | None, tables: Sequence[str]
) -> None:
    found = dict(_read_tables(folder, manifests, store, owner, tables))
    if missing := set(tables) - set(found):
        raise _no_table(folder, manifests[0], missing)
    with store.exclusive():
        for name, table in found.items():
            store.put_table(name, table)


def _no_table(folder: Path, manifest: Manifest, missing: set[str]) -> errors.ServerError:
    return errors.ServerError(f"{folder}: snapshot {manifest.id} does not hold table {', '.join(sorted(missing))}")


def _read_tables(
    folder: Path,
    manifests: list[Manifest],
    store: Store,
    owner: tuple[int, int] | None,
    only: Collection[str] | None = None,
) -> Iterator[tuple[str, SparseTable]]:
    parts: dict[str, list[TablePart]] = {}
    for part in (part for manifest in manifests for part in manifest.tables):
        if only is None or part.spec.name in only:
            parts.setdefault(part.spec.name, []).append(part)

    def owned(records: Array) -> Array:
        assert owner is not None  # else all are
        ids = np.ascontiguousarray(records["head"]["id"])
        mine: Array = records[owners_of(ids, owner[1]) == owner[0]]
        return mine

    chosen = owned if owner is not None else None
    here = store.pieces() or {}
    for name, group in parts.items():
        pieces = {here.get(name), *((m.pieces or here).get(name) for m in manifests)}
        if pieces != {None} and (owner is not None or len(pieces) > 1):
            raise errors.ServerError(
                f"{folder}: table {name}: the {manifests[0].servers} servers of snapshot "
                f"{manifests[0].id} divided the rows in a different way: restore the whole snapshot"
            )
        spec = store.tables[name].spec if name in store.tables else group[0].spec
        if any(part.spec.bounded_as(spec).model_copy(update={"shards": spec.shards}) != spec for part in group):
            raise errors.ServerError(
                f"table {name}: the snapshot holds a different table: expected {spec!r}, found {group[0].spec!r}"
            )
        table = store.new_table(spec)
        read_clock(folder, max(group, key=lambda part: part.step), table)
        for part in group:
            read_rows(folder, part.rows_file, part.rows, table, False, chosen)
            if part.waiting_file:
                read_rows(folder, part.waiting_file, part.waiting, table, True, chosen)
        yield name, table


def _read_blocks(
    folder: Path, manifests: list[Manifest], wanted: set[str] | None
) -> dict[str, tuple[specs.BlockSpec | None, dict[str, Any]]]:
    """Return the states of the blocks, or of the wanted names, with the specs of the blocks that have one."""
    blocks = {}
    for part in (part for manifest in manifests for part in manifest.blocks):
        if wanted is None or (part.spec is not None and part.name in wanted):
            numbers = np.frombuffer(read_file(folder, part.file), "<f4").astype(np.float32)
            blocks[part.name] = part.spec, {**part.state, "numbers": numbers}
    return blocks


def _block(spec: specs.BlockSpec, state: dict[str, Any], store: Store) -> DenseBlock:
    there = getattr(store.blocks.get(spec.name), "spec", spec)
    if there != spec:
        raise errors.ServerError(
            f"block {spec.name}: the snapshot holds a different block: expected {there!r}, found {spec!r}"
        )
    expected = spec.size * (1 + len(rule_of(spec.optimizer).slots))
    if len(state["numbers"]) != expected:  # before memory is allocated by the spec
        raise errors.ServerError(
            f"block {spec.name}: expected {expected} numbers float32, found float32 [{len(state['numbers'])}]"
        )
    block = DenseBlock(spec)
    block.restore(state)
    return block
