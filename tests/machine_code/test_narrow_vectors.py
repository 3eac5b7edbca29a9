"""Machine code for processors without AVX-512 gives the numbers that the wider one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jfluid.machine_code import processor

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not processor.has_wide_vectors(),
        reason="on a CPU without AVX-512 the other tests are of its vectors",
    ),
]
TESTS = Path(__file__).parents[1]
# tests of files, and which
OF = {
    "compile/rewrites/test_direct_convolution.py": "of_the_library or of_images or leave_other_shapes",
    "compile/rewrites/test_channel_sums.py": "forward_and_back or overlap or numbers",
    "machine_code/test_direct_loops.py": "(an_lstm or a_gru) and (ragged or panels or columns) or activations",
}


@pytest.mark.parametrize("file", OF)
def test_code_for_vectors_of_256_bits_passes_the_tests_of_numbers(file):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa=AVX2"
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", OF[file]]
    found = subprocess.run(
        [*tests, TESTS / file],
        env={**os.environ, "XLA_FLAGS": flags.strip()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4000:]
    assert "passed" in found.stdout and "skipped" not in found.stdout


def test_xla_and_machine_code_are_limited_together(monkeypatch):
    def wide(flags):
        monkeypatch.setenv("XLA_FLAGS", flags)
        return processor.has_wide_vectors.__wrapped__()

    assert wide("") and wide("--xla_cpu_max_isa=AVX512")
    assert not wide("--xla_dump_to=x --xla_cpu_max_isa=AVX2")
    assert not wide("--xla_cpu_max_isa=avx512 --xla_cpu_max_isa=SSE4_2")
