"""Data generators: classes that a pipe command runs to turn raw lines into MultiSlot text.

class Clicks(MultiSlotDataGenerator):
    def generate_sample(self, line):
        def read():
            fields = line.split(",")
            yield [("ids", [int(f) for f in fields[1:]]), ("label", [int(fields[0])])]
        return read

Clicks().run_from_stdin()
"""

import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jfluid import errors

Sample = Sequence[tuple[str, Sequence[Any]]]
Reader = Callable[[], Iterable[Sample | None]]
_PLAIN = {int, float}


class DataGenerator:
    """Reads lines and prints samples as text.

    The subclasses below define the text of a sample; a user's subclass may override `_gen_str(sample)`.
    """

    def __init__(self) -> None:
        self._batch_size = 32
        self._proto_info: list[tuple[str, str]] | None = None

    def set_batch(self, batch_size: int) -> None:
        """Set how many samples `generate_batch` gets at a time."""
        if batch_size < 1:
            raise errors.DataError(f"set_batch: expected a whole number above 0, found {batch_size}")
        self._batch_size = batch_size

    def generate_sample(self, line: str | None) -> Reader:
        """Override: a function that yields the samples of a line (None for `run_from_memory`).

        A sample is a list of (slot's name, list of values), with the same slots in the same order
        in each; None is left out.
        """
        raise NotImplementedError(f"{type(self).__name__} must override generate_sample(self, line)")

    def generate_batch(self, samples: list[Sample]) -> Reader:
        """Override to change the samples of a batch: return a function that yields samples."""
        return lambda: samples

    def run_from_stdin(self) -> None:
        """Print the samples of all lines of the standard input."""
        self._print(sample for line in sys.stdin for sample in self.generate_sample(line)())

    def run_from_memory(self) -> None:
        """Print the samples that `generate_sample(None)` yields."""
        self._print(self.generate_sample(None)())

    def _print(self, samples: Iterable[Sample | None]) -> None:
        for batch in _batches(samples, self._batch_size):
            for sample in self.generate_batch(batch)():
                if sample is not None:
                    sys.stdout.write(self._gen_str(sample))
        sys.stdout.flush()

    def _gen_str(self, sample: Sample) -> str:
        """Return the line of a sample.

        Raises DataError for a value that is no sample, or a sample with other slots than the first sample.
        """
        if not isinstance(sample, (list, tuple)):
            raise errors.DataError(f"generate_sample: expected a list of (name, values), found {sample!r}")
        words, found = [], []
        for item in sample:
            if not (
                isinstance(item, (list, tuple))
                and len(item) == 2
                and isinstance(item[0], str)
                and isinstance(item[1], (list, tuple))
            ):
                raise errors.DataError(f"generate_sample: expected (name, list of values), found {item!r}")
            name, values = item
            if not values:
                raise errors.DataError(f"generate_sample: slot {name!r} is empty: write a padding value")
            found.append((name, self._type_of(name, values)))
            words += [str(len(values)), *map(str, values)]
        self._check(found)
        return " ".join(words) + "\n"

    def _check(self, found: list[tuple[str, str]]) -> None:
        if self._proto_info is None:
            self._proto_info = found
        names, first = [n for n, _ in found], [n for n, _ in self._proto_info]
        if names != first:
            raise errors.DataError(f"generate_sample: a sample has the slots {names}, the first one had {first}")
        self._proto_info = [(n, "float" if "float" in (a, b) else a) for (n, a), (_, b) in zip(self._proto_info, found)]

    def _type_of(self, name: str, values: Sequence[Any]) -> str:
        raise NotImplementedError(
            f"{type(self).__name__}: inherit from MultiSlotDataGenerator or "
            "MultiSlotStringDataGenerator, or override _gen_str(self, sample)"
        )


class MultiSlotDataGenerator(DataGenerator):
    """Samples of whole and decimal numbers."""

    def _type_of(self, name: str, values: Sequence[Any]) -> str:
        kinds = set(map(type, values))
        # nearly always; looking at the types alone takes a fraction of the time
        if kinds <= _PLAIN:
            return "float" if float in kinds else "uint64"
        for value in values:
            if not isinstance(value, numbers.Real):
                raise errors.DataError(f"generate_sample: slot {name!r}: expected numbers, found {value!r}")
        return "uint64" if all(isinstance(v, numbers.Integral) for v in values) else "float"


class MultiSlotStringDataGenerator(DataGenerator):
    """Generator of samples with values that are texts, printed unchanged: faster if nothing is computed."""

    def _type_of(self, name: str, values: Sequence[Any]) -> str:
        for value in values:
            if not isinstance(value, str):
                raise errors.DataError(f"generate_sample: slot {name!r}: expected texts, found {value!r}")
        return "string"


def _batches(samples: Iterable[Sample | None], size: int) -> Iterator[list[Sample]]:
    batch: list[Sample] = []
    for sample in samples:
        if sample is not None:
            batch.append(sample)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
