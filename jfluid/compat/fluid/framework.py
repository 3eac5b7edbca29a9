"""Names and types of `fluid.framework`, and declarations of operators."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid import places
from jfluid.errors import ProgramError
from jfluid.ir import types
from jfluid.ir.codec import COMMON_ATTRS
from jfluid.ir.program import Program, default_main_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import EMPTY_NAME, GRAD_SUFFIX, Variable
from jfluid.ops import registry
from jfluid.ops.definition import REQUIRED

EMPTY_VAR_NAME = EMPTY_NAME
GRAD_VAR_SUFFIX = GRAD_SUFFIX
TEMP_VAR_NAME = "@TEMP@"
ZERO_VAR_SUFFIX = "@ZERO"
CONTROL_DEP_VAR_PREFIX = "@DEPENDENCY"


@dataclass(frozen=True)
class ProtoSlot:
    """An input or output in an operator's declaration."""

    name: str
    duplicable: bool
    dispensable: bool
    intermediate: bool
    comment: str = ""


@dataclass(frozen=True)
class ProtoAttr:
    """Attribute in an operator's declaration; `type` is Fluid's name of the attribute's type."""

    name: str
    type: str
    default: Any
    generated: bool
    comment: str = ""


@dataclass(frozen=True)
class OpProto:
    """Declaration of an operator, as Fluid's message OpProto."""

    type: str
    inputs: tuple[ProtoSlot, ...]
    outputs: tuple[ProtoSlot, ...]
    attrs: tuple[ProtoAttr, ...]
    comment: str


class OpProtoHolder:
    """Declarations of all operators; `OpProtoHolder.instance()` is the only one."""

    _instance: "OpProtoHolder | None" = None

    @classmethod
    def instance(cls) -> "OpProtoHolder":
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def get_op_proto(self, type: str) -> OpProto:
        """Return the declaration of an operator. Raises ValueError when there is none of that type."""
        found = registry.find(type)
        if found is None:
            raise ValueError(f"OpProtoHolder: no operator of type {type!r} is registered")

        def slots(declared: Any) -> tuple[ProtoSlot, ...]:
            return tuple(ProtoSlot(s.name, s.many, s.optional, s.intermediate) for s in declared)

        attrs = tuple(
            ProtoAttr(a.name, a.kind, None if a.default is REQUIRED else a.default, False) for a in found.attrs.values()
        )
        generated = tuple(ProtoAttr(name, kind, None, True) for name, kind in COMMON_ATTRS.items())
        about = (found.fn.__doc__ or "").strip() if found.fn is not None else ""
        return OpProto(type, slots(found.ins), slots(found.outs), attrs + generated, about)

    def update_op_proto(self) -> None:
        """No effect: declarations are looked up on demand."""

    @property
    def op_proto_map(self) -> dict[str, OpProto]:
        return {type: self.get_op_proto(type) for type in registry.registered()}

    @staticmethod
    def generated_op_attr_names() -> set[str]:
        """Return attributes that every operator may carry beside the declared attributes."""
        return {"op_role", "op_role_var", "op_namescope", "op_callstack", "op_device"}


def get_all_op_protos() -> list[OpProto]:
    """Return the declarations of all operators."""
    return list(OpProtoHolder.instance().op_proto_map.values())


def _get_var(name: str, program: Program | None = None) -> Variable:
    """Return the variable `name` of a program's global block.

    Raises TypeError for what is no Program, the block's error where there is no such variable.
    """
    program = default_main_program() if program is None else program
    if not isinstance(program, Program):
        raise TypeError(f"_get_var: expected a Program, found {type(program).__name__}")
    return program.global_block().var(name)


def _current_expected_place() -> places.CPUPlace | places.CUDAPlace:
    """Return the place of dygraph mode's `guard`; outside, the first GPU where there is one, else the CPU."""
    tracer = _dygraph_tracer()
    if tracer is not None:
        place: places.CPUPlace | places.CUDAPlace = tracer.place
        return place
    return places.CUDAPlace(0) if places.get_cuda_device_count() else places.CPUPlace()


def _cpu_num() -> int:
    """Return the number of CPU devices for replicas."""
    return places.cpu_number()


def _cuda_ids() -> list[int]:
    """Return the numbers of the GPUs that replicas run on."""
    return list(places.selected_gpus() or range(places.get_cuda_device_count()))


def _dygraph_tracer() -> Any:
    """Return the tracer that runs operators in imperative mode; None outside of it."""
    return getattr(default_main_program(), "tracer", None)


def grad_var_name(var_name: str) -> str:
    """Return the name of a variable's gradient."""
    return var_name + GRAD_SUFFIX


def convert_np_dtype_to_dtype_(np_dtype: Any) -> VarType:
    """Return the element type of Fluid that a NumPy dtype is.

    Raises ValueError where there is none.
    """
    try:
        return types.var_type(np.dtype(np_dtype))
    except TypeError as error:
        raise ValueError(str(error)) from None


def dtype_is_floating(dtype: Any) -> bool:
    """Return True if an element type is float16, float32 or float64."""
    return types.var_type(dtype) in (VarType.FP16, VarType.FP32, VarType.FP64)


def generate_control_dev_var_name() -> str:
    """Raise ProgramError: data dependences alone order the operators of a step."""
    raise ProgramError(
        "generate_control_dev_var_name: programs here have no variables of control dependencies; "
        "operators run in their order as far as results show it"
    )
