"""Collective operators, and the axis that the replicas of a step share.

Inside replicas (of one process, or of all that train together) they are XLA's collectives over that
axis. A program that runs once, on one device of one process, is a group of one. Fluid's rings and
streams are choices of its NCCL calls: XLA orders and overlaps collectives by itself, and `ring_id`,
`use_calc_stream` and `sync_mode` stay in the program without effect.
"""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid import errors, processes
from jfluid.ir.program import Program
from jfluid.ir.reach import Reach
from jfluid.ir.types import np_dtype
from jfluid.ops import static_values
from jfluid.ops.registry import Bool, Float, Int, Ints, String, Strings, op

AXIS = "replica"
_BUCKET = 32 << 20  # bytes that are summed in one call


def among_replicas() -> bool:
    """Return True if the code is traced inside a replica of a replicated step."""
    try:
        lax.axis_index(AXIS)
    except NameError:
        return False
    return True


def total(x: Any) -> Any:
    """Return the sum of `x` over all replicas."""
    return lax.psum(x, AXIS)


def _product(x: Any) -> Any:
    return jnp.prod(lax.all_gather(x, AXIS), axis=0, dtype=x.dtype)


# In the order of the attribute `reduce_type`.
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": total,
    "prod": _product,
    "max": lambda x: lax.pmax(x, AXIS),
    "min": lambda x: lax.pmin(x, AXIS),
}


def in_group(type_: str) -> bool:
    """Return True if there are other replicas.

    Raises OpError if other processes wait but this trace cannot reach them.
    """
    if among_replicas():
        return True
    if processes.count() > 1 and static_values.placeholder() is None:
        raise errors.OpError(
            f"{type_}: {processes.count()} processes train together, but this operator is in a part that only one "
            "device computes: under data parallelism updates (role Optimize) run once; run "
            "the program itself with Executor.run instead"
        )
    return False


def _reduced(type_: str, how: str, x: Any) -> Any:
    return _REDUCTIONS[how](x) if in_group(type_) else x


def _register_reduction(how: str) -> None:
    type_ = f"c_allreduce_{how}"

    def reduce(x: Array, *, ring_id: int = 0, use_calc_stream: bool = False) -> Array:
        return _reduced(type_, how, x)

    reduce.__doc__ = f"Return the {how} of all replicas' x in each of them."
    op(
        type_,
        ins=("X",),
        outs=("Out",),
        grad=how == "sum",
        collective=True,
        fused="fused_allreduce_sum" if how == "sum" else "",
    )(reduce)


for _how in _REDUCTIONS:
    _register_reduction(_how)


@op("fused_allreduce_sum", ins=("X*",), outs=("Out*",), grad=False, collective=True)
def fused_allreduce_sum(values: list[Array]) -> list[Array]:
    """Sum each value over all replicas, in large buckets to save the latency of small sums.

    Each output equals the output of c_allreduce_sum for the same value.
    """
    if not in_group("c_allreduce_sum"):
        return values
    found = list(values)
    sizes: Counter[Any] = Counter()
    buckets: dict[Any, list[int]] = {}  # in the same order in every process
    for i, value in enumerate(values):
        buckets.setdefault((value.dtype, sizes[value.dtype] // _BUCKET), []).append(i)
        sizes[value.dtype] += value.nbytes
    for chosen in buckets.values():
        flat = total(jnp.concatenate([values[i].reshape(-1) for i in chosen]))
        ends = np.cumsum([0] + [values[i].size for i in chosen])
        for i, start, end in zip(chosen, ends, ends[1:]):
            found[i] = flat[start:end].reshape(values[i].shape)
    return found


_ALIGNMENT = 4096  # bytes to which Fluid's allocator rounds memory of the CPU


@op("coalesce_tensor", ins=("Input*",), outs=("Output*", "FusedOutput"), grad=False)
def coalesce_tensor(
    values: list[Array],
    *,
    dtype: Int,
    copy_data: Bool = False,
    set_constant: Bool = False,
    constant: Float = 0.0,
    check_name: Bool = False,
) -> tuple[list[Array], Array]:
    """Return the tensors, and one fused tensor: all tensors, each padded to whole pages.

    The elements are copies of the inputs, a constant, or else zeros.

    Fluid's outputs are views of that tensor, and `check_name` holds their names against the
    inputs'; here they are values, and XLA places them.
    """
    if copy_data and set_constant:
        raise errors.AttributeTypeError("coalesce_tensor: set copy_data or set_constant, not both")
    unit, parts, outs = _ALIGNMENT // np_dtype(dtype).itemsize, [], []
    for value in values:
        if value.dtype != np_dtype(dtype):
            raise errors.DtypeError(f"coalesce_tensor: expected tensors of {np_dtype(dtype)}, found {value.dtype}")
        fill = jnp.asarray(constant if set_constant else 0, value.dtype)
        outs.append(value if copy_data else jnp.full(value.shape, fill))
        missing = -value.size % unit
        parts.append(jnp.pad(outs[-1].reshape(-1), (0, missing), constant_values=fill))
    return outs, jnp.concatenate(parts)


@op("allreduce", ins=("X",), outs=("Out",), grad=False, collective=True)
def allreduce(x: Array, *, reduce_type: int = 0, sync_mode: bool = False) -> Array:
    """Return the sum (0), product (1), maximum (2) or minimum (3) of all replicas' x."""
    if not 0 <= reduce_type < len(_REDUCTIONS):
        raise errors.OpError(f"allreduce: reduce_type is 0 (sum), 1 (prod), 2 (max) or 3 (min), found {reduce_type}")
    return _reduced("allreduce", list(_REDUCTIONS)[reduce_type], x)


def _broadcast(type_: str, x: Any, root: int) -> Any:
    group = lax.axis_size(AXIS) if in_group(type_) else 1
    if not 0 <= root < group and static_values.placeholder() is None:
        raise errors.OpError(f"{type_}: root is one of {group} replica(s), counted from 0; found {root}")
    return x if group == 1 else total(jnp.where(lax.axis_index(AXIS) == root, x, jnp.zeros_like(x))).astype(x.dtype)


@op("c_broadcast", ins=("X",), outs=("Out",), grad=False, collective=True)
def c_broadcast(x: Array, *, root: int = 0, ring_id: int = 0, use_calc_stream: bool = False) -> Array:
    """Return replica `root`'s x in all replicas."""
    return _broadcast("c_broadcast", x, root)


@op("broadcast", ins=("X",), outs=("Out",), grad=False, collective=True)
def broadcast(x: Array, *, root: int = 0, sync_mode: bool = False) -> Array:
    """Return replica `root`'s x in all replicas."""
    return _broadcast("broadcast", x, root)


def _group_of(type_: str, nranks: int) -> int:
    """Return the number of replicas, which must be `nranks`; return `nranks` while shapes are inferred."""
    if nranks < 1:
        raise errors.OpError(f"{type_}: nranks is how many replicas there are, found {nranks}")
    group = lax.axis_size(AXIS) if in_group(type_) else 1
    if group != nranks and static_values.placeholder() is None:
        raise errors.OpError(f"{type_}: nranks is {nranks}, but the program runs in {group} replica(s)")
    return group


@op("c_allgather", ins=("X",), outs=("Out",), collective=True)
def c_allgather(x: Array, *, nranks: Int, ring_id: Int = 0, use_calc_stream: Bool = False) -> Array:
    """Join all replicas' x along the first dimension."""
    if _group_of("c_allgather", nranks) == nranks:
        return lax.all_gather(x, AXIS, tiled=True) if nranks > 1 else x
    return jnp.concatenate([x] * nranks)


@op("c_reducescatter", ins=("X",), outs=("Out",), grad=False, collective=True)
def c_reducescatter(x: Array, *, nranks: int = 1, ring_id: int = 0, use_calc_stream: bool = False) -> Array:
    """Return this replica's share, along the first dimension, of the sum of all replicas' x."""
    if _group_of("c_reducescatter", nranks) != nranks:
        return x[: x.shape[0] // nranks]
    if x.shape[0] % nranks:
        raise errors.OpError(f"c_reducescatter: {x.shape[0]} rows do not divide among {nranks} replicas")
    return lax.psum_scatter(x, AXIS, tiled=True) if nranks > 1 else x


@op("c_sync_calc_stream", ins=("X",), outs=("Out",), inplace={"Out": "X"}, grad=False, rows="map")
def c_sync_calc_stream(x: Array) -> Array:
    """Return x unchanged: XLA orders computations itself."""
    return x


@op("c_sync_comm_stream", ins=("X",), outs=("Out",), inplace={"Out": "X"}, grad=False, rows="map")
def c_sync_comm_stream(x: Array, *, ring_id: int = 0) -> Array:
    """Return x: XLA orders its collectives by itself."""
    return x


# The operators by which trainers meet. What they give stands for NCCL's id; nothing here reads it
# but c_comm_init.


def _meet(endpoints: list[str], rank: int) -> np.ndarray:
    processes.join(endpoints, rank)
    return np.array([rank, len(endpoints)])


@op("gen_nccl_id", outs=("NCCLID",), host=True, grad=False, reaches=Reach("network", ("trainers", "trainer_id")))
def gen_nccl_id(
    *,
    trainers: Strings = (),
    trainer_id: Int,
    nccl_comm_num: int = 1,
    use_hierarchical_allreduce: bool = False,
    hierarchical_allreduce_inter_nranks: int = 1,
) -> np.ndarray:
    """Connect to the other trainers."""
    return _meet(list(trainers), trainer_id)


def _ring(op_: Any) -> tuple[list[str], int]:
    others, rank = list(op_.attr("other_endpoints")), op_.attr("rank")
    return [*others[:rank], op_.attr("endpoint"), *others[rank:]], rank


@op(
    "c_gen_nccl_id",
    outs=("Out",),
    host=True,
    grad=False,
    reaches=Reach("network", ("endpoint", "other_endpoints", "rank")),
)
def c_gen_nccl_id(*, ctx: SimpleNamespace, rank: Int, endpoint: String, other_endpoints: Strings) -> np.ndarray:
    """Connect to the other trainers."""
    return _meet(*_ring(ctx.op))


@op("c_comm_init", ins=("X",), host=True, grad=False, reaches=None)
def c_comm_init(x: np.ndarray, *, nranks: Int, rank: Int, ring_id: Int = 0) -> tuple[()]:
    """Check that the connected trainers are the members of this ring."""
    if [rank, nranks] != np.asarray(x).tolist():
        raise errors.OpError(f"c_comm_init: this is rank {rank} of {nranks}, but trainer {x[0]} of {x[1]} connected")
    return ()


@op("c_comm_init_all", host=True, grad=False, reaches=None)
def c_comm_init_all(*, devices: Ints = (), ring_id: int = 0) -> tuple[()]:
    """Do nothing: replicas of one process share their devices."""
    return ()


def process_group(program: Program) -> tuple[list[str], int] | None:
    """Return the endpoints and this trainer's rank from a startup program; None if it connects no trainers.

    They have to connect before JAX starts, that is, before any other operator of the program runs.
    """
    for found in program.global_block().ops:
        if found.type == "gen_nccl_id":
            return list(found.attr("trainers")), found.attr("trainer_id")
        if found.type == "c_gen_nccl_id":
            return _ring(found)
    return None
