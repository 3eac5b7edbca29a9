"""Division of parameters among servers, from `fluid.transpiler.distribute_transpiler`."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from jfluid.ir.variable import Variable
from jfluid.transpiler.config import DistributeTranspilerConfig
from jfluid.transpiler.parameter_server.slicing import slices

__all__ = ["VarBlock", "log", "same_or_split_var", "slice_variable"]


@dataclass
class VarBlock:
    """A piece of a variable: its number and its elements. As text "name:number:elements"."""

    varname: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.varname}:{self.offset}:{self.size}"


def slice_variable(var_list: Iterable[Variable], slice_count: int, min_block_size: int) -> list[str]:
    """Return the pieces of variables as texts of VarBlocks.

    A variable is cut into at most `slice_count` pieces of whole rows, each of about `min_block_size` elements at least.
    """
    return [
        str(VarBlock(var.name, number, prod(shape)))
        for var in var_list
        for number, (_, shape) in enumerate(slices(var.shape, slice_count, min_block_size))
    ]


def same_or_split_var(p_name: str, var_name: str) -> bool:
    """Return True if a name belongs to a variable, or to a piece of the variable."""
    return p_name == var_name or p_name.startswith(f"{var_name}.block")


def log(*args: object) -> None:
    """Print, where `DistributeTranspilerConfig.print_log` is set to true for all configurations."""
    if getattr(DistributeTranspilerConfig, "print_log", False):
        print(args)
