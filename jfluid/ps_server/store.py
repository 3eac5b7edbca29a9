"""Store of one server: tables and blocks, the record of applied mutations, and consistent views."""

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.errors import close_to
from jfluid.ps_server import cancellation, specs, validation
from jfluid.ps_server.capacity import Cap, TableSize
from jfluid.ps_server.dense import DenseBlock, SavedBlock, ServedBlock
from jfluid.ps_server.errors import UnknownNameError
from jfluid.ps_server.ledger import Ledger, MutationId
from jfluid.ps_server.manifest import PiecePart
from jfluid.ps_server.snapshot_reassembly import ReshardedBlock
from jfluid.ps_server.table import SparseTable
from jfluid.ps_server.table_view import TableView

Array = np.ndarray[Any, Any]


class SharedExclusiveLock:
    """A lock with `shared` and `exclusive` holders; an exclusive request goes before later requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside, self._alone, self._asking = 0, False, 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._asking)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._changed:
            self._asking += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._inside)
                self._alone = True
            finally:
                self._asking -= 1
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class Change(enum.IntEnum):
    """Kind of an update: one step of the optimizer, an addition to the values, or new values."""

    GRADIENT = 0
    ADD = 1
    ASSIGN = 2


@dataclass
class RowsUpdate:
    """An update of rows of a table: ids int64 [n], distinct, and values float32 [n, width]."""

    table: str
    change: Change
    ids: Array
    values: Array
    learning_rate: float | None = None


@dataclass
class BlockUpdate:
    """Update of a dense block: a float32 value of the block's shape."""

    block: str
    change: Change
    value: Array
    learning_rate: float | None = None


# A table, int64 ids that are looked up, and uint32 how often each is shown (None: once).
Wanted = tuple[SparseTable, Array, Array | None]


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _together(
    growths: Sequence[tuple[TableSize, Callable[[], TableSize]]],
) -> tuple[TableSize, Callable[[], TableSize]]:
    """Return the total growth of several tables."""
    return TableSize.total(most for most, _ in growths), lambda: TableSize.total(exact() for _, exact in growths)


@dataclass
class StoreView:
    """A store as it was at one moment."""

    tables: dict[str, TableView]
    blocks: dict[str, dict[str, Any]]
    specs: dict[str, specs.BlockSpec]
    ledger: dict[str, Any]
    shown: dict[str, Any]
    lost: int
    rounds: int
    trainer_states: dict[int, bytes]
    pieces: dict[str, PiecePart] | None
    job: str = ""


class Store:
    """The tables and blocks of one server by name.

    Every mutation goes through `once` (or `changing`), so that a view shows the state between
    mutations and never within one.

    Attributes:
        rounds: how many rounds of synchronous training were applied.
        ledger: the mutations that were applied.
        shown: the pulls with counted shows.
        job: the id of the job in snapshots; empty without a folder of snapshots.
        synchronous: gradients are accepted in rounds only.
        layout: number that changes with each replaced table.
        trainer_states: serialized TrainerState after the last round, by trainer.
        cap: bounds the rows of all tables together, and the bytes of these and of the blocks that
            `create_block` makes.
    """

    synchronous = False

    def __init__(self) -> None:
        self.tables: dict[str, SparseTable] = {}
        self.blocks: dict[str, SavedBlock] = {}
        self.ledger = Ledger()
        self.shown = Ledger(count_lost=False)
        self.rounds = self.layout = 0
        self.trainer_states: dict[int, bytes] = {}
        self.job = ""
        self.cap = Cap(
            "this server",
            self._size,
            "Drop rows that are no longer used (shrink), or give the job more servers, "
            "or this one larger bounds (max_rows, max_bytes).",
        )
        self._lock = SharedExclusiveLock()
        self._naming = threading.Lock()

    def _size(self) -> TableSize:
        blocks = [
            TableSize(0, DenseBlock.bytes_of(block.spec))
            for block in list(self.blocks.values())
            if isinstance(block, DenseBlock)
        ]
        return TableSize.total([*(table.size for table in list(self.tables.values())), *blocks])

    def create_table(self, spec: specs.TableSpec) -> SparseTable:
        """Return the table of a spec, created unless it exists; an existing one takes over the bounds of the spec.

        Raises ServerError when the name is taken by something else.
        """
        self.create([spec], [])
        return self.tables[spec.name]

    def new_table(self, spec: specs.TableSpec) -> SparseTable:
        """Return an empty table of the same kind as the table of this name, to be filled from a snapshot."""
        return SparseTable(spec)

    def put_table(self, name: str, table: SparseTable) -> None:
        """Replace the table of this name by one that `new_table` made.

        Call it within `exclusive`.
        """
        self.tables[name] = table
        self.layout += 1

    def create_block(self, spec: specs.BlockSpec) -> ServedBlock:
        """Return the block of a spec, created unless it exists.

        Raises ServerError when the name is taken by something else, TooLargeError when the server's bounds
        leave no room for it.
        """
        self.create([], [spec])
        return self.blocks[spec.name]

    def create(self, tables: Sequence[specs.TableSpec], blocks: Sequence[specs.BlockSpec]) -> None:
        """Create all of these, as `create_table` and `create_block` do, or none."""
        with self._naming:
            named: dict[str, specs.TableSpec | specs.BlockSpec] = {}
            every: list[specs.TableSpec | specs.BlockSpec] = [*tables, *blocks]
            for each in every:
                if named.setdefault(each.name, each) != each:
                    raise errors.ServerError(f"{each.name}: two things of one name: {named[each.name]!r} and {each!r}")
            bounds = {name: table.spec for name, table in self.tables.items()}
            new_tables = [
                spec
                for spec in tables
                if not self._exists(spec.name, spec.bounded_as(bounds.get(spec.name, spec)), self.tables)
            ]
            new_blocks = [spec for spec in blocks if not self._exists(spec.name, spec, self.blocks)]
            size = TableSize(0, sum(map(DenseBlock.bytes_of, new_blocks)))
            with self.cap.held(size, lambda: size):
                made = {spec.name: SparseTable(spec) for spec in new_tables}
                self.blocks |= {spec.name: DenseBlock(spec) for spec in new_blocks}
                self.tables |= made
            for spec in tables:
                self.tables[spec.name].bound(spec)

    def add_block(self, block: SavedBlock) -> None:
        """Add a block of a kind of the caller's. Raises ServerError when the name is taken."""
        with self._naming:
            if block.name in self.tables or block.name in self.blocks:
                raise errors.ServerError(f"{block.name} is there already")
            self.blocks[block.name] = block

    def _exists(self, name: str, spec: validation.Spec, kind: dict[str, Any]) -> bool:
        """Return True if `kind` holds this name.

        Raises ServerError when the name belongs to a different kind.
        """
        if name not in self.tables and name not in self.blocks:
            return False
        there = getattr(kind.get(name), "spec", None)
        if there != spec:
            raise errors.ServerError(
                f"{name} is there already, and is different: expected {spec!r}, found "
                f"{there or 'no ' + type(spec).__name__}"
            )
        return True

    def table(self, name: str) -> SparseTable:
        """Return a table. Raises UnknownNameError for an unknown name."""
        if name not in self.tables:
            raise UnknownNameError(f"there is no table {name[:512]!r}{close_to(name, self.tables)}; create it first")
        return self.tables[name]

    def block(self, name: str) -> ServedBlock:
        """Return a block. Raises UnknownNameError for an unknown name."""
        return self.saved_block(name)

    def saved_block(self, name: str) -> SavedBlock:
        """Return a block that snapshots store.

        Raises UnknownNameError if no block of this kind has the name.
        """
        if name not in self.blocks:
            raise UnknownNameError(f"there is no block {name[:512]!r}{close_to(name, self.blocks)}; create it first")
        return self.blocks[name]

    def pieces(self) -> dict[str, PiecePart] | None:
        """Return the places of variables and tables of consecutive rows in the undivided program, by name here.

        None if there is no such program, or it does not describe its pieces.
        """
        return None

    def variables(self) -> set[str]:
        """Return the names of all variables of that program that servers hold."""
        return set()

    def resharded_blocks(self) -> Sequence[ReshardedBlock]:
        """Return the blocks of the variables of `pieces`."""
        return []

    def read(self, blocks: Sequence[ServedBlock], trainer: int | None = None) -> list[tuple[Array, int]]:
        """Return (value, version) of each of these blocks, for a trainer."""
        return [block.read() for block in blocks]

    def check(self, rows: list[RowsUpdate], blocks: list[BlockUpdate]) -> None:
        """Raise ServerError for updates that cannot be applied although their tables, blocks and shapes are right."""
        for update in rows:
            if update.change == Change.GRADIENT and self.tables[update.table].rule.update is None:
                raise errors.ServerError(
                    f"table {update.table}: its optimizer is a program, which only the server of that "
                    "program can compute: push values or differences"
                )

    def check_capacity(self, rows: Sequence[RowsUpdate] = (), wanted: Sequence[Wanted] = ()) -> None:
        """Raise TooLargeError for updates and look-ups that would add more rows than the bounds leave room for."""
        growths = []
        for table, ids, counts in self._adding(rows, wanted):
            if table.cap.bounded or self.cap.bounded:
                growths.append(table.growth(ids, counts=counts, assigned=counts is None))
                table.cap.check(*growths[-1])
        self.cap.check(*_together(growths))

    @contextlib.contextmanager
    def reserve(self, rows: Sequence[RowsUpdate] = (), wanted: Sequence[Wanted] = ()) -> Iterator[None]:
        """Reserve memory for the rows that one call adds, so that the call is applied as a whole or not at all.

        Raises TooLargeError and MemoryError: then nothing was added.
        """
        with contextlib.ExitStack() as held:
            growths = []
            # In the order of names, so that no two calls deadlock.
            for table, ids, counts in sorted(self._adding(rows, wanted), key=lambda part: part[0].spec.name):
                groups = held.enter_context(table.reserve(ids, counts, assigned=counts is None))
                if self.cap.bounded:
                    growths.append(table.growth(ids, groups, counts, assigned=counts is None))
            held.enter_context(self.cap.held(*_together(growths)))
            yield

    def _adding(self, rows: Sequence[RowsUpdate], wanted: Sequence[Wanted]) -> list[Wanted]:
        """Return the tables that may get rows, with ids and show counts (None: the ids get rows in any case)."""
        ids: dict[SparseTable, list[Array]] = {}
        shown: dict[SparseTable, list[Array]] = {}
        for update in rows:
            table = self.tables[update.table]
            if table.spec.entry is None or update.change == Change.ASSIGN:
                ids.setdefault(table, []).append(update.ids)
        for table, asked, counts in wanted:
            ids.setdefault(table, []).append(asked)
            shown.setdefault(table, []).append(np.ones(len(asked), np.uint32) if counts is None else counts)
        return [
            (table, _joined(parts), _joined(shown[table]) if table in shown else None) for table, parts in ids.items()
        ]

    def apply(self, rows: list[RowsUpdate], blocks: list[BlockUpdate], trainer: int | None = None) -> None:
        """Apply checked updates of a trainer, or of a round.

        Call it within `once` or `changing`.

        Raises TooLargeError and MemoryError where there is no room for new rows: then nothing was
        applied.
        """
        with self.reserve(rows):
            self._apply(rows, blocks, trainer)

    def _apply(self, rows: list[RowsUpdate], blocks: list[BlockUpdate], trainer: int | None) -> None:
        for update in rows:
            table = self.tables[update.table]
            if update.change == Change.GRADIENT:
                table.push(update.ids, update.values, update.learning_rate, merged=True)
            elif update.change == Change.ADD:
                table.add(update.ids, update.values)
            else:
                table.assign(update.ids, update.values)
        for change in blocks:
            block = self.block(change.block)
            if change.change == Change.GRADIENT:
                block.push(change.value, change.learning_rate)
            elif change.change == Change.ADD:
                block.add(change.value)
            else:
                block.assign(change.value)

    @contextlib.contextmanager
    def once(
        self, call: MutationId, alive: cancellation.Alive = cancellation.always, ledger: Ledger | None = None
    ) -> Iterator[bool]:
        """Yield True if the mutation is to be applied (see `Ledger.once`); no view opens before its record.

        Args:
            ledger: records it, in place of `self.ledger`.
        """
        ledger = ledger or self.ledger
        if not ledger.begin(call, alive):
            yield False
            return
        try:
            with self._lock.shared():
                yield True
                ledger.commit([call])
        except BaseException:
            ledger.abort(call)
            raise

    @contextlib.contextmanager
    def view(self, only: Sequence[str] = ()) -> Iterator[StoreView]:
        """Return a view of all tables, or of the named tables, between two mutations; the store may change meanwhile.

        Raises UnknownNameError for a name that is not a table's.
        """
        chosen = {name: self.table(name) for name in only} or self.tables
        with contextlib.ExitStack() as open_views:
            with self._lock.exclusive():
                tables = {name: open_views.enter_context(table.view()) for name, table in chosen.items()}
                blocks = {} if only else {name: block.state() for name, block in self.blocks.items()}
                named = {
                    name: block.spec
                    for name, block in self.blocks.items()
                    if name in blocks and isinstance(block, DenseBlock)
                }
                view = StoreView(
                    tables,
                    blocks,
                    named,
                    self.ledger.state(),
                    self.shown.state(),
                    self.ledger.lost,
                    self.rounds,
                    {} if only else dict(self.trainer_states),
                    None if only else self.pieces(),
                    self.job,
                )
            yield view

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Let no view open within the context: for mutations that are committed in the context, too."""
        with self._lock.shared():
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """No mutation and no opening of a view is under way within."""
        with self._lock.exclusive():
            yield
