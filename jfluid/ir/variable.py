"""Variables of a program, which operators read and write."""

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from jfluid import errors
from jfluid.errors import DygraphError
from jfluid.ir import codec, unique_name
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.descs import VarDesc
from jfluid.ir.svg import MOST_DRAWN, variable_to_svg
from jfluid.ir.types import EMPTY_NAME as EMPTY_NAME
from jfluid.ir.types import VarType, np_dtype, var_type
from jfluid.printable import printable

if TYPE_CHECKING:
    from jfluid.ir.block import Block
    from jfluid.ir.operator import Operator

GRAD_SUFFIX = "@GRAD"


def grad_name(name: str) -> str:
    """Return the name of the gradient of variable `name`."""
    return name + GRAD_SUFFIX


class Variable:
    """Variable of a block.

    Arithmetic, comparison and indexing of a Variable append operators to the current block
    (`jfluid.layers` installs those methods).

    Attributes:
        name: unique within the block.
        shape: the dimensions; -1 for a dimension that is known only when the program runs.
        dtype: the element type (`VarType`).
        lod_level: the number of levels of its sequences; 0 for a dense tensor.
        type: the kind of variable (`VarType.LOD_TENSOR`, ...).
        persistable: True if its value outlives a run, in the Scope.
        stop_gradient: True if no gradient flows to it.
        is_data: True if it is fed.
        need_check_feed: True if the shape of feeds is compared with `shape`.
    """

    _DETAILS: tuple[str, ...] = ("error_clip", "stop_gradient")  # that no program file holds

    def __init__(
        self,
        block: "Block",
        type: VarType = VarType.LOD_TENSOR,
        name: str | None = None,
        shape: Any = None,
        dtype: Any = None,
        lod_level: int | None = None,
        capacity: int | None = None,
        persistable: bool | None = None,
        error_clip: Any = None,
        stop_gradient: bool = False,
        is_data: bool = False,
        need_check_feed: bool = False,
        belong_to_optimizer: bool = False,
        initializer: Any = None,
    ):
        self.block = block
        self.name = unique_name.generate("_generated_var") if name is None else name
        self.type = VarType(type)
        self._shape: tuple[int, ...] | None = None if shape is None else tuple(int(d) for d in shape)
        self._dtype: VarType | None = None if dtype is None else var_type(dtype)
        self.lod_level = lod_level or 0
        self.capacity = capacity
        self._persistable = bool(persistable)
        self.error_clip = error_clip
        self._stop_gradient = stop_gradient
        self.is_data = is_data
        self.need_check_feed = need_check_feed
        self.belong_to_optimizer = belong_to_optimizer
        self.opaque_type = b""  # the file's description of a reader or tuple, kept as read
        self.op: Operator | None = None  # the operator that writes it last, once there is one
        if initializer is not None:
            initializer(self, block)

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions; -1 for a dimension that is known only when the program runs."""
        return () if self._shape is None else self._shape

    @property
    def dtype(self) -> VarType:
        """Element type."""
        return VarType.FP32 if self._dtype is None else self._dtype

    @property
    def persistable(self) -> bool:
        """True if the value outlives a run, in the Scope."""
        return self._persistable

    @persistable.setter
    def persistable(self, value: bool) -> None:
        self._persistable = bool(value)
        self.block.program._touch()

    @property
    def stop_gradient(self) -> bool:
        """True if no gradient flows to the variable."""
        return self._stop_gradient

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        self._stop_gradient = bool(value)

    @property
    def desc(self) -> VarDesc:
        """The variable as Fluid describes it: `var.desc.type()`, `var.desc.shape()`."""
        return VarDesc(self)

    @property
    def grad_name(self) -> str:
        """The name of this variable's gradient."""
        return grad_name(self.name)

    @property
    def np_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements."""
        return np_dtype(self.dtype)

    def set_shape_dtype(self, shape: tuple[int, ...], dtype: VarType) -> None:
        """Set the inferred shape and element type."""
        self._shape, self._dtype = tuple(shape), dtype

    def set_error_clip(self, error_clip: Any) -> None:
        """Set a clip that is applied to this variable's gradient as soon as it is computed."""
        self.error_clip = error_clip

    _set_error_clip = set_error_clip

    def _set_info(self, key: str, value: Any) -> None:
        """Store a value under `key` for scripts; jfluid does not read it."""
        self.__dict__.setdefault("_info", {})[key] = value

    def _get_info(self, key: str) -> Any:
        """Return the value that `_set_info` stored, or None."""
        return self.__dict__.get("_info", {}).get(key)

    def clone_into(self, block: "Block") -> "Variable":
        """Return a copy of this variable that belongs to `block`."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.block, twin.op = block, None
        block.vars[twin.name] = twin
        return twin

    def to_string(self, throw_on_error: bool, with_details: bool = False) -> str:
        """Return the variable's description; `with_details` adds the attributes that no program file has."""
        details = [f"{name}: {getattr(self, name)}\n" for name in self._DETAILS] if with_details else []
        return codec.text_of(self.to_message(), throw_on_error, with_details) + "".join(details)

    def to_message(self) -> pb.VarDesc:
        """Return the variable in Fluid's format of program files."""
        told = self._shape is not None or self._dtype is not None
        return codec.variable_message(
            codec.VariableRecord(
                self.name,
                self.type,
                self.shape if told else None,
                self.dtype if told else None,
                self.lod_level,
                self.persistable,
                self.need_check_feed,
                self.opaque_type,
            )
        )

    @classmethod
    def from_record(cls, block: "Block", record: codec.VariableRecord) -> "Variable":
        """Return the variable of a program that is read from a file."""
        var = cls(
            block,
            type=record.type,
            name=record.name,
            shape=record.shape,
            dtype=record.dtype,
            lod_level=record.lod_level,
            persistable=record.persistable,
            is_data=record.need_check_feed,
            need_check_feed=record.need_check_feed,
        )
        var.opaque_type = record.opaque_type
        return var

    def _dygraph_only(self, what: str) -> NoReturn:
        if self.block.program.turned:
            raise DygraphError(
                f"Variable.{what}: {self.name} is a tensor of a function that is being made a Program, and "
                "has no value yet: compute with layers, or do this outside of the declared function "
                "(ProgramTranslator().enable(False) runs it as plain Python)"
            )
        raise DygraphError(
            _dygraph_words(what) + f": {self.name} is a variable of a program; run that with "
            "Executor.run, and fetch the value"
        )

    def backward(self, backward_strategy: Any = None) -> NoReturn:
        """Dygraph only: raises DygraphError. Use `fluid.backward.append_backward`."""
        self._dygraph_only("backward")

    def gradient(self) -> NoReturn:
        """Dygraph only: raises DygraphError. Fetch `var.grad_name`."""
        self._dygraph_only("gradient")

    def clear_gradient(self) -> NoReturn:
        """Dygraph only: raises DygraphError."""
        self._dygraph_only("clear_gradient")

    def detach(self) -> NoReturn:
        """Dygraph only: raises AssertionError, and no subclass of it, as in Fluid.

        Set `stop_gradient` on the output of `layers.assign`.
        """
        if self.block.program.turned:
            self._dygraph_only("detach")
        error = AssertionError(_dygraph_words("detach"))
        error.add_note(f"{self.name} is a variable of a program: say layers.assign, and stop_gradient = True")
        raise error

    def numpy(self) -> NoReturn:
        """Dygraph only: raises DygraphError. Fetch the variable."""
        self._dygraph_only("numpy")

    def set_value(self, value: Any) -> NoReturn:
        """Dygraph only: raises DygraphError.

        Use `scope.find_var(name).get_tensor().set(...)`.
        """
        self._dygraph_only("set_value")

    def __repr__(self) -> str:
        name = printable(self.name, lines=False)
        return f"<{type(self).__name__} {name}: {self.dtype.name} {list(self.shape)}>"

    def __str__(self) -> str:
        return self.to_string(True)

    def _repr_svg_(self) -> str:
        """Draw the operators that compute the variable in a notebook; more than 200 are folded by name scope."""
        return variable_to_svg(self.block, self.name, MOST_DRAWN)

    if TYPE_CHECKING:  # jfluid.layers.math_op_patch installs these; == and != build operators too

        def __add__(self, other: Any) -> "Variable": ...
        def __radd__(self, other: Any) -> "Variable": ...
        def __sub__(self, other: Any) -> "Variable": ...
        def __rsub__(self, other: Any) -> "Variable": ...
        def __mul__(self, other: Any) -> "Variable": ...
        def __rmul__(self, other: Any) -> "Variable": ...
        def __truediv__(self, other: Any) -> "Variable": ...
        def __rtruediv__(self, other: Any) -> "Variable": ...
        def __floordiv__(self, other: Any) -> "Variable": ...
        def __rfloordiv__(self, other: Any) -> "Variable": ...
        def __mod__(self, other: Any) -> "Variable": ...
        def __rmod__(self, other: Any) -> "Variable": ...
        def __pow__(self, other: Any) -> "Variable": ...
        def __rpow__(self, other: Any) -> "Variable": ...
        def __eq__(self, other: Any) -> "Variable": ...  # type: ignore[override]
        def __ne__(self, other: Any) -> "Variable": ...  # type: ignore[override]
        def __lt__(self, other: Any) -> "Variable": ...
        def __le__(self, other: Any) -> "Variable": ...
        def __gt__(self, other: Any) -> "Variable": ...
        def __ge__(self, other: Any) -> "Variable": ...
        def __neg__(self) -> "Variable": ...
        def __getitem__(self, index: Any) -> "Variable": ...
        def astype(self, dtype: Any) -> "Variable": ...

    # Comparison operators are overloaded to build programs, so identity must be said explicitly.
    __hash__ = object.__hash__


def _dygraph_words(what: str) -> str:
    """Return Fluid's message for a method that needs an eager variable; old scripts search for this text."""
    return (
        f"'{what}' should be called by imperative Varible in imperative mode, please use "
        "fluid.dygraph.guard() as context to run it in imperative mode"
    )


class Parameter(Variable):
    """Persistable variable that training changes.

    It has these attributes beyond Variable's: trainable, optimize_attr (`{"learning_rate":
    factor}`), regularizer, gradient_clip_attr, do_model_average, is_distributed, entry, max_rows,
    max_bytes (see ParamAttr).

    Raises ValueError if the shape is missing or has a dimension below 1.
    """

    _DETAILS = (*Variable._DETAILS, "trainable", "optimize_attr", "regularizer", "do_model_average")

    def __init__(
        self,
        block: "Block",
        shape: Any,
        dtype: Any,
        type: VarType = VarType.LOD_TENSOR,
        trainable: bool = True,
        optimize_attr: dict[str, Any] | None = None,
        regularizer: Any = None,
        gradient_clip_attr: Any = None,
        do_model_average: bool | None = None,
        is_distributed: bool = False,
        entry: Any = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        **kwargs: Any,
    ):
        if not all(hasattr(d, "__index__") for d in shape):
            raise errors.AttributeTypeError(
                f"parameter {kwargs.get('name')}: expected a shape of whole numbers, found {list(shape)}: check the "
                "size that the layer was given (write // for a whole quotient)"
            )
        if not shape or any(d < 1 for d in shape):
            raise ValueError(
                f"parameter {kwargs.get('name')}: every dimension must be known and positive, found {shape}"
            )
        kwargs.setdefault("persistable", True)
        super().__init__(block, type=type, shape=shape, dtype=dtype, **kwargs)
        self.trainable = trainable
        self.optimize_attr = optimize_attr or {"learning_rate": 1.0}
        self.regularizer = regularizer
        self.gradient_clip_attr = gradient_clip_attr
        self.do_model_average = do_model_average
        self.is_distributed = is_distributed
        self.entry, self.max_rows, self.max_bytes = entry, max_rows, max_bytes
