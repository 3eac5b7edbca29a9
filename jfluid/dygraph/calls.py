"""Calls of operators, checked once for each combination of attributes and slots."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.lowering import trace
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.dygraph import kept_shapes, released_ops, shape_formulas
from jfluid.dygraph.lazy_values import Aval, aval_of
from jfluid.ir import schema
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ops import gradients, ragged_dispatch, registry, static_values
from jfluid.ops.definition import OpDef

# Name and number of variables of each slot.
Layout = tuple[tuple[str, int], ...]
# Flags of the wanted variables, by output slot.
Wanted = tuple[tuple[str, tuple[bool, ...]], ...]
_numbers = itertools.count()
_BLOCK = Program().global_block()  # block of operators without a program


# Operators with attributes that do not change the shapes of outputs, and that differ between iterations of a loop.
SLICES, SCALES = frozenset(["slice", "slice_grad"]), frozenset(["scale", "scale_grad"])

# Types of attributes with a meaning that equality determines.
_PLAIN = frozenset([bool, int, str, VarType])


class Call:
    """An operator with attributes, applied to values.

    Attributes:
        number: number of this object. Equal calls are the same object.
        definition: definition of the operator.
        op: the operator, with placeholders for variable names.
        layout: number of values of each input slot of the definition; -1 for a slot with a single value.
        wanted: flags of the wanted outputs, by output slot of the definition.
        constants: inputs that are known numbers, by place among all inputs.
        given: input slots in the order of the call: name, number of variables, and True if gradients flow to the slot.
        order: place of each value among the values of the call; -1 for a missing value.
        places: slot and index of each output variable of the call.
        named: attributes as the script passes the values.
        in_place: output and input slots for which identity of the variables matters.
    """

    def __init__(
        self,
        definition: OpDef,
        op: Operator,
        layout: Sequence[int],
        wanted: Wanted,
        shared: bool,
        inputs: Layout,
        named: Mapping[str, Any],
        constants: Mapping[int, np.ndarray] | None = None,
    ):
        self.number = next(_numbers)
        self.definition, self.op, self.layout = definition, op, layout
        flags = dict(wanted)
        self.wanted = [flags.get(s.name, ()) for s in definition.outs]
        self._inputs, self._wanted, self.named = inputs, wanted, named
        self.shared, self.constants = shared, dict(constants or {})
        self.attrs = {a: op.attrs[a] for a in definition.attrs if a in op.attrs}
        self.draws_numbers = definition.rng
        self.on_host = definition.on_host(op)
        self.given = tuple([(slot, n, slot not in definition.nograd) for slot, n in inputs])
        at, first = 0, {}
        for slot, n in inputs:
            first[slot], at = range(at, at + n), at + n
        order: list[int] = []
        for known, n in zip(definition.ins, layout):
            order += first.get(known.name) or ([-1] if n < 0 else [])
        self.order = tuple(order)
        self.places = tuple([(slot, i) for slot, flags_ in wanted for i in range(len(flags_))])
        self.in_place = tuple(definition.inplace.items()) if definition.wants_shared else ()
        self.reads = frozenset([slot.name for slot in definition.ins])
        self.writes = tuple([slot.name for slot in definition.outs])
        self.rules = [rule for rule in definition.refuses if rule.applies(op)]

    @functools.cached_property
    def has_gradient(self) -> bool:
        """Return True if the operator has a gradient operator."""
        if not self.definition.grad or self.definition.host:
            return False
        return registry.find(self.definition.type + "_grad") is not None

    def flows(self, edges: Iterable[Any]) -> bool:
        """Return True if gradients flow through the call.

        Args:
            edges: destination of each input's gradient; None for an input without gradient.
        """
        wanted = [flows for _, n, flows in self.given for _ in range(n)]
        goes = any(w and edge is not None for w, edge in zip(wanted, edges))
        return goes and self.has_gradient

    def outputs(self, avals: Sequence[Aval | None]) -> Any:
        """Infer the outputs for inputs of the given kinds.

        Returns, for each output slot, an Aval, a NumPy array for a known number, None, or a list of these. Returns
        None if a shape depends on numbers.

        Raises ShapeError or DtypeError for inputs that do not fit.
        """

        def inferred() -> Any:
            if (known := self._gradients(avals)) is not None:
                return known
            try:
                return shape_formulas.outputs(self.number, avals, self._kept_or_inferred)
            except static_values.Unknown:
                return None

        if self.numbers(avals) and self.plain is not self:
            return self.plain.outputs(avals)
        if self.definition.type == "sum" and len(avals) > 2 and avals[0] is not None and len(set(avals)) == 1:
            return self._sum_of_two.outputs(avals[:2])
        key = self.number, *[-1 if a is None else a.number for a in avals]
        return _outputs.get_or_make(key, inferred)

    def numbers(self, avals: Sequence[Aval | None]) -> tuple[float, ...]:
        """Return the starts of a slice inside its input, or the factor of a `scale`; an empty tuple for other calls."""
        kind, first = self.definition.type, avals[0] if avals else None
        if kind not in SLICES and kind not in SCALES:
            return ()
        if first is None or not first.plain or self.constants:
            return ()
        if sum(a is not None for a in avals) != 1 + kind.endswith("_grad"):
            return ()
        if kind in SCALES:
            return (float(self.attrs["scale"]),) if first.dtype.kind == "f" else ()
        axes, starts, ends = (self.attrs.get(name, ()) for name in ("axes", "starts", "ends"))
        if not len(axes) == len(starts) == len(ends):
            return ()
        shape = first.shape
        inside = all(
            -len(shape) <= axis < len(shape) and 0 <= start < end <= shape[axis]
            for axis, start, end in zip(axes, starts, ends)
        )
        return tuple(starts) if inside else ()

    @functools.cached_property
    def plain(self) -> "Call":
        """The call with the same numbers for all calls that differ in `numbers` alone."""
        if self.definition.type in SCALES:
            return self.with_attrs({**self.named, "scale": 1.0})
        sizes = [end - at for at, end in zip(self.attrs["starts"], self.attrs["ends"])]
        return self.with_attrs({**self.named, "starts": [0] * len(sizes), "ends": sizes})

    def _gradients(self, avals: Sequence[Aval | None]) -> Any:
        """Return the outputs of a gradient that `jax.vjp` derives, which are like the inputs; None for other calls."""
        forward = self.definition.forward
        if forward is None or self.definition.fn is None or not gradients.is_derived(self.definition):
            return None
        if self.constants or forward.carries or not all(a is None or a.plain for a in avals):
            return None
        it = iter(avals)
        given = {s.name: [next(it) for _ in range(abs(n))] for s, n in zip(self.definition.ins, self.layout)}
        seeds = [a for s in forward.outs for a in given[s.name + gradients.GRAD]]
        if not any(seeds) or not all(s.optional or any(given[s.name]) for s in forward.ins):
            return None
        found = []
        for slot, wanted in zip(self.definition.outs, self.wanted):
            own = given[slot.name.removesuffix(gradients.GRAD)]
            kinds = [a if a is not None and gradients.differentiable(a) else None for a in own]
            found.append(_chosen(kinds if slot.many else kinds[0], wanted, slot.many))
        return tuple(found)

    @functools.cached_property
    def _sum_of_two(self) -> "Call":
        """The sum of two values, which has the outputs of a sum of any number of values of one kind."""
        return call_of("sum", (("X", 2),), self._wanted, self.named, self.shared)

    def _kept_or_inferred(self, avals: Sequence[Aval | None]) -> Any:
        """Return the result of `infer`, which an earlier process may have kept."""
        if self.constants:
            return self.infer(avals)
        return kept_shapes.KEPT.outputs(self.definition, self._identity, avals, lambda: self.infer(avals))

    @functools.cached_property
    def _identity(self) -> list[Any]:
        """Values that identify the call among the calls of its operator, in all processes."""
        return [self.layout, self.wanted, self.shared, kept_shapes.identity_of(self.attrs)]

    def infer(self, avals: Sequence[Aval | None]) -> Any:
        """Compute `outputs`; raises `static_values.Unknown` if a shape depends on numbers."""
        known: list[Any] = []

        def run(values: list[Any], key: Any) -> Any:
            outs = self(values, trace.random_key(key))
            known[:] = [
                [v if isinstance(v, np.ndarray) else None for v in o]
                if isinstance(o, list)
                else (o if isinstance(o, np.ndarray) else None)
                for o in outs
            ]
            return outs

        structs = [None if a is None else a.struct for a in avals]
        try:
            with jax.enable_x64(True):
                outs = jax.eval_shape(run, structs, jax.ShapeDtypeStruct((2,), np.uint32))
        except static_values.Unknown:
            raise
        except errors.UnsupportedError:
            raise
        except Exception as error:
            raise self.located(error, avals) from error
        return tuple(_merged(o, k) for o, k in zip(outs, known, strict=True))

    def __call__(self, values: Sequence[Any], key: Any = None) -> tuple[Any, ...]:
        """Run the operator on arrays in slot order; unwanted outputs are None."""
        values = [self.constants.get(i, v) for i, v in enumerate(values)]
        it = iter(values)
        inputs = [next(it) if n < 0 else [next(it) for _ in range(n)] for n in self.layout]
        inputs += [None] * len(self.definition.carries)
        kwargs = dict(self.attrs)
        if self.draws_numbers:
            kwargs["key"] = key
        if self.definition.wants_shared:
            kwargs["shared"] = self.shared
        outs = ragged_dispatch.call(self.definition, inputs, kwargs)
        return tuple(_chosen(o, w, self.definition.outs[i].many) for i, (o, w) in enumerate(zip(outs, self.wanted)))

    @functools.cached_property
    def traced_once(self) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """The call as a function that JAX traces once for inputs of the same kinds, whatever it is part of."""
        return jax.jit(lambda values: self(values), inline=True)

    def refuse(self, avals: Sequence[Aval | None], array: Callable[[int], Any]) -> None:
        """Raise OperandError if a rule of the operator refuses input values.

        Args:
            avals: kinds of the inputs, in slot order.
            array: returns the array of an input by place.
        """
        for rule in self.rules:
            at, inputs = 0, {}
            for slot, n in zip(self.definition.ins, self.layout):
                places = range(at, at + abs(n))
                given = [
                    None if a is None else array(i) if slot.name == rule.slot else a.struct
                    for i, a in zip(places, avals[at:])
                ]
                inputs[slot.name] = given[0] if n < 0 else given
                at += abs(n)
            attrs = {n: self.attrs.get(n, a.default) for n, a in self.definition.attrs.items()}
            with jax.enable_x64(True):
                row = np.asarray(rule.row(inputs, attrs))
            if row[0]:
                text = f"operator {self.definition.type} failed: {rule.error(row.tolist())}"
                raise errors.OperandError(text)

    def with_attrs(self, attrs: Mapping[str, Any]) -> "Call":
        """Return the same call with changed attributes."""
        return call_of(self.definition.type, self._inputs, self._wanted, attrs, self.shared)

    def specialised(self, constants: Mapping[int, np.ndarray]) -> "Call":
        """Return the call for known numbers of some inputs."""
        key = self.number, *[(i, v.dtype.str, v.shape, v.tobytes()) for i, v in constants.items()]
        return _specialised.get_or_make(
            key,
            lambda: Call(
                self.definition,
                self.op,
                self.layout,
                self._wanted,
                self.shared,
                self._inputs,
                self.named,
                constants,
            ),
        )

    def located(self, error: Exception, avals: Sequence[Aval | None]) -> Exception:
        """Return the error with the operator's name and input shapes."""
        it = iter(avals)
        shown = []
        for slot, n in zip(self.definition.ins, self.layout):
            given = [next(it) for _ in range(abs(n))]
            texts = [f"{list(a.shape)} {a.dtype.name}" for a in given if a is not None]
            if texts:
                shown.append(f"{slot.name}: {', '.join(texts)}")
        cause = (str(error) or type(error).__name__).strip().splitlines()[0]
        kind = type(error) if isinstance(error, errors.JFluidError) else errors.ShapeError
        return kind(
            f"operator {self.definition.type} cannot take these inputs\n  inputs: {'; '.join(shown)}\n"
            f"  attributes: {self.attrs}\n  cause: {cause}"
        )


def _merged(out: Any, known: Any) -> Any:
    if isinstance(out, list):
        return [_merged(o, k) for o, k in zip(out, known)]
    if known is not None:
        return known
    return None if out is None else aval_of(out)


def _chosen(out: Any, wanted: tuple[bool, ...], many: bool) -> Any:
    if isinstance(out, list):
        return [o if w else None for o, w in itertools.zip_longest(out, wanted, fillvalue=False)]
    if many or not wanted:
        return None
    return out if wanted[0] else None


_calls = LruCache[Call](8192)
# By call number: inferred outputs for kinds of inputs, and calls with known numbers as inputs.
_outputs = LruCache[Any](16_384)
_specialised = LruCache[Call](1024)


def call_of(type_: str, inputs: Layout, wanted: Wanted, attrs: Mapping[str, Any] | None, shared: bool) -> Call:
    """Return the call of an operator.

    Args:
        type_: type of the operator.
        inputs: name and number of variables of each input slot.
        wanted: output slots with flags of the wanted variables.
        attrs: attributes; None values are left out.
        shared: True if outputs are the variables that the operator's `inplace` permits.

    Raises UnsupportedOpError, ProgramError or AttributeTypeError as `Block.append_op` does.
    """
    key = (type_, inputs, wanted, frozen(attrs) if attrs else (), shared)
    return _calls.get_or_make(key, lambda: _checked(type_, inputs, wanted, attrs, shared))


def forget_released() -> None:
    """Remove the calls of released operators from the caches."""
    for kept in (_calls, _specialised):
        for key in [k for k, call in kept.items() if released_ops.is_released(call.definition)]:
            del kept[key]


def frozen(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a hashable key of attributes, without attributes that are None."""
    key: list[Any] = []
    for name, value in attrs.items():
        if value is not None:
            key.append(name)
            plain = type(value) in _PLAIN or (type(value) is float and value)
            key.append(value if plain else _frozen(value))
    return tuple(key)


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple([_frozen(v) for v in value])
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, float) and value == 0:
        return repr(value)  # -0.0 and 0.0 are different attributes
    return value


def _checked(type_: str, inputs: Layout, wanted: Wanted, attrs: Mapping[str, Any] | None, shared: bool) -> Call:
    op = Operator(
        _BLOCK,
        type_,
        {slot: ["x"] * n for slot, n in inputs},
        {slot: ["x"] * len(flags) for slot, flags in wanted},
        attrs,
        callsite=False,
    )
    schema.current().check(op)
    definition = registry.get(type_)
    if definition.fn is None:
        raise errors.UnsupportedError(
            f"operator {type_}: it works on a whole program, and nothing runs it in dygraph mode: "
            "write the loop or the condition in Python, or build a Program under program_guard"
        )
    released_ops.note(definition)
    given = dict(inputs)
    layout = [given.get(s.name, 0) if s.many else -1 for s in definition.ins]
    return Call(definition, op, layout, wanted, shared, inputs, dict(attrs or {}))
