"""Variables that are fed, and the readers of programs that read."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.feeding.batch_source import BatchSource
from jfluid.feeding.data_feeder import FeedSpec
from jfluid.feeding.reader_ops import ReaderSession, ReaderVariable, append_read, create_reader, double_buffered
from jfluid.ir.program import default_main_program, default_startup_program
from jfluid.ir.types import VarType, np_dtype
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper

__all__ = ["create_py_reader_by_data", "data", "double_buffer", "load", "py_reader", "read_file"]


def data(
    name: str,
    shape: Sequence[int],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: VarType = VarType.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Variable:
    """Declare a variable that is fed.

    Args:
        name: the name to feed it by.
        shape: the dimensions of one example; -1 or None where they vary.
        append_batch_size: put a -1 before `shape`, unless `shape` has a -1 itself.
        dtype: the element type.
        lod_level: how many levels of sequences the feed has; 0 for none.
        type: the kind of variable.
        stop_gradient: True if no gradient flows to it.
    """
    dims = [-1 if d is None else int(d) for d in shape]
    if append_batch_size and all(d >= 0 for d in dims):
        dims = [-1, *dims]
    return declare(name, dims, dtype, lod_level, type, stop_gradient, need_check_feed=False)


def declare(
    name: str,
    shape: Sequence[int],
    dtype: Any,
    lod_level: int,
    type: VarType = VarType.LOD_TENSOR,
    stop_gradient: bool = True,
    need_check_feed: bool = True,
) -> Variable:
    """Declare a fed variable in the global block of the main program."""
    return (
        default_main_program()
        .global_block()
        .create_var(
            name=name,
            shape=shape,
            dtype=dtype,
            type=type,
            lod_level=lod_level,
            stop_gradient=stop_gradient,
            is_data=True,
            need_check_feed=need_check_feed,
        )
    )


def load(out: Variable, file_path: str, load_as_fp16: bool | None = None) -> None:
    """Append an operator that reads a variable from a file each time that the program runs.

    Args:
        out: the variable that takes the value.
        file_path: a file that a `save` operator or `fluid.io.save_vars` wrote, with this variable alone.
        load_as_fp16: True if floating values become float16; else they stay as they are stored.

    Raises TypeError for an `out` that is no Variable; the run raises FileFormatError, naming the
    file and the variable, for a file that is missing or damaged.
    """
    if not isinstance(out, Variable):
        raise TypeError(f"load: expected a Variable as out, found {type(out).__name__}")
    helper = LayerHelper("load")
    attrs: dict[str, Any] = {"file_path": file_path}
    if load_as_fp16 is not None:
        attrs["load_as_fp16"] = load_as_fp16
    helper.append_op("load", outputs={"Out": out}, attrs=attrs)


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> ReaderVariable:
    """Create a reader of batches for `read_file`.

    Args:
        capacity: how many batches are read ahead.
        shapes: the shape of a batch of each slot; -1 where a dimension varies.
        dtypes: the element type of each slot.
        lod_levels: how many levels of sequences each slot has; all 0 when None.
        name: prefix of the names of its variables.
        use_double_buffer: bring the next batch to the device while the program runs.

    Returns:
        The reader. Say where batches come from by `decorate_sample_list_generator` (or
            `decorate_paddle_reader`) or `decorate_batch_generator` (or `decorate_tensor_provider`),
            then `start()` and `reset()` it each epoch.

    Raises FeedError when the numbers of shapes, dtypes and levels differ, or `capacity` is not
    positive.
    """
    levels = [0] * len(shapes) if lod_levels is None else lod_levels
    if not len(shapes) == len(dtypes) == len(levels) or not shapes:
        raise errors.FeedError(
            f"py_reader: expected the same number, at least one, of shapes, dtypes and lod_levels, found "
            f"{len(shapes)}, {len(dtypes)} and {len(levels)}"
        )
    slots = [
        FeedSpec(f"{name or 'py_reader'}[{i}]", tuple(int(d) for d in shape), np_dtype(dtype), level)
        for i, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels))
    ]
    return _reader(slots, [False] * len(slots), capacity, name, use_double_buffer)


def create_py_reader_by_data(
    capacity: int, feed_list: Sequence[Variable], name: str | None = None, use_double_buffer: bool = True
) -> ReaderVariable:
    """Create a reader like `py_reader`, with shapes, dtypes and levels of the variables in `feed_list`.

    Raises TypeError when `feed_list` is no list of Variables, FeedError when it is empty or
    `capacity` is not positive.
    """
    if not isinstance(feed_list, list) or not all(isinstance(v, Variable) for v in feed_list):
        raise TypeError(f"feed_list: expected a list of Variables, found {feed_list!r:.80}")
    if not feed_list:
        raise errors.FeedError("feed_list: expected the variables to read, found none")
    return _reader(
        [FeedSpec.of(v) for v in feed_list], [v.need_check_feed for v in feed_list], capacity, name, use_double_buffer
    )


def _reader(
    slots: list[FeedSpec], checks: list[bool], capacity: int, name: str | None, buffered: bool
) -> ReaderVariable:
    """Create a reader in the startup program and declare it in the main program, as in Fluid."""
    session = ReaderSession(BatchSource(slots, capacity), False)
    made = create_reader(session, checks, default_startup_program().current_block(), name)
    reader = ReaderVariable.make(default_main_program().current_block(), made.name, session)
    return double_buffered(reader, name=f"{name}_double_buffer" if name else None) if buffered else reader


def double_buffer(reader: ReaderVariable, place: Any = None, name: str | None = None) -> ReaderVariable:
    """Return a reader that transfers the next batch of `reader` to the device while the program runs.

    Args:
        reader: made by `py_reader`.
        place: the device; that of the Executor when None.
        name: the name of the new reader.

    Raises TypeError for any other `reader`.
    """
    return double_buffered(_check_reader(reader, "double_buffer"), place, name)


def read_file(reader: ReaderVariable) -> Variable | list[Variable]:
    """Return the variables of the reader's next batch: one, or a list with one for each slot.

    Raises TypeError when `reader` is no reader.
    """
    helper = LayerHelper("read_file")
    outs = [
        helper.create_variable_for_type_inference() for _ in _check_reader(reader, "read_file").session.source.slots
    ]
    append_read(reader, outs)
    return outs[0] if len(outs) == 1 else outs


def _check_reader(reader: Any, layer: str) -> ReaderVariable:
    if not isinstance(reader, ReaderVariable):
        raise TypeError(f"layers.{layer}, reader: expected a reader of layers.py_reader, found {type(reader).__name__}")
    return reader
