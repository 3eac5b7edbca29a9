"""DistributeTranspilerConfig, ServerRuntimeConfig and DistributedMode."""

import functools
import warnings
from typing import Any, ClassVar

from jfluid import errors
from jfluid.transpiler.ps_dispatcher import PSDispatcher, RoundRobin

_KINDS = {bool: "True or False", int: "a whole number", str: "a string"}
SMALLEST_BLOCK = 8192


class DistributedMode:
    """Modes of training with parameter servers."""

    SYNC = 0
    ASYNC = 1
    HALF_ASYNC = 2
    GEO = 3


class ServerRuntimeConfig:
    """Numbers of threads that serve calls of each kind, as `listen_and_serv` notes each.

    Without effect on the serving itself: a server has one pool of threads, and one call carries all
    variables. A RuntimeWarning says that once for a field that a script changes.

    Attributes:
        _rpc_send_thread_num, _rpc_get_thread_num, _rpc_prefetch_thread_num: at least 1; by default the
            environment variables FLAGS_rpc_send_thread_num and so on, or 12.

    Raises ProgramError for a field that does not exist, or a value that cannot be.
    """

    FIELDS = ("_rpc_send_thread_num", "_rpc_get_thread_num", "_rpc_prefetch_thread_num")

    def __init__(self) -> None:
        from jfluid.environment.process import ThreadVariables

        told = ThreadVariables.from_env()
        for name in self.FIELDS:
            setattr(self, name, getattr(told, name.removeprefix("_")))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.FIELDS:
            raise errors.ProgramError(f"ServerRuntimeConfig has no field {name}" + errors.close_to(name, self.FIELDS))
        if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
            raise errors.ProgramError(f"{name}: expected a whole number above 0, found {value!r}")
        if self.__dict__.get(name, int(value)) != int(value):
            _tell_of_threads(name)
        self.__dict__[name] = int(value)

    def __repr__(self) -> str:
        return f"ServerRuntimeConfig({', '.join(f'{n}={v}' for n, v in self.__dict__.items())})"


@functools.cache
def _tell_of_threads(field: str) -> None:
    warnings.warn(
        f"ServerRuntimeConfig.{field}: a server has one pool of threads, a thread for each call of a trainer, and one "
        "call carries all variables: there is nothing to set. The value is noted in the server's program",
        RuntimeWarning,
        stacklevel=3,
    )


class DistributeTranspilerConfig:
    """Settings of `DistributeTranspiler`.

    Attributes:
        mode: "pserver", "nccl2" (gradients are summed by the engine; see ParallelExecutor and
            CompiledProgram), or "collective" (by operators in the program itself).
        collective_mode: with "collective", "grad_allreduce" or "local_sgd".
        nccl_comm_num: how many rings the operators of "collective" take turns in. XLA orders
            collectives itself, so that it changes no result and no speed.
        use_hierarchical_allreduce, hierarchical_allreduce_inter_nranks: kept in the program. NCCL
            and gloo choose trees themselves, so these fields change no result and no speed.
        wait_port: in mode "pserver": True if `get_trainer_program` waits until all servers listen.
            Without effect in the remaining modes: trainers always wait for each other.

    Attributes of mode "pserver":
        slice_var_up: cut large parameters, so that each server holds a range of rows. Parameters
            with an update of the whole tensor (LAMB, LARS, a clip by the norm) stay in one piece.
        min_block_size: the fewest elements of a piece, at least 8192.
        split_method: RoundRobin (also for None), HashName or a different PSDispatcher: the assignment of
            pieces to servers.
        sync_mode: value for `transpile(sync_mode=...)`; the argument decides.
        runtime_split_send_recv: `send` and `recv` get whole gradients and parameters, and cut and
            join the tensors: asynchronous training by a communicator. Without
            it an asynchronous job is half asynchronous.
        half_async: with `runtime_split_send_recv`, a barrier among the sends of this trainer.
        completely_not_async: servers wait for all trainers, and trainers have programs with a communicator.
        enable_dc_asgd: without sync_mode, correct gradients that come late by how far the parameter
            has moved (DC-ASGD); dense gradients only.
        geo_sgd_mode, geo_sgd_need_push_nums: trainers update locally and exchange
            differences with the servers every `geo_sgd_need_push_nums` steps.
        print_log: log the parameters of each server.

    Raises ProgramError for a field that does not exist, a value of a wrong type, or settings that
    exclude each other.
    """

    _defaults: ClassVar[dict[str, Any]] = {
        "slice_var_up": True,
        "split_method": None,
        "min_block_size": SMALLEST_BLOCK,
        "enable_dc_asgd": False,
        "mode": "pserver",
        "print_log": False,
        "wait_port": True,
        "runtime_split_send_recv": False,
        "sync_mode": True,
        "half_async": False,
        "completely_not_async": False,
        "geo_sgd_mode": False,
        "geo_sgd_need_push_nums": 100,
        "nccl_comm_num": 1,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": 0,
        "collective_mode": None,
    }

    slice_var_up: bool
    split_method: type[PSDispatcher] | None
    min_block_size: int
    enable_dc_asgd: bool
    mode: str
    print_log: bool
    wait_port: bool
    runtime_split_send_recv: bool
    sync_mode: bool
    half_async: bool
    completely_not_async: bool
    geo_sgd_mode: bool
    geo_sgd_need_push_nums: int
    nccl_comm_num: int
    use_hierarchical_allreduce: bool
    hierarchical_allreduce_inter_nranks: int
    collective_mode: str | None

    def __init__(self) -> None:
        self.__dict__.update(self._defaults)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise errors.ProgramError(
                f"DistributeTranspilerConfig has no field {name}" + errors.close_to(name, self._defaults)
            )
        default = self._defaults[name]
        kind = str if name == "collective_mode" else type(default)
        if name == "split_method":
            if value is not None and not (isinstance(value, type) and issubclass(value, PSDispatcher)):
                raise errors.ProgramError(
                    f"split_method: expected RoundRobin, HashName or any other PSDispatcher, found {value!r}"
                )
        elif (
            not (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)) and not value is default is None
        ):
            raise errors.ProgramError(f"{name}: expected {_KINDS[kind]}, found {value!r}")
        if value is True and (name, True) in (
            ("sync_mode", self.runtime_split_send_recv),
            ("runtime_split_send_recv", self.sync_mode),
        ):
            raise errors.ProgramError(
                "sync_mode and runtime_split_send_recv exclude each other: set the other to False first"
            )
        self.__dict__[name] = value

    def __repr__(self) -> str:
        changed = [f"{n}={v!r}" for n, v in self.__dict__.items() if v != self._defaults[n]]
        return f"DistributeTranspilerConfig({', '.join(changed)})"

    @property
    def dispatcher(self) -> type[PSDispatcher]:
        """`split_method`, or its default."""
        return self.split_method or RoundRobin
