"""Functions that make readers from readers: Fluid's `paddle.reader`."""

from jfluid.compat.reader import decorator
from jfluid.compat.reader.decorator import *

__all__ = decorator.__all__
