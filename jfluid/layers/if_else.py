"""IfElse: two blocks of operators, each for the rows that a condition selects."""

from typing import Any

from jfluid import errors
from jfluid.ir import unique_name
from jfluid.ir.variable import Variable
from jfluid.layers.arrays import merge_lod_tensor
from jfluid.layers.blocks import conditional
from jfluid.layers.creation import assign
from jfluid.layers.helper import LayerHelper

__all__ = ["IfElse"]


class IfElse:
    """Row-wise branches: rows with a true condition go through one block, all other rows through a second.

        choice = layers.IfElse(condition)  # bool [batch, 1]
        with choice.true_block():
            choice.output(layers.scale(choice.input(x), 2.0))
        with choice.false_block():
            choice.output(choice.input(x))
        result, = choice()

    Inside, both blocks have the row count of the batch, with the selected rows first; sums and means
    see only the selected rows.

    Args:
        cond: a boolean Variable [batch, 1].
        name: see `jfluid.layers`.

    Raises TypeError for a condition that is no Variable, ProgramError for methods called in a wrong order.
    """

    OUT_IF_ELSE_BLOCKS, IN_IF_ELSE_TRUE_BLOCKS, IN_IF_ELSE_FALSE_BLOCKS = range(3)

    def __init__(self, cond: Variable, name: str | None = None):
        if not isinstance(cond, Variable):
            raise TypeError(f"IfElse, cond: expected a Variable, found {type(cond).__name__}")
        self.helper = LayerHelper("ifelse", name=name)
        self.cond = cond
        self.input_table: dict[str, tuple[Variable, Variable]] = {}
        self.status = IfElse.OUT_IF_ELSE_BLOCKS
        # of the true and of the false block
        self.output_table: tuple[list[Variable], list[Variable]] = ([], [])

    def input(self, x: Variable) -> Variable:
        """Return the rows of `x` [batch, ...] that this block is for. To be called in a block."""
        if self.status == IfElse.OUT_IF_ELSE_BLOCKS:
            raise errors.ProgramError("IfElse.input: call it inside of true_block or false_block")
        if x.name not in self.input_table:
            parent = self._parent()
            true, false = (
                parent.create_var(name=unique_name.generate(f"ifelse_input{self.helper.name}"), dtype=x.dtype)
                for _ in range(2)
            )
            parent.append_op(
                "split_lod_tensor", {"X": x, "Mask": self.cond}, {"OutTrue": true, "OutFalse": false}, {"level": 0}
            )
            self.input_table[x.name] = true, false
        return self.input_table[x.name][0 if self.status == IfElse.IN_IF_ELSE_TRUE_BLOCKS else 1]

    def _parent(self) -> Any:
        block = self.helper.main_program.current_block().parent
        assert block is not None  # a branch's block is nested
        return block

    def true_block(self) -> "_Branch":
        """Return a context for the rows with a true condition."""
        return _Branch(self, True)

    def false_block(self) -> "_Branch":
        """Return a context for the rows with a false condition."""
        return _Branch(self, False)

    def output(self, *outs: Variable) -> None:
        """Set the results of this block.

        Both blocks need the same number of results, of the same dtypes.
        """
        if self.status == IfElse.OUT_IF_ELSE_BLOCKS:
            raise errors.ProgramError("IfElse.output: call it inside of true_block or false_block")
        table = self.output_table[0 if self.status == IfElse.IN_IF_ELSE_TRUE_BLOCKS else 1]
        for each in outs:
            if not isinstance(each, Variable):
                raise TypeError(f"IfElse.output: expected Variables, found {type(each).__name__}")
            name = unique_name.generate("_".join([self.helper.name, "output"]))
            out = self._parent().create_var(name=name, dtype=each.dtype)
            assign(each, output=out)
            table.append(out)

    def __call__(self) -> list[Variable]:
        """Return the results as a list of Variables [batch, ...], in the order of all rows.

        Raises ProgramError when the numbers of the blocks' outputs differ.
        """
        if self.status != IfElse.OUT_IF_ELSE_BLOCKS:
            raise errors.ProgramError("IfElse: the results are there after the blocks")
        true, false = self.output_table
        if not true and not false:
            raise errors.ProgramError("IfElse: the blocks have no output; call output in each block")
        if not true or not false:
            return true or false
        if len(true) != len(false):
            raise errors.ProgramError(f"IfElse: {len(true)} outputs of the true block, {len(false)} of the false block")
        return [merge_lod_tensor(in_true=t, in_false=f, mask=self.cond, x=self.cond) for t, f in zip(true, false)]


class _Branch(conditional):
    def __init__(self, choice: IfElse, holds: bool):
        super().__init__(choice.cond, scalar=False)
        self.choice, self.holds = choice, holds
        if choice.status != IfElse.OUT_IF_ELSE_BLOCKS:
            raise errors.ProgramError("IfElse: the blocks cannot lie in each other")

    def __enter__(self) -> Any:
        self.choice.status = IfElse.IN_IF_ELSE_TRUE_BLOCKS if self.holds else IfElse.IN_IF_ELSE_FALSE_BLOCKS
        return super().__enter__()

    def close(self) -> None:
        self.choice.status = IfElse.OUT_IF_ELSE_BLOCKS
        if not self.choice.output_table[0 if self.holds else 1]:
            raise errors.ProgramError(f"IfElse: the {'true' if self.holds else 'false'} block has no output")
        super().close()
