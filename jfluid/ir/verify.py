"""The verifier: what must hold of every program, checked after each rewrite."""
from typing import TYPE_CHECKING

from jfluid import errors
from jfluid.ir import schema
from jfluid.ir.prune import reads_of
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
        written: set[str] = set()
        for i, op in enumerate(block.ops):
            where = f"{what}: operator {op.type} (block {block.idx}, position {i}, {op.callsite or 'no source line'})"
            try:
                schema.current().check(op)
            except errors.ProgramError as e:
                raise errors.ProgramError(f"{where}: {e}") from e
            for name in op.input_arg_names + op.output_arg_names:
                if name != EMPTY_NAME and block.find_var_recursive(name) is None:
                    raise errors.ProgramError(f"{where} names {name}, which no block declares")
            if block.idx == 0:
                for name in reads_of(op) - written:
                    var = block.find_var_recursive(name)
                    if var is not None and not var.persistable and any(name in later.output_arg_names for later in block.ops[i:]):
                        if name not in op.output_arg_names and not var.is_data:
                            raise errors.ProgramError(f"{where} reads {name} before an operator writes it")
                written.update(op.output_arg_names)
    return program
