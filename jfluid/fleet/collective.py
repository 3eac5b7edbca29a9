"""The fleet of a collective job: all processes train, each on its share of the data.

fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
optimizer = fleet.distributed_optimizer(fluid.optimizer.Adam(0.001), DistributedStrategy())
optimizer.minimize(loss)
exe.run(fluid.default_startup_program())
exe.run(fleet.main_program, feed=..., fetch_list=[loss])
"""

import tempfile
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn

from jfluid import errors, processes
from jfluid import io as files
from jfluid.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy
from jfluid.contrib.mixed_precision import decorate
from jfluid.contrib.mixed_precision.decorator import OptimizerWithMixedPrecision
from jfluid.executor import Executor
from jfluid.files.variables import program_of
from jfluid.fleet import numbered_checkpoints
from jfluid.fleet.base import DistributedOptimizer, Fleet, Mode
from jfluid.fleet.filesystem import FS, LocalFS
from jfluid.fleet.numbered_checkpoints import TrainStatus
from jfluid.fleet.role_maker import PaddleCloudRoleMaker, RoleMakerBase
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program, default_startup_program
from jfluid.ir.variable import Parameter, Variable
from jfluid.lod_tensor import is_divided
from jfluid.optimizer import RecomputeOptimizer
from jfluid.optimizer.base import Optimizer, ParamGrad
from jfluid.scope import global_scope
from jfluid.transpiler import DistributeTranspiler, DistributeTranspilerConfig

__all__ = [
    "Collective",
    "CollectiveOpBasedOptimizer",
    "CollectiveOptimizer",
    "DistFCConfig",
    "DistributedStrategy",
    "LambConfig",
    "TrainStatus",
    "fleet",
]


class LambConfig:
    """A configuration without fields, as in Fluid."""


class DistFCConfig:
    """The settings of `DistributedStrategy.use_dist_fc`; Fluid 1.8.5 has none."""


class DistributedStrategy(BuildStrategy):
    """Settings of a collective job: all fields of BuildStrategy, and the fields below.

    Attributes:
        mode: "nccl2": replicas of all processes run as one step, as by
            `CompiledProgram.with_data_parallel`. "collective": each process runs its own program,
            whose operators sum gradients or average parameters over the processes (see
            `collective_mode`).
        collective_mode: with mode "collective", "grad_allreduce" or "local_sgd".
        use_local_sgd: the same as mode "collective" with "local_sgd".
        forward_recompute, recompute_checkpoints: keep only the checkpoints of the forward pass
            (RecomputeOptimizer).
        use_amp, amp_loss_scaling: train in 16 bits, with dynamic loss scaling that begins with this
            factor (mixed_precision.decorate).
        exec_strategy: an ExecutionStrategy.
        nccl_comm_num, use_hierarchical_allreduce: no effect: XLA orders collectives by itself (see
            DistributeTranspilerConfig). On a single host they become 1 and False, as in Fluid.
        use_dist_fc, dist_fc_config: no effect but a warning: as in Fluid 1.8.5, which only checks
            that both are set, each process holds the whole of every fully connected layer.

    Raises ProgramError when a field is set that Fluid does not have.
    """

    _defaults: ClassVar[dict[str, Any]] = BuildStrategy._defaults | {
        "use_local_sgd": False,
        "use_dist_fc": False,
        "dist_fc_config": None,
        "mode": "nccl2",
        "collective_mode": None,
        "forward_recompute": False,
        "recompute_checkpoints": [],
        "use_amp": False,
        "amp_loss_scaling": 2**15,
        "exec_strategy": None,
        "_ut4grad_allreduce": False,
    }

    use_local_sgd: bool
    use_dist_fc: bool
    dist_fc_config: DistFCConfig | None
    mode: str
    collective_mode: str | None
    forward_recompute: bool
    recompute_checkpoints: list[Variable]
    use_amp: bool
    amp_loss_scaling: float
    exec_strategy: ExecutionStrategy
    _ut4grad_allreduce: bool

    def __init__(self) -> None:
        super().__init__()
        self.exec_strategy = ExecutionStrategy()

    def _check_dist_fc(self) -> None:
        if self.dist_fc_config is None:
            raise errors.ProgramError("DistributedStrategy: use_dist_fc needs dist_fc_config, a DistFCConfig")
        if self.use_local_sgd:
            raise errors.ProgramError("DistributedStrategy: use_dist_fc does not go with use_local_sgd")
        warnings.warn(
            "DistributedStrategy, use_dist_fc: no effect: each process holds the whole of every fully connected layer; "
            "with BuildStrategy.ReduceStrategy.Reduce its updates are divided",
            RuntimeWarning,
            stacklevel=3,
        )

    def collective(self) -> str | None:
        """Return the collective mode, which operators in the program implement; None if one step spans the processes.

        Raises ProgramError for fields that contradict each other.
        """
        if self.use_dist_fc:
            self._check_dist_fc()
        if self.use_local_sgd:
            return "local_sgd"
        if self._ut4grad_allreduce:
            return "grad_allreduce"
        if self.mode not in ("nccl2", "collective"):
            raise errors.ProgramError(
                f'DistributedStrategy, mode: expected "nccl2" or "collective", found {self.mode!r}'
            )
        if self.mode == "nccl2":
            if self.collective_mode is not None:
                raise errors.ProgramError(
                    f"DistributedStrategy: collective_mode {self.collective_mode!r} needs mode "
                    '"collective", found "nccl2"'
                )
            return None
        if self.collective_mode not in ("grad_allreduce", "local_sgd"):
            raise errors.ProgramError(
                'DistributedStrategy, collective_mode: mode "collective" needs "grad_allreduce" or '
                f'"local_sgd", found {self.collective_mode!r}'
            )
        return self.collective_mode


class Collective(Fleet):
    """The processes of a collective job. `fleet` is the one that scripts use.

    Attributes:
        main_program: the program to run, once an optimizer has minimised a loss.
        startup_program: the startup program of the main program.
    """

    def __init__(self) -> None:
        super().__init__(Mode.COLLECTIVE)
        self.startup_program: Program | None = None
        self.main_program: Program | CompiledProgram | None = None
        self._origin_program: Program | None = None
        self._transpiled_program: Program | None = None

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Find the role of this process, and connect to all processes of the job.

        Call it before any program runs, unless the environment has the addresses of the processes, as
        under `jfluid-launch`.

        Args:
            role_maker: PaddleCloudRoleMaker(is_collective=True) when None.

        Raises the errors of `Fleet.init` , ProgramError for a job with parameter servers, and
        PlaceError when the other processes do not come or JAX has started already.
        """
        super().init(PaddleCloudRoleMaker(is_collective=True) if role_maker is None else role_maker)
        if self.server_num():
            raise errors.ProgramError(
                "fleet.init: this is the fleet of collective jobs, and the role maker tells of "
                "parameter servers: give PaddleCloudRoleMaker(is_collective=True)"
            )
        processes.join(self._role.get_trainer_endpoints(), self.worker_index())

    def _needless(self, method: str) -> None:
        warnings.warn(f"fleet.{method}: a collective job has nothing to do there", RuntimeWarning, stacklevel=3)

    def init_worker(self) -> None:
        """Warn, as Fluid does, that there is nothing to do in a collective job."""
        self._needless("init_worker")

    def run_worker(self, main_programs: Any = None, scopes: Any = None) -> None:
        """Warn, as Fluid does, that there is nothing to do in a collective job."""
        self._needless("run_worker")

    def init_server(self, model_dir: str | None = None) -> None:
        """Warn, as Fluid does, that there is nothing to do in a collective job."""
        self._needless("init_server")

    def run_server(self) -> None:
        """Warn, as Fluid does, that there is nothing to do in a collective job."""
        self._needless("run_server")

    def stop_worker(self) -> None:
        """Warn, as Fluid does, that there is nothing to do in a collective job."""
        self._needless("stop_worker")

    def distributed_optimizer(
        self, optimizer: Any, strategy: DistributedStrategy | None = None
    ) -> "CollectiveOptimizer":
        """Return an optimizer that trains with all processes: a CollectiveOptimizer of these arguments."""
        self._optimizer = found = CollectiveOptimizer(optimizer, strategy, self)
        return found

    def _program(self, given: Any, own: Program | None, method: str) -> Any:
        program = given if given is not None else own
        if program is None:
            raise errors.ProgramError(
                f"fleet.{method}: give main_program, or minimize a loss with fleet.distributed_optimizer first"
            )
        return program

    def save_inference_model(
        self,
        executor: Executor,
        dirname: str,
        feeded_var_names: Sequence[str] | None = None,
        target_vars: Sequence[Variable] | None = None,
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> list[str]:
        """Save by `fluid.io.save_inference_model`, with the same arguments, the program before its preparation.

        The preparation is that for all processes.

        Returns:
            The names of the targets.

        Raises ProgramError without `feeded_var_names` or `target_vars`, and what that function
        raises.
        """
        program = self._program(main_program, self._origin_program, "save_inference_model")
        if not isinstance(program, Program):
            raise TypeError(
                f"fleet.save_inference_model, main_program: expected a Program, found {type(program).__name__}"
            )
        if feeded_var_names is None or target_vars is None:
            raise errors.ProgramError(
                "fleet.save_inference_model: say which variables are fed (feeded_var_names) and which "
                "are predicted (target_vars)"
            )
        return files.save_inference_model(
            dirname, feeded_var_names, target_vars, executor, program, export_for_deployment=export_for_deployment
        )

    def save_persistables(
        self, executor: Executor, dirname: str, main_program: Program | None = None, filename: str | None = None
    ) -> None:
        """Save by `fluid.io.save_persistables`, with the same arguments, the program before its preparation."""
        files.save_persistables(
            executor, dirname, self._program(main_program, self._origin_program, "save_persistables"), filename
        )

    def save_check_point(
        self,
        executor: Executor,
        path: str,
        train_status: TrainStatus,
        main_program: Program | None = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """Add a checkpoint to a folder: all persistable variables, and how far training has come.

        One process does it for all. Where the optimizer's state is divided among processes
        (ReduceStrategy.Reduce) all of them must call it, because all are needed to read the state;
        the first one writes, and none returns before it has.

        Args:
            path: the folder, in `fs`.
            train_status: how far training has come.
            main_program: the program that was trained, if it was not `fleet.main_program`.
            fs: the file system; that of this host when None.
            local_cache_path: a folder of this host for the files before the upload.
            remain_all_checkpoint: whether older checkpoints stay.
        """
        fs = fs if fs is not None else LocalFS()
        program = self._program(main_program, self._transpiled_program, "save_check_point")

        def write(folder: str) -> None:
            self.save_persistables(executor, folder, program, numbered_checkpoints.PARAMETERS)

        divided = _is_divided(program)
        if divided and not self.is_first_worker():
            with tempfile.TemporaryDirectory() as folder:
                write(folder)  # to read the state takes all processes
        else:
            numbered_checkpoints.save(path, train_status, fs, local_cache_path, write)
            if not remain_all_checkpoint:
                self.clean_redundant_check_points(path, fs)
        if divided:
            self.barrier_worker()

    def load_check_point(
        self,
        executor: Executor,
        path: str,
        trainer_id: int,
        main_program: Program | None = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """Read the newest checkpoint of a folder. Every process does it.

        Args:
            path, main_program, fs, local_cache_path: as those of `save_check_point`.
            trainer_id: of this process, which downloads to a folder of its own.
            ignore_empty: whether a folder without checkpoints is no error.

        Returns:
            How far training had come; None when there is no checkpoint.

        Raises FileFormatError for a checkpoint that cannot be read, and with `ignore_empty=False`
        when there is none.
        """
        program = self._program(main_program, self._transpiled_program, "load_check_point")
        found = numbered_checkpoints.load(
            path,
            trainer_id,
            fs if fs is not None else LocalFS(),
            local_cache_path,
            lambda folder: files.load_persistables(executor, folder, program, numbered_checkpoints.PARAMETERS),
        )
        if found is None and not ignore_empty:
            raise errors.FileFormatError(f"{path}: there is no checkpoint")
        return found

    def clean_redundant_check_points(self, root_path: str, fs: FS | None = None, checkpoint_num: int = 1) -> None:
        """Remove all checkpoints of a folder but the newest `checkpoint_num` (at least one).

        Args:
            fs: the file system; that of this host when None.
        """
        numbered_checkpoints.clean(root_path, fs if fs is not None else LocalFS(), checkpoint_num)


fleet = Collective()


class CollectiveOpBasedOptimizer(DistributedOptimizer):
    """DistributedOptimizer with a DistributedStrategy as its strategy.

    Raises TypeError for any other.
    """

    def __init__(self, optimizer: Any, strategy: DistributedStrategy | None = None):
        if not isinstance(strategy, DistributedStrategy):
            raise TypeError(f"strategy: expected a DistributedStrategy, found {type(strategy).__name__}")
        super().__init__(optimizer, strategy)


class CollectiveOptimizer(DistributedOptimizer):
    """An optimizer that trains with all processes of a collective job.

    Args:
        optimizer: computes the updates.
        strategy: how processes train together; DistributedStrategy() when None.
        owner: the fleet; `fleet` when None.

    Raises TypeError for arguments of wrong types, ProgramError for a strategy that contradicts
    itself.
    """

    def __init__(self, optimizer: Any, strategy: DistributedStrategy | None = None, owner: Collective | None = None):
        strategy = strategy if strategy is not None else DistributedStrategy()
        if not isinstance(strategy, DistributedStrategy):
            raise TypeError(f"strategy: expected a DistributedStrategy, found {type(strategy).__name__}")
        if not isinstance(strategy.recompute_checkpoints, list):
            raise errors.ProgramError(
                "DistributedStrategy, recompute_checkpoints: expected a list of Variables, found "
                f"{type(strategy.recompute_checkpoints).__name__}"
            )
        super().__init__(optimizer, strategy)
        self._fleet = owner if owner is not None else fleet
        self.print_config = False

    def _wrapped(self) -> Optimizer | OptimizerWithMixedPrecision:
        """Return the optimizer, with recomputation and 16 bits if the strategy asks for either."""
        strategy, found = self._strategy, self._optimizer
        name = type(found).__name__
        if strategy.forward_recompute:
            if not strategy.recompute_checkpoints:
                raise errors.ProgramError(
                    "DistributedStrategy: forward_recompute needs recompute_checkpoints, the variables to keep"
                )
            if isinstance(found, (RecomputeOptimizer, OptimizerWithMixedPrecision)):
                raise errors.ProgramError(
                    f"DistributedStrategy, forward_recompute: give the optimizer inside, not a {name}"
                )
            found = RecomputeOptimizer(found)
            found._set_checkpoints(strategy.recompute_checkpoints)
        if strategy.use_amp:
            if isinstance(found, OptimizerWithMixedPrecision):
                raise errors.ProgramError(f"DistributedStrategy, use_amp: give the optimizer inside, not a {name}")
            found = decorate(found, init_loss_scaling=strategy.amp_loss_scaling, use_dynamic_loss_scaling=True)
        return found

    def minimize(  # type: ignore[override]  # as in Fluid
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """Append gradients and updates, and prepare the programs for all processes.

        Afterwards run the startup program, then `fleet.main_program`.

        Returns:
            The update operators, and pairs of parameters and gradients.

        Raises ProgramError for a strategy that contradicts itself, and before `fleet.init`.
        """
        mode = self._strategy.collective()
        self._fleet.worker_num()  # before anything changes
        optimizer = self._wrapped()
        main = loss.block.program
        startup = startup_program if startup_program is not None else default_startup_program()
        result = optimizer.minimize(
            loss, startup_program=startup, parameter_list=parameter_list, no_grad_set=no_grad_set
        )
        self._fleet.startup_program = startup
        self._fleet._origin_program = main.clone()
        self._fleet._transpiled_program = main
        self._transpile(startup, main, mode)
        self._fleet.main_program = main if mode else self._compiled(main, loss.name)
        return result

    def raiseOptimizeError(self, strategy_name: str, optimize_name: str) -> NoReturn:
        """Raise ValueError: the optimizer `optimize_name` does not go with a field of the strategy."""
        raise errors.ProgramError(f"{optimize_name} does not go with DistributedStrategy.{strategy_name}")

    def _transpile(self, startup: Program, main: Program, mode: str | None) -> None:
        endpoints, index = self._fleet._role.get_trainer_endpoints(), self._fleet.worker_index()
        if self.print_config:
            print(f"worker_endpoints: {endpoints} trainer_id: {index} mode: {mode or 'nccl2'} {self._strategy!r}")
        if len(_hosts(endpoints)) == 1:  # as Fluid does
            self._strategy.nccl_comm_num, self._strategy.use_hierarchical_allreduce = 1, False
        if mode and len(endpoints) == 1:
            return  # nothing to bring together
        config = DistributeTranspilerConfig()
        config.mode, config.collective_mode = ("collective" if mode else "nccl2"), mode
        config.nccl_comm_num = self._strategy.nccl_comm_num
        config.use_hierarchical_allreduce = self._strategy.use_hierarchical_allreduce
        config.hierarchical_allreduce_inter_nranks = self._strategy.hierarchical_allreduce_inter_nranks
        DistributeTranspiler(config).transpile(
            index, main, trainers=",".join(endpoints), startup_program=startup, current_endpoint=endpoints[index]
        )

    def _compiled(self, main: Program, loss: str) -> CompiledProgram:
        strategy = self._strategy
        strategy.num_trainers, strategy.trainer_id = (self._fleet.worker_num(), self._fleet.worker_index())
        strategy.trainers_endpoints = list(self._fleet._role.get_trainer_endpoints())
        return CompiledProgram(main).with_data_parallel(
            loss_name=loss, build_strategy=strategy, exec_strategy=strategy.exec_strategy
        )


def _is_divided(program: Any) -> bool:
    """Return whether a variable of the program is divided among processes."""
    found = (global_scope().find_var(v.name) for v in files.get_program_persistable_vars(program_of(program)))
    return any(is_divided(var.get_tensor().value) for var in found if var is not None)


def _hosts(endpoints: Sequence[str]) -> set[str]:
    return {endpoint.rpartition(":")[0] for endpoint in endpoints}
