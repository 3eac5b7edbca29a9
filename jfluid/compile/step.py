"""A compiled step: a plan whose XLA segments are jitted, bound to a device."""
import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors, flags
from jfluid.compile import across, buckets
from jfluid.compile.host import Host
from jfluid.compile.lower import Lowering
from jfluid.compile.options import options
from jfluid.compile.plan import Plan, Segment
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor, whole
from jfluid.ops.ragged import Ragged
from jfluid.scope import Scope


class CompiledSegment:
    """One XLA segment as a jitted function `(donated, kept, key) -> (gives, flags)`."""

    def __init__(self, segment: Segment, plan: Plan, device: jax.Device, check_finite: bool, name: str, donate: bool = True):
        owned = set(plan.state) & set(plan.updated) & set(segment.gives)
        # A checked step may be refused after it ran: its old state must survive.
        self.donated = [n for n in segment.reads if n in owned] if donate and not check_finite else []
        self.kept = [n for n in segment.reads if n not in set(self.donated)]
        # In the order of the donated: JAX pairs buffers with outputs of equal shape by order, and a value written to
        # another variable's buffer costs a copy.
        self.gives = self.donated + [n for n in segment.gives if n not in set(self.donated)]
        self.watched: list[tuple[Any, str]] = []
        self._items, self._check, self._updated = segment.ops, check_finite, set(plan.updated)

        def run(donated: tuple, kept: tuple, key: Any) -> tuple[tuple, tuple]:
            return self._trace(donated, kept, key)

        run.__name__ = run.__qualname__ = name  # XLA's name of the module: profiles tell programs apart by it
        if segment.across and across.needed():
            self._items, self.call = across.fused(segment.ops), across.Together(run, device)
        else:
            once = not plan.state and not plan.feeds  # a program that reads nothing
            self.call = jax.jit(run, donate_argnums=(0,), compiler_options=options(device, quickly=once))

    def _trace(self, donated: tuple, kept: tuple, key: Any) -> tuple[tuple, tuple]:
        env = dict(zip(self.donated, donated)) | {n: v for n, v in zip(self.kept, kept) if v is not None}
        entered = {id(v) for v in jax.tree.leaves(env)}
        watch: list | None = [] if self._check else None
        wrapped = None if key is None else jax.random.wrap_key_data(key, impl="threefry2x32")
        with _without_collector():
            Lowering(self._items, wrapped, watch).run(env)
        gives = []
        for name in self.gives:
            value = env[name] if name in env else None
            if value is None:
                raise errors.FetchError(f"{name} has no value after the step: no operator gave it one")
            if name in self._updated and not isinstance(value, (jax.Array, np.ndarray)):
                raise errors.UnsupportedError(f"persistable variable {name} would hold a {type(value).__name__}: "
                                              "only dense tensors stay in a scope")

            # Each name owns its buffer: one that is donated later must not be another's too.
            def own(leaf: Any) -> Any:
                leaf = jnp.copy(leaf) if id(leaf) in entered else jnp.asarray(leaf)
                entered.add(id(leaf))
                return leaf

            gives.append(jax.tree.map(own, value))
        self.watched = [(op, name) for op, name, _ in watch or ()]
        return tuple(gives), tuple(flag for _, _, flag in watch or ())


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """No garbage collection: tracing makes very many objects, nearly all of which live until its end."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Step:
    """Runs a plan against a Scope. Only this class moves values between a Scope and XLA.

    Args:
        donate: what the step overwrites is used up by it; otherwise others may go on reading the old values.
    """

    def __init__(self, plan: Plan, device: jax.Device, place: Any, check_finite: bool = False, name: str = "fluid",
                 donate: bool = True):
        self.plan, self.device, self.place = plan, device, place
        self.segments = [s if s.host else CompiledSegment(s, plan, device, check_finite, f"{name}_{i}", donate)
                         for i, s in enumerate(plan.segments)]
        self.starts_anew = not plan.state and not plan.feeds
        self._bound: weakref.WeakKeyDictionary[Scope, Binding] = weakref.WeakKeyDictionary()
        self._home = jax.sharding.SingleDeviceSharding(device)
        # Where values in the Scope say on which device to run, no other word is needed.
        self._follows_state = bool(plan.state)
        only = self.segments[0] if len(self.segments) == 1 else None
        whole = isinstance(only, CompiledSegment) and not check_finite and set(plan.fetches) <= set(only.gives)
        self._whole = only if whole else None
        self._buckets = buckets.Buckets()
        self._host = Host(lambda plan: Step(plan, device, place, check_finite, name, donate), place)

    def run(self, scope: Scope, feeds: Mapping[str, Any], key: np.ndarray | None) -> list[Any]:
        """Run the step: read state from `scope`, write updated variables back, return the fetches (device or NumPy)."""
        binding = self._bound.get(scope)
        if binding is None or binding.stale():
            binding = self._bound[scope] = Binding(self.plan, scope, lambda _: self._home, self._place)
        feeds = self._buckets.pad(feeds)
        if self._whole is not None and self._follows_state:
            return binding.run(self._call, self._whole, feeds, key)
        env = dict(feeds)
        binding.read(env)
        with jax.enable_x64(True), jax.default_device(self.device):
            self.run_segments(env, scope, key, binding)
        return [env[n] for n in self.plan.fetches]

    def _place(self, values: dict[str, Any]) -> dict[str, jax.Array]:
        for name, value in values.items():
            if isinstance(value, jax.Array) and not value.is_fully_addressable:
                values[name] = np.asarray(whole(value))  # it lies on devices of several processes
        return placed(values, dict.fromkeys(values, self._home))

    def run_segments(self, env: dict[str, Any], scope: Scope, key: Any, binding: "Binding | None" = None) -> None:
        """Run all segments on the values in `env`, which gets what they give."""
        for segment in self.segments:
            if isinstance(segment, CompiledSegment):
                self._run_xla(segment, env, key)
            else:
                self._host.run(segment, env, key, scope)
            if binding is not None:
                binding.write(env, segment.gives)

    def _run_xla(self, segment: CompiledSegment, env: dict[str, Any], key: Any) -> None:
        donated, kept = tuple([env[n] for n in segment.donated]), tuple([env.get(n) for n in segment.kept])
        gives, flags = self._call(segment, donated, kept, key)
        if flags:
            _refuse_infinite(segment, flags)
        env.update(zip(segment.gives, gives))

    def _call(self, segment: CompiledSegment, donated: tuple, kept: tuple, key: Any) -> tuple[tuple, tuple]:
        """Call the segment; where an operator does not bear padded rows, without padding from now on."""
        if self._buckets.exact:
            return segment.call(donated, tuple([buckets.exact(v) for v in kept]), key)
        try:
            return segment.call(donated, kept, key)
        except errors.JFluidError as padded:
            if not any(isinstance(v, Ragged) and not v.exact for v in kept):
                raise
            outs = segment.call(donated, tuple([buckets.exact(v) for v in kept]), key)
            self._buckets.exact = True
            warnings.warn(f"this program is compiled anew for each batch of other lengths, because of an operator that does "
                          f"not bear padded rows: {str(padded).splitlines()[0]}", RuntimeWarning, stacklevel=2)
            return outs


class Repeat:
    """A step that is run again as it was: the same program, scope and fetches, NumPy feeds of the same names and shapes.

    All that has to be found out for a step is known then. After a step of XLA the core's caches hold little of the host's
    code, so that with small steps each function called counts.
    """

    def __init__(self, program: Any, scope: Scope, fetch_list: Sequence[Any], feeds: Mapping[str, np.ndarray], step: Step):
        assert step._whole is not None  # `possible`
        self._program, self._version = program, program._version
        self._fetch_list, self._flag = list(fetch_list), flags.get("FLAGS_check_nan_inf")
        self._feeds = [(n, v.dtype, v.shape) for n, v in feeds.items()]
        self._segment, self._call = step._whole, step._call
        self._binding = weakref.ref(step._bound[scope])  # it holds the arrays of the scope, and must go with it

    @staticmethod
    def possible(step: Step, feeds: Mapping[str, Any], fetch_list: Any) -> bool:
        """Whether the step is one XLA segment on plain arrays, which draws no numbers, and has fetches in a flat list."""
        plain = type(fetch_list) is list and fetch_list and all(isinstance(f, (Variable, str)) for f in fetch_list)
        plain = plain and all(type(v) is np.ndarray for v in feeds.values())
        return bool(plain) and step._whole is not None and step._follows_state and not step.plan.rng

    def run(self, program: Any, feed: Any, fetch_list: Any, scope: Scope) -> list[Any] | None:
        """The fetches; None where something is not as it was."""
        if program is not self._program or program._version != self._version or type(feed) is not dict or \
                len(feed) != len(self._feeds) or type(fetch_list) is not list or len(fetch_list) != len(self._fetch_list):
            return None
        for fetch, before in zip(fetch_list, self._fetch_list):
            if fetch is not before:
                return None
        for name, dtype, shape in self._feeds:
            value = feed.get(name)
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                return None
        binding = self._binding()
        if binding is None or binding.scope() is not scope or binding.stale() or \
                flags.get("FLAGS_check_nan_inf") != self._flag:
            return None
        return binding.run(self._call, self._segment, feed, None)


class Binding:
    """The tensors of one Scope that a plan reads and writes, looked up once."""

    def __init__(self, plan: Plan, scope: Scope, home: Callable[[str], jax.sharding.Sharding],
                 place: Callable[[dict[str, Any]], dict[str, jax.Array]]):
        # A binding lives in a weak dictionary keyed by its Scope: it must not keep the Scope alive.
        self.scope = weakref.ref(scope)
        self.home, self.place = home, place  # where the value of a name lies, and how values get there
        self.epochs = [s.epoch for s in _chain(scope)]
        found = {n: scope.find_var(n) for n in plan.state}
        self.missing = [n for n, v in found.items() if v is None]
        self.plan = plan
        self.reads: list[tuple[str, LoDTensor]] = [(n, v.tensor) for n, v in found.items() if v is not None]
        self.seen: list[Any] = [None] * len(self.reads)
        self.writes: dict[str, LoDTensor] = {}
        self._wiring: tuple[list, list, list, list] | None = None

    def stale(self) -> bool:
        scope = self.scope()
        return bool(self.missing) or scope is None or self.epochs != [s.epoch for s in _chain(scope)]

    def run(self, call: Callable, segment: CompiledSegment, feeds: Mapping[str, Any], key: Any) -> list[Any]:
        """Run a plan that is one XLA segment. The same as `read`, call, `write`, with all names looked up before."""
        if self.missing:
            self.read({})
        donated, kept, targets, fetches = self._wiring or self._wire(segment)
        for i, (_, tensor) in enumerate(self.reads):
            if tensor._value is not self.seen[i] or tensor._value is None:
                self.read({})
                break
        seen = self.seen
        with jax.enable_x64(True):
            gives, _ = call(segment, tuple([seen[i] for i in donated]),
                            tuple([feeds.get(n) if i is None else seen[i] for n, i in kept]), key)
        for tensor, i, value in zip(*targets, gives):
            if tensor is not None:
                tensor._value = value
                if i is not None:
                    seen[i] = value
        return [gives[i] for i in fetches]

    def _wire(self, segment: CompiledSegment) -> tuple[list, list, list, list]:
        """Positions of what the segment takes, of what it gives, and of the fetches."""
        scope = self.scope()
        assert scope is not None  # the caller holds it
        at = {name: i for i, (name, _) in enumerate(self.reads)}
        updated = set(self.plan.updated)
        tensors = [(scope.find_var(n) or scope.var(n)).tensor if n in updated else None for n in segment.gives]
        self._wiring = ([at[n] for n in segment.donated], [(n, at.get(n)) for n in segment.kept],
                        [tensors, [at.get(n) for n in segment.gives]],
                        [segment.gives.index(n) for n in self.plan.fetches])
        return self._wiring

    def read(self, env: dict[str, Any]) -> None:
        absent = [n for n in self.missing if not n.endswith("@GRAD")]
        absent += [n for n, t in self.reads if t._value is None]
        if absent:
            _refuse_absent(self.plan, absent)
        new = [i for i, (_, tensor) in enumerate(self.reads) if tensor._value is not self.seen[i]]
        if new:
            self._admit(new)
        env.update((name, tensor._value) for name, tensor in self.reads)

    def _admit(self, new: list[int]) -> None:
        """Bring values that the last step did not leave here to their device or devices, all at once, and check them."""
        strange = [i for i in new if self._is_strange(*self.reads[i])]
        if strange:
            with jax.enable_x64(True):
                placed = self.place({self.reads[i][0]: self.reads[i][1]._value for i in strange})
            for i in strange:
                self.reads[i][1]._value = placed[self.reads[i][0]]
        for i in new:
            self.seen[i] = self.reads[i][1]._value

    def _is_strange(self, name: str, tensor: LoDTensor) -> bool:
        """Whether a value is not where it belongs. Raises ProgramError for one of another shape than the variable's."""
        var = self.plan.block.find_var_recursive(name)
        value = tensor._value
        if var is not None and var._shape is not None and var.persistable:
            want = var.shape
            if len(want) != value.ndim or any(w not in (-1, g) for w, g in zip(want, value.shape)):
                raise errors.ProgramError(f"variable {name}: the scope holds shape {list(value.shape)}, "
                                          f"the program expects {list(want)}")
        home = self.home(name)
        return not isinstance(value, jax.Array) or not value.committed or \
            not value.sharding.is_equivalent_to(home, value.ndim)

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
            tensor._value = env[name]
        for i, (_, tensor) in enumerate(self.reads):
            self.seen[i] = tensor._value


def placed(values: dict[str, Any], homes: dict[str, jax.sharding.Sharding]) -> dict[str, jax.Array]:
    """Values at their homes. What NumPy holds is copied: users may write to it."""
    aliases = {n: isinstance(v, jax.Array) for n, v in values.items()}
    return jax.device_put(values, homes, may_alias=aliases)  # type: ignore[no-any-return]


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
        raise errors.FeedError(f"the program reads {', '.join(data)}, which the feed does not hold; "
                               f"it holds: {', '.join(plan.feeds) or 'nothing'}")
    raise errors.UninitializedError(f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''} "
                                    f"{'has' if len(names) == 1 else 'have'} no value in the scope: run the startup program "
                                    "first (exe.run(fluid.default_startup_program())), or load the parameters")


def _refuse_infinite(segment: CompiledSegment, flags: tuple) -> None:
    for (op, name), finite in zip(segment.watched, jax.device_get(flags)):
        if not finite:
            raise errors.OpError(f"FLAGS_check_nan_inf: operator {op.type} gave a value that is not finite: {name}"
                                 + (f"\n  made at: {op.callsite}" if op.callsite else ""))
