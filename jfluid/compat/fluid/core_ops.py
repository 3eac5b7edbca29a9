"""`fluid.core.ops`: operators of imperative mode as functions, `core.ops.relu(x)`."""

from typing import Any

from jfluid import errors
from jfluid.dygraph.varbase import VarBase, tracer
from jfluid.ops import registry
from jfluid.ops.definition import OpDef, Slot

# Arguments that Fluid's functions take beside the required inputs.
_OPTIONAL_INPUTS = {"layer_norm": ("Scale", "Bias"), "gru_unit": ("Weight", "Bias"), "label_smooth": ("PriorDist",)}
_GIVEN_OUTPUTS = {
    "accuracy": ("Correct", "Total"),
    "adam": ("ParamOut", "Moment1Out", "Moment2Out", "Beta1PowOut", "Beta2PowOut"),
    "batch_norm": ("MeanOut", "VarianceOut"),
    "fill_constant": ("Out",),
    "matmul": ("Out",),
    "momentum": ("ParamOut", "VelocityOut"),
    "sgd": ("ParamOut",),
}


class Operators:
    """Namespace with a function for each operator.

    A function takes the inputs, then given outputs or, for a list of outputs, their number, then pairs of an
    attribute's name and value. It returns a VarBase, a list of VarBases, or a tuple with an entry for each output slot.
    """

    def __getattr__(self, name: str) -> Any:
        definition = None if name.startswith("__") else registry.find(name)
        if definition is None:
            raise AttributeError(f"core.ops has no operator {name!r}" + errors.close_to(name, registry.registered()))
        return lambda *arguments: _call(definition, arguments)


def _call(definition: OpDef, arguments: tuple[Any, ...]) -> Any:
    end = next((at for at, a in enumerate(arguments) if isinstance(a, str)), len(arguments))
    values, attrs = list(arguments[:end]), dict(zip(arguments[end::2], arguments[end + 1 :: 2], strict=True))
    named = _OPTIONAL_INPUTS.get(definition.type, ())
    slots = [slot.name for slot in definition.ins if not slot.optional or slot.name in named]
    outs = [slot for slot in definition.outs if not slot.optional]
    given = _GIVEN_OUTPUTS.get(definition.type, ())
    expected = len(slots) + sum(slot.many or slot.name in given for slot in outs)
    if len(values) != expected:
        raise TypeError(
            f"core.ops.{definition.type}: expected {expected} inputs and outputs before the attributes, found "
            f"{len(values)}"
        )
    inputs = {slot: value for slot, value in zip(slots, values) if value is not None}
    rest = iter(values[len(slots) :])
    outputs = {slot.name: _output(slot, slot.name in given, rest) for slot in outs}
    tracer().trace_op(definition.type, inputs, outputs, attrs)
    return tuple(outputs.values()) if len(outputs) > 1 else next(iter(outputs.values()))


def _output(slot: Slot, given: bool, rest: Any) -> Any:
    if slot.many:
        return [VarBase() for _ in range(next(rest))]
    return next(rest) if given else VarBase()
