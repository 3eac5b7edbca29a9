"""Operators by which trainers and parameter servers work together.

`DistributeTranspiler` puts them into programs, with Fluid's slots and attributes. Those that need
the network describe what is to be done; `jfluid.distributed` does it.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops.registry import Blocks, Ints, Long, Longs, String, Strings, op

_LOCAL = "127.0.0.1:6164"  # Fluid's default of every endpoint
# An Executor reads these out of a program before it compiles the rest (jfluid.distributed): they
# never run one by one.
_wire = functools.partial(
    op,
    host=True,
    grad=False,
    absent=(
        "operators of parameter servers run in the global block of programs that DistributeTranspiler has made"
    ),
)


@_wire("send", ins=("X*?",), outs=("Out*",), sparse=True)
def send(
    values: Array,
    *,
    epmap: Strings = (_LOCAL,),
    sections: Longs = (),
    send_varnames: Strings = (),
    num: int = 0,
    merge_add: bool = False,
    use_send_handler: bool = True,
    trainer_id: int = 0,
) -> None:
    """Send gradients to the servers in `epmap`, one for each part."""


@_wire("recv", ins=("X*?",), outs=("Out*",))
def recv(
    after: Array,
    *,
    epmap: Strings = (),
    recv_varnames: Strings = (),
    varnames: Strings = (),
    with_barrier: bool = True,
    do_not_run: int = 0,
    trainer_id: int = 0,
) -> None:
    """Receive parameters from the servers in `epmap`, one for each part."""


@_wire("send_barrier", ins=("X*",), outs=("Out*",))
def send_barrier(
    after: Array, *, endpoints: Strings = (_LOCAL,), half_async: bool = False, trainer_id: int = 0
) -> None:
    """Tell the servers that all gradients of this step are sent: they update when all trainers say
    so.
    """


@_wire("fetch_barrier", ins=("X*?",), outs=("Out*",))
def fetch_barrier(after: Array, *, endpoints: Strings = (_LOCAL,), trainer_id: int = 0) -> None:
    """Wait until all parameters of this step are here."""


@_wire("listen_and_serv", ins=("X*?",))
def listen_and_serv(
    gradients: Array,
    *,
    endpoint: String = _LOCAL,
    pserver_id: int = -1,
    Fanin: int = 1,
    distributed_mode: int = 0,
    dc_asgd: bool = False,
    optimize_blocks: Blocks = (),
    grad_to_block_id: Strings = (),
    sparse_grad_to_param: Strings = (),
    lr_decay_block_id: int = -1,
    checkpint_block_id: int = -1,
    prefetch_var_name_to_block_id: Strings = (),
    rpc_get_thread_num: int = 1,
    rpc_prefetch_thread_num: int = 1,
    rpc_send_thread_num: int = 1,
) -> None:
    """Serve trainers until all have left: update the parameters by the given blocks when gradients
    come.
    """


@_wire("distributed_lookup_table", ins=("Ids*", "W"), outs=("Outputs*",))
def distributed_lookup_table(
    ids: Array,
    w: Array,
    *,
    table_names: Strings = ("",),
    endpoints: Strings = (_LOCAL,),
    height_sections: Longs = (),
    lookup_table_version: String = "lookup_table",
    dtype: int = 5,
    padding_idx: Long = -1,
    trainer_id: int = 0,
) -> None:
    """Look up rows of a table that servers hold, by several tensors of ids."""


@_wire("fake_init", outs=("Out",))
def fake_init(*, shape: Longs) -> None:
    """Declare a parameter that servers hold; it gets no value here."""


@_wire("split_selected_rows", ins=("X",), outs=("Out*",), sparse=True)
def split_selected_rows(x: Array, *, height_sections: Longs = ()) -> None:
    """Divide sparse rows by the part of the table's height that they belong to."""


@_wire("split_ids", ins=("Ids*",), outs=("Out*",), sparse=True)
def split_ids(ids: Array) -> None:
    """Divide sparse rows by the remainder of their id, one part for each output."""


@op("split_byref", ins=("X",), outs=("Out*",), grad=False)
def split_byref(x: Array, *, num: int = 0, sections: Ints = ()) -> list[Array]:
    """Divide x into consecutive rows: `sections` says how many each output has, or `num` how many
    equal outputs there are.
    """
    if sections and sum(sections) != x.shape[0]:
        raise errors.ShapeError(f"split_byref: sections {list(sections)} of {x.shape[0]} rows")
    return jnp.split(x, np.cumsum(sections)[:-1].tolist() if sections else num)


@op("ref_by_trainer_id", ins=("X*", "TrainerId"), outs=("Out",), grad=False)
def ref_by_trainer_id(values: list[Array], trainer_id: Array) -> Array:
    """Return the value, of several of equal shape, that belongs to the trainer."""
    return jnp.stack(values)[trainer_id.reshape(())]


@_wire("checkpoint_notify")
def checkpoint_notify(
    *, epmap: Strings = (), dir: String = "", lookup_table: String = "", trainer_id: int = 0
) -> None:
    """Have the servers in `epmap` save their rows of a table into a folder of its name in the
    folder `dir`.
    """
