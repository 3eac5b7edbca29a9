"""Blocks in blocks: opening one, and closing it by the operator that runs it."""

from collections.abc import Sequence
from typing import Any

from jfluid.ir.block import Block, reads_of, writes_of
from jfluid.ir.program import Program, default_main_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable


def captured(block: Block) -> tuple[list[str], list[str]]:
    """Return the outer variables of a block: (names read before a write, names written)."""
    reads: set[str] = set()
    written: set[str] = set()
    for op in block.ops:
        reads |= reads_of(op) - written
        written |= writes_of(op)
    own = set(block.vars)
    return sorted(reads - own), sorted(written - own)


class Inside:
    """Context in which operators are appended to a new block.

    At its end it calls `close`, unless an error ends it.
    """

    def __init__(self, program: Program | None = None):
        self.program = program or default_main_program()

    def __enter__(self) -> Any:
        self.outside = self.program.current_block()
        self.inside = self.program.create_block()
        return self.inside

    def __exit__(self, *error: object) -> None:
        self.program.rollback()
        if error[0] is None:
            self.close()

    def close(self) -> None:
        """Append the operator that runs `inside` to `outside`."""
        raise NotImplementedError


class conditional(Inside):
    """Context for a block that runs if `condition` is true: a boolean Variable of one element, or several.

    Variables from outside that the block writes keep their values where the condition does not
    hold. With `scalar=False` the condition selects rows, and the block computes with those
    (`IfElse`).
    """

    def __init__(self, condition: Variable | Sequence[Variable], scalar: bool = True):
        super().__init__()
        self.conditions = [condition] if isinstance(condition, Variable) else list(condition)
        self.scalar = scalar

    def close(self) -> None:
        reads, writes = captured(self.inside)
        scope = self.outside.create_var(type=VarType.STEP_SCOPES)
        self.outside.append_op(
            "conditional_block",
            {"Cond": self.conditions, "Input": reads},
            {"Out": writes, "Scope": [scope]},
            {"sub_block": self.inside, "is_scalar_condition": self.scalar},
        )
