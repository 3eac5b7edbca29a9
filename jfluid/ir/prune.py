"""Cutting a program down to what its targets need."""
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jfluid import errors
from jfluid.ir.operator import Operator
from jfluid.ir.variable import EMPTY_NAME, Variable

if TYPE_CHECKING:
    from jfluid.ir.block import Block
    from jfluid.ir.program import Program


def outer_names(block: "Block") -> tuple[set[str], set[str]]:
    """Names that a block and those inside it read from, and write to, the enclosing blocks."""
    reads: set[str] = set()
    writes: set[str] = set()
    for op in block.ops:
        inner = [outer_names(b) for b in op.sub_blocks()]
        reads |= {n for n in op.input_arg_names if n not in block.vars}.union(*(r - set(block.vars) for r, _ in inner))
        reads |= _kept(op) - set(block.vars)
        writes |= {n for n in op.output_arg_names if n not in block.vars}.union(*(w - set(block.vars) for _, w in inner))
    return reads - {EMPTY_NAME}, writes - {EMPTY_NAME}


def _kept(op: Operator) -> set[str]:
    """Persistable names that the blocks of the operator write: where a block does not run, they keep what they hold."""
    found = [op.block.find_var_recursive(n) for b in op.sub_blocks() for n in outer_names(b)[1]]
    return {v.name for v in found if v is not None and v.persistable}


def reads_of(op: Operator) -> set[str]:
    """Names that the operator reads, those that its blocks read (or may leave alone) included."""
    return set(op.input_arg_names).union(_kept(op), *(outer_names(b)[0] for b in op.sub_blocks())) - {EMPTY_NAME}


def writes_of(op: Operator) -> set[str]:
    """Names that the operator writes, those that its blocks write included."""
    return set(op.output_arg_names).union(*(outer_names(b)[1] for b in op.sub_blocks())) - {EMPTY_NAME}


def prune(program: "Program", targets: Iterable[Variable | str | Operator], feeds: Iterable[str] = ()) -> "Program":
    """A copy of `program` that computes `targets` from `feeds` and the parameters, and nothing else.

    Raises ProgramError for a target that the global block does not know.
    """
    block, feeds = program.global_block(), set(feeds)
    wanted: set[str] = set()
    wanted_ops: set[int] = set()
    for target in targets:
        if isinstance(target, Operator):
            wanted_ops.add(target.idx)
            continue
        name = target.name if isinstance(target, Variable) else target
        if block.find_var_recursive(name) is None:
            raise errors.ProgramError(f"prune: the program has no variable {name}" + errors.close_to(name, block.vars))
        wanted.add(name)
    keep: list[int] = []
    needed = wanted - feeds
    for i in range(len(block.ops) - 1, -1, -1):
        op = block.ops[i]
        if i in wanted_ops or writes_of(op) & needed:
            keep.append(i)
            needed |= reads_of(op) - feeds
    twin = program._copy()
    new = twin.global_block()
    new.ops = [new.ops[i] for i in reversed(keep)]
    _drop_unused_blocks(twin)
    used = {n for b in twin.blocks for op in b.ops for n in op.input_arg_names + op.output_arg_names} | wanted | feeds
    for b in twin.blocks:
        b.vars = {n: v for n, v in b.vars.items() if n in used}
    twin._touch()
    return twin


def _drop_unused_blocks(program: "Program") -> None:
    """Empty the blocks that no operator names any more; indices of the others stay."""
    live, stack = {0}, [program.global_block()]
    while stack:
        for op in stack.pop().ops:
            for sub in op.sub_blocks():
                if sub.idx not in live:
                    live.add(sub.idx)
                    stack.append(sub)
    last = max(live)
    for block in program.blocks:
        if block.idx not in live:
            block.ops, block.vars = [], {}
    del program.blocks[last + 1:]
