"""Startup programs of servers: for a distributed table only the initializer of rows is recorded."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jfluid import errors
from jfluid.engine import Engine, Fetched, Runner
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.scope import Scope, ScopeVariable

if TYPE_CHECKING:
    from jfluid.ps_server import specs


def initializes_rows(program: Program) -> bool:
    """Return True for a server's startup program with tables that create rows at the first look-up."""
    return any(_is_row_initializer(op) for op in program.global_block().ops)


def _is_row_initializer(op: Operator) -> bool:
    if op.input_arg_names or len(op.output_arg_names) != 1 or "shape" not in op.attrs:
        return False
    var = op.block.vars.get(op.output_arg_names[0])
    return var is not None and var.type == VarType.SELECTED_ROWS and var.persistable


def initializer(op: Operator) -> "specs.Initializer":
    """Return the initializer (of jfluid.ps_server.specs) that an operator stands for.

    Raises UnsupportedError for others.
    """
    from jfluid.ps_server import specs

    known: dict[str, Callable[[], specs.Initializer]] = {
        "fill_constant": lambda: specs.Constant(value=op.attr("value")),
        "uniform_random": lambda: specs.Uniform(low=op.attr("min"), high=op.attr("max")),
        "gaussian_random": lambda: specs.Normal(mean=op.attr("mean"), std=op.attr("std")),
        "truncated_gaussian_random": lambda: specs.TruncatedNormal(mean=op.attr("mean"), std=op.attr("std")),
    }
    if op.type not in known:
        raise errors.UnsupportedError(
            f"table {op.output_arg_names[0]}: rows of a distributed table cannot be initialized by "
            f"{op.type}; use a constant, uniform, normal or truncated normal initializer"
        )
    return known[op.type]()


class Startup(Runner):
    """Startup program of a server: initializers of tables are recorded in the scope, the rest runs.

    The record is `ScopeVariable.row_initializer`. Where a script has put rows into the scope, the operator fills these.
    """

    def __init__(self, program: Program, engine: Engine):
        self._engine, self._program = engine, program
        self._initializers = {
            op.output_arg_names[0]: (initializer(op), self._seed(op))
            for op in program.global_block().ops
            if _is_row_initializer(op)
        }
        self._rests: dict[frozenset[str], Program] = {}

    @staticmethod
    def _seed(op: Operator) -> int:
        """Return the seed of the rows, equal on all servers and after a restart: so is the row of an id."""
        given = op.attr("seed") if op.type != "fill_constant" else 0
        return int(given) or op.block.program.streams.uid(op.type, op.output_arg_names[0])

    def _rest(self, recorded: frozenset[str]) -> Program:
        """Return the program without the initializers of tables."""
        if recorded not in self._rests:
            rest = self._rests[recorded] = self._program._copy()
            block = rest.global_block()
            block.ops = [op for op in block.ops if not (_is_row_initializer(op) and op.output_arg_names[0] in recorded)]
            rest._touch()
        return self._rests[recorded]

    def run_alone(self, feed: Any, fetches: list[str], scope: Scope) -> list[Fetched]:
        recorded = frozenset(n for n in self._initializers if not _has_rows(scope.find_var(n)))
        for name in recorded:
            scope.var(name).row_initializer = self._initializers[name]
        prepared = self._engine.prepare(self._rest(recorded), feed, fetches)
        return prepared.fetched(self._engine.execute(prepared, scope))


def _has_rows(var: ScopeVariable | None) -> bool:
    return var is not None and var.holds_selected_rows() and bool(var.get_selected_rows().rows())
