"""Arguments of windows: sizes that are given once or for each dimension, and paddings in all of Fluid's forms."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors


def each(value: int | Sequence[int], rank: int, layer: str, what: str) -> list[int]:
    """Return `value` for each of `rank` dimensions.

    Raises ProgramError when it is neither one number nor `rank` numbers.
    """
    numbers: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value] * rank
    if len(numbers) != rank or not all(isinstance(n, int) for n in numbers):
        raise errors.ProgramError(f"layers.{layer}: {what} {value!r}, expected an integer or {rank} integers")
    return numbers


def paddings_of(padding: Any, rank: int, channels_last: bool, layer: str) -> tuple[list[int], str]:
    """Return (paddings, padding_algorithm) for a `padding` in any form of `layers.conv2d`.

    Raises ProgramError for any other value.
    """
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise errors.ProgramError(f'layers.{layer}: padding {padding!r}, expected "SAME", "VALID" or numbers')
        return [0] * rank, padding.upper()
    if isinstance(padding, (list, tuple)) and padding and isinstance(padding[0], (list, tuple)):
        if len(padding) != rank + 2:
            raise errors.ProgramError(f"layers.{layer}: padding {padding!r}, expected {rank + 2} pairs")
        outer = [padding[0], padding[-1] if channels_last else padding[1]]
        if any(n != 0 for pair in outer for n in pair):
            raise errors.ProgramError(f"layers.{layer}: padding {padding!r} of batch or channels must be 0")
        pairs = padding[1:-1] if channels_last else padding[2:]
        flat = [int(n) for pair in pairs for n in pair]
    else:
        flat = list(padding) if isinstance(padding, (list, tuple)) else [padding] * rank
    if len(flat) == 2 * rank:
        return (flat[::2], "EXPLICIT") if flat[::2] == flat[1::2] else (flat, "EXPLICIT")
    return each(flat, rank, layer, "padding"), "EXPLICIT"
