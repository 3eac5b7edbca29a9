"""Initial values of parameters: each initializer puts one operator into the startup program."""

import math
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable

__all__ = [
    "MSRA",
    "Bilinear",
    "BilinearInitializer",
    "Constant",
    "ConstantInitializer",
    "MSRAInitializer",
    "Normal",
    "NormalInitializer",
    "NumpyArrayInitializer",
    "TruncatedNormal",
    "TruncatedNormalInitializer",
    "Uniform",
    "UniformInitializer",
    "Xavier",
    "XavierInitializer",
]

_HALVES = (VarType.FP16, VarType.BF16)
# where an operator `assign_value` holds numbers of a type, and as what type it holds those of a variable
_SLOTS = {
    np.dtype(np.float32): "fp32_values",
    np.dtype(np.int32): "int32_values",
    np.dtype(np.int64): "int64_values",
    np.dtype(np.bool_): "bool_values",
}
_HELD_AS = {
    VarType.FP16: np.float32,
    VarType.BF16: np.float32,
    VarType.FP32: np.float32,
    VarType.INT32: np.int32,
    VarType.INT64: np.int64,
    VarType.BOOL: np.bool_,
}


class Initializer:
    """Base class of initializers: `initializer(var, block)` appends the computation of `var` to `block`.

    The operator is put at the front of the block. Its `seed` attribute is the user's; with 0, the
    default, the numbers follow from the program's `random_seed`.
    """

    def __call__(self, var: Variable, block: Block) -> Operator:
        raise NotImplementedError


def _prepend(block: Block, var: Variable, op_type: str, tag: str, attrs: dict[str, Any]) -> Operator:
    """Put the operator at the front of the block; a 16-bit variable is computed in 32 bits and converted."""
    if not isinstance(block, Block):
        raise TypeError(f"block: expected a Block, found {type(block).__name__}")
    dtype, target = var.dtype, var
    if dtype in _HALVES:
        dtype = VarType.FP32
        target = block.create_var(
            name=unique_name.generate(f"{tag}.{var.name}.tmp"),
            shape=var.shape,
            dtype=dtype,
            type=VarType.LOD_TENSOR,
            persistable=False,
        )
    op = block.prepend_op(op_type, outputs={"Out": target}, attrs={"shape": var.shape, "dtype": int(dtype)} | attrs)
    if target is not var:
        block.append_op("cast", {"X": target}, {"Out": var}, {"in_dtype": int(dtype), "out_dtype": int(var.dtype)})
    return op


class ConstantInitializer(Initializer):
    """Initializer with a constant `value`. `force_cpu` stays in the program without effect."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False):
        self.value = value
        self.force_cpu = force_cpu

    def __call__(self, var: Variable, block: Block) -> Operator:
        return block.prepend_op(
            "fill_constant",
            outputs={"Out": var},
            attrs={
                "shape": var.shape,
                "dtype": int(var.dtype),
                "value": float(self.value),
                "force_cpu": self.force_cpu,
            },
        )


class UniformInitializer(Initializer):
    """Initializer with uniformly distributed numbers in [low, high).

    Args:
        seed: not 0 gives the same numbers in every program.
        diag_num: how many elements are set to `diag_val` instead; 0 for none.
        diag_step: element i of these is at i * (diag_step + 1) in the flattened variable.
        diag_val: their value.
    """

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ):
        if high < low:
            raise ValueError(f"Uniform: expected low <= high, found low={low}, high={high}")
        if diag_num < 0 or diag_step < 0:
            raise ValueError(f"Uniform: diag_num and diag_step must not be negative, found {diag_num} and {diag_step}")
        self.low, self.high, self.seed = low, high, seed
        self.diag_num, self.diag_step, self.diag_val = diag_num, diag_step, diag_val

    def __call__(self, var: Variable, block: Block) -> Operator:
        return _prepend(
            block,
            var,
            "uniform_random",
            "uniform_random",
            {
                "min": self.low,
                "max": self.high,
                "seed": self.seed,
                "diag_num": self.diag_num,
                "diag_step": self.diag_step,
                "diag_val": self.diag_val,
            },
        )


class NormalInitializer(Initializer):
    """Initializer with normally distributed numbers with mean `loc` and standard deviation `scale`."""

    op_type = "gaussian_random"

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0):
        if scale < 0:
            raise ValueError(f"{type(self).__name__}: scale must not be negative, found {scale}")
        self.loc, self.scale, self.seed = loc, scale, seed

    def __call__(self, var: Variable, block: Block) -> Operator:
        return _prepend(
            block, var, self.op_type, self.op_type, {"mean": self.loc, "std": self.scale, "seed": self.seed}
        )


class TruncatedNormalInitializer(NormalInitializer):
    """Initializer with normally distributed numbers within two standard deviations of `loc`."""

    op_type = "truncated_gaussian_random"


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan in, fan out): rows and columns of a matrix, or `in` and `out` of a filter times its area.

    A filter is [out, in, ...].
    """
    if len(shape) < 2:
        size = shape[0] if shape else 1
        return size, size
    if len(shape) == 2:
        return shape[0], shape[1]
    area = math.prod(shape[2:])
    return shape[1] * area, shape[0] * area


def _scaled(var: Variable, block: Block, tag: str, variance: float, uniform: bool, seed: int) -> Operator:
    if uniform:
        limit = math.sqrt(3.0 * variance)
        return _prepend(block, var, "uniform_random", tag, {"min": -limit, "max": limit, "seed": seed})
    return _prepend(block, var, "gaussian_random", tag, {"mean": 0.0, "std": math.sqrt(variance), "seed": seed})


class XavierInitializer(Initializer):
    """Initializer with variance 2 / (fan_in + fan_out), uniform or normal (Glorot & Bengio, 2010).

    Args:
        uniform: True if the distribution is uniform; otherwise it is normal.
        fan_in: the number of inputs of one output element; from the shape when None.
        fan_out: the number of outputs of one input element; from the shape when None.
        seed: not 0 gives the same numbers in every program.
    """

    def __init__(self, uniform: bool = True, fan_in: float | None = None, fan_out: float | None = None, seed: int = 0):
        self.uniform, self.fan_in, self.fan_out, self.seed = uniform, fan_in, fan_out, seed

    def __call__(self, var: Variable, block: Block) -> Operator:
        fans = _fans(var.shape)
        fan_in = fans[0] if self.fan_in is None else self.fan_in
        fan_out = fans[1] if self.fan_out is None else self.fan_out
        return _scaled(var, block, "xavier_init", 2.0 / (fan_in + fan_out), self.uniform, self.seed)


class MSRAInitializer(Initializer):
    """Initializer with variance 2 / fan_in, uniform or normal (He et al., 2015).

    Args:
        uniform: True if the distribution is uniform; otherwise it is normal.
        fan_in: the number of inputs of one output element; from the shape when None.
        seed: not 0 gives the same numbers in every program.
    """

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0):
        self.uniform, self.fan_in, self.seed = uniform, fan_in, seed

    def __call__(self, var: Variable, block: Block) -> Operator:
        fan_in = _fans(var.shape)[0] if self.fan_in is None else self.fan_in
        return _scaled(var, block, "masra_init", 2.0 / fan_in, self.uniform, self.seed)


def _assign(var: Variable, block: Block, tag: str, values: np.ndarray) -> Operator:
    return _prepend(block, var, "assign_value", tag, {_SLOTS[values.dtype]: values.ravel().tolist()})


class BilinearInitializer(Initializer):
    """Initializer of transposed convolutions' filters [out, in, size, size]: bilinear upsampling.

    The numbers equal Fluid 1.8 on Python 3: there the row coordinate keeps its fraction, so
    rows are not quite the ones of plain bilinear interpolation.

    Raises ShapeError for another rank or a filter that is not square.
    """

    def __call__(self, var: Variable, block: Block) -> Operator:
        shape = var.shape
        if len(shape) != 4 or shape[2] != shape[3]:
            raise errors.ShapeError(
                f"Bilinear, {var.name}: expected a shape [out, in, size, size], found {list(shape)}"
            )
        size = shape[3]
        factor = math.ceil(size / 2.0)
        center = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        at = np.arange(math.prod(shape))
        column, row = at % size, (at / size) % size
        weight = (1 - abs(column / factor - center)) * (1 - abs(row / factor - center))
        return _assign(var, block, "bilinear_init", weight.astype(np.float32))


class NumpyArrayInitializer(Initializer):
    """Initializer with the elements of a NumPy array, converted to the dtype of the variable.

    The array becomes part of the startup program: set a large variable in the Scope instead.

    Raises TypeError for a value that is no array, ShapeError for a shape that differs from the variable's, and
    ValueError for an array that a program cannot hold: complex numbers, texts, float64 for a
    variable of float64.
    """

    def __init__(self, value: np.ndarray):
        if not isinstance(value, np.ndarray):
            raise TypeError(f"NumpyArrayInitializer: expected a NumPy array, found {type(value).__name__}")
        self._value = value

    def __call__(self, var: Variable, block: Block) -> Operator:
        value = self._value
        if value.shape != var.shape:
            raise errors.ShapeError(
                f"NumpyArrayInitializer, {var.name}: expected shape {list(var.shape)}, found {list(value.shape)}"
            )
        if value.dtype.kind in "biuf":
            value = value.astype(_HELD_AS.get(var.dtype, value.dtype))
        if value.dtype == np.float16:
            value = value.astype(np.float32)
        if value.dtype not in _SLOTS:
            raise ValueError(
                f"NumpyArrayInitializer, {var.name}: a variable of {var.dtype.name} cannot be set to "
                f"an array of {value.dtype}; convert the array"
            )
        return _assign(var, block, "numpy_array_init", value)


Constant = ConstantInitializer
Uniform = UniformInitializer
Normal = NormalInitializer
TruncatedNormal = TruncatedNormalInitializer
Xavier = XavierInitializer
MSRA = MSRAInitializer
Bilinear = BilinearInitializer
