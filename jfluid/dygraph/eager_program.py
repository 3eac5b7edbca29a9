"""Program of imperative mode: a block runs an operator when the operator is appended.

Layers, initializers, clips, regularizers and optimizers append operators to blocks. The same code serves both modes.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.dygraph.calls import frozen
from jfluid.dygraph.lazy_graph import MOST_RECORDED, LazyGraph
from jfluid.dygraph.lazy_values import constant
from jfluid.dygraph.replays import Update, call_layer, call_updates
from jfluid.dygraph.tracer import Tracer, Variables, listed
from jfluid.dygraph.varbase import ParamBase, VarBase
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.program import Program
from jfluid.ir.types import VarType, np_dtype
from jfluid.ir.variable import Parameter, Variable

_NOTHING: Variables = {}


class EagerOperator:
    """Handle of an operator that was called. It belongs to no program.

    Attributes:
        type: type of the operator.
        outputs: written variables by slot.
    """

    __slots__ = ("_outputs", "type")

    def __init__(self, type_: str, outputs: Variables):
        self.type, self._outputs = type_, outputs

    @property
    def outputs(self) -> dict[str, list[Any]]:
        return {slot: [*listed(given)] for slot, given in self._outputs.items()}

    @property
    def output_arg_names(self) -> list[str]:
        return [v.name for given in self.outputs.values() for v in given]


class EagerBlock(Block):
    """The only block of an EagerProgram. It holds variables weakly."""

    program: "EagerProgram"

    def __init__(self, program: "EagerProgram"):
        super().__init__(program, 0)
        self._initializing = False
        self.vars = weakref.WeakValueDictionary()  # type: ignore[assignment]

    def create_var(self, *args: Any, **kwargs: Any) -> VarBase:
        """Create a variable with the arguments of Variable.

        With an initializer, a persistable variable of the same name without a value gets the first value and is
        returned.
        """
        if args:
            raise errors.ProgramError("create_var in dygraph mode: give the arguments by name")
        name, initializer = kwargs.get("name"), kwargs.get("initializer")
        found: Any = self.vars.get(name or "") if initializer is not None else None
        if found is None or not found.is_empty:
            found = VarBase(
                persistable=bool(kwargs.get("persistable")),
                name=name,
                stop_gradient=bool(kwargs.get("stop_gradient")),
                shape=kwargs.get("shape"),
                dtype=kwargs.get("dtype"),
            )
            kind = kwargs.get("type", VarType.LOD_TENSOR)
            if kind != VarType.LOD_TENSOR:
                found.type = VarType(kind)
            if found.persistable:
                self.vars[found.name] = found
        if initializer is not None:
            self.initialize(found, initializer)
        return found  # type: ignore[no-any-return]

    def temporary(self, prefix: str) -> VarBase:
        made = VarBase.__new__(VarBase)
        made._prefix = prefix
        return made

    def create_parameter(self, *args: Any, **kwargs: Any) -> Parameter:
        """Create a parameter with its first value, from the arguments of Parameter.

        Raises DygraphError if a parameter of the same `unique_name.guard` has this name.
        """
        initializer = kwargs.pop("initializer", None)
        if args:
            kwargs = dict(zip(("shape", "dtype", "type"), args)) | kwargs
        name, named = kwargs.get("name") or "", unique_name.parameters()
        if name in named:
            raise errors.DygraphError(
                f"there is a parameter {name} already, of shape {list(named[name].shape)}: in dygraph mode "
                "parameters are shared by sharing the layer, and names are unique"
            )
        param = ParamBase(**kwargs)
        self.vars[param.name] = named[param.name] = param
        if initializer is not None:
            self.initialize(param, initializer)
        return param

    def initialize(self, variable: VarBase, initializer: Any) -> None:
        """Give a variable its first value."""
        self._initializing = True
        try:
            with self.program.tracer.recording(False):
                initializer(variable, self)
        finally:
            self._initializing = False

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Any:
        """Run an operator with the arguments of `Block.append_op`."""
        given = self._checked(type, inputs) if inputs else _NOTHING
        made = self._checked(type, outputs) if outputs else _NOTHING
        if stop_gradient:
            for variables in made.values():
                for v in listed(variables):
                    if v is not None:
                        v.stop_gradient = True
        if type == "fill_constant" and not given and self._filled(made, attrs):
            return EagerOperator(type, made)
        self._call(type, given, made, attrs)
        return EagerOperator(type, made)

    def append_new(
        self,
        type: str,
        inputs: Mapping[str, Any],
        outs: tuple[str, ...],
        attrs: Mapping[str, Any] | None,
        prefix: str,
    ) -> tuple[VarBase, ...]:
        made = self._call(type, self._checked(type, inputs), outs, attrs)
        for v in made:
            v._prefix = prefix
        return tuple(made)

    def _call(
        self,
        type: str,
        inputs: Variables,
        outputs: Variables | tuple[str, ...],
        attrs: Mapping[str, Any] | None,
    ) -> Any:
        tracer = self.program.tracer
        self._ready(tracer.graph)
        return tracer.call(type, inputs, outputs, attrs)

    def _ready(self, graph: LazyGraph) -> None:
        """Run the recorded operators if these end a step before the next operator."""
        # First values are a step of their own, so that the next steps are equal.
        if (depth := graph.node.depth) and (
            graph.step_ended or graph.initializes != self._initializing or depth >= MOST_RECORDED
        ):
            graph.run()
        graph.initializes = self._initializing

    def append_chain(
        self,
        token: Hashable,
        attrs: Mapping[str, Any] | None,
        variables: Sequence[Any],
        function: Callable[[], Any],
        prefix: str,
    ) -> Any:
        """Call a function that appends a chain of operators, and return its result.

        Args:
            token, attrs: equal for functions that call the same operators.
            variables: all variables that the function reads; None for a missing variable.
            function: appends the operators, each upon the result of the operator before it.
            prefix: prefix of the result's name.
        """
        for v in variables:
            if v is not None and not isinstance(v, VarBase):
                return function()  # raises the error of the layer
        tracer = self.program.tracer
        self._ready(tracer.graph)
        whole = (token, frozen(attrs) if attrs else ())
        if tracer.observed:  # a replay would hide the operators
            found = function()
        else:
            found = call_layer(tracer.graph, tracer.records, whole, variables, function)
        found._prefix = prefix
        return found

    def append_updates(self, type: str, updates: Sequence[Update]) -> None:
        """Run an operator for each update, with the errors of `append_op`."""
        graph = self.program.tracer.graph
        self._ready(graph)
        call_updates(graph, type, updates, lambda update: self.append_op(type, *update))

    def insert_op(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Any:
        return self.append_op(type, inputs, outputs, attrs, stop_gradient)

    def _filled(self, made: Variables, attrs: Mapping[str, Any] | None) -> bool:
        """Set a persistable variable to a constant without an operator; return True on success.

        The value then is an array on the device, like the results of a step, so that the first step needs no executable
        for itself.
        """
        out: Any
        (out,) = listed(made["Out"])
        attrs = attrs or {}
        if not out.persistable or attrs.get("str_value"):
            return False
        dtype = np_dtype(attrs.get("dtype", out.dtype))
        filled = np.full(attrs["shape"], attrs.get("value", 0.0), dtype)
        with jax.enable_x64(True):
            out.assign(constant(jax.device_put(filled, self.program.tracer.device)))
        return True

    def _checked(self, type_: str, named: Mapping[str, Any]) -> Variables:
        """Return the variables of all slots."""
        for v in named.values():
            if not isinstance(v, VarBase):
                return {s: self._listed(type_, s, v) for s, v in named.items() if v is not None}
        return named

    def _listed(self, type_: str, slot: str, given: Any) -> list[VarBase]:
        """Return the variables of a slot."""
        found = list(given) if isinstance(given, (list, tuple)) else [given]
        for i, v in enumerate(found):
            if isinstance(v, VarBase):
                continue
            if isinstance(v, str):
                found[i] = self.var_recursive(v)
            elif isinstance(v, Variable):
                raise errors.ProgramError(
                    f"operator {type_}, {slot}: {v.name} is a variable of a static program; dygraph "
                    "mode computes with VarBases (fluid.dygraph.to_variable)"
                )
            else:
                raise TypeError(
                    f"operator {type_}, {slot}: expected a VarBase, found {v.__class__.__name__} ({v!r:.60})"
                )
        return found

    def iter_parameters(self) -> Iterator[Parameter]:
        return (v for v in list(self.vars.values()) if isinstance(v, Parameter))


class EagerProgram(Program):
    """The default program, main and startup, of dygraph mode.

    Attributes:
        tracer: runs its operators.
    """

    eager = True

    def __init__(self, place: Any):
        super().__init__()
        self.tracer = Tracer(place)
        self.tracer.reseed(self.random_seed)
        self.blocks = [EagerBlock(self)]

    @property
    def records(self) -> bool:  # type: ignore[override]
        return self.tracer.records

    @property
    def random_seed(self) -> int:
        return self._seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise errors.ProgramError(f"random_seed: expected an integer, found {seed!r}")
        self._seed = seed
        self.tracer.reseed(seed)

    def variable_of(self, array: np.ndarray) -> VarBase:
        """Return a variable with an array's value, to which no gradient flows."""
        return VarBase(constant(array), stop_gradient=True)

    def create_block(self, parent_idx: int | None = None) -> Block:
        raise errors.UnsupportedError(
            "dygraph mode has no blocks: write loops and conditions in Python, or build a Program under program_guard"
        )

    _create_block = create_block
