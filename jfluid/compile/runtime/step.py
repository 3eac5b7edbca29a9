"""Compiled steps: a plan with its XLA segments jitted for a placement."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors, flags
from jfluid.compile.dynamic_shapes.exact_shapes import ExactShapes, OperatorWithoutRule, warn_of_part
from jfluid.compile.dynamic_shapes.history import StreamHistory
from jfluid.compile.dynamic_shapes.segment import Evaluate, StreamSegment
from jfluid.compile.dynamic_shapes.stream import ShapeStream
from jfluid.compile.dynamic_shapes.traced import CompiledCall
from jfluid.compile.lowering import scalars
from jfluid.compile.lowering.lower import Known
from jfluid.compile.lowering.plan import Plan, with_exact_operator, with_host_loop
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.compile.rewrites.traced_value import inverse
from jfluid.compile.runtime import memory, slots
from jfluid.compile.runtime.executable_cache import DiskEntry, JoinedTraceResults, TraceResults
from jfluid.compile.runtime.executables import Executables
from jfluid.compile.runtime.filter_layouts import turned
from jfluid.compile.runtime.host import Host
from jfluid.compile.runtime.placement import Function, Placement
from jfluid.compile.runtime.refused import refuses
from jfluid.compile.runtime.size_history import StepHistory
from jfluid.compile.runtime.specialize import Specialized
from jfluid.compile.runtime.step_state import StepState
from jfluid.ops.ragged import is_counted
from jfluid.ops.ragged_dispatch import padded_numbers
from jfluid.ops.static_values import Unknown
from jfluid.scope import Scope

_MOST_EXACT = 16  # operators of a plan, forward and backward, in segments of their own
_BYTES = 10 << 10  # bytes of Python objects for each operator, half of the bytes in the program


class _Noted:
    """Results of tracing a segment besides its executable (see `executable_cache.TraceResults`)."""

    def __init__(self, segment: "weakref.ref[CompiledSegment]"):
        self._segment = segment

    def noted(self) -> Any:
        """Return True if the segment is waited for."""
        segment = self._segment()
        return segment is not None and segment.is_large

    def learn(self, noted: Any) -> None:
        """Take the result that a file has."""
        segment = self._segment()
        if segment is not None:
            segment.is_large = segment.is_large or noted


class CompiledSegment(StreamSegment):
    """XLA segment as a jitted function `(donated, kept, key) -> (gives, flags)`."""

    def __init__(
        self,
        at: int,
        plan: Plan,
        placement: Placement,
        check_finite: bool,
        name: str,
        donate: bool = True,
    ):
        segment = plan.segments[at]
        owned = set(plan.state) & set(plan.updated) & set(segment.gives)
        # A checked step may be refused after it ran: its old state must survive.
        donated = [n for n in segment.reads if n in owned] if donate and not check_finite else []
        super().__init__(segment.ops, donated, [n for n in segment.reads if n not in set(donated)], name)
        # In the order of the donated ones: JAX pairs buffers with outputs of equal shape by order,
        # and a value in a different variable's buffer costs a copy.
        self.gives = self.donated + [n for n in segment.gives if n not in set(self.donated)]
        self.watched: list[tuple[Any, str]] = []
        self.is_large = False  # whether it is waited for (see `memory.LARGE`); known from tracing
        self.at, self._placement, self._check, self._updated = (
            at,
            placement,
            check_finite,
            set(plan.updated),
        )

        own = weakref.ref(self)  # it goes at once when its step does

        def function(known: Known) -> Function:
            def run(donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
                def lower(env: dict[str, Any], watch: list[Any] | None) -> Any:
                    return placement.lower(at, env, key, watch, known)

                segment = own()
                assert segment is not None  # it is called
                return segment._trace(donated, kept, key, lower)

            # XLA's name of the module: profiles tell programs apart by it
            run.__name__ = run.__qualname__ = name
            return run

        # Tracing finds the watched values.
        names = (self.donated, self.kept, self.gives)
        self._entry = None if check_finite else placement.entry(at, names, _Noted(own))
        specialized = Specialized(at, placement, function, names[:2], name, self._entry)
        self.exact = specialized
        self.call: Function = specialized
        varies = flags.get("FLAGS_dynamic_shapes") and not check_finite and not specialized.refuses
        self._padder = placement.padder()
        if segment.exact:
            return
        if varies and self._padder is not None:
            platform = "gpu" if placement.on_gpus else "cpu"
            divides = placement.divides and plan.block.idx == 0 and len(segment.ops) > 1
            shares = placement.feed_shares()
            self.call = ShapeStream(self, specialized, plan.state, platform, shares, divides=divides)
        elif varies and placement.exact_because:
            fed = [i for i, name in enumerate(self.kept) if name not in plan.state]
            self.call = ExactShapes(specialized, fed, placement.exact_because)

    @property
    def waits(self) -> bool:
        """See `StreamSegment.waits`."""
        plain = self.exact.plain
        return not (isinstance(plain, Executables) and plain.interprets)

    def is_ready(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> bool:
        """See `StreamSegment.is_ready`."""
        plain = self.exact.plain
        return not isinstance(plain, Executables) or plain.begin((donated, kept, key), at_once=False)

    def interpret(self, listing: Listing, values: Mapping[str, Any], key: Any) -> list[Any]:
        """See `StreamSegment.interpret`."""
        plain = self.exact.plain
        assert isinstance(plain, Executables)  # steps do not wait
        return plain.interpret(listing, (values, key))

    def jaxpr(self, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], key: Any) -> Any:
        """See `StreamSegment.jaxpr`."""
        assert self._padder is not None  # a stream asks
        return self._padder.recorded(self.at, dict(values), shapes, key, self.gives)

    def recorded_arguments(self, donated: tuple[Any, ...], kept: tuple[Any, ...]) -> dict[str, Any]:
        """See `StreamSegment.recorded_arguments`."""
        orders = {n: inverse(order) for n, order in self._placement.held.items()}
        named = self.by_name(donated, kept)
        return {n: np.asarray(v).transpose(orders[n]) if n in orders else v for n, v in named.items()}

    def structured(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """See `StreamSegment.structured`."""
        assert self._padder is not None  # a stream asks
        held, found = self._placement.held, self._padder.structured(self.at, arrays)
        return [turned(v, held[n]) if n in held else v for n, v in zip(self.gives, found, strict=True)]

    def entry_of(self, identity: Sequence[Any], beside: TraceResults | None = None) -> DiskEntry | None:
        """See `StreamSegment.entry_of`."""
        together = None if beside is None else JoinedTraceResults([_Noted(weakref.ref(self)), beside])
        return self._entry and self._entry.of(*identity, beside=together)

    def executables(self, run: Callable[..., Any], entry: DiskEntry | None) -> CompiledCall:
        """See `StreamSegment.executables`."""
        return self._placement.executables(self.at, lambda: run, entry)

    def lower_padded(
        self, evaluate: Evaluate, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any, true: Any
    ) -> Any:
        """See `StreamSegment.lower_padded`."""
        padder = self._padder
        assert padder is not None  # a stream asks
        gives = padder.recorded_names(self.at, self.gives)

        def compute(env: dict[str, Any], key: Any, true: Any) -> dict[str, Any]:
            env.update(zip(gives, padder.structured(self.at, evaluate(env, key, true)), strict=True))
            return env

        return self._trace(
            donated, kept, key, lambda env, watch: padder.lower_computed(self.at, env, compute, key, true)
        )

    def _trace(
        self,
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
        lower: Callable[[dict[str, Any], list[Any] | None], Any],
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        env = dict(zip(self.donated, donated)) | {
            n: v for n, v in zip(self.kept, slots.opened_arguments(self.kept, kept)) if v is not None
        }
        entered = {id(v) for v in jax.tree.leaves(env)}
        watch: list[Any] | None = [] if self._check else None
        if self._placement.on_gpus:
            scalars.read_together(env, self.donated)
        with padded_numbers(any(map(is_counted, env.values()))):
            lower(env, watch)
        self.is_large = self.is_large or memory.is_large(env.values())
        gives = []
        for name in self.gives:
            value = env[name] if name in env else None
            if value is None:
                raise errors.FetchError(f"{name} has no value after the step: no operator gave it one")
            if name in self._updated:
                if not isinstance(value, (jax.Array, np.ndarray)):
                    raise errors.UnsupportedError(
                        f"persistable variable {name} would hold a {type(value).__name__}: "
                        "only dense tensors stay in a scope"
                    )
                value = self._placement.settled(name, value)

            # Each name owns its buffer: a buffer that is donated later must belong to one name.
            def own(leaf: Any) -> Any:
                leaf = jnp.copy(leaf) if id(leaf) in entered else jnp.asarray(leaf)
                entered.add(id(leaf))
                return leaf

            gives.append(jax.tree.map(own, value))
        self.watched = [(op, name) for op, name, _ in watch or ()]
        return tuple(gives), tuple(flag for _, _, flag in watch or ())


class Step:
    """Compiled step: runs a plan against a Scope. Only this class moves values between a Scope and XLA.

    Args:
        placement: placement of this step alone.
        place: the Executor's place, for host operators.
        donate: donate the values that the step overwrites; otherwise the old values may still be read.

    Attributes:
        bytes: approximate size of the Python objects of the program and the step.
    """

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        place: Any,
        check_finite: bool = False,
        name: str = "fluid",
        donate: bool = True,
    ):
        self.plan, self.placement = plan, placement
        # Values updated before the last segment that may refuse must survive.
        self._last_refusing = _last_refusing(plan)
        self.bytes = _BYTES * sum(len(block.ops) for block in plan.block.program.blocks)
        self._check, self._name, self._donate = check_finite, name, donate
        self._recalled: dict[str, StreamHistory] = {}  # of segments that this process has not made
        self._divided: dict[str, StreamHistory] = {}  # of segments that are divided now
        self._warned: set[tuple[str, str]] = set()  # operators that keep exact shapes, with their lines
        whole = (
            len(plan.segments) == 1
            and not plan.segments[0].host
            and bool(plan.state or plan.feeds)
            and not check_finite
            and set(plan.fetches) <= set(plan.segments[0].gives)
        )
        if not whole:
            placement.held = {}
        self.segments = [s if s.host else self._compiled(at) for at, s in enumerate(plan.segments)]
        self._states: weakref.WeakKeyDictionary[Scope, StepState] = weakref.WeakKeyDictionary()
        only = self.segments[0] if whole else None
        self.whole = only if isinstance(only, CompiledSegment) else None

        def host(number: int) -> Host:
            def step(plan: Plan) -> Step:
                donates = donate and not any(refuses(s.ops) for s in plan.segments)
                inner = placement.inner(plan, number)
                return Step(plan, inner, place, check_finite, name, donates)

            return Host(step, place)

        self._hosts = [host(number) for number in range(placement.hosts)]

    def _compiled(self, at: int) -> CompiledSegment:
        name = f"{self._name}_{at}"
        donates = self._donate and at >= self._last_refusing
        return CompiledSegment(at, self.plan, self.placement, self._check, name, donates)

    def size_history(self) -> StepHistory:
        """Return what the padded sizes of further batches follow from."""
        sizes = self.placement.sequence_sizes()
        found = StepHistory([] if sizes is None else sizes.history(), self._recalled | self._divided)
        found.segments |= {name: stream.history() for name, stream in self._streams()}
        return found

    def recall(self, history: StepHistory) -> None:
        """Pad batches as after the batches of an earlier process. Raises FeedError for other feeds."""
        self._recalled = dict(history.segments)
        if (sizes := self.placement.sequence_sizes()) is not None:
            sizes.recall(history.sequences)
        self._recall_streams()

    def _recall_streams(self) -> None:
        """Give streams their histories of an earlier process, in which segments may have been divided."""
        for name, stream in self._streams():
            if (history := self._recalled.pop(name, None)) is not None:
                stream.recall(history)
                if (found := stream.operator_without_rule()) is not None:
                    self._divide(int(name.split()[0]), found)
                    return

    def _streams(self) -> Iterator[tuple[str, ShapeStream]]:
        """Yield the stream of each segment; names tell the segments before and after a change of the plan apart."""
        for at in range(len(self.segments)):
            if (stream := self._stream(at)) is not None:
                yield f"{at} of {len(self.segments)}", stream

    def _stream(self, at: int) -> ShapeStream | None:
        segment = self.segments[at]
        call = segment.call if isinstance(segment, CompiledSegment) else None
        return call if isinstance(call, ShapeStream) else None

    def run(self, scope: Scope, feeds: Any, key: np.ndarray | None, entered: bool = False) -> list[Any]:
        """Run the step: read state from `scope`, write updated variables back, return the fetches (device or NumPy).

        Args:
            entered: the feeds are results of `placement.enter`.
        """
        state = self._states.get(scope)
        if state is None or state.stale():
            state = self._states[scope] = StepState(self.plan, scope, self.placement)
        values = feeds if entered else self.placement.enter(feeds)
        if self.whole is not None:
            try:
                return state.run(self.placement.call, self.whole, values, key)
            except Unknown as need:
                self._use_host(0, need)
            except OperatorWithoutRule as found:
                self._divide(0, found)
            return self.run(scope, feeds, key, entered)
        env = slots.opened(values)
        state.read(env)
        before = state.values() if self._last_refusing else ()
        try:
            with self.placement.context():
                self.run_segments(env, scope, key, state)
        except OperatorWithoutRule as found:  # of the first segment: nothing has run
            self._divide(0, found)
            return self.run(scope, feeds, key, entered)
        except errors.OperandError:
            for tensor, value in before:
                tensor.value = value
            raise
        return [env[n] for n in self.plan.fetches]

    def run_segments(self, env: dict[str, Any], scope: Scope, key: Any, state: StepState | None = None) -> None:
        """Run all segments on the values in `env`, and add their outputs to it."""
        at = 0
        while at < len(self.segments):
            segment = self.segments[at]
            if isinstance(segment, CompiledSegment):
                donated = tuple([env[n] for n in segment.donated])
                kept = tuple([env.get(n) for n in segment.kept])
                try:
                    gives, flags = self.placement.call(segment, donated, kept, key)
                    if segment.is_large:
                        jax.block_until_ready(gives)
                except Unknown as need:
                    self._use_host(at, need)
                    continue
                except OperatorWithoutRule as found:
                    if at == 0:
                        raise
                    self._divide(at, found)
                    continue
                if flags:
                    refuse_infinite(segment, flags)
                env.update(zip(segment.gives, gives))
            else:
                self.placement.run_host(at, self._hosts, env, key, scope)
            if state is not None:
                state.write(env, segment.gives)
            at += 1

    def _use_host(self, at: int, need: Unknown) -> None:
        """Move a loop or condition of segment `at` to the host, if shapes in it follow from values that change there.

        The values computed before the segment stay. Raises `need` if the host cannot run it.
        """
        if need.name is not None:
            raise need
        changed = with_host_loop(self.plan, at, need.path[0])
        if changed is None or not self._replan(at, changed):
            raise need
        self._recall_streams()

    def _divide(self, at: int, found: OperatorWithoutRule) -> None:
        """Compile an operator of segment `at` for each shape, and pad the operators before and after it.

        The values computed before the segment stay. A program with many such operators is not divided further.
        """
        stream = self._stream(at)
        assert stream is not None  # it has raised `found`
        history, name = stream.history(), f"{at} of {len(self.segments)}"
        number = sum(len(s.ops) for s in self.plan.segments if s.exact)
        if number < _MOST_EXACT and self._replan(at, with_exact_operator(self.plan, at, found.position)):
            self._divided[name] = history
            op = self.plan.block.ops[found.position]
            exact = op.type.removesuffix("_grad"), op.callsite
            if exact not in self._warned:  # of an operator and its gradient once
                warn_of_part(found.reason)
            self._warned.add(exact)
        else:
            stream.divides = False
        self._recall_streams()

    def _replan(self, at: int, changed: Plan) -> bool:
        """Take a plan with other segments from segment `at` on; return whether that is possible."""
        if not self.placement.replan(changed):
            return False
        self.plan, self.whole = changed, None
        self._last_refusing = _last_refusing(changed)
        self.segments[at:] = [s if s.host else self._compiled(i) for i, s in enumerate(changed.segments[at:], start=at)]
        self._states.clear()
        return True


def _last_refusing(plan: Plan) -> int:
    """Return the number of the last segment with operators that may refuse values, or 0."""
    return max((at for at, s in enumerate(plan.segments) if refuses(s.ops)), default=0)


def refuse_infinite(segment: CompiledSegment, flags: tuple[Any, ...]) -> None:
    for (op, name), finite in zip(segment.watched, jax.device_get(flags)):
        if not finite:
            raise errors.OpError(
                f"FLAGS_check_nan_inf: operator {op.type} gave a value that is not finite: {name}"
                + (f"\n  made at: {op.callsite}" if op.callsite else "")
            )
