"""Layers with blocks inside."""
from jfluid import errors
from jfluid.ir.block import Block
from jfluid.ir.program import default_main_program
from jfluid.ir.prune import reads_of, writes_of
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, emit

__all__ = ["Switch"]


class conditional:
    """A context for a block that runs where `condition`, one boolean, holds.

    What the block writes of the variables outside keeps its value where the condition does not hold.
    """

    def __init__(self, condition: Variable):
        self.condition = condition
        self.program = default_main_program()

    def __enter__(self) -> Block:
        self.outside = self.program.current_block()
        self.inside = self.program.create_block()
        return self.inside

    def __exit__(self, *error: object) -> None:
        self.program.rollback()
        if error[0] is not None:
            return
        scope = self.outside.create_var(type=VarType.STEP_SCOPES)
        reads: set[str] = set()
        written: set[str] = set()
        for op in self.inside.ops:
            reads |= reads_of(op) - written
            written |= writes_of(op)
        own = set(self.inside.vars)
        self.outside.append_op("conditional_block", {"Cond": [self.condition], "Input": sorted(reads - own)},
                               {"Out": sorted(written - own), "Scope": [scope]},
                               {"sub_block": self.inside, "is_scalar_condition": True})


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

    def case(self, condition: Variable) -> conditional:
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

    def default(self) -> conditional:
        """A context for what runs if no condition held."""
        if not self.pre_not_conditions:
            raise errors.ProgramError("Switch.default: there must be a case before it")
        return conditional(self.pre_not_conditions[-1])
