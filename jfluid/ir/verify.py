"""The verifier: what must hold of every program, checked after each rewrite."""
from typing import TYPE_CHECKING

from jfluid import errors
from jfluid.ir import schema
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.variable import EMPTY_NAME

if TYPE_CHECKING:
    from jfluid.ir.program import Program


def verify(program: "Program", what: str = "program") -> "Program":
    """Check that a program is well formed, and return it. `what` names the rewrite in errors.

    Every slot and attribute must be known to its operator, every name declared, and every variable that is
    neither persistable nor fed written before it is read.

    Raises ProgramError, naming the operator, its position and the line that made it.
    """
    for block in program.blocks:
        if block.idx and not 0 <= block.parent_idx < len(program.blocks):
            raise errors.ProgramError(f"{what}: block {block.idx} has no parent block {block.parent_idx}")
        for i, op in enumerate(block.ops):
            try:
                _check(op, block)
            except errors.ProgramError as e:
                raise errors.ProgramError(f"{_where(what, op, i)}: {e}") from e
    _check_order(program.global_block(), what)
    return program


def _where(what: str, op: Operator, position: int) -> str:
    return f"{what}: operator {op.type} (block {op.block.idx}, position {position}, {op.callsite or 'no source line'})"


def _check(op: Operator, block: Block) -> None:
    schema.current().check(op)
    for name in op.input_arg_names + op.output_arg_names:
        if name != EMPTY_NAME and block.find_var_recursive(name) is None:
            raise errors.ProgramError(f"it names {name}, which no block declares")


def _check_order(block: Block, what: str) -> None:
    """What is neither kept in the Scope nor fed must be written before it is read, if the block writes it at all."""
    last_write = {name: i for i, op in enumerate(block.ops) for name in op.output_arg_names}
    written: set[str] = set()
    for i, op in enumerate(block.ops):
        for name in op.input_arg_names:
            if name not in written and last_write.get(name, -1) > i:
                var = block.find_var_recursive(name)
                if var is not None and not var.persistable and not var.is_data:
                    raise errors.ProgramError(f"{_where(what, op, i)} reads {name} before an operator writes it")
        written.update(op.output_arg_names)
