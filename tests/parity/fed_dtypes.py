"""Feeds of another dtype than `layers.data` declares, for any engine that offers the Fluid API (Python 3.7 syntax).

Fluid computes in the dtype of the feed. Operators without a kernel for the dtype, or with tensors of two dtypes, fail.
"""

import numpy as np

VALUES = np.array([[0.1, 0.9, 1 / 3.0], [2.7, 1 / 7.0, 0.5], [1, 2, 3], [0.3, 0.6, 0.7]])
DTYPES = ("float64", "int32", "int64")


def _half(fluid):
    return fluid.initializer.Constant(0.5)


def _parameter(fluid, shape):
    return fluid.layers.create_parameter(shape, "float32", default_initializer=_half(fluid))


CASES = {
    "abs": lambda f, x: f.layers.abs(x),
    "add": lambda f, x: f.layers.elementwise_add(x, x),
    "add a number": lambda f, x: x + 1.0,
    "add a parameter": lambda f, x: f.layers.elementwise_add(x, _parameter(f, [3])),
    "argmax": lambda f, x: f.layers.argmax(x, 1),
    "assign": lambda f, x: f.layers.assign(x),
    "cast to float": lambda f, x: f.layers.cast(x, "float32"),
    "cast to integers": lambda f, x: f.layers.cast(x, "int64"),
    "compare": lambda f, x: f.layers.less_than(x, f.layers.scale(x, 2.0)),
    "concat": lambda f, x: f.layers.concat([x, x], axis=1),
    "concat with float32": lambda f, x: f.layers.concat([x, f.layers.fill_constant([4, 3], "float32", 1.0)], axis=1),
    "cumsum": lambda f, x: f.layers.cumsum(x),
    "divide": lambda f, x: f.layers.elementwise_div(x, x + x),
    "exp": lambda f, x: f.layers.exp(x),
    "expand": lambda f, x: f.layers.expand(x, [1, 2]),
    "fc": lambda f, x: f.layers.fc(x, 2, param_attr=_half(f)),
    "fc after a cast": lambda f, x: f.layers.fc(
        f.layers.cast(f.layers.scale(x, 2.0), "float32"), 2, param_attr=_half(f)
    ),
    "fetch": lambda f, x: x,
    "gather": lambda f, x: f.layers.gather(x, f.layers.fill_constant([2], "int64", 1)),
    "l2_normalize": lambda f, x: f.layers.l2_normalize(x, 1),
    "log": lambda f, x: f.layers.log(x),
    "matmul": lambda f, x: f.layers.matmul(x, x, transpose_y=True),
    "matmul with a parameter": lambda f, x: f.layers.matmul(x, _parameter(f, [3, 2])),
    "mean": lambda f, x: f.layers.mean(x),
    "pool2d": lambda f, x: f.layers.pool2d(f.layers.reshape(x, [1, 1, 4, 3]), 2),
    "pow": lambda f, x: f.layers.pow(x, 2.0),
    "reduce_max": lambda f, x: f.layers.reduce_max(x),
    "reduce_mean": lambda f, x: f.layers.reduce_mean(x, dim=1),
    "reduce_sum": lambda f, x: f.layers.reduce_sum(x),
    "relu": lambda f, x: f.layers.relu(x),
    "reshape": lambda f, x: f.layers.reshape(x, [-1]),
    "scale": lambda f, x: f.layers.scale(x, 2.5, 1.0),
    "slice": lambda f, x: f.layers.slice(x, [0], [0], [2]),
    "softmax": lambda f, x: f.layers.softmax(x),
    "split": lambda f, x: f.layers.split(x, 3, 1)[0],
    "square": lambda f, x: f.layers.square(x),
    "stack": lambda f, x: f.layers.stack([x, x]),
    "sum": lambda f, x: f.layers.sums([x, x]),
    "sum with float32": lambda f, x: f.layers.sums([x, f.layers.fill_constant([4, 3], "float32", 1.0)]),
    "topk": lambda f, x: f.layers.topk(x, 2)[0],
    "transpose": lambda f, x: f.layers.transpose(x, [1, 0]),
    "zeros_like": lambda f, x: f.layers.zeros_like(x),
}


def fed(dtype):
    """Return the feed: fractions, or integers."""
    return (VALUES if dtype == "float64" else VALUES * 10).astype(dtype)


def run(fluid, case, dtype):
    """Return the dtype and the values of a case that is fed numbers of a dtype. Raises what the engine raises."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        out = CASES[case](fluid, fluid.layers.data("x", [3]))
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        (found,) = executor.run(main, feed={"x": fed(dtype)}, fetch_list=[out])
    return str(found.dtype), np.asarray(found).ravel().tolist()


def results(fluid):
    """Return the results by case and dtype: null where the engine fails."""
    found = {}
    for case in sorted(CASES):
        for dtype in DTYPES:
            try:
                found[case + ", " + dtype] = run(fluid, case, dtype)
            except fluid.core.EnforceNotMet:
                found[case + ", " + dtype] = None
    return found
