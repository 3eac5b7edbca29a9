"""Strategies of training with parameter servers, and the factory of the four strategies.

strategy = StrategyFactory.create_half_async_strategy()
strategy.set_program_config({"min_block_size": 16384})
strategy.get_trainer_runtime_config().prefetch_depth = 2
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from jfluid import errors
from jfluid.compiler import BuildStrategy, ExecutionStrategy
from jfluid.fleet.parameter_server.runtime_config import TrainerRuntimeConfig
from jfluid.places import cpu_number
from jfluid.transpiler.config import DistributedMode, DistributeTranspilerConfig, ServerRuntimeConfig

__all__ = [
    "AsyncStrategy",
    "DistributedStrategy",
    "DistributedStrategyFactory",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "StrategyFactory",
    "SyncStrategy",
]

_DEBUG_OPT: dict[str, Any] = {
    "dump_slot": False,
    "dump_converter": "",
    "dump_fields": [],
    "dump_file_num": 16,
    "dump_fields_path": "",
    "dump_param": [],
}


class DistributedStrategy:
    """Base of all strategies: five configurations, each with methods to get, set and check it.

    A configuration is set as a whole, or by a dict of some fields. A check gives the fields that define the
    strategy their values, whatever was given. Jobs use the subclasses.
    """

    mode: int | None = None  # of DistributedMode
    # Fields of the DistributeTranspilerConfig that the strategy sets, beyond the fields of all strategies.
    _forced: ClassVar[dict[str, Any]] = {}
    _barrier = False  # replicas wait for each other

    def __init__(self) -> None:
        self._program_config = DistributeTranspilerConfig()
        self._trainer_runtime_config = TrainerRuntimeConfig()
        self._server_runtime_config = ServerRuntimeConfig()
        self._build_strategy = BuildStrategy()
        self._execute_strategy = ExecutionStrategy()
        self._execute_strategy._preset("num_threads", cpu_number())
        self._debug_opt: dict[str, Any] | None = None
        if self.mode is not None:
            self.check_program_config()
            self.check_trainer_runtime_config()
            self.check_server_runtime_config()
            self.check_build_strategy()
            self.check_execute_strategy()

    @property
    def debug_opt(self) -> dict[str, Any] | None:
        """The fields that `set_debug_opt` was given."""
        return self._debug_opt

    def _taken(self, config: Any, current: Any, what: str) -> Any:
        """Return the object given, or the present one with the fields given.

        Raises TypeError and ProgramError.
        """
        kind = type(current)
        if isinstance(config, kind):
            return config
        if not isinstance(config, Mapping):
            raise TypeError(
                f"{what}: expected a {kind.__name__} or a dict of its fields, found {type(config).__name__}"
            )
        for target in (copy.copy(current), current):  # nothing changes when a field is refused
            for name, value in config.items():
                setattr(target, name, value)
        return current

    def _known(self, what: str) -> None:
        if self.mode is None:
            raise NotImplementedError(
                f"{type(self).__name__}.check_{what}: this is the base of all strategies; make a "
                "strategy with StrategyFactory"
            )

    # The DistributeTranspilerConfig
    def get_program_config(self) -> DistributeTranspilerConfig:
        """Return the DistributeTranspilerConfig: how programs are divided."""
        return self._program_config

    def set_program_config(self, config: DistributeTranspilerConfig | Mapping[str, Any]) -> None:
        """Set the DistributeTranspilerConfig, or fields of it, and check it.

        Raises TypeError for anything else, ProgramError for a field that does not exist, has a
        value of a wrong type, or belongs to another strategy.
        """
        self._program_config = self._taken(config, self._program_config, "program_config")
        self.check_program_config()

    def check_program_config(self) -> None:
        """Give the fields that define the strategy their values.

        Raises ProgramError for those of another strategy.
        """
        self._known("program_config")
        config = self._program_config
        if config.mode != "pserver":
            raise errors.ProgramError(
                f'{type(self).__name__}, program config: expected mode "pserver", found {config.mode!r}'
            )
        for name in ("half_async", "completely_not_async", "geo_sgd_mode"):
            if getattr(config, name) and name not in self._forced:
                raise errors.ProgramError(
                    f"{type(self).__name__}, program config: {name} is for a different strategy; make that "
                    "strategy with StrategyFactory, or set it to False"
                )
        for name, value in {"sync_mode": False, "runtime_split_send_recv": True, **self._forced}.items():
            setattr(config, name, value)

    # The TrainerRuntimeConfig
    def get_trainer_runtime_config(self) -> TrainerRuntimeConfig:
        """Return the TrainerRuntimeConfig: how a trainer's communicator works."""
        return self._trainer_runtime_config

    def set_trainer_runtime_config(self, config: TrainerRuntimeConfig | Mapping[str, Any]) -> None:
        """Set the TrainerRuntimeConfig, or fields of it, and check it.

        Raises TypeError for anything else, ProgramError for a field that does not exist or an
        impossible value.
        """
        if isinstance(config, Mapping):
            self._trainer_runtime_config.update(config)
        else:
            self._trainer_runtime_config = self._taken(config, self._trainer_runtime_config, "trainer_runtime_config")
        self.check_trainer_runtime_config()

    def check_trainer_runtime_config(self) -> None:
        """Set its mode.

        Raises ProgramError where the mode cannot look rows up ahead, and it is asked to.
        """
        self._known("trainer_runtime_config")
        config = self._trainer_runtime_config
        if config.prefetch_depth > 1 and self.mode in (DistributedMode.SYNC, DistributedMode.GEO):
            raise errors.ProgramError(
                f"prefetch_depth: {type(self).__name__} does not look rows up ahead: synchronous trainers pull the "
                f"rows of each step, and GEO trainers hold all rows; found {config.prefetch_depth}"
            )
        config.mode = self.mode

    # The ServerRuntimeConfig
    def get_server_runtime_config(self) -> ServerRuntimeConfig:
        """Return the ServerRuntimeConfig: how a server works."""
        return self._server_runtime_config

    def set_server_runtime_config(self, config: ServerRuntimeConfig | Mapping[str, Any]) -> None:
        """Set the ServerRuntimeConfig, or fields of it.

        Raises the errors of `set_trainer_runtime_config` .
        """
        self._server_runtime_config = self._taken(config, self._server_runtime_config, "server_runtime_config")
        self.check_server_runtime_config()

    def check_server_runtime_config(self) -> None:
        """Do nothing: strategies do not differ in it."""
        self._known("server_runtime_config")

    # The BuildStrategy and the ExecutionStrategy
    def get_build_strategy(self) -> BuildStrategy:
        """Return the BuildStrategy, for `CompiledProgram.with_data_parallel`: how a trainer's replicas are built."""
        return self._build_strategy

    def set_build_strategy(self, config: BuildStrategy | Mapping[str, Any]) -> None:
        """Set the BuildStrategy, or fields of it, and check it.

        Raises the errors of `set_trainer_runtime_config` .
        """
        self._build_strategy = self._taken(config, self._build_strategy, "build_strategy")
        self.check_build_strategy()

    def check_build_strategy(self) -> None:
        """Set `async_mode`, and `Reduce` where CPU_NUM asks for several replicas."""
        self._known("build_strategy")
        self._build_strategy.async_mode = True
        if cpu_number() > 1:
            self._build_strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce

    def get_execute_strategy(self) -> ExecutionStrategy:
        """Return the ExecutionStrategy, for `CompiledProgram.with_data_parallel`: how a trainer's replicas are run."""
        return self._execute_strategy

    def set_execute_strategy(self, config: ExecutionStrategy | Mapping[str, Any]) -> None:
        """Set the ExecutionStrategy, or fields of it, and check it.

        Raises the errors of `set_trainer_runtime_config` .
        """
        self._execute_strategy = self._taken(config, self._execute_strategy, "execute_strategy")
        self.check_execute_strategy()

    def check_execute_strategy(self) -> None:
        """Set `use_thread_barrier` where replicas wait for each other after each step."""
        self._known("execute_strategy")
        if self._barrier:
            self._execute_strategy.use_thread_barrier = True

    # What trainers write down while they train from a dataset
    def get_debug_opt(self) -> dict[str, Any]:
        """Return the fields of `set_debug_opt` with defaults for missing fields; {} before the first call."""
        return {} if self._debug_opt is None else {**_DEBUG_OPT, **self._debug_opt}

    def set_debug_opt(self, opt_info: Mapping[str, Any]) -> None:
        """Set the values that trainers write to files during training from a dataset.

        Nothing is written: Fluid's workers (Hogwild) write empty files for such a job, too.
        A setting that asks for more warns.

        Args:
            opt_info: the fields dump_slot, dump_converter, dump_fields, dump_file_num,
                dump_fields_path, dump_param.

        Raises TypeError for anything else than a dict, ProgramError for another field.
        """
        if not isinstance(opt_info, Mapping):
            raise TypeError(f"debug_opt: expected a dict, found {type(opt_info).__name__}")
        for name, value in opt_info.items():
            if name not in _DEBUG_OPT:
                raise errors.ProgramError(f"debug_opt has no field {name}" + errors.close_to(name, _DEBUG_OPT))
            if value and name not in ("dump_converter", "dump_file_num"):
                warnings.warn(
                    f"debug_opt, {name}: no effect: nothing is written; give train_from_dataset a fetch_list or a "
                    "FetchHandler to see values",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self._debug_opt = dict(opt_info)


class SyncStrategy(DistributedStrategy):
    """Strategy in which servers update by the mean of all trainers' gradients, step by step.

    So N trainers equal one on the joined batch.
    """

    mode = DistributedMode.SYNC
    _forced: ClassVar[dict[str, Any]] = {"half_async": True, "completely_not_async": True}
    _barrier = True


class HalfAsyncStrategy(DistributedStrategy):
    """Strategy in which servers update by each arriving gradient, and a trainer waits for its push in each step."""

    mode = DistributedMode.HALF_ASYNC
    _forced: ClassVar[dict[str, Any]] = {"half_async": True}
    _barrier = True


class AsyncStrategy(DistributedStrategy):
    """Strategy in which servers update by each arriving gradient, and trainers do not wait.

    Trainers merge the gradients of several steps into one push.
    """

    mode = DistributedMode.ASYNC


class GeoStrategy(DistributedStrategy):
    """Trainers update by themselves, and exchange differences of parameters with the servers.

    Args:
        update_frequency: number of steps between exchanges, at least 1.

    Raises ProgramError for another update_frequency.
    """

    mode = DistributedMode.GEO
    _forced: ClassVar[dict[str, Any]] = {"geo_sgd_mode": True}

    def __init__(self, update_frequency: int = 100):
        if isinstance(update_frequency, bool) or not isinstance(update_frequency, int) or update_frequency < 1:
            raise errors.ProgramError(
                "update_frequency: expected after how many steps differences are exchanged, a whole "
                f"number above 0; found {update_frequency!r}"
            )
        super().__init__()
        self._program_config.geo_sgd_need_push_nums = update_frequency


class StrategyFactory:
    """Factory of the four strategies, with Fluid's names."""

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        """Return a SyncStrategy."""
        return SyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        """Return a HalfAsyncStrategy."""
        return HalfAsyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        """Return an AsyncStrategy."""
        return AsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        """Return a GeoStrategy."""
        return GeoStrategy(update_frequency)


DistributedStrategyFactory = StrategyFactory


def strategy_of(given: Any) -> DistributedStrategy:
    """Return the strategy for the argument of `fleet.distributed_optimizer`.

    It may be a strategy, a DistributeTranspilerConfig, or None, which stands for SyncStrategy. Raises TypeError for
    anything else.
    """
    if given is None:
        return SyncStrategy()
    if isinstance(given, DistributeTranspilerConfig):
        found = _kind_of(given)()
        found.set_program_config(given)
        return found
    if isinstance(given, DistributedStrategy) and given.mode is not None:
        return given
    raise TypeError(
        "strategy: expected a strategy of StrategyFactory (SyncStrategy, HalfAsyncStrategy, AsyncStrategy, "
        f"GeoStrategy) or a DistributeTranspilerConfig, found {type(given).__name__}"
    )


def _kind_of(config: DistributeTranspilerConfig) -> type[DistributedStrategy]:
    if config.sync_mode or config.completely_not_async:
        return SyncStrategy
    if config.geo_sgd_mode:
        return GeoStrategy
    return AsyncStrategy if config.runtime_split_send_recv and not config.half_async else HalfAsyncStrategy
