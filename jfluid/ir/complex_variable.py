"""A complex variable as a real and an imaginary one."""

from collections.abc import Mapping

import numpy as np

from jfluid import errors
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable

__all__ = ["ComplexVariable"]


class ComplexVariable:
    """Complex variable: a pair of real variables.

    Args:
        real, imag: its parts, of one shape and dtype.

    Raises TypeError for a part that is no Variable, ShapeError for parts that differ.
    """

    def __init__(self, real: Variable, imag: Variable):
        for part in (real, imag):
            if not isinstance(part, Variable):
                raise TypeError(f"ComplexVariable: expected two Variables, found {type(part).__name__}")
        if tuple(real.shape) != tuple(imag.shape) or real.dtype != imag.dtype:
            raise errors.ShapeError(
                "ComplexVariable: expected parts of one shape and dtype, found "
                f"{list(real.shape)} {real.dtype.name} and {list(imag.shape)} {imag.dtype.name}"
            )
        self.real, self.imag = real, imag

    @property
    def dtype(self) -> str:
        """Data type: "complex64" for parts of at most 32 bits, else "complex128"."""
        return "complex64" if self.real.dtype in (VarType.FP16, VarType.FP32) else "complex128"

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions of both parts."""
        return tuple(self.real.shape)

    @property
    def name(self) -> Mapping[str, str]:
        """The names of the parts, by "real" and "imag"."""
        return {"real": self.real.name, "imag": self.imag.name}

    def numpy(self) -> np.ndarray:
        """Return the value of an eager one.

        Raises DygraphError for one of a program, which has a value when the program runs: fetch .real and
        .imag.
        """
        return np.asarray(self.real.numpy()) + 1j * np.asarray(self.imag.numpy())

    def __str__(self) -> str:
        return f"REAL: {self.real}\nIMAG: {self.imag}"

    __repr__ = __str__
