"""Initial values of rows, from (seed, id) alone: the same after a restart, on any server, in any order of creation.

The generator is counter-based: element j of a row draws from mix(key(seed, id), j, attempt), so no
draw depends on another.
"""

import math

import numpy as np

from jfluid.ps_server import specs, validation
from jfluid.ps_server.kernels import kernel, mix

_STEP, _ATTEMPT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xA0761D6478BD642F)
_UNIT = 2.0**-53
CONSTANT, UNIFORM, NORMAL, TRUNCATED = range(4)


@kernel
def _key(seed, id_):
    return mix(mix(np.uint64(seed) + _STEP) ^ np.uint64(id_))


@kernel
def _unit(key, element, attempt):
    """Return a number of (0, 1) with 52 random bits."""
    bits = mix(key + np.uint64(element) * _STEP + np.uint64(attempt) * _ATTEMPT)
    return (np.float64(bits >> np.uint64(12)) + 0.5) * (2.0 * _UNIT)


@kernel
def _gauss(key, element, attempt):
    """Return a standard normal number (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log(_unit(key, element, 2 * attempt)))
    return radius * math.cos(2.0 * math.pi * _unit(key, element, 2 * attempt + 1))


@kernel
def fill(values, seed, id_, kind, first, second):
    """Write the initial values of the row of an id.

    (first, second): value; low, high; or mean, standard deviation.
    """
    key = _key(seed, id_)
    for j in range(len(values)):
        if kind == CONSTANT:
            values[j] = first
        elif kind == UNIFORM:
            values[j] = np.float32(first + (second - first) * _unit(key, j, 0))
        else:
            drawn = _gauss(key, j, 0)
            attempt = 1
            while kind == TRUNCATED and abs(drawn) > 2.0:
                drawn = _gauss(key, j, attempt)
                attempt += 1
            values[j] = np.float32(first + second * drawn)


@kernel
def fill_absent(rows, order, ids, out, seed, kind, first, second):
    """Write the initial values of ids without a row (-1) into out[order[i]]."""
    for i in range(len(rows)):
        if rows[i] < 0:
            fill(out[order[i]], seed, ids[order[i]], kind, first, second)


@kernel
def drawn_below(seed, ids, shows, probability):
    """Return bool [n]: True where draw number `shows` of an id is below the probability."""
    out = np.empty(len(ids), np.bool_)
    for i in range(len(ids)):
        out[i] = _unit(_key(~seed, ids[i]), shows[i], 0) < probability
    return out


def encoded(initializer: validation.Spec) -> tuple[int, float, float]:
    """Return (kind, first, second) of an initializer: the arguments of `fill`."""
    match initializer:
        case specs.Constant(value=value):
            return CONSTANT, value, 0.0
        case specs.Uniform(low=low, high=high):
            return UNIFORM, low, high
        case specs.Normal(mean=mean, std=std):
            return NORMAL, mean, std
        case specs.TruncatedNormal(mean=mean, std=std):
            return TRUNCATED, mean, std
    raise TypeError(f"expected an initializer of jfluid.ps_server.specs, found {initializer!r}")
