"""The graph of ONNX while operators are turned into its nodes, by onnx's own builders."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from jfluid import errors
from jfluid.exports.model import LoadedModel
from jfluid.exports.padded import LENGTHS
from jfluid.ir.operator import Operator
from jfluid.ir.variable import EMPTY_NAME
from jfluid.ops import registry

Converter = Callable[["OnnxBuilder", "ConvertedOp"], None]
CONVERTERS: dict[str, Converter] = {}
PADDED = ".padded"  # behind the name of a feed or a fetch of sequences, until the graph is whole


def converts(*types: str) -> Callable[[Converter], Converter]:
    """Register the converter of operators of some types to ONNX nodes."""

    def register(converter: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(types, converter))
        return converter

    return register


class ConvertedOp:
    """An operator that is converted: its attributes with their defaults, and its variables."""

    def __init__(self, op: Operator):
        self.op, self.type = op, op.type
        self._defaults = registry.get(op.type).attrs

    def __getitem__(self, name: str) -> Any:
        """Return the value of an attribute."""
        default = self._defaults[name].default if name in self._defaults else None
        return self.op.attrs.get(name, default)

    def names(self, slot: str) -> list[str]:
        """Return the variables of an input slot."""
        return [name for name in self.op.input(slot) if name != EMPTY_NAME]

    def has(self, slot: str) -> bool:
        """Return whether an input slot is given."""
        return slot in self.op.inputs and bool(self.names(slot))

    def input(self, slot: str = "X") -> str:
        """Return the one variable of an input slot."""
        return self.names(slot)[0]

    def output(self, slot: str = "Out") -> str:
        """Return the one variable of an output slot."""
        return str(self.op.output(slot)[0])

    def refuse(self, what: str) -> errors.UnsupportedError:
        """Return the error of an operator's feature that ONNX does not have."""
        return errors.UnsupportedError(f"onnx: operator {self.type}: {what}")

    def without(self, **slots_and_attrs: Any) -> None:
        """Raise where an input slot is given (None), or an attribute is not the value."""
        for name, value in slots_and_attrs.items():
            if value is None and self.has(name):
                raise self.refuse(f"its input {name} is not converted")
            if value is not None and self[name] != value:
                raise self.refuse(f"{name}={self[name]!r} is not converted, only {value!r}")


class OnnxBuilder:
    """The nodes and constants of ONNX's graph while it grows.

    Attributes:
        model: the exported model.
        nodes, constants: of the graph.
        sequences: variables that are padded rows of sequences, with the name of the feed that has the lengths.
    """

    def __init__(self, model: LoadedModel):
        self.model = model
        self.sequences = {var.name: var.name for var in model.feeds if var.lod_level}
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._block = model.program.global_block()
        self._made: dict[tuple[str, str, int], str] = {}

    def add(self, kind: str, inputs: Sequence[str], output: str | None = None, **attrs: Any) -> str:
        """Add a node of one output; returns the output's name, a new one by default."""
        name = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attrs))
        return name

    def add_several(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> None:
        """Add a node of several outputs."""
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), **attrs))

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Return a constant; returns its name."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def shape(self, name: str) -> list[int]:
        """Return the declared shape of a variable, with -1 for sizes that are not fixed."""
        return list(self._block.var(name).shape)

    def rank(self, name: str) -> int:
        """Return the number of dimensions of a variable."""
        return len(self.shape(name))

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of a variable's elements."""
        found: np.dtype[Any] = self._block.var(name).np_dtype
        return found

    def like(self, name: str, value: float) -> str:
        """Return a constant of the dtype of a variable."""
        return self.constant(value, self.dtype(name))

    def value(self, name: str) -> np.ndarray[Any, Any]:
        """Return the value of a parameter. Raises UnsupportedError for a variable that is none."""
        found = self.model.parameter(name)
        if found is None:
            raise errors.UnsupportedError(f"onnx: {name}: expected a parameter, found a computed variable")
        return found

    def is_read(self, name: str) -> bool:
        """Return True if an operator reads a variable, or the model returns it."""
        returned = any(var.name == name for var in self.model.fetches)
        return returned or any(name in op.input_arg_names for op in self.model.operators())

    def row_shape(self, name: str) -> list[int]:
        """Return the shape of a row of sequences. Raises UnsupportedError for a size that is not fixed."""
        shape = self.shape(name)[1:]
        if min(shape, default=1) < 0:
            raise errors.UnsupportedError(f"onnx: {name}: rows of sequences have fixed sizes, found {shape}")
        return shape

    def padded(self, name: str) -> str:
        """Return a variable of sequences as [batch, longest, ...]."""
        size = self.add("Concat", [self.size(self.sequences[name]), self.constant(self.row_shape(name))], axis=0)
        return self.add("Reshape", [name, size])

    def size(self, feed: str) -> str:
        """Return the number and the padded length of the sequences of a feed: int64 [2]."""
        return self._once("size", feed, 0, lambda: self.add("Shape", [feed + PADDED], end=2))

    def lengths(self, feed: str, rank: int) -> str:
        """Return the lengths of the sequences of a feed: int64 [batch, 1, ...] of a rank."""

        def make() -> str:
            if rank == 1:
                return self.add("Cast", [feed + LENGTHS], to=TensorProto.INT64)
            return self.add("Unsqueeze", [self.lengths(feed, 1), self.constant(list(range(1, rank)))])

        return self._once("lengths", feed, rank, make)

    def places(self, feed: str) -> str:
        """Return the places of rows in a sequence of a feed: int64 [longest]."""

        def make() -> str:
            longest = self.add("Gather", [self.size(feed), self.constant(1)])
            return self.add("Range", [self.constant(0), longest, self.constant(1)])

        return self._once("places", feed, 0, make)

    def mask(self, feed: str, rank: int) -> str:
        """Return True for the rows of sequences, False behind each: [batch, longest, 1, ...] of a rank."""

        def make() -> str:
            if rank == 2:
                return self.add("Less", [self.places(feed), self.lengths(feed, 2)])
            return self.add("Unsqueeze", [self.mask(feed, 2), self.constant(list(range(2, rank)))])

        return self._once("mask", feed, rank, make)

    def _once(self, kind: str, feed: str, rank: int, make: Callable[[], str]) -> str:
        """Return the name that `make` returned at the first call for these arguments."""
        key = kind, feed, rank
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def tensor_type(dtype: Any) -> int:
    """ONNX's number of a dtype."""
    found: int = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert found != TensorProto.UNDEFINED
    return found
