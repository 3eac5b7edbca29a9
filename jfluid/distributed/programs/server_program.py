"""Updates of a server's program by gradient, read from the program's blocks."""

from dataclasses import dataclass

from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.program import Program


@dataclass
class UpdateBlock:
    """Block of a server's program.

    Attributes:
        grad: the gradient that the block reads; `param` the parameter that it updates.
        ops: the block's operators, without the sum over trainers, which the server computes itself.
        state: persistable variables that it writes, and the kept values.
        kept: with DC-ASGD: of each trainer the variable that holds the value which it got last.
    """

    param: str
    grad: str
    block: Block
    ops: list[Operator]
    state: list[str]
    kept: list[str]


def updates_of(program: Program, listen: Operator) -> list[UpdateBlock]:
    """Return the updates of a server's program, one for each gradient that its `listen_and_serv` names."""
    found = []
    for entry in listen.attr("grad_to_block_id"):
        grad, _, index = entry.rpartition(":")
        block = program.blocks[int(index)]
        ops = list(block.ops)
        while (
            ops
            and ops[0].type in ("sum", "scale")
            and ops[0].attrs.get("op_role") == OpRole.Forward
            and ops[0].output("Out") == [grad]
        ):
            ops = ops[1:]
        written = dict.fromkeys(n for op in block.ops for n in op.output_arg_names)
        state = [n for n in written if n != grad and (v := block.find_var_recursive(n)) is not None and v.persistable]
        update = [op for op in ops if op.input("Param")]
        # GEO adds to the parameter
        param = update[0].input("Param")[0] if update else block.ops[0].output("Out")[0]
        kept = [n for op in ops if op.type == "ref_by_trainer_id" for n in op.input("X")]
        found.append(UpdateBlock(param, grad, block, ops, state + kept, kept))
    return found
