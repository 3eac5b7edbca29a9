"""Requests of the Open Inference Protocol (KServe v2): tensors with names, shapes and element types."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid.serving import json_numbers
from jfluid.serving.answers import DATATYPES
from jfluid.serving.blocks import Block
from jfluid.serving.json_inputs import PADDING, JsonReader
from jfluid.serving.requests import BadRequest, Input, RequestLimits, check_names, shown
from jfluid.serving.turns import Pause, go_on

_LONGEST_VALUE = 64 << 10  # bytes of a value beside the data of tensors


@dataclass
class Tensors:
    """A request of the protocol.

    Attributes:
        arrays: by the names of inputs.
        id: of the request, returned with the answer; None without one.
        outputs: names of the outputs that the answer has; empty for all.
    """

    arrays: dict[str, np.ndarray]
    id: str | None
    outputs: list[str]


def read_tensors(body: Block, inputs: tuple[Input, ...], limits: RequestLimits, pause: Pause = go_on) -> Tensors:
    """Parse a request into tensors. Raises BadRequest. The body ends with PADDING."""
    return _TensorReader(body, inputs, limits, pause).tensors()


class _TensorReader(JsonReader):
    """A position in the text of a request."""

    form = 'expected {"inputs": [{"name", "shape", "datatype", "data"}]} in JSON'

    def tensors(self) -> Tensors:
        """Read the whole text."""
        arrays: dict[str, np.ndarray] = {}
        others: dict[str, Any] = {}
        for key in self._keys():
            if key == "inputs":
                for _ in self._items():
                    self._tensor(arrays)
            elif key in ("id", "parameters", "outputs"):
                others[key] = self._small_value()
            else:
                raise BadRequest(f"{self.form}, found {shown(key)}")
        self._next()
        if self._at != self._base + len(self._text) - len(PADDING):
            self._fail("the end")
        number, outputs = others.get("id"), others.get("outputs") or []
        if number is not None and not isinstance(number, str):
            raise BadRequest(f"id: expected a text, found {shown(number)}")
        if not isinstance(outputs, list) or not all(isinstance(o, dict) and "name" in o for o in outputs):
            raise BadRequest('outputs: expected [{"name": ...}]')
        check_names(arrays, tuple(self._inputs.values()))
        return Tensors(arrays, number, [str(output["name"]) for output in outputs])

    def _keys(self) -> Any:
        """Yield the keys of the object that is next; the caller reads each value."""
        seen: set[str] = set()
        self._expect(b"{")
        while self._next() == b"," if seen else self._next() != b"}":
            self._at += bool(seen)
            key = self._name()
            if key in seen:
                raise BadRequest(f"{shown(key)} is there twice")
            seen.add(key)
            self._expect(b":")
            yield key
        self._expect(b"}")

    def _items(self) -> Any:
        """Yield once for each element of the list that is next; the caller reads each element."""
        count = 0
        self._expect(b"[")
        while self._next() == b"," if count else self._next() != b"]":
            self._at += bool(count)
            count += 1
            yield
        self._expect(b"]")

    def _skip(self) -> tuple[int, int]:
        """Return where the next value begins and ends, and go behind it."""
        self._next()
        begin, end = self._at, json_numbers.skip(self._at)
        if end == 0 or end > self._base + len(self._text) - len(PADDING):
            self._fail("a value")
        self._at = end
        return begin, end

    def _small_value(self) -> Any:
        """Read any value of bounded size."""
        begin, end = self._skip()
        if end - begin > _LONGEST_VALUE:
            raise BadRequest(f"a value beside the data may have {_LONGEST_VALUE} bytes", 413)
        try:
            return json.loads(self._text[begin - self._base : end - self._base].tobytes())
        except (ValueError, RecursionError):
            self._at = begin
            self._fail("a value in JSON")

    def _tensor(self, arrays: dict[str, np.ndarray]) -> None:
        """Read a tensor; its data may stand before its name."""
        data, found = 0, {}
        for key in self._keys():
            if key == "data":
                data, _ = self._skip()
            elif key in ("name", "shape", "datatype", "parameters"):
                found[key] = self._small_value()
            else:
                raise BadRequest(f"{self.form}, found {shown(key)} in a tensor")
        end, name = self._at, str(found.get("name"))
        if name in arrays:
            raise BadRequest(f"{shown(name)} is there twice")
        if name not in self._inputs:
            check_names([*arrays, name], tuple(self._inputs.values()))
        item, datatype = self._inputs[name], found.get("datatype")
        if datatype != DATATYPES[str(item.dtype)]:
            raise BadRequest(f"{name}: expected the datatype {DATATYPES[str(item.dtype)]}, found {shown(datatype)}")
        shape = found.get("shape")
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise item.wrong_shape(shown(shape))
        item.check_shape(tuple(shape))
        if not data:
            raise BadRequest(f"{name}: expected data, found none")
        arrays[item.name] = self._data(item, data, tuple(shape))
        self._at = end

    def _data(self, item: Input, begin: int, shape: tuple[int, ...]) -> np.ndarray:
        """Read the data of a tensor: a flat list, or lists nested as its shape is."""
        for sizes in (np.array([-1], np.int64), np.array(shape, np.int64)):
            self._at = begin
            wrong, array, _ = self._numbers(item, sizes)
            if wrong != json_numbers.DEEP:
                break
        if wrong:
            self._refuse(item, wrong)
        if array.size != math.prod(shape):
            raise item.wrong_shape(f"{array.size} numbers for {list(shape)}")
        return array.reshape(shape)
