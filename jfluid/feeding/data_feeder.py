"""`fluid.DataFeeder`: converts the samples of a reader to the feed of an Executor."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.host import aligned_memory
from jfluid.ir.program import Program, default_main_program
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor
from jfluid.places import CPUPlace, cpu_places, cuda_places

__all__ = ["DataFeeder"]

Feed = dict[str, LoDTensor]


@dataclass(frozen=True)
class FeedSpec:
    """The requirements of a fed variable. Unlike a Variable it does not keep the program alive.

    Attributes:
        shape: of a batch; -1 where a dimension varies.
        lod_level: the levels of its ragged rows.
    """

    name: str
    shape: tuple[int, ...]
    np_dtype: np.dtype[Any]
    lod_level: int = 0

    @classmethod
    def of(cls, variable: Variable) -> "FeedSpec":
        return cls(variable.name, tuple(variable.shape), variable.np_dtype, variable.lod_level)


class DataFeeder:
    """Turns mini-batches, lists of samples with one field for each variable, into feeds.

    Args:
        feed_list: variables, or names of variables of `program`, in the order of a sample's fields.
        place: where the program runs; decides how many devices `feed_parallel` and
            `decorate_reader` count.
        program: default: the default main program.

    Raises ValueError for a name that the program does not have, TypeError for what is neither a
    name nor a Variable.
    """

    def __init__(self, feed_list: Sequence[Variable | str], place: Any, program: Program | None = None):
        block = (program or default_main_program()).global_block()
        variables = [block.var(item) if isinstance(item, str) else item for item in feed_list]
        for variable in variables:
            if not isinstance(variable, Variable):
                raise TypeError(f"feed_list must hold Variables or their names, found {variable!r}")
        self._slots = [FeedSpec.of(variable) for variable in variables]
        self._place = place

    def feed(self, iterable: Iterable[Sequence[Any]]) -> Feed:
        """Return the feed of one mini-batch.

        A field has the variable's shape without the first dimension, or the same numbers in another
        rank, where that shape has no -1. The sizes of a field of the right rank are left for the
        Executor to check. A field of a variable with lod_level n is nested in n lists, and becomes
        rows with their LoD. Raises FeedError when a sample has a different number of fields, or a field
        cannot be brought to the shape and dtype.
        """
        return feed_of_samples(self._slots, iterable)

    def feed_parallel(
        self, iterable: Iterable[Iterable[Sequence[Any]]], num_places: int | None = None
    ) -> Iterator[Feed]:
        """Return the feeds of several mini-batches, one for each device.

        Raises FeedError when their numbers differ.
        """
        batches = list(iterable)
        devices = self._number_of_devices(num_places)
        if len(batches) != devices:
            raise errors.FeedError(f"expected one mini-batch for each of {devices} devices, found {len(batches)}")
        return map(self.feed, batches)

    def decorate_reader(
        self,
        reader: Callable[[], Iterable[Any]],
        multi_devices: bool,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[Any]]:
        """Return a reader of feeds from a reader of mini-batches.

        With `multi_devices` it gives lists with a feed for each device; mini-batches at the end
        that do not suffice for all devices are dropped, or raise FeedError without `drop_last`.
        """

        def feeds() -> Iterator[Any]:
            if not multi_devices:
                yield from map(self.feed, reader())
                return
            devices = self._number_of_devices(num_places)
            waiting: list[Any] = []
            for batch in reader():
                waiting.append(batch)
                if len(waiting) == devices:
                    yield list(self.feed_parallel(waiting, devices))
                    waiting = []
            if waiting and not drop_last:
                raise errors.FeedError(
                    f"the last {len(waiting)} mini-batches do not suffice for {devices} devices; "
                    "use drop_last=True, or a number of mini-batches that divides"
                )

        return feeds

    def _number_of_devices(self, num_places: int | None) -> int:
        if num_places is not None:
            return int(num_places)
        return len(cpu_places() if isinstance(self._place, CPUPlace) else cuda_places())


def feed_of_samples(slots: Sequence[FeedSpec], batch: Iterable[Sequence[Any]]) -> Feed:
    """Return the feed of a list of samples, each with a field for every slot; see `DataFeeder.feed`."""
    samples = list(batch)
    for number, sample in enumerate(samples):
        if not isinstance(sample, Sequence | np.ndarray) or len(sample) != len(slots):
            found = f"{len(sample)} fields" if hasattr(sample, "__len__") else repr(sample)
            raise errors.FeedError(
                f"sample {number}: expected {len(slots)} fields ({', '.join(s.name for s in slots)}), found {found}"
            )
    return {slot.name: _tensor(slot, [sample[field] for sample in samples]) for field, slot in enumerate(slots)}


def _tensor(slot: FeedSpec, fields: list[Any]) -> LoDTensor:
    lod: list[np.ndarray] = []
    for level in range(slot.lod_level):
        flat = next((field for field in fields if not hasattr(field, "__len__")), None)
        if flat is not None:
            raise errors.FeedError(
                f"feed {slot.name}: its lod_level is {slot.lod_level}, expected a sequence at "
                f"level {level}, found {flat!r}"
            )
        lod.append(np.cumsum([0, *map(len, fields)]))
        fields = [item for field in fields for item in field]
    shape = [len(fields), *slot.shape[1:]]
    try:
        if fields and isinstance(fields[0], np.ndarray):
            value = aligned_memory.stacked(fields, slot.np_dtype)
        else:
            value = np.asarray(fields, slot.np_dtype)
        if value.ndim != len(shape) and -1 not in shape:
            value = value.reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.FeedError(
            f"feed {slot.name}: expected {len(fields)} fields of shape {shape[1:]} and dtype {slot.np_dtype}: {error}"
        ) from None
    return LoDTensor(value, lod)
