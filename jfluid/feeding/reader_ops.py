"""Reader operators and variables: `read` operators take the next batch from a reader that is bound to the program."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax

from jfluid import errors
from jfluid.compile.runtime.device_feeds import FeedPlacer
from jfluid.feeding.batch_source import BatchSource
from jfluid.feeding.data_feeder import Feed
from jfluid.feeding.prefetch import ClosableQueue, Prefetch
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import Variable
from jfluid.ops.definition import REQUIRED
from jfluid.ops.registry import declare
from jfluid.record.phases import PHASES

declare(
    "create_py_reader",
    reaches=None,
    ins=("blocking_queue",),
    outs=("Out*",),
    attrs={
        "device_count": ("INT", 1),
        "device_index": ("INT", 0),
        "use_data_config": ("BOOLEAN", True),
        "dtypes": ("INTS", REQUIRED),
        "lod_levels": ("INTS", REQUIRED),
        "need_check_feed": ("INTS", REQUIRED),
        "ranks": ("INTS", REQUIRED),
        "shape_concat": ("INTS", REQUIRED),
    },
)
declare(
    "create_double_buffer_reader",
    reaches=None,
    ins=("UnderlyingReader",),
    outs=("Out",),
    attrs={"place": ("STRING", "AUTO")},
)
declare(
    "read",
    reaches=None,
    ins=("Reader",),
    outs=("Out*",),
    attrs={
        "drop_last": ("BOOLEAN", True),
        "infer_out": ("BOOLEAN", True),
        "throw_eof_exp": ("BOOLEAN", True),
    },
)


class ReaderSession:
    """Yields a source's batches to `Executor.run`, between `start` and `reset`.

    Args:
        source: of the batches.
        double_buffer: copy the next batch to the device while the step runs.
        place: the device for that; None for the device of the calling Executor.
    """

    def __init__(self, source: BatchSource, double_buffer: bool, place: Any = None):
        self.source, self.double_buffer, self.place = source, double_buffer, place
        self._placer = FeedPlacer()
        self._host: Prefetch[Feed] | None = None
        self._batches: Prefetch[Feed] | None = None

    @property
    def queue(self) -> ClosableQueue[Any] | None:
        """The batches that were read ahead; None before `start`."""
        return None if self._host is None else self._host.queue

    def start(self) -> None:
        """Begin an epoch. Raises ReaderError while one runs, or when no reader was set."""
        if self._host is not None:
            raise errors.ReaderError("the reader was started already: call reset() before the next start()")
        self._host = self.source.read()

    def reset(self) -> None:
        """End the epoch, and wait for its reader to end."""
        for prefetch in (self._batches, self._host):
            if prefetch is not None:
                prefetch.join()
        self._host = self._batches = None

    def next(self, device: jax.Device) -> Feed:
        """Return the next batch.

        Raises EOFException when there is none, ReaderError or FeedError when the reader failed.
        """
        if self._host is None:
            raise errors.ReaderError("the program reads from a reader that was not started: call its start() first")
        if self._batches is None:
            self._batches = self._host
            if self.double_buffer:
                target = device if self.place is None else self.place.device()
                self._batches = Prefetch(partial(_placed, self._placer, self._host, target), 1, upstream=self._host)
        with PHASES.phase("reader"):
            for batch in self._batches:
                return batch
        raise errors.EOFException("the reader has no more batches: call reset(), and start() for the next epoch")


def _placed(placer: FeedPlacer, batches: Iterable[Feed], device: jax.Device) -> Iterator[Feed]:
    return (placer.place(batch, device) for batch in batches)


class ReaderVariable(Variable):
    """A program's reader: the variable that `read` operators name.

    Copies of the program share the reader.

    `layers.py_reader` returns it: set the source of batches, then `start()` each epoch,
    run the program until `fluid.core.EOFException`, and `reset()`.
    """

    session: ReaderSession

    @classmethod
    def make(cls, block: Block, name: str, session: ReaderSession) -> "ReaderVariable":
        variable = cls(block, type=VarType.READER, name=name, persistable=True, stop_gradient=True)
        block.vars[name] = variable
        variable.session = session
        return variable

    @property
    def queue(self) -> ClosableQueue[Any] | None:
        """The batches that were read ahead (`size()`, `capacity()`); None before `start`."""
        return self.session.queue

    def start(self) -> None:
        """Begin an epoch. Raises ReaderError while one runs, or when no reader was set."""
        self.session.start()

    def reset(self) -> None:
        """End the epoch, and wait for its reader to end."""
        self.session.reset()

    def decorate_sample_list_generator(self, reader: Callable[[], Iterable[Any]]) -> None:
        """Read lists of samples, each with a field for every slot."""
        self.session.source.set_sample_lists(reader)

    decorate_paddle_reader = decorate_sample_list_generator

    def decorate_batch_generator(self, reader: Callable[[], Iterable[Any]]) -> None:
        """Read batches: a list or tuple with an array or LoDTensor for every slot."""
        self.session.source.set_batches(reader)

    decorate_tensor_provider = decorate_batch_generator


def create_reader(
    session: ReaderSession, checks: Sequence[bool], block: Block, name: str | None = None
) -> ReaderVariable:
    """Append the operator that creates a reader to `block`.

    `checks`: which slots' shapes are checked against the program.
    """
    slots = session.source.slots
    queue = block.create_var(
        name=f"{name}_queue" if name else unique_name.generate("lod_tensor_blocking_queue"),
        type=VarType.RAW,
        stop_gradient=True,
    )
    reader = ReaderVariable.make(block, f"{name}_reader" if name else unique_name.generate("create_py_reader"), session)
    block.append_op(
        "create_py_reader",
        {"blocking_queue": queue},
        {"Out": reader},
        {
            "shape_concat": [d for slot in slots for d in slot.shape],
            "ranks": [len(slot.shape) for slot in slots],
            "lod_levels": [slot.lod_level for slot in slots],
            "dtypes": [int(var_type(slot.np_dtype)) for slot in slots],
            "need_check_feed": [int(check) for check in checks],
        },
    )
    return reader


def double_buffered(reader: ReaderVariable, place: Any = None, name: str | None = None) -> ReaderVariable:
    """Append the operator that buffers a reader on a device to the main program; the new reader shares the batches."""
    block = default_main_program().current_block()
    reader.session.double_buffer, reader.session.place = True, place
    buffered = ReaderVariable.make(block, name or unique_name.generate("double_buffer"), reader.session)
    block.append_op(
        "create_double_buffer_reader",
        {"UnderlyingReader": reader},
        {"Out": buffered},
        {} if place is None else {"place": str(place).upper()},
    )
    return buffered


def append_read(reader: ReaderVariable, outs: Sequence[Variable], drop_last: bool = True) -> None:
    """Append the operator that gives `outs` the next batch of the reader."""
    for slot, out in zip(reader.session.source.slots, outs, strict=True):
        out.set_shape_dtype(slot.shape, var_type(slot.np_dtype))
        out.lod_level, out.stop_gradient = slot.lod_level, True
    default_main_program().current_block().append_op(
        "read", {"Reader": reader}, {"Out": list(outs)}, {"drop_last": drop_last}
    )
