"""A small net with parameters, and what it computes."""

from collections.abc import Callable
from typing import Any

import numpy as np

import jfluid as fluid


class Net:
    """`function` called with a variable for each of `data` (batches of unknown size), in programs
    of its own.

    `params` maps the names of parameters, in the order of their creation, to their values after the
    startup program.
    """

    def __init__(self, function: Callable, **data: np.ndarray):
        self.main, startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        self.feed = data
        with fluid.unique_name.guard(), fluid.program_guard(self.main, startup):
            variables = {
                name: fluid.data(name, [-1, *value.shape[1:]], str(value.dtype)) for name, value in data.items()
            }
            for variable in variables.values():
                variable.stop_gradient = False
            self.out = function(**variables)
        self.exe = fluid.Executor(fluid.CPUPlace())
        self.exe.run(startup, scope=self.scope)
        self.params = {p.name: self.value(p.name) for p in self.main.all_parameters()}

    def value(self, name: str) -> np.ndarray:
        return np.array(self.scope.find_var(name).get_tensor())

    def run(self, fetch: Any = None, program: fluid.Program | None = None) -> Any:
        """The value of what the function returned, or of `fetch` (a list gives a list)."""
        fetch = self.out if fetch is None else fetch
        several = isinstance(fetch, (list, tuple))
        values = self.exe.run(
            program or self.main,
            feed=self.feed,
            fetch_list=list(fetch) if several else [fetch],
            scope=self.scope,
        )
        return values if several else values[0]

    def types(self) -> list[str]:
        return [op.type for op in self.main.global_block().ops]
