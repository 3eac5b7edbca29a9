"""Where a step runs: one device, one device of each process, or (in `parallel`) replicas on
several.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import jax
import numpy as np

from jfluid import errors, processes
from jfluid.compile import collective_jit, padding, trace
from jfluid.compile.device_feeds import ready
from jfluid.compile.host import Host
from jfluid.compile.options import options
from jfluid.compile.plan import Plan
from jfluid.lod_tensor import whole
from jfluid.ops.collective import AXIS
from jfluid.ops.ragged import Ragged

Env = dict[str, Any]
# A segment's pure function `(donated, kept, key) -> (gives, flags)`.
Function = Callable[[tuple[Any, ...], tuple[Any, ...], Any], Any]


class Placement(ABC):
    """Where the values of a plan are, and how its segments are compiled for that.

    Attributes:
        hosts: how many times the host runs a host operator in one step, at most.
    """

    hosts = 1

    def __init__(self, plan: Plan):
        self.plan = plan

    @abstractmethod
    def home(self, name: str) -> jax.sharding.Sharding:
        """The sharding of a variable of the Scope."""

    @abstractmethod
    def place(self, values: Env) -> dict[str, jax.Array]:
        """Move values of the Scope to their devices."""

    @abstractmethod
    def enter(self, feeds: Any) -> Env:
        """Checked feeds in the form that segments take."""

    @abstractmethod
    def context(self) -> AbstractContextManager[Any]:
        """The context in which a step runs."""

    @abstractmethod
    def lower(self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None) -> Env:
        """Trace segment `at` of the plan over values by name, and add its outputs to them. `key` is
        uint32 [2].
        """

    @abstractmethod
    def compiled(self, at: int, function: Function) -> Function:
        """Segment `at`, jitted. The first arguments are donated."""

    @abstractmethod
    def call(self, segment: Any, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        """Call a compiled segment."""

    @abstractmethod
    def inner(self, plan: Plan, number: int) -> "Placement":
        """The placement in which the host runs a block of the program for device `number`."""

    @abstractmethod
    def run_host(self, at: int, hosts: Sequence[Host], env: Env, key: Any, scope: Any) -> None:
        """Run host segment `at` on values by name, and add its outputs to them."""

    def settled(self, name: str, value: Any) -> Any:
        """A traced value of the Scope, constrained to its sharding."""
        return value

    def parts(self, name: str, value: Any) -> list[Any]:
        """The parts of a fetch on each device of this process."""
        return [value]


class OneDevice(Placement):
    """A device of this process. Sequences are padded to few sizes, unless an operator needs exact
    rows.
    """

    def __init__(self, plan: Plan, device: jax.Device):
        super().__init__(plan)
        self.device = device
        self._home = jax.sharding.SingleDeviceSharding(device)
        self._buckets = padding.Buckets()

    def home(self, name: str) -> jax.sharding.Sharding:
        return self._home

    def place(self, values: Env) -> dict[str, jax.Array]:
        for name, value in values.items():
            if isinstance(value, jax.Array) and not value.is_fully_addressable:
                values[name] = np.asarray(whole(value))  # it is on devices of several processes
        return placed(values, dict.fromkeys(values, self._home))

    def enter(self, feeds: Mapping[str, Any]) -> Env:
        return self._buckets.pad(ready(feeds, self.device, self._buckets.exact))

    def context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.default_device(self.device))
        return stack

    def lower(self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None) -> Env:
        return trace.lower(self.plan.segments[at].ops, env, trace.random_key(key), watch)

    def compiled(self, at: int, function: Function) -> Function:
        once = not self.plan.state and not self.plan.feeds  # a program that reads nothing
        return jax.jit(
            function, donate_argnums=(0,), compiler_options=options(self.device, quickly=once)
        )

    def call(self, segment: Any, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        """Call the segment; when an operator does not support padded rows, without padding from now
        on.
        """
        if self._buckets.exact:
            return segment.call(donated, tuple([padding.exact(v) for v in kept]), key)
        try:
            return segment.call(donated, kept, key)
        except errors.JFluidError as padded:
            if not any(isinstance(v, Ragged) and not v.exact for v in kept):
                raise
            outs = segment.call(donated, tuple([padding.exact(v) for v in kept]), key)
            self._buckets.exact = True
            warnings.warn(
                f"this program is compiled anew for each batch of other lengths, because of an operator that does "
                f"not support padded rows: {str(padded).splitlines()[0]}",
                RuntimeWarning,
                stacklevel=2,
            )
            return outs

    def inner(self, plan: Plan, number: int) -> Placement:
        return OneDevice(plan, self.device)

    def run_host(self, at: int, hosts: Sequence[Host], env: Env, key: Any, scope: Any) -> None:
        hosts[0].run(self.plan.segments[at], env, key, scope)


class Processes(OneDevice):
    """A device of each process: segments whose operators compute with the values of all are one
    program of all processes.
    """

    def lower(self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None) -> Env:
        segment = self.plan.segments[at]
        if not segment.collective:
            return super().lower(at, env, key, watch)
        own = (
            None
            if key is None
            else jax.random.fold_in(trace.random_key(key), jax.lax.axis_index(AXIS))
        )
        return trace.lower(collective_jit.fused(segment.ops), env, own, watch)

    def compiled(self, at: int, function: Function) -> Function:
        return (
            collective_jit.CollectiveJit(function, self.device)
            if self.plan.segments[at].collective
            else super().compiled(at, function)
        )

    def inner(self, plan: Plan, number: int) -> Placement:
        return Processes(plan, self.device)


def of_device(plan: Plan, device: jax.Device) -> OneDevice:
    """A device of this process, of which there may be others."""
    return Processes(plan, device) if processes.count() > 1 else OneDevice(plan, device)


def placed(values: Env, homes: Mapping[str, jax.sharding.Sharding]) -> dict[str, jax.Array]:
    """Move values to their devices. NumPy arrays are copied, since users may change them."""
    aliases = {n: isinstance(v, jax.Array) for n, v in values.items()}
    return jax.device_put(values, dict(homes), may_alias=aliases)  # type: ignore[no-any-return]
