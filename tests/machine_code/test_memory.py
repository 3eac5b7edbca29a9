"""Machine code that gets no memory to work with: the call fails with XLA's error, and the next one works."""

import subprocess
import sys

import pytest

from jfluid.machine_code import kernel_registry

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not kernel_registry.supports("lstm"), reason="machine code is made for CPUs with AVX2"),
]
# In a process of its own: what limits memory limits all of it.
SCRIPT = """
import resource, sys
import jax, numpy as np
from jfluid.machine_code import sequence_dispatch, lstm_dispatch, kernel_registry
from jfluid.ops.ragged import Level
from jfluid.ops.sequence_loops import LstmForm
assert kernel_registry.is_on("lstm")
number, width = int(sys.argv[1]), 16
random = np.random.RandomState(0)
shapes = (width, 4 * width), (7 * width,), (2 * number, 4 * width)
arrays = [random.rand(*shape).astype(np.float32) for shape in shapes]
states = [np.zeros((number, width), np.float32)] * 2
places = np.asarray(sequence_dispatch.places(Level(np.arange(0, 2 * number + 1, 2, dtype=np.int32), 2), 2 * number))
call = sequence_dispatch.call

def hidden(memory=None):
    def with_memory(name, given, numbers, shapes):
        return call(name, given, {**numbers, "memory": memory or numbers["memory"]}, shapes)

    sequence_dispatch.call = with_memory
    run = jax.jit(lambda *given: lstm_dispatch._forward(LstmForm(("sigmoid", "tanh", "tanh")), *given))
    return np.asarray(run(*arrays, *states, places)[0])

expected = hidden()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30,) * 2)
for _ in range(3):
    try:
        hidden(2**31 - 1)
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error) and "no memory" in str(error), error
    else:
        raise AssertionError("it worked with memory that is not there")
    np.testing.assert_array_equal(hidden(), expected)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")
@pytest.mark.parametrize("number", [1, 64], ids=["alone", "divided"])
def test_no_memory_is_an_error(number):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(number)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
