"""A second process runs what the first one has compiled, in every mode."""

import json
import os
import subprocess
import sys

import pytest

# Which values shapes follow from is found by tracing, up to the operator that asks for one.
TRACED = ("known_values",)
# Operators of the user: nothing says when they change.
NOT_KEPT = ("declarative",)


def start(folder, modes):
    """What `tests.compile.every_mode` prints in a process of its own."""
    others = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {n: v for n, v in os.environ.items() if n not in others}
    environment["FLAGS_compilation_cache_dir"] = str(folder)
    command = [sys.executable, "-m", "tests.compile.every_mode", *modes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.process
@pytest.mark.parametrize(
    "modes",
    [
        # batches of many sizes need more than those of one size, and replicas in one program the same as one device
        pytest.param(["replicas_stream", "known_values", "imperative_stream"], id="few"),
        pytest.param([], id="all", marks=pytest.mark.nightly),
    ],
)
def test_a_second_process_compiles_nothing(modes, tmp_path):
    first, second = start(tmp_path, modes), start(tmp_path, modes)
    for before, after in zip(first, second, strict=True):
        assert before["compiled"], before
        assert after["losses"] == before["losses"], (before, after)
        if after["mode"] not in NOT_KEPT:
            assert not after["compiled"], after
            assert not after["lowered"] or after["mode"] in TRACED, after
