"""The operators that are called in dygraph mode, written down as a Program."""

from collections.abc import Mapping, Sequence
from typing import Any

from jfluid.dygraph.tracer import Variables, listed
from jfluid.dygraph.varbase import VarBase, tracer
from jfluid.ir.program import Program
from jfluid.ir.variable import Parameter, Variable


class Recording:
    """A context in which the operators of dygraph mode are noted.

    Args:
        inputs: the variables that the program is fed.

    Attributes:
        parameters: eager variables that operators read and no operator computed, by name.
    """

    def __init__(self, inputs: Sequence[VarBase]):
        self.parameters: dict[str, VarBase] = {}
        self._program = Program()
        self._names: dict[int, str] = {}  # of values, by id
        self._kept: list[Any] = []  # the values, so that no other one gets an id
        self._count = 0
        for i, v in enumerate(inputs):
            self._declare(f"feed_{i}", v, is_data=True, need_check_feed=True)
            self._name(v, f"feed_{i}")

    def __enter__(self) -> "Recording":
        self._tracer = tracer()
        self._tracer.call = self._call
        return self

    def __exit__(self, *_: object) -> None:
        del self._tracer.call

    def _call(
        self,
        type_: str,
        inputs: Variables,
        outputs: Variables | tuple[str, ...],
        attrs: Mapping[str, Any] | None = None,
        draw: tuple[int, int] | None = None,
    ) -> Sequence[VarBase | None]:
        given = {s: [self._read(v) for v in listed(vs) if v is not None] for s, vs in inputs.items()}
        found: Sequence[VarBase | None] = type(self._tracer).call(self._tracer, type_, inputs, outputs, attrs, draw)
        if isinstance(outputs, tuple):
            outputs = dict(zip(outputs, [[v] for v in found], strict=True))
        made = {
            s: [self._written(v) for v in listed(vs) if v is not None and not v.is_empty] for s, vs in outputs.items()
        }
        self._program.global_block().append_op(
            type_,
            {s: n for s, n in given.items() if n},
            {s: n for s, n in made.items() if n},
            attrs,
        )
        return found

    def _name(self, variable: VarBase, name: str) -> str:
        self._names[id(variable.held)] = name
        self._kept.append(variable.held)
        return name

    def _declare(self, name: str, v: VarBase, **options: Any) -> Variable:
        block = self._program.global_block()
        found = block.create_var(name=name, shape=tuple(v.shape), dtype=v.dtype, **options)
        found.stop_gradient = v.stop_gradient
        return found

    def _read(self, v: VarBase) -> str:
        found = self._names.get(id(v.held))
        if found is not None:
            return found
        name = v.name
        block = self._program.global_block()
        while block.has_var(name):
            self._count += 1
            name = f"{v.name}_{self._count}"
        if isinstance(v, Parameter):
            block.create_parameter(name=name, shape=tuple(v.shape), dtype=v.dtype, trainable=v.trainable)
        else:
            self._declare(name, v, persistable=True)
        self.parameters[name] = v
        return self._name(v, name)

    def _written(self, v: VarBase) -> str:
        for name, known in self.parameters.items():
            if known is v:  # state that is updated in place
                return self._name(v, name)
        name = f"t_{self._count}"
        self._count += 1
        self._declare(name, v)
        return self._name(v, name)

    def program(self, outputs: Sequence[VarBase]) -> tuple[Program, list[str]]:
        """Return the Program and its output names."""
        names = [self._read(v) for v in outputs]
        self._program.verify("TracedLayer.trace")
        return self._program, names
