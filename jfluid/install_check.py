"""A check of the installation: Fluid's `fluid.install_check`."""

import numpy as np

from jfluid import errors, layers
from jfluid.executor import Executor
from jfluid.input import data
from jfluid.ir import unique_name
from jfluid.ir.program import Program, program_guard
from jfluid.optimizer import SGD
from jfluid.scope import Scope, scope_guard

__all__ = ["run_check"]


def run_check() -> None:
    """Train a small program on the default device, and print which device that is. Raises OpError
    when it fails.
    """
    main, startup = Program(), Program()
    with program_guard(main, startup), scope_guard(Scope()), unique_name.guard():
        x = data(name="x", shape=[None, 2], dtype="float32")
        loss = layers.mean(layers.fc(x, 3))
        SGD(learning_rate=0.01).minimize(loss)
        exe = Executor()
        exe.run(startup)
        (value,) = exe.run(main, feed={"x": np.ones((4, 2), "float32")}, fetch_list=[loss])
        if not np.isfinite(value).all():
            raise errors.OpError(f"run_check: the loss of a small program is {value}")
        print(f"jfluid works on {exe.place}.")
