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
        processor.vectors().bits < processor.AVX512,
        reason="on a CPU without AVX-512 the other tests are of its vectors",
    ),
]
TESTS = Path(__file__).parents[1]
FILES = ["compile/rewrites/test_convolution_dispatch.py", "machine_code/test_sequence_dispatch.py"]
CHOSEN = "of_the_library or of_images or leave_other_shapes or (an_lstm or a_gru) and ragged or activations"


def test_code_for_vectors_of_256_bits_passes_the_tests_of_numbers():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa=AVX2"
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN]
    found = subprocess.run(
        [*tests, *(TESTS / file for file in FILES)],
        env={**os.environ, "XLA_FLAGS": flags.strip(), "JFLUID_RENEW": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4000:]
    assert "passed" in found.stdout and "skipped" not in found.stdout
