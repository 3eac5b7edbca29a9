"""Eager variables of `fluid.dygraph` programs."""

import functools
import weakref
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.runtime.fetched_array import FetchedArray, fetched
from jfluid.dygraph.lazy_graph import array_of
from jfluid.dygraph.lazy_values import Aval, LazyValue, constant
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.host import aligned_memory
from jfluid.ir import unique_name
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import Parameter, Variable
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.selected_rows import SelectedRows
from jfluid.places import Place
from jfluid.record.phases import PHASES

if TYPE_CHECKING:
    from jfluid.ir.block import Block


def tracer() -> Any:
    """Return the Tracer of the current `guard`. Raises DygraphError outside of one."""
    found = getattr(default_main_program(), "tracer", None)
    if found is None:
        raise errors.DygraphError(
            "this needs dygraph mode: call it within `with fluid.dygraph.guard():`, or after fluid.enable_dygraph()"
        )
    return found


class Shape(list[int]):
    """Dimensions of an eager variable.

    A list, as in Fluid, that also adds to tuples. Slices are Shapes.
    """

    def __add__(self, other: Any) -> "Shape":  # type: ignore[override]
        return Shape([*self, *other])

    def __radd__(self, other: Any) -> Any:
        return (*other, *self) if isinstance(other, tuple) else Shape([*other, *self])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (list, tuple)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Shape(found) if isinstance(index, slice) else found


@functools.cache
def zeros(aval: Aval) -> LazyValue:
    """Return zeros of a shape and dtype."""
    return constant(np.zeros(aval.shape, aval.dtype))


def on_device(array: np.ndarray) -> LazyValue:
    """Copy an array to the tracer's device.

    The value then lies where an update would leave it, so that a step that reads it is not compiled again.
    """
    with jax.enable_x64(True):
        # JAX takes a NumPy array whose address is a multiple of 64 as it lies, even with `may_alias=False`.
        return constant(jax.device_put(aligned_memory.copied(array), tracer().device))


def _given(value: Any, place: Any) -> LazyValue:
    """Return the value of `VarBase(array, place)`. Raises TypeError for other arguments."""
    if not isinstance(place, Place | None) or not isinstance(value, np.ndarray):
        raise TypeError(
            "VarBase: expected a numpy.ndarray and a place, such as fluid.CPUPlace(), found "
            f"{type(value).__name__} and {type(place).__name__}"
        )
    return constant(aligned_memory.copied(value))


class VarBase(Variable):
    """A variable with a value.

    Arithmetic, comparison and indexing run at once, as do all of `fluid.layers`.

    Attributes:
        name: of the variable.
        shape, dtype: of its value.
        stop_gradient: whether no gradient flows to it.
        persistable: whether it is a parameter or a buffer.
    """

    # attributes of Variable that are equal for all variables
    type = VarType.LOD_TENSOR
    lod_level = 0
    capacity = None
    error_clip = None
    is_data = False
    need_check_feed = False
    belong_to_optimizer = False
    opaque_type = b""
    op = None
    _prefix = ""  # prefix of a generated name
    # defaults that most temporaries keep
    _value: LazyValue | None = None
    _stop_gradient = False
    _persistable = False
    _shape: tuple[int, ...] | None = None
    _dtype: VarType | None = None
    _edge: Edge | None = None
    _gradient: LazyValue | None = None
    _gradient_variable: "VarBase | None" = None  # variable of the gradient, created on first use

    def __init__(
        self,
        value: LazyValue | np.ndarray | None = None,
        place: Any = None,
        persistable: bool = False,
        zero_copy: bool = False,
        name: str | None = None,
        *,
        stop_gradient: bool = False,
        shape: Any = None,
        dtype: Any = None,
    ):
        """Create a variable, with the arguments of Fluid's class.

        An array is copied to the device of the current guard, whatever `place` and `zero_copy` say, and gets no
        gradient.
        """
        if place is not None or isinstance(value, np.ndarray):
            value, stop_gradient = _given(value, place), True
        self._value = value
        if name is not None:
            self.name = name
        if stop_gradient:
            self._stop_gradient = True
        if persistable:
            self._persistable = True
        if shape is not None:
            self._shape = tuple(int(d) for d in shape)
        if dtype is not None:
            self._dtype = var_type(dtype)

    @classmethod
    def of(cls, value: LazyValue, edge: Edge | None) -> "VarBase":
        """Return a variable of a value, with a gradient that flows to `edge`."""
        made = VarBase(value, name="value", stop_gradient=edge is None)
        made._edge = edge
        return made

    @functools.cached_property
    def name(self) -> str:  # type: ignore[override]
        """The unique name, generated at first use: most temporaries are never asked for a name."""
        return unique_name.generate(f"{self._prefix}.tmp" if self._prefix else "generated_var")

    # Value
    @property
    def is_empty(self) -> bool:
        """True if no operator has given the variable a value."""
        return self._value is None

    @property
    def held(self) -> LazyValue:
        """Value of the variable. Raises ProgramError if no operator has given it a value."""
        if self._value is None:
            raise errors.ProgramError(f"variable {self.name} has no value: no operator has written it")
        return self._value

    def assign(self, value: LazyValue, node: GradNode | None = None, index: int = 0) -> None:
        """Set the value.

        Args:
            value: the value.
            node: node of the operator, if gradients flow to it.
            index: place of the value among the operator's outputs.
        """
        self._value = value
        if not value.aval.plain and type(value.aval.struct) is SelectedRows:
            self.type = VarType.SELECTED_ROWS
        if self._persistable:
            return
        if node is None:
            self._stop_gradient, self._edge = True, None
        elif not self._stop_gradient:
            self._edge = Edge(node, index)
            node.variables[index] = weakref.ref(self)

    def assign_array(self, array: np.ndarray) -> None:
        """Hold a copy of an array, of whatever shape and type."""
        self._value = on_device(np.asarray(array))

    def edge(self) -> Edge:
        """Return where its gradient goes."""
        return self._edge or Edge(None, 0, self)

    @property
    def block(self) -> "Block":  # type: ignore[override]
        """Block of the program of imperative mode."""
        return default_main_program().global_block()

    @property
    def shape(self) -> "Shape":  # type: ignore[override]
        """Dimensions of the value."""
        if self._value is not None:
            return Shape(self._value.aval.shape)
        return Shape(self._shape or ())

    @property
    def dtype(self) -> VarType:
        """Element type of the value."""
        if self._value is not None:
            aval = self._value.aval
            if aval.type is None:
                aval.type = var_type(aval.dtype)
            return aval.type
        return VarType.FP32 if self._dtype is None else self._dtype

    @property
    def persistable(self) -> bool:
        """True if the value outlives a step, as the values of parameters do."""
        return self._persistable

    @persistable.setter
    def persistable(self, value: bool) -> None:
        self._persistable = bool(value)

    @property
    def is_leaf(self) -> bool:
        """True if no recorded operator computed the value."""
        return self._edge is None

    def numpy(self) -> FetchedArray:  # type: ignore[override]
        """Return a copy of the value as a NumPy array; runs the lazy graph.

        A single number converts with `float`, `int` and `%`, whatever its shape.

        Raises ProgramError for a variable without a value.
        """
        with PHASES.phase("compute"):
            array = array_of(self.held)
            if isinstance(array, SelectedRows):
                with jax.enable_x64(True):
                    array = array.dense()
            return fetched(array)

    def set_value(self, value: Any) -> None:  # type: ignore[override]
        """Replace the value.

        Args:
            value: a NumPy array or a VarBase of the same shape and dtype.

        Raises DygraphError for a value of a wrong type, shape or dtype.
        """
        if not isinstance(value, (np.ndarray, VarBase)):
            raise errors.DygraphError(
                f"set_value of {self.name}: expected a numpy.ndarray or a VarBase, found {value.__class__.__name__}"
            )
        new = on_device(value) if isinstance(value, np.ndarray) else value.held
        if self._value is not None:
            old = self._value.aval
            if old.shape != new.aval.shape:
                raise errors.DygraphError(
                    f"set_value of {self.name}: expected shape {list(old.shape)}, found {list(new.aval.shape)}"
                )
            if old.dtype != new.aval.dtype:
                raise errors.DygraphError(
                    f"set_value of {self.name}: expected {old.dtype.name}, found {new.aval.dtype.name}"
                )
        self._value = new

    def value(self) -> "HeldTensor":
        """Return an object with `get_tensor()`, for scripts that read and set the value as a tensor."""
        return HeldTensor(self)

    def detach(self) -> "VarBase":  # type: ignore[override]
        """Return a variable with the same value, to which no gradient flows."""
        return VarBase(self.held, name=unique_name.generate("detach"), stop_gradient=True)

    # Gradients
    def backward(  # type: ignore[override]
        self, backward_strategy: Any = None, retain_graph: bool = False
    ) -> None:
        """Compute the gradients of all variables that lead to this variable.

        Each variable then holds its gradient in place of an earlier gradient. Nothing happens without a path for
        gradients, and in a second call.

        Args:
            backward_strategy: a `BackwardStrategy`; gradients are always summed in the same order.
            retain_graph: keep the graph for a pass of another loss.

        Raises TypeError for a strategy of a wrong type, DygraphError outside of dygraph mode, or for operators that a
        pass of another loss released.
        """
        if backward_strategy is not None and not hasattr(backward_strategy, "sort_sum_gradient"):
            raise TypeError(
                "backward, backward_strategy: expected a fluid.dygraph.BackwardStrategy, found "
                f"{backward_strategy.__class__.__name__}"
            )
        current, edge = tracer(), self.edge()
        if not self.stop_gradient and edge.node is not None and not edge.node.released:
            current.backward([self], [None], retain=retain_graph)

    def gradient(self) -> Any:
        """Return the gradient as a NumPy array, or None without a gradient.

        A gradient of sparse rows is a tuple (values, row numbers).
        """
        value = self._held_gradient()
        if value is None:
            return None
        found = array_of(value)
        if isinstance(found, SelectedRows):
            with jax.enable_x64(True):
                return fetched(found.values), fetched(found.rows)
        return fetched(found)

    def hold_gradient(self, gradient: LazyValue | None) -> None:
        """Set the gradient; None removes it."""
        self._gradient, self._gradient_variable = gradient, None

    def _held_gradient(self) -> LazyValue | None:
        variable = self._gradient_variable
        return self._gradient if variable is None else variable.held

    def clear_gradient(self) -> None:  # type: ignore[override]
        """Set the gradient to zeros; remove a gradient of sparse rows."""
        value = self._held_gradient()
        if value is not None:
            self.hold_gradient(zeros(value.aval) if value.aval.plain else None)

    def _grad_ivar(self) -> "VarBase | None":
        """Return the variable that holds the gradient; None where there is none."""
        found, value = self._gradient_variable, self._gradient
        if found is None and value is not None:
            found = self._gradient_variable = VarBase(value, name=f"{self.name}@GRAD", stop_gradient=True)
            if not value.aval.plain:
                found.type = VarType.SELECTED_ROWS
        return found

    # Fluid's name
    @property
    def _grad_name(self) -> str:
        return f"{self.name}@GRAD"

    # Python
    def __bool__(self) -> bool:
        return bool(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __float__(self) -> float:
        return float(self._number())

    def __index__(self) -> int:
        found = self._number()
        if found.dtype.kind not in "iub":
            raise TypeError(f"{self.name} of {self.dtype.name} is no index: an integer is needed")
        return int(found)

    def _number(self) -> Any:
        array = self.numpy()
        if array.size != 1:
            raise errors.DygraphError(
                f"{self.name} of shape {list(self.shape)} is not one number: reduce it first "
                "(layers.reduce_all, layers.reduce_any, layers.mean)"
            )
        return array.reshape(())[()]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name} has no dimensions, and no len()")
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)

    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        """Return the text of `str`: name, shape and numbers."""
        if self._value is None:
            return f"name {self.name}, dtype: VarType.{self.dtype.name}, no value\n"
        return f"name {self.name}, dtype: VarType.{self.dtype.name} shape: {list(self.shape)} {LoDTensor(self.numpy())}"

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"<{self.__class__.__name__} {self.name}: {self.dtype.name} {list(self.shape)}>"

    __hash__ = object.__hash__

    def __deepcopy__(self, memo: dict[int, Any]) -> "VarBase":
        if not self.is_leaf:
            raise RuntimeError(
                f"{self.name} is the result of operators: only variables that no gradient flows "
                "through are copied (detach it first)"
            )
        made = VarBase(
            self._value,
            persistable=self.persistable,
            name=unique_name.generate(self.name),
            stop_gradient=self.stop_gradient,
        )
        memo[id(self)] = made
        return made


class HeldTensor(LoDTensor):
    """The tensor that a VarBase holds: it reads and sets the variable's value, of any shape."""

    def __init__(self, variable: VarBase):
        self._variable = variable
        super().__init__()

    @property
    def value(self) -> np.ndarray | None:
        """A copy of the variable's value; None where it has none."""
        return None if self._variable.is_empty else self._variable.numpy()

    @value.setter
    def value(self, array: np.ndarray | None) -> None:
        if array is not None:
            self._variable.assign_array(array)

    def get_tensor(self) -> "HeldTensor":
        """Return the tensor."""
        return self


class ParamBase(VarBase, Parameter):
    """A parameter of a Layer, with the attributes of Parameter and VarBase.

    As in Fluid 1.8 gradients also flow to a parameter that is not `trainable`, and optimizers leave it as it is.
    `stop_gradient` stops the gradients.
    """

    def __init__(
        self,
        shape: Any,
        dtype: Any,
        name: str | None = None,
        trainable: bool = True,
        optimize_attr: dict[str, Any] | None = None,
        regularizer: Any = None,
        gradient_clip_attr: Any = None,
        do_model_average: bool | None = None,
        is_distributed: bool = False,
        stop_gradient: bool = False,
        type: VarType = VarType.LOD_TENSOR,
        **options: Any,
    ):
        if not shape or any(int(d) < 1 for d in shape):
            raise ValueError(f"parameter {name}: every dimension must be known and positive, found {shape}")
        VarBase.__init__(
            self,
            persistable=True,
            name=unique_name.generate("_param") if name is None else name,
            stop_gradient=stop_gradient,
            shape=shape,
            dtype=dtype,
        )
        self.trainable = trainable
        self.optimize_attr = optimize_attr or {"learning_rate": 1.0}
        self.regularizer = regularizer
        self.gradient_clip_attr = gradient_clip_attr
        self.do_model_average = do_model_average
        self.is_distributed = is_distributed
        self.entry = options.get("entry")
        self.max_rows, self.max_bytes = options.get("max_rows"), options.get("max_bytes")
