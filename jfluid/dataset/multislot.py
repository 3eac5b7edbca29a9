"""The MultiSlot text format, with a parser that numba compiles.

A line is one record: for each slot in order a count n >= 1 and then n values, whole numbers or
decimal ones, separated by spaces or tabs. Values stay in the order of the text, so that shuffling
moves only places.
"""

import base64
import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from jfluid.caches.compiled_kernels import kernel
from jfluid.dataset.text_bytes import byte as _byte
from jfluid.dataset.text_bytes import load as _load
from jfluid.lod_tensor import LoDTensor, MeasuredLod

# Errors of a line; the parser reports one of these numbers.
(
    BLANK,
    TAG_COUNT,
    COUNT,
    NO_VALUES,
    TOO_MANY,
    ENDS,
    WHOLE,
    WHOLE_RANGE,
    DECIMAL,
    DECIMAL_RANGE,
    REST,
) = range(1, 12)
_WRONG = {
    BLANK: "the line is blank; expected a count",
    TAG_COUNT: "expected the count 1 of an instance id or its content, found {found}",
    COUNT: "expected a count of values, found {found}",
    NO_VALUES: "the count is {found}; it must be at least 1 (write a padding value for a slot that is empty)",
    TOO_MANY: "the count is {found}, more than a line may hold",
    ENDS: "the line ends before all values of the slot",
    WHOLE: "expected a whole number, found {found}",
    WHOLE_RANGE: "{found} does not fit 64 bits",
    DECIMAL: "expected a number, found {found}",
    DECIMAL_RANGE: "{found} does not fit a 32-bit float",
    REST: "the line goes on after the last slot: {found}",
}
_LARGEST = float(np.finfo(np.float32).max) * (1 + 2.0**-25)
_POWERS = 10.0 ** np.arange(23)
_WHOLE_POWERS = 10 ** np.arange(9)
_TENTH, _MOST_VALUES = np.uint64((1 << 64) // 10), 1 << 30
_TAB, _NEWLINE, _RETURN, _SPACE, _PLUS, _MINUS, _DOT, _ZERO, _CAPITAL_E, _E = (
    np.uint8(ord(c)) for c in "\t\n\r +-.0Ee"
)


LONGEST_TAG = 24  # bytes of an id; a line has 8 at least


@dataclass(frozen=True)
class DatasetSlot:
    """Slot of a line.

    Attributes:
        name: the variable that it feeds.
        decimal: whether its values are float32, else int64.
        shape: of a record, for a dense slot; None for a ragged one.
        used: whether it feeds anything.
    """

    name: str
    decimal: bool
    shape: tuple[int, ...] | None = None
    used: bool = True

    @property
    def size(self) -> int:
        """Values a record; -1 for a ragged slot."""
        return -1 if self.shape is None else int(np.prod(self.shape))


@dataclass
class Records:
    """Parsed records, one after the other.

    Attributes:
        values: int64 [m]: the values in the order of the text; of decimal slots the bits of a
            float64.
        counts: int32 [n, slots].
        starts: int64 [n + 1]: where each record begins in `values`. A record's values are
            contiguous.
        tags: [n] of bytes: the records' ids, if the lines have them; for an id longer than
            LONGEST_TAG its digest.
    """

    values: Any
    counts: Any
    starts: Any
    tags: Any = None

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return sum(a.nbytes for a in (self.values, self.counts, self.starts, self.tags) if a is not None)

    def part(self, begin: int, end: int) -> "Records":
        """Return records begin..end, without copying."""
        first, last = self.starts[begin], self.starts[end]
        return Records(
            self.values[first:last],
            self.counts[begin:end],
            self.starts[begin : end + 1] - first,
            None if self.tags is None else self.tags[begin:end],
        )


def no_records(slots: int) -> Records:
    """Return an empty `Records` with a number of slots."""
    return Records(np.empty(0, np.int64), np.empty((0, slots), np.int32), np.zeros(1, np.int64))


def joined(parts: Sequence[Records]) -> Records:
    """Concatenate records."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([0] + [p.starts[-1] for p in parts])
    starts = [p.starts[:-1] + end for p, end in zip(parts, ends)]
    tags = None if parts[0].tags is None else np.concatenate([p.tags for p in parts])
    return Records(
        np.concatenate([p.values for p in parts]),
        np.concatenate([p.counts for p in parts]),
        np.concatenate([*starts, ends[-1:]]),
        tags,
    )


@intrinsic
def _zero_bits(typing: Any, number: Any) -> Any:
    """Return the number of zero bits below the lowest one bit; 64 for zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@kernel()
def _word(at):
    """Return the position of the next word of the line, or of the newline."""
    while _byte(at) == _SPACE or _byte(at) == _TAB or _byte(at) == _RETURN:
        at += 1
    return at


@kernel()
def _digits(at):
    """Return (value, number) of at most eight digits at `at`, without a branch for each digit.

    The bytes of digits become 0 to 9, bytes after the last digit are shifted out, and pairs, then fours, are combined.

    The bytes of digits become 0 to 9; those after the last digit are shifted out; pairs, then
    fours, are combined.
    """
    word = _load(at, np.uint64(0)) ^ np.uint64(0x3030303030303030)
    above = ((word & np.uint64(0x7F7F7F7F7F7F7F7F)) + np.uint64(0x7676767676767676)) | word
    number = _zero_bits(above & np.uint64(0x8080808080808080)) >> 3
    if number == 0:
        return np.int64(0), 0
    word = word << (np.uint64(8 - number) << np.uint64(3))
    word = word * np.uint64(10) + (word >> np.uint64(8))
    pairs = np.uint64(0x000000FF000000FF)
    value = (
        (word & pairs) * np.uint64(0x000F424000000064)
        + ((word >> np.uint64(16)) & pairs) * np.uint64(0x0000271000000001)
    ) >> np.uint64(32)
    return np.int64(value), number


@kernel()
def _whole(at, end):
    """Parse a whole number: (value, end, error code). Values from -2**63 to 2**64 - 1 wrap as in C."""
    if at + 8 < end:
        value, number = _digits(at)
        if 0 < number < 8 and _byte(at + number) <= _SPACE:
            return value, at + number, 0
    negative = _byte(at) == _MINUS
    if negative or _byte(at) == _PLUS:
        at += 1
    begin, large, wrong = at, np.uint64(0), 0
    while True:
        digit = np.uint8(_byte(at) - _ZERO)
        if digit > 9:
            break
        if at - begin >= 19 and large >= _TENTH and (large > _TENTH or digit > 5):
            wrong = WHOLE_RANGE
        large = large * np.uint64(10) + np.uint64(digit)
        at += 1
    if at == begin or _byte(at) > _SPACE:
        return np.int64(0), at, WHOLE
    if negative:
        if large > np.uint64(1) << np.uint64(63):
            wrong = WHOLE_RANGE
        large = np.uint64(0) - large
    return np.int64(large), at, wrong


@kernel()
def _decimal(at, end):
    """Parse a decimal number: (value, end, error code)."""
    if at + 17 < end:
        whole, number = _digits(at)
        point = at + number
        if 0 < number < 8 and _byte(point) == _DOT:
            behind, places = _digits(point + 1)
            if places < 8 and _byte(point + 1 + places) <= _SPACE:
                return (
                    np.float64(whole * _WHOLE_POWERS[places] + behind) / _POWERS[places],
                    point + 1 + places,
                    0,
                )
        elif 0 < number < 8 and _byte(point) <= _SPACE:
            return np.float64(whole), point, 0
    return _any_decimal(at)


@kernel()
def _any_decimal(at):
    """Parse a decimal number with sign, exponent and any length; the first 19 digits count."""
    negative = _byte(at) == _MINUS
    if negative or _byte(at) == _PLUS:
        at += 1
    mantissa, exponent, digits, seen, point = np.uint64(0), 0, 0, False, 0
    while True:
        digit = np.uint8(_byte(at) - _ZERO)
        if digit <= 9:
            seen = True
            if digits < 19:
                mantissa = mantissa * np.uint64(10) + np.uint64(digit)
                digits += mantissa > np.uint64(0)
                exponent -= point
            else:
                exponent += 1 - point
        elif _byte(at) == _DOT and not point:
            point = 1
        else:
            break
        at += 1
    if seen and (_byte(at) == _E or _byte(at) == _CAPITAL_E):
        at += 1
        below = _byte(at) == _MINUS
        if below or _byte(at) == _PLUS:
            at += 1
        power, seen = 0, False
        while np.uint8(_byte(at) - _ZERO) <= 9:
            power, seen = min(power * 10 + np.int64(_byte(at) - _ZERO), 100000), True
            at += 1
        exponent += -power if below else power
    if not seen or _byte(at) > _SPACE:
        return 0.0, at, DECIMAL
    value = np.float64(mantissa)
    while exponent < 0 and value != 0.0:
        step = min(-exponent, 22)
        value /= _POWERS[step]
        exponent += step
    while exponent > 0 and value != 0.0 and value <= _LARGEST:
        step = min(exponent, 22)
        value *= _POWERS[step]
        exponent -= step
    if value > _LARGEST:
        return 0.0, at, DECIMAL_RANGE
    return (-value if negative else value), at, 0


@kernel()
def _count(at, end):
    """Parse the count of a slot's values: (count, end, error code)."""
    count = np.int64(_byte(at)) - np.int64(_ZERO)
    if 0 < count <= 9 and _byte(at + 1) == _SPACE:  # as nearly every one
        at += 1
    elif _byte(at) == _NEWLINE:
        return 0, at, ENDS
    else:
        negative = _byte(at) == _MINUS
        count, at, wrong = _whole(at, end)
        if wrong == WHOLE:
            return 0, at, COUNT
        if negative or (count == 0 and not wrong):
            return 0, at, NO_VALUES
        if wrong or not 0 < count <= _MOST_VALUES:
            return 0, at, TOO_MANY
    return count, at, 0


@kernel()
def _tag(at):
    """(begin of a text after a count of 1, its end, the error, the position of the error)."""
    at = _word(at)
    if _byte(at) == _NEWLINE:
        return at, at, ENDS, at
    if _byte(at) != _ZERO + 1 or _byte(at + 1) > _SPACE:
        return at, at, TAG_COUNT, at
    begin = end = _word(at + 1)
    while _byte(end) > _SPACE:
        end += 1
    return begin, end, (0 if end > begin else ENDS), at


@kernel()
def _parse(text, begin, decimals, sizes, kept, tags, drop_zeros, values, floats, counts, starts, tag_places):
    """Parse lines from text[begin]: (records, lines, end, error code, slot of the error, place of the error).

    It stops at the end of the text, when `counts` is full, or after a wrong line, which is the last
    one counted.
    """
    base = np.int64(text.ctypes.data)
    at, end, records, lines = base + begin, base + len(text), 0, 0
    while at < end and records < len(counts):
        lines += 1
        used, wrong, slot = starts[records], 0, 0
        at = place = _word(at)
        if _byte(at) == _NEWLINE:
            wrong = BLANK
        tag = 0
        while not wrong and tag < tags:
            first, at, wrong, place = _tag(at)
            tag_places[records, tag, 0], tag_places[records, tag, 1] = first - base, at - base
            tag += 1
        while not wrong and slot < len(decimals):
            before, dropping = used, drop_zeros and sizes[slot] < 0
            place = _word(at)
            count, at, wrong = _count(place, end)
            while not wrong and count > 0:
                count -= 1
                place = _word(at)
                if _byte(place) == _NEWLINE:
                    at, wrong = place, ENDS
                elif decimals[slot]:
                    number, at, wrong = _decimal(place, end)
                    floats[used] = number
                    used += not (dropping and abs(number) < 1e-6)
                else:
                    whole, at, wrong = _whole(place, end)
                    values[used] = whole
                    used += not (dropping and whole == 0)
            # nothing but zeros, all dropped: one stays, as in Fluid
            if used == before and not wrong:
                values[used] = 0
                used += 1
            if not kept[slot]:
                used = before
            counts[records, slot] = used - before
            slot += not wrong
        if not wrong:
            at = place = _word(at)
            wrong = 0 if _byte(at) == _NEWLINE else REST
        if wrong:
            while _byte(at) != _NEWLINE:
                at += 1
            return records, lines, at + 1 - base, wrong, slot, place - base
        at += 1
        records += 1
        starts[records] = used
    return records, lines, at - base, 0, 0, 0


@kernel()
def _tokens(text, places, width):
    """Return the bytes between each pair of places, cut to `width` and padded with zeros: [n, width]."""
    out = np.zeros((len(places), width), np.uint8)
    for i in range(len(places)):
        for j in range(min(places[i, 1] - places[i, 0], width)):
            out[i, j] = text[places[i, 0] + j]
    return out


@kernel()
def _gather(values, floats, counts, starts, order, decimals, ends, wholes, numbers):
    """Values of the records in `order`, slot by slot: whole ones into `wholes`, decimal ones into `numbers`.

    `ends` [slots] holds where each slot begins in its array.
    """
    for record in order:
        at = starts[record]
        for slot in range(len(decimals)):
            to, count = ends[slot], counts[record, slot]
            if decimals[slot]:
                for i in range(count):
                    numbers[to + i] = floats[at + i]
            else:
                for i in range(count):
                    wholes[to + i] = values[at + i]
            ends[slot] = to + count
            at += count


class BadLine(Exception):
    """An invalid line: its number, counted from 1, the slot's name and the error."""

    def __init__(self, line: int, slot: str, problem: str):
        super().__init__(f"line {line}, {slot}: {problem}")
        self.line = line


class Parser:
    """Parser of text into records. Each thread needs a separate parser.

    Args:
        slots: what a line holds.
        tags: how many texts precede the slots, each after a count of 1; the first one names the
            record.
        drop_zeros: leave out zeros of ragged slots, as Fluid's InMemoryDataset does; one stays if a
            slot has nothing else.
    """

    def __init__(self, slots: Sequence[DatasetSlot], tags: int = 0, drop_zeros: bool = False):
        self.slots, self.tags, self.drop_zeros = list(slots), tags, drop_zeros
        self._decimals = np.array([s.decimal for s in slots], np.bool_)
        self._sizes = np.array([s.size for s in slots], np.int64)
        self._kept = np.array([s.used for s in slots], np.bool_)
        self._shortest = 4 * (len(self.slots) + tags)  # bytes of a line
        self._scratch: Any = None
        self._warned: set[tuple[str, int]] = set()

    def parse(self, text: Any, line: int, bad: Callable[[BadLine], None]) -> tuple[Records, int]:
        """Return the records of whole lines, and the number of lines.

        Args:
            text: uint8 [n], the last one a newline.
            line: lines before `text`.
            bad: called with each wrong line; the others are parsed all the same if it returns.
        """
        values, counts, starts, places = self._room(len(text))
        found = at = lines = 0
        while at < len(text):
            records, seen, at, wrong, slot, place = _parse(
                text,
                at,
                self._decimals,
                self._sizes,
                self._kept,
                self.tags,
                self.drop_zeros,
                values,
                values.view(np.float64),
                counts[found:],
                starts[found:],
                places[found:],
            )
            found, lines = found + records, lines + seen
            if wrong:
                bad(self._bad_line(text, line + lines, wrong, slot, place))
        used = starts[found]
        tags = self._tags(text, places[:found, 0]) if self.tags else None
        return Records(values[:used].copy(), counts[:found].copy(), starts[: found + 1].copy(), tags), lines

    def _room(self, size: int) -> tuple[Any, Any, Any, Any]:
        """Return arrays large enough for `size` bytes of any text; the next text reuses the arrays."""
        if self._scratch is None or size > self._scratch[0]:
            most = size // self._shortest + 1
            self._scratch = (
                size,
                (
                    np.empty(size // 2 + 1, np.int64),
                    np.empty((most, len(self.slots)), np.int32),
                    np.zeros(most + 1, np.int64),
                    np.empty((most, self.tags, 2), np.int64),
                ),
            )
        return cast(tuple[Any, Any, Any, Any], self._scratch[1])

    def _bad_line(self, text: Any, line: int, wrong: int, slot: int, place: int) -> BadLine:
        token = re.match(rb"[^ \t\r\n]{0,41}", bytes(text[place : place + 41]))
        shown = (token.group() if token else b"").decode(errors="backslashreplace")
        if slot < len(self.slots):
            chosen = self.slots[slot]
            where = f"slot {slot + 1} ({chosen.name})"
        else:
            chosen, where = self.slots[-1], "end of the line"
        found = repr(shown[:40] + "..." * (len(shown) > 40)) if shown else "the end of the line"
        return BadLine(line, where, _WRONG[wrong].format(found=found))

    @staticmethod
    def _tags(text: Any, places: Any) -> Any:
        """Return the ids. All take the space of the longest, so a long one is replaced by its digest."""
        sizes = places[:, 1] - places[:, 0]
        width = min(int(sizes.max(initial=1)), LONGEST_TAG)
        tags = _tokens(text, places, width).view(f"S{width}").reshape(-1)
        for i in np.flatnonzero(sizes > LONGEST_TAG):
            digest = hashlib.blake2b(text[places[i, 0] : places[i, 1]].tobytes(), digest_size=16)
            tags[i] = b"\x01" + base64.b64encode(digest.digest())[:22]  # no id contains a byte of 1
        return tags

    def batch(self, records: Records, order: Any) -> dict[str, Any]:
        """Return the feed of the records at positions `order` (int64 [b]).

        Dense slots give arrays [rows, ...], filled by the values of all records in order, as in Fluid; ragged slots
        give LoDTensors [n, 1].
        """
        lengths = records.counts[order]
        totals = lengths.sum(0, dtype=np.int64)
        ends = np.zeros(len(self.slots), np.int64)
        for decimal in (False, True):
            mine = self._decimals == decimal
            ends[mine] = np.cumsum(totals[mine]) - totals[mine]
        wholes = np.empty(totals[~self._decimals].sum(), np.int64)
        numbers = np.empty(totals[self._decimals].sum(), np.float32)
        begins = ends.copy()
        _gather(
            records.values,
            records.values.view(np.float64),
            records.counts,
            records.starts,
            order,
            self._decimals,
            ends,
            wholes,
            numbers,
        )
        offsets = np.zeros((len(self.slots), len(order) + 1), np.int64)
        np.cumsum(lengths.T, axis=1, out=offsets[:, 1:])
        longest = lengths.max(0, initial=0).tolist()
        feed: dict[str, Any] = {}
        for i, slot in enumerate(self.slots):
            if slot.used:
                rows = (numbers if slot.decimal else wholes)[begins[i] : ends[i]]
                feed[slot.name] = (
                    LoDTensor(rows.reshape(-1, 1), MeasuredLod([offsets[i]], longest[i]))
                    if slot.shape is None
                    else self._filled(slot, rows, lengths[:, i])
                )
        return feed

    def _filled(self, slot: DatasetSlot, values: Any, counts: Any) -> Any:
        """Return the rows [n, ...] that values fill. Remaining values are dropped, as in Fluid."""
        assert slot.shape is not None
        if len(values) != len(counts) * slot.size and (counts % slot.size).any():
            key = (slot.name, slot.size)
            if key not in self._warned:
                self._warned.add(key)
                wrong = int(counts[counts % slot.size != 0][0])
                warnings.warn(
                    f"dataset slot {slot.name}: a record has {wrong} values, and the variable takes {slot.size} "
                    f"a row: values of other records of the batch fill its rows, and {len(values) % slot.size} are "
                    "left out",
                    RuntimeWarning,
                    stacklevel=2,
                )
        rows = len(values) // slot.size
        return values[: rows * slot.size].reshape(rows, *slot.shape)
