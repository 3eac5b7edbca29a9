"""What a trainer's program asks of parameter servers, and what is left of it to compute here.

`DistributeTranspiler` writes it down as operators (`send`, `recv`, `distributed_lookup_table` and so on). They are read once;
a step is then one call for rows, one compiled program, and one call that brings gradients out and parameters in.
"""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jfluid import errors
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType

LOOK_UP, SEND, RECV, SERVE = "distributed_lookup_table", "send", "recv", "listen_and_serv"
_BARRIERS = ("send_barrier", "fetch_barrier")
_LOOK_UP_GRADS = ("lookup_table_grad", "lookup_table_v2_grad")
_SPLITS = ("split_byref", "split_selected_rows", "split_ids")
TRAINERS_OPS = frozenset({LOOK_UP, SEND, RECV, "fake_init", *_BARRIERS})


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a dense parameter: their name at the server that holds them, and its number."""

    name: str
    server: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Dense:
    """A parameter whose gradient is sent and whose value is received whole, in pieces."""

    param: str
    pieces: tuple[Piece, ...]

    def cut(self, value: np.ndarray) -> dict[str, np.ndarray]:
        """The pieces of a value of the parameter's shape."""
        if len(self.pieces) == 1:
            return {self.pieces[0].name: value.reshape(self.pieces[0].shape)}
        ends = np.cumsum([p.shape[0] for p in self.pieces])[:-1]
        return {p.name: part for p, part in zip(self.pieces, np.split(value, ends), strict=True)}

    def joined(self, pieces: Mapping[str, np.ndarray]) -> np.ndarray:
        """The parameter of which these are the pieces."""
        if len(self.pieces) == 1:
            return pieces[self.pieces[0].name]
        return np.concatenate([pieces[p.name] for p in self.pieces])


@dataclass(frozen=True)
class Table:
    """A parameter of which trainers see rows only.

    Attributes:
        stretches: (name there, server, first row, rows) of each; none where hashes of ids say which server has them.
    """

    name: str
    width: int
    height: int
    stretches: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class LookUp:
    """All rows that the program reads from a table.

    Attributes:
        ids: names of the tensors of ids.
        positions: names of where the rows of `ids` stand among the distinct ones.
        paddings: ids whose rows read as zeros in some look-ups. They always stand first.
    """

    table: str
    ids: tuple[str, ...]
    positions: tuple[str, ...]
    paddings: tuple[int, ...]


@dataclass(frozen=True)
class RowsSent:
    """Gradients of rows of a table.

    Attributes:
        grad: the sparse rows to fetch; empty where the gradients of what was looked up are all that is needed: then
            `parts` are (positions, gradient of the rows there).
        look_up: that they belong to; None where the parameter is here whole, and rows are its own.
    """

    table: str
    grad: str
    parts: tuple[tuple[str, str], ...]
    look_up: LookUp | None


@dataclass
class Work:
    """What a program asks of servers, and the program without that.

    Attributes:
        endpoints: of all servers, in the job's order.
        local: the program that computes: rows are read from a variable of the table's name at positions that are fed.
        dense: (gradient's name, parameter), in the order of sending.
        received: parameters that come from servers.
        counts: names of counters that are sent to all servers.
        touched: with GEO: (name of ids, table) of each look-up.
        synchronous: servers wait for all trainers.
        waits: half-asynchronous: this trainer waits for its own sends.
    """

    endpoints: list[str]
    trainer_id: int
    local: Program
    tables: dict[str, Table] = field(default_factory=dict)
    look_ups: list[LookUp] = field(default_factory=list)
    dense: list[tuple[str, Dense]] = field(default_factory=list)
    rows: list[RowsSent] = field(default_factory=list)
    received: list[Dense] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    touched: list[tuple[str, str]] = field(default_factory=list)
    synchronous: bool = False
    waits: bool = False

    @property
    def key(self) -> tuple[tuple[str, ...], int]:
        """What programs of one trainer have in common."""
        return tuple(self.endpoints), self.trainer_id

    @property
    def sent(self) -> list[str]:
        """Names of what a step computes for the servers."""
        rows = [n for r in self.rows for n in ([r.grad] if r.grad else [g for _, g in r.parts])]
        return [g for g, _ in self.dense] + rows + self.counts

    @property
    def summed(self) -> list[str]:
        """Gradients that several devices bring together before they are sent. Gradients of what was looked up are not: each
        device has its own rows."""
        return [g for g, _ in self.dense] + [r.grad for r in self.rows if r.grad]

    @property
    def trains(self) -> bool:
        """Whether it is a step of training, and not a startup program or an evaluation."""
        return bool(self.dense or self.rows or self.counts or self.touched)


def read(program: Program) -> Work | None:
    """What a program asks of servers; None when it is no trainer's program.

    Raises UnsupportedError for programs that DistributeTranspiler does not make.
    """
    ops = program.global_block().ops
    if not any(op.type in TRAINERS_OPS for op in ops):
        return None
    if any(op.type in TRAINERS_OPS for b in program.blocks[1:] for op in b.ops):
        raise errors.UnsupportedError("send, recv and their kind run in the program itself, and not within a block of a "
                                      "loop or a condition")
    return _Reader(program).work


def endpoints_of(program: Program) -> list[str]:
    """All servers of a program's job, in the job's order.

    DistributeTranspiler notes them. Of a program that was read from a file only its operators tell, some of which name all of
    them in order and others those that they need, and PADDLE_PSERVERS_IP_PORT_LIST.
    """
    if program.holdings is not None:
        return list(program.holdings.endpoints)
    ops = program.global_block().ops
    for op in ops:
        if op.type in _BARRIERS:
            return list(op.attr("endpoints"))
    found = [e for op in ops if op.type == LOOK_UP for e in op.attr("endpoints")]
    named = list(dict.fromkeys(found + [e for op in ops if op.type in (SEND, RECV) for e in op.attr("epmap")]))
    from jfluid.environment.process import RoleVariables
    told = list(RoleVariables.from_env().pserver_endpoints)
    return told if set(named) <= set(told) else named


class _Reader:
    """Reads one program."""

    def __init__(self, program: Program):
        self.block = program.global_block()
        ops = self.block.ops
        remote = [op for op in ops if op.type in TRAINERS_OPS]
        trainer = next((op.attr("trainer_id") for op in remote if "trainer_id" in op.attrs), 0)
        self.work = Work(endpoints_of(program), trainer, program._copy())
        self.local = self.work.local.global_block()
        self.written = {n: op for op in ops for n in op.output_arg_names}
        self.sections: dict[str, list[int]] = {}  # rows of each piece, by parameter
        self.look_ups: dict[str, LookUp] = {}
        self.gone: set[int] = set()  # positions of operators that the local program does not have
        for i, op in enumerate(ops):
            if op.type in TRAINERS_OPS or op.type in _SPLITS:
                self.gone.add(i)
            if op.type == "send_barrier":
                self.work.synchronous |= not op.attr("half_async")
                self.work.waits |= op.attr("half_async")
        for op in ops:
            if op.type == LOOK_UP:
                self._look_up(op)
        self.work.look_ups = list(self.look_ups.values())
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
        height, width = self.block.var_recursive(name).shape
        rows = op.attr("height_sections")
        firsts = np.cumsum([0, *rows])
        stretches = tuple((there, self._server(e), int(first), int(n)) for there, e, first, n in
                          zip(op.attr("table_names"), op.attr("endpoints"), firsts, rows))
        self.work.tables[name] = Table(name, width, height, stretches)
        before = self.look_ups.get(name, LookUp(name, (), (), ()))
        ids = tuple(dict.fromkeys((*before.ids, *op.input("Ids"))))
        padding = op.attr("padding_idx")
        paddings = tuple(dict.fromkeys((*before.paddings, padding))) if padding != -1 else before.paddings
        self.look_ups[name] = LookUp(name, ids, tuple(f"{n}@{name}" for n in ids), paddings)
        for n in op.input("Ids"):
            var = self.block.var_recursive(n)
            self.local.create_var(name=f"{n}@{name}", shape=var._shape, dtype=var.dtype, lod_level=var.lod_level,
                                  is_data=True, stop_gradient=True)

    def _server(self, endpoint: str) -> int:
        return self.work.endpoints.index(endpoint)

    # ---- gradients ----

    def _send(self, op: Operator) -> None:
        names = op.input("X")
        if "op_role_var" not in op.attrs or not op.attr("op_role_var"):
            self.work.touched += zip(names, op.attr("send_varnames"), strict=True)
            return
        param = op.attr("op_role_var")[0]
        if op.attr("merge_add"):
            self.work.counts.append(names[0])
            return
        split = self.written.get(names[0])
        grad, rows = names[0], list(op.attr("sections"))
        if split is not None and split.type in _SPLITS:
            (grad,) = split.input("Ids" if split.type == "split_ids" else "X")
            rows = list(split.attrs.get("sections", ()) or split.attrs.get("height_sections", ()))
        self.sections[param] = rows
        if self.block.var_recursive(grad).type == VarType.SELECTED_ROWS:
            self._send_rows(op, param, grad, rows)
        else:
            self.work.dense.append((grad, self._dense(param, op.attr("epmap"))))

    def _has_value(self, name: str) -> bool:
        """Whether a variable gets a value; `clone(for_test=True)` leaves sends of gradients that nothing computes any more."""
        maker = self.written.get(name)
        if maker is None:
            var = self.block.var_recursive(name)
            return bool(var.is_data or var.persistable)
        return maker.type not in _SPLITS or all(map(self._has_value, maker.input_arg_names))

    def _dense(self, param: str, endpoints: Sequence[str], names: Sequence[str] = ()) -> Dense:
        shape = self.block.var_recursive(param).shape
        rows = self.sections.get(param) or [shape[0]] * len(endpoints)
        names = names or self._names(param, len(endpoints))
        return Dense(param, tuple(Piece(name, self._server(e), (n, *shape[1:]) if shape else ())
                                  for name, e, n in zip(names, endpoints, rows, strict=True)))

    @staticmethod
    def _names(param: str, count: int) -> list[str]:
        return [param] if count == 1 else [f"{param}.block{i}" for i in range(count)]

    def _send_rows(self, op: Operator, param: str, grad: str, rows: list[int]) -> None:
        look_up = self.look_ups.get(param)
        if look_up is None:
            self._whole_table(op, param, rows)
        direct = self._direct(grad) if look_up is not None else None
        if direct is None:
            self.work.rows.append(RowsSent(param, grad, (), look_up))
            return
        ops = [self.block.ops[i] for i in direct[0]]
        parts = tuple((f"{o.input('Ids')[0]}@{param}", o.input("Out@GRAD")[0]) for o in ops)
        self.gone |= {*direct[0], *direct[1]}
        self.work.rows.append(RowsSent(param, "", parts, look_up))

    def _whole_table(self, op: Operator, param: str, rows: list[int]) -> None:
        """A parameter that trainers hold whole, and whose gradient has sparse rows."""
        height, *width = self.block.var_recursive(param).shape
        endpoints = op.attr("epmap")
        rows = rows or [height]
        firsts = np.cumsum([0, *rows])
        stretches = tuple((there, self._server(e), int(first), n) for there, e, first, n in
                          zip(self._names(param, len(endpoints)), endpoints, firsts, rows))
        self.work.tables[param] = Table(param, int(np.prod(width)), height, stretches)

    def _direct(self, grad: str) -> tuple[list[int], list[int]] | None:
        """(gradients of look-ups, sums of them) that make a gradient which is only sent; None where there is more to it."""
        readers: dict[str, int] = {}
        for i, op in enumerate(self.block.ops):
            for name in op.input_arg_names if i not in self.gone else ():
                readers[name] = readers.get(name, 0) + 1
        gradients, sums, waiting = [], [], [grad]
        if readers.get(grad):
            return None
        while waiting:
            name = waiting.pop(0)
            makers = [i for i, op in enumerate(self.block.ops) if name in op.output_arg_names]
            if len(makers) != 1 or (name != grad and readers.get(name) != 1):
                return None
            op = self.block.ops[makers[0]]
            if op.type == "sum":
                sums += makers
                waiting += op.input("X")
            elif op.type in _LOOK_UP_GRADS:
                gradients += makers
            else:
                return None
        return gradients, sums

    # ---- parameters ----

    def _receive(self, op: Operator) -> None:
        param = op.attr("op_role_var")[0]
        names = list(op.attr("recv_varnames")) or op.output("Out")
        if not op.attr("recv_varnames") and len(names) > 1:
            self.sections[param] = [self.block.var_recursive(n).shape[0] for n in names]
        self.work.received.append(self._dense(param, op.attr("epmap"), names))

    def _drop_joins(self) -> None:
        """Pieces are put together as they come."""
        pieces = {p.name for d in self.work.received if len(d.pieces) > 1 for p in d.pieces}
        for i, op in enumerate(self.block.ops):
            if op.type == "concat" and (set(op.input("X")) <= pieces or set(op.input("X")) == set(op.output("Out"))):
                self.gone.add(i)

    # ---- what stays ----

    def _rewrite(self) -> None:
        """Take the operators out, and read rows at positions."""
        ops: list[Operator] = []
        for i, (op, twin) in enumerate(zip(self.block.ops, list(self.local.ops), strict=True)):
            if op.type == LOOK_UP:
                ops += [self._read_here(op, ids, out) for ids, out in zip(op.input("Ids"), op.output("Outputs"), strict=True)]
            elif i not in self.gone:
                if op.type in _LOOK_UP_GRADS and op.input("W")[0] in self.look_ups:
                    look_up = self.look_ups[op.input("W")[0]]
                    twin.inputs["Ids"] = [f"{op.input('Ids')[0]}@{look_up.table}"]
                    twin.attrs["padding_idx"] = -1  # sparse rows of the padding are a gradient like others
                ops.append(twin)
        self.local.ops = ops
        for name in self.look_ups:
            var = self.local.var(name)
            var._shape = (-1, *var.shape[1:])
        self._forget_unused()
        self.work.local._touch()
        self.work.local.verify("a trainer's program without what servers do")

    def _read_here(self, op: Operator, ids: str, out: str) -> Operator:
        (table,) = op.input("W")
        padding = op.attr("padding_idx")
        at = self.look_ups[table].paddings.index(padding) if padding != -1 else -1
        made = self.local.append_op(op.attr("lookup_table_version"), {"W": table, "Ids": f"{ids}@{table}"}, {"Out": out},
                                    {"padding_idx": at, "is_sparse": True, "op_role": op.attr("op_role")})
        self.local.ops.pop()
        return made

    def _forget_unused(self) -> None:
        """Take away variables that only what has gone used."""
        used = {n for b in self.work.local.blocks for op in b.ops for n in op.input_arg_names + op.output_arg_names}
        asked = {n for u in self.work.look_ups for n in u.ids}
        for name, var in list(self.local.vars.items()):
            if name not in used and not (var.persistable or var.is_data or name in asked):
                del self.local.vars[name]
