"""jfluid runs PaddlePaddle Fluid 1.x programs on JAX: `import jfluid as fluid`.

Each name is imported when it is first used, so that what needs no JAX, such as the launcher, does
not wait for it (`jfluid/surface.py`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from jfluid import installation, launcher_pipe, surface
from jfluid.host import jax_log
from jfluid.ir import schema

if TYPE_CHECKING:
    from jfluid import (
        average,
        clip,
        compiler,
        contrib,
        core,
        debugger,
        evaluator,
        executor,
        initializer,
        install_check,
        io,
        layers,
        lod_tensor,
        metrics,
        nets,
        optimizer,
        parallel_executor,
        param_attr,
        profiler,
        regularizer,
        transpiler,
    )
    from jfluid.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy
    from jfluid.executor import Executor
    from jfluid.feeding.data_feeder import DataFeeder
    from jfluid.feeding.reader import batch
    from jfluid.flags import get_flags, set_flags
    from jfluid.input import data, embedding, one_hot
    from jfluid.installation import memory_optimize, release_memory, require_version
    from jfluid.interop import to_jax
    from jfluid.io import load, load_program_state, save, set_program_state
    from jfluid.ir import backward, unique_name
    from jfluid.ir.backward import append_backward, gradients
    from jfluid.ir.program import (
        Program,
        default_main_program,
        default_startup_program,
        device_guard,
        name_scope,
        program_guard,
    )
    from jfluid.ir.variable import Variable
    from jfluid.known_sizes import shape_buckets
    from jfluid.lod_tensor import LoDTensor, LoDTensorArray, Tensor, create_lod_tensor, create_random_int_lodtensor
    from jfluid.ops.op_library import load_op_library
    from jfluid.parallel_executor import ParallelExecutor
    from jfluid.param_attr import ParamAttr, WeightNormParamAttr
    from jfluid.places import (
        CPUPlace,
        CUDAPinnedPlace,
        CUDAPlace,
        cpu_places,
        cuda_pinned_places,
        cuda_places,
        is_compiled_with_cuda,
    )
    from jfluid.record import log as log
    from jfluid.record import log_histogram as log_histogram
    from jfluid.record import log_image as log_image
    from jfluid.scope import Scope, global_scope, scope_guard
    from jfluid.transpiler import DistributeTranspiler, DistributeTranspilerConfig, HashName, RoundRobin

# Names of Fluid that are not here, and modules under Fluid's other paths, are found by `surface`.
__all__ = [
    "BuildStrategy",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "CompiledProgram",
    "DataFeeder",
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "ExecutionStrategy",
    "Executor",
    "HashName",
    "LoDTensor",
    "LoDTensorArray",
    "ParallelExecutor",
    "ParamAttr",
    "Program",
    "RoundRobin",
    "Scope",
    "Tensor",
    "Variable",
    "WeightNormParamAttr",
    "append_backward",
    "average",
    "backward",
    "batch",
    "clip",
    "compiler",
    "contrib",
    "core",
    "cpu_places",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "cuda_pinned_places",
    "cuda_places",
    "data",
    "debugger",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "embedding",
    "evaluator",
    "executor",
    "get_flags",
    "global_scope",
    "gradients",
    "initializer",
    "install_check",
    "installation",
    "io",
    "is_compiled_with_cuda",
    "layers",
    "load",
    "load_op_library",
    "load_program_state",
    "lod_tensor",
    "memory_optimize",
    "metrics",
    "name_scope",
    "nets",
    "one_hot",
    "optimizer",
    "parallel_executor",
    "param_attr",
    "profiler",
    "program_guard",
    "regularizer",
    "release_memory",
    "require_version",
    "save",
    "scope_guard",
    "set_flags",
    "set_program_state",
    "shape_buckets",
    "to_jax",
    "transpiler",
    "unique_name",
]

__version__ = installation.VERSION
schema.provide(lambda: import_module("jfluid.layers"))  # which come with all operators
surface.install()
launcher_pipe.report_ending()
jax_log.keep_to_warnings()
