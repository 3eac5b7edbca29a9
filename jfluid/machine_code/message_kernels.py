"""The loss of a step that goes on, sent to the host, for LLVM."""

import sys
from typing import Any

from llvmlite import ir

from jfluid.machine_code import xla_tasks
from jfluid.machine_code.llvm_writer import FLOAT, I32, I64, POINTER, VOID, Function, Module

NAME = "jfluid_message"
# The numbers of a call, see `xla_tasks.py` for the first two.
GEOMETRY = "chunks memory bytes".split()


def names() -> list[str]:
    """Return the names of the functions; none where sockets are written to in another way."""
    return [NAME] if sys.platform == "linux" else []


def write(module: Module) -> None:
    """Write down the functions of all names."""
    xla_tasks.define(module, NAME, _send(module), divided=False)


def _send(module: Module) -> Any:
    """Writes a message to the file whose number is the first of `to`, and makes a one."""
    pointers = dict.fromkeys(("message", "to", "one", "geometry", "memory"), POINTER)
    f = Function(module, "message_send", VOID, **pointers, chunk=I64)
    size = f.load(f.at(f.v["geometry"], I64(GEOMETRY.index("bytes")), kind=I32), I32)
    f.c("write", f.load(f.v["to"], I32), f.v["message"], f.b.zext(size, I64))
    f.b.store(ir.Constant(FLOAT, 1.0), f.v["one"], align=4)
    return f.end()
