"""Names of `fluid.executor`: tensors as arrays, feed and fetch operators of a program."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jfluid.compile.runtime.fetched_array import fetched
from jfluid.errors import FeedError, FetchError, UninitializedError
from jfluid.ir.block import Block
from jfluid.ir.types import np_dtype, var_type
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor
from jfluid.scope import Scope, global_scope


def as_numpy(tensor: Any) -> Any:
    """Return a tensor as an array, a list of tensors as a list of arrays; None for a tensor without a value.

    Raises FetchError for one with sequences, TypeError for what is no tensor.
    """
    if isinstance(tensor, list):
        return [as_numpy(each) for each in tensor]
    if not isinstance(tensor, LoDTensor):
        raise TypeError(f"as_numpy: expected a LoDTensor, found {type(tensor).__name__}")
    if tensor.lod():
        raise FetchError(
            "as_numpy: the tensor has sequences (LoD), which no array can hold; take the LoDTensor, "
            "from Executor.run with return_numpy=False"
        )
    return fetched(np.asarray(tensor)) if tensor._is_initialized() else None


def _as_lodtensor(data: Any, place: Any, dtype: Any = None) -> LoDTensor:
    """Return an array, or a number of this dtype, as a LoDTensor.

    Raises FeedError for a list, whose rows may be sequences, and for a number without dtype.
    """
    if isinstance(data, list) or (np.isscalar(data) and dtype is None):
        wanted = "a LoDTensor for a list" if isinstance(data, list) else "a dtype for a number"
        raise FeedError(f"_as_lodtensor: expected {wanted}, found {data!r}")
    if np.isscalar(data):
        data = np.array([data]).astype(np_dtype(var_type(dtype)))
    tensor = LoDTensor()
    tensor.set(data, place)
    return tensor


def _fetch_var(name: str, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """Return the value of a variable of a scope. Raises UninitializedError where there is none."""
    found = (global_scope() if scope is None else scope).find_var(_to_name_str(name))
    if found is None:
        raise UninitializedError(
            f"_fetch_var: no variable {name} in the scope; is it persistable, and has the startup program run?"
        )
    return as_numpy(found.get_tensor()) if return_numpy else found.get_tensor()


def _to_name_str(var: Any) -> str:
    """Return the name of a variable, or a name as it is. Raises TypeError."""
    if isinstance(var, (Variable, str)):
        return var if isinstance(var, str) else var.name
    raise TypeError(f"expected a Variable or its name, found {type(var).__name__}")


def dtype_is_compatible_with(first: Any, second: Any) -> bool:
    """Return whether two element types are the same."""
    return var_type(first) == var_type(second)


def dimension_is_compatible_with(first: Any, second: Any) -> bool:
    """Return whether two shapes are the same, where a negative or missing size is any."""
    return len(first) == len(second) and all(
        a == b or min(-1 if a is None else a, -1 if b is None else b) < 0 for a, b in zip(first, second, strict=True)
    )


def has_feed_operators(block: Block, feed_targets: Mapping[str, Any], feed_holder_name: str) -> bool:
    """Return whether the block has feed operators, of these variables.

    Raises FetchError where it has them of others.
    """
    found = [op.output("Out")[0] for op in block.ops if op.type == "feed"]
    return _are("fed", found, set(feed_targets))


def has_fetch_operators(block: Block, fetch_targets: Any, fetch_holder_name: str) -> bool:
    """Return whether the block has fetch operators, of these variables.

    Raises FetchError where it has them of others.
    """
    found = [op.input("X")[0] for op in block.ops if op.type == "fetch"]
    return _are("fetched", found, {_to_name_str(target) for target in fetch_targets})


def _are(what: str, found: list[str], wanted: set[str]) -> bool:
    if found and set(found) != wanted:
        raise FetchError(f"the program's operators say that {sorted(found)} are {what}, not {sorted(wanted)}")
    return bool(found)
