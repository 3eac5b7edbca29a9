"""Signature of a feed: the properties on which its preparation for a compiled step depends."""

from typing import Any, NamedTuple

import numpy as np

from jfluid.lod_tensor import LoDTensor

_MOST_ROWS = 2**31  # offsets are int32


class FeedSignature(NamedTuple):
    """Signature of a feed: a checked feed stands for all feeds with an equal signature.

    Attributes:
        kind: class of the feed: an array, a tensor, or a tensor on a device.
        dtype: type of the elements.
        shape: shape of the array; shape of a row for sequences.
        levels: number of lod levels; 0 for an array.
    """

    kind: type
    dtype: np.dtype
    shape: tuple[int, ...]
    levels: int = 0


def signature_of(value: Any) -> FeedSignature | None:
    """Return the signature of a feed on the host, or None for a feed that must be checked each time.

    A lod that does not describe its rows has no signature.
    """
    if type(value) is np.ndarray:
        return FeedSignature(np.ndarray, value.dtype, value.shape)
    if type(value) is not LoDTensor or type(array := value.value) is not np.ndarray:
        return None
    levels = value._lod
    if not levels:
        return FeedSignature(LoDTensor, array.dtype, array.shape)
    if not array.ndim or array.shape[0] >= _MOST_ROWS:
        return None
    plain = len(levels) == 1 and levels[0][-1] == array.shape[0]
    if not (plain or value.has_valid_recursive_sequence_lengths()):
        return None
    return FeedSignature(LoDTensor, array.dtype, array.shape[1:], len(levels))
