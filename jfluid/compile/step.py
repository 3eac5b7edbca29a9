"""A compiled step: a plan whose XLA segments are jitted for where it runs."""

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile.host import Host
from jfluid.compile.placement import Placement
from jfluid.compile.plan import Plan
from jfluid.compile.step_state import StepState
from jfluid.scope import Scope


class CompiledSegment:
    """One XLA segment as a jitted function `(donated, kept, key) -> (gives, flags)`."""

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
        self.donated = (
            [n for n in segment.reads if n in owned] if donate and not check_finite else []
        )
        self.kept = [n for n in segment.reads if n not in set(self.donated)]
        # In the order of the donated ones: JAX pairs buffers with outputs of equal shape by order,
        # and a value in another variable's buffer costs a copy.
        self.gives = self.donated + [n for n in segment.gives if n not in set(self.donated)]
        self.watched: list[tuple[Any, str]] = []
        self.at, self._placement, self._check, self._updated = (
            at,
            placement,
            check_finite,
            set(plan.updated),
        )

        def run(
            donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any
        ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            return self._trace(donated, kept, key)

        # XLA's name of the module: profiles tell programs apart by it
        run.__name__ = run.__qualname__ = name
        self.call = placement.compiled(at, run)

    def _trace(
        self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        env = dict(zip(self.donated, donated)) | {
            n: v for n, v in zip(self.kept, kept) if v is not None
        }
        entered = {id(v) for v in jax.tree.leaves(env)}
        watch: list[Any] | None = [] if self._check else None
        self._placement.lower(self.at, env, key, watch)
        gives = []
        for name in self.gives:
            value = env[name] if name in env else None
            if value is None:
                raise errors.FetchError(
                    f"{name} has no value after the step: no operator gave it one"
                )
            if name in self._updated:
                if not isinstance(value, (jax.Array, np.ndarray)):
                    raise errors.UnsupportedError(
                        f"persistable variable {name} would hold a {type(value).__name__}: "
                        "only dense tensors stay in a scope"
                    )
                value = self._placement.settled(name, value)

            # Each name owns its buffer: one that is donated later must not be another's too.
            def own(leaf: Any) -> Any:
                leaf = jnp.copy(leaf) if id(leaf) in entered else jnp.asarray(leaf)
                entered.add(id(leaf))
                return leaf

            gives.append(jax.tree.map(own, value))
        self.watched = [(op, name) for op, name, _ in watch or ()]
        return tuple(gives), tuple(flag for _, _, flag in watch or ())


class Step:
    """Runs a plan against a Scope. Only this class moves values between a Scope and XLA.

    Args:
        placement: where it runs; of this step only.
        place: the Executor's, for host operators.
        donate: donate the values that the step overwrites; otherwise others may keep reading the
            old ones.
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
        self.segments = [
            s
            if s.host
            else CompiledSegment(at, plan, placement, check_finite, f"{name}_{at}", donate)
            for at, s in enumerate(plan.segments)
        ]
        self.starts_anew = not plan.state and not plan.feeds
        self._states: weakref.WeakKeyDictionary[Scope, StepState] = weakref.WeakKeyDictionary()
        # If values in the Scope determine the device, nothing else has to.
        only = self.segments[0] if len(self.segments) == 1 and plan.state else None
        whole = (
            isinstance(only, CompiledSegment)
            and not check_finite
            and set(plan.fetches) <= set(only.gives)
        )
        self.whole = only if whole else None

        def host(number: int) -> Host:
            return Host(
                lambda plan: Step(
                    plan, placement.inner(plan, number), place, check_finite, name, donate
                ),
                place,
            )

        self._hosts = [host(number) for number in range(placement.hosts)]

    def run(self, scope: Scope, feeds: Any, key: np.ndarray | None) -> list[Any]:
        """Run the step: read state from `scope`, write updated variables back, return the fetches
        (device or NumPy).
        """
        state = self._states.get(scope)
        if state is None or state.stale():
            state = self._states[scope] = StepState(self.plan, scope, self.placement)
        entered = self.placement.enter(feeds)
        if self.whole is not None:
            return state.run(self.placement.call, self.whole, entered, key)
        env = dict(entered)
        state.read(env)
        with self.placement.context():
            self.run_segments(env, scope, key, state)
        return [env[n] for n in self.plan.fetches]

    def run_segments(
        self, env: dict[str, Any], scope: Scope, key: Any, state: StepState | None = None
    ) -> None:
        """Run all segments on the values in `env`, and add their outputs to it."""
        for at, segment in enumerate(self.segments):
            if isinstance(segment, CompiledSegment):
                self._run_xla(segment, env, key)
            else:
                self.placement.run_host(at, self._hosts, env, key, scope)
            if state is not None:
                state.write(env, segment.gives)

    def _run_xla(self, segment: CompiledSegment, env: dict[str, Any], key: Any) -> None:
        donated, kept = (
            tuple([env[n] for n in segment.donated]),
            tuple([env.get(n) for n in segment.kept]),
        )
        gives, flags = self.placement.call(segment, donated, kept, key)
        if flags:
            _refuse_infinite(segment, flags)
        env.update(zip(segment.gives, gives))


def _refuse_infinite(segment: CompiledSegment, flags: tuple[Any, ...]) -> None:
    for (op, name), finite in zip(segment.watched, jax.device_get(flags)):
        if not finite:
            raise errors.OpError(
                f"FLAGS_check_nan_inf: operator {op.type} gave a value that is not finite: {name}"
                + (f"\n  made at: {op.callsite}" if op.callsite else "")
            )
