"""Lowering: operators to a traced function, gradients through the closures of their forward operators."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile.lowering import control, scalars, table_gradients, update_dependencies
from jfluid.compile.lowering.expansion import Expansion
from jfluid.compile.lowering.plan import live_ops, op_uid, twin_uid
from jfluid.compile.lowering.update_dependencies import Awaited
from jfluid.compile.runtime import memory
from jfluid.ir.block import Block, reads_of
from jfluid.ir.operator import Operator
from jfluid.ir.types import VarType
from jfluid.ir.variable import EMPTY_NAME
from jfluid.ops import (
    batched_random,
    embedding,
    gradients,
    ragged_dispatch,
    refusals,
    static_values,
)
from jfluid.ops.definition import OpDef
from jfluid.ops.ragged import Ragged
from jfluid.ops.random import key_of
from jfluid.ops.repeated import Repeated
from jfluid.ops.tensor_array import TensorArray

Item = tuple[int, Operator, OpDef]
# Positions of the operators around an operator, from the outermost on, then the operator's position.
Path = tuple[int, ...]
Known = Mapping[Path, Mapping[str, Any]]
NOTHING: Known = MappingProxyType({})
GRAD = gradients.GRAD
# Before the name of a variable: the length of its longest sequence, which may have to be known.
LONGEST = "the longest sequence of "


class Lowering:
    """Lowering of operators over an environment of values by name.

    Args:
        items: the operators, in order.
        key: the step's random key; None when no operator draws.
        watch: collects (operator, slot, all finite) of every floating output, for
            FLAGS_check_nan_inf.
        known: known inputs and loop bounds, by path of an operator.
    """

    def __init__(
        self,
        items: Iterable[Item],
        key: Any = None,
        watch: list[Any] | None = None,
        known: Known = NOTHING,
    ):
        self.items = list(items)
        self.known = known
        self.key = key
        self.watch = watch
        self.closures: dict[int, Any] = {}
        # position of a gradient operator -> position of its forward operator
        self.pairs = pairs_of(self.items)
        self.backward = {f: g for g, f in self.pairs.items()}
        self.derived: set[str] = set()  # names of gradients that gradient operators wrote
        # by place in `items`: the random numbers of operators, or keys of their own
        self.drawn: dict[int, Any] = {}
        self.most_drawn = batched_random.MOST  # numbers that are drawn together
        self.inner = False  # True for an inner block
        self.reversible = False  # True while gradients are taken through the operators
        self.path: Path = ()  # path of the operator that has this block
        self.here: Path = ()  # of the current operator
        self.loops: Mapping[str, Any] = {}  # known bounds of the loops in the current operator
        self.counting = control.NOT_COUNTING
        # by the identity of an operator: its first row in the table of refusals, and its rules
        self.refusals: Mapping[int, tuple[int, list[refusals.RefusalRule]]] = {}
        self.expansion = Expansion()
        self.until: tuple[Path, str] | None = None  # raise Reached there, with a variable's value
        self.awaited: Mapping[int, Awaited] = {}  # values that updates wait for
        # places of gradients of tables that are rows (`table_gradients`)
        self.of_rows: Set[int] = frozenset()
        # name scope of an operator in the trace
        self.scope: Callable[[int, Operator], str] = lambda position, op: op.type
        self.shared_rates: Set[str] = set()  # learning rates that are parts of arrays (`scalars`)
        self._parts: dict[str, tuple[Any, Any]] = {}  # their values, and as parts
        self._repeated = Repeated((definition, op.attrs) for _, op, definition in self.items)

    def run(self, env: dict[str, Any]) -> dict[str, Any]:
        """Run all operators; `env` maps names to values, outputs included."""
        self._draw()
        for at, (position, op, definition) in enumerate(self.items):
            self.here = (*self.path, position)
            self.expansion.count(op)
            if self.until is not None and self.until[0] == self.here:
                raise Reached(needed(self.until[1], env))
            if self.here in self.known:
                known = self.known[self.here]
                self.loops = {**self.loops, **known}
                self._know(known, env)
            try:
                with jax.named_scope(self.scope(position, op)):
                    if id(op) in self.refusals:
                        self._refuse(op, definition, env)
                    given = self._for_update(at, op, env)
                    outs = self._apply(at, op, definition, given)
                memory.check("an output", outs)
            except Reached:
                raise
            except static_values.Unknown as e:
                raise _traced_back(self.here, op, env, e) from e
            except Exception as e:
                raise _located(position, op, env, e) from e
            if outs is not None:
                self._store(op, definition, outs, env)
        return env

    def _refuse(self, op: Operator, definition: OpDef, env: dict[str, Any]) -> None:
        """Add the values that an operator's rules refuse to the table of refusals. The first refusal counts."""
        first, rules = self.refusals[id(op)]
        inputs = {s.name: _gather(op, s, env) for s in definition.ins}
        attrs = {n: op.attrs.get(n, a.default) for n, a in definition.attrs.items()}
        rows = self._refused(op, rules, inputs, attrs)
        table, places = env[refusals.TABLE], slice(first, first + len(rules))
        rows = jnp.where(table[places, :1] != 0, table[places], rows)
        env[refusals.TABLE] = table.at[places].set(rows)

    def _refused(self, op: Operator, rules: list[refusals.RefusalRule], inputs: dict[str, Any], attrs: Any) -> Any:
        return jnp.stack([rule.row(inputs, attrs) for rule in rules])

    def _for_update(self, at: int, op: Operator, env: dict[str, Any]) -> dict[str, Any]:
        """Return the environment for an operator. An update waits for what is computed from its parameter."""
        rates = op.inputs.get(update_dependencies.RATE, ())
        if at not in self.awaited and self.shared_rates.isdisjoint(rates):
            return env
        name = op.input(update_dependencies.RATE)[0]
        rate = env[name]
        if name in self.shared_rates:
            if self._parts.get(name, (None,))[0] is not rate:
                self._parts[name] = rate, scalars.part(rate)
            rate = self._parts[name][1]
        values = self.awaited.get(at, Awaited()).values(env[op.input("Param")[0]], env)
        return env | {name: update_dependencies.after(rate, values)}

    def _draw(self) -> None:
        """Draw the numbers of all operators that only draw, many at once."""
        if not batched_random.possible(self.key):
            return
        requests = dict[int, batched_random.Draw]()
        for at, (_, op, definition) in enumerate(self.items):
            if definition.draws and not op.input_arg_names:
                attrs = {n: op.attrs.get(n, a.default) for n, a in definition.attrs.items()}
                found = batched_random.request(definition.draws, attrs)
                if found is not None and found.size <= self.most_drawn:
                    requests[at] = found
        for places in batched_random.batches(requests, self.most_drawn):
            ops = [self.items[at][1] for at in places]
            keys = batched_random.folded(self.key, np.array([*map(op_uid, ops)], np.uint32))
            seeds = [op.attrs.get("seed", 0) for op in ops]
            if any(seeds):
                own = [key_of(self.key, seed) for seed in seeds]
                rows = [jax.random.key_data(o) if s else k for s, o, k in zip(seeds, own, keys)]
                keys = jnp.stack(rows)
            drawn = batched_random.drawn([requests[at] for at in places], keys)
            self.drawn.update(zip(places, drawn, strict=True))

    def _apply(self, at: int, op: Operator, definition: OpDef, env: dict[str, Any]) -> tuple[Any, ...] | None:
        if at in self.pairs and at not in self.backward:
            return self._pull(at, op, definition, env)
        if definition.fn is None:
            self._structure(at, op, definition, env)
            return None
        inputs = [_gather(op, s, env) for s in definition.ins] + [_carried(op, c, env) for c in definition.carries]
        if at in self.of_rows and table_gradients.pays(*inputs):
            table, ids, grad = inputs
            padding = op.attrs.get("padding_idx", -1)
            return (embedding.gradient_rows(table, ids, grad, padding).merged(),)
        # A gradient operator that is itself differentiated is recomputed as a function of its
        # inputs.
        kwargs = {a: op.attrs[a] for a in definition.attrs if a in op.attrs}
        if definition.rng:
            uid = op_uid(op) if definition.forward is None else twin_uid(op, definition.forward)
            kwargs["key"] = self.drawn.pop(at) if at in self.drawn else self._key(uid)
        if definition.wants_shared:
            kwargs["shared"] = definition.is_shared(op)
        if at in self.backward:
            return self._keep(at, definition, inputs, kwargs)
        outs = self._fold(definition, inputs, kwargs) if definition.fold else None
        if outs is not None:
            return outs
        return self._repeated.call(self._function(at, definition, kwargs), definition, inputs, kwargs)

    def _key(self, uid: int) -> Any:
        """Return the random key of an operator."""
        return jax.random.fold_in(self.key, np.uint32(uid))

    def _know(self, known: Mapping[str, Any], env: dict[str, Any]) -> None:
        """Put the known numbers of the current operator's inputs into `env`."""
        env.update(
            (n, with_known(env[n], v, name != n))
            for name, v in known.items()
            if (n := name.removeprefix(LONGEST)) in env
        )

    def _function(self, at: int, definition: OpDef, kwargs: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
        return lambda *values: self._call(at, definition, list(values), kwargs)

    def _call(self, at: int, definition: OpDef, inputs: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Run an operator without a gradient."""
        return ragged_dispatch.call(definition, inputs, kwargs)

    def _fold(self, definition: OpDef, inputs: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the outputs as NumPy arrays if all inputs are static and the outputs are small; None otherwise."""
        values = jax.tree.leaves(inputs)
        if not values or not all(isinstance(v, np.ndarray) for v in values):
            return None
        with jax.ensure_compile_time_eval():
            outs = ragged_dispatch.call(definition, inputs, kwargs)
        small = all(v.size <= 64 for v in jax.tree.leaves(outs))
        return jax.tree.map(np.asarray, outs) if small else None

    def _keep(self, at: int, definition: OpDef, inputs: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Run a forward operator, and keep its `jax.vjp` closure for its gradient operator."""
        grad_op = self.items[self.backward[at]][1]
        wanted = [any(n != EMPTY_NAME for n in grad_op.outputs.get(s.name + GRAD, ())) for s in definition.reads]
        used = [bool(grad_op.inputs.get(s.name + GRAD)) for s in definition.outs]
        function = self._function(at, definition, kwargs)
        outs, self.closures[at] = self._repeated.vjp(function, definition, inputs, kwargs, wanted, used)
        return outs

    def _structure(self, at: int, op: Operator, definition: OpDef, env: dict[str, Any]) -> None:
        """Lower an operator with blocks inside; if its gradient is needed, keep the closure for it."""
        lower = control.STRUCTURES[op.type]
        if at not in self.backward:
            env.update(lower(self, op, env))
            return
        grad_op = self.items[self.backward[at]][1]
        slots = [op.inputs.get(s.name) or op.outputs.get(s.name) or [] for s in definition.reads]
        read = [
            (n, g != EMPTY_NAME)
            for s, given in zip(definition.reads, slots)
            for n, g in zip(given, grad_op.outputs.get(s.name + GRAD, ()))
        ]
        names = list(dict.fromkeys(n for n, _ in read if n in env))
        written = [n for s in definition.outs for n in op.outputs.get(s.name, ())]
        seeded = {
            n
            for s in definition.outs
            for n, g in zip(op.outputs.get(s.name, ()), grad_op.inputs.get(s.name + GRAD, ()))
            if g != EMPTY_NAME
        }
        others: list[str] = []

        def function(*values: Any) -> tuple[Any, ...]:
            outside, self.reversible = self.reversible, True
            try:
                after = lower(self, op, env | dict(zip(names, values)))
            finally:
                self.reversible = outside
            others[:] = [n for n in after if n not in written]
            return tuple(after.get(n) for n in written + others)

        wanted = {n for n, w in read if w}
        outs, pull = gradients.vjp_of(
            function,
            [env[n] for n in names],
            [n in wanted for n in names],
            _Seeded(seeded, written),
        )
        env.update((n, v) for n, v in zip(written + others, outs) if v is not None)

        def backward(cotangents: list[Any]) -> list[Any]:
            flat = [c for group in cotangents for c in (group or [])]
            grads = dict(zip(names, pull(flat)))
            return [[grads.get(n) for n in given] for given in slots]

        self.closures[at] = backward

    def _pull(self, at: int, op: Operator, definition: OpDef, env: dict[str, Any]) -> tuple[Any, ...]:
        """Run a gradient operator through the `jax.vjp` closure of the forward operator."""
        forward = definition.forward
        assert forward is not None
        cotangents = [
            self._without_padding(op.inputs.get(s.name + GRAD, ()), c)
            for s, c in zip(forward.outs, self._cotangents(at, op, definition, env))
        ]
        grads = self.closures.pop(self.pairs[at])(cotangents)
        return tuple(g for s, g in zip(forward.reads, grads) if s.name not in forward.nograd)

    def _cotangents(self, at: int, op: Operator, definition: OpDef, env: dict[str, Any]) -> list[Any]:
        """Return the gradients of the forward operator's outputs that a gradient operator reads."""
        assert definition.forward is not None
        outs = definition.ins[len(definition.ins) - len(definition.forward.outs) :]
        return [_gather(op, s, env) for s in outs]

    def _without_padding(self, names: Iterable[str], cotangent: Any) -> Any:
        """Set padding rows to zero in gradients that no gradient operator computed (fed ones, or ones)."""
        parts = cotangent if isinstance(cotangent, list) else [cotangent]
        found = [
            self._unpadded(n, v) if isinstance(v, Ragged) and n not in self.derived else v for n, v in zip(names, parts)
        ]
        return found if isinstance(cotangent, list) else (found[0] if found else None)

    def _unpadded(self, name: str, value: Ragged) -> Ragged:
        return value.like(value.zeroed())

    def _store(self, op: Operator, definition: OpDef, outs: tuple[Any, ...], env: dict[str, Any]) -> None:
        if definition.forward is not None or op.type == "sum":
            self.derived.update(op.output_arg_names)
        for slot, value in zip(definition.outs, outs):
            names = op.outputs.get(slot.name)
            if not names or value is None:
                continue
            for name, v in zip(names, value if isinstance(value, list) else (value,)):
                if name == EMPTY_NAME or v is None:
                    continue
                env[name] = self._stopped(op, name, v)
                if self.watch is not None:
                    self.watch += [
                        (op, name, jnp.isfinite(x).all()) for x in jax.tree.leaves(v) if gradients.differentiable(x)
                    ]

    def _stopped(self, op: Operator, name: str, value: Any) -> Any:
        """Return a value, without its gradient if it is an inner block's variable that stops gradients.

        Outside of inner blocks there is no gradient operator for such a variable.
        """
        if not self.inner:
            return value
        var = op.block.find_var_recursive(name)
        return jax.tree.map(_stop, value) if var is not None and var.stop_gradient else value

    def block(self, block: Block, env: dict[str, Any], key: Any = None, ops: slice = slice(None)) -> dict[str, Any]:
        """Lower an inner block, or a slice of the block's operators, over a copy of `env`; return the copy.

        The block may run conditionally: its outputs are not checked for finite values.
        """
        inner = Lowering(live_ops(block)[ops], self.key if key is None else key)
        inner.inner, inner.reversible = True, self.reversible
        inner.known, inner.path, inner.until = self.known, self.here, self.until
        inner.loops, inner.counting = self.loops, self.counting
        inner.refusals = self.refusals
        inner.expansion = self.expansion
        return inner.run(dict(env))


class Reached(Exception):  # no error
    """Signal that the lowering has come to its end point.

    Attributes:
        value: of the variable that was asked for.
    """

    def __init__(self, value: Any):
        super().__init__("reached")
        self.value = value


class _Seeded:
    """Flags of an operator's outputs: True for names in `names`, False for outputs that are not listed."""

    def __init__(self, seeded: set[str], written: list[str]):
        self.flags = [n in seeded for n in written]

    def __iter__(self) -> Any:
        yield from self.flags
        while True:
            yield False


def _stop(leaf: Any) -> Any:
    return jax.lax.stop_gradient(leaf) if isinstance(leaf, jax.core.Tracer) and gradients.differentiable(leaf) else leaf


def _carried(op: Operator, slot: str, env: Mapping[str, Any]) -> Any:
    """Return the value of an output before the operator, or None without a value."""
    names = op.outputs.get(slot)
    return env.get(names[0]) if names else None


def _gather(op: Operator, slot: Any, env: Mapping[str, Any]) -> Any:
    names = op.inputs.get(slot.name)
    if not names:
        return [] if slot.many and not slot.optional else ([] if slot.many else None)
    if slot.many:
        return [None if n == EMPTY_NAME else _read(op, n, env, slot.optional) for n in names]
    return None if names[0] == EMPTY_NAME else _read(op, names[0], env, slot.optional)


def _read(op: Operator, name: str, env: Mapping[str, Any], optional: bool) -> Any:
    if name not in env:
        variable = op.block.find_var_recursive(name)
        if variable is not None and variable.type == VarType.LOD_TENSOR_ARRAY:
            return TensorArray()  # nothing was written to it yet
        if optional:
            return None
        raise errors.OpError(f"input {name} has no value: nothing before this operator writes it")
    return env[name]


def pairs_of(items: list[Item]) -> dict[int, int]:
    """Return the position of the forward operator of each derived gradient operator, if `items` has both."""
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    wanted = {definition.forward.type for _, _, definition in items if definition.forward is not None}
    # the forward operators that have names in a slot, the last one last
    having: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    for at, (_, op, definition) in enumerate(items):
        forward = definition.forward
        if forward is not None:
            found = _last_matching(items, having, taken, op, forward)
            if found is not None:
                pairs[at] = found
                taken.add(found)
        if op.type in wanted:
            for slots in (op.inputs, op.outputs):
                for slot, names in slots.items():
                    having.setdefault((op.type, slot, tuple(names)), []).append(at)
    return pairs


def _last_matching(
    items: list[Item],
    having: Mapping[tuple[str, str, tuple[str, ...]], list[int]],
    taken: Set[int],
    op: Operator,
    forward: OpDef,
) -> int | None:
    """Return the position of the last unpaired forward operator that matches a gradient operator, or None."""
    named = [
        having.get((forward.type, slot.name, tuple(names)), [])
        for slot in forward.ins + forward.outs
        if (names := op.inputs.get(slot.name))
    ]
    candidates = min(named, key=len, default=[])
    while candidates and candidates[-1] in taken:
        candidates.pop()  # it is taken for good
    return next(
        (c for c in reversed(candidates) if c not in taken and _matches(items[c][1], op, forward)),
        None,
    )


def _matches(op: Operator, grad_op: Operator, forward: OpDef) -> bool:
    """Return True if the slots and attributes of a gradient operator agree with a forward operator."""
    seen = False
    for name in forward.attrs:
        if name in op.attrs and name in grad_op.attrs and op.attrs[name] != grad_op.attrs[name]:
            return False
    for slot in forward.ins + forward.outs:
        names = grad_op.inputs.get(slot.name)
        if names:
            if names != op.inputs.get(slot.name, op.outputs.get(slot.name)):
                return False
            seen = True
    return seen


def known_part(value: Any) -> Any:
    """Return the part of a variable's value that an operator may need while it is traced."""
    if isinstance(value, TensorArray):
        return value.length
    return value.values if isinstance(value, Ragged) else value


def needed(name: str, env: Mapping[str, Any]) -> Any:
    """Return the value for a name of `static_values.Unknown`.

    The value is the `known_part` of a variable, or the length of its longest sequence.
    """
    value = env[name.removeprefix(LONGEST)]
    return value.last.steps() if name.startswith(LONGEST) else known_part(value)


def with_known(value: Any, number: Any, longest: bool = False) -> Any:
    """Return a value with a known number as its `known_part`, or as the length of the `longest` sequence.

    A value of a different shape, as in a part of a batch, is returned unchanged.
    """
    if longest:
        if not isinstance(value, Ragged) or not value.levels:
            return value
        return replace(value, levels=(*value.levels[:-1], value.last.tightened(int(number))))
    if jnp.shape(known_part(value)) != np.shape(number):
        return value
    if isinstance(value, TensorArray):
        return value if value.buffer is None else replace(value, length=number)
    return value.like(number) if isinstance(value, Ragged) else number


def _traced_back(
    here: Path, op: Operator, env: Mapping[str, Any], error: static_values.Unknown
) -> static_values.Unknown:
    """Return the error with the outermost operator that asked, and with the variable that holds the value."""
    found = _located(here[-1], op, env, error)
    assert isinstance(found, static_values.Unknown)  # `_located` keeps the class
    found.value, found.path, found.name = error.value, error.path or here, error.name
    if error.value is None:
        found.path = here
        return found
    if error.path and op.type != "conditional_block":
        found.name = None  # it may change from one iteration to the next
    for name in dict.fromkeys([*op.input_arg_names, *sorted(reads_of(op))]):
        value = env.get(name)
        if name in env and known_part(value) is error.value:
            found.path, found.name = here, name
            break
        if isinstance(value, Ragged) and value.levels and value.last.given is error.value:
            found.path, found.name = here, LONGEST + name
            break
    return found


def _located(position: int, op: Operator, env: Mapping[str, Any], error: Exception) -> Exception:
    """Return the error with the operator, the shapes, and the user's line that made the operator.

    An inner operator's error stays unchanged.
    """
    if isinstance(error, errors.JFluidError) and (error.located or isinstance(error, errors.UnsupportedOpError)):
        return error
    kind = errors.OutOfMemoryError if memory.is_lack(error) else errors.OpError
    found = (type(error) if isinstance(error, errors.JFluidError) else kind)(_where(position, op, env, error))
    found.located = True
    return found


def _where(position: int, op: Operator, env: Mapping[str, Any], error: Exception) -> str:
    def show(name: str) -> str:
        v = env.get(name)
        return name if v is None or not hasattr(v, "shape") else f"{name} {v.dtype}{list(v.shape)}"

    ins = "; ".join(f"{s}: {', '.join(map(show, names))}" for s, names in op.inputs.items() if names)
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    site = f"\n  made at: {op.callsite}" if op.callsite else ""
    return f"operator {op.type} (position {position} of its block) failed: {first}\n  inputs: {ins}{site}"
