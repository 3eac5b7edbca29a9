"""LoDTensor: array with sequence offsets."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Protocol

import jax
import numpy as np

from jfluid import errors
from jfluid.ir.types import VarType, var_type
from jfluid.places import CPUPlace, CUDAPlace
from jfluid.processes import collective_watch


def is_divided(value: Any) -> bool:
    """Return True if a device array is divided among processes."""
    return isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated


def whole(value: Any) -> Any:
    """Return a value, gathered to NumPy if it is a device array that is divided among processes.

    All processes must call this.
    """
    if is_divided(value):
        from jax.experimental import multihost_utils

        with collective_watch.call("gathering of a divided array"):
            return multihost_utils.process_allgather(value, tiled=True)
    return value


class Pending(Protocol):
    """Future of tensors' values."""

    def finish(self) -> None:
        """Wait for the values and `settle` the tensors, also before raising an error of the computation."""


_MOST_ROWS = 20  # of a tensor's table in a notebook
# Fluid's names of element types in the text of a tensor, where they differ from NumPy's
_PRINTED_TYPES = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "int32": "int",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
}


def _levels(lod: Sequence[Sequence[int] | np.ndarray[Any, Any]]) -> list[np.ndarray]:
    """Return copies of offsets. Raises ProgramError for anything but lists of integers."""
    try:
        levels = [_integers(np.array(level)) for level in lod]
    except (TypeError, ValueError) as error:
        raise errors.ProgramError(f"lod: expected a list of integers for each level: {error}") from None
    if any(level.ndim != 1 for level in levels):
        raise errors.ProgramError(f"lod: expected a list of integers for each level, found {list(lod)}")
    return levels


def _integers(level: np.ndarray) -> np.ndarray:
    """Return a level as int64. Raises ValueError for texts, and for numbers that int64 does not hold exactly."""
    if level.dtype == np.int64:
        return level
    if level.dtype.kind not in "iubf":
        raise ValueError(f"found {level.tolist()}")
    with np.errstate(invalid="ignore"):  # NaN and numbers beyond int64 are refused below
        found = level.astype(np.int64)
    if wrong := level[found != level].tolist():
        raise ValueError(f"found {wrong[0]}")
    return found


def _longest(levels: Sequence[np.ndarray]) -> int:
    """Return the length of the longest sequence of the last level.

    Raises ProgramError if a level does not begin with 0, or falls.
    """
    longest = 0
    for level in levels:
        lengths = level[1:] - level[:-1]
        if len(level) == 0 or level.item(0) != 0 or (len(lengths) and np.minimum.reduce(lengths) < 0):
            raise errors.ProgramError(f"lod: each level must start at 0 and never fall, found {level.tolist()}")
        longest = int(np.maximum.reduce(lengths)) if len(lengths) else 0
    return longest


class MeasuredLod(list[Any]):
    """Sequence offsets, level by level, in arrays that are never modified.

    Each level starts at 0 and never falls, or ProgramError is raised. The attributes are computed at
    construction, while the offsets are in the processor's caches.

    Args:
        levels: int64 [sequences + 1] each.
        longest: longest sequence of the last level, for checked levels; None to check the levels.

    Attributes:
        longest: length of the longest sequence of the last level.
        rows: end of the last level.
        packed: the single level as int32; None for more levels.
    """

    longest: int
    rows: int
    packed: bytes

    def __init__(self, levels: Sequence[np.ndarray], longest: int | None = None):
        super().__init__(levels)
        last = levels[-1]
        self.longest = _longest(levels) if longest is None else longest
        self.rows = last.item(-1)
        self.packed = last.astype(np.int32).tobytes() if len(levels) == 1 else b""


class _PendingValue:
    """Descriptor of `value` for tensors with a pending value.

    An ordinary read costs no call.
    """

    def __get__(self, tensor: "LoDTensor", owner: "type[LoDTensor]") -> Any:
        pending = tensor._pending
        if pending is not None:  # a second reading thread may have finished it
            pending.finish()
        return vars(tensor)["value"]


class LoDTensor:
    """Tensor with offsets (LoD) that group its rows into sequences, level by level.

    Reading it (`np.array(t)`) gives a copy: the Executor overwrites the buffers that a step
    updates.

    Args:
        value: an array; None for a tensor without a value yet.
        lod: the offsets, one list for each level. Raises ProgramError when a level does not begin
            with 0, or falls.

    Attributes:
        value: the array, of NumPy or on a device; None for a tensor without a value. While it is
            pending, reading it waits, and setting it does not.
    """

    value = _PendingValue()

    def __init__(self, value: Any = None, lod: Sequence[Sequence[int] | np.ndarray[Any, Any]] = ()):
        self.value = value
        self._lod: list[np.ndarray] = []
        if len(lod):
            self._lod = lod if type(lod) is MeasuredLod else MeasuredLod(_levels(lod))
        self._pending: Pending | None = None
        self._dims: list[int] | None = None

    def expect(self, pending: Pending) -> None:
        """Take the value of `pending` when it is there, unless a value is set before."""
        self._pending = pending
        del self.value

    def settle(self, pending: Pending, value: Any) -> None:
        """Take the value that `pending` brings. A value that was set meanwhile stays."""
        if self._pending is pending:
            vars(self).setdefault("value", value)
            self._pending = None

    def set(self, array: Any, place: Any = None) -> None:
        """Set the value to a copy of `array` (any array-like).

        `place` has no effect: the Executor that reads the tensor brings it to its own device.
        """
        value = np.array(array, copy=True)
        var_type(value.dtype)
        self.value = value

    def shape(self) -> list[int]:
        """Return the dimensions; [0] for a tensor without a value."""
        return [0] if self.value is None else list(self.value.shape)

    _get_dims = shape

    # Access by element, for scripts that check gradients by differences
    def _set_dims(self, dims: Sequence[int]) -> None:
        """Set the dimensions; `_alloc_float` and its like then give zeros of that shape.

        Raises ShapeError if the tensor holds another number of elements.
        """
        wanted = [int(d) for d in dims]
        if self.value is not None:
            if self.value.size != math.prod(wanted):
                raise errors.ShapeError(
                    f"_set_dims: the tensor holds {self.value.size} elements of {self.shape()}, and "
                    f"{wanted} needs a different number: clear the tensor with _clear() first"
                )
            self.value = self.value.reshape(wanted)
        self._dims = wanted

    def _clear(self) -> None:
        """Drop the value."""
        self.value = None

    def _alloc(self, dtype: str) -> None:
        if self._dims is None and self.value is None:
            raise errors.UninitializedError("the tensor has no dimensions yet: call _set_dims")
        self.value = np.zeros(self._dims if self.value is None else self.shape(), dtype)

    def _alloc_float(self, place: Any = None) -> None:
        """Fill the tensor with zeros of float32. `place` has no effect, as with `set`."""
        self._alloc("float32")

    def _alloc_double(self, place: Any = None) -> None:
        """Fill the tensor with zeros of float64. `place` has no effect, as with `set`."""
        self._alloc("float64")

    def _alloc_int(self, place: Any = None) -> None:
        """Fill the tensor with zeros of int32. `place` has no effect, as with `set`."""
        self._alloc("int32")

    def _elements(self, dtype: str, offset: int) -> np.ndarray:
        """Return a flat copy of the value, or raise for an `offset` out of range.

        Raises DtypeError and PositionError.
        """
        flat = np.array(self).ravel()
        if flat.dtype.name != dtype:
            raise errors.DtypeError(f"the tensor holds {flat.dtype.name}, and no {dtype}")
        if not 0 <= offset < flat.size:
            raise errors.PositionError(f"the tensor has {flat.size} elements, and none at {offset}")
        return flat

    def _set_element(self, dtype: str, offset: int, number: float) -> None:
        flat = self._elements(dtype, offset)
        flat[offset] = number
        self.value = flat.reshape(self.shape())

    def _get_float_element(self, offset: int) -> float:
        """Return element `offset` of a float32 tensor in row-major order."""
        return float(self._elements("float32", offset)[offset])

    def _get_double_element(self, offset: int) -> float:
        """Return element `offset` of a float64 tensor in row-major order."""
        return float(self._elements("float64", offset)[offset])

    def _set_float_element(self, offset: int, number: float) -> None:
        """Set element `offset` of a float32 tensor."""
        self._set_element("float32", offset, number)

    def _set_double_element(self, offset: int, number: float) -> None:
        """Set element `offset` of a float64 tensor."""
        self._set_element("float64", offset, number)

    def _dtype(self) -> VarType:
        return VarType.FP32 if self.value is None else var_type(self.value.dtype)

    def _place(self) -> "CPUPlace | CUDAPlace":
        """Return the place of the value: the first GPU for a value on a GPU, else the CPU."""
        value = self.value
        on_gpu = isinstance(value, jax.Array) and any(d.platform == "gpu" for d in value.devices())
        return CUDAPlace(0) if on_gpu else CPUPlace()

    def _is_initialized(self) -> bool:
        return self.value is not None

    def lod(self) -> list[list[int]]:
        """Return the offsets of the sequences, one list for each level."""
        return [level.tolist() for level in self._lod]

    def set_lod(self, lod: Sequence[Sequence[int] | np.ndarray[Any, Any]]) -> None:
        """Set the offsets.

        Raises ProgramError when a level does not begin with 0, falls, or does not add up to the sequences of
        the level below it or to the rows of the tensor, if it has a value.
        """
        levels = _levels(lod)
        longest = _longest(levels)
        if not self._fits(levels):
            rows = "" if self.value is None else f"; the tensor has {len(self)} rows"
            raise errors.ProgramError(
                "lod: each level must end at the number of sequences of the next, the last one at "
                f"the number of rows, found {[level.tolist() for level in levels]}{rows}"
            )
        self._lod = MeasuredLod(levels, longest) if levels else []

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Return the lengths of the sequences, one list for each level."""
        return [np.diff(level).tolist() for level in self._lod]

    def set_recursive_sequence_lengths(self, lengths: Sequence[Sequence[int]]) -> None:
        """Set the offsets by the lengths of the sequences."""
        self.set_lod([np.concatenate([[0], np.cumsum(level)]) for level in _levels(lengths)])

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Return True if each level's sequences add up to the rows of the level below."""
        return self._fits(self._lod)

    def _fits(self, levels: Sequence[np.ndarray]) -> bool:
        below = [len(level) - 1 for level in levels[1:]]
        if self.value is not None:
            below.append(self.value.shape[0])
        # Python numbers: NumPy scalars compare more slowly
        return all(level.item(-1) == n for level, n in zip(levels, below, strict=False))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.value is None:  # empty in Fluid, and scripts read it before they set it
            return np.array([], dtype)
        return np.array(whole(self.value), dtype=dtype)

    def __len__(self) -> int:
        return self.shape()[0]

    def __repr__(self) -> str:
        kind = "uninitialized" if self.value is None else f"{self.value.dtype} {self.shape()}"
        return f"<LoDTensor {kind} lod={self.lod()}>"

    def __str__(self) -> str:
        """Return all elements, six digits of each, as Fluid prints a tensor."""
        if self.value is None:
            return repr(self)
        value = np.asarray(self.value)
        levels = "".join("{" + ", ".join(map(str, level)) + "}" for level in self.lod())
        shown = "{:g}" if value.dtype.kind not in "iub" else "{:d}"
        return (
            f"\tlod: {{{levels}}}\n\tdim: {', '.join(map(str, value.shape))}\n\tlayout: NCHW\n"
            f"\tdtype: {_PRINTED_TYPES.get(value.dtype.name, value.dtype.name)}\n"
            f"\tdata: [{' '.join(map(shown.format, value.ravel().tolist()))}]\n"
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks: the first sequences with their lengths, or the first rows."""
        if self.value is None:
            return f"<code>{escape(repr(self))}</code>"
        value = np.asarray(self.value)
        offsets = self.lod()[-1] if self.lod() else range(len(value) + 1 if value.ndim else 0)
        shown, number = offsets[: _MOST_ROWS + 1], len(offsets) - 1
        rows = [
            f"<tr><td>{i}</td><td>{stop - start}</td><td><code>{escape(_abridged(value[start:stop]))}</code></td></tr>"
            for i, (start, stop) in enumerate(zip(shown, shown[1:], strict=False))
        ]
        more = f"<tr><td colspan=3>and {number - _MOST_ROWS} more</td></tr>" if number > _MOST_ROWS else ""
        whole = "" if value.ndim else f"<tr><td colspan=3><code>{escape(_abridged(value))}</code></td></tr>"
        heading = "".join(f"<th>{title}</th>" for title in ("sequence" if self.lod() else "row", "rows", "values"))
        body = "".join(rows)
        return f"<code>{escape(repr(self))}</code><table><tr>{heading}</tr>{body}{more}{whole}</table>"


Tensor = LoDTensor


def _abridged(value: np.ndarray) -> str:
    """Return the first elements of an array on one line."""
    return np.array2string(value, threshold=12, edgeitems=2, precision=4, max_line_width=10**6).replace("\n", "")


class SelectedRows:
    """Sparse rows of a table; rows that are not listed are zero.

    A row may occur several times.

    Args:
        rows: the table row of each value.
        height: the number of rows of the table.
        values: [number of rows, ...].
    """

    def __init__(self, rows: Sequence[int] = (), height: int = 0, values: Any = None):
        self._rows, self._height = [int(r) for r in rows], int(height)
        self._tensor = LoDTensor(values)

    def rows(self) -> list[int]:
        """Return the table row of each value."""
        return list(self._rows)

    def set_rows(self, rows: Sequence[int]) -> None:
        """Set the table row of each value."""
        self._rows = [int(r) for r in rows]

    def height(self) -> int:
        """Return the rows of the table."""
        return self._height

    def set_height(self, height: int) -> None:
        """Set the rows of the table."""
        self._height = int(height)

    def get_tensor(self) -> LoDTensor:
        """Return the values [number of rows, ...]."""
        return self._tensor

    def numel(self) -> int:
        """Return how many numbers the values are."""
        return 0 if self._tensor.value is None else int(self._tensor.value.size)

    def sync_index(self) -> None:
        """No effect: rows are found without an index."""

    def check(self, name: str) -> None:
        """Raise ProgramError, naming the variable `name`, if rows, height and values do not match."""
        found = self._tensor.shape() if self._tensor.value is not None else [0]
        if found[0] != len(self._rows):
            raise errors.ProgramError(
                f"variable {name}: {len(self._rows)} rows of SelectedRows, but values of shape {found}"
            )
        wrong = [r for r in self._rows if not 0 <= r < self._height]
        if wrong:
            raise errors.ProgramError(f"variable {name}: row {wrong[0]} of SelectedRows of height {self._height}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = np.array(self._tensor)
        table = np.zeros((self._height, *values.shape[1:]), values.dtype)
        np.add.at(table, self._rows, values)
        return table if dtype is None else table.astype(dtype)

    def __repr__(self) -> str:
        return f"<SelectedRows of {self._height}: {self._rows} {self._tensor!r}>"


class LoDTensorArray(list[Any]):
    """List of LoDTensors."""


def create_lod_tensor(data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: Any = None) -> LoDTensor:
    """Create a LoDTensor of `data` with sequences of the given lengths.

    Args:
        data: an array of all rows; a list of sequences of integers; or a LoDTensor, whose rows are
            regrouped.
        recursive_seq_lens: lengths, one list for each level.
        place: no effect: the Executor moves the rows to its device.

    Raises ProgramError if the lengths do not add up to the rows.
    """
    if isinstance(data, list):
        lengths = [len(s) for s in data]
        if [lengths] != [list(level) for level in recursive_seq_lens]:
            raise errors.ProgramError(
                f"recursive_seq_lens {recursive_seq_lens} do not match the lists, of lengths {lengths}"
            )
        data = np.concatenate([np.asarray(s, np.int64) for s in data]).reshape(-1, 1)
    tensor = LoDTensor()
    tensor.set(data, place)
    tensor.set_recursive_sequence_lengths(recursive_seq_lens)
    return tensor


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]], base_shape: Sequence[int], place: Any, low: int, high: int
) -> LoDTensor:
    """Create a LoDTensor of random int64 from [low, high], with rows of shape `base_shape`.

    `place` has no effect.
    """
    rows = sum(recursive_seq_lens[-1])
    # The global generator, so that np.random.seed makes it repeat, as in Fluid.
    data = np.random.randint(low, high + 1, [rows, *base_shape]).astype(np.int64)  # noqa: NPY002
    return create_lod_tensor(data, recursive_seq_lens, place)
