"""Functions that tensors steer, for test_to_static.py: eager they are plain Python."""

from collections import namedtuple

import jfluid as fluid

layers = fluid.layers
Pair = namedtuple("Pair", "first second")


def constants(x):
    a, b = 1.5, 3
    if layers.mean(x) > 1.0:
        a, b = 2.5, 4
    return x * a, b + layers.reduce_sum(x)


def one_branch(x):
    y = x
    if layers.mean(x) > 1.0:
        y = x + 1.0
    return y


def returns(x):
    if layers.mean(x) > 2.0:
        return x + 1.0
    elif layers.mean(x) > 1.0:
        y = x * 3.0
        return y
    x = x * 5.0
    return x - 1.0


def nested_returns(x):
    if layers.reduce_min(x) > -1.0:
        if layers.mean(x) > 1.0:
            return x * 2.0
        x = x + 1.0
    return x * 10.0


def return_in_with(x):
    with fluid.name_scope("inner"):
        if layers.mean(x) > 1.0:
            return x + 1.0
        y = x * 2.0
    return y


def ternary(x):
    return x + 1.0 if layers.mean(x) > 1.0 else x - 1.0


def logic(x):
    m = layers.mean(x)
    if (0.0 < m < 2.0 and not m > 1.2) or m == 7.0:
        return x + 1.0
    return x


def structures(x):
    d = {"a": x, "n": 1}
    pair = Pair(x, [x, 2.0])
    if layers.mean(x) > 1.0:
        d["a"] = x * 2.0
        pair = Pair(x + 1.0, [x * 3.0, 4.0])
    else:
        d["n"] = 2
    return d["a"] * d["n"] + pair.first, pair.second[0] * pair.second[1]


def counted(x):
    i, total = 0, 0.0
    while layers.reduce_sum(x) < 30.0:
        x = x + 1.0
        i = i + 1
        total = total + 0.5
    return x * i, x + total


def sum_from_zero(x):
    total = 0
    for v in x:
        total = total + v * v
    return total


def sum_of_rows(x):
    total = 0
    for i in range(layers.cast(layers.reduce_sum(x), "int64") + 1):
        total += x * i
    return total


def breaks(x):
    for i, v in enumerate(x):
        if v > 2.5:
            break
        if v < 0.7:
            continue
        x = x * 2.0 + i
    return x


def python_loop_breaks(x):
    for i in range(5):
        if layers.reduce_sum(x) > 9.0:
            break
        x = x + i
    return x


def loop_else(x):
    for v in x:
        if v > 2.5:
            break
    else:
        x = x + 100.0
    return x


def return_in_loop(x):
    for i in range(5):
        if layers.reduce_sum(x) > 9.0:
            return x * 100.0
        x = x + i
    return x


def endless(x):
    while True:
        x = x * 2.0
        if layers.reduce_sum(x) > 50.0:
            return x


def nested_loops(x):
    total = layers.reduce_sum(x) * 0.0
    for v in x:
        j = 0
        while j < 3:
            j += 1
            if v * j > 3.0:
                break
            total = total + v * j
    return total


def swaps(x):
    a, b = x, x * 2.0
    i = layers.fill_constant([1], "int64", 0)
    while i < layers.cast(layers.reduce_max(x), "int64"):
        a, b = b, a
        i = i + 1
    return a, b, x


def list_in_loop(x):
    found = []
    i = layers.fill_constant([1], "int64", 0)
    while i < 3:
        found.append(x)
        if layers.mean(x) > 1.2:
            found.append(x * 2.0)
        x = x + 1.0
        i = i + 1
    found[0] = found[0] * 5.0
    return found[-1] + found[0], layers.cast(x, "float32") * len(found)


def calls_itself(x, times=2):
    if layers.mean(x) > 1.0:
        x = x * 0.5
    return calls_itself(x + 1.0, times - 1) if times else x


def calls_itself_within(x):
    def inner(x, times):
        if layers.mean(x) > 1.0:
            x = x * 0.5
        return inner(x + 1.0, times - 1) if times else x

    return inner(x, 2)


def list_joined(x):
    found = []
    i = layers.fill_constant([1], "int64", 0)
    while i < 3:
        found.append(x * layers.cast(i, "float32"))
        i = i + 1
    return layers.stack(found), layers.concat(found, axis=0)


def list_in_branch(x):
    found = [x]
    if layers.mean(x) > 1.0:
        found.append(x * 2.0)
    return found[-1]


def temporary(x):
    for v in x:
        square = v * v
        x = x + square
    return x


def defined_in_loop(x):
    i = layers.fill_constant([1], "int64", 0)
    while i < 2:
        last = x * 2.0
        i = i + 1
    return last


def helper(x, scale=2.0):
    if layers.mean(x) > 1.0:
        x = x * scale
    return x


def calls(x):
    count = 0

    def inner(v):
        nonlocal count
        count += 1
        if layers.mean(v) > 1.0:
            v = v + count
        return v

    return inner(inner(helper(x, scale=3.0)))


def shapes(x):
    if x.shape[0] > 2 and len(x) == 4:
        x = x + len(x.shape)
    return layers.reshape(x, [x.shape[0] // 2, 2])


def casts(x):
    return float(int(layers.reduce_sum(x))) * x


FUNCTIONS = [f for f in list(vars().values()) if getattr(f, "__module__", None) == __name__ and f not in (helper, Pair)]
