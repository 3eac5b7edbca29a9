"""Texts, bytes and numbers alike in Python 2 and 3: Fluid's `paddle.compat`."""

import math
from collections.abc import Callable
from typing import Any

__all__ = [
    "floor_division",
    "get_exception_message",
    "long_type",
    "round",
    "to_bytes",
    "to_text",
]

int_type = int
long_type = int


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Return bytes as a str; of a list, set or dict, convert each item (with `inplace` in the same object).

    A str, bool, float or None stays as it is. Raises TypeError for anything else, and
    UnicodeDecodeError for bytes of another encoding.
    """

    def convert(item: Any) -> Any:
        if isinstance(item, bytes):
            return item.decode(encoding)
        if item is None or isinstance(item, str | bool | float):
            return item
        raise TypeError(f"expected bytes or a str, found {type(item).__name__}: {item!r}")

    return _converted(obj, convert, inplace)


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Return a str as bytes; of a list or set, convert each item (with `inplace` in the same object).

    Bytes and None stay as they are. Raises TypeError for anything else, and UnicodeEncodeError for
    what the encoding lacks.
    """

    def convert(item: Any) -> Any:
        if isinstance(item, str):
            return item.encode(encoding)
        if item is None or isinstance(item, bytes):
            return item
        raise TypeError(f"expected a str or bytes, found {type(item).__name__}: {item!r}")

    return convert(obj) if isinstance(obj, dict) else _converted(obj, convert, inplace)


def _converted(obj: Any, convert: Callable[[Any], Any], inplace: bool) -> Any:
    made: Any
    if isinstance(obj, list):
        made = [convert(item) for item in obj]
        if inplace:
            obj[:] = made
    elif isinstance(obj, set | dict):
        made = (
            {convert(item) for item in obj}
            if isinstance(obj, set)
            else {convert(key): convert(value) for key, value in obj.items()}
        )
        if inplace:
            obj.clear()
            obj.update(made)
    else:
        return convert(obj)
    return obj if inplace else made


def round(x: float, d: int = 0) -> float:
    """`x` with `d` decimals; halves go away from zero, as in Python 2."""
    if x == 0:
        return math.copysign(0.0, x)
    power = 10.0**d
    return math.copysign(math.floor(abs(x) * power + 0.5), x) / power


def floor_division(x: Any, y: Any) -> Any:
    """`x // y`."""
    return x // y


def get_exception_message(exc: BaseException) -> str:
    """Return the text of an exception."""
    return str(exc)
