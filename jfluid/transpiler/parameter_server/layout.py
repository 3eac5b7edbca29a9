"""Layout of a job: the server of each row of each parameter.

DistributeTranspiler decides it (`placement`) and writes it into the operators of the programs that
it makes; `Layout.of_program` reads it from there, also of a program that was read from a file.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid.ir.operator import Operator
from jfluid.ir.program import Program

LOOK_UP, SEND, RECV, SERVE = "distributed_lookup_table", "send", "recv", "listen_and_serv"
SPLITS = ("split_byref", "split_selected_rows", "split_ids")
_BARRIERS = ("send_barrier", "fetch_barrier")
TRAINERS_OPS = frozenset({LOOK_UP, SEND, RECV, "fake_init", *_BARRIERS})
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a variable on one server.

    Attributes:
        name: of the variable there: "w", or "w.block0" of a parameter in several pieces.
        server: its number.
        first: the first row; 0 where hashes of ids say which rows a server has.
        shape: there; `shape[0]` rows.
    """

    name: str
    server: int
    first: int
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.shape[0]


@dataclass(frozen=True)
class ParameterLayout:
    """Layout of a parameter on servers.

    Attributes:
        shape: of the whole.
        pieces: in the order of rows.
        hashed: True for a distributed table: each server holds the rows with ids that hash to it, and each piece
            stands for the whole.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    hashed: bool = False

    @property
    def width(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[1:])

    def split(self, value: Array) -> dict[str, Array]:
        """Return the pieces, by their names, of a value of the parameter's shape."""
        if len(self.pieces) == 1:
            return {self.pieces[0].name: value.reshape(self.pieces[0].shape)}
        parts = np.split(value, [p.first for p in self.pieces[1:]])
        return {p.name: part for p, part in zip(self.pieces, parts, strict=True)}

    def join(self, pieces: Mapping[str, Array]) -> Array:
        """Return the value that these pieces make up."""
        if len(self.pieces) == 1:
            return pieces[self.pieces[0].name]
        return np.concatenate([pieces[p.name] for p in self.pieces])


@dataclass(frozen=True)
class JobLayout:
    """Layout of the parameters of a job.

    Attributes:
        endpoints: endpoints of all servers, in the job's order; a piece's `server` is a position in this list.
        parameters: parameters by name.
    """

    endpoints: tuple[str, ...]
    parameters: Mapping[str, ParameterLayout]

    @staticmethod
    def of_program(program: Program, endpoints: Sequence[str] = ()) -> "JobLayout":
        """Return the layout that the operators of a trainer's program name: of all parameters that it trains.

        With GEO it is the startup program that names them. `endpoints` are the servers in the job's order,
        where the caller knows it.
        """
        return _Decoder(program, list(endpoints) or endpoints_of(program)).layout


def endpoints_of(program: Program) -> list[str]:
    """Return all servers of a program's job, in the job's order.

    DistributeTranspiler records the endpoints. For a loaded program they follow from its operators and from
    PADDLE_PSERVERS_IP_PORT_LIST: some operators name all servers in order, some only the servers that they need.
    A server's program names only itself.
    """
    if program.division is not None:
        return list(program.division.layout.endpoints)
    ops = program.global_block().ops
    for op in ops:
        if op.type in _BARRIERS:
            return list(op.attr("endpoints"))
    from jfluid.environment.process import RoleVariables

    told = list(RoleVariables.from_env().pserver_endpoints)
    for op in ops:
        if op.type == SERVE:
            number = max(op.attr("pserver_id"), 0)
            return told if len(told) > number else [op.attr("endpoint")] * (number + 1)
    # Tables with rows by hashes of ids are at all servers, in the job's order; further tables at some servers.
    look_ups = sorted((op for op in ops if op.type == LOOK_UP), key=lambda op: bool(op.attr("height_sections")))
    found = [e for op in look_ups for e in op.attr("endpoints")]
    named = list(dict.fromkeys(found + [e for op in ops if op.type in (SEND, RECV) for e in op.attr("epmap")]))
    return told if set(named) <= set(told) else named


class _Decoder:
    """Reads the layout from the operators of a trainer's program."""

    def __init__(self, program: Program, endpoints: list[str]):
        self._block = program.global_block()
        self._endpoints = endpoints
        self._found: dict[str, ParameterLayout] = {}
        ops = self._block.ops
        self._writers = {n: op for op in ops for n in op.output_arg_names}
        sections = dict(self._sections(op) for op in ops if op.type == SEND and _of_parameter(op))
        for op in ops:
            if op.type == LOOK_UP:
                rows = op.attr("height_sections")
                self._add(op.input("W")[0], op.attr("table_names"), op.attr("endpoints"), rows, hashed=not rows)
        for op in ops:
            if op.type == RECV:
                param, names = (op.attr("op_role_var")[0], list(op.attr("recv_varnames")) or op.output("Out"))
                rows = sections.get(param, [])
                if not op.attr("recv_varnames") and len(names) > 1:
                    rows = [self._block.var_recursive(n).shape[0] for n in names]
                self._add(param, names, op.attr("epmap"), rows)
        for op in ops:
            if op.type == SEND and _of_parameter(op):
                param, count = op.attr("op_role_var")[0], len(op.attr("epmap"))
                names = [param] if count == 1 else [f"{param}.block{i}" for i in range(count)]
                self._add(param, names, op.attr("epmap"), sections[param])
        self.layout = JobLayout(tuple(self._endpoints), self._found)

    def _sections(self, send: Operator) -> tuple[str, list[int]]:
        """Return a parameter, and the number of rows of each piece of the gradient; none if it is sent whole."""
        split = self._writers.get(send.input("X")[0])
        rows = list(send.attr("sections"))
        if split is not None and split.type in SPLITS:
            rows = list(split.attrs.get("sections", ()) or split.attrs.get("height_sections", ()))
        return send.attr("op_role_var")[0], rows

    def _add(
        self, param: str, names: Sequence[str], endpoints: Sequence[str], rows: Sequence[int], hashed: bool = False
    ) -> None:
        if param in self._found:
            return
        shape = tuple(self._block.var_recursive(param).shape)
        rows = rows or [shape[0] if shape else 1] * len(endpoints)
        firsts = [0] * len(rows) if hashed else [0, *itertools.accumulate(rows)]
        pieces = tuple(
            Piece(name, self._endpoints.index(e), int(first), (int(n), *shape[1:]) if shape else ())
            for name, e, first, n in zip(names, endpoints, firsts, rows, strict=False)
        )
        self._found[param] = ParameterLayout(param, shape, pieces, hashed)


def _of_parameter(send: Operator) -> bool:
    """Return True for gradients of a parameter, and not for a count of steps or ids."""
    return bool(send.attrs.get("op_role_var")) and not send.attr("merge_add")
