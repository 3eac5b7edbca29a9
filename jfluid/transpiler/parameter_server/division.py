"""Division of a program: the variables that servers hold, for checkpoints that save and load whole variables."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jfluid.ir.program import Program
from jfluid.transpiler.parameter_server.layout import JobLayout, Piece
from jfluid.transpiler.parameter_server.placement import ParameterPlacement, UpdatedPiece, table_options
from jfluid.transpiler.parameter_server.server import variables_on


@dataclass
class SavedVariable:
    """A variable of the original program that servers hold.

    Attributes:
        shape, dtype: of the whole.
        pieces: in the order of rows. Of a number that several servers have (a learning rate, a
            power of Adam) each piece is the whole.
        parameter: True for a parameter, False for a value that its updates need.
        table: the parameter of which this is a value, or the optimizer's state, of each row; empty
            for dense variables.
        distributed: hashes of ids, and not `pieces`, say which server has a row.
        counts: the summed variable, if servers sum up the trainers' steps; this variable follows from
            the sum.
        setting: it is a number that updates read and do not write, such as a learning rate.
        table_options: of a distributed table: which ids get a row, and how many there may be (see
            ParamAttr).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: list[Piece] = field(default_factory=list)
    parameter: bool = False
    table: str = ""
    distributed: bool = False
    counts: tuple[str, ...] = ()
    setting: bool = False
    table_options: dict[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[1:])

    @property
    def cut(self) -> bool:
        """True if the pieces are rows of the whole."""
        return bool(self.shape) and not self.distributed and sum(p.rows for p in self.pieces) == self.shape[0]


@dataclass(eq=False)
class Division:
    """Division of a program between trainers and servers.

    Attributes:
        layout: where the parameters are.
        trainer: the number of the trainer that the program is for.
        origin: the program before it was divided.
        variables: the variables of `origin` that servers hold, by name.
    """

    layout: JobLayout
    trainer: int
    origin: Program
    variables: dict[str, SavedVariable]


def division(placement: ParameterPlacement, origin: Program) -> Division:
    """Return how a placement divides `origin`."""
    block, found = origin.global_block(), dict[str, SavedVariable]()
    counting = {n for op in placement.updates.schedule for n in op.output_arg_names}
    counter = placement.counter.output("Out")[0] if placement.counter is not None else ""
    for endpoint in placement.endpoints:
        for name, held, piece in _at(placement, endpoint):
            var = block.find_var_recursive(name)
            if var is None or not var.persistable:
                continue
            if name not in found:
                own = any(name in u.own for u in placement.updates.all)
                found[name] = SavedVariable(
                    name,
                    tuple(var.shape),
                    str(var.np_dtype),
                    parameter=name in placement.held,
                    counts=tuple(placement.counts()) * (name == counter),
                    setting=held is None and not own and name not in counting,
                )
            if held is not None and _by_rows(placement, held):
                found[name].table, found[name].distributed = (held.update.param.name, held.update.distributed)
                found[name].table_options = table_options(held.update.param)
            found[name].pieces.append(piece)
    for variable in found.values():
        variable.pieces.sort(key=lambda p: p.first)
    return Division(placement.layout, placement.trainer_id, origin, found)


def _by_rows(placement: ParameterPlacement, held: UpdatedPiece) -> bool:
    return held.update.remote if placement.config.geo_sgd_mode else held.update.sparse


def _at(placement: ParameterPlacement, endpoint: str) -> Iterator[tuple[str, UpdatedPiece | None, Piece]]:
    """Return (original name, piece of the parameter with its rows, piece) of each variable on a server."""
    if placement.config.geo_sgd_mode:  # trainers keep the optimizer's state
        for held in placement.at(endpoint):
            yield held.update.param.name, held, held.piece
        return
    for name, given in variables_on(placement, endpoint).items():
        for variable in given:
            yield name, variable.of, variable.piece
