"""Program of a trainer: its requests to parameter servers, and the program that is left to compute here.

`DistributeTranspiler` expresses the requests as operators (`send`, `recv`,
`distributed_lookup_table`), which are read once; a step is then one call for rows, one compiled
program, and one call that brings gradients out and parameters in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jfluid import errors
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.transpiler.parameter_server.layout import (
    LOOK_UP,
    RECV,
    SEND,
    SPLITS,
    TRAINERS_OPS,
    JobLayout,
    ParameterLayout,
)

_LOOK_UP_GRADS = ("lookup_table_grad", "lookup_table_v2_grad")


@dataclass(frozen=True)
class LookUp:
    """All rows that the program reads from a table.

    Attributes:
        ids: names of the tensors of ids.
        positions: names of the positions of `ids` among the distinct ids.
        paddings: ids with rows that some look-ups read as zeros. These ids always stand first.
    """

    table: str
    ids: tuple[str, ...]
    positions: tuple[str, ...]
    paddings: tuple[int, ...]


@dataclass(frozen=True)
class SentRows:
    """Gradients of rows of a table.

    Attributes:
        grad: the sparse rows.
        parts: (positions, gradient of the rows there) of each look-up where there is no more to it:
            replicas send these, since each has its own.
        look_up: that they belong to; None where the parameter is here whole, and rows are its own.
    """

    table: str
    grad: str
    parts: tuple[tuple[str, str], ...]
    look_up: LookUp | None

    def names(self, replicas: bool) -> list[str]:
        """Return the names of the variables to fetch for the rows."""
        return [g for _, g in self.parts] if replicas and self.parts else [self.grad]


@dataclass
class TrainerProgram:
    """Requests of a program to servers, and the program without these operators.

    Attributes:
        endpoints: of all servers, in the job's order.
        local: the program that computes: rows are read from a variable of the table's name at
            positions that are fed.
        dense: (gradient's name, parameter), in the order of sending.
        received: parameters that come from servers.
        counts: names of counters that are sent to all servers.
        touched: with GEO: (name of ids, table) of each look-up.
        synchronous: servers wait for all trainers.
        waits: half-asynchronous: this trainer waits until its sends have ended.
    """

    endpoints: list[str]
    trainer_id: int
    local: Program
    tables: dict[str, ParameterLayout] = field(default_factory=dict)
    look_ups: list[LookUp] = field(default_factory=list)
    dense: list[tuple[str, ParameterLayout]] = field(default_factory=list)
    rows: list[SentRows] = field(default_factory=list)
    received: list[ParameterLayout] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    touched: list[tuple[str, str]] = field(default_factory=list)
    synchronous: bool = False
    waits: bool = False

    @property
    def key(self) -> tuple[tuple[str, ...], int]:
        """The key that all programs of one trainer share."""
        return tuple(self.endpoints), self.trainer_id

    def sent(self, replicas: bool) -> list[str]:
        """Return the names of the variables that a step computes for the servers."""
        rows = [n for r in self.rows for n in r.names(replicas)]
        return [g for g, _ in self.dense] + rows + self.counts

    @property
    def summed(self) -> list[str]:
        """Return the gradients to merge over the replicas before the push.

        Gradients of looked-up rows are not summed: replicas look up different rows.
        """
        return [g for g, _ in self.dense] + [r.grad for r in self.rows if not r.parts]

    @property
    def trains(self) -> bool:
        """True if the program trains, and is not a startup program or an evaluation."""
        return bool(self.dense or self.rows or self.counts or self.touched)


def read(program: Program, endpoints: Sequence[str] = ()) -> TrainerProgram | None:
    """Return the TrainerProgram of a program; None where it is not a trainer's.

    `endpoints` are the servers in the job's order, where the caller knows it.

    Raises UnsupportedError for programs that DistributeTranspiler does not make,
    UntrustedOperatorError for a loaded program without permission to ask servers.
    """
    program.refuse_acting()
    ops = program.global_block().ops
    if not any(op.type in TRAINERS_OPS for op in ops):
        return None
    if any(op.type in TRAINERS_OPS for b in program.blocks[1:] for op in b.ops):
        raise errors.UnsupportedError(
            "send, recv and their kind run in the program itself, and not within a block of a loop or a condition"
        )
    return _Reader(program, endpoints).found


class _Reader:
    """Builds the TrainerProgram of one program."""

    def __init__(self, program: Program, endpoints: Sequence[str]):
        self.block = program.global_block()
        ops = self.block.ops
        remote = [op for op in ops if op.type in TRAINERS_OPS]
        trainer = next((op.attr("trainer_id") for op in remote if "trainer_id" in op.attrs), 0)
        layout = JobLayout.of_program(program, endpoints)
        self.parameters = layout.parameters
        self.found = TrainerProgram(list(layout.endpoints), trainer, program._copy())
        self.local = self.found.local.global_block()
        self.written = {n: op for op in ops for n in op.output_arg_names}
        self.look_ups: dict[str, LookUp] = {}
        self.gone: set[int] = set()  # positions of operators that the local program does not have
        for i, op in enumerate(ops):
            if op.type in TRAINERS_OPS or op.type in SPLITS:
                self.gone.add(i)
            if op.type == "send_barrier":
                self.found.synchronous |= not op.attr("half_async")
                self.found.waits |= op.attr("half_async")
        for op in ops:
            if op.type == LOOK_UP:
                self._look_up(op)
        self.found.look_ups = list(self.look_ups.values())
        for op in ops:
            if op.type == SEND and all(map(self._has_value, op.input("X"))):
                self._send(op)
        for op in ops:
            if op.type == RECV:
                self._receive(op)
        self._drop_joins()
        self._rewrite()

    # ---- tables ----

    def _look_up(self, op: Operator) -> None:
        (name,) = op.input("W")
        self.found.tables[name] = self.parameters[name]
        before = self.look_ups.get(name, LookUp(name, (), (), ()))
        ids = tuple(dict.fromkeys((*before.ids, *op.input("Ids"))))
        padding = op.attr("padding_idx")
        paddings = tuple(dict.fromkeys((*before.paddings, padding))) if padding != -1 else before.paddings
        self.look_ups[name] = LookUp(name, ids, tuple(f"{n}@{name}" for n in ids), paddings)
        for n in op.input("Ids"):
            var = self.block.var_recursive(n)
            self.local.create_var(
                name=f"{n}@{name}",
                shape=var._shape,
                dtype=var.dtype,
                lod_level=var.lod_level,
                is_data=True,
                stop_gradient=True,
            )

    # ---- gradients ----

    def _send(self, op: Operator) -> None:
        names = op.input("X")
        if "op_role_var" not in op.attrs or not op.attr("op_role_var"):
            self.found.touched += zip(names, op.attr("send_varnames"), strict=True)
            return
        param = op.attr("op_role_var")[0]
        if op.attr("merge_add"):
            self.found.counts.append(names[0])
            return
        split = self.written.get(names[0])
        grad = names[0]
        if split is not None and split.type in SPLITS:
            (grad,) = split.input("Ids" if split.type == "split_ids" else "X")
        if self.block.var_recursive(grad).type == VarType.SELECTED_ROWS:
            self._send_rows(param, grad)
        else:
            self.found.dense.append((grad, self.parameters[param]))

    def _has_value(self, name: str) -> bool:
        """Return True if a variable gets a value; `clone(for_test=True)` leaves sends of missing gradients."""
        maker = self.written.get(name)
        if maker is None:
            var = self.block.var_recursive(name)
            return bool(var.is_data or var.persistable)
        return maker.type not in SPLITS or all(map(self._has_value, maker.input_arg_names))

    def _send_rows(self, param: str, grad: str) -> None:
        look_up = self.look_ups.get(param)
        self.found.tables[param] = self.parameters[param]
        ops = self._direct(grad) if look_up is not None else []
        parts = tuple((f"{o.input('Ids')[0]}@{param}", o.input("Out@GRAD")[0]) for o in ops)
        self.found.rows.append(SentRows(param, grad, parts, look_up))

    def _direct(self, grad: str) -> list[Operator]:
        """Return the gradients of look-ups that are only summed and sent; none for any other use."""
        readers: dict[str, int] = {}
        for i, op in enumerate(self.block.ops):
            for name in op.input_arg_names if i not in self.gone else ():
                readers[name] = readers.get(name, 0) + 1
        gradients: list[Operator] = []
        waiting = [grad]
        if readers.get(grad):
            return []
        while waiting:
            name = waiting.pop(0)
            makers = [i for i, op in enumerate(self.block.ops) if name in op.output_arg_names]
            if len(makers) != 1 or (name != grad and readers.get(name) != 1):
                return []
            op = self.block.ops[makers[0]]
            if op.type == "sum":
                waiting += op.input("X")
            elif op.type in _LOOK_UP_GRADS:
                gradients.append(op)
            else:
                return []
        return gradients

    # ---- parameters ----

    def _receive(self, op: Operator) -> None:
        self.found.received.append(self.parameters[op.attr("op_role_var")[0]])

    def _drop_joins(self) -> None:
        """Remove the operators that join received pieces, since arriving pieces are joined."""
        pieces = {p.name for d in self.found.received if len(d.pieces) > 1 for p in d.pieces}
        for i, op in enumerate(self.block.ops):
            if op.type == "concat" and (set(op.input("X")) <= pieces or set(op.input("X")) == set(op.output("Out"))):
                self.gone.add(i)

    # ---- the remaining operators ----

    def _rewrite(self) -> None:
        """Remove the operators that servers serve, and read looked-up rows at their positions."""
        ops: list[Operator] = []
        for i, (op, twin) in enumerate(zip(self.block.ops, list(self.local.ops), strict=True)):
            if op.type == LOOK_UP:
                ops += [
                    self._read_here(op, ids, out)
                    for ids, out in zip(op.input("Ids"), op.output("Outputs"), strict=True)
                ]
            elif i not in self.gone:
                if op.type in _LOOK_UP_GRADS and op.input("W")[0] in self.look_ups:
                    look_up = self.look_ups[op.input("W")[0]]
                    twin.inputs["Ids"] = [f"{op.input('Ids')[0]}@{look_up.table}"]
                    # padding rows have gradients, too
                    twin.attrs["padding_idx"] = -1
                ops.append(twin)
        self.local.ops = ops
        for name in self.look_ups:
            var = self.local.var(name)
            var._shape = (-1, *var.shape[1:])
        self._forget_unused()
        self.found.local._touch()
        self.found.local.verify("a trainer's program without the servers' part")

    def _read_here(self, op: Operator, ids: str, out: str) -> Operator:
        (table,) = op.input("W")
        padding = op.attr("padding_idx")
        at = self.look_ups[table].paddings.index(padding) if padding != -1 else -1
        made = self.local.append_op(
            op.attr("lookup_table_version"),
            {"W": table, "Ids": f"{ids}@{table}"},
            {"Out": out},
            {"padding_idx": at, "is_sparse": True, "op_role": op.attr("op_role")},
        )
        self.local.ops.pop()
        return made

    def _forget_unused(self) -> None:
        """Remove variables that only removed operators used."""
        used = {n for b in self.found.local.blocks for op in b.ops for n in op.input_arg_names + op.output_arg_names}
        asked = {n for u in self.found.look_ups for n in u.ids}
        for name, var in list(self.local.vars.items()):
            if name not in used and not (var.persistable or var.is_data or name in asked):
                del self.local.vars[name]
