"""`Layer`: parameters and sublayers as attributes, and a `forward` that computes.

Layers work in dygraph mode and, as in Fluid, on the variables of a program.
"""

import itertools
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from jfluid import errors
from jfluid.dygraph.layer_object_helper import LayerObjectHelper
from jfluid.ir import unique_name
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable
from jfluid.printable import printable

__all__ = ["Layer"]

_WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])")


class HookRemoveHelper:
    """Handle of a registered hook."""

    def __init__(self, hooks: "OrderedDict[int, Callable[..., Any]]", key: int):
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        """Remove the hook, if it is still registered."""
        self._hooks.pop(self._key, None)


class Layer:
    """Base class of all layers.

    A subclass creates parameters and layers in `__init__`, after `super().__init__()`, and computes in `forward`.
    `parameters`, `sublayers` and `state_dict` find parameters and layers that are attributes, in the order of
    assignment.

    Args:
        name_scope: prefix of the parameters' names, followed by a number; the class name in snake case when None.
        dtype: element type of the layer.

    Attributes:
        training: True if the layer computes for training (dropout, batch norm); set by `train` and `eval`.
    """

    def __init__(self, name_scope: str | None = None, dtype: Any = VarType.FP32):
        self.training = True
        scope = name_scope or _WORD_STARTS.sub("_", type(self).__name__).lower()
        self._full_name = unique_name.generate(scope)
        self._helper = LayerObjectHelper(self._full_name)
        self._built = False
        self._dtype = dtype
        self._parameters: OrderedDict[str, Variable | None] = OrderedDict()
        self._sub_layers: OrderedDict[str, Layer | None] = OrderedDict()
        self._buffers: OrderedDict[str, Variable | None] = OrderedDict()
        self._not_saved: set[str] = set()  # names of buffers
        self._forward_pre_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self._forward_post_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self._hook_numbers = itertools.count()

    # Computing
    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the hooks and `forward`, and return the outputs after the last hook."""
        for hook in tuple(self._forward_pre_hooks.values()):
            changed = hook(self, inputs)
            if changed is not None:
                inputs = changed if isinstance(changed, tuple) else (changed,)
        if not self._built:
            self._build_once(*inputs, **kwargs)
            self._built = True
        outputs = self.forward(*inputs, **kwargs)
        for hook in tuple(self._forward_post_hooks.values()):
            changed = hook(self, inputs, outputs)
            if changed is not None:
                outputs = changed
        return outputs

    def _build_once(self, *inputs: Any, **kwargs: Any) -> None:
        """Create parameters with shapes from the inputs; runs before the first `forward`."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Compute the layer's outputs; subclasses define the method."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def backward(self, *inputs: Any) -> NoReturn:
        """Raise ValueError: gradients follow from `forward`."""
        raise ValueError(
            "a layer has no backward: call backward() on the loss, or define the function by layers.py_func"
        )

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> HookRemoveHelper:
        """Call `hook(layer, inputs)` before `forward`; a result other than None replaces the inputs."""
        return self._register(self._forward_pre_hooks, hook)

    def register_forward_post_hook(self, hook: Callable[..., Any]) -> HookRemoveHelper:
        """Call `hook(layer, inputs, outputs)` after `forward`.

        A result other than None replaces the outputs.
        """
        return self._register(self._forward_post_hooks, hook)

    def _register(self, hooks: "OrderedDict[int, Callable[..., Any]]", hook: Callable[..., Any]) -> HookRemoveHelper:
        if not callable(hook):
            raise TypeError(f"hook: expected a function, found {type(hook).__name__}")
        key = next(self._hook_numbers)
        hooks[key] = hook
        return HookRemoveHelper(hooks, key)

    def train(self) -> None:
        """Set this layer and its sublayers to training, and record gradients again in all layers."""
        self._set_mode(training=True)

    def eval(self) -> None:
        """Set this layer and its sublayers to evaluation.

        As in Fluid no gradient is recorded, in any layer, until `train` of some layer is called.
        """
        self._set_mode(training=False)

    def _set_mode(self, training: bool) -> None:
        for layer in (self, *self.sublayers()):
            layer.training = training
        program: Any = default_main_program()
        if program.eager:
            program.tracer.records = training

    # Making parameters and variables
    def full_name(self) -> str:
        """Return the layer's name, which begins the names of all its parameters."""
        return self._full_name

    def create_parameter(
        self,
        shape: Sequence[int],
        attr: Any = None,
        dtype: Any = "float32",
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Variable | None:
        """Make a parameter, which belongs to the layer once it is assigned to an attribute.

        Args:
            shape: its dimensions.
            attr: a ParamAttr, or a value that converts to a ParamAttr; False for no parameter: the result is None.
            dtype: its element type.
            is_bias: whether it begins with zeros, unless told otherwise.
            default_initializer: used where `attr` has none: Xavier's when None.
        """
        return self._helper.create_parameter(attr, shape, dtype, is_bias, default_initializer)

    def create_variable(
        self,
        name: str | None = None,
        persistable: bool | None = None,
        dtype: Any = None,
        type: VarType = VarType.LOD_TENSOR,
    ) -> Variable:
        """Make a variable without a value; the layer's own name is put before `name`."""
        if name is None:
            name = unique_name.generate(f"{self._full_name}._generated_var")
        else:
            name = f"{self._full_name}.{name}"
        return self._helper.create_variable(name=name, persistable=persistable, dtype=dtype, type=type)

    def add_parameter(self, name: str, parameter: Variable | None) -> Variable | None:
        """Hold a parameter under `name`, and return it.

        Raises TypeError where it is neither a parameter nor None.
        """
        if parameter is not None and not is_parameter(parameter):
            raise TypeError(
                f"{self._full_name}.add_parameter, {name}: expected a parameter or None, "
                f"found {type(parameter).__name__}"
            )
        self._forget(name)
        self._parameters[name] = parameter
        return parameter

    def add_sublayer(self, name: str, sublayer: "Layer") -> "Layer":
        """Hold a layer under `name`, and return it. Raises TypeError where it is none."""
        if not isinstance(sublayer, Layer):
            raise TypeError(
                f"{self._full_name}.add_sublayer, {name}: expected a Layer, found {type(sublayer).__name__}"
            )
        self._forget(name)
        self._sub_layers[name] = sublayer
        return sublayer

    def register_buffer(self, name: str, variable: Variable | None, persistable: bool = True) -> Variable | None:
        """Hold a variable that belongs to the layer's state and that no optimizer changes, and return it.

        (Fluid 1.8 has no buffers; this is Paddle 2's.)

        Args:
            name: the attribute under which it is found, and assigned anew.
            variable: None for one that gets its value later.
            persistable: whether `state_dict` has it.

        Raises TypeError where it is neither a variable nor None, ValueError for a name that another
        attribute has.
        """
        if variable is not None and (not isinstance(variable, Variable) or is_parameter(variable)):
            raise TypeError(
                f"{self._full_name}.register_buffer, {name}: expected a variable that is no "
                f"parameter, found {type(variable).__name__}"
            )
        if name not in self._buffers and hasattr(self, name):
            raise ValueError(f"{self._full_name}.register_buffer: there is a {name} already")
        self._buffers[name] = variable
        (self._not_saved.discard if persistable else self._not_saved.add)(name)
        return variable

    def apply(self, function: "Callable[[Layer], Any]") -> "Layer":
        """Call a function with each layer in this one, then with the layer itself, and return it.

        (Paddle 2's, as `register_buffer`.)
        """
        for layer in self._sub_layers.values():
            if layer is not None:
                layer.apply(function)
        function(self)
        return self

    # Lists of parameters and sublayers
    def buffers(self, include_sublayers: bool = True) -> list[Variable]:
        """Return the buffers of the layer, and with `include_sublayers` of all sublayers, each once."""
        return [buffer for _, buffer in self.named_buffers(include_sublayers=include_sublayers)]

    def named_buffers(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Variable]]:
        """Yield (name, buffer) of each buffer once, with names as in `named_parameters`."""
        seen: set[int] = set()
        for path, layer in self.named_sublayers(prefix, include_sublayers, include_self=True):
            for name, buffer in layer._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    yield _joined(path, name), buffer

    def parameters(self, include_sublayers: bool = True) -> list[Variable]:
        """Return the parameters of the layer, and with `include_sublayers` of all sublayers, each once."""
        found: dict[int, Variable] = {}
        for layer in self._with_sublayers({}).values() if include_sublayers else (self,):
            for p in layer._parameters.values():
                if p is not None:
                    found[id(p)] = p
        return [*found.values()]

    def _with_sublayers(self, found: "dict[int, Layer]") -> "dict[int, Layer]":
        """Add this layer and its sublayers at any depth to `found`, by id, and return `found`."""
        found[id(self)] = self
        for layer in self._sub_layers.values():
            if layer is not None and id(layer) not in found:
                layer._with_sublayers(found)
        return found

    def named_parameters(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Variable]]:
        """Yield (name, parameter) of each parameter once.

        Names are paths of attributes, such as "block.linear.weight", behind `prefix`.
        """
        seen: set[int] = set()
        layers = self.named_sublayers(prefix, include_sublayers, include_self=True)
        for path, layer in layers:
            for name, param in layer._parameters.items():
                if param is not None and id(param) not in seen:
                    seen.add(id(param))
                    yield _joined(path, name), param

    def sublayers(self, include_sublayers: bool = True) -> "list[Layer]":
        """Return the layers in this one at any depth, each once.

        As in Fluid there are none with `include_sublayers` False.
        """
        return [layer for _, layer in self.named_sublayers(include_sublayers=include_sublayers)]

    def named_sublayers(
        self,
        prefix: str = "",
        include_sublayers: bool = True,
        include_self: bool = False,
        layers_set: "set[Layer] | None" = None,
    ) -> "Iterator[tuple[str, Layer]]":
        """Yield (path, layer) of the layers in this one at any depth, each once.

        Args:
            prefix: prefix of the paths.
            include_sublayers: False leaves out all sublayers, as in Fluid.
            include_self: begin with this layer itself.
            layers_set: layers that are left out; gets the yielded layers.
        """
        seen = set() if layers_set is None else layers_set
        if self in seen:
            return
        if include_self:
            seen.add(self)
            yield prefix, self
        for name, layer in self._sub_layers.items() if include_sublayers else ():
            if layer is not None:
                yield from layer.named_sublayers(_joined(prefix, name), include_self=True, layers_set=seen)

    def clear_gradients(self) -> None:
        """Forget the gradients of all trainable parameters."""
        param: Any
        for param in self.parameters():
            if param.trainable:
                param.clear_gradient()

    # Saving and loading
    def state_dict(
        self,
        destination: "OrderedDict[str, Variable] | None" = None,
        include_sublayers: bool = True,
        structured_name_prefix: str = "",
    ) -> "OrderedDict[str, Variable]":
        """Return all parameters and persistable buffers by attribute path.

        Args:
            destination: dict that gets the entries; a new dict when None.
            include_sublayers: False leaves out sublayers.
            structured_name_prefix: prefix of the names.
        """
        found = OrderedDict() if destination is None else destination
        for name, param in self._parameters.items():
            if param is not None:
                found[structured_name_prefix + name] = param
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._not_saved:
                found[structured_name_prefix + name] = buffer
        for name, layer in self._sub_layers.items() if include_sublayers else ():
            if layer is not None:
                layer.state_dict(found, include_sublayers, f"{structured_name_prefix}{name}.")
        return found

    def set_dict(
        self,
        stat_dict: Mapping[str, Any],
        include_sublayers: bool = True,
        use_structured_name: bool = True,
    ) -> None:
        """Give the parameters the values of a `state_dict`, or of a file of one.

        Names in it that the layer does not have are told in a warning.

        Args:
            stat_dict: arrays or variables by name.
            include_sublayers: whether the layers in this one get theirs.
            use_structured_name: whether names are paths of attributes, as `state_dict` has them;
                False for the names of the parameters themselves.

        Raises UninitializedError where a parameter is missing in it; nothing is set then. Raises
        ShapeError for a value of a wrong shape or dtype, TypeError for a value that is no dict.
        """
        if not isinstance(stat_dict, Mapping):
            raise TypeError(
                f"{self._full_name}.set_dict: expected a dict of arrays by name, found "
                f"{type(stat_dict).__name__} (load_dygraph gives two: the layer's and the optimizer's)"
            )
        own: dict[str, Any] = {
            name if use_structured_name else param.name: param
            for name, param in self.state_dict(include_sublayers=include_sublayers).items()
        }
        missing = [name for name in own if name not in stat_dict]
        if missing:
            raise errors.UninitializedError(
                f"{self._full_name}.set_dict: the state has no {', '.join(missing)}"
                + errors.close_to(missing[0], stat_dict)
                + ("" if use_structured_name else " (use_structured_name is False)")
            )
        for name, param in own.items():
            param.set_value(stat_dict[name])
        unused = [name for name in stat_dict if name not in own and "@@" not in name]
        if unused:
            names = printable(", ".join(unused), lines=False)
            warnings.warn(f"{self._full_name}.set_dict: not in this layer: {names}", stacklevel=2)

    load_dict = set_dict

    # Attributes
    def _forget(self, name: str) -> None:
        self._parameters.pop(name, None)
        self._sub_layers.pop(name, None)
        self._buffers.pop(name, None)
        self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        for held in ("_parameters", "_sub_layers", "_buffers"):
            values = self.__dict__.get(held)
            if values is not None and name in values:
                return values[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        kind = "_parameters" if is_parameter(value) else None
        kind = "_sub_layers" if isinstance(value, Layer) else kind
        if kind is not None:
            if kind not in self.__dict__:
                raise ValueError(f"{type(self).__name__}: call super().__init__() before {name} is assigned")
            held = self.__dict__[kind]
            if name in held:  # it keeps its place in the order
                held[name] = value
            else:
                self._forget(name)
                held[name] = value
            return
        for kind, what in (("_parameters", "parameter"), ("_sub_layers", "layer")):
            if name in self.__dict__.get(kind, ()):
                if value is not None:
                    raise TypeError(
                        f"{self._full_name}.{name} is a {what}: expected a {what} or None, found {type(value).__name__}"
                    )
                self.__dict__[kind][name] = None
                return
        if name in self.__dict__.get("_buffers", ()):
            self.register_buffer(name, value, name not in self._not_saved)
            return
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        for held in (self._parameters, self._sub_layers, self._buffers):
            if name in held:
                del held[name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._sub_layers, *self._buffers]


def is_parameter(value: object) -> bool:
    """Return True if a value is a parameter, of a program or of dygraph mode."""
    return isinstance(value, Parameter)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
