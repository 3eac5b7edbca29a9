"""Blocks within blocks: how deep, and how often one is named.

Whatever walks through the blocks of operators goes into each as often as it is named, and as deep as
they are nested. Both are bounded here, so that the walk takes time in proportion to the program.
"""

from typing import Any

from jfluid import errors

MOST_DEPTH = 64  # of blocks within blocks
_FACTOR, _LEAST = 16, 1000


def check(program: Any, what: str = "program") -> int:
    """Return the nesting depth of blocks.

    Raises ProgramError for blocks that are nested in a cycle, too deep, or so often that running all of
    them is far more work than the program's size.

    Args:
        program: a Program.
        what: names the program in errors.
    """
    if len(program.blocks) == 1 and not any(op.sub_blocks() for op in program.blocks[0].ops):
        return 0
    named = {b: [s for op in b.ops for s in op.sub_blocks()] for b in program.blocks}
    most = _LEAST + _FACTOR * sum(len(b.ops) for b in program.blocks)
    sizes: dict[Any, int] = {}  # number of operators of a block and its nested blocks
    depths: dict[Any, int] = {}
    entered: set[Any] = set()
    waiting = list(program.blocks)
    while waiting:
        block = waiting[-1]
        inside = named.get(block, [])  # a block of a different program
        if block in sizes:
            waiting.pop()
        elif block not in entered:
            entered.add(block)
            if any(b in entered and b not in sizes for b in inside):
                raise errors.ProgramError(
                    f"{what}: block {block.idx} names an enclosing block, which recurses "
                    "without end: an operator names blocks nested in its block"
                )
            waiting += [b for b in inside if b not in sizes]
        else:
            waiting.pop()
            sizes[block] = len(block.ops) + sum(sizes[b] for b in inside)
            depths[block] = 1 + max((depths[b] for b in inside), default=-1)
            if depths[block] > MOST_DEPTH:
                raise errors.ProgramError(
                    f"{what}: blocks are nested deeper than {MOST_DEPTH}, from block {block.idx} on"
                )
            if sizes[block] > most:
                raise errors.ProgramError(
                    f"{what}: operators name blocks repeatedly, so that a run of block "
                    f"{block.idx} is more than {most} operators: name each block once"
                )
    return max(depths.values())


def check_depth(block: Any) -> None:
    """Raise ProgramError for a block that is nested deeper than `MOST_DEPTH`."""
    depth, around = 0, block.parent
    while around is not None:
        depth, around = depth + 1, around.parent
        if depth > MOST_DEPTH:
            raise errors.ProgramError(
                f"block {block.idx} is nested in more than {MOST_DEPTH} blocks: nest fewer conditions "
                "and loops (layers.case and switch_case nest one for each branch). A converted function that calls "
                "itself in a branch upon a tensor nests without end: write a while loop, or decide by a Python number"
            )
