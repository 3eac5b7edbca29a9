"""The GPUs of this host, found without starting JAX in the launcher: a process that holds CUDA must not share it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from jfluid.job import JobError

# The CUDA driver itself counts, so CUDA_VISIBLE_DEVICES, MIG and containers are respected; without
# a driver it is 0.
_COUNT = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    print(0)
else:
    count = ctypes.c_int()
    print(0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value)
"""
_SECONDS_TO_COUNT = 60.0


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs that a process with this environment sees, by the names that CUDA_VISIBLE_DEVICES takes."""
    try:
        result = subprocess.run(
            [sys.executable, "-S", "-c", _COUNT],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_COUNT,
        )
    except subprocess.TimeoutExpired:
        raise JobError(
            f"jfluid-launch: counting the GPUs took more than {_SECONDS_TO_COUNT:g} s: the NVIDIA driver does "
            "not answer (does nvidia-smi?)"
        ) from None
    count = int(result.stdout) if result.returncode == 0 else 0
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in chosen.split(",")] if chosen else [str(number) for number in range(count)]
    return names[:count]


def assigned_gpus(wanted: Any, visible: list[str], task: int = 0, tasks: int = 1) -> list[str]:
    """Return the GPUs for this launcher: `wanted` is a number, a list of names, or "all".

    Of several launchers (`tasks`) that see the same GPUs of one host, each takes its own part.
    Raises JobError when there are too few.
    """
    if wanted == "all":
        if not visible:
            raise JobError(f"jfluid-launch: --gpus all: {_found(visible)}")
        return visible[task::tasks] if tasks > 1 and len(visible) % tasks == 0 else visible
    if isinstance(wanted, list):
        missing = [gpu for gpu in wanted if gpu not in visible]
        if missing:
            raise JobError(
                f"jfluid-launch: --gpus {','.join(wanted)}: no GPU {', '.join(missing)} here: {_found(visible)}"
            )
        return wanted
    if wanted > len(visible):
        raise JobError(f"jfluid-launch: --gpus {wanted}: {_found(visible)}")
    first = task * wanted if tasks * wanted <= len(visible) else 0
    return visible[first : first + wanted]


def _found(visible: list[str]) -> str:
    limit = os.environ.get("CUDA_VISIBLE_DEVICES")
    where = "" if limit is None else f" with CUDA_VISIBLE_DEVICES={limit!r}"
    if not visible:
        return f"found no NVIDIA GPU on this host{where}; run on its CPU instead with --cpus N"
    gpus = "1 GPU" if len(visible) == 1 else f"{len(visible)} GPUs"
    return (
        f"found {gpus} on this host{where} ({', '.join(visible)}); run with --gpus {len(visible)}, "
        "or on the CPU with --cpus N"
    )
