"""CompiledProgram and the settings of Fluid's strategies."""

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from jfluid import errors
from jfluid.ir.graph import Graph
from jfluid.ir.operator import OpRole
from jfluid.ir.program import Program
from jfluid.parallel import notices
from jfluid.parallel.data_parallel import DataParallelProgram
from jfluid.parallel.passes import PassBuilder

__all__ = ["BuildStrategy", "CompiledProgram", "ExecutionStrategy"]


Kind = TypeVar("Kind")
# Predictor factories by the class of the config (`jfluid.compat.inference`).
MODELS: dict[type, Callable[[Any], Any]] = {}


class _Settings:
    """Fields with defaults. A field that Fluid does not have raises ProgramError when it is set."""

    _defaults: ClassVar[dict[str, Any]] = {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a field."""

    def __init__(self) -> None:
        for name, value in self._defaults.items():
            self._preset(name, type(value)(value) if isinstance(value, (set, list)) else value)
        object.__setattr__(self, "_chosen", set())

    _chosen: set[str]  # the fields that a script has set

    def _preset(self, name: str, value: Any) -> None:
        """Give a field a value that the script did not choose."""
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise errors.ProgramError(
                f"{type(self).__name__} has no field {name}" + errors.close_to(name, self._defaults)
            )
        object.__setattr__(self, name, value)
        self._chosen.add(name)

    def __repr__(self) -> str:
        changed = {n: getattr(self, n) for n, v in self._defaults.items() if getattr(self, n) != v}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in changed.items())})"


class BuildStrategy(_Settings):
    """Build options of a program on several devices (see `CompiledProgram.with_data_parallel`).

    Attributes with an effect:
        reduce_strategy: `AllReduce` sums gradients, and every replica updates all parameters; `Reduce` sums each
            replica's share. On the CPU devices of one process parameters and the optimizer's state are then in memory
            once; on GPUs and in several processes a replica has all parameters, and updates and keeps only its share of
            the state.
        gradient_scale_strategy: the gradient of the loss begins with 1/replicas (`CoeffNumDevice`), with 1 (`One`), or
            with a fed value (`Customized`).
        sync_batch_norm: batch_norm takes its statistics over all replicas.
        fuse_all_reduce_ops: between processes sum gradients in few large calls, not one for each. Within one XLA
            combines the sums in either case.
        debug_graphviz_path: write a drawing of the program that each replica runs, in Graphviz DOT.
        num_trainers, trainer_id, trainers_endpoints: the number of processes that train together, the place of this
            process, and the addresses of all ("ip:port" each; by default the argument of
            DistributeTranspiler.transpile, then PADDLE_TRAINER_ENDPOINTS).

    Without effect, because XLA does it for every program: enable_auto_fusion,
    fuse_all_optimizer_ops, fuse_bn_act_ops, fuse_elewise_add_act_ops, fuse_relu_depthwise_conv,
    fuse_broadcast_ops, enable_inplace, memory_optimize, cache_runtime_context,
    remove_unnecessary_lock, mkldnn_enabled_op_types. Without effect, because a step is one XLA
    program in which nothing else can be: enable_sequential_execution,
    enable_backward_optimizer_op_deps, is_distribution. NCCL chooses rings and trees by itself:
    nccl_comm_num, use_hierarchical_allreduce, hierarchical_allreduce_inter_nranks.

    Trainers of parameter servers set async_mode: replicas still step together, and sum gradients
    before sending. For all further programs async_mode is an error.

    Raises ProgramError when a field is set that Fluid does not have.
    """

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_passes", PassBuilder())

    _passes: PassBuilder

    class ReduceStrategy(enum.Enum):
        """Ways to add up the gradients of replicas."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy(enum.Enum):
        """Ways to choose the initial gradient of the loss."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2

    _defaults: ClassVar[dict[str, Any]] = {
        "async_mode": False,
        "cache_runtime_context": False,
        "debug_graphviz_path": "",
        "enable_auto_fusion": False,
        "enable_backward_optimizer_op_deps": True,
        "enable_inplace": True,
        "enable_sequential_execution": False,
        "fuse_all_optimizer_ops": False,
        "fuse_all_reduce_ops": True,
        "fuse_bn_act_ops": False,
        "fuse_broadcast_ops": True,
        "fuse_elewise_add_act_ops": False,
        "fuse_relu_depthwise_conv": False,
        "gradient_scale_strategy": GradientScaleStrategy.CoeffNumDevice,
        "hierarchical_allreduce_inter_nranks": 0,
        "is_distribution": False,
        "memory_optimize": None,
        "mkldnn_enabled_op_types": set(),
        "nccl_comm_num": 1,
        "num_trainers": 1,
        "reduce_strategy": ReduceStrategy.AllReduce,
        "remove_unnecessary_lock": True,
        "sync_batch_norm": False,
        "trainer_id": 0,
        "trainers_endpoints": [],
        "use_hierarchical_allreduce": False,
    }

    def _finalize_strategy_and_create_passes(self) -> PassBuilder:
        """Return the passes of this strategy, to which `multi_batch_merge_pass` can be added; see PassBuilder."""
        return self._passes


class ExecutionStrategy(_Settings):
    """Run options of a program.

    Attributes with an effect:
        num_iteration_per_run: how often `Executor.run` runs a program with data parallelism on one feed.
        num_threads: the most threads of XLA's pool for the CPU, which all programs share. It holds if
            `with_data_parallel` takes the strategy before JAX starts, which is the first run of an Executor. Later,
            a RuntimeWarning names the remedy once.

    Without effect, because XLA schedules a step by itself and frees its memory at its end: allow_op_delay,
    num_iteration_per_drop_scope, use_cuda (places decide), use_experimental_executor, use_thread_barrier. A
    RuntimeWarning names the remedy once where a script has set num_iteration_per_drop_scope.

    Raises ProgramError when a field is set that Fluid does not have.
    """

    class ExecutorType(enum.Enum):
        """Fluid's executors."""

        Default = 0
        Experimental = 1

    _defaults: ClassVar[dict[str, Any]] = {
        "allow_op_delay": False,
        "num_iteration_per_drop_scope": 100,
        "num_iteration_per_run": 1,
        "num_threads": 0,
        "use_cuda": True,
        "use_experimental_executor": True,
        "use_thread_barrier": False,
    }


class CompiledProgram:
    """A program to be run by `Executor.run`, which compiles every program.

    Without data parallelism it is the same as the program itself.

    Args:
        program_or_graph: a Program, or a `core.Graph` of one.
        build_strategy: settings; without effect on one device.

    Raises TypeError when it is not a Program.
    """

    def __init__(self, program_or_graph: Program | Graph, build_strategy: BuildStrategy | None = None):
        if isinstance(program_or_graph, Graph):
            program_or_graph = program_or_graph.program
        if not isinstance(program_or_graph, Program):
            raise TypeError(f"CompiledProgram: expected a Program, found {type(program_or_graph).__name__}")
        self._program = program_or_graph
        self._build_strategy = _checked(build_strategy, BuildStrategy)
        self._parallel: DataParallelProgram | None = None
        self._predictor: Any = None  # runs the model of a config, in place of the program
        self._compiled_for: tuple[Any, Any] | None = None  # a scope and a place

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: "CompiledProgram | None" = None,
        places: Sequence[Any] | None = None,
    ) -> "CompiledProgram":
        """Run the program in replicas, each on a device with its share of the batch.

        Args:
            loss_name: the loss of a program that trains. Replicas' gradients are added up; with N
                replicas each begins with 1/N (see `BuildStrategy.gradient_scale_strategy`). None for
                a program that only predicts.
            build_strategy: settings; those given to the constructor by default.
            exec_strategy: settings of the execution.
            share_vars_from: a program with data parallelism that has run and whose variables this
                one uses. All programs of a scope use the same variables here, so that this only has
                to be one.
            places: the devices, such as `fluid.cpu_places(4)` or `fluid.cuda_places()`. By default
                all GPUs (or the GPUs in CUDA_VISIBLE_DEVICES) for an Executor on a GPU, otherwise
                CPU_NUM CPU devices.

        Returns:
            This program.

        Raises:
            ProgramError: it has data parallelism already, or `loss_name` is no variable of it.
            TypeError: an argument of a wrong type.
        """
        if self._parallel is not None or self._predictor is not None:
            has = "data parallelism" if self._parallel is not None else "a model"
            raise errors.ProgramError(f"with_data_parallel: this CompiledProgram has {has} already: make a new one")
        if share_vars_from is not None and getattr(share_vars_from, "_parallel", None) is None:
            raise errors.ProgramError("share_vars_from: expected a CompiledProgram with data parallelism")
        if loss_name is not None and not self._program.global_block().has_var(loss_name):
            raise errors.ProgramError(
                f"loss_name: the program has no variable {loss_name}"
                + errors.close_to(loss_name, self._program.global_block().vars)
            )
        build = _checked(build_strategy, BuildStrategy) or self._build_strategy or BuildStrategy()
        execution = _checked(exec_strategy, ExecutionStrategy) or ExecutionStrategy()
        has_servers = _has_servers(self._program)
        if has_servers and build.num_trainers > 1:
            raise errors.UnsupportedError(
                "BuildStrategy.num_trainers: trainers of parameter servers bring their gradients "
                "together on the servers: leave it at 1"
            )
        if build.async_mode and not has_servers:
            raise errors.UnsupportedError(
                "BuildStrategy.async_mode: replicas of one process step together; asynchronous training needs "
                "parameter servers"
            )
        if execution.num_iteration_per_run < 1:
            raise errors.ProgramError(
                f"num_iteration_per_run: expected 1 or more, found {execution.num_iteration_per_run}"
            )
        notices.bound_threads(execution)
        self._parallel = DataParallelProgram(self._program, build, execution, places)
        return self

    def _with_inference_optimize(self, config: Any) -> "CompiledProgram":
        """Have `Executor.run` run the saved model of a NativeConfig or AnalysisConfig.

        `Executor.run` takes a list of PaddleTensors as the feed, and returns a list of PaddleTensors.

        Returns:
            This program.

        Raises ProgramError where it has data parallelism or such a model already, TypeError for anything else than a
        config, and the errors of `create_paddle_predictor`.
        """
        if self._parallel is not None or self._predictor is not None:
            has = "data parallelism" if self._parallel is not None else "a model"
            raise errors.ProgramError(
                f"_with_inference_optimize: this CompiledProgram has {has} already: make a new one"
            )
        if type(config) not in MODELS:
            raise TypeError(
                "_with_inference_optimize, config: expected a NativeConfig or AnalysisConfig, found "
                f"{type(config).__name__}"
            )
        self._predictor = MODELS[type(config)](config)
        return self

    def _compile(self, scope: Any, place: Any) -> "CompiledProgram":
        """Set the scope and place of the program and return the program; XLA compiles it when it runs.

        Raises ProgramError for a second scope or place.
        """
        known, at = self._compiled_for or (scope, place)
        if scope is not known or (place and at and not at._equals(place)):
            raise errors.ProgramError(
                f"_compile: this program is compiled for a different {'place' if scope is known else 'scope'}"
            )
        self._compiled_for = known, at
        return self

    def _single_program(self) -> Program:
        """Return the program, for an Executor with one device."""
        return self._program


def resolved(program: Any) -> tuple[Program, DataParallelProgram | None]:
    """Return (the Program to run, its data parallelism or None) of the `program` argument of `run`.

    Raises TypeError for anything else than a Program or CompiledProgram.
    """
    parallel = getattr(program, "_parallel", None)
    if parallel is not None:
        return parallel.program, parallel
    if isinstance(program, Program):
        return program, None
    inner = getattr(program, "_single_program", None)
    if inner is None:
        raise TypeError(f"program: expected a Program or a CompiledProgram, found {type(program).__name__}")
    return inner(), None


def _has_servers(program: Program) -> bool:
    """Return whether the program is a trainer's, which works with parameter servers."""
    return any(op.attr("op_role") == OpRole.RPC for op in program.global_block().ops)


def _checked(value: Any, kind: type[Kind]) -> Kind | None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, found {type(value).__name__}")
    return value
