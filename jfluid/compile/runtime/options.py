"""XLA's options for each program.

The process's own flags (XLA_FLAGS) are not changed, and take precedence.
"""

import functools
import os
import platform

import jax

from jfluid import environment, flags

# With it XLA gives only reductions to YNNPACK. Matrix products and convolutions then go to oneDNN
# and Eigen, which are faster on x86: a step of mnist_conv took 0.39 of hand-written JAX's, not 0.57.
_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_LIBRARIES = {_LIBRARY: "LIBRARY_FUSION_TYPE_REDUCE"}
# LLVM's passes take most of the time to compile a program for the CPU. Those of the first level make vectors
# of loops: steps take no longer than with those of the third, which XLA takes by itself. Without any a
# startup program compiles in a third of the time, and takes 0.1 us more for each number; some differ in the
# last bit.
_LEVEL = "xla_backend_optimization_level"
_FEW_NUMBERS = 1 << 20
# Without MLIR fusions take two thirds of the processor time, and give the same numbers. But it grows
# with the square of the program: six times as much for 3000 operators.
_SMALL: dict[str, str | int] = {"xla_cpu_use_fusion_emitters": False}
_FEW = 1000  # operators of a small program
# XLA divides a program into 32 parts for LLVM. Each part costs a millisecond, however small it is.
_PARTS = "xla_cpu_parallel_codegen_split_count"
# Numbers below 1.2e-38 are zero on GPUs, as they are in XLA's programs for CPUs and in additions of CUDA to a
# place in memory. Otherwise XLA adds a row to a table by compare-and-exchange of each number: thousands of additions to
# the same id run one after the other.
_ADDS: dict[str, str | int] = {"xla_gpu_ftz": True}
_DETERMINISTIC = "FLAGS_cudnn_deterministic"  # its steps on GPUs give the same bits each time
_KNOWN = (0, 12)  # the last version of JAX with an XLA that is known to have these options
_ONLY_EMITTERS = (0, 11)  # from this version on XLA has no other way


def options(
    device: jax.Device, quickly: bool = False, operators: int = 0, numbers: int | None = None
) -> dict[str, str | int]:
    """Return the `compiler_options` of `jax.jit` for programs on a device.

    Args:
        quickly: the program runs once: compile it fast rather than well.
        operators: number of the program's operators.
        numbers: number of elements that the program writes; None if it does more than initialize elements.
    """
    given = environment.text("XLA_FLAGS", "")
    if device.platform != "cpu":
        # No further options: steps compiled for an H200 with and without XLA's latency hiding
        # had the same schedule, and gradients come in buckets that no threshold combines further.
        found: dict[str, str | int] = dict(_ADDS)
        if flags.get_flags(_DETERMINISTIC)[_DETERMINISTIC]:
            found["xla_gpu_deterministic_ops"] = True
        return {name: value for name, value in found.items() if name not in given}
    found = {_LEVEL: 1}
    if quickly:
        found[_PARTS] = min(os.cpu_count() or 1, 32)
        if numbers is not None and numbers <= _FEW_NUMBERS:
            found[_LEVEL] = 0
    if quickly and operators <= _FEW and jax.__version_info__ < _ONLY_EMITTERS:
        found |= _SMALL
    if platform.machine().lower() in ("x86_64", "amd64"):
        found |= _LIBRARIES
    found = {name: value for name, value in found.items() if name not in given}
    return found if jax.__version_info__[:2] <= _KNOWN else {n: v for n, v in found.items() if _understood(n, v)}


def without_library() -> dict[str, str]:
    """Return the options that disable YNNPACK."""
    return {_LIBRARY: ""} if _understood(_LIBRARY, "") else {}


@functools.cache
def _understood(name: str, value: str | int) -> bool:
    """Return True if XLA has an option. Names change with its versions, and it refuses unknown names."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
