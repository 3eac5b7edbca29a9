"""Helper for layers: names, parameters, operators, bias and activation."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from jfluid import errors
from jfluid.initializer import Constant, Xavier
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program, default_main_program, default_startup_program
from jfluid.ir.types import VarType, is_float, np_dtype
from jfluid.ir.variable import Parameter, Variable
from jfluid.layers.weight_norm import create_weight_normalized
from jfluid.param_attr import ParamAttr, WeightNormParamAttr


class EmitOptions(TypedDict, total=False):
    """Keyword arguments of `emit`."""

    layer: str | None
    name: str | None
    act: str | Mapping[str, Any] | None
    stop_gradient: bool


@overload
def emit(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    outs: tuple[str] = ("Out",),
    **options: Unpack[EmitOptions],
) -> Variable: ...


@overload
def emit(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    outs: tuple[str, str],
    **options: Unpack[EmitOptions],
) -> tuple[Variable, Variable]: ...


@overload
def emit(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    outs: tuple[str, str, str],
    **options: Unpack[EmitOptions],
) -> tuple[Variable, Variable, Variable]: ...


@overload
def emit(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    outs: tuple[str, str, str, str, str, str],
    **options: Unpack[EmitOptions],
) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]: ...


@overload
def emit(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    outs: Mapping[str, int],
    **options: Unpack[EmitOptions],
) -> list[Variable]: ...


def emit(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    outs: tuple[str, ...] | Mapping[str, int] = ("Out",),
    layer: str | None = None,
    name: str | None = None,
    act: str | Mapping[str, Any] | None = None,
    stop_gradient: bool = False,
) -> Any:
    """Append one operator, and return the variables that it writes.

    Args:
        op_type: the operator.
        inputs: for each slot a Variable, a list of Variables, or None where the slot is not used.
        attrs: attributes; None values are left out.
        outs: output slots; a mapping gives the number of variables of each, which are then returned
            as a list.
        layer: the name that variables are numbered under; `op_type` when None.
        name: the user's name for the layer.
        act: an activation of the (single) output.
        stop_gradient: True if no gradient flows to the outputs.

    Returns:
        The variable of the only slot, or a tuple with one entry for each slot.
    """
    block = default_main_program().current_block()
    prefix = name or unique_name.generate(layer or op_type)
    for slot, value in inputs.items():
        if not isinstance(value, Variable):
            check_variable(value, op_type, slot)
    results: tuple[Any, ...]
    if isinstance(outs, tuple):
        results = block.append_new(op_type, inputs, outs, attrs, prefix)
    else:
        made = {slot: [block.temporary(prefix) for _ in range(count)] for slot, count in outs.items()}
        block.append_op(op_type, inputs, made, attrs)
        results = tuple(made.values())
    if stop_gradient:
        for found in results:
            for variable in found if isinstance(found, list) else (found,):
                variable.stop_gradient = True
    if len(results) > 1:
        return results
    if act:
        return LayerHelper(layer or op_type, name=prefix, act=act).append_activation(results[0])
    return results[0]


def check_variable(value: Any, layer: str, what: str) -> None:
    """Raise AttributeTypeError unless `value` is a Variable, None or a list of Variables."""
    for v in value if isinstance(value, (list, tuple)) else (value,):
        if v is not None and not isinstance(v, Variable):
            raise errors.AttributeTypeError(
                f"layers.{layer}, {what}: expected a Variable, found {type(v).__name__} ({v!r:.60})"
            )


class LayerHelper:
    """Names, parameters and operators of one layer.

    Args:
        layer_type: prefix of the numbered names of its variables.
        kwargs: the layer's arguments, of which `name`, `input`, `act`, `param_attr`,
            `bias_attr` and `dtype` are read.
    """

    def __init__(self, layer_type: str, **kwargs: Any):
        self.kwargs = kwargs
        self.layer_type = layer_type
        self.name = kwargs.get("name") or unique_name.generate(layer_type)

    @property
    def main_program(self) -> Program:
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        return default_startup_program()

    @property
    def block(self) -> Block:
        return self.main_program.current_block()

    def append_op(self, *args: Any, **kwargs: Any) -> Operator:
        return self.block.append_op(*args, **kwargs)

    # Inputs
    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        value = self.kwargs.get(input_param_name, [])
        return [value] if isinstance(value, Variable) else list(value)

    def input(self, input_param_name: str = "input") -> Variable:
        values = self.multiple_input(input_param_name)
        if len(values) != 1:
            raise errors.ProgramError(f"layer {self.layer_type}: expected one input, found {len(values)}")
        return values[0]

    def input_dtype(self, input_param_name: str = "input") -> VarType:
        """Return the common dtype of all inputs.

        Raises ProgramError for different dtypes.
        """
        dtypes = {v.dtype for v in self.multiple_input(input_param_name)}
        if len(dtypes) != 1:
            raise errors.ProgramError(
                f"layer {self.layer_type}: inputs of one dtype are needed, found {sorted(d.name for d in dtypes)}"
            )
        return dtypes.pop()

    # Parameters
    @property
    def param_attr(self) -> Any:
        return ParamAttr._to_attr(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> Any:
        return ParamAttr._to_attr(self.kwargs.get("bias_attr"))

    def multiple_param_attr(self, length: int) -> list[Any]:
        attr = self.param_attr
        attrs = attr if isinstance(attr, list) else [attr]
        if len(attrs) == 1 and length > 1:
            attrs = [attrs[0]] + [copy.deepcopy(attrs[0]) for _ in range(length - 1)]
        if len(attrs) != length:
            raise errors.ProgramError(f"layer {self.layer_type}: {length} inputs, but {len(attrs)} param_attr")
        return attrs

    def iter_inputs_and_params(self, input_param_name: str = "input") -> Iterator[tuple[Variable, Any]]:
        inputs = self.multiple_input(input_param_name)
        return zip(inputs, self.multiple_param_attr(len(inputs)))

    def create_parameter(
        self,
        attr: Any,
        shape: Sequence[int],
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
        stop_gradient: bool = False,
        type: VarType = VarType.LOD_TENSOR,
    ) -> Variable | None:
        """Create a parameter in both programs, initialized by the startup program; None if `attr` is False."""
        if attr is False:
            return None
        attr = copy.deepcopy(ParamAttr._to_attr(attr))
        dtype = dtype if dtype is not None else self.kwargs.get("dtype", "float32")
        if default_initializer is None:
            if attr.initializer is None and not is_float(dtype):
                raise errors.DtypeError(
                    f"layer {self.layer_type}: a parameter of dtype {np_dtype(dtype).name} has no default initializer; "
                    "cast the input to a floating dtype, or give ParamAttr(initializer=...)"
                )
            default_initializer = Constant(0.0) if is_bias else Xavier()
        attr._set_default_initializer(default_initializer)
        if attr.name is None:
            attr.name = unique_name.generate(f"{self.name}.{'b' if is_bias else 'w'}")
        if isinstance(attr, WeightNormParamAttr):
            return create_weight_normalized(self, attr, shape, dtype)
        kwargs = {"shape": shape, "dtype": dtype, "type": type}
        eager = self.main_program.eager  # eager mode has one program, and parameters with values
        if not eager:
            self.startup_program.global_block().create_parameter(**kwargs, **attr._to_kwargs(with_initializer=True))
        param = self.main_program.global_block().create_parameter(**kwargs, **attr._to_kwargs(with_initializer=eager))
        if stop_gradient:
            param.stop_gradient = True
        return param

    # Variables
    def create_variable_for_type_inference(
        self, dtype: Any = None, stop_gradient: bool = False, shape: Sequence[int] | None = None
    ) -> Variable:
        """Create a variable of the current block; its operator determines the shape and dtype."""
        return self.block.create_var(
            name=unique_name.generate(f"{self.name}.tmp"),
            dtype=dtype,
            shape=shape,
            persistable=False,
            stop_gradient=stop_gradient,
        )

    create_tmp_variable = create_variable_for_type_inference

    def create_variable(self, *args: Any, **kwargs: Any) -> Variable:
        return self.block.create_var(*args, **kwargs)

    def create_global_variable(self, persistable: bool = False, *args: Any, **kwargs: Any) -> Variable:
        """Create a variable of the global block."""
        return self.main_program.global_block().create_var(*args, persistable=persistable, **kwargs)

    def create_or_get_global_variable(self, name: str, *args: Any, **kwargs: Any) -> tuple[Variable, bool]:
        """Return (the variable of this name in the global block, True if it was created now)."""
        block = self.main_program.global_block()
        if block.has_var(name):
            return block.var(name), False
        return self.create_global_variable(*args, name=name, **kwargs), True

    def set_variable_initializer(self, var: Variable, initializer: Any) -> Variable:
        """Declare `var` in the startup program, and initialize it there."""
        return self.startup_program.global_block().create_var(
            name=var.name, type=var.type, dtype=var.dtype, shape=var.shape, persistable=True, initializer=initializer
        )

    # Tails
    def append_bias_op(self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None) -> Variable:
        """Add a bias over the dimensions `dim_start` to `dim_end`; return `input_var` if `bias_attr` is False."""
        attr = self.bias_attr
        if attr is False:
            return input_var
        bias = self.create_parameter(
            attr=attr, shape=list(input_var.shape[dim_start:dim_end]), dtype=input_var.dtype, is_bias=True
        )
        out = self.create_variable_for_type_inference(dtype=input_var.dtype)
        self.append_op(
            type="elementwise_add",
            inputs={"X": [input_var], "Y": [bias]},
            outputs={"Out": [out]},
            attrs={"axis": dim_start},
        )
        return out

    def append_activation(self, input_var: Variable) -> Variable:
        """Apply the activation `act`, a name or {"type": name, attribute: value}.

        Without `act`, return `input_var`.
        """
        return self._activated(input_var, self.kwargs.get("act"))

    def _activated(self, input_var: Variable, act: Any) -> Variable:
        if act is None:
            return input_var
        if not isinstance(act, (str, Mapping)):
            raise TypeError(f"layer {self.layer_type}: act is the name of an activation, found {act!r}")
        attrs = {} if isinstance(act, str) else dict(act)
        act_type = act if isinstance(act, str) else attrs.pop("type")
        out = self.create_variable_for_type_inference(dtype=input_var.dtype)
        self.append_op(type=act_type, inputs={"X": [input_var]}, outputs={"Out": [out]}, attrs=attrs)
        return out

    def get_parameter(self, name: str) -> Variable:
        """Return the program's parameter of this name. Raises ProgramError if there is none."""
        found = self.main_program.global_block().var(name)
        if not isinstance(found, Parameter):
            raise errors.ProgramError(f"layer {self.layer_type}: {name} is no parameter")
        return found

    def to_variable(self, value: Any) -> Variable:
        """Return `value`, or raise TypeError if it is no Variable."""
        if not isinstance(value, Variable):
            raise TypeError(
                f"layers.{self.layer_type}, input: expected a Variable, found {type(value).__name__} ({value!r:.60})"
            )
        return value

    def is_instance(self, param_name: str, cls: Any) -> None:
        """Raise TypeError for an argument that is not an instance of `cls`."""
        value = self.kwargs.get(param_name)
        if not isinstance(value, cls):
            raise TypeError(f"layer {self.layer_type}, {param_name}: expected {cls}, found {type(value).__name__}")
