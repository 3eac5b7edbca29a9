"""Probability distributions built from operators."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers import math_op_patch as arithmetic
from jfluid.layers.creation import assign, cast, diag, ones, zeros_like
from jfluid.layers.helper import emit
from jfluid.layers.random import gaussian_random, uniform_random
from jfluid.layers.shape import reshape
from jfluid.layers.tensor import shape

__all__ = ["Categorical", "MultivariateNormalDiag", "Normal", "Uniform"]

Values = float | Sequence[float] | np.ndarray | Variable
_add, _sub, _mul, _div = (
    functools.partial(arithmetic.binary, f"elementwise_{o}") for o in ("add", "sub", "mul", "div")
)


def _log(x: Variable) -> Variable:
    return emit("log", {"X": x})


def _reduced(op_type: str, x: Variable) -> Variable:
    """Reduce the last dimension, and keep it with size 1."""
    return emit(op_type, {"X": x}, {"dim": [-1], "keep_dim": True})


class Distribution:
    """Base class of distributions.

    A method that a distribution does not have raises NotImplementedError.
    """

    def _missing(self, what: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} has no {what}")

    def sample(self, *args: Any, **kwargs: Any) -> Variable:
        """Draw values."""
        self._missing("sample")

    def entropy(self) -> Variable:
        """Return the entropy in nats."""
        self._missing("entropy")

    def kl_divergence(self, other: Any) -> Variable:
        """Return the Kullback-Leibler divergence, in nats, from this distribution to `other` of the same class."""
        self._missing("kl_divergence")

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at `value`."""
        self._missing("log_prob")


def _parameters(what: str, *values: Values) -> tuple[list[Variable], bool]:
    """Return the parameters as Variables, and True if all were plain numbers.

    Variables and numbers cannot be mixed.
    """
    variables = [v for v in values if isinstance(v, Variable)]
    if len(variables) == len(values):
        return variables, False
    if variables:
        raise errors.AttributeTypeError(f"{what}: expected all parameters to be Variables, or none")
    given = [np.asarray(v, np.float32) for v in values]
    arrays = np.broadcast_arrays(*given)
    return [assign(np.array(a.reshape(-1) if a.ndim == 0 else a)) for a in arrays], all(v.ndim == 0 for v in given)


class _TwoParameters(Distribution):
    """Base class of distributions with two parameters of the same shape; draws values for each pair."""

    def __init__(self, first: Values, second: Values):
        (self._first, self._second), self._plain = _parameters(type(self).__name__, first, second)

    def _standard(self, size: list[Any], seed: int) -> Variable:
        raise NotImplementedError

    def sample(self, shape: Sequence[int], seed: int = 0) -> Variable:
        """Draw values of shape `shape` + the parameters' shape (`shape` alone for parameters that are numbers).

        Args:
            shape: leading dimensions of the result.
            seed: 0 draws new values in each step.
        """
        size = [*shape, *_dimensions(_add(self._first, self._second))]
        drawn = self._standard(size, seed)
        out = self._placed(drawn)
        return reshape(out, list(shape)) if self._plain else out

    def _placed(self, drawn: Variable) -> Variable:
        raise NotImplementedError


def _dimensions(x: Variable) -> list[int | Variable]:
    """Return the shape of `x`, with a Variable for a dimension that is known only when the program runs."""
    if -1 not in x.shape:
        return list(x.shape)
    dims = shape(x)
    return [arithmetic.getitem(dims, i) if d == -1 else d for i, d in enumerate(x.shape)]


class Uniform(_TwoParameters):
    """Uniform distribution over [low, high).

    Args:
        low, high: numbers, lists, arrays, or two Variables.
    """

    def __init__(self, low: Values, high: Values):
        super().__init__(low, high)
        self.low, self.high = self._first, self._second

    def _standard(self, size: list[Any], seed: int) -> Variable:
        return uniform_random(size, self.low.dtype, 0.0, 1.0, seed)

    def _placed(self, drawn: Variable) -> Variable:
        return _aligned("add", _aligned("mul", drawn, _sub(self.high, self.low)), self.low)

    def log_prob(self, value: Variable) -> Variable:
        """Return -log(high - low) inside (low, high), else minus infinity."""
        above = cast(arithmetic.compare("less_than", self.low, value), value.dtype)
        below = cast(arithmetic.compare("less_than", value, self.high), value.dtype)
        return _sub(_log(_mul(above, below)), _log(_sub(self.high, self.low)))

    def entropy(self) -> Variable:
        """Return log(high - low)."""
        return _log(_sub(self.high, self.low))


def _aligned(operation: str, x: Variable, y: Variable) -> Variable:
    """Return x (op) y, where the shape of `y` is a suffix of the shape of `x`."""
    return emit(f"elementwise_{operation}", {"X": x, "Y": y}, {"axis": -1})


class Normal(_TwoParameters):
    """Normal distribution with mean `loc` and standard deviation `scale`.

    Args:
        loc, scale: numbers, lists, arrays, or two Variables.
    """

    def __init__(self, loc: Values, scale: Values):
        super().__init__(loc, scale)
        self.loc, self.scale = self._first, self._second

    def _standard(self, size: list[Any], seed: int) -> Variable:
        return gaussian_random(size, 0.0, 1.0, seed, self.loc.dtype)

    def _placed(self, drawn: Variable) -> Variable:
        return _aligned("add", _aligned("mul", drawn, self.scale), self.loc)

    def entropy(self) -> Variable:
        """Return 1/2 + log(2 pi)/2 + log(scale)."""
        return _add(_log(_add(zeros_like(_add(self.loc, self.scale)), self.scale)), 0.5 + 0.5 * math.log(2 * math.pi))

    def log_prob(self, value: Variable) -> Variable:
        """Return -(value - loc)² / (2 scale²) - log(scale) - log(2 pi)/2."""
        distance = _sub(value, self.loc)
        square = _div(_mul(distance, distance), _mul(_mul(self.scale, self.scale), -2.0))
        return _sub(_sub(square, _log(self.scale)), 0.5 * math.log(2 * math.pi))

    def kl_divergence(self, other: "Normal") -> Variable:
        """Return (r + d - 1 - log r) / 2 for r = (scale / other.scale)², d = ((loc - other.loc) / other.scale)²."""
        _same_kind(self, other)
        ratio = _div(self.scale, other.scale)
        ratio = _mul(ratio, ratio)
        distance = _div(_sub(self.loc, other.loc), other.scale)
        return _mul(_sub(_sub(_add(ratio, _mul(distance, distance)), 1.0), _log(ratio)), 0.5)


def _same_kind(one: Distribution, other: Distribution) -> None:
    if type(one) is not type(other):
        raise errors.AttributeTypeError(f"kl_divergence: expected a {type(one).__name__}, found {type(other).__name__}")


class Categorical(Distribution):
    """Categorical distribution over the last dimension of unnormalised `logits` [..., classes]."""

    def __init__(self, logits: Values):
        (self.logits,), _ = _parameters("Categorical", logits)

    def _parts(self) -> tuple[Variable, Variable, Variable]:
        """Return logits with maximum 0, their exponentials, and the sums of the exponentials."""
        shifted = _sub(self.logits, _reduced("reduce_max", self.logits))
        exponentials = emit("exp", {"X": shifted})
        return shifted, exponentials, _reduced("reduce_sum", exponentials)

    def entropy(self) -> Variable:
        """Return -sum(p log p), with the last dimension kept as 1."""
        shifted, exponentials, total = self._parts()
        return arithmetic.negate(_reduced("reduce_sum", _mul(_div(exponentials, total), _sub(shifted, _log(total)))))

    def kl_divergence(self, other: "Categorical") -> Variable:
        """Return sum(p (log p - log q)), with the last dimension kept as 1."""
        _same_kind(self, other)
        shifted, exponentials, total = self._parts()
        other_shifted, _, other_total = other._parts()
        difference = _sub(_sub(shifted, _log(total)), _sub(other_shifted, _log(other_total)))
        return _reduced("reduce_sum", _mul(_div(exponentials, total), difference))


class MultivariateNormalDiag(Distribution):
    """Multivariate normal distribution with a diagonal covariance matrix.

    Args:
        loc: the mean, [k].
        scale: the covariance matrix, [k, k]; only its diagonal counts.
    """

    def __init__(self, loc: Values, scale: Values):
        (self.loc,), _ = _parameters("MultivariateNormalDiag", loc)
        (self.scale,), _ = _parameters("MultivariateNormalDiag", scale)

    def _identity(self) -> Variable:
        return diag(ones([self.scale.shape[0]], self.loc.dtype))

    def _determinant(self) -> Variable:
        """Return the product of the diagonal: all other entries are turned into ones."""
        off = _sub(ones(list(self.scale.shape), self.loc.dtype), self._identity())
        inside = _add(_mul(self.scale, self._identity()), off)
        return emit("reduce_prod", {"X": inside}, {"reduce_all": True})

    def _inverse(self) -> Variable:
        """Return the inverse of the diagonal, with zeros elsewhere."""
        off = _sub(ones(list(self.scale.shape), self.loc.dtype), self._identity())
        return _div(self._identity(), _add(_mul(self.scale, self._identity()), off))

    def entropy(self) -> Variable:
        """Return (k (1 + log(2 pi)) + log det scale) / 2."""
        constant = self.scale.shape[0] * (1.0 + math.log(2 * math.pi))
        return _mul(_add(_log(self._determinant()), constant), 0.5)

    def kl_divergence(self, other: "MultivariateNormalDiag") -> Variable:
        """Return (trace(S2⁻¹ S1) + (m2 - m1)ᵀ S2⁻¹ (m2 - m1) - k + log det S2 - log det S1) / 2."""
        _same_kind(self, other)
        inverse = other._inverse()
        trace = emit("reduce_sum", {"X": _mul(inverse, self.scale)}, {"reduce_all": True})
        distance = _sub(other.loc, self.loc)
        square = emit("matmul", {"X": emit("matmul", {"X": distance, "Y": inverse}), "Y": distance})
        logs = _sub(_log(other._determinant()), _log(self._determinant()))
        return _mul(_add(_sub(_add(trace, square), float(self.scale.shape[0])), logs), 0.5)
