"""`fluid.distribute_lookup_table`: where a program looks up its distributed table.

As in Fluid these see operators of `layers.embedding` alone, and not those of `fluid.embedding`.
"""

from collections.abc import Iterator

from jfluid import errors
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable

__all__ = [
    "find_distributed_lookup_table",
    "find_distributed_lookup_table_inputs",
    "find_distributed_lookup_table_outputs",
]

LOOKUP_TABLE_TYPE = "lookup_table"


class SeveralTablesError(errors.ProgramError, RuntimeError):
    """A program has several distributed tables."""


def _look_ups(program: Program) -> Iterator[Operator]:
    return (op for op in program.global_block().ops if op.type == LOOKUP_TABLE_TYPE)


def find_distributed_lookup_table(program: Program) -> str | None:
    """Return the name of the table with `is_distributed`; None where there is none.

    Raises SeveralTablesError where there are several.
    """
    found = {op.input("W")[0] for op in _look_ups(program) if op.attr("is_distributed")}
    if len(found) > 1:
        raise SeveralTablesError(f"expected one distributed table in the program, found {', '.join(sorted(found))}")
    return next(iter(found), None)


def find_distributed_lookup_table_inputs(program: Program, table_name: str) -> list[Variable]:
    """Return the ids of each look-up of the table."""
    return _variables(program, table_name, "Ids")


def find_distributed_lookup_table_outputs(program: Program, table_name: str) -> list[Variable]:
    """Return the rows of each look-up of the table."""
    return _variables(program, table_name, "Out")


def _variables(program: Program, table_name: str, slot: str) -> list[Variable]:
    block = program.global_block()
    return [
        block.var(name)
        for op in _look_ups(program)
        if op.input("W")[0] == table_name
        for name in (op.input if slot == "Ids" else op.output)(slot)
    ]
