"""A net that takes and gives sequences."""

import numpy as np

import jfluid as fluid


class Net:
    """`build` called with a variable for each array or LoDTensor, once run."""

    def __init__(self, build, **feeds):
        self.main, startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.program_guard(self.main, startup), fluid.unique_name.guard():
            found = build(**{name: _variable(name, value) for name, value in feeds.items()})
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup, scope=self.scope)
        self.variables = found
        self.values = exe.run(self.main, feed=feeds, fetch_list=found, scope=self.scope, return_numpy=False)
        self.parameters = {p.name: tuple(p.shape) for p in self.main.all_parameters()}

    def __getitem__(self, i):
        return np.array(self.values[i])


def _variable(name, value):
    array, levels = np.asarray(value), len(value.lod()) if hasattr(value, "lod") else 0
    return fluid.data(name, [-1, *array.shape[1:]], str(array.dtype), lod_level=levels)
