"""FetchedArray: result of a run that converts to numbers as NumPy arrays did at Fluid's time."""

from typing import Any, SupportsIndex

import numpy as np


class FetchedArray(np.ndarray[Any, Any]):
    """Array that `Executor.run` returned.

    NumPy 2.4 takes `float(array)` for an error unless the array has no dimensions, and Fluid's
    losses have shape [1]. Here an array of one element converts with `float`, `int`, `complex`, `%`
    and `format`, whatever its shape. In all else it is an ndarray; pickled it is one and nothing
    more.
    """

    def __float__(self) -> float:
        return float(self.item()) if self.size == 1 else super().__float__()

    def __int__(self) -> int:
        return int(self.item()) if self.size == 1 else super().__int__()

    def __complex__(self) -> complex:
        return complex(self.item()) if self.size == 1 else super().__complex__()

    def __format__(self, how: str) -> str:
        return format(self.item(), how) if how and self.size == 1 else super().__format__(how)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return results of NumPy functions as FetchedArray; scalars stay scalars."""
        return array[()] if return_scalar else array.view(type(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


def fetched(value: Any) -> FetchedArray:
    """Return a copy of anything that is an array, for the user to keep."""
    return np.array(value).view(FetchedArray)
