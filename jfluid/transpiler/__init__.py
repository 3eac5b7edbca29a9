"""Programs that train together: one program rewritten for each of several processes.

`config` says how, `distribute_transpiler` chooses the mode, and each mode is a module: `nccl2`,
`collective`, `pserver`.
"""

from jfluid.installation import memory_optimize, release_memory
from jfluid.transpiler.config import DistributeTranspilerConfig
from jfluid.transpiler.distribute_transpiler import DistributeTranspiler
from jfluid.transpiler.ps_dispatcher import HashName, RoundRobin

__all__ = [
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "HashName",
    "RoundRobin",
    "memory_optimize",
    "release_memory",
]
