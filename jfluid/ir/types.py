"""Fluid's types of variables and their NumPy dtypes.

The numbers equal Fluid's `VarType.Type`, and are written to saved programs.
"""

import enum
from typing import Any

import ml_dtypes
import numpy as np

from jfluid import errors

EMPTY_NAME = "@EMPTY@"  # of a variable that a slot leaves out


class VarType(enum.IntEnum):
    """Kinds of variables, and element types of tensors, in one enumeration (as in Fluid)."""

    BOOL = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    FP16 = 4
    FP32 = 5
    FP64 = 6
    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    RAW = 17
    TUPLE = 18
    SIZE_T = 19
    UINT8 = 20
    INT8 = 21
    BF16 = 22

    def __str__(self) -> str:
        return f"VarType.{self.name}"


_NUMPY: dict[VarType, np.dtype[Any]] = {
    VarType.BOOL: np.dtype(np.bool_),
    VarType.INT16: np.dtype(np.int16),
    VarType.INT32: np.dtype(np.int32),
    VarType.INT64: np.dtype(np.int64),
    VarType.FP16: np.dtype(np.float16),
    VarType.FP32: np.dtype(np.float32),
    VarType.FP64: np.dtype(np.float64),
    VarType.SIZE_T: np.dtype(np.uint64),
    VarType.UINT8: np.dtype(np.uint8),
    VarType.INT8: np.dtype(np.int8),
    VarType.BF16: np.dtype(ml_dtypes.bfloat16),
}
HELD = frozenset(_NUMPY)  # kinds of elements
ELEMENTS = tuple(_NUMPY.values())  # element types of tensors
_FLUID = {dtype: kind for kind, dtype in _NUMPY.items()}


def np_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of `dtype`: a `VarType`, its number, a NumPy dtype or its name.

    Raises DtypeError for a kind without elements.
    """
    # looked up for each feed of each step
    if isinstance(dtype, VarType) and dtype in _NUMPY:
        return _NUMPY[dtype]
    if isinstance(dtype, (int, np.integer)):
        try:
            return _NUMPY[VarType(int(dtype))]
        except (KeyError, ValueError):
            raise errors.DtypeError(f"VarType {dtype!r} is not an element type") from None
    if isinstance(dtype, str) and dtype in ("bfloat16", "bf16"):
        return _NUMPY[VarType.BF16]
    found: np.dtype[Any] = np.dtype(dtype)
    return found


def var_type(dtype: Any) -> VarType:
    """Return the `VarType` of an element type given as NumPy dtype, name or number.

    Raises DtypeError for None, and for a dtype that Fluid has no number for.
    """
    if type(dtype) is VarType:
        return dtype
    if isinstance(dtype, (int, np.integer)) and not isinstance(dtype, bool):
        return VarType(int(dtype))
    try:
        if dtype is None:  # for NumPy this is float64
            raise KeyError
        return _FLUID[np_dtype(dtype)]
    except (KeyError, TypeError):
        raise errors.DtypeError(
            f"dtype {dtype!r} is no element type of Fluid: " + ", ".join(str(d) for d in _NUMPY.values())
        ) from None


def is_float(dtype: Any) -> bool:
    """Return True if the element type can have a gradient."""
    return var_type(dtype) in (VarType.FP16, VarType.FP32, VarType.FP64, VarType.BF16)
