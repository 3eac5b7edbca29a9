"""Checks of `fluid.data_feeder` for arguments of layers."""

from collections.abc import Sequence
from typing import Any

from jfluid.ir.types import np_dtype
from jfluid.ir.variable import Variable

_NAMES = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")


def convert_dtype(dtype: Any) -> str:
    """Return the name of an element type, given as a Fluid type, a NumPy type or a name.

    Raises ValueError for types that Fluid lacks.
    """
    try:
        name = np_dtype(dtype).name
    except TypeError:
        name = ""
    if name not in _NAMES:
        raise ValueError(f"dtype: expected one of {', '.join(_NAMES)}, found {dtype!r}")
    return name


def check_type(input: Any, input_name: str, expected_type: Any, op_name: str, extra_message: str = "") -> None:
    """Raise TypeError unless the input has an expected type."""
    if not isinstance(input, expected_type):
        kinds = expected_type if isinstance(expected_type, tuple) else (expected_type,)
        names = " or ".join(getattr(kind, "__name__", repr(kind)) for kind in kinds)
        raise TypeError(
            f"{op_name}, {input_name}: expected {names}, found {type(input).__name__}. {extra_message}".strip()
        )


def check_dtype(
    input_dtype: Any,
    input_name: str,
    expected_dtype: Sequence[str] | str,
    op_name: str,
    extra_message: str = "",
) -> None:
    """Raise TypeError for an input with other elements."""
    expected = [expected_dtype] if isinstance(expected_dtype, str) else list(expected_dtype)
    if convert_dtype(input_dtype) not in expected:
        raise TypeError(
            f"{op_name}, {input_name}: expected dtype {' or '.join(expected)}, found "
            f"{convert_dtype(input_dtype)}. {extra_message}".strip()
        )


def check_variable_and_dtype(
    input: Any,
    input_name: str,
    expected_dtype: Sequence[str] | str,
    op_name: str,
    extra_message: str = "",
) -> None:
    """Raise TypeError unless the input is a Variable of an expected dtype."""
    check_type(input, input_name, Variable, op_name, extra_message)
    check_dtype(input.dtype, input_name, expected_dtype, op_name, extra_message)
