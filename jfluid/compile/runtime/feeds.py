"""Users' feeds, checked against the program's variables before anything is compiled."""

import functools
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.runtime.device_feeds import DeviceTensor
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor
from jfluid.printable import printable

_log = logging.getLogger(__name__)


class Owned(dict[str, Any]):
    """Feed with arrays that nothing else changes: no copy is needed."""


def named(feed: Any) -> dict[str, Any]:
    """Return a feed by names; users may give Variables as keys.

    Raises FeedError for anything but a dict.
    """
    if not feed:
        return {}
    if not isinstance(feed, Mapping):
        raise errors.FeedError(
            f"feed: expected a dict from names to arrays, found {type(feed).__name__}; a list of feeds, "
            "one per device, needs with_data_parallel"
        )
    return {name.name if isinstance(name, Variable) else name: value for name, value in feed.items()}


def checked(program: Program, feed: Any) -> dict[str, Any]:
    """Return the feeds as arrays, each checked against its variable.

    Raises FeedError; a feed that the program has no variable for warns.
    """
    block = program.global_block()
    found = {}
    for name, value in named(feed).items():
        var = block.vars.get(name)
        if var is None:
            likened = errors.close_to(str(name), block.vars)
            warnings.warn(
                printable(f"feed {name}: the program has no such variable{likened}; it is left out"),
                stacklevel=2,
            )
            continue
        found[name] = _checked(var, value)
    return found


def own(value: Any) -> Any:
    """Return a copy of an array that users may change."""
    if isinstance(value, DeviceTensor):
        return value
    if isinstance(value, LoDTensor):
        return LoDTensor(own(value.value), value._lod)
    return np.array(value) if isinstance(value, np.ndarray) else value


def _checked(var: Variable, value: Any) -> Any:
    if isinstance(value, DeviceTensor) and value.signature:
        _checked_array(var, value.value)
        return value
    if isinstance(value, LoDTensor):
        if value._lod:
            return _checked_sequences(var, value)
        value = np.asarray(value)
    elif not isinstance(value, (np.ndarray, jax.Array)):
        try:
            value = np.asarray([value] if np.isscalar(value) else value, var.np_dtype)
        except (TypeError, ValueError) as e:
            raise errors.FeedError(
                f"feed {var.name}: expected an array of {var.np_dtype}, found {type(value).__name__}: {e}"
            ) from None
    return _checked_array(var, value)


def _checked_sequences(var: Variable, tensor: LoDTensor) -> LoDTensor:
    if not tensor.has_valid_recursive_sequence_lengths():
        raise errors.FeedError(f"feed {var.name}: the lod {tensor.lod()} does not describe its {len(tensor)} rows")
    if tensor.value.shape[0] >= 2**31:
        raise errors.FeedError(f"feed {var.name}: {len(tensor)} rows; at most 2**31 - 1 can be fed with a lod")
    return LoDTensor(_checked_array(var, tensor.value), tensor._lod)


def _checked_array(var: Variable, value: Any) -> Any:
    if value.dtype != var.np_dtype and not var.need_check_feed and _converts(value.dtype, var.np_dtype):
        _tell_of_dtype(var.name, str(var.np_dtype), str(value.dtype))
        value = value.astype(var.np_dtype)
    if value.dtype != var.np_dtype:
        raise errors.FeedError(
            f"feed {var.name}: expected dtype {var.np_dtype}, found {value.dtype}; "
            f'convert it with .astype("{var.np_dtype}")'
        )
    if not var.need_check_feed:  # declared by `layers.data`, where the shape does not bind feeds
        return value
    if var._shape is not None and set(var._shape[value.ndim :]) == {1}:
        value = value.reshape([*value.shape, *var._shape[value.ndim :]])
    if var._shape is not None and len(var._shape) != value.ndim:
        raise errors.FeedError(
            f"feed {var.name}: expected rank {len(var._shape)} (shape {list(var._shape)}), "
            f"found shape {list(value.shape)}"
        )
    if any(w not in (-1, g) for w, g in zip(var._shape or (), value.shape)):
        raise errors.FeedError(
            f"feed {var.name}: expected shape {list(var.shape)} (-1 is any), found {list(value.shape)}"
        )
    return value


def _converts(fed: Any, declared: Any) -> bool:
    """Return True if numbers of dtype `fed` may stand for numbers of the declared dtype: no integer is cut off."""
    return bool(np.issubdtype(declared, np.floating) and fed.kind in "iuf") or np.can_cast(fed, declared, "safe")


@functools.lru_cache(maxsize=256)
def _tell_of_dtype(name: str, declared: str, fed: str) -> None:
    _log.warning("feed %s: %s is converted to the declared %s in every run; feed %s", name, fed, declared, declared)
