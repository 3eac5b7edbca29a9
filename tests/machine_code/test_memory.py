"""Machine code that gets no memory to work with: the call fails with XLA's error, and the next one works."""

import subprocess
import sys

import pytest

from jfluid.machine_code import kernel_registry

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not kernel_registry.supports("pool"), reason="machine code is made for CPUs with AVX2"),
]
# In a process of its own: what limits memory limits all of it.
SCRIPT = """
import resource, sys
import jax, numpy as np
from jfluid.machine_code import calls, direct_maximum, kernel_registry, pool_kernels
assert kernel_registry.is_on("pool")
number = int(sys.argv[1])
x = np.arange(2 * number * 16, dtype=np.float32).reshape(-1, 16)
offsets = np.arange(0, 2 * number + 1, 2, dtype=np.int32)

def largest(memory):
    numbers = direct_maximum._numbers(len(x), (number, 16)) | {"memory": memory}
    made = [((number, 16), np.float32), ((number, 16), np.int32)]
    call = jax.jit(lambda x, offsets: calls.call(pool_kernels.FORWARD, (x, offsets), numbers, made))
    return np.asarray(call(x, offsets)[0])

np.testing.assert_array_equal(largest(1), x[1::2])
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30,) * 2)
for _ in range(3):
    try:
        largest(2**31 - 1)
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error) and "no memory" in str(error), error
    else:
        raise AssertionError("it worked with memory that is not there")
    np.testing.assert_array_equal(largest(1), x[1::2])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")
@pytest.mark.parametrize("number", [1, 64], ids=["alone", "divided"])
def test_no_memory_is_an_error(number):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(number)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
