"""Convolution and pooling in NumPy, window by window."""

import itertools

import numpy as np


def pairs(paddings, count):
    """(before, after) for each dimension from one number or two for each of them."""
    return [(p, p) for p in paddings] if len(paddings) == count else list(zip(paddings[::2], paddings[1::2]))


def convolve(x, w, strides, paddings, dilations=None, groups=1):
    """Convolution of x [N, C, ...] with w [out, C / groups, ...]."""
    count = x.ndim - 2
    dilations = dilations or [1] * count
    x = np.pad(x.astype("float64"), [(0, 0), (0, 0), *pairs(paddings, count)])
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for o, c in itertools.product(range(w.shape[0]), range(w.shape[1])):
        source = x[:, o // (w.shape[0] // groups) * w.shape[1] + c]
        for place in np.ndindex(*w.shape[2:]):
            at = tuple(slice(i * d, i * d + s * (n - 1) + 1, s) for i, d, s, n in zip(place, dilations, strides, out))
            y[:, o] += source[(slice(None), *at)] * w[(o, c, *place)]
    return y


def convolve_transpose(x, w, strides, paddings, dilations=None, groups=1, output_size=None):
    """Transposed convolution of x [N, C, ...] with w [C, out / groups, ...]: every input spreads
    its window.
    """
    count = x.ndim - 2
    dilations, around = dilations or [1] * count, pairs(paddings, count)
    sizes = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations)]
    wanted = output_size or [n - low - high for n, (low, high) in zip(sizes, around)]
    room = [max(n, low + size) for n, (low, _), size in zip(sizes, around, wanted)]
    y = np.zeros((x.shape[0], w.shape[1] * groups, *room))
    for c, o in itertools.product(range(w.shape[0]), range(w.shape[1])):
        target = y[:, c // (w.shape[0] // groups) * w.shape[1] + o]
        for place in np.ndindex(*w.shape[2:]):
            at = tuple(
                slice(i * d, i * d + s * (n - 1) + 1, s) for i, d, s, n in zip(place, dilations, strides, x.shape[2:])
            )
            target[(slice(None), *at)] += x[:, c] * w[(c, o, *place)]
    return y[(..., *[slice(low, low + size) for (low, _), size in zip(around, wanted)])]


def regions(size, kernel, stride, low, high, ceil_mode=False):
    """(begin, end) of the windows of a dimension; they may reach outside of it."""
    count = (size + low + high - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    return [(i * stride - low, i * stride - low + kernel) for i in range(count)]


def adaptive_regions(size, count):
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def pool(x, each, how, exclusive=True):
    """Pool x [N, C, ...]; each: the regions of each spatial dimension. how: max, avg or argmax
    (flat index).
    """
    y = np.zeros((*x.shape[:2], *[len(r) for r in each]))
    flat = np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:])
    for place in np.ndindex(*y.shape[2:]):
        window = [r[i] for r, i in zip(each, place)]
        inside = tuple(slice(max(a, 0), min(b, n)) for (a, b), n in zip(window, x.shape[2:]))
        values = x[(..., *inside)].astype("float64").reshape(*x.shape[:2], -1)
        if how == "max":
            y[(..., *place)] = values.max(-1)
        elif how == "argmax":
            y[(..., *place)] = flat[inside].reshape(-1)[values.argmax(-1)]
        else:
            y[(..., *place)] = values.sum(-1) / (values.shape[-1] if exclusive else np.prod([b - a for a, b in window]))
    return y
