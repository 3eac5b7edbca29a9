"""NumPy rules of operations on elements."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jfluid.compile.numpy_steps.interpreter import PLAIN, NotInterpretable, plain, rule

Params = dict[str, Any]


_SAME = (
    "abs add cbrt ceil cos cosh exp exp2 expm1 floor log log1p nextafter sign sin sinh sqrt square tan tanh"
).split()
for _name in _SAME:
    PLAIN[_name] = getattr(np, _name)
_RENAMED: dict[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "add_any": np.add,
    "and": np.bitwise_and,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "shift_left": np.left_shift,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
    "stop_gradient": lambda x: x,
    "copy": np.copy,
    "copy_p": np.copy,
}
PLAIN.update(_RENAMED)


def ranks(x: Any) -> Any:
    """Return integers in the order of floating-point numbers: -NaN, -inf, ..., -0, +0, ..., +inf, +NaN."""
    if x.dtype.kind != "f":
        return x
    bits = np.asarray(x).view(f"i{x.dtype.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


for _name, _function in {"eq_to": np.equal, "le_to": np.less_equal, "lt_to": np.less}.items():  # of the total order
    PLAIN[_name] = lambda x, y, compare=_function: compare(ranks(x), ranks(y))


@plain("optimization_barrier")
def _barrier(*values: Any) -> Any:
    return values


@plain("div")
def _div(x: Any, y: Any) -> Any:
    if not np.issubdtype(x.dtype, np.integer):
        return np.divide(x, y)
    # XLA rounds towards zero, and all bits of x / 0 are set.
    if y.all():
        return (x - np.fmod(x, y)) // y
    divisor = np.where(y == 0, x.dtype.type(1), y)
    return np.where(y == 0, np.invert(x.dtype.type(0)), (x - np.fmod(x, divisor)) // divisor)


@plain("rem")
def _rem(x: Any, y: Any) -> Any:
    if not np.issubdtype(x.dtype, np.integer):
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, x.dtype.type(1), y)))  # XLA's remainder of x / 0 is x


@rule("integer_pow")
def _integer_pow(params: Params, x: Any) -> Any:
    y = params["y"]
    if y == 2:
        return x * x
    if y == 3:
        return x * x * x
    if y == -1:
        return np.reciprocal(x)
    return np.power(x, x.dtype.type(y)) if y >= 0 else 1 / np.power(x, x.dtype.type(-y))


@plain("pow")
def _pow(x: Any, y: Any) -> Any:
    return np.power(x, y.astype(x.dtype))


@plain("rsqrt")
def _rsqrt(x: Any) -> Any:
    return np.reciprocal(np.sqrt(x))


@plain("logistic")
def _logistic(x: Any) -> Any:
    return np.reciprocal(1 + np.exp(-x))


@rule("round")
def _round(params: Params, x: Any) -> Any:
    if int(params["rounding_method"]) == 1:
        return np.rint(x)
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0).astype(x.dtype)


@plain("shift_right_logical")
def _shift_right_logical(x: Any, y: Any) -> Any:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return np.right_shift(x.view(unsigned), y.astype(unsigned)).view(x.dtype)


@plain("shift_right_arithmetic")
def _shift_right_arithmetic(x: Any, y: Any) -> Any:
    signed = np.dtype(f"i{x.dtype.itemsize}")
    return np.right_shift(x.view(signed), y.astype(signed)).view(x.dtype)


@plain("select_n")
def _select(which: Any, *cases: Any) -> Any:
    if which.dtype == bool:
        if which.size and not any(which.strides):  # one bool for all elements, as where a loop keeps its values
            return cases[int(which[(0,) * which.ndim])]
        return np.where(which, cases[1], cases[0])
    which = np.clip(which, 0, len(cases) - 1)
    if np.ndim(which) == 0:
        return cases[int(which)]
    return np.select([which == i for i in range(len(cases) - 1)], cases[:-1], cases[-1])


@plain("clamp")
def _clamp(low: Any, x: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


@rule("convert_element_type")
def _convert(params: Params, x: Any) -> Any:
    goal = params["results"][0].dtype
    if x.dtype == goal:
        return x
    if goal.kind in "iu" and x.dtype.kind not in "iub":
        # XLA keeps numbers that do not fit at the ends, and makes 0 of NaN.
        ends = np.iinfo(goal)
        number = np.trunc(x.astype(np.float64))
        whole = np.nan_to_num(number, nan=0).clip(ends.min, float(ends.max))
        found = whole.astype(goal)
        return np.where(number >= ends.max, goal.type(ends.max), found)
    return x.astype(goal)


@rule("bitcast_convert_type")
def _bitcast(params: Params, x: Any) -> Any:
    return np.ascontiguousarray(x).view(params["new_dtype"]).reshape(params["results"][0].shape)


# Random numbers: a key is the array of its numbers.

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(key: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return two arrays of random bits of Threefry-2x32 (Salmon et al. 2011, 20 rounds) for two counters.

    Raises NotInterpretable for several keys.
    """
    if np.shape(key) != (2,):
        raise NotInterpretable("several random keys at once")
    first, second = np.uint32(key[0]), np.uint32(key[1])
    keys = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(turn)) | (y >> np.uint32(32 - turn))
            y ^= x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


@plain("random_wrap", "random_unwrap", "random_clone")
def _key_itself(key: Any) -> Any:
    return key


@rule("random_seed")
def _seed(params: Params, seed: Any) -> Any:
    bits = np.uint64(np.asarray(seed).astype(np.int64).view(np.uint64))
    high = bits >> np.uint64(32) if np.asarray(seed).dtype.itemsize == 8 else 0
    return np.array([high, bits & np.uint64(0xFFFFFFFF)], np.uint32)


@rule("random_fold_in")
def _fold_in(params: Params, key: Any, data: Any) -> Any:
    with np.errstate(all="ignore"):
        low = np.asarray(data).astype(np.uint32).reshape(1)
        x, y = _threefry(key, np.zeros(1, np.uint32), low)
    return np.concatenate([x, y])


def _counters(shape: tuple[int, ...]) -> tuple[Any, Any]:
    counts = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    return (counts >> np.uint64(32)).astype(np.uint32), counts.astype(np.uint32)


@rule("random_split")
def _split(params: Params, key: Any) -> Any:
    return np.stack(_threefry(key, *_counters(tuple(params["shape"]))), axis=-1)


@rule("random_bits")
def _bits(params: Params, key: Any) -> Any:
    width = params["bit_width"]
    x, y = _threefry(key, *_counters(tuple(params["shape"])))
    if width == 64:
        return (x.astype(np.uint64) << np.uint64(32)) | y
    return (x ^ y).astype(np.dtype(f"u{width // 8}"))
