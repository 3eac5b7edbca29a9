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
call = sequence_dispatch.call

def arrays_of(number, width=16):
    random = np.random.RandomState(0)
    shapes = (width, 4 * width), (7 * width,), (2 * number, 4 * width)
    states = [np.zeros((number, width), np.float32)] * 2
    places = sequence_dispatch.places(Level(np.arange(0, 2 * number + 1, 2, dtype=np.int32), 2), 2 * number)
    return *[random.rand(*shape).astype(np.float32) for shape in shapes], *states, np.asarray(places)

def hidden(arrays, memory=None):
    def with_memory(name, given, numbers, shapes):
        return call(name, given, {**numbers, "memory": memory or numbers["memory"]}, shapes)

    sequence_dispatch.call = with_memory
    run = jax.jit(lambda *given: lstm_dispatch._forward(LstmForm(("sigmoid", "tanh", "tanh")), *given))
    return np.asarray(run(*arrays)[0])

given = [arrays_of(number) for number in (1, 64)]  # alone, and divided among threads
expected = [hidden(arrays) for arrays in given]
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30,) * 2)
for at in (0, 0, 1, 1):
    try:
        hidden(given[at], 2**31 - 1)
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error) and "no memory" in str(error), error
    else:
        raise AssertionError("it worked with memory that is not there")
    np.testing.assert_array_equal(hidden(given[at]), expected[at])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")
def test_no_memory_is_an_error():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
