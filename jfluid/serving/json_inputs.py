"""Requests in JSON: `{"inputs": {name: lists of numbers}}`, read into arrays."""

import json
from typing import Any, NoReturn

import numpy as np

from jfluid.exports.sequences import Sequences, Value
from jfluid.serving import json_numbers
from jfluid.serving.blocks import Block, empty
from jfluid.serving.requests import NPZ, BadRequest, Input, RequestLimits, check_names, shown
from jfluid.serving.turns import Pause, go_on

_LONGEST_NAME = 4096  # bytes
_BLOCK = 1 << 16  # numbers that are read without looking up
_ENDS = str.maketrans(",]}", "   ")  # of a number
PADDING = bytes(16)
_FORM = 'expected {"inputs": {name: lists of numbers}} in JSON'


def read_json(body: Block, inputs: tuple[Input, ...], limits: RequestLimits, pause: Pause = go_on) -> dict[str, Value]:
    """Parse a request into arrays. Raises BadRequest. The body ends with PADDING.

    No object is made for a list or a number, so that parsing takes as much memory as the arrays.
    """
    return JsonReader(body, inputs, limits, pause).request()


class JsonReader:
    """A position in the text of a request, and the values that are read from there."""

    form = _FORM

    def __init__(self, body: Block, inputs: tuple[Input, ...], limits: RequestLimits, pause: Pause = go_on):
        self._text = np.frombuffer(body, np.uint8)
        self._base: int = self._text.ctypes.data
        self._at = self._base
        self._inputs = {item.name: item for item in inputs}
        self._limits, self._taken, self._pause = limits, 0, pause
        self._end = np.zeros(1, np.int64)
        self._state = np.zeros(json_numbers.HEAD, np.int64)

    def request(self) -> dict[str, Value]:
        """Read the whole text."""
        found: dict[str, Value] = {}
        self._expect(b"{")
        name = self._name()
        if name != "inputs":
            raise BadRequest(f"{self.form}, found {shown(name)} in place of inputs")
        self._expect(b":")
        self._expect(b"{")
        while self._next() == b"," if found else self._next() != b"}":
            self._at += bool(found)
            name = self._name()
            if name in found:
                raise BadRequest(f"{shown(name)} is there twice")
            if name not in self._inputs:
                check_names([*found, name], tuple(self._inputs.values()))
            self._expect(b":")
            found[name] = self._value(self._inputs[name])
        self._expect(b"}")
        if self._next() == b",":
            self._expect(b",")
            raise BadRequest(f"{self.form}, found {shown(self._name())} beside inputs")
        self._expect(b"}")
        self._next()
        if self._at != self._base + len(self._text) - len(PADDING):
            self._fail("the end")
        check_names(found, tuple(self._inputs.values()))
        return found

    def _next(self) -> bytes:
        """Return the next byte that is no space."""
        self._at = json_numbers.space(self._at)
        place = self._at - self._base
        return self._text[place : place + 1].tobytes()

    def _expect(self, wanted: bytes) -> None:
        if self._next() != wanted:
            self._fail(repr(wanted.decode()))
        self._at += 1

    def _name(self) -> str:
        """Read a text in quotes."""
        self._expect(b'"')
        begin = self._at - self._base
        end = json_numbers.text_end(self._at, _LONGEST_NAME) - self._base
        if end < begin:
            self._fail(f"a name in quotes of up to {_LONGEST_NAME} bytes")
        try:
            found = json.loads(b'"%b"' % self._text[begin:end].tobytes())
        except ValueError:  # an escape that there is not, or no UTF-8
            self._fail("a name in UTF-8")
        self._at = self._base + end + 1
        return str(found)

    def _fail(self, wanted: str) -> NoReturn:
        raise BadRequest(f"{self.form}, or {NPZ}: expected {wanted}, found {self._found()}{self._where()}")

    def _where(self) -> str:
        return f" at byte {self._at - self._base}"

    def _found(self) -> str:
        """Return the text at the current position, shortened for an error."""
        place = self._at - self._base
        text = self._text[place : min(place + 41, len(self._text) - len(PADDING))].tobytes()
        words = text.decode("utf-8", "backslashreplace").translate(_ENDS).split()
        return shown(words[0] if words else text[:1].decode()) if text else "the end"

    def _value(self, item: Input) -> Value:
        """Read the value of an input."""
        if not item.levels:
            sizes = np.array(item.shape, np.int64)
            wrong, array, _ = self._numbers(item, sizes)
            return array.reshape(np.maximum(sizes, 0)) if not wrong else self._refuse(item, wrong)
        return self._rows_and_offsets(item) if self._next() == b"{" else self._nested(item)

    def _nested(self, item: Input) -> Sequences:
        """Read sequences as nested lists; rows of one element may be plain numbers."""
        begin, row = self._at, item.shape[1:]
        for form in ((), row) if row == (1,) else (row,):
            self._at = begin
            sizes = np.array([-1, *[json_numbers.RAGGED] * item.levels, *form], np.int64)
            wrong, array, lengths = self._numbers(item, sizes)
            if wrong != json_numbers.DEEP:
                break
        if wrong:
            self._refuse(item, wrong)
        levels = [lengths[lengths % json_numbers.DEPTHS == 1 + i] // json_numbers.DEPTHS for i in range(item.levels)]
        rows = array.reshape(int(levels[-1].sum()), *(np.maximum(sizes[1 + item.levels :], 0) if form else row))
        return Sequences.of_lengths(rows, levels)

    def _rows_and_offsets(self, item: Input) -> Sequences:
        """Read sequences as `{"data": rows, "lod": offsets of each level}`."""
        found: dict[str, Any] = {}
        self._expect(b"{")
        while self._next() == b"," if found else True:
            self._at += bool(found)
            key = self._name()
            if key not in ("data", "lod") or key in found:
                raise BadRequest(f'{item.name}: expected {{"data": rows, "lod": offsets}}, found {shown(key)}')
            self._expect(b":")
            found[key] = self._value(item.rows) if key == "data" else self._offsets(item)
        self._expect(b"}")
        if len(found) < 2:
            raise BadRequest(f'{item.name}: expected {{"data": rows, "lod": offsets}}, found {next(iter(found))} alone')
        return item.sequences(found["data"], found["lod"])

    def _offsets(self, item: Input) -> list[np.ndarray]:
        """Read lists of offsets, a list for each level."""
        of_level = item.offsets(0)
        wrong, array, lengths = self._numbers(of_level, np.array([-1, json_numbers.RAGGED], np.int64))
        if wrong:
            self._refuse(of_level, wrong)
        return np.split(array, np.cumsum(lengths // json_numbers.DEPTHS)[:-1])

    def _numbers(self, item: Input, sizes: Any) -> tuple[int, np.ndarray, np.ndarray]:
        """Read nested lists: return the error code (0 for none), the numbers, the lengths of RAGGED lists.

        Sizes that were -1 are set to the sizes of the lists.
        """
        rank = len(sizes)
        self._state = state = np.zeros(json_numbers.HEAD + rank, np.int64)
        room = max(0, self._limits.elements - self._taken)
        least, most = item.range if item.whole else (0, 0)
        limit = 0.0 if item.whole else item.too_large
        # Each number takes two bytes of the text, so that this is enough; the system gives memory
        # for what is written.
        left = (len(self._text) - (self._at - self._base)) // 2 + 1
        array = empty(min(room, left), item.dtype)
        lengths = empty(min(room, left) + 1 if (sizes == json_numbers.RAGGED).any() else 0, np.int64)
        numbers = np.empty(min(_BLOCK, len(array) or 1), np.float64)
        integers, used, wrong = numbers.view(np.int64), 0, json_numbers.FULL
        while wrong == json_numbers.FULL:
            self._at, count, wrong = json_numbers.read(
                self._at,
                sizes,
                state,
                item.whole,
                least,
                most,
                limit,
                room,
                self._end.ctypes.data,
                numbers,
                integers,
                lengths,
            )
            fits = min(count, len(array) - used)
            array[used : used + fits] = (integers if item.whole else numbers)[:fits]
            used += fits
            if wrong == json_numbers.FULL:
                self._pause()
        self._taken += int(state[json_numbers.TAKEN])
        return wrong, array[:used], lengths[: state[json_numbers.LISTS]]

    def _refuse(self, item: Input, wrong: int) -> NoReturn:
        """Raise the BadRequest of an error code of `json_numbers.read`."""
        depth = int(self._state[json_numbers.DEPTH])
        if wrong == json_numbers.SYNTAX:
            self._fail(f"a list of numbers ({item.name})")
        if wrong == json_numbers.MANY:
            raise BadRequest(f"{item.name}: a request may have {self._limits.elements} numbers and lists", 413)
        if wrong == json_numbers.DEEP:
            raise item.wrong_shape(f"lists of more than {depth} levels{self._where()}")
        if wrong == json_numbers.SHALLOW:
            raise item.wrong_shape(f"a number in place of a list{self._where()}")
        if wrong == json_numbers.LENGTH:
            raise item.wrong_shape(f"lists of other lengths{self._where()}")
        what = {
            json_numbers.NUMBER: "",
            json_numbers.WHOLE: ", which is no whole number",
            json_numbers.RANGE: ", which does not fit",
            json_numbers.LONG: f", a number of more than {json_numbers.LONGEST_NUMBER} bytes",
        }[wrong]
        raise item.wrong(f": found {self._found()}{self._where()}{what}")
