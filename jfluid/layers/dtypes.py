"""Checks of the dtypes of a layer's arguments."""

from typing import Any

from jfluid import errors
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.helper import check_variable

FLOATS = (VarType.FP16, VarType.BF16, VarType.FP32, VarType.FP64)
NUMBERS = (*FLOATS, VarType.INT32, VarType.INT64)
BOOLS = (VarType.BOOL,)


def hold(value: Any, kinds: tuple[VarType, ...], layer: str, what: str) -> Any:
    """Return `value`, a Variable or a list of Variables, after a check of the dtypes.

    Raises AttributeTypeError for a value of a wrong type, DtypeError for a dtype that is not in `kinds`.
    """
    check_variable(value, layer, what)
    for v in value if isinstance(value, (list, tuple)) else (value,):
        if not isinstance(v, Variable):
            raise errors.AttributeTypeError(f"layers.{layer}, {what}: expected a Variable, found {v!r:.60}")
        if v.dtype is not None and v.dtype not in kinds:
            raise errors.DtypeError(
                f"layers.{layer}, {what}: expected dtype {' or '.join(k.name for k in kinds)}, "
                f"found {VarType(v.dtype).name} (variable {v.name}); use layers.cast"
            )
    return value
