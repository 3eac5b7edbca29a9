"""Vector extensions of the processor that kernels are compiled for.

Kernels use the widest vectors of this machine, unless XLA_FLAGS limits the vectors of XLA's code
(`--xla_cpu_max_isa=AVX2`).
"""

import functools
import re
from pathlib import Path

import llvmlite.binding as llvm

from jfluid import environment

_LIMIT = re.compile(r"--xla_cpu_max_isa=(\w+)")
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
# LLVM's name for processors that have 256 bits and products that are added at once, and no more.
_WITHOUT_512 = "x86-64-v3"


@functools.cache
def has_wide_vectors() -> bool:
    """Return True if the processor has 32 vectors of 512 bits (AVX-512)."""
    limits = _LIMIT.findall(environment.text("XLA_FLAGS", ""))
    limited = bool(limits) and not limits[-1].upper().startswith(("AVX512", "AMX"))
    return bool(llvm.get_host_cpu_features().get("avx512f")) and not limited


@functools.cache
def has_vectors() -> bool:
    """Return True if the processor has AVX-512, or 16 vectors of 256 bits (AVX2) and FMA."""
    features = llvm.get_host_cpu_features()
    return has_wide_vectors() or all(features.get(name) for name in ("avx2", "fma"))


@functools.cache
def cache_bytes() -> int:
    """Return the size of a core's L2 cache; 1 MiB where the system does not report it."""
    try:
        found = re.fullmatch(r"(\d+)([KM])\s*", _CACHE.read_text())
    except OSError:  # not Linux
        found = None
    return int(found[1]) << {"K": 10, "M": 20}[found[2]] if found else 1 << 20


@functools.cache
def target() -> tuple[str, str]:
    """Return LLVM's name for the processor, and the features that kernels may use."""
    if has_vectors() and not has_wide_vectors():
        return _WITHOUT_512, ""
    # LLVM divides vectors of 512 bits for some processors unless it is told not to.
    features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
    return llvm.get_host_cpu_name(), features


LANES = 16 if has_wide_vectors() else 8  # numbers in single precision that a vector has
REGISTERS = 2 * LANES  # vectors that a core holds
