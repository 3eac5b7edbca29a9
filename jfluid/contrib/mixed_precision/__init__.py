"""Training in 16 bits with parameters in float32: `decorate(optimizer)`."""

from jfluid.contrib.mixed_precision.decorator import (
    OptimizerWithMixedPrecision as OptimizerWithMixedPrecision,
)
from jfluid.contrib.mixed_precision.decorator import decorate
from jfluid.contrib.mixed_precision.lists import AutoMixedPrecisionLists

__all__ = ["AutoMixedPrecisionLists", "decorate"]
