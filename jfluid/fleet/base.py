"""Fleet and DistributedOptimizer: the common base of all kinds of jobs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jfluid import errors
from jfluid.contrib.mixed_precision.decorator import OptimizerWithMixedPrecision
from jfluid.fleet.role_maker import RoleMakerBase
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.variable import Parameter, Variable
from jfluid.optimizer.base import Optimizer, ParamGrad

__all__ = ["DistributedOptimizer", "Fleet", "Mode"]


class Mode:
    """Kinds of fleets, with Fluid's numbers."""

    TRANSPILER = 1
    PSLIB = 2
    COLLECTIVE = 3


class Fleet:
    """Processes of a job, as seen from this process. A subclass defines the training.

    Methods other than `init` raise ProgramError before `init`.

    Args:
        mode: a member of `Mode`.
    """

    def __init__(self, mode: int):
        self._mode = mode
        self._is_initialized = False
        self._optimizer: DistributedOptimizer | None = None
        self._role_maker: RoleMakerBase | None = None

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Find out the role of this process. Call it first.

        Args:
            role_maker: the role of this process; a subclass may have a default.

        Raises TypeError for anything else than a role maker, and what its `generate_role` raises.
        """
        if not isinstance(role_maker, RoleMakerBase):
            raise TypeError(f"fleet.init, role_maker: expected a role maker, found {type(role_maker).__name__}")
        role_maker.generate_role()
        self._role_maker = role_maker
        self._is_initialized = True

    @property
    def _role(self) -> RoleMakerBase:
        if self._role_maker is None:
            raise errors.ProgramError("fleet: call fleet.init(role_maker) first")
        return self._role_maker

    def is_first_worker(self) -> bool:
        """Return whether this is the trainer of number 0."""
        return self._role.is_first_worker()

    def worker_index(self) -> int:
        """Return the number of this trainer, from 0."""
        return self._role.worker_index()

    def worker_num(self) -> int:
        """Return how many trainers there are."""
        return self._role.worker_num()

    def is_worker(self) -> bool:
        """Return whether this process trains."""
        return self._role.is_worker()

    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return "ip:port" of each trainer, as a list, or with `to_string` as a text with commas."""
        return ",".join(self._role.get_trainer_endpoints()) if to_string else self._role.get_trainer_endpoints()

    def server_num(self) -> int:
        """Return how many parameter servers there are."""
        return len(self._role.get_pserver_endpoints())

    def server_index(self) -> int:
        """Return the number of this parameter server, from 0."""
        return self._role.server_index()

    def server_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return "ip:port" of each parameter server, as a list, or with `to_string` as a text with commas."""
        return ",".join(self._role.get_pserver_endpoints()) if to_string else self._role.get_pserver_endpoints()

    def is_server(self) -> bool:
        """Return whether this process is a parameter server."""
        return self._role.is_server()

    def split_files(self, files: list[str]) -> list[str]:
        """Return this trainer's share of a list of files: neighbours in the list.

        The first trainers get one file more if the files cannot be divided evenly.

        Raises TypeError when `files` is no list.
        """
        if not isinstance(files, list):
            raise TypeError(f"split_files: expected a list of files, found {type(files).__name__}")
        share, more = divmod(len(files), self.worker_num())
        start = self.worker_index() * share + min(self.worker_index(), more)
        return files[start : start + share + (self.worker_index() < more)]

    def all_reduce_worker(self, input: Any, output: Any) -> None:
        """Add up numbers of all trainers. See `RoleMakerBase.all_reduce_worker`."""
        self._role.all_reduce_worker(input, output)

    def barrier_worker(self) -> None:
        """Wait until all trainers are here. See `RoleMakerBase.barrier_worker`."""
        self._role.barrier_worker()

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__}.{method}: a subclass of Fleet has to define it")

    def init_worker(self) -> None:
        """Get this trainer ready to train."""
        raise self._missing("init_worker")

    def init_server(self, model_dir: str | None = None) -> None:
        """Get this server ready to serve, from a saved model if `model_dir` is given."""
        raise self._missing("init_server")

    def run_server(self) -> None:
        """Serve until all trainers have left."""
        raise self._missing("run_server")

    def stop_worker(self) -> None:
        """Tell the other processes that this trainer has finished."""
        raise self._missing("stop_worker")

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> "DistributedOptimizer":
        """Return an optimizer that trains with all processes.

        Args:
            optimizer: computes the updates.
            strategy: how processes train together; its kind depends on the fleet.
        """
        raise self._missing("distributed_optimizer")

    def save_inference_model(
        self,
        executor: Any,
        dirname: str,
        feeded_var_names: Sequence[str],
        target_vars: Sequence[Variable],
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> Any:
        """Save the part of a program that predicts, and its parameters."""
        raise self._missing("save_inference_model")

    def save_persistables(self, executor: Any, dirname: str, main_program: Program | None = None) -> None:
        """Save all variables that training goes on with."""
        raise self._missing("save_persistables")


class DistributedOptimizer:
    """An optimizer that trains with all processes of a fleet.

    Args:
        optimizer: computes the updates.
        strategy: how processes train together; its kind depends on the fleet.

    Raises TypeError when `optimizer` is no optimizer.
    """

    def __init__(self, optimizer: Any, strategy: Any = None):
        if not isinstance(optimizer, (Optimizer, OptimizerWithMixedPrecision)):
            raise TypeError(f"distributed_optimizer: expected an optimizer, found {type(optimizer).__name__}")
        self._optimizer = optimizer
        self._strategy = strategy

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[ParamGrad]:
        """Append gradients to the program: the first part of `minimize`."""
        return self._optimizer.backward(loss, startup_program, parameter_list, no_grad_set, callbacks)

    def apply_gradients(self, params_grads: Sequence[ParamGrad]) -> list[Operator]:
        """Append updates to the program: the second part of `minimize`."""
        return self._optimizer.apply_gradients(params_grads)

    def minimize(
        self,
        losses: Any,
        scopes: Any = None,
        startup_programs: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Append gradients and updates, and prepare the programs for all processes."""
        raise NotImplementedError(
            f"{type(self).__name__}.minimize: a subclass of DistributedOptimizer has to define it"
        )
