"""Holdings: which variables of a program servers hold, for those who save and load them whole."""
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jfluid.ir.program import Program
from jfluid.transpiler.parameter_server.placement import Held, Placement, table_options
from jfluid.transpiler.parameter_server.server import Home, homes


@dataclass(frozen=True)
class Part:
    """What one server has of a variable: `shape[0]` rows from `first` on, under a name of its own."""

    server: int
    name: str
    first: int
    shape: tuple[int, ...]


@dataclass
class Kept:
    """A variable of the original program that servers hold.

    Attributes:
        shape, dtype: of the whole.
        parts: in the order of rows. Of a number that several servers have (a learning rate, a power of Adam) each part is the
            whole.
        parameter: whether it is a parameter, and not what its updates need.
        table: the parameter of which this is a value, or the optimizer's state, of each row; empty for dense variables.
        distributed: hashes of ids, and not `parts`, say which server has a row.
        counts: where servers sum up the trainers' steps, what they sum; the variable follows from it.
        setting: it is a number that updates read and do not write, such as a learning rate.
        table_options: of a distributed table: which ids get a row, and how many there may be (see ParamAttr).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    parts: list[Part] = field(default_factory=list)
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
        """Whether the parts are rows of the whole."""
        return bool(self.shape) and not self.distributed and sum(p.shape[0] for p in self.parts) == self.shape[0]


@dataclass(eq=False)
class Holdings:
    """What servers hold of a program's variables.

    Attributes:
        origin: the program before it was divided.
        trainer: the number of the trainer that the program is for.
        kept: by the variables' names in it.
    """

    endpoints: list[str]
    trainer: int
    origin: Program
    kept: dict[str, Kept]


def holdings(placement: Placement, origin: Program) -> Holdings:
    """What the servers of a placement hold of `origin`."""
    block, kept = origin.global_block(), dict[str, Kept]()
    counting = {n for op in placement.updates.schedule for n in op.output_arg_names}
    counter = placement.counter.output("Out")[0] if placement.counter is not None else ""
    for server, endpoint in enumerate(placement.endpoints):
        for name, held, home in _at(placement, endpoint):
            var = block.find_var_recursive(name)
            if var is None or not var.persistable:
                continue
            if name not in kept:
                own = any(name in u.own for u in placement.updates.all)
                kept[name] = Kept(name, tuple(var.shape), str(var.np_dtype), parameter=name in placement.held,
                                  counts=tuple(placement.counts()) * (name == counter),
                                  setting=held is None and not own and name not in counting)
            if held is not None and _by_rows(placement, held):
                kept[name].table, kept[name].distributed = held.update.param.name, held.update.distributed
                kept[name].table_options = table_options(held.update.param)
            kept[name].parts.append(Part(server, home.name, held.piece.first if held is not None else 0, home.shape))
    for variable in kept.values():
        variable.parts.sort(key=lambda p: p.first)
    return Holdings(list(placement.endpoints), placement.trainer_id, origin, kept)


def _by_rows(placement: Placement, held: Held) -> bool:
    return held.update.remote if placement.config.geo_sgd_mode else held.update.sparse


def _at(placement: Placement, endpoint: str) -> Iterator[tuple[str, Held | None, Home]]:
    """(name in the original program, piece, what it is there) of each variable at a server."""
    if placement.config.geo_sgd_mode:  # trainers keep the optimizer's state
        for held in placement.at(endpoint):
            yield held.update.param.name, held, Home(held.param, held.piece.shape, held)
        return
    for name, given in homes(placement, endpoint).items():
        for home in given:
            yield name, home.held, home
