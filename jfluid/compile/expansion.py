"""How much a program grows while it is traced: blocks may be traced several times, loops written out."""

import sys

from jfluid import errors
from jfluid.ir.operator import Operator

# operators of one trace: so many for each of the program's, and what the smallest program may have
_FACTOR, _LEAST = 256, 20_000
_FRAMES = 60  # of Python, for tracing a block in a block
_WRITTEN_OUT = 16  # bodies of loops within loops that are written out, all together


def make_room(depth: int) -> None:
    """Let Python's stack grow as far as tracing blocks that lie so deep in each other needs, for good:
    other threads may trace at the same time.
    """
    needed = 1000 + _FRAMES * depth
    if depth > 4 and sys.getrecursionlimit() < needed:
        sys.setrecursionlimit(needed)


class Expansion:
    """Counts the operators that one trace lowers, those in blocks as often as they are traced.

    Attributes:
        bodies: how often the current operator is written out by the loops around it.
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
        """Return whether a loop may be written out that often, within those around it."""
        return self.bodies * iterations <= most
