"""Programs with reader operators: the engine removes these operators, and feeds the next batch of the readers."""

from collections.abc import Mapping
from typing import Any

import jax

from jfluid import errors
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.feeding.reader_ops import ReaderSession, ReaderVariable
from jfluid.ir.program import Program

_READER_OPS = ("create_py_reader", "create_double_buffer_reader", "read")


class ReaderFeeds:
    """Replaces the reader operators of programs by feeds."""

    def __init__(self) -> None:
        self._without = LruCache[tuple[Program, list[tuple[str, list[str]]]] | None]()

    def reads(self, program: Program) -> bool:
        """Return whether the program has reader operators."""
        return self._parts(program) is not None

    def _parts(self, program: Program) -> tuple[Program, list[tuple[str, list[str]]]] | None:
        return self._without.get_or_make(program.identity, lambda: _split(program))

    def feed(self, program: Program, feed: Any, device: jax.Device) -> tuple[Program, Any]:
        """Return the program without reader operators, and the feed with the batches of the readers."""
        found = self._parts(program)
        if found is None:
            return program, feed
        plain, reads = found
        if not isinstance(feed or {}, Mapping):
            raise errors.FeedError(
                f"feed: expected a dict from names to arrays beside the program's readers, found {type(feed).__name__}"
            )
        given = feed or {}
        twice = [name for _, names in reads for name in names if name in given]
        if twice:
            raise errors.FeedError(
                f"feed {', '.join(twice)}: the program reads this from a DataLoader or py_reader; feed a "
                "program that was built with iterable=True, or leave it out of the feed"
            )
        values = dict(given)
        for name, outs in reads:
            values |= zip(outs, _session(program, name).next(device).values())
        return plain, values


def _split(program: Program) -> tuple[Program, list[tuple[str, list[str]]]] | None:
    """Return the program without reader operators, and (reader, output names) of each `read` operator."""
    ops = program.global_block().ops
    if not any(op.type in _READER_OPS for op in ops):
        return None
    reads = [(op.input("Reader")[0], op.output("Out")) for op in ops if op.type == "read"]
    plain = program._copy()
    block = plain.global_block()
    block.ops = [op for op in block.ops if op.type not in _READER_OPS]
    # Names of readers are numbered: without them a program that is built again has the same
    # fingerprint.
    readers = {n for op in ops for n in op.input_arg_names if op.type in _READER_OPS}
    readers |= {
        n for op in ops for n in op.output_arg_names if op.type.startswith("create_") and op.type in _READER_OPS
    }
    block.vars = {n: v for n, v in block.vars.items() if n not in readers}
    plain._touch()
    return plain, reads


def _session(program: Program, name: str) -> ReaderSession:
    reader = program.global_block().vars.get(name)
    if not isinstance(reader, ReaderVariable):
        raise errors.ReaderError(
            f"the program reads from {name}, a reader of the process that built the program: saved "
            "programs do not carry readers. Build the program here, or save it with "
            "save_inference_model and feed it"
        )
    return reader.session
