"""The loss of a step that goes on, sent to the host, for LLVM."""

import sys
from typing import Any

import numpy as np
from llvmlite import ir

from jfluid.machine_code import xla_tasks
from jfluid.machine_code.extents import Array, Extents
from jfluid.machine_code.llvm_writer import FLOAT, I32, I64, POINTER, VOID, Function, Module

NAME = "jfluid_message"
# The numbers of a call, see `xla_tasks.py` for the first two.
GEOMETRY = "chunks memory bytes".split()
TO = 2  # numbers of what says where to send it: the file, and the number of the message
HEADER = 2  # numbers before a message that waits to be sent


def names() -> list[str]:
    """Return the names of the functions; none where sockets are written to in another way."""
    return [NAME] if sys.platform == "linux" else []


def write(module: Module) -> None:
    """Write down the functions of all names."""
    # Who is told wakes up where it is told, and whose processor that is waits: not the thread that goes on with the step.
    xla_tasks.define_with_rest(module, NAME, _prepare(module), _send(module))


def extents(name: str, n: Any) -> Extents:
    """Return what the function reads and writes with these numbers."""
    numbers = n.bytes // 4
    given = [Array(numbers, np.int32), Array(TO, np.int32)]
    holds = [("whole numbers", n.bytes == 4 * numbers)]
    return Extents(given, [Array(1)], HEADER + numbers, holds)


def _prepare(module: Module) -> Any:
    """Copies a message, behind the file's number, which is the first of `to`, and its size; and makes a one."""
    pointers = dict.fromkeys(("message", "to", "one", "geometry", "memory"), POINTER)
    f = Function(module, xla_tasks.chunk_of(NAME), VOID, **pointers, chunk=I64)
    size = f.load(f.at(f.v["geometry"], I64(GEOMETRY.index("bytes")), kind=I32), I32)
    memory = f.v["memory"]
    f.b.store(f.load(f.v["to"], I32), memory)
    f.b.store(size, f.at(memory, I64(1), kind=I32))
    f.c("memcpy", f.at(memory, I64(HEADER), kind=I32), f.v["message"], f.b.zext(size, I64))
    f.b.store(ir.Constant(FLOAT, 1.0), f.v["one"], align=4)
    return f.end()


def _send(module: Module) -> Any:
    """Writes the message to the file."""
    f = Function(module, "message_send", VOID, memory=POINTER)
    file, size = (f.load(f.at(f.v["memory"], I64(i), kind=I32), I32) for i in range(HEADER))
    f.c("write", file, f.at(f.v["memory"], I64(HEADER), kind=I32), f.b.zext(size, I64))
    return f.end()
