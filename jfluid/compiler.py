"""CompiledProgram and the settings of Fluid's strategies."""
import enum
from typing import Any, ClassVar

from jfluid import errors
from jfluid.ir.program import Program

__all__ = ["BuildStrategy", "CompiledProgram", "ExecutionStrategy"]


class _Settings:
    """Fields with defaults; a field that Fluid does not have is refused."""

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        for name, value in self._defaults.items():
            object.__setattr__(self, name, type(value)(value) if isinstance(value, (set, list)) else value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise errors.ProgramError(f"{type(self).__name__} has no field {name}" + errors.close_to(name, self._defaults))
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        changed = {n: getattr(self, n) for n, v in self._defaults.items() if getattr(self, n) != v}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in changed.items())})"


class BuildStrategy(_Settings):
    """How a program is built for several devices.

    On one device none of the fields has an effect: XLA fuses operators, reuses memory and orders the work by itself.
    Raises ProgramError when a field is set that Fluid does not have.
    """

    class ReduceStrategy(enum.Enum):
        """How gradients are brought together."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy(enum.Enum):
        """What the gradient of the loss starts with."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2

    _defaults: ClassVar[dict[str, Any]] = {
        "async_mode": False, "cache_runtime_context": False, "debug_graphviz_path": "", "enable_auto_fusion": False,
        "enable_backward_optimizer_op_deps": True, "enable_inplace": True, "enable_sequential_execution": False,
        "fuse_all_optimizer_ops": False, "fuse_all_reduce_ops": True, "fuse_bn_act_ops": False,
        "fuse_broadcast_ops": True, "fuse_elewise_add_act_ops": False, "fuse_relu_depthwise_conv": False,
        "gradient_scale_strategy": GradientScaleStrategy.CoeffNumDevice, "hierarchical_allreduce_inter_nranks": 0,
        "is_distribution": False, "memory_optimize": None, "mkldnn_enabled_op_types": set(), "nccl_comm_num": 1,
        "num_trainers": 1, "reduce_strategy": ReduceStrategy.AllReduce, "remove_unnecessary_lock": True,
        "sync_batch_norm": False, "trainer_id": 0, "trainers_endpoints": [], "use_hierarchical_allreduce": False,
    }


class ExecutionStrategy(_Settings):
    """How Fluid schedules operators on threads. XLA schedules by itself: on one device no field has an effect.

    Raises ProgramError when a field is set that Fluid does not have.
    """

    class ExecutorType(enum.Enum):
        """Fluid's executors."""

        Default = 0
        Experimental = 1

    _defaults: ClassVar[dict[str, Any]] = {
        "allow_op_delay": False, "num_iteration_per_drop_scope": 100, "num_iteration_per_run": 1, "num_threads": 0,
        "use_cuda": True, "use_experimental_executor": True, "use_thread_barrier": False,
    }


class CompiledProgram:
    """A program to be run by `Executor.run`, which compiles every program: without data parallelism it is the same.

    Args:
        program_or_graph: a Program.
        build_strategy: settings; without effect on one device.

    Raises TypeError when it is not a Program.
    """

    def __init__(self, program_or_graph: Program, build_strategy: BuildStrategy | None = None):
        if not isinstance(program_or_graph, Program):
            raise TypeError(f"CompiledProgram: expected a Program, found {type(program_or_graph).__name__}")
        if build_strategy is not None and not isinstance(build_strategy, BuildStrategy):
            raise TypeError(f"CompiledProgram: expected a BuildStrategy, found {type(build_strategy).__name__}")
        self._program = program_or_graph
        self._build_strategy = build_strategy

    def with_data_parallel(self, loss_name: str | None = None, build_strategy: BuildStrategy | None = None,
                           exec_strategy: ExecutionStrategy | None = None, share_vars_from: Any = None,
                           places: Any = None) -> "CompiledProgram":
        """Raises UnsupportedError: data parallelism is not in this release."""
        raise errors.UnsupportedError("CompiledProgram.with_data_parallel: data parallelism over several devices is not in "
                                      "this release; run the program itself with Executor.run")

    def _single_program(self) -> Program:
        """The program, for an Executor with one device."""
        return self._program
