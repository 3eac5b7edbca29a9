"""A step's state: the tensors of a Scope that it reads and writes."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import jax

from jfluid import errors
from jfluid.compile.lowering.plan import Plan
from jfluid.compile.runtime import slots
from jfluid.compile.runtime.filter_layouts import HeldTensors
from jfluid.compile.runtime.placement import Placement
from jfluid.ir import schema
from jfluid.lod_tensor import LoDTensor
from jfluid.scope import Scope

_VALUE = attrgetter("value")
_ABSENT = object()  # not the value of any tensor


class StepState:
    """Tensors of one Scope that a plan reads and writes, looked up once.

    Args:
        placement: places of the values.
    """

    def __init__(self, plan: Plan, scope: Scope, placement: Placement):
        # It lives in a weak dictionary keyed by its Scope: it must not keep the Scope alive.
        self.scope = weakref.ref(scope)
        self._placement = placement
        self.epochs = [s.epoch for s in _chain(scope)]
        found = {n: scope.find_var(n) for n in plan.state}
        self.missing = [n for n, v in found.items() if v is None]
        self.plan = plan
        tensors = {n: v.tensor for n, v in found.items() if v is not None}
        self._held = HeldTensors(
            {n: t for n, t in tensors.items() if n in placement.held},
            placement.held,
            placement.home,
        )
        self.reads: list[tuple[str, LoDTensor]] = [(n, t) for n, t in tensors.items() if n not in placement.held]
        self._tensors = [tensor for _, tensor in self.reads]
        # values of the tensors after the last step, then the values of `_held`
        self.seen: list[Any] = [_ABSENT] * len(tensors)
        self.writes: dict[str, LoDTensor] = {}
        self._wiring: tuple[list[Any], list[Any], list[Any], list[Any]] | None = None
        self._unread: list[str] = []  # feeds that the segment does not read; of `_wiring`

    def stale(self) -> bool:
        scope = self.scope()
        return bool(self.missing) or scope is None or self.epochs != [s.epoch for s in _chain(scope)]

    def run(self, call: Callable[..., Any], segment: Any, feeds: Mapping[str, Any], key: Any) -> list[Any]:
        """Run a plan that is one XLA segment: `read`, call and `write`, with all names looked up beforehand."""
        if self.missing:
            self.read({})
        held, seen = self._held, self.seen
        # This runs before every step, so all tensors are read in one call.
        if not all(map(is_, map(_VALUE, self._tensors), seen)):
            self.read({})
        if held.names:
            if not held.are_held():
                self._hold()
            seen[len(self._tensors) :] = [holder.value for holder in held.holders]
        donated, kept, targets, fetches = self._wiring or self._wire(segment)
        if self._unread:
            feeds = slots.named_by_reads(feeds, self._unread, segment.kept)
        # If values in the Scope determine the device, nothing else has to.
        with jax.enable_x64(True) if seen else self._placement.context():
            gives, _ = call(
                segment,
                tuple([seen[i] for i in donated]),
                tuple([feeds.get(n) if i is None else seen[i] for n, i in kept]),
                key,
            )
        if segment.is_large:
            jax.block_until_ready(gives)
        for tensor, i, value in zip(*targets, gives):
            if tensor is not None:
                tensor.value = value
                if i is not None:
                    seen[i] = value
        return [gives[i] for i in fetches]

    def _wire(self, segment: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Find the positions of the segment's inputs and outputs, and of the fetches."""
        scope = self.scope()
        assert scope is not None  # the caller holds it
        names = [*(name for name, _ in self.reads), *self._held.names]
        at = {name: i for i, name in enumerate(names)}
        updated = set(self.plan.updated)
        holders = dict(zip(self._held.names, self._held.holders))
        tensors = [
            holders.get(n) or (scope.find_var(n) or scope.var(n)).tensor if n in updated else None
            for n in segment.gives
        ]
        read = set(segment.kept)
        self._unread = [n for n in self.plan.feeds if n not in read]
        self._wiring = (
            [at[n] for n in segment.donated],
            [(n, at.get(n)) for n in segment.kept],
            [tensors, [at.get(n) for n in segment.gives]],
            [segment.gives.index(n) for n in self.plan.fetches],
        )
        return self._wiring

    def read(self, env: dict[str, Any]) -> None:
        absent = [n for n in self.missing if not n.endswith("@GRAD")]
        absent += [n for n, t in self.reads if t.value is None]
        if absent:
            _refuse_absent(self.plan, absent)
        new = [i for i, (_, tensor) in enumerate(self.reads) if tensor.value is not self.seen[i]]
        if new:
            self._admit(new)
        env.update((name, tensor.value) for name, tensor in self.reads)

    def _hold(self) -> None:
        """Make all values of `_held` pending in their layouts, checked and on their devices."""
        found = self._held.open()
        absent = [n for n, t in found if t.value is None]
        if absent:
            _refuse_absent(self.plan, absent)
        self._place([(n, t) for n, t in found if self._is_strange(n, t)])
        self._held.hold()
        self._wiring = None  # it holds the earlier holders

    def _place(self, strange: Sequence[tuple[str, LoDTensor]]) -> None:
        """Move values to their devices, all at once."""
        with jax.enable_x64(True):
            placed = self._placement.place({name: tensor.value for name, tensor in strange})
        for name, tensor in strange:
            tensor.value = placed[name]

    def _admit(self, new: list[int]) -> None:
        """Check the values that the last step did not write, and move the values to their devices in one call."""
        strange = [self.reads[i] for i in new if self._is_strange(*self.reads[i])]
        if strange:
            self._place(strange)
        for i in new:
            self.seen[i] = self.reads[i][1].value

    def _is_strange(self, name: str, tensor: LoDTensor) -> bool:
        """Return True if a value is on the wrong device.

        Raises ProgramError for a value of a different shape than the variable's.
        """
        var = self.plan.block.find_var_recursive(name)
        value = tensor.value
        if var is not None and var._shape is not None and var.persistable:
            want = var.shape
            fits = len(want) == value.ndim and all(w in (-1, g) for w, g in zip(want, value.shape))
            if not fits and not schema.current().is_declared_wrong(name, self.plan.block.ops):
                raise errors.ProgramError(
                    f"variable {name}: the scope holds shape {list(value.shape)}, the program expects {list(want)}"
                )
        home = self._placement.home(name)
        return (
            not isinstance(value, jax.Array)
            or not value.committed
            or not value.sharding.is_equivalent_to(home, value.ndim)
        )

    def values(self) -> list[tuple[LoDTensor, Any]]:
        """Return the tensors that the plan writes and their values, without absent values."""
        scope = self.scope()
        assert scope is not None  # the caller holds it
        found = [scope.find_var(name) for name in self.plan.updated]
        tensors = [v.tensor for v in found if v is not None]
        return [(t, t.value) for t in tensors if t.value is not None]

    def write(self, env: dict[str, Any], names: Sequence[str]) -> None:
        scope = self.scope()
        assert scope is not None  # the caller holds it
        for name in names:
            tensor = self.writes.get(name)
            if tensor is None:
                if name not in self.plan.updated:
                    continue
                found = scope.find_var(name) or scope.var(name)
                tensor = self.writes[name] = found.tensor
            tensor.value = env[name]
        self.seen[:] = [_ABSENT if value is None else value for value in map(_VALUE, self._tensors)]


def _chain(scope: Scope) -> list[Scope]:
    chain = []
    node: Scope | None = scope
    while node is not None:
        chain.append(node)
        node = node.parent
    return chain


def _refuse_absent(plan: Plan, names: list[str]) -> None:
    data = [n for n in names if (v := plan.block.find_var_recursive(n)) is not None and v.is_data]
    if data:
        raise errors.FeedError(
            f"the program reads {', '.join(data)}, which the feed does not hold; "
            f"it holds: {', '.join(plan.feeds) or 'nothing'}"
        )
    raise errors.UninitializedError(
        f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''} "
        f"{'has' if len(names) == 1 else 'have'} no value in the scope: run the startup program "
        "first (exe.run(fluid.default_startup_program())), or load the parameters"
    )
