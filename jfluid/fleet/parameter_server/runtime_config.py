"""TrainerRuntimeConfig: how a trainer's communicator works."""

import warnings
from collections import UserDict
from collections.abc import Mapping
from typing import Any

from jfluid import errors, flags
from jfluid.places import cpu_number
from jfluid.transpiler.config import DistributedMode

__all__ = ["TrainerRuntimeConfig"]

PREFETCH_DEPTH = "communicator_prefetch_depth"
_FIELDS = (
    "communicator_max_merge_var_num",
    "communicator_send_queue_size",
    "communicator_independent_recv_thread",
    "communicator_min_send_grad_num_before_recv",
    "communicator_thread_pool_size",
    "communicator_send_wait_times",
    "communicator_is_sgd_optimizer",
    "rpc_deadline",
    "rpc_retry_times",
    PREFETCH_DEPTH,
)
# Fields that begin with the number of a trainer's replicas; the remaining fields begin with the value of a flag.
_OF_REPLICAS = (
    "communicator_max_merge_var_num",
    "communicator_send_queue_size",
    "communicator_min_send_grad_num_before_recv",
)
_LEAST = {
    "communicator_max_merge_var_num": 1,
    "communicator_send_queue_size": 1,
    "communicator_thread_pool_size": 1,
    "communicator_min_send_grad_num_before_recv": 1,
    "rpc_deadline": 1,
}
_SWITCHES = ("communicator_independent_recv_thread", "communicator_is_sgd_optimizer")
_IN_STEP = (
    "communicator_max_merge_var_num",
    "communicator_send_wait_times",
    "communicator_thread_pool_size",
    "communicator_send_queue_size",
)
# The fields of a communicator in each mode.
_TOLD: dict[int | None, tuple[str, ...]] = {
    DistributedMode.SYNC: _IN_STEP,
    DistributedMode.HALF_ASYNC: (*_IN_STEP, PREFETCH_DEPTH),
    DistributedMode.GEO: ("communicator_thread_pool_size", "communicator_send_wait_times"),
}


def _checked(name: str, value: Any) -> str:
    """Return a field's value as text.

    Raises ProgramError for a field that does not exist, or an impossible value.
    """
    if name not in _FIELDS:
        short = f"communicator_{name}"
        raise errors.ProgramError(
            f"TrainerRuntimeConfig has no field {name}"
            + (f" (did you mean {short}?)" if short in _FIELDS else errors.close_to(name, _FIELDS))
        )
    text = str(int(value)) if isinstance(value, (bool, int)) else str(value)
    least = _LEAST.get(name, 0)
    if not text.isdecimal() or int(text) < least or (name in _SWITCHES and int(text) > 1):
        expected = "0 or 1" if name in _SWITCHES else f"a whole number, at least {least}"
        raise errors.ProgramError(f"{name}: expected {expected}, found {value!r}")
    return text


class _Fields(UserDict[str, str]):
    """Values by name; invalid ones raise ProgramError."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _checked(name, value))

    def __delitem__(self, name: str) -> None:
        raise errors.ProgramError(f"runtime_configs: {name} always has a value; set it to a different one")


def _first(name: str) -> Any:
    """Return the initial value of a field."""
    flag = f"FLAGS_{name}"
    return cpu_number() if name in _OF_REPLICAS and flags.given(flag) is None else flags.get(flag)


class TrainerRuntimeConfig:
    """Settings of a trainer's communicator.

    Fields begin with the flags of their names (`FLAGS_communicator_...`, ...) where these were set, by the
    environment or `fluid.set_flags`, before this is made.

    Attributes:
        mode: of DistributedMode; None before a strategy takes it.
        runtime_configs: the values by name, as text; numbers are taken too. CPU_NUM means how many
            replicas the environment variable CPU_NUM asks for (1 without it).

            communicator_max_merge_var_num (CPU_NUM): up to how many steps' gradients go out as one.
                Synchronous and half-asynchronous trainers send those of each step: there it is
                CPU_NUM.
            communicator_send_queue_size (CPU_NUM): how many steps' gradients wait before training
                waits for them. Also CPU_NUM in synchronous and half-asynchronous training.
            communicator_send_wait_times (5): for how many hundredths of a second the sending thread
                waits for more to merge before it sends what it has.
            communicator_min_send_grad_num_before_recv (CPU_NUM): how many gradients to send before
                parameters are received.
            communicator_is_sgd_optimizer (1): merged gradients are added up, as suits plain SGD;
                with 0 their mean is sent.
            rpc_deadline (180000): milliseconds for which a call, and a trainer that waits for
                servers, waits: the flag gets this value when a loss is minimised.
            communicator_prefetch_depth (1): see prefetch_depth.

            Without effect: communicator_thread_pool_size (5) and
            communicator_independent_recv_thread (1), since one thread sends and receives, by one
            call to each server that carries all variables, and rpc_retry_times (3), since a call is
            sent again until rpc_deadline.
        prefetch_depth: how many batches of a dataset ahead rows are looked up while this one is
            computed, in asynchronous and half-asynchronous training. 0: no overlap, also not of
            what half-asynchronous steps exchange with the beginning of the next one. Fluid does not
            have this field.

    Raises ProgramError for a field that does not exist, and for a value that cannot be; also of a
    flag.
    """

    def __init__(self) -> None:
        self.mode: int | None = None
        self._fields = _Fields({name: _first(name) for name in _FIELDS})

    @property
    def runtime_configs(self) -> _Fields:
        """The values by name."""
        return self._fields

    @property
    def prefetch_depth(self) -> int:
        """Number of dataset batches for which rows are looked up ahead; 0 for no overlap."""
        return int(self._fields[PREFETCH_DEPTH])

    @prefetch_depth.setter
    def prefetch_depth(self, depth: int) -> None:
        """For how many batches of a dataset ahead rows are looked up; 0 for no overlap."""
        self._fields[PREFETCH_DEPTH] = depth

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("mode", "_fields", "prefetch_depth"):
            raise errors.ProgramError(
                f"TrainerRuntimeConfig has no attribute {name}: set runtime_configs[{name!r}]"
                + ("" if name in _FIELDS else errors.close_to(name, _FIELDS))
            )
        object.__setattr__(self, name, value)

    def update(self, values: Mapping[str, Any]) -> None:
        """Set fields by name, also `prefetch_depth`.

        Nothing changes if a field is refused.
        """
        named = {PREFETCH_DEPTH if name == "prefetch_depth" else name: value for name, value in values.items()}
        self._fields.update({name: _checked(name, value) for name, value in named.items()})

    def get_communicator_flags(self) -> dict[str, str]:
        """Return the communicator's settings: the fields that its mode has.

        In synchronous and half-asynchronous mode it warns about fields that do not suit the mode,
        and sets them to CPU_NUM.
        """
        if self.mode in (DistributedMode.SYNC, DistributedMode.HALF_ASYNC):
            self._keep_in_step()
        return {name: self._fields[name] for name in self._told()}

    def _told(self) -> tuple[str, ...]:
        return _TOLD.get(self.mode, _FIELDS)

    def _keep_in_step(self) -> None:
        replicas = str(cpu_number())
        for name in ("communicator_max_merge_var_num", "communicator_send_queue_size"):
            if self._fields[name] != replicas:
                warnings.warn(
                    f"{name}: synchronous and half-asynchronous trainers send the gradients of each step, so it is "
                    f"CPU_NUM ({replicas}), not {self._fields[name]}",
                    RuntimeWarning,
                    stacklevel=3,
                )
                self._fields[name] = replicas

    def display(self, configs: Mapping[str, Any]) -> str:
        """Return a table of names and values as text."""
        width = max(map(len, configs), default=0)
        return "\n".join(["TrainerRuntimeConfig", *(f"  {name:<{width}}  {value}" for name, value in configs.items())])

    def __repr__(self) -> str:
        return self.display({name: self._fields[name] for name in self._told()})
