"""ParallelExecutor: Fluid's older interface for running a program in replicas."""

from collections.abc import Mapping, Sequence
from typing import Any

from jfluid import errors
from jfluid.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy
from jfluid.executor import Executor
from jfluid.ir.program import Program, default_main_program
from jfluid.places import CPUPlace, CUDAPlace
from jfluid.scope import Scope, global_scope

__all__ = ["ParallelExecutor"]


class ParallelExecutor:
    """Executor of one program in replicas, like `CompiledProgram.with_data_parallel`.

    Args:
        use_cuda: use all GPUs; otherwise CPU_NUM CPU devices.
        loss_name: the loss of a program that trains.
        main_program: the default main program when None.
        share_vars_from: a ParallelExecutor to share the scope, and so the variables, with.
        exec_strategy, build_strategy: settings.
        num_trainers, trainer_id: how many processes train together, and the number of this one.
        scope: where parameters live; the global scope when None.

    For errors see `with_data_parallel`, and PlaceError when there are not enough devices.
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Program | None = None,
        share_vars_from: "ParallelExecutor | None" = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ):
        if share_vars_from is not None and not isinstance(share_vars_from, ParallelExecutor):
            raise TypeError(f"share_vars_from: expected a ParallelExecutor, found {type(share_vars_from).__name__}")
        if not 0 <= trainer_id < num_trainers:
            raise errors.ProgramError(f"trainer_id: expected 0 to {num_trainers - 1}, found {trainer_id}")
        build = build_strategy if build_strategy is not None else BuildStrategy()
        if num_trainers > 1:
            build.num_trainers, build.trainer_id = num_trainers, trainer_id
        program = main_program if main_program is not None else default_main_program()
        shared = None if share_vars_from is None else share_vars_from._program
        self._program: CompiledProgram = CompiledProgram(program).with_data_parallel(
            loss_name=loss_name, build_strategy=build, exec_strategy=exec_strategy, share_vars_from=shared
        )
        parallel = self._program._parallel
        assert parallel is not None
        self._parallel = parallel
        self._scope: Scope = scope or (share_vars_from._scope if share_vars_from is not None else global_scope())
        self._executor = Executor(CUDAPlace(0) if use_cuda else CPUPlace())
        # a ParallelExecutor has no `close`: servers are left by that of the script's Executor
        self._executor.engine.says_goodbye = False
        self._executor.engine.start(self._parallel)

    @property
    def device_count(self) -> int:
        """Number of replicas in this process."""
        return self._parallel.replicas

    def run(
        self,
        fetch_list: Sequence[Any],
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        feed_dict: Any = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run the program once.

        `feed_dict` is the older name of `feed`. For the other arguments see `Executor.run`.
        """
        if feed is not None and feed_dict is not None:
            raise errors.FeedError("feed and feed_dict are two names of one argument: give one")
        return self._executor.run(
            self._program,
            feed=feed if feed is not None else feed_dict,
            fetch_list=fetch_list,
            scope=self._scope,
            return_numpy=return_numpy,
        )

    def drop_local_exe_scopes(self) -> None:
        """Do nothing: replicas have no scopes here, and XLA frees intermediate values after each step."""
