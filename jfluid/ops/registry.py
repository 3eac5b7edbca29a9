"""The operator registry: one operator, one function.

    @op("mul", ins=("X", "Y"), outs=("Out",))
    def mul(x, y, *, x_num_col_dims=1, y_num_col_dims=1): ...

The positional parameters are the input slots in order, the keyword-only ones the attribute schema,
the returned value (a tuple when there are several output slots) the outputs in order. A slot's name
may end in `*` (a list of tensors), `?` (may be absent: the function gets, or returns, None) or `~`
(an intermediate output that users do not see). Shape inference, gradient and lowering all come from
that one function.
"""

import functools
import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from jfluid import errors
from jfluid.ir.reach import Reach
from jfluid.ir.schema import MOST_GRADIENTS
from jfluid.ops.definition import FUSED_ATTRS, Attr, Declaration, OpDef, Slot
from jfluid.ops.gradients import gradient

# Attribute types that a default value does not show: elements of tuples, and 64-bit integers.
Int = Annotated[int, "INT"]
Long = Annotated[int, "LONG"]
Float = Annotated[float, "FLOAT"]
String = Annotated[str, "STRING"]
Bool = Annotated[bool, "BOOLEAN"]
Ints = Annotated[tuple[int, ...], "INTS"]
Longs = Annotated[tuple[int, ...], "LONGS"]
Floats = Annotated[tuple[float, ...], "FLOATS"]
Strings = Annotated[tuple[str, ...], "STRINGS"]
Bools = Annotated[tuple[bool, ...], "BOOLEANS"]
Block = Annotated[Any, "BLOCK"]
Blocks = Annotated[tuple[Any, ...], "BLOCKS"]
_KIND_OF_DEFAULT = {bool: "BOOLEAN", int: "INT", float: "FLOAT", str: "STRING"}
_OPS: dict[str, OpDef] = {}
_BUILT_IN: dict[str, OpDef] = {}  # built-in operators
# Operators made while a script runs. No saved program contains such an operator. It is freed with its last reference.
_LOCAL: WeakValueDictionary[str, OpDef] = WeakValueDictionary()
P = ParamSpec("P")
Function = TypeVar("Function", bound=Callable[..., Any])


def _fluid_name(parameter: str) -> str:
    """Return the attribute name of a parameter: `lambda_` is `lambda`, a keyword of Python."""
    return parameter[:-1] if keyword.iskeyword(parameter[:-1]) else parameter


def _with_keywords(fn: Callable[..., Any], parameters: Iterable[str]) -> Callable[..., Any]:
    """Wrap `fn` to accept attribute names that are Python keywords."""
    changed = {_fluid_name(n): n for n in parameters if _fluid_name(n) != n}
    if not changed:
        return fn
    return functools.wraps(fn)(lambda *args, **attrs: fn(*args, **{changed.get(n, n): v for n, v in attrs.items()}))


def _schema(
    type_: str, parameters: Iterable[inspect.Parameter], rng: bool, host: bool
) -> tuple[list[str], dict[str, Attr]]:
    positional, attrs = [], {}
    for p in parameters:
        if p.kind is p.POSITIONAL_OR_KEYWORD:
            positional.append(p.name)
        elif p.kind is p.KEYWORD_ONLY:
            if p.name in ("rows", "replicas", "shared") or (rng and p.name == "key") or (host and p.name == "ctx"):
                continue
            kind = getattr(p.annotation, "__metadata__", (None,))[0]
            kind = kind or _KIND_OF_DEFAULT.get(type(p.default)) or _KIND_OF_DEFAULT.get(p.annotation)
            if kind is None:
                raise TypeError(f"operator {type_}: attribute {p.name} needs an annotation such as registry.Ints")
            name = _fluid_name(p.name)
            attrs[name] = Attr(name, kind, p.default)
        else:
            raise TypeError(f"operator {type_}: *args and **kwargs are no schema")
    return positional, attrs


def _takes(
    fields: Callable[P, Declaration],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[str, P], Callable[[Function], Function]]]:
    """Show type checkers the fields of `Declaration` as the keyword arguments of `op`."""
    return lambda function: function


@_takes(Declaration)
def op(type_: str, **fields: Any) -> Callable[[Function], Function]:
    """Register the decorated function as operator `type_`; for keyword arguments see `Declaration` and `Options`."""
    declaration = Declaration(**fields)
    if declaration.host or declaration.absent:
        _must_say_reach(type_, fields)

    def register(fn: Function) -> Function:
        parameters = inspect.signature(fn).parameters
        positional, attrs = _schema(type_, parameters.values(), declaration.rng, declaration.host)
        slots = len(declaration.ins) + len(declaration.carries)
        if len(positional) != slots:
            raise TypeError(f"operator {type_}: {slots} input slots, but parameters {positional}")
        _add(
            type_,
            _with_keywords(fn, parameters),
            declaration,
            attrs,
            wants_ctx=declaration.host and "ctx" in parameters,
            wants_rows="rows" in parameters,
            wants_replicas="replicas" in parameters,
            wants_shared="shared" in parameters,
        )
        return fn

    return register


def _must_say_reach(type_: str, fields: Mapping[str, Any]) -> None:
    if "reaches" not in fields:
        raise TypeError(
            f"operator {type_} does not run inside XLA: say whether it acts on files, networks, "
            "processes, Python or the terminal, with reaches=Reach(...), or reaches=None (see "
            "jfluid.ir.reach)"
        )


def add_local(type_: str, fn: Callable[..., Any], **fields: Any) -> OpDef:
    """Register an operator of this process only, and return its definition.

    Such an operator may be a Program that runs as one operator. The arguments are the arguments of `op`. Loaded
    programs may not call it. It is registered as long as the definition is referenced.
    """
    op(type_, reaches=Reach("python"), **fields)(fn)
    found = _LOCAL[type_] = _OPS.pop(type_)
    return found


def is_local(type_: str) -> bool:
    """Return True if an operator is registered in this process only."""
    return type_ in _LOCAL


def _add(
    type_: str,
    fn: Callable[..., Any] | None,
    declaration: Declaration,
    attrs: Mapping[str, Attr],
    **wants: Any,
) -> None:
    if type_ in _OPS:
        raise ValueError(f"operator {type_} is registered twice")
    ins, outs = tuple(map(Slot.parse, declaration.ins)), tuple(map(Slot.parse, declaration.outs))
    unknown = set(declaration.nograd) - {s.name for s in ins}
    unknown |= {*declaration.inplace, *declaration.row_outs, *declaration.unsaved, *declaration.sums} - {
        s.name for s in outs
    }
    if unknown:
        raise TypeError(f"operator {type_}: no slot {sorted(unknown)}")
    options = declaration.options()
    if declaration.examples and declaration.rows is None:
        options["rows"] = "map"
    _OPS[type_] = OpDef(
        type_,
        fn,
        ins,
        outs,
        attrs,
        **wants,
        **options,
    )


def table(functions: Mapping[str, Callable[..., Any]], **options: Any) -> None:
    """Register each of `functions` under its key with the same options."""
    for type_, fn in functions.items():
        op(type_, **options)(fn)


def declare(type_: str, attrs: Mapping[str, tuple[str, Any]] | None = None, **fields: Any) -> None:
    """Register an operator without a function, which the lowering handles by its structure."""
    _must_say_reach(type_, fields)
    _add(type_, None, Declaration(**{"grad": False} | fields), {n: Attr(n, *spec) for n, spec in (attrs or {}).items()})


def refuse_fused(type_: str, name: str, value: Any) -> None:
    """Raise UnsupportedError if an attribute enables a fused kernel."""
    if name in FUSED_ATTRS and name not in _OPS[type_].attrs and value != FUSED_ATTRS[name][1]:
        raise errors.UnsupportedError(
            f"operator {type_}: {name}={value!r} is a fused kernel of Fluid's inference passes. "
            "Save the model without these passes; XLA fuses operators itself."
        )


def find(type_: str) -> OpDef | None:
    """Return the definition of operator `type_`, or None for an unknown operator.

    A gradient's definition is derived from the forward operator, up to the order `MOST_GRADIENTS`.
    """
    found = _OPS.get(type_) or _LOCAL.get(type_)
    missing: list[str] = []  # gradients between the nearest operator that is known and this one
    while found is None and type_.endswith("_grad") and len(missing) < MOST_GRADIENTS:
        missing.append(type_)
        type_ = type_.removesuffix("_grad")
        found = _OPS.get(type_) or _LOCAL.get(type_)
    kept = _OPS if type_ in _OPS else _LOCAL
    for name in reversed(missing):
        if found is None or not found.grad or found.host or order(found) == MOST_GRADIENTS:
            return None
        found = kept[name] = gradient(found)
    return found


def order(definition: OpDef) -> int:
    """Return how many gradients lie between a definition and an operator that is no derived one."""
    found = 0
    while definition.forward is not None:
        definition, found = definition.forward, found + 1
    return found


def root(definition: OpDef) -> OpDef:
    """Return the forward operator of a gradient's definition of any order; the definition itself otherwise."""
    while definition.forward is not None:
        definition = definition.forward
    return definition


def get(type_: str) -> OpDef:
    """Return the definition of operator `type_`.

    Raises `errors.UnsupportedOpError` when there is none.
    """
    found = find(type_)
    if found is None:
        raise errors.UnsupportedOpError(type_, suggestions=errors.close_to(type_, _OPS))
    return found


def note_built_in() -> None:
    """Mark all operators registered so far as built-in."""
    _BUILT_IN.update(_OPS)


def is_built_in(definition: OpDef) -> bool:
    """Return True if a definition is this package's own, and no user's."""
    definition = root(definition)
    return definition.fn is None or _BUILT_IN.get(definition.type) is definition


def registered() -> list[str]:
    """Return the names of all operators that are registered by hand, without derived gradients."""
    return sorted(t for t, d in _OPS.items() if d.forward is None)
