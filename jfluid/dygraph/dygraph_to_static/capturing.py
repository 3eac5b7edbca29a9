"""Programs of declared functions, in which eager variables become variables of the Program."""

from collections.abc import Mapping
from typing import Any

from jfluid.dygraph.varbase import VarBase
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.program import Program
from jfluid.ir.variable import Parameter, Variable


class CapturingProgram(Program):
    """A Program with operators that may name eager variables.

    Attributes:
        captured: eager variables that operators read or write, by name in the program.
    """

    turned = True

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [_CapturingBlock(self, 0)]
        self.captured: dict[str, VarBase] = {}

    def create_block(self, parent_idx: int | None = None) -> Block:
        made = super().create_block(parent_idx)
        self.blocks[made.idx] = _CapturingBlock(self, made.idx, made.parent_idx)
        return self.blocks[made.idx]

    def capture(self, eager: VarBase) -> Variable:
        """Return the persistable variable of an eager variable in this program, of the same name if it is free."""
        block = self.global_block()
        for name, known in self.captured.items():
            if known is eager:
                return block.vars[name]
        name = eager.name
        while name in block.vars:
            name = unique_name.generate(eager.name)
        kind: dict[str, Any] = {"shape": eager.shape, "dtype": eager.dtype, "name": name}
        if isinstance(eager, Parameter):
            made: Variable = Parameter(block, trainable=eager.trainable, **kind)
        else:
            made = Variable(block, persistable=True, **kind)
        made.stop_gradient = eager.stop_gradient
        block.vars[name] = made
        self.captured[name] = eager
        return made


class _CapturingBlock(Block):
    program: CapturingProgram

    def insert_op(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Any:
        return super().insert_op(index, type, self._own(inputs), self._own(outputs), attrs, stop_gradient)

    def _own(self, slots: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        def own(value: Any) -> Any:
            if isinstance(value, VarBase):
                return self.program.capture(value)
            return [own(v) for v in value] if isinstance(value, (list, tuple)) else value

        return slots and {slot: own(value) for slot, value in slots.items()}
