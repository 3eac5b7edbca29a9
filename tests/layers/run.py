"""Build a small net and run it once."""

from collections.abc import Callable
from typing import Any

import numpy as np

import jfluid as fluid


def _net(net: Callable, data: dict[str, Any]) -> tuple[Any, fluid.Program, fluid.Program, dict[str, np.ndarray]]:
    main, startup = fluid.Program(), fluid.Program()
    feed, variables = {}, {}
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        for name, value in data.items():
            shape, array = value if isinstance(value, tuple) else (list(value.shape), value)
            feed[name] = array
            variables[name] = main.global_block().create_var(name=name, shape=shape, dtype=array.dtype, is_data=True)
        return net(**variables), main, startup, feed


def build(net: Callable, **data: Any) -> Any:
    """What `net` returns when it is called with a variable for each of `data`: an array, or (shape,
    array).
    """
    return _net(net, data)[0]


def run(net: Callable, **data: Any) -> Any:
    """The values of the variables that `net` returns; the startup program is run first."""
    fetch, main, startup, feed = _net(net, data)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    several = isinstance(fetch, (list, tuple))
    values = exe.run(main, feed=feed, fetch_list=list(fetch) if several else [fetch], scope=scope)
    for var, value in zip(fetch if several else [fetch], values, strict=True):
        known = len(var.shape) == value.ndim and all(d in (-1, r) for d, r in zip(var.shape, value.shape, strict=True))
        assert known and var.np_dtype == value.dtype, f"{var}: got {value.dtype}{value.shape}"
    return values if several else values[0]
