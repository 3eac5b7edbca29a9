"""`fluid.transpiler.details`: programs as text, operators found and removed, servers waited for."""

import contextlib
import socket
import sys
import time
from collections.abc import Iterable
from typing import IO

from jfluid.errors import ServerError, UnsupportedError
from jfluid.ir import printer
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.printer import variable_to_code
from jfluid.ir.program import Program

__all__ = [
    "block_to_code",
    "delete_ops",
    "find_op_by_input_arg",
    "find_op_by_output_arg",
    "op_to_code",
    "program_to_code",
    "variable_to_code",
    "wait_server_ready",
]
_SECONDS_OF_A_TRY = 2.0
_SECONDS_BETWEEN_TRIES = 0.5


def delete_ops(block: Block, ops: Iterable[Operator]) -> None:
    """Remove operators from a block."""
    for op in ops:
        block._remove_op(block.ops.index(op))


def find_op_by_input_arg(block: Block, arg_name: str) -> int:
    """Return the position of the first operator that reads a variable; -1 where none does."""
    return next((i for i, op in enumerate(block.ops) if arg_name in op.input_arg_names), -1)


def find_op_by_output_arg(block: Block, arg_name: str, reverse: bool = False) -> int:
    """Return the position of the first (with `reverse` the last) writer of a variable, or -1."""
    found = [i for i, op in enumerate(block.ops) if arg_name in op.output_arg_names]
    return found[-1 if reverse else 0] if found else -1


def op_to_code(op: Operator, skip_op_callstack: bool = True) -> str:
    """Return an operator for reading, without the lines that made it.

    Raises UnsupportedError where they are asked for.
    """
    _without_callstack(skip_op_callstack)
    return printer.operator_to_code(op)


def block_to_code(block: Block, block_idx: int, fout: IO[str] | None = None, skip_op_callstack: bool = True) -> None:
    """Print a block for reading, to stdout or to a file; the heading has the block's number.

    Raises as `op_to_code`.
    """
    _without_callstack(skip_op_callstack)
    print(printer.block_to_code(block, show_backward=True), file=fout)


def program_to_code(prog: Program, fout: IO[str] | None = None, skip_op_callstack: bool = True) -> None:
    """Print a program for reading, to stdout or to a file. Raises as `op_to_code`."""
    _without_callstack(skip_op_callstack)
    print(printer.program_to_code(prog, show_backward=True), file=fout)


def _without_callstack(skip_op_callstack: bool) -> None:
    if not skip_op_callstack:
        raise UnsupportedError(
            "skip_op_callstack=False: programs are printed without the lines that made their operators; errors name "
            "these lines"
        )


def wait_server_ready(endpoints: Iterable[str]) -> None:
    """Wait until a server listens at each of the endpoints; missing endpoints are named on stderr.

    Raises ServerError unless the endpoints are a list of `host:port`.
    """
    if isinstance(endpoints, str) or not all(":" in str(endpoint) for endpoint in endpoints):
        raise ServerError(f"wait_server_ready: expected a list of host:port, found {endpoints!r}")
    waited = set(endpoints)
    said: set[str] = set()
    while waited := {endpoint for endpoint in waited if not _listens(endpoint)}:
        if waited != said:
            print(f"waiting for servers: {', '.join(sorted(waited))}", file=sys.stderr, flush=True)
            said = waited
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), _SECONDS_OF_A_TRY),
    ):
        return True
    return False
