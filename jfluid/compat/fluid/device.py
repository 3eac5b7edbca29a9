"""Operator of `fluid.layers.device` that lists devices."""

from jfluid.ir import unique_name
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable

__all__ = ["get_places"]


def get_places(device_count: int | None = None, device_type: str | None = None) -> Variable:
    """Return a variable that lists `device_count` places of the type "CPU", "CUDA" or "AUTO".

    The default 0 stands for all devices. Deprecated in Fluid; only scripts read it.
    """
    block = default_main_program().current_block()
    out = block.create_var(name=unique_name.generate("get_places") + ".out", type=VarType.PLACE_LIST)
    attrs: dict[str, int | str] = {}
    if device_count is not None:
        attrs["device_count"] = int(device_count)
    if device_type is not None:
        attrs["device_type"] = str(device_type)
    block.append_op("get_places", {}, {"Out": out}, attrs)
    return out
