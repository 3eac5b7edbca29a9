"""Every test starts with empty default programs, an empty scope and names counted from 0."""
import jax
import pytest

import jfluid as fluid

jax.config.update("jax_num_cpu_devices", 4)  # what CPU_NUM may ask for in a test


@pytest.fixture(autouse=True)
def fresh_programs():
    with (fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()),
          fluid.unique_name.guard()):
        yield
