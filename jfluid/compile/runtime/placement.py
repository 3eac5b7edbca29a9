"""Placements of steps: one device, one device of each process, or (in `parallel`) replicas on several devices."""

import functools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np

from jfluid import errors, processes
from jfluid.compile.dynamic_shapes.segment import FeedShares
from jfluid.compile.dynamic_shapes.traced import CompiledCall
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.lower import NOTHING, Known
from jfluid.compile.lowering.plan import Plan
from jfluid.compile.numpy_steps.beside import device_of_interpreter
from jfluid.compile.rewrites import image_convolution
from jfluid.compile.rewrites.traced_value import Order, inverse, permuted
from jfluid.compile.runtime import collective_jit, executable_cache, filter_layouts, padding, slots
from jfluid.compile.runtime.device_feeds import PlacedBatch, batch_of, ready
from jfluid.compile.runtime.executables import Executables
from jfluid.compile.runtime.host import Host
from jfluid.compile.runtime.options import options
from jfluid.compile.runtime.slots import Batch
from jfluid.compile.runtime.startup_calls import StartupCall
from jfluid.host import aligned_memory, collector
from jfluid.ir.operator import OpRole
from jfluid.lod_tensor import LoDTensor, whole
from jfluid.ops.collective import AXIS
from jfluid.ops.ragged import Ragged, is_counted
from jfluid.processes import collective_watch

Env = dict[str, Any]
# A segment's pure function `(donated, kept, key) -> (gives, flags)`.
Function = Callable[[tuple[Any, ...], tuple[Any, ...], Any], Any]
# `(values by name, key, true sizes) -> the values with the segment's outputs`, of one replica.
Computed = Callable[[Env, Any, Any], Env]


class Padder(Protocol):
    """Interface of placements that run segments at padded sizes."""

    def recorded(
        self,
        at: int,
        values: Env,
        shapes: Mapping[str, tuple[int, ...]],
        key: Any,
        gives: Sequence[str],
    ) -> Any:
        """Return the jaxpr of segment `at`, as one replica runs it, with arguments sorted by name, then the key.

        Its results have the names of `recorded_names`.

        Args:
            shapes: shapes by name that replace the shapes of arguments.
        """

    def recorded_names(self, at: int, gives: Sequence[str]) -> list[str]:
        """Return the names of the results of `recorded`."""

    def structured(self, at: int, arrays: Sequence[Any]) -> Sequence[Any]:
        """Return the results of `recorded` from the arrays of its jaxpr: sparse rows are two arrays."""

    def lower_computed(self, at: int, env: Env, compute: Computed, key: Any, true: Any) -> None:
        """Add the results of `compute`, which stands for segment `at`, to the values by name.

        Args:
            true: the true sizes of the batch, stacked for replicas.
        """


class Placement(ABC):
    """Places of a plan's values, and the compilation of the plan's segments for these places.

    Attributes:
        hosts: most runs of a host operator in one step.
        on_gpus: True if the devices are GPUs.
        replicas: number of replicas that divide batches of slots; None for undivided batches.
        held: variables of the Scope with a different layout in the segments' inputs and outputs.
        pads: True if batches of dense arrays are padded when their shapes change (see `padder`), and steps of an
            undivided batch are interpreted until they are compiled. The last digits of results may then differ
            from run to run.
        exact_because: the reason for exact shapes, for a warning; empty for no warning.
        divides: True if an operator that has no rule for padded sizes may be a segment of its own.
        repeatable: True if a process that is started again computes the same bits: steps wait for their compilation,
            and only the batches of the step decide its padded sizes.
    """

    hosts = 1
    on_gpus = False
    replicas: int | None = None
    held: Mapping[str, Order] = MappingProxyType({})
    pads = False
    divides = False
    exact_because = ""
    repeatable = False

    def __init__(self, plan: Plan):
        self.plan = plan
        self._structures: dict[int, Any] = {}  # of the results of `recorded`, by segment

    @abstractmethod
    def home(self, name: str) -> jax.sharding.Sharding:
        """Return the sharding of a variable of the Scope."""

    @abstractmethod
    def place(self, values: Env) -> dict[str, jax.Array]:
        """Move values of the Scope to their devices."""

    @abstractmethod
    def enter(self, feeds: Any) -> Env:
        """Return checked feeds in the form that segments take."""

    def enter_again(self, feeds: Mapping[str, Any], batches: Sequence[Batch]) -> Env | None:
        """Return a feed of the same form as a checked feed, in the form that segments take.

        Returns None for a feed that must be prepared as at first.

        Args:
            batches: batches of slots, which `feeds` does not hold.
        """
        return None

    def takes(self, batch: PlacedBatch) -> bool:
        """Return True if segments take the values of a batch that a loader has placed on a device."""
        return False

    @abstractmethod
    def context(self) -> AbstractContextManager[Any]:
        """Return the context in which a step runs."""

    def lower(
        self,
        at: int,
        env: Env,
        key: Any,
        watch: list[trace.Watched] | None,
        known: Known = NOTHING,
        first: trace.First | None = None,
    ) -> Env:
        """Trace segment `at` of the plan over values by name, and add its outputs to the values.

        Args:
            key: uint32 [2].
            known: numbers that shapes follow from (see `trace.lower`).
            first: lower these operators only.
        """
        wrapped = trace.random_key(key)
        if first is None:
            return self._lower_segment(at, env, wrapped, watch, known)
        self._lower_first(first, at, env, wrapped, known)
        return env

    @abstractmethod
    def _lower_segment(self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None, known: Known) -> Env:
        """Trace all operators of segment `at`."""

    @abstractmethod
    def _lower_first(self, first: trace.First, at: int, env: Env, key: Any, known: Known) -> None:
        """Trace the operators of `first` in segment `at`, and add their result to the values."""

    def padder(self) -> Padder | None:
        """Return the placement as a `Padder`; None if batches keep exact shapes."""
        return None

    def recorded_names(self, at: int, gives: Sequence[str]) -> list[str]:
        """Return the names of the results of `recorded`: `gives`, then results that `lower_computed` alone reads."""
        return list(gives)

    def recorded(
        self,
        at: int,
        values: Env,
        shapes: Mapping[str, tuple[int, ...]],
        key: Any,
        gives: Sequence[str],
    ) -> Any:
        """See `Padder.recorded`."""

        def shape(name: str, value: Any) -> jax.ShapeDtypeStruct:
            own = shapes.get(name, np.shape(value))
            if name in self.held:
                own = permuted(own, inverse(self.held[name]))
            return jax.ShapeDtypeStruct(own, value.dtype)

        def run(env: Env, key: Any) -> list[Any]:
            found = self._run_recorded(at, dict(env), trace.random_key(key))
            alone = self._replicas_of(at) is None
            results = [trace.dense(n, found.get(n), or_rows=alone) for n in self.recorded_names(at, gives)]
            self._structures[at] = jax.tree.structure(results)
            return results

        given = {name: shape(name, value) for name, value in values.items()}
        with self.context(), collector.paused():
            return trace.jaxpr_of(run, given, key, replicas=self._replicas_of(at))

    def structured(self, at: int, arrays: Sequence[Any]) -> Sequence[Any]:
        """See `Padder.structured`."""
        found: list[Any] = jax.tree.unflatten(self._structures[at], arrays)
        return found

    def _run_recorded(self, at: int, env: Env, key: Any) -> Env:
        """Trace the operators of segment `at` for `recorded`; return the values with their outputs."""
        return trace.recorded(self.plan.segments[at].ops, env, key)

    def _replicas_of(self, at: int) -> int | None:
        """Return the number of replicas that run segment `at` together, or None without replicas."""
        return None

    def sequence_sizes(self) -> padding.SequenceBuckets | None:
        """Return the sizes to which feeds with a LoD are padded; None if the placement chooses no sizes."""
        return None

    def feed_shares(self) -> FeedShares | None:
        """Return the placement as the divider of feeds, or None for undivided batches."""
        return None

    @abstractmethod
    def compiled(self, at: int, function: Function) -> Function:
        """Return segment `at`, jitted. The first arguments are donated."""

    def executables(
        self, at: int, fresh: Callable[[], Function], entry: executable_cache.DiskEntry | None = None
    ) -> CompiledCall:
        """Return a function that calls segment `at` and compiles it at the first call.

        Args:
            fresh: returns the segment's function anew.
            entry: cache entry of its executables on disk.
        """
        return Executables(lambda: self.compiled(at, fresh()), entry)

    def entry(
        self, at: int, names: Sequence[Sequence[str]], beside: executable_cache.TraceResults
    ) -> executable_cache.DiskEntry | None:
        """Return the cache entry of segment `at`, or None if the segment is not cached.

        Args:
            names: names of the segment's inputs and outputs.
            beside: further contents of the file.
        """
        return None

    @abstractmethod
    def call(self, segment: Any, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        """Call a compiled segment."""

    def replan(self, plan: Plan) -> bool:
        """Take a plan with other segments of the same operators; return whether that is possible."""
        return False

    def unpacked(self, results: Any) -> Any:
        """Return the results of a segment from the results of the compiled function."""
        return results

    def known(self, at: int, name: str, value: Any, computed: bool) -> np.ndarray:
        """Return the value that shapes in segment `at` depend on, for tracing.

        Raises UnsupportedError if replicas have different values.

        Args:
            value: value of a feed or the Scope; if `computed`, of operators that ran before the segment.
        """
        return np.asarray(value)

    def everywhere(self, at: int, value: Any) -> np.ndarray:
        """Return the values, [parts, ...], that operators before segment `at` computed in all replicas.

        The replicas of all processes that run the segment together count.
        """
        return np.asarray(value)[None]

    @abstractmethod
    def inner(self, plan: Plan, number: int) -> "Placement":
        """Return the placement in which the host runs a block of the program for device `number`."""

    @abstractmethod
    def run_host(self, at: int, hosts: Sequence[Host], env: Env, key: Any, scope: Any) -> None:
        """Run host segment `at` on values by name, and add its outputs to the values."""

    def settled(self, name: str, value: Any) -> Any:
        """Return a traced value of the Scope, constrained to its sharding."""
        return value

    def parts(self, name: str, value: Any) -> list[Any]:
        """Return the parts of a fetch on each device of this process."""
        return [value]

    def merged(self, name: str, value: Any) -> np.ndarray | None:
        """Return a fetch with the rows of all parts in order, as the user's array; None if the parts must be joined."""
        return None


class OneDevice(Placement):
    """Placement on one device of this process.

    Sequences are padded to few sizes, unless an operator needs exact rows.
    """

    pads = divides = True
    _joins_slots = True
    _counts_sequences = True

    def __init__(self, plan: Plan, device: jax.Device):
        super().__init__(plan)
        self.device, self.on_gpus = device, device.platform != "cpu"
        self._home = jax.sharding.SingleDeviceSharding(device)
        counts = self._counts_sequences and len(plan.segments) == 1 and not plan.segments[0].host
        self._buckets = slots.SlotBuckets(counts=counts)

    def home(self, name: str) -> jax.sharding.Sharding:
        return self._home

    def place(self, values: Env) -> dict[str, jax.Array]:
        for name, value in values.items():
            if isinstance(value, jax.Array) and not value.is_fully_addressable:
                values[name] = np.asarray(whole(value))  # it is on devices of several processes
        return placed(values, dict.fromkeys(values, self._home))

    def enter(self, feeds: Mapping[str, Any]) -> Env:
        batch = batch_of(feeds)
        if batch is not None and self.takes(batch):
            return dict(batch.values)
        given = ready(feeds, self.device, self._buckets.exact or self.repeatable, self._buckets.counts)
        joins = self._joins_slots and not self._buckets.exact
        return self._buckets.join(given) if joins else self._buckets.pad(given)

    def takes(self, batch: PlacedBatch) -> bool:
        if self.repeatable:
            return False  # a loader has padded it, and reads ahead
        if not self._buckets.counts and slots.is_counted_batch(batch.values.values()):
            return False
        return self._joins_slots and not self._buckets.exact and batch.device == self.device

    def enter_again(self, feeds: Mapping[str, Any], batches: Sequence[Batch]) -> Env | None:
        given = {n: _unwrapped(v) for n, v in feeds.items()} if feeds else {}
        if self._buckets.exact or not self._joins_slots:
            return self.enter(given | {n: t for b in batches for n, t in zip(b.names, b.tensors)})
        if given:
            given = ready(given, self.device, self.repeatable, self._buckets.counts)
        return self._buckets.pad_with_slots(given, batches)

    def replan(self, plan: Plan) -> bool:
        self.plan, self.held = plan, {}
        return True

    def padder(self) -> Padder | None:
        return self if self.pads else None

    def sequence_sizes(self) -> padding.SequenceBuckets | None:
        return self._buckets

    def context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.default_device(self.device))
        return stack

    def _lower_segment(self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None, known: Known) -> Env:
        segment = self.plan.segments[at]
        return trace.lower(
            segment.ops, env, key, watch, known, on_gpus=self.on_gpus, held=self.held, wanted=segment.gives
        )

    def _lower_first(self, first: trace.First, at: int, env: Env, key: Any, known: Known) -> None:
        env.update((n, filter_layouts.given(env[n], o)) for n, o in self.held.items() if n in env)
        env.update(trace.lower_first(first, env, key, known))

    def lower_computed(self, at: int, env: Env, compute: Computed, key: Any, true: Any) -> None:
        segment = self.plan.segments[at]
        trace.laid_out(lambda values: compute(values, key, true), segment.ops, env, not self.on_gpus, self.held)

    def compiled(self, at: int, function: Function) -> Function:
        return jax.jit(function, donate_argnums=(0,), compiler_options=self._options())

    def entry(
        self, at: int, names: Sequence[Sequence[str]], beside: executable_cache.TraceResults
    ) -> executable_cache.DiskEntry | None:
        identity = (*map(list, names), sorted(self.held.items()), *self._identity())
        device, options = [self.device], self._options()
        return executable_cache.entry(self.plan, at, identity, device, options, beside)

    def _identity(self) -> tuple[Any, ...]:
        """Return the values that identify the segments, besides the plan and the device."""
        return ()

    def executables(
        self, at: int, fresh: Callable[[], Function], entry: executable_cache.DiskEntry | None = None
    ) -> CompiledCall:
        plan = self.plan
        initializes = plan.starts_anew and plan.updated and not plan.fetches and not plan.segments[at].reads
        if initializes and not self.on_gpus:
            return StartupCall(fresh, lambda function: self.compiled(at, function), entry, self.device)
        fixed = not self.pads or self.repeatable or self.feed_shares() is not None
        interprets = None if fixed else device_of_interpreter(self.device)
        # Segments exchange sequences with host operators, and the sizes of all of these have to agree.
        alone = len(plan.segments) == 1 and plan.block.idx == 0
        return Executables(lambda: self.compiled(at, fresh()), entry, interprets, alone)

    def _options(self) -> dict[str, str | int]:
        plan = self.plan
        once = plan.starts_anew
        numbers = _initialised(plan) if once else None
        return options(self.device, quickly=once, operators=len(plan.block.ops), numbers=numbers)

    def call(self, segment: Any, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        """Call the segment; when an operator does not support padded rows, without padding from now on."""
        if self._buckets.exact:
            return segment.call(donated, tuple([padding.exact(v) for v in kept]), key)
        try:
            return segment.call(donated, kept, key)
        except errors.JFluidError as padded:
            kept = slots.opened_arguments(segment.kept, kept)
            if any(map(is_counted, kept)):
                outs = self.call(segment, donated, tuple(map(padding.uncounted, kept)), key)
                self._buckets.refuse_counts(
                    "this program is compiled anew for each number of sequences, because of an operator that does "
                    f"not support a padded number: {str(padded).splitlines()[0]}"
                )
                return outs
            if isinstance(padded, errors.OperandError):
                raise
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


def _own_key(key: Any) -> Any:
    """Return the random key of this process in a program of all processes; None for a step that draws nothing."""
    return None if key is None else jax.random.fold_in(key, jax.lax.axis_index(AXIS))


class Processes(OneDevice):
    """Placement on a device of each process.

    Segments with operators that compute with the values of all processes are one program of all processes. On CPUs each
    process pads its own batch: processes exchange gradients, whose shapes do not follow from the batch.
    """

    exact_because = "processes on GPUs keep exact shapes: XLA tunes a program on all GPUs together"
    divides = False  # processes have the same segments
    _joins_slots = False  # the sizes of slots differ by process
    _counts_sequences = False

    def __init__(self, plan: Plan, device: jax.Device):
        super().__init__(plan, device)
        self.pads = not self.on_gpus

    def _lower_segment(self, at: int, env: Env, key: Any, watch: list[trace.Watched] | None, known: Known) -> Env:
        segment = self.plan.segments[at]
        if not segment.collective:
            return super()._lower_segment(at, env, key, watch, known)
        items = collective_jit.fused(segment.ops)
        return trace.lower(items, env, _own_key(key), watch, known, on_gpus=self.on_gpus, wanted=segment.gives)

    def _lower_first(self, first: trace.First, at: int, env: Env, key: Any, known: Known) -> None:
        if self.plan.segments[at].collective:
            key = _own_key(key)
        super()._lower_first(first, at, env, key, known)

    def _run_recorded(self, at: int, env: Env, key: Any) -> Env:
        segment = self.plan.segments[at]
        if not segment.collective:
            return super()._run_recorded(at, env, key)
        return trace.recorded(collective_jit.fused(segment.ops), env, _own_key(key))

    def _replicas_of(self, at: int) -> int | None:
        return processes.count() if self.plan.segments[at].collective else None

    def everywhere(self, at: int, value: Any) -> np.ndarray:
        if not self.plan.segments[at].collective:
            return super().everywhere(at, value)
        return processes.all_gather(np.asarray(value))

    def known(self, at: int, name: str, value: Any, computed: bool) -> np.ndarray:
        found = super().known(at, name, value, computed)
        if self.plan.segments[at].collective:
            everywhere = processes.all_gather(found)
            if any(not np.array_equal(other, found) for other in everywhere):
                raise errors.UnsupportedError(
                    f"{name}: shapes depend on its value, which differs by process "
                    f"({[other.tolist() for other in everywhere]}), but all processes run one "
                    "program: give all processes the same value"
                )
        return found

    def compiled(self, at: int, function: Function) -> Function:
        collective = self.plan.segments[at].collective
        return self._collective(at, function) if collective else super().compiled(at, function)

    def _collective(self, at: int, function: Function) -> collective_jit.CollectiveJit:
        """Return segment `at` as a program of all processes."""
        segment = self.plan.segments[at]
        trains = any(op.attrs.get("op_role", 0) & OpRole.Optimize for _, op, _ in segment.ops)
        kind = collective_watch.STEP if trains else collective_watch.RUN
        return collective_jit.CollectiveJit(function, self.device, self._mesh, kind)

    @functools.cached_property
    def _mesh(self) -> jax.sharding.Mesh:
        """Mesh of all processes, which meet once: a process compiles for more shapes than a different process."""
        return collective_jit.mesh_with(self.device)

    def executables(
        self, at: int, fresh: Callable[[], Function], entry: executable_cache.DiskEntry | None = None
    ) -> CompiledCall:
        if self.plan.segments[at].collective:
            return self._collective(at, fresh())  # CollectiveJit compiles ahead of time, too
        return super().executables(at, fresh, entry)

    def entry(
        self, at: int, names: Sequence[Sequence[str]], beside: executable_cache.TraceResults
    ) -> executable_cache.DiskEntry | None:
        collective = self.plan.segments[at].collective
        return None if collective else super().entry(at, names, beside)

    def inner(self, plan: Plan, number: int) -> Placement:
        return Processes(plan, self.device)


def of_device(plan: Plan, device: jax.Device) -> OneDevice:
    """Return the placement on a device of this process, alone or among several processes."""
    if processes.count() > 1:
        return Processes(plan, device)
    found = OneDevice(plan, device)
    found.held = filter_layouts.of(plan, device)
    if device.platform == "cpu" and plan.starts_anew:
        # a startup program: machine code for its filters is made while XLA compiles the program
        shapes = [plan.block.var_recursive(name).shape for name in plan.updated]
        image_convolution.expect(*([s for s in shapes if len(s) == rank] for rank in (4, 2)))
    return found


def _initialised(plan: Plan) -> int | None:
    """Return the number of elements that a startup program writes to the Scope.

    Returns None if the program may do more, or if its variables have no fixed shapes.
    """
    shapes = [plan.block.var_recursive(name).shape for name in plan.updated]
    if plan.fetches or len(plan.block.program.blocks) > 1 or any(-1 in s for s in shapes):
        return None
    return sum(map(math.prod, shapes))


def _unwrapped(value: Any) -> Any:
    """Return the array of a tensor without a lod."""
    return value.value if type(value) is LoDTensor and not value._lod else value


def placed(values: Env, homes: Mapping[str, jax.sharding.Sharding]) -> dict[str, jax.Array]:
    """Move values to their devices. NumPy arrays are copied, since users may change the arrays."""
    # JAX does not copy an array at an address divisible by 64, even with `may_alias=False`.
    own = {n: aligned_memory.copied(v) if isinstance(v, np.ndarray) else v for n, v in values.items()}
    return jax.device_put(own, dict(homes))  # type: ignore[no-any-return]
