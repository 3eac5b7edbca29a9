"""Schema service of the registry for the IR: checks, defaults, shape inference, gradient slots."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.ir import callables
from jfluid.ir.block import Block
from jfluid.ir.codec import COMMON_ATTRS
from jfluid.ir.operator import Operator
from jfluid.ir.reach import Reach
from jfluid.ir.schema import MOST_GRADIENTS
from jfluid.ir.types import VarType, np_dtype, var_type
from jfluid.ir.variable import EMPTY_NAME, Variable
from jfluid.ops import ragged_dispatch, registry, static_values, tensor_array
from jfluid.ops.definition import HINT_ATTRS, REQUIRED, OpDef, Slot
from jfluid.ops.ragged import Level, Ragged
from jfluid.ops.selected_rows import SelectedRows
from jfluid.ops.shape_cache import ShapeCache

_LISTS = {"INTS": int, "LONGS": int, "FLOATS": float, "STRINGS": str, "BOOLEANS": bool}
_SCALARS = {"INT": int, "LONG": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}


def _scalar(value: Any, want: type) -> Any:
    """Return `value` as `want`.

    Numbers convert as Fluid converts them; text never does. Raises TypeError.
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if isinstance(value, callables.Number) and want is int:
        return value  # it keeps its function
    if want is str:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            return value
    elif want is bool:
        if isinstance(value, (bool, int)):
            return bool(value)
    elif want is int:
        if isinstance(value, (bool, int)) or (isinstance(value, float) and value.is_integer()):
            return int(value)
    elif isinstance(value, (bool, int, float)):
        return float(value)
    raise TypeError


def _block(value: Any) -> Block:
    """Return `value` if it is a block. Raises TypeError."""
    if not isinstance(value, Block):
        raise TypeError
    return value


def normalise(value: Any, kind: str) -> Any:
    """Return an attribute's value in the form that the registry's functions take: scalars and tuples."""
    if kind == "BLOCK":
        return _block(value)
    if kind == "BLOCKS":
        return tuple(map(_block, value if isinstance(value, (list, tuple)) else (value,)))
    if kind in _SCALARS:
        want = _SCALARS[kind]
        return value if type(value) is want else _scalar(value, want)
    if kind in _LISTS:
        want = _LISTS[kind]
        items = value if isinstance(value, (list, tuple, np.ndarray)) else (value,)
        if {want}.issuperset(map(type, items)):
            return tuple(items)  # values of parameters are long, and programs are copied often
        return tuple(_scalar(v, want) for v in items)
    return value


class RegistrySchema:
    """Implementation of `jfluid.ir.schema.Schema` by the registry."""

    def __init__(self) -> None:
        self._inferred = ShapeCache()

    def check(self, op: Operator) -> None:
        definition = registry.find(op.type)
        if definition is None:
            raise errors.UnsupportedOpError(
                op.type,
                suggestions=errors.close_to(op.type, registry.registered()),
                where=[op.callsite] if op.callsite else [],
            )
        if definition.forward is None:
            _check_slots(op, "input", op.inputs, definition.ins)
            _check_slots(op, "output", op.outputs, definition.outs)
        for name, value in list(op.attrs.items()):
            kind = definition.attr_kind(name) or op.attr_kinds.get(name)
            if kind is None:
                warnings.warn(
                    f"operator {op.type} has no attribute {name}, which has no effect, as in Fluid"
                    + errors.close_to(name, definition.attrs),
                    RuntimeWarning,
                    stacklevel=2,
                )
                del op.attrs[name]
                continue
            op.attrs[name] = _normalised(op, name, value, kind)
            registry.refuse_fused(op.type, name, op.attrs[name])
        _check_required(op, definition)

    def default(self, op_type: str, attr: str) -> tuple[bool, Any]:
        definition = registry.find(op_type)
        found = definition.attrs.get(attr) if definition else None
        return (False, None) if found is None or found.default is REQUIRED else (True, found.default)

    def defaults(self, op_type: str) -> dict[str, Any]:
        definition = registry.find(op_type)
        return {a.name: a.default for a in definition.attrs.values() if a.default is not REQUIRED} if definition else {}

    def kind(self, op_type: str, attr: str, value: Any) -> str:
        definition = registry.find(op_type)
        known = COMMON_ATTRS.get(attr) or HINT_ATTRS.get(attr)
        kind = definition.attr_kind(attr) if definition else known
        return kind or _kind_of(value)

    def gradient_inputs(self, op: Operator) -> list[str] | None:
        definition = registry.find(op.type)
        if definition is None or not definition.grad:
            return None
        if registry.order(definition) == MOST_GRADIENTS:
            raise errors.UnsupportedError(f"operator {op.type}: gradients are taken up to order {MOST_GRADIENTS}")
        if registry.find(op.type + "_grad") is None:
            return None
        return [s.name for s in definition.reads if s.name not in definition.nograd]

    def grad_slots(self, op: Operator) -> tuple[set[str], set[str]]:
        definition = registry.get(op.type + "_grad")
        return {s.name for s in definition.ins}, {s.name for s in definition.outs}

    def needs_whole(self, op_type: str) -> bool:
        return registry.get(op_type).entire

    def draws(self, op_type: str) -> bool:
        definition = registry.find(op_type)
        return definition is not None and definition.rng and definition.forward is None

    def is_declared_wrong(self, name: str, ops: Iterable[Operator]) -> bool:
        return any(
            name in op.inputs.get(slot, ())
            for op in ops
            if (definition := registry.find(op.type)) is not None
            for slot in definition.declared_wrong
        )

    def reach(self, op_type: str) -> Reach | None:
        definition = registry.find(op_type)
        return None if definition is None else definition.reaches

    def acting(self) -> list[str]:
        return [t for t in registry.registered() if registry.get(t).reaches is not None]

    def set_types(self, op: Operator) -> None:
        definition = registry.get(op.type)
        if definition.types is not None:
            for slot, kind in definition.types(op).items():
                for name in op.outputs.get(slot, ()):
                    op.block.var_recursive(name).type = kind

    def infer(self, op: Operator) -> None:
        definition = registry.get(op.type)
        block = op.block
        if definition.fn is None or definition.host:
            return
        for out, source in definition.inplace.items():
            for o, i in zip(op.outputs.get(out, ()), op.inputs.get(source, ())):
                if o != i:
                    _like(block.var_recursive(o), block.var_recursive(i))
        if all(s.name in definition.inplace for s in definition.outs if s.name in op.outputs):
            return
        ins = [[block.var_recursive(n) for n in op.inputs.get(s.name, ()) if n != EMPTY_NAME] for s in definition.ins]
        key = (
            op.type,
            tuple(tuple((v.shape, v.dtype, v.lod_level, v.type) for v in vs) for vs in ins),
            tuple(sorted((a, _hashable(op.attrs[a])) for a in definition.attrs if a in op.attrs)),
        )
        result = self._inferred.get_or_infer(key, registry.is_built_in(definition), lambda: _infer(op, definition, ins))
        for slot, specs in zip(definition.outs, result):
            names = op.outputs.get(slot.name, ())
            if specs is None or slot.name in definition.inplace:
                continue
            if len(names) > len(specs):
                raise errors.ShapeError(
                    f"operator {op.type}: output {slot.name} has {len(specs)} tensors, "
                    f"but {len(names)} variables are named"
                )
            for name, spec in zip(names, specs):
                if name != EMPTY_NAME and spec is not None:
                    spec.describe(block.var_recursive(name))

    def keep(self) -> None:
        self._inferred.keep()


def check_given(op: Operator, definition: OpDef) -> None:
    """Validate a loaded operator against its definition and convert attributes to their types.

    Slots and attributes that the function does not take are ignored.

    Raises AttributeTypeError for a missing attribute or a wrong type, ProgramError for a slot.
    """
    if definition.forward is None:
        _check_counts(op, "input", op.inputs, definition.ins)
        _check_counts(op, "output", op.outputs, definition.outs)
    for name, attr in definition.attrs.items():
        if name in op.attrs:
            op.attrs[name] = _normalised(op, name, op.attrs[name], attr.kind)
    _check_required(op, definition)


def _normalised(op: Operator, name: str, value: Any, kind: str) -> Any:
    try:
        return normalise(value, kind)
    except (TypeError, ValueError, OverflowError):
        raise errors.AttributeTypeError(
            f"operator {op.type}, attribute {name}: expected {kind}, found {value!r}"
        ) from None


def _check_required(op: Operator, definition: OpDef) -> None:
    for attr in definition.attrs.values():
        if attr.default is REQUIRED and attr.name not in op.attrs:
            raise errors.AttributeTypeError(f"operator {op.type} needs attribute {attr.name} ({attr.kind})")


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value


def _kind_of(value: Any) -> str:
    """Return Fluid's type for an attribute that no definition knows, by its value."""
    if isinstance(value, (list, tuple)):
        return {bool: "BOOLEANS", int: "INTS", float: "FLOATS"}.get(type(value[0]), "STRINGS") if value else "INTS"
    if isinstance(value, Block):
        return "BLOCK"
    return {bool: "BOOLEAN", int: "INT", float: "FLOAT"}.get(type(value), "STRING")


def _check_slots(op: Operator, what: str, given: dict[str, list[str]], slots: tuple[Slot, ...]) -> None:
    by_name = {s.name: s for s in slots}
    for name in given:
        if name not in by_name:
            raise errors.ProgramError(
                f"operator {op.type} has no {what} slot {name}{errors.close_to(name, by_name)}; "
                f"it has: {', '.join(by_name)}"
            )
    _check_counts(op, what, given, slots)


def _check_counts(op: Operator, what: str, given: dict[str, list[str]], slots: tuple[Slot, ...]) -> None:
    for slot in slots:
        if not slot.many and len(given.get(slot.name, ())) > 1:
            raise errors.AttributeTypeError(
                f"operator {op.type}, {what} {slot.name}: expected one variable, found {len(given[slot.name])}"
            )
    if what == "input":
        missing = [
            s.name for s in slots if not s.optional and not given.get(s.name) and not (s.many and s.name in given)
        ]
        if missing:
            raise errors.AttributeTypeError(f"operator {op.type}: {what} {', '.join(missing)} is missing")


def _like(out: Variable, source: Variable) -> None:
    out.set_shape_dtype(source.shape, source.dtype)


def _infer(op: Operator, definition: OpDef, ins: list[list[Variable]]) -> list[Any]:
    """Infer shapes and dtypes of all output slots.

    Where something is unknown the operator is evaluated twice; a dimension that differs is -1.
    """
    try:
        return _twice(op, definition, ins, static_values.PLACEHOLDERS)
    except errors.UnsupportedError:
        raise
    except Exception as error:
        # The unknown dimension may have to equal a fixed one (or broadcast against it): the
        # placeholder clashed.
        unknown = any(-1 in v.shape for vs in ins for v in vs)
        fixed = {d for vs in ins for v in vs for d in v.shape if d > 0}
        for size in sorted(fixed | {1}, reverse=True) if unknown else ():
            try:
                return _twice(op, definition, ins, (size, size))
            except Exception:
                continue
        shapes = ", ".join(
            f"{s.name}: " + ", ".join(f"{v.name}{list(v.shape)} {v.dtype.name}" for v in vs)
            for s, vs in zip(definition.ins, ins)
            if vs
        )
        attrs = {a: op.attrs[a] for a in definition.attrs if a in op.attrs}
        cause = (str(error) or type(error).__name__).splitlines()[0].replace(str(static_values.PLACEHOLDERS[0]), "-1")
        kept = (errors.DtypeError, errors.OutOfMemoryError)
        kind = next((kind for kind in kept if isinstance(error, kind)), errors.ShapeError)
        raise kind(
            f"operator {op.type} cannot take these inputs\n  inputs: {shapes}\n  attributes: {attrs}\n"
            f"  {op.callsite}\n  cause: {cause}"
        ) from error


def _twice(op: Operator, definition: OpDef, ins: list[list[Variable]], sizes: tuple[int, int]) -> list[Any]:
    """Evaluate the operator twice, with different placeholders for unknown numbers and dimensions."""
    first, placeholder_was_read = _evaluate(op, definition, ins, static_values.PLACEHOLDERS[0], sizes[0])
    if not placeholder_was_read and all(_is_fixed(v) for vs in ins for v in vs):
        return first
    second, _ = _evaluate(op, definition, ins, static_values.PLACEHOLDERS[1], sizes[1])
    return [_merge(a, b) for a, b in zip(first, second)]


def _is_fixed(v: Variable) -> bool:
    """Return True if all values of `v` have the same shape."""
    return v.type == VarType.LOD_TENSOR and not v.lod_level and -1 not in v.shape


def _evaluate(
    op: Operator, definition: OpDef, ins: list[list[Variable]], placeholder: int, size: int
) -> tuple[list[Any], bool]:
    """Return the `_Spec` of each output slot, and whether an unknown number was read."""
    values = [
        [_abstract(v, size) for v in vs] if s.many else (_abstract(vs[0], size) if vs else None)
        for s, vs in zip(definition.ins, ins)
    ]
    values += [None] * len(definition.carries)
    kwargs = {a: op.attrs[a] for a in definition.attrs if a in op.attrs}

    def run(values: list[Any], key: Any) -> Any:
        extra = {"key": jax.random.wrap_key_data(key, impl="threefry2x32")} if definition.rng else {}
        return ragged_dispatch.call(definition, values, kwargs | extra)

    with jax.enable_x64(True), static_values.inferring(placeholder) as inference:
        outs = jax.eval_shape(run, values, jax.ShapeDtypeStruct((2,), np.uint32))
    if len(outs) != len(definition.outs):
        raise TypeError(f"operator {op.type} returned {len(outs)} outputs, its definition has {len(definition.outs)}")
    specs = [None if o is None else [_Spec.of(t) for t in (o if isinstance(o, list) else [o])] for o in outs]
    return specs, inference.was_read


def _abstract(v: Variable, size: int) -> Any:
    """Return an abstract value of `v` for shape inference, with unknown dimensions set to `size`."""
    dtype = np_dtype(v.dtype)
    shape = tuple(size if d == -1 else d for d in v.shape)

    def array(shape: tuple[int, ...], dtype: Any = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    level = Level(array((size + 1,), np.int32), size)
    if v.type == VarType.LOD_RANK_TABLE:
        return tensor_array.RankTable(array((size,), np.int32), level, size, size, (level,) * v.lod_level)
    if v.type == VarType.SELECTED_ROWS:
        return SelectedRows(array((size,), np.int64), array((size, *shape[1:])), shape[0])
    levels = (level,) * v.lod_level
    value = Ragged(array(shape), levels, exact=True) if levels and shape else array(shape)
    if v.type == VarType.LOD_TENSOR_ARRAY:
        stacked = jax.tree.map(lambda x: array((size, *x.shape), x.dtype), value)
        return tensor_array.TensorArray(buffer=stacked, length=array((), np.int64))
    return value


@dataclass(frozen=True)
class _Spec:
    """Inferred shape, dtype and kind of an output."""

    shape: tuple[int, ...]
    dtype: Any
    lod_level: int = 0
    type: VarType | None = None

    @classmethod
    def of(cls, value: Any) -> "_Spec | None":
        if isinstance(value, tensor_array.TensorArray):
            found = cls.of(value.items[0] if value.buffer is None else value.buffer)
            assert found is not None
            shape = found.shape if value.buffer is None else found.shape[1:]
            return replace(found, shape=shape, type=VarType.LOD_TENSOR_ARRAY)
        if isinstance(value, Ragged):
            rows = value.capacity if value.exact else -1
            return cls((rows, *value.shape[1:]), var_type(value.dtype), len(value.levels))
        if isinstance(value, SelectedRows):
            return cls(value.shape, var_type(value.dtype), 0, VarType.SELECTED_ROWS)
        return cls(tuple(value.shape), var_type(value.dtype)) if hasattr(value, "dtype") else None

    def describe(self, var: Variable) -> None:
        """Write the shape, dtype, LoD level and type into the program's variable."""
        var.set_shape_dtype(self.shape, self.dtype)
        var.lod_level = self.lod_level
        if self.type is not None:
            var.type = self.type
        elif var.type == VarType.SELECTED_ROWS and not var.persistable:
            var.type = VarType.LOD_TENSOR


def _merge(first: list[Any] | None, second: list[Any] | None) -> list[Any] | None:
    if first is None or second is None:
        return None
    return [
        a and replace(a, shape=tuple(x if x == y else -1 for x, y in zip(a.shape, b.shape)))
        for a, b in zip(first, second)
    ]
