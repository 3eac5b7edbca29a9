"""Limits on the growth of a program while it is traced: nested blocks are traced repeatedly, loops are unrolled."""

import sys

from jfluid import errors
from jfluid.ir.operator import Operator

# most operators of a trace: for each operator of the program, and for the smallest program
_FACTOR, _LEAST = 256, 20_000
_FRAMES = 60  # of Python, for tracing a block in a block
_WRITTEN_OUT = 16  # bodies of loops within loops that are written out, all together


def make_room(depth: int) -> None:
    """Raise Python's recursion limit for nested blocks of a depth.

    The limit stays raised: other threads may trace at the same time.
    """
    needed = 1000 + _FRAMES * depth
    if depth > 4 and sys.getrecursionlimit() < needed:
        sys.setrecursionlimit(needed)


class Expansion:
    """Counter of the operators that a trace lowers; an operator in a block counts each time the block is traced.

    Attributes:
        bodies: number of copies of the current operator that the enclosing unrolled loops make.
    """

    def __init__(self) -> None:
        self._lowered = 0
        self._most = _LEAST
        self.bodies = 1

    def count(self, op: Operator) -> None:
        """Count an operator. Raises UnsupportedError where there are far more than in its program."""
        self._lowered += 1
        if self._lowered <= self._most:
            return
        program = op.block.program
        self._most = _LEAST + _FACTOR * sum(len(b.ops) for b in program.blocks)
        if self._lowered > self._most:
            raise errors.UnsupportedError(
                f"the program's blocks within blocks become more than {self._most} operators when they "
                "are compiled: nest fewer loops and conditions, or give loops no bound that is known"
            )

    def may_write_out(self, iterations: int, most: int = _WRITTEN_OUT) -> bool:
        """Return True if a loop may be unrolled for `iterations`, within the enclosing unrolled loops."""
        return self.bodies * iterations <= most
