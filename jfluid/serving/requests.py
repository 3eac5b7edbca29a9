"""Requests: their bounds, their inputs, their errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.exports.sequences import Sequences, Value
from jfluid.serving.blocks import empty

NPZ = "application/x-npz"


class BadRequest(errors.JFluidError):
    """Error of a request that the model does not take; `status` is the HTTP status of the answer."""

    def __init__(self, text: str, status: int = 400):
        super().__init__(text)
        self.status = status


class TooManyRequests(errors.JFluidError):
    """Error of a server without room for a request; the client may ask again later."""


@dataclass(frozen=True)
class RequestLimits:
    """Bounds of requests and connections.

    Attributes:
        bytes: of a request, of its arrays in a file, and of the arrays of its answer.
        rows: of a request.
        elements: numbers and lists of a request.
        held: bytes of all requests and answers under way that are larger than SMALL.
        connections: how many there may be at a time.
        seconds: that a client may have the server wait for the head of a request, for more of its
            body, or until it takes more of an answer.
    """

    bytes: int = 64 << 20
    rows: int = 65536
    elements: int = 1 << 24
    held: int = 256 << 20
    connections: int = 4096
    seconds: float = 10.0


@dataclass(frozen=True)
class Input:
    """A variable that a request brings.

    Attributes:
        name: of the variable.
        dtype: of its elements.
        shape: -1 stands for any size.
        height: where the elements are ids of a table or a vector, how many there are of them.
        levels: of offsets, where the rows are those of sequences.
    """

    name: str
    dtype: Any
    shape: tuple[int, ...]
    height: int | None = None
    levels: int = 0

    @property
    def rows(self) -> "Input":
        """The rows of all sequences, without offsets."""
        return replace(self, levels=0)

    def offsets(self, level: int) -> "Input":
        """Return the input of the offsets of a level: `x.lod`, or `x.lod0`, `x.lod1` of several levels."""
        number = level if self.levels > 1 else ""
        return Input(f"{self.name}.lod{number}", np.dtype("int64"), (-1,))

    def sequences(self, rows: np.ndarray, lod: Sequence[np.ndarray]) -> Sequences:
        """Return the sequences of rows and offsets. Raises BadRequest for offsets that do not fit."""
        if len(lod) != self.levels:
            raise BadRequest(f"{self.name}: expected {self.levels} levels of offsets, found {len(lod)}")
        try:
            return Sequences(rows, lod)
        except errors.DataError as error:
            raise BadRequest(f"{self.name}: {error}") from None

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest whole number that the dtype has."""
        if self.dtype.kind == "b":
            return 0, 1
        found = np.iinfo(self.dtype)
        return int(found.min), int(found.max)

    @property
    def too_large(self) -> float:
        """The least number that a decimal dtype rounds to infinity."""
        largest = _finfo(self.dtype).max
        below = np.nextafter(largest, np.zeros((), self.dtype))
        with np.errstate(over="ignore"):  # that of float64 is infinity
            return float(np.float64(largest) + (np.float64(largest) - np.float64(below)) / 2)

    @property
    def whole(self) -> bool:
        """True if the elements are integers."""
        return self.dtype.kind in "iub"

    def wrong(self, text: str) -> BadRequest:
        """Return the error of a value that is no number of the dtype."""
        return BadRequest(f"{self.name}: expected numbers of {self.dtype}{text}")

    def wrong_shape(self, text: str) -> BadRequest:
        """Return the error of a value with a wrong shape."""
        return BadRequest(f"{self.name}: expected the shape {list(self.shape)}, found {text}")

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise BadRequest for an array with a wrong shape."""
        if len(shape) != len(self.shape) or any(wanted not in (-1, found) for wanted, found in zip(self.shape, shape)):
            raise self.wrong_shape(str(list(shape)))

    def fitted(self, array: np.ndarray) -> np.ndarray:
        """Return an array with the input's dtype.

        Raises BadRequest for elements that it has none for, and of a different shape.
        """
        kinds = "iub" if self.whole else "iubf"
        if array.dtype.kind not in kinds:
            raise self.wrong(f": found elements of {array.dtype}")
        self.check_shape(array.shape)
        if self.whole:
            self._check(array, *self.range, f"{self.name}: expected numbers of {self.dtype}")
        if array.dtype == self.dtype:
            return array
        found = empty(array.size, self.dtype).reshape(array.shape)
        with np.errstate(over="ignore"):
            np.copyto(found, array, casting="unsafe")
        if not self.whole and array.size and _infinite(found):
            wrong = np.isinf(found) & ~np.isinf(array)
            if wrong.any():
                raise self.wrong(f": found {_at(array, wrong)}, which does not fit")
        return found

    def check_ids(self, value: Value) -> None:
        """Raise BadRequest for an id that the input's table does not have."""
        if self.height is not None:
            last = self.height - 1
            self._check(
                value.rows if isinstance(value, Sequences) else value,
                0,
                last,
                f"{self.name}: expected ids from 0 to {last}",
            )

    def _check(self, array: np.ndarray, least: int, most: int, text: str) -> None:
        """Raise BadRequest for a number outside of a range, or NaN. Correct arrays take no extra memory."""
        if array.size and not (least <= array.min() and array.max() <= most):
            wrong = ~((array >= least) & (array <= most))
            raise BadRequest(f"{text}, found {_at(array, wrong)}")


def _infinite(array: np.ndarray) -> bool:
    """Return True if a number is infinite, without a temporary array."""
    return any(np.isinf(extreme.reduce(array, axis=None)) for extreme in (np.fmax, np.fmin))


def _at(array: np.ndarray, wrong: Any) -> str:
    """Return the first wrong element of an array with its index."""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    return f"{array[place]} at {list(place)}"


def _finfo(dtype: Any) -> Any:
    """Return the limits of a floating-point dtype, bfloat16 included."""
    import ml_dtypes  # JAX's

    return ml_dtypes.finfo(dtype)


def shown(text: Any) -> str:
    """Return a text from a request as an answer may have it: short, printable, in quotes."""
    text = str(text)
    return ascii(text[:40] + "..." * (len(text) > 40))


def check_names(found: Any, inputs: tuple[Input, ...]) -> None:
    """Raise BadRequest unless each input is named exactly once."""
    names, expected = list(found), [item.name for item in inputs]
    if sorted(names) == sorted(expected):
        return
    given = ", ".join(name if name in expected else shown(name) for name in names[:8])
    raise BadRequest(f"expected the inputs {', '.join(expected)}, found {given or 'none'}" + ", ..." * (len(names) > 8))


def as_arrays(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """Expand inputs to dense arrays: the rows of a sequence input, then its offsets."""
    return tuple(part for item in inputs for part in (item.rows, *map(item.offsets, range(item.levels))))


def from_arrays(inputs: tuple[Input, ...], arrays: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """Assemble the values of inputs from arrays of rows and offsets. Raises BadRequest."""
    return {
        item.name: item.sequences(arrays[item.name], [arrays[item.offsets(i).name] for i in range(item.levels)])
        if item.levels
        else arrays[item.name]
        for item in inputs
    }


def to_arrays(outputs: Mapping[str, Value]) -> dict[str, np.ndarray]:
    """Expand outputs to dense arrays of rows and offsets."""
    found: dict[str, np.ndarray] = {}
    for name, value in outputs.items():
        if isinstance(value, Sequences):
            item = Input(name, value.rows.dtype, (), levels=len(value.lod))
            found[name] = value.rows
            found.update((item.offsets(i).name, level) for i, level in enumerate(value.lod))
        else:
            found[name] = value
    return found
