"""Loops over the steps of sequences of any lengths, for LLVM kernels.

Sequences are independent: a chunk of the work takes a group of sequences through all steps, and the group's state
stays in a core's cache. Sequences are sorted, the longest first: the sequences of a group that have a step are
always the group's first. Rows of a sequence are read and written in place.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from jfluid.machine_code import ffi_runtime
from jfluid.machine_code.extents import Array, parts
from jfluid.machine_code.llvm_writer import I32, I64, POINTER, Module
from jfluid.machine_code.processor import LANES
from jfluid.machine_code.vector_functions import MOST_ROWS, VectorFunctions

# The first numbers of a call, see `ffi_runtime.py` for the first two. There are `batches` of arrays, which
# share weights, each of `number` sequences in `rows` rows. A group has `group` sequences; a row follows
# another of its sequence `stride` rows later.
GEOMETRY = "chunks memory batches rows number width group stride backwards".split()
# What is known of the sequences of a batch, int32 [PLACES number + 1]: for each, the longest first, its
# number; then its first row; then its length; at last how many rows there are, behind which is padding.
PLACES = 3
ALIGNED = 16  # float32 of memory beside what groups ask for
_LINE = 64  # bytes


def memory(n: Any, numbers: int) -> int:
    """Return the float32 of scratch memory of a thread: `numbers` for each number of a group's state."""
    return int(numbers * n.group * n.width + ALIGNED)


def sizes(n: Any, sums: int) -> tuple[Callable[[int], Array], Array, Array, Array]:
    """Return the extents of arrays of rows (a function of the width), of states, of sums and of places.

    Args:
        n: the geometry.
        sums: the width of a chunk's sums, in state widths.
    """
    return (
        lambda numbers: Array(n.batches * n.rows * n.width * numbers),
        Array(n.batches * n.number * n.width),
        Array(n.chunks * n.width * sums),
        Array(n.batches * (PLACES * n.number + 1), np.int32),
    )


def holds(n: Any) -> list[tuple[str, bool]]:
    """Return the conditions that a call's geometry must satisfy."""
    return [
        ("a width of whole vectors", n.width > 0 and n.width % LANES == 0),
        (f"groups of 1 to {MOST_ROWS} sequences", 1 <= n.group <= MOST_ROWS),
        ("sequences", n.number > 0 and n.stride > 0),
        ("a chunk for each group", n.chunks == n.batches * parts(n.number, n.group)),
    ]


class Group:
    """Writer of a chunk's kernel: loops over the steps of a group of sequences and over its rows.

    Args:
        arrays: the function's arguments, "places" among them, see `PLACES`.
        of_rows: arrays that have rows, with their width in state widths.
        of_sequences: arrays that have a row [width] for each sequence. All batches share the rest.
        geometry: names of a call's numbers.

    Attributes:
        f: the function.
        count: how many sequences the group has.
        places: pointer to the table of sequences, see `PLACES`.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        arrays: str,
        of_rows: dict[str, int],
        of_sequences: str,
        geometry: Sequence[str],
    ):
        self.f = ffi_runtime.begin_chunk(module, name, arrays.split(), geometry)
        f, v, b = self.f, self.f.v, self.f.b
        self.vectors = VectorFunctions(f)
        batch = b.srem(v["chunk"], v["batches"])
        self.part = b.sdiv(v["chunk"], v["batches"])
        sizes = {name: (v["rows"], numbers) for name, numbers in of_rows.items()}
        sizes |= dict.fromkeys(of_sequences.split(), (v["number"], 1))
        for array, (count, numbers) in sizes.items():
            v[array] = f.at(v[array], f.product(batch, count, v["width"], I64(numbers)))
        known = f.sum(f.product(v["number"], I64(PLACES)), I64(1))
        places = f.at(v["places"], f.product(batch, known), kind=I32)
        self.first = f.product(self.part, v["group"])
        self.count = f.least(v["group"], b.sub(v["number"], self.first))
        self.places = places
        self.total = self._known(f.product(v["number"], I64(PLACES)))
        self.longest = self.known(2, I64(0))
        scratch = b.ptrtoint(v["scratch"], I64)
        aligned = b.inttoptr(b.and_(f.sum(scratch, I64(_LINE - 1)), I64(-_LINE)), POINTER)
        self._memory = aligned

    def memory(self, numbers: int) -> Any:
        """Allocate scratch memory of `numbers` state widths for each sequence of the group."""
        f, found = self.f, self._memory
        self._memory = f.at(found, f.product(f.v["group"], f.v["width"], I64(numbers)))
        return found

    def _known(self, at: Any) -> Any:
        return self.f.b.sext(self.f.load(self.f.at(self.places, at, kind=I32), I32), I64)

    def known(self, what: int, row: Any) -> Any:
        """Load a field of a sequence of the group from the table of sequences."""
        f = self.f
        return self._known(f.sum(f.product(f.v["number"], I64(what)), self.first, row))

    def of_sequence(self, array: Any, row: Any) -> Any:
        """Return a pointer to the row of a sequence of the group in an array [number, width]."""
        return self.f.at(array, self.f.product(self.known(0, row), self.f.v["width"]))

    def of_row(self, array: Any, row: Any, numbers: int = 1) -> Any:
        """Return a pointer to a row of an array [rows, numbers width]."""
        return self.f.at(array, self.f.product(row, self.f.v["width"], I64(numbers)))

    def copy(self, target: Any, source: Any) -> None:
        self.f.c("memcpy", target, source, self.f.product(self.f.v["width"], I64(4)))

    @contextmanager
    def steps(self) -> Iterator[tuple[Any, Any]]:
        """Loop over the steps of the longest sequence; yield the step and the number of sequences that have it."""
        f, b = self.f, self.f.b
        active = f.variable(I64, self.count)
        with f.loop(self.longest) as step:
            with f.repeat() as leave:
                last = b.sub(f.load(active, I64), I64(1))
                leave(b.icmp_signed(">", self.known(2, last), step))
                b.store(last, active)
            yield step, f.load(active, I64)

    def at_step(self, row: Any, step: Any, from_end: bool) -> tuple[Any, Any, Any]:
        """Return the row of a sequence in a step, the row of the step before, and True if that row exists."""
        f, v, b = self.f, self.f.v, self.f.b
        length = self.known(2, row)
        left = b.sub(b.sub(length, I64(1)), step)
        backwards = b.icmp_signed("!=", v["backwards"], I64(0))
        time = b.select(backwards, *((step, left) if from_end else (left, step)))
        here = f.sum(self.known(1, row), f.product(time, v["stride"]))
        before = b.select(backwards, f.sum(here, v["stride"]), b.sub(here, v["stride"]))
        is_first = left if from_end else step
        return here, before, b.icmp_signed("!=", is_first, I64(0))

    @contextmanager
    def columns(self) -> Iterator[Any]:
        """Loop over the vectors of the width; yield the first column."""
        with self.f.loop(self.f.b.sdiv(self.f.v["width"], I64(LANES))) as i:
            yield self.f.product(i, I64(LANES))

    def parts(self, base: Any, column: Any, count: int) -> list[Any]:
        """Return pointers to a vector of each of `count` parts of a row; a part is a state wide."""
        f = self.f
        return [f.at(base, f.product(f.v["width"], I64(i)), column) for i in range(count)]

    def clear(self, target: Any, numbers: Any) -> None:
        self.f.c("memset", target, I32(0), self.f.product(numbers, I64(4)))

    @contextmanager
    def padding(self) -> Iterator[Any]:
        """Loop over the padding rows, in the first group only; yield the row."""
        with self.f.b.if_then(self.f.b.icmp_signed("==", self.part, I64(0))):
            with self.f.loop(self.f.v["rows"], self.total) as row:
                yield row

    def states_before(self, row: Any, step: Any, starts: dict[str, str]) -> tuple[Any, dict[str, Any]]:
        """Return the row of a sequence in a step of a reversed loop, and pointers to the states before it by name.

        Args:
            starts: arrays of the states, with the arrays of their initial states.
        """
        f = self.f
        here, earlier, is_there = self.at_step(row, step, from_end=True)

        def place(name: str, start: str) -> Any:
            places = self.of_row(f.v[name], earlier), self.of_sequence(f.v[start], row)
            return f.b.select(is_there, *places)

        return here, {name: place(name, start) for name, start in starts.items()}

    def clear_padding(self, numbers: dict[str, int]) -> None:
        """Zero the padding rows of arrays; `numbers` has the arrays' widths in state widths."""
        f = self.f
        with self.padding() as row:
            for name, count in numbers.items():
                size = f.product(f.v["width"], I64(count))
                self.clear(self.of_row(f.v[name], row, count), size)

    def copy_to_padding(self, *arrays: Any) -> None:
        """Fill the padding rows of arrays [rows, width] with a copy of a row."""
        f = self.f
        empty = f.b.icmp_signed("==", self.longest, I64(0))
        with self.padding() as row, f.b.if_else(empty) as (nothing, something):
            with nothing:
                for array in arrays:
                    self.clear(self.of_row(array, row), f.v["width"])
            with something:
                for array in arrays:
                    source = self.known(1, I64(0))
                    self.copy(self.of_row(array, row), self.of_row(array, source))
