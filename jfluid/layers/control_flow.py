"""Layers with blocks inside."""
import contextlib
from collections.abc import Iterator

from jfluid import errors
from jfluid.ir.block import Block
from jfluid.ir.program import default_main_program
from jfluid.ir.prune import outer_names
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, emit

__all__ = ["Switch"]


@contextlib.contextmanager
def conditional(condition: Variable) -> Iterator[Block]:
    """A block that runs where `condition`, one boolean, holds.

    What the block writes of the variables outside keeps its value where the condition does not hold.
    """
    program = default_main_program()
    outside = program.current_block()
    inside = program.create_block()
    try:
        yield inside
    finally:
        program.rollback()
    reads, writes = outer_names(inside)
    scope = outside.create_var(type=VarType.STEP_SCOPES)
    written = {n for op in inside.ops for n in op.output_arg_names}
    outside.append_op("conditional_block", {"Cond": [condition], "Input": sorted(reads - written)},
                      {"Out": sorted(writes), "Scope": [scope]},
                      {"sub_block": inside, "is_scalar_condition": True})


class Switch:
    """The first case whose condition holds is run, else the default.

        with layers.Switch() as switch:
            with switch.case(step < warmup):
                layers.assign(small, rate)
            with switch.default():
                layers.assign(large, rate)

    Conditions are boolean variables with one element. Results leave a case through `layers.assign` to a variable
    that was made before. Raises ProgramError outside of `with`, and where `default` comes before any case.
    """

    def __init__(self, name: str | None = None):
        self.helper = LayerHelper("switch", name=name)
        self.inside_scope = False
        self.pre_not_conditions: list[Variable] = []

    def __enter__(self) -> "Switch":
        self.inside_scope = True
        return self

    def __exit__(self, *error: object) -> None:
        self.inside_scope = False

    def case(self, condition: Variable) -> contextlib.AbstractContextManager[Block]:
        """A context for what runs if `condition` holds and no earlier one did."""
        if not self.inside_scope:
            raise errors.ProgramError("Switch.case: use it inside of `with Switch() as switch:`")
        if not isinstance(condition, Variable) or condition.dtype != VarType.BOOL:
            found = condition.dtype.name if isinstance(condition, Variable) else type(condition).__name__
            raise TypeError(f"Switch.case, condition: expected a boolean Variable, found {found}")
        fails = emit("logical_not", {"X": condition})
        if self.pre_not_conditions:
            before = self.pre_not_conditions[-1]
            fails = emit("logical_and", {"X": before, "Y": fails})
            condition = emit("logical_and", {"X": before, "Y": condition})
        self.pre_not_conditions.append(fails)
        return conditional(condition)

    def default(self) -> contextlib.AbstractContextManager[Block]:
        """A context for what runs if no condition held."""
        if not self.pre_not_conditions:
            raise errors.ProgramError("Switch.default: there must be a case before it")
        return conditional(self.pre_not_conditions[-1])
