"""Layers that draw random numbers.

A seed of 0 gives other numbers in each step, drawn from the program's `random_seed`; any other seed
gives the same ones in each step. A `shape` is a list of integers, a list of integers and Variables
mixed, or a Variable that holds them all; Variables must follow from shapes and constants.
"""

import random
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.initializer import Constant
from jfluid.ir import unique_name
from jfluid.ir.types import VarType, is_float, var_type
from jfluid.ir.variable import Variable
from jfluid.layers.creation import Integers, check_device, integers, into
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = [
    "gaussian_random",
    "gaussian_random_batch_size_like",
    "randint",
    "randn",
    "random_crop",
    "randperm",
    "sampling_id",
    "uniform_random",
    "uniform_random_batch_size_like",
]


def _float_number(dtype: Any, what: str) -> int:
    if not is_float(dtype):
        raise errors.AttributeTypeError(f"{what}: expected a floating dtype, found {dtype!r}")
    return int(var_type(dtype))


def _drawn(
    op_type: str,
    shape: Integers,
    attrs: dict[str, Any],
    *,
    layer: str | None = None,
    out: Variable | None = None,
    dtype: str = "int32",
    name: str | None = None,
) -> Variable:
    layer = layer or op_type
    inputs, dims = integers(shape, "shape", "ShapeTensor", "ShapeTensorList", f"{layer}, shape", dtype)
    return into(out, op_type, inputs, attrs | dims, layer=layer, name=name)


def uniform_random(
    shape: Integers, dtype: Any = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0
) -> Variable:
    """Draw numbers evenly from [min, max)."""
    attrs = {"dtype": _float_number(dtype, "uniform_random"), "min": float(min), "max": float(max), "seed": seed}
    return _drawn("uniform_random", shape, attrs, dtype="int64")


def gaussian_random(
    shape: Integers, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Variable:
    """Draw normally distributed numbers.

    Args:
        shape: shape of the result.
        mean: the mean.
        std: the standard deviation.
        seed: 0 draws new numbers in each step.
        dtype: dtype of the result.
    """
    attrs = {"dtype": _float_number(dtype, "gaussian_random"), "mean": float(mean), "std": float(std), "seed": seed}
    return _drawn("gaussian_random", shape, attrs)


def uniform_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Variable:
    """Draw numbers uniformly from [min, max), with one dimension of the shape taken from `input`.

    Args:
        input: the tensor that the dimension is taken from.
        shape: integers; the integer at `output_dim_idx` is replaced.
        dtype: dtype of the result.
        input_dim_idx: index of the dimension of `input`.
        output_dim_idx: index of the dimension of the result.
        min: lower bound.
        max: upper bound.
        seed: 0 draws new numbers in each step.
    """
    attrs = {
        "shape": list(shape),
        "dtype": _float_number(dtype, "uniform_random_batch_size_like"),
        "min": float(min),
        "max": float(max),
        "seed": seed,
        "input_dim_idx": input_dim_idx,
        "output_dim_idx": output_dim_idx,
    }
    return emit("uniform_random_batch_size_like", {"Input": input}, attrs)


def gaussian_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
) -> Variable:
    """Draw normally distributed numbers, with one dimension of the shape taken from `input`.

    Args:
        input: the tensor that the dimension is taken from.
        shape: integers; the integer at `output_dim_idx` is replaced.
        input_dim_idx: index of the dimension of `input`.
        output_dim_idx: index of the dimension of the result.
        mean: the mean.
        std: the standard deviation.
        seed: 0 draws new numbers in each step.
        dtype: dtype of the result.
    """
    attrs = {
        "shape": list(shape),
        "dtype": _float_number(dtype, "gaussian_random_batch_size_like"),
        "mean": float(mean),
        "std": float(std),
        "seed": seed,
        "input_dim_idx": input_dim_idx,
        "output_dim_idx": output_dim_idx,
    }
    return emit("gaussian_random_batch_size_like", {"Input": input}, attrs)


def randint(
    low: int,
    high: int | None = None,
    shape: Integers | None = None,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Variable:
    """Draw integers uniformly from [low, high), or from [0, low) if `high` is None.

    Args:
        low: lower bound; without `high`, the upper bound of numbers from 0.
        high: upper bound, exclusive.
        shape: [1] when None.
        out: the variable to write; a new variable when None.
        dtype: int32 or int64; int64 when None.
        device: None, "cpu" or "gpu". It is checked and has no effect: the program runs on the Executor's place.
        stop_gradient: True if no gradient flows to the result.
        seed: 0 draws new numbers in each step.
        name: see `jfluid.layers`.

    Raises AttributeTypeError if the range is empty, or the dtype is no integer type.
    """
    check_device(device, "randint")
    low, high = (0, low) if high is None else (low, high)
    kind = var_type("int64" if dtype is None else dtype)
    if kind not in (VarType.INT32, VarType.INT64):
        raise errors.AttributeTypeError(f"randint: expected dtype to be int32 or int64, found {dtype!r}")
    if low >= high:
        raise errors.AttributeTypeError(f"randint: expected low < high, found {low} and {high}")
    attrs = {"low": low, "high": high, "seed": seed, "dtype": int(kind)}
    result = _drawn("randint", [1] if shape is None else shape, attrs, out=out, name=name)
    result.stop_gradient = stop_gradient
    return result


def randn(
    shape: Integers,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Draw numbers from the standard normal distribution.

    Args:
        shape: shape of the result.
        out: the variable to write; a new variable when None.
        dtype: float32 when None.
        device: None, "cpu" or "gpu". It is checked and has no effect: the program runs on the Executor's place.
        stop_gradient: True if no gradient flows to the result.
        name: see `jfluid.layers`.
    """
    check_device(device, "randn")
    attrs = {"dtype": _float_number("float32" if dtype is None else dtype, "randn"), "mean": 0.0, "std": 1.0, "seed": 0}
    result = _drawn("gaussian_random", shape, attrs, layer="randn", out=out, name=name)
    result.stop_gradient = stop_gradient
    return result


def randperm(
    n: int,
    out: Variable | None = None,
    dtype: Any = "int64",
    device: str | None = None,
    stop_gradient: bool = True,
    seed: int = 0,
) -> Variable:
    """Return the numbers from 0 to n - 1 in random order: [n].

    Args:
        n: the number of integers.
        out: the variable to write; a new variable when None.
        dtype: dtype of the result.
        device: None, "cpu" or "gpu". It is checked and has no effect: the program runs on the Executor's place.
        stop_gradient: True if no gradient flows to the result.
        seed: 0 draws a new permutation in each step.

    Raises AttributeTypeError if `n` is below 1.
    """
    check_device(device, "randperm")
    if n < 1:
        raise errors.AttributeTypeError(f"randperm: expected n of at least 1, found {n}")
    result = into(out, "randperm", {}, {"n": n, "seed": seed, "dtype": int(var_type(dtype))}, layer="randperm")
    result.stop_gradient = stop_gradient
    return result


def sampling_id(x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: Any = "float32") -> Variable:
    """Draw a column for each row of probabilities: int64 [rows].

    Args:
        x: probabilities [rows, columns].
        min: lower bound of the uniform number that is compared with the running sum of a row.
        max: upper bound of the uniform number.
        seed: 0 draws new numbers in each step.
        dtype: no effect: Fluid, too, returns int64 whatever it is.
    """
    return emit("sampling_id", {"X": x}, {"min": float(min), "max": float(max), "seed": seed})


def random_crop(x: Variable, shape: Sequence[int], seed: int | Variable | None = None) -> Variable:
    """Crop a random window from the last dimensions of `x`, a different window for each instance.

    Args:
        x: tensor.
        shape: shape of the window.
        seed: an integer, or an int64 Variable that the layer also overwrites with the next seed;
            None draws a seed when the program is built.
    """
    check_variable(x, "random_crop", "x")
    helper = LayerHelper("random_crop")
    out = helper.create_variable_for_type_inference(x.dtype)
    if not isinstance(seed, Variable):
        seed_value = random.randrange(65536) if seed is None else seed
        seed = helper.create_global_variable(
            persistable=True,
            shape=[1],
            dtype="int64",
            name=unique_name.generate("random_crop_seed"),
            stop_gradient=True,
        )
        helper.set_variable_initializer(seed, Constant(value=seed_value, force_cpu=True))
        attrs = {"shape": list(shape), "startup_seed": seed_value}
    else:
        attrs = {"shape": list(shape)}
    helper.append_op(
        type="random_crop", inputs={"X": x, "Seed": seed}, outputs={"Out": out, "SeedOut": seed}, attrs=attrs
    )
    return out
