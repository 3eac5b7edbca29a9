"""Variables that are fed."""
from collections.abc import Sequence
from typing import Any

from jfluid.ir.program import default_main_program, default_startup_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable

__all__ = ["data"]


def data(name: str, shape: Sequence[int], append_batch_size: bool = True, dtype: Any = "float32", lod_level: int = 0,
         type: VarType = VarType.LOD_TENSOR, stop_gradient: bool = True) -> Variable:
    """Declare a variable that is fed.

    Args:
        name: the name to feed it by.
        shape: the dimensions of one example; -1 or None where they vary.
        append_batch_size: put a -1 before `shape`, unless `shape` holds a -1 itself.
        dtype: the element type.
        lod_level: levels of ragged rows.
        type: the kind of variable.
        stop_gradient: whether gradients stop here.
    """
    dims = [-1 if d is None else int(d) for d in shape]
    if append_batch_size and all(d >= 0 for d in dims):
        dims = [-1, *dims]
    return declare(name, dims, dtype, lod_level, type, stop_gradient, need_check_feed=False)


def declare(name: str, shape: Sequence[int], dtype: Any, lod_level: int, type: VarType = VarType.LOD_TENSOR,
            stop_gradient: bool = True, need_check_feed: bool = True) -> Variable:
    """Declare a fed variable in the global block of both programs, as `layers.data` and `fluid.data` do."""
    made = [program.global_block().create_var(name=name, shape=shape, dtype=dtype, type=type, lod_level=lod_level,
                                              stop_gradient=stop_gradient, is_data=True, need_check_feed=need_check_feed)
            for program in (default_startup_program(), default_main_program())]
    return made[1]
