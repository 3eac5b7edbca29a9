"""Store of a server's program: tables and blocks that the program's operators update."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.size_history import SizeHistories
from jfluid.distributed.programs.server_program import UpdateBlock, updates_of
from jfluid.distributed.server.block_rule import BlockRules, block_rule_of
from jfluid.distributed.server.variables_block import VariablesBlock, packed, unpacked
from jfluid.distributed.tables.program_table import ProgramTable, fill_owned, make_table
from jfluid.distributed.tables.row_updates import RowUpdate
from jfluid.engine import Engine, Owned
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ps_server import dense, snapshot, specs, zero_copy
from jfluid.ps_server.manifest import PiecePart
from jfluid.ps_server.snapshot_reassembly import ReshardedBlock, SnapshotReassembly
from jfluid.ps_server.store import BlockUpdate, Change, RowsUpdate, Store
from jfluid.ps_server.table import SparseTable
from jfluid.scope import Scope
from jfluid.transpiler.parameter_server.server import SYNC, copy_op

Array = np.ndarray[Any, Any]
STATE = "@STATE@"  # the block of values that all updates share


class ProgramBlock:
    """A piece of a parameter; its state lies in the server's scope."""

    def __init__(self, store: "ProgramStore", update: UpdateBlock):
        self.name, self.update, self._store = update.param, update, store
        self.shape = tuple(store.tensor(self.name).shape())
        self.version = 0
        self.rule = block_rule_of(update, store.tensor)
        self._value: Array | None = None

    def read(self) -> tuple[Array, int]:
        """Return (value, version); the array does not change afterwards."""
        with self._store.lock:
            if self._value is None:
                self._value = np.asarray(self._store.tensor(self.name).value, np.float32).view()
                self._value.flags.writeable = False
            return self._value, self.version

    def keep(self, value: Array, trainer: int) -> None:
        """Record that a trainer pulled this value (DC-ASGD). The caller holds the store's lock."""
        if self.update.kept:
            self._store.tensor(self.update.kept[trainer]).set(value)

    def push(self, gradient: Array, learning_rate: float | None = None) -> int:
        """Return one update by the program; returns the version that it makes."""
        self._store.update({self.name: gradient}, None)
        return self.version

    def add(self, difference: Array) -> int:
        """Add to the value, past the optimizer; returns the version that it makes."""
        with self._store.lock:  # concurrent calls add, too
            return self.assign(self.read()[0] + difference)

    def assign(self, value: Array) -> int:
        """Set the value; the optimizer's state stays. Returns the version that it makes."""
        with self._store.lock:
            self._store.tensor(self.name).set(value)
            return self.changed()

    def changed(self, value: Array | None = None) -> int:
        """Note that the value in the scope has changed, to `value` where it is on the host; returns the new version."""
        self._value = value
        self.version += 1
        return self.version

    def state(self) -> dict[str, Any]:
        """Return everything that a snapshot needs: the bytes of all variables, as float32."""
        with self._store.lock:
            return {**self._variables.state(), "version": self.version}

    def check(self, state: dict[str, Any]) -> None:
        """Raise ServerError for the `state` of a different block."""
        self._variables.check(state)

    def reshard(self, reassembly: SnapshotReassembly) -> dict[str, Any]:
        """Return the state that other servers' pieces make (see `Variables.reshard`)."""
        return {**self._variables.reshard(reassembly), "version": reassembly.version}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state`. Raises ServerError for the state of a different block."""
        with self._store.lock:
            self._variables.restore(state)
            self.changed()
            self.version = state["version"]

    @property
    def _variables(self) -> VariablesBlock:
        return VariablesBlock(self._store, self.name, self.names)

    @property
    def names(self) -> list[str]:
        """The variables: the parameter, and the optimizer's state."""
        return [self.name, *(n for n in self.update.state if n != self.name)]


_MOST_WAYS = 8  # sets of pieces that are updated together: each has a copy of their numbers
# pieces that rules update, by kind, and the remaining pieces, by name
_Ways = tuple[list[tuple[BlockRules, list[ProgramBlock]]], dict[str, ProgramBlock]]


class ProgramStore(Store):
    """The tables and blocks of a server's program.

    Args:
        program: of `DistributeTranspiler.get_pserver_program`.
        scope: where its startup program ran.
        engine: runs its blocks.
    """

    def __init__(self, program: Program, scope: Scope, engine: Engine):
        super().__init__()
        (listen,) = (op for op in program.global_block().ops if op.type == "listen_and_serv")
        self.lock = threading.RLock()
        self.synchronous = listen.attr("distributed_mode") == SYNC
        self._program, self._scope = program, scope
        self._engine = Engine(engine.place, donate=False)  # trainers read the old values meanwhile
        self._sizes = SizeHistories()  # gradients of a block have one shape, so snapshots hold no history
        self._compiled: dict[tuple[str, ...], tuple[Program, dict[str, str]]] = {}
        self._ways = LruCache[_Ways](_MOST_WAYS)
        self._row_updates: dict[str, RowUpdate] = {}
        sparse = {g.rpartition(":")[0] for g in listen.attr("sparse_grad_to_param")}
        for update in updates_of(program, listen):
            if update.grad in sparse:
                saved = program.division.variables.get(update.param) if program.division is not None else None
                options = saved.table_options if saved is not None else {}
                self.tables[update.param], self._row_updates[update.param] = make_table(
                    update, scope, self.tensor, program.random_seed, lambda: engine.device, options
                )
            else:
                self.add_block(ProgramBlock(self, update))
        schedule = listen.attr("lr_decay_block_id")
        self._schedule = self._alone(program.blocks[schedule].ops) if schedule >= 0 else None
        self._counts = (
            [n for op in program.blocks[schedule].ops for n in op.input_arg_names if ".trainer_" in n]
            if schedule >= 0
            else []
        )
        for name in self._counts:
            self.add_block(Counter(self, name))
        shared = self._shared(program)
        self.add_block(VariablesBlock(self, STATE, shared))
        self._pieces = self._divided(listen.attr("pserver_id"), shared)
        for name in self.tables:
            self._load(name, listen.attr("pserver_id"))
        self._set_rates()

    def _load(self, name: str, server: int) -> None:
        """Load the rows of a table from a checkpoint, where `load` named one."""
        found = self._scope.find_var(name)
        if found is None or not found.saved:
            return
        servers = len(self._program.division.layout.endpoints)
        if os.path.isdir(found.saved):
            snapshot.restore(self, found.saved, server, servers, tables=[name])
        else:
            fill_owned(self.tables[name], found.saved, self._program.global_block().var(name).shape, server, servers)

    def _shared(self, program: Program) -> list[str]:
        """Return persistable variables outside of tables and blocks: of the schedule, and of tables' optimizers."""
        rows = {
            n for t in self.tables.values() if isinstance(t, ProgramTable) for n in (t.spec.name, *t.variables.values())
        }
        known = (
            {n for b in self.blocks.values() if isinstance(b, ProgramBlock) for n in b.names} | rows | set(self._counts)
        )
        return [
            v.name
            for v in program.global_block().vars.values()
            if v.persistable
            and v.name not in known
            and (found := self._scope.find_var(v.name)) is not None
            and found.get_tensor()._is_initialized()
        ]

    # ---- the variables as parts of the variables of the program before its division ----

    def _divided(self, server: int, shared: Sequence[str]) -> dict[str, PiecePart] | None:
        division = self._program.division
        if division is None:  # of a program that was read from a file
            return None
        # every server has the whole of variables that the division does not name
        found = {n: PiecePart(variable=n, shape=self.value(n).shape) for n in shared}
        for saved in division.variables.values():
            for piece in saved.pieces if not saved.distributed else ():
                if piece.server == server:
                    rows = {"first": piece.first, "rows": piece.rows} if saved.cut else {}
                    found[piece.name] = PiecePart(variable=saved.name, shape=saved.shape, **rows)
        return found

    def pieces(self) -> dict[str, PiecePart] | None:
        return self._pieces

    def variables(self) -> set[str]:
        division = self._program.division
        own = {piece.variable for piece in (self._pieces or {}).values()}
        return own | set(division.variables if division is not None else ())

    def begins_as(self, name: str) -> PiecePart:
        """Return the piece of a divided variable that a variable begins as.

        A trainer's last received value (DC-ASGD) begins as the parameter does: trainers begin anew, too.
        """
        assert self._pieces is not None  # else nothing is cut anew
        for block in self.blocks.values():
            if isinstance(block, ProgramBlock) and name in block.update.kept:
                name = block.name
        if name not in self._pieces:
            raise errors.ServerError(f"{name}: the program does not say which divided variable it belongs to")
        return self._pieces[name]

    def resharded_blocks(self) -> Sequence[ReshardedBlock]:
        return [b for b in self.blocks.values() if isinstance(b, (ProgramBlock, VariablesBlock, Counter))]

    def counted(self, name: str) -> tuple[PiecePart, bool]:
        """Return (variable with the sum of the trainers' counts, True for the first count) of a trainer's count."""
        for saved in self._program.division.variables.values():
            if name in saved.counts:
                return self.begins_as(saved.name), saved.counts[0] == name
        raise errors.ServerError(f"{name} is no count of this server's program")

    def value(self, name: str) -> Array:
        """Return the value of a variable now.

        Raises UninitializedError where the startup program was not run.
        """
        for table in self.tables.values():
            if isinstance(table, ProgramTable) and name in table.powers:
                return table.power(name)
        return np.array(self.tensor(name))

    def tensor(self, name: str) -> Any:
        """Return the tensor of a variable.

        Raises UninitializedError where the startup program was not run.
        """
        found = self._scope.find_var(name)
        if found is None or not found.get_tensor()._is_initialized():
            raise errors.UninitializedError(
                f"{name} has no value in the scope: run the server's startup program first "
                "(get_startup_program), or fleet.init_server()"
            )
        return found.get_tensor()

    def block(self, name: str) -> dense.ServedBlock:
        """Return a block, a table as a block for trainers with a dense copy, or a persistable variable."""
        found = self.blocks.get(name)
        if found is not None:
            return found
        if name in self.tables:
            return WholeTable(self.tables[name], tuple(self._program.global_block().var(name).shape))
        var = self._program.global_block().vars.get(name)
        if var is not None and var.persistable:
            self.tensor(name)
            return VariablesBlock(self, name, [name])
        return super().block(name)

    # ---- updates ----

    def read(self, blocks: Sequence[dense.ServedBlock], trainer: int | None = None) -> list[tuple[Array, int]]:
        with self.lock:
            found = super().read(blocks)
            for block, (value, _) in zip(blocks, found):
                if trainer is not None and isinstance(block, ProgramBlock):
                    block.keep(value, trainer)
            return found

    def check(self, rows: list[RowsUpdate], blocks: list[BlockUpdate]) -> None:
        super().check([u for u in rows if u.table not in self._row_updates], blocks)
        for update in rows:
            if update.change == Change.GRADIENT and update.table in self._row_updates:
                self._row_updates[update.table].check(update.ids, update.learning_rate)
        for change in blocks:
            block = self.block(change.block)
            if isinstance(block, WholeTable) and change.change == Change.GRADIENT:
                raise errors.ServerError(f"{change.block} is a table: it takes gradients by rows")
            if isinstance(block, VariablesBlock):
                raise errors.ServerError(f"{change.block}: the server's program computes it; it takes no changes")
            if isinstance(block, Counter) and change.change != Change.ADD:
                raise errors.ServerError(f"{change.block} is a count: it takes additions only")

    def _apply(self, rows: list[RowsUpdate], blocks: list[BlockUpdate], trainer: int | None) -> None:
        in_round = self.synchronous and trainer is None
        counts = [b for b in blocks if b.block in self._counts]
        gradients = {b.block: b.value for b in blocks if b.change == Change.GRADIENT}
        sparse = [u for u in rows if u.change == Change.GRADIENT and u.table in self._row_updates]
        with self.lock:
            super()._apply([], counts, trainer)
            # the schedule goes by the sum of the counts: one step for all trainers
            if in_round and self._counts:
                self.blocks[self._counts[0]].add(np.ones(1, np.float32))
            if self._schedule is not None and (in_round or counts):
                self._run(self._schedule, {})
                self._set_rates()
            # Work that may fail comes before the change of the first row.
            updates = [(self._row_updates[u.table], u) for u in sparse]
            ready = [
                (update, update.prepare(self.tables[u.table], u.ids, u.values, u.learning_rate))
                for update, u in updates
            ]
            if gradients:
                self.update(gradients, trainer)
            for update, change in ready:
                if update.alone:
                    change()
        for update, change in ready:
            if not update.alone:
                change()
        super()._apply(
            [u for u in rows if not any(u is s for s in sparse)],
            [b for b in blocks if b.change != Change.GRADIENT and b not in counts],
            trainer,
        )

    def update(self, gradients: Mapping[str, Array], trainer: int | None) -> None:
        """Run the blocks of these pieces: by rules, the rest in one program.

        Raises ServerError where they need to know the trainer.
        """
        with self.lock:
            feed = {}
            names = tuple(sorted(gradients))
            by_rules, pieces = self._ways.get_or_make(names, lambda: self._ways_of(names))
            for rules, of in by_rules:
                found = rules.update([gradients[p.name] for p in of], self._rate(rules.rate))
                for piece, value in zip(of, found, strict=True):
                    piece.changed(value)
            if not pieces:
                return
            if any(piece.update.kept for piece in pieces.values()):
                if trainer is None:
                    raise errors.ServerError("enable_dc_asgd corrects the gradients of one trainer, and not of a round")
                feed["@TRAINER_ID@"] = np.array([trainer], np.int64)
            key = tuple(sorted(pieces))
            if key not in self._compiled:
                updates = [pieces[name].update for name in key]
                program = self._alone([op for u in updates for op in u.ops])
                self._compiled[key] = program, {u.param: u.grad for u in updates}
            program, grads = self._compiled[key]
            self._run(program, feed | {grads[name]: _own(gradients[name]) for name in key})
            for name in key:
                pieces[name].changed()

    def _ways_of(self, names: tuple[str, ...]) -> _Ways:
        """Return how these pieces are updated together: by kind the pieces with a rule, and the rest."""
        pieces = {name: self._piece(name) for name in names}
        kinds: dict[Any, list[ProgramBlock]] = {}
        for piece in pieces.values():
            if piece.rule is not None:
                kinds.setdefault(piece.rule.kind, []).append(piece)
        by_rules = [(BlockRules([p.rule for p in of if p.rule is not None], self.tensor), of) for of in kinds.values()]
        return by_rules, {name: piece for name, piece in pieces.items() if piece.rule is None}

    def _rate(self, name: str) -> np.float32:
        return np.float32(np.asarray(self.tensor(name).value).reshape(()))

    def _piece(self, name: str) -> ProgramBlock:
        block = self.blocks[name]
        assert isinstance(block, ProgramBlock)  # gradients of further kinds of blocks were refused
        return block

    def _alone(self, ops: Sequence[Operator]) -> Program:
        """Return a program of these operators and their variables."""
        program = Program()
        program.random_seed = self._program.random_seed
        block = program.global_block()
        for op in ops:
            for name in op.input_arg_names + op.output_arg_names:
                if name not in block.vars and (var := op.block.find_var_recursive(name)) is not None:
                    twin = block.clone_variable(var, force_persistable=False)
                    if name.endswith("@GRAD") or "@GRAD." in name:
                        twin.persistable = False
            copy_op(op, block, {})
        return program

    def _run(self, program: Program, feed: Mapping[str, Array]) -> None:
        self._engine.run(program, Owned(feed), [], self._scope, sizes=self._sizes)

    # ---- tables ----

    def new_table(self, spec: specs.TableSpec) -> SparseTable:
        there = self.tables.get(spec.name)
        if not isinstance(there, ProgramTable):
            raise errors.ServerError(f"{spec.name} is no table of this server's program")
        return there.empty()

    def _set_rates(self) -> None:
        """Set the tables' learning rates to the rates that the schedule computed."""
        for table in self.tables.values():
            found = self._scope.find_var(table.rate) if isinstance(table, ProgramTable) and table.rate else None
            # a schedule makes it in the first step
            if found is not None and found.get_tensor()._is_initialized():
                table.learning_rate = float(np.array(found.get_tensor()).reshape(()))


def _own(gradient: Array) -> Array:
    """Return a gradient that stays valid after the end of the call that brought it."""
    if gradient.flags.writeable:
        return gradient
    return zero_copy.aligned_copy(zero_copy.flat(gradient)).view(np.float32).reshape(gradient.shape)


class WholeTable:
    """All rows of a table of a known height, as a block."""

    def __init__(self, table: SparseTable, shape: tuple[int, ...]):
        self.name, self.shape, self._table = table.spec.name, shape, table

    @property
    def version(self) -> int:
        """Version that was never seen before, since the rows change."""
        return time.time_ns()

    def read(self) -> tuple[Array, int]:
        """Return (value, a version that was never seen)."""
        values = self._table.look_up(np.arange(self.shape[0], dtype=np.int64), train=False)
        return values.reshape(self.shape), self.version

    def push(self, gradient: Array, learning_rate: float | None = None) -> int:
        raise errors.ServerError(f"{self.name} is a table: it takes gradients by rows")

    def add(self, difference: Array) -> int:
        """Add to all rows without the optimizer; returns a new version."""
        self._table.add(np.arange(self.shape[0], dtype=np.int64), difference.reshape(self.shape[0], -1))
        return self.version

    def assign(self, value: Array) -> int:
        """Set all rows; the optimizer's state stays. Returns a version that was never seen."""
        self._table.assign(np.arange(self.shape[0], dtype=np.int64), value.reshape(self.shape[0], -1))
        return self.version


class Counter:
    """A count of steps that a trainer adds to."""

    shape: tuple[int, ...] = (1,)

    def __init__(self, store: ProgramStore, name: str):
        self.name, self._store, self.version = name, store, 0

    def read(self) -> tuple[Array, int]:
        return np.array(self._store.tensor(self.name)).astype(np.float32), self.version

    def push(self, gradient: Array, learning_rate: float | None = None) -> int:
        raise errors.ServerError(f"{self.name} is a count: it takes additions only")

    def add(self, difference: Array) -> int:
        tensor = self._store.tensor(self.name)
        tensor.set(np.array(tensor) + difference.astype(np.int64))
        self.version += 1
        return self.version

    assign = push

    def state(self) -> dict[str, Any]:
        return {"numbers": packed([np.array(self._store.tensor(self.name))]), "version": self.version}

    def check(self, state: dict[str, Any]) -> None:
        """Raise ServerError for the `state` of a different kind of block."""
        if len(state["numbers"]) != 2:
            raise errors.ServerError(f"{self.name}: expected a count, found {len(state['numbers'])} numbers")

    def reshard(self, reassembly: SnapshotReassembly) -> dict[str, Any]:
        """Return the state from the counts of all servers: the sum of the steps, all in the first trainer's count.

        Trainers begin anew, so the schedule only needs the sum.
        """
        piece, first = self._store.counted(self.name)
        steps = reassembly.read(piece, "int64")
        return {"numbers": packed([steps if first else np.zeros_like(steps)]), "version": reassembly.version}

    def restore(self, state: dict[str, Any]) -> None:
        (value,) = unpacked(state["numbers"], [[self.name, "int64", [1]]])
        self._store.tensor(self.name).set(value)
        self.version = state["version"]
