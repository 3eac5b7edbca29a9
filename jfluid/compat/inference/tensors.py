"""Inputs and outputs of predictors."""

import enum
from collections.abc import MutableMapping, Sequence
from typing import Any, Literal

import numpy as np

from jfluid.compile.runtime.fetched_array import FetchedArray, fetched
from jfluid.errors import FeedError, FetchError, ProgramError
from jfluid.lod_tensor import LoDTensor

Array = np.ndarray[Any, Any]


class PaddleDType(enum.IntEnum):
    """Element types of a PaddleTensor."""

    FLOAT32 = 0
    INT64 = 1
    INT32 = 2

    def __str__(self) -> str:
        return f"PaddleDType.{self.name}"


class PaddlePlace(enum.IntEnum):
    """Memory of a tensor: the host's or a GPU's."""

    UNK = -1
    CPU = 0
    GPU = 1


_NUMPY: dict[PaddleDType, np.dtype[Any]] = {
    PaddleDType.FLOAT32: np.dtype(np.float32),
    PaddleDType.INT64: np.dtype(np.int64),
    PaddleDType.INT32: np.dtype(np.int32),
}
_KINDS = {dtype: kind for kind, dtype in _NUMPY.items()}


def kind_of(array: Array, what: str) -> PaddleDType:
    """Return the type of an array's elements. Raises FeedError for one that is not of PaddleDType."""
    found = _KINDS.get(array.dtype)
    if found is None:
        raise FeedError(f"{what}: expected float32, int64 or int32, found {array.dtype}; convert it with astype")
    return found


class PaddleBuf:
    """Bytes that are read as numbers of any type.

    Args:
        data: a number of bytes, an array, or a list of floats (float32).
    """

    def __init__(self, data: int | Array | Sequence[float]):
        self._bytes = np.zeros(0, np.uint8)
        if isinstance(data, int):
            self.resize(data)
        else:
            self.reset(data)

    def resize(self, length: int) -> None:
        """Set the length to `length` bytes; the content is lost."""
        self._bytes = np.zeros(length, np.uint8)

    def reset(self, data: Array | Sequence[float]) -> None:
        """Hold a copy of these numbers instead."""
        array = data if isinstance(data, np.ndarray) else np.array(data, np.float32)
        kind_of(array, "PaddleBuf")
        self._bytes = np.array(array, order="C").reshape(-1).view(np.uint8)

    @classmethod
    def around(cls, array: Array) -> "PaddleBuf":
        """Return a buffer over a contiguous array, without a copy."""
        found = cls(0)
        found._bytes = array.reshape(-1).view(np.uint8)
        return found

    def empty(self) -> bool:
        return not self._bytes.size

    def length(self) -> int:
        """Return how many bytes there are."""
        return int(self._bytes.size)

    def view(self, kind: PaddleDType) -> Array:
        """Return the numbers, without a copy.

        Raises FeedError where they are no whole number of elements.
        """
        dtype = _NUMPY[PaddleDType(kind)]
        if self._bytes.size % dtype.itemsize:
            raise FeedError(f"PaddleBuf: {self._bytes.size} bytes are no whole number of {dtype}")
        return self._bytes.view(dtype)

    def float_data(self) -> list[float]:
        return [float(number) for number in self.view(PaddleDType.FLOAT32)]

    def int64_data(self) -> list[int]:
        return [int(number) for number in self.view(PaddleDType.INT64)]

    def int32_data(self) -> list[int]:
        return [int(number) for number in self.view(PaddleDType.INT32)]

    def tolist(self, dtype: Literal["float32", "int64", "int32"]) -> list[Any]:
        """Return the numbers as a list. Raises ProgramError for a dtype outside PaddleDType."""
        if dtype not in ("float32", "int64", "int32"):
            raise ProgramError(f"PaddleBuf.tolist: expected float32, int64 or int32, found {dtype!r}")
        found: list[Any] = self.view(PaddleDType[dtype.upper()]).tolist()
        return found


class PaddleTensor:
    """An input or output of `predictor.run`.

    Args:
        data: its array, float32, int64 or int32.
        name: of the variable that it is fed to (see AnalysisConfig.switch_specify_input_names).
        lod: offsets of its sequences.
        copy: keep a copy of the array; else it must not change before the run has ended.

    Attributes:
        shape, dtype, data: its shape, `PaddleDType` and `PaddleBuf`, which may be set.

    Raises FeedError for an array of a different type.
    """

    def __init__(
        self,
        data: Any = None,
        name: str = "",
        lod: Sequence[Sequence[int]] = (),
        copy: bool = True,
    ):
        self.name, self.lod = name, [list(level) for level in lod]
        self.shape: list[int] = []
        self.dtype = PaddleDType.FLOAT32
        self.data = PaddleBuf(0)
        if data is not None:
            array = np.asarray(data)
            self.dtype = kind_of(array, f"PaddleTensor {name}".rstrip())
            self.shape = list(array.shape)
            contiguous = np.ascontiguousarray(array)
            self.data = PaddleBuf.around(contiguous.copy() if copy else contiguous)

    def as_ndarray(self) -> Array:
        """Return the tensor's array; an array of one element converts to a number, as fetched arrays do.

        Raises FeedError where shape, dtype and data do not fit.
        """
        numbers = self.data.view(self.dtype)
        if numbers.size != int(np.prod(self.shape)):
            raise FeedError(f"PaddleTensor {self.name}: {numbers.size} numbers do not have the shape {self.shape}")
        return numbers.reshape(self.shape).view(FetchedArray)


class ZeroCopyTensor:
    """An input or output of a predictor by its name: inputs are set, outputs are read."""

    def __init__(self, name: str, values: MutableMapping[str, LoDTensor], is_input: bool):
        self.name = name
        self._values, self._is_input = values, is_input

    def _tensor(self) -> LoDTensor:
        found = self._values.get(self.name)
        if found is None:
            missing = "copy_from_cpu has not been called" if self._is_input else "nothing has run"
            raise FetchError(f"{self.name} has no value: {missing}")
        return found

    def copy_from_cpu(self, array: Any) -> None:
        """Set it to a copy of an array, without sequences."""
        if not self._is_input:
            raise FeedError(f"{self.name} is an output of the model, and is not set")
        self._values[self.name] = LoDTensor(np.array(array))

    def reshape(self, shape: Sequence[int]) -> None:
        """Set the shape of an input; existing numbers are kept if their count fits."""
        held = self._values.get(self.name)
        numbers = np.zeros(0, np.float32) if held is None else np.asarray(held)
        if numbers.size != int(np.prod(shape)):
            numbers = np.zeros(int(np.prod(shape)), numbers.dtype)
        self.copy_from_cpu(numbers.reshape(shape))

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Set the offsets of the sequences."""
        self._tensor().set_lod(lod)

    def copy_to_cpu(self) -> Array:
        """Return a copy of the tensor's array. Raises FetchError if there is no array yet."""
        return fetched(self._tensor())

    def shape(self) -> list[int]:
        """Return its shape; [0] before it has a value."""
        return list(self._tensor().shape()) if self.name in self._values else [0]

    def lod(self) -> list[list[int]]:
        return self._tensor().lod()

    def type(self) -> PaddleDType:
        """Raise FeedError for elements that PaddleDType does not have."""
        return kind_of(np.asarray(self._tensor()), self.name)


def paddle_dtype_size(dtype: PaddleDType) -> int:
    """Return how many bytes an element takes."""
    return _NUMPY[PaddleDType(dtype)].itemsize


def paddle_tensor_to_bytes(tensor: PaddleTensor) -> bytes:
    """Return the numbers of a tensor, as bytes."""
    return tensor.as_ndarray().tobytes()
