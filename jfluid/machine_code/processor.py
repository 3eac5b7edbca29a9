"""Vector extensions of the processor that kernels are compiled for.

Kernels use the widest vectors of this machine, unless XLA_FLAGS limits the vectors of XLA's code
(`--xla_cpu_max_isa=AVX2`).
"""

import functools
import platform
import re
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm

from jfluid import environment

AVX512, AVX2 = 512, 256  # bits of a vector
_X86 = ("x86_64", "amd64")
_LIMIT = re.compile(r"--xla_cpu_max_isa=(\w+)")
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
# LLVM's name for processors that have 256 bits and products that are added at once, and no more.
_WITHOUT_512 = "x86-64-v3"


class VectorUnit(NamedTuple):
    """Vectors that kernels may use.

    Attributes:
        bits: `AVX512`, or `AVX2` with FMA, or 0 for no kernels.
        limit: the reason for less than `AVX512`.
    """

    bits: int
    limit: str = ""


@functools.cache
def vectors() -> VectorUnit:
    """Return the widest vectors that the processor has and XLA_FLAGS allows."""
    if not _is_x86():
        return VectorUnit(0, f"the processor is {platform.machine()}, and kernels are written for x86-64")
    features = llvm.get_host_cpu_features()
    found = VectorUnit(0, "the processor has no AVX2 with FMA")
    if features.get("avx512f"):
        found = VectorUnit(AVX512)
    elif features.get("avx2") and features.get("fma"):
        found = VectorUnit(AVX2, "the processor has no AVX-512")
    limits = _LIMIT.findall(environment.text("XLA_FLAGS", ""))
    if limits and (allowed := _bits(limits[-1].upper())) < found.bits:
        return VectorUnit(allowed, f"XLA_FLAGS has --xla_cpu_max_isa={limits[-1]}")
    return found


def _is_x86() -> bool:
    return platform.machine().lower() in _X86


def _bits(isa: str) -> int:
    """Return the bits of the vectors that XLA's name of an instruction set allows."""
    return AVX512 if isa.startswith(("AVX512", "AMX")) else AVX2 if isa == "AVX2" else 0


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
    if not _is_x86():
        return llvm.get_host_cpu_name(), ""
    if vectors().bits < AVX512:
        return _WITHOUT_512, ""
    # LLVM divides vectors of 512 bits for some processors unless it is told not to.
    features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
    return llvm.get_host_cpu_name(), features


LANES = 16 if vectors().bits == AVX512 else 8  # numbers in single precision that a vector has
REGISTERS = 2 * LANES  # vectors that a core holds
