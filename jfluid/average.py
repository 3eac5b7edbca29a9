"""`fluid.average.WeightedAverage`: the mean of values that arrive one by one."""

from numbers import Number
from typing import Any

import numpy as np

from jfluid import errors

__all__ = ["WeightedAverage"]


class WeightedAverage:
    """Weighted mean of values (numbers or arrays)."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self.numerator: Any = None
        self.denominator: Any = None

    def add(self, value: float | np.ndarray, weight: float | np.ndarray) -> None:
        """Add `value` with a weight. Raises ValueError for a value that is no number or array."""
        for what, given in (("value", value), ("weight", weight)):
            if not isinstance(given, (Number, np.ndarray)):
                raise errors.ProgramError(
                    f"WeightedAverage.add, {what}: expected a number or an array, found {type(given).__name__}"
                )
        if self.numerator is None:
            self.numerator, self.denominator = value * weight, weight
        else:
            self.numerator, self.denominator = (self.numerator + value * weight, self.denominator + weight)

    def eval(self) -> float | np.ndarray:
        """Return the mean. Raises ValueError when nothing was added."""
        if self.denominator is None:
            raise errors.ProgramError("WeightedAverage.eval: no value was added")
        mean: float | np.ndarray = self.numerator / self.denominator
        return mean
