"""`fluid.layers.collective`: layers that divide work among trainers, such as a classifier of many classes.

`ring_id`, `use_calc_stream` and `sync_mode` have no effect (see `jfluid/ops/collective.py`).
"""

from typing import Any

from jfluid import errors
from jfluid.ir import unique_name
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable

__all__: list[str] = []
_REDUCTIONS = ("sum", "prod", "max", "min")


def _emit(op_type: str, x: Variable, out: Variable | None = None, name: str = "", **attrs: Any) -> Variable:
    check_variable(x, op_type, "x")
    helper = LayerHelper(op_type)
    if out is None:
        out = helper.create_variable(
            name=unique_name.generate(f"{x.name}.{name or op_type}"),
            dtype=x.dtype,
            persistable=False,
        )
    helper.append_op(type=op_type, inputs={"X": [x]}, outputs={"Out": [out]}, attrs=attrs)
    return out


def _check_reduction(reduce_type: str) -> None:
    if reduce_type not in _REDUCTIONS:
        raise errors.ProgramError(f"reduce_type: expected {', '.join(_REDUCTIONS)}, found {reduce_type!r}")


def _allreduce(x: Variable, out: Variable | None = None, reduce_type: str = "sum", sync_mode: bool = False) -> Variable:
    """Return the sum (`prod`, `max`, `min`) of x over all trainers, in each trainer; without a gradient."""
    _check_reduction(reduce_type)
    number = _REDUCTIONS.index(reduce_type)
    return _emit("allreduce", x, out, "tmp", reduce_type=number, sync_mode=sync_mode)


def _broadcast(x: Variable, root: int, sync_mode: bool = False) -> Variable:
    """Overwrite x by that of trainer `root`."""
    return _emit("broadcast", x, x, root=root, sync_mode=sync_mode)


def _c_allreduce(
    x: Variable,
    out: Variable | None = None,
    reduce_type: str = "sum",
    ring_id: int = 0,
    use_calc_stream: bool = False,
) -> Variable:
    """Return the sum (`prod`, `max`, `min`) of x over all trainers, in each trainer.

    Only a sum has a gradient.
    """
    _check_reduction(reduce_type)
    return _emit(f"c_allreduce_{reduce_type}", x, out, ring_id=ring_id, use_calc_stream=use_calc_stream)


def _c_broadcast(x: Variable, root: int = 0, ring_id: int = 0, use_calc_stream: bool = False) -> Variable:
    """Overwrite x by that of trainer `root`."""
    return _emit("c_broadcast", x, x, root=root, ring_id=ring_id, use_calc_stream=use_calc_stream)


def _c_allgather(x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False) -> Variable:
    """Return the rows of all trainers' x, one after the other: [nranks * N, ...]."""
    return _emit("c_allgather", x, nranks=nranks, ring_id=ring_id, use_calc_stream=use_calc_stream)


def _c_reducescatter(x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False) -> Variable:
    """Return this trainer's rows of the sum of all trainers' x [N, ...]: [N / nranks, ...]; without a gradient.

    Raises ValueError where the rows do not divide.
    """
    check_variable(x, "c_reducescatter", "x")
    if x.shape[0] > 0 and x.shape[0] % nranks:
        raise ValueError(f"x: {x.shape[0]} rows do not divide among {nranks} trainers")
    return _emit("c_reducescatter", x, nranks=nranks, ring_id=ring_id, use_calc_stream=use_calc_stream)


def _c_sync_calc_stream(x: Variable) -> Variable:
    """Return x: XLA orders the operations."""
    return _emit("c_sync_calc_stream", x, x)


def _c_sync_comm_stream(x: Variable, ring_id: int) -> Variable:
    """Return x: XLA orders its collectives by itself."""
    return _emit("c_sync_comm_stream", x, x, ring_id=ring_id)
