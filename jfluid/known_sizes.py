"""Sizes of batches that a script or a job file knows: streams of shapes are padded to these."""

import json
from collections.abc import Mapping
from typing import Any

from jfluid import errors, flags

__all__ = ["shape_buckets"]

FLAG = "FLAGS_shape_buckets"
_MOST = 64  # sizes of one dimension

# Sizes, the smallest first, by the name of a feed and its dimension.
Sizes = dict[str, dict[int, list[int]]]


def shape_buckets(sizes: Mapping[str, Mapping[int, Any]]) -> None:
    """Set the bucket sizes to which batches are padded, by the name of a feed and its dimension.

        fluid.shape_buckets({"src_ids": {1: [32, 64, 128]}})

    A batch is padded to the smallest size that holds it. Above the largest size, and for dimensions without sizes,
    buckets follow from the batches; `shape_buckets({})` removes all sizes. Feeds that vary together need the sizes of
    one feed only. The sizes hold for programs that run for the first time afterwards.

    Raises AttributeTypeError for anything else.
    """
    flags.set_flags({FLAG: text_of(checked(sizes))})


def checked(sizes: Any) -> Sizes:
    """Return sizes in order. Raises AttributeTypeError, which names the invalid entry."""
    if not isinstance(sizes, Mapping):
        raise _wrong("", "a mapping of the names of feeds", sizes)
    found: Sizes = {}
    for name, dims in sizes.items():
        if not isinstance(name, str) or not name:
            raise _wrong("", "the name of a feed", name)
        if not isinstance(dims, Mapping) or not dims:
            raise _wrong(f"{name}: ", "a mapping of dimensions to sizes, such as {1: [32, 64]}", dims)
        found[name] = {}
        for dim, own in dims.items():
            number = int(dim) if isinstance(dim, str) and dim.isdecimal() else dim
            if type(number) is not int or number < 0:
                raise _wrong(f"{name}: ", "the number of a dimension, from 0 on", dim)
            found[name][number] = _sizes(f"{name}, dimension {number}: ", own)
    return found


def text_of(sizes: Sizes) -> str:
    """Return the flag's text of checked sizes."""
    return json.dumps(sizes) if sizes else ""


def said() -> Sizes:
    """Return the sizes that the flag has. Raises AttributeTypeError for a flag that is none."""
    text = flags.get(FLAG)
    if not text:
        return {}
    try:
        sizes = json.loads(text)
    except ValueError:
        raise errors.AttributeTypeError(
            f'{FLAG}: expected JSON such as {{"src_ids": {{"1": [32, 64]}}}}, found {text!r}'
        ) from None
    return checked(sizes)


def _sizes(where: str, own: Any) -> list[int]:
    if not isinstance(own, list | tuple) or not 1 <= len(own) <= _MOST:
        raise _wrong(where, f"a list of 1 to {_MOST} sizes", own)
    for size in own:
        if type(size) is not int or size < 1:
            raise _wrong(where, "sizes, whole numbers from 1 on", size)
    return sorted(set(own))


def _wrong(where: str, expected: str, found: Any) -> errors.AttributeTypeError:
    return errors.AttributeTypeError(f"shape_buckets: {where}expected {expected}, found {found!r}")
