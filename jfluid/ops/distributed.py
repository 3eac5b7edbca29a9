"""Operators for communication between trainers and parameter servers.

`DistributeTranspiler` inserts them into programs, with Fluid's slots and attributes. Operators that need
the network only describe an action; `jfluid.distributed` performs it.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.reach import Reach
from jfluid.ops.registry import Blocks, Int, Ints, Long, Longs, String, Strings, op
from jfluid.ops.selected_rows import SelectedRows

_LOCAL = "127.0.0.1:6164"  # Fluid's default of every endpoint
_AT_EPMAP, _AT_ENDPOINTS = Reach("network", ("epmap",)), Reach("network", ("endpoints",))
_LISTENS = Reach("network", ("endpoint",))
# An Executor takes these operators out of a program before it compiles the rest (jfluid.distributed): they
# never run one by one.
_wire = functools.partial(
    op,
    host=True,
    grad=False,
    absent=("operators of parameter servers run in the global block of programs that DistributeTranspiler has made"),
)


@_wire("send", ins=("X*?",), outs=("Out*",), sparse=True, reaches=_AT_EPMAP)
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


@_wire("recv", ins=("X*?",), outs=("Out*",), reaches=_AT_EPMAP)
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


@_wire("send_barrier", ins=("X*",), outs=("Out*",), reaches=_AT_ENDPOINTS)
def send_barrier(
    after: Array, *, endpoints: Strings = (_LOCAL,), half_async: bool = False, trainer_id: int = 0
) -> None:
    """Tell the servers that all gradients of this step are sent; servers update after all trainers' barriers."""


@_wire("fetch_barrier", ins=("X*?",), outs=("Out*",), reaches=_AT_ENDPOINTS)
def fetch_barrier(after: Array, *, endpoints: Strings = (_LOCAL,), trainer_id: int = 0) -> None:
    """Wait until all parameters of this step are here."""


@_wire("listen_and_serv", ins=("X*?",), reaches=_LISTENS)
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
    """Serve trainers until all have left: update the parameters by the given blocks when gradients come."""


@_wire("distributed_lookup_table", ins=("Ids*", "W"), outs=("Outputs*",), reaches=_AT_ENDPOINTS)
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


@_wire("fake_init", outs=("Out",), reaches=None)
def fake_init(*, shape: Longs) -> None:
    """Declare a parameter that servers hold; it gets no value here."""


@_wire("split_selected_rows", ins=("X",), outs=("Out*",), sparse=True, reaches=None)
def split_selected_rows(x: Array, *, height_sections: Longs = ()) -> None:
    """Split sparse rows by sections of the table's height."""


@_wire("split_ids", ins=("Ids*",), outs=("Out*",), sparse=True, reaches=None)
def split_ids(ids: Array) -> None:
    """Divide sparse rows by the remainder of their id, one part for each output."""


@op("split_byref", ins=("X",), outs=("Out*",), grad=False)
def split_byref(x: Array, *, num: int = 0, sections: Ints = ()) -> list[Array]:
    """Split x along its rows, into `sections` or into `num` equal parts."""
    if sections and sum(sections) != x.shape[0]:
        raise errors.ShapeError(f"split_byref: sections {list(sections)} of {x.shape[0]} rows")
    return jnp.split(x, np.cumsum(sections)[:-1].tolist() if sections else num)


@op("merge_ids", ins=("Ids*", "Rows*", "X*"), outs=("Out*",), grad=False)
def merge_ids(ids: list[Array], rows: list[Array], values: list[Array]) -> list[Array]:
    """Gather the value of each id from the parts, for each tensor of ids; NaN for an unknown id."""
    if len(rows) != len(values):
        raise errors.ShapeError(
            f"merge_ids: expected values for each part, found {len(rows)} parts of ids and {len(values)} of values"
        )
    every = jnp.concatenate([r.reshape(-1) for r in rows])
    order = jnp.argsort(every)
    every, table = every[order], jnp.concatenate(values)[order]

    def found(wanted: Array) -> Array:
        wanted = wanted.reshape(-1)
        at = jnp.minimum(jnp.searchsorted(every, wanted), max(every.size - 1, 0))
        return jnp.where((every[at] == wanted)[:, None], table[at], jnp.nan).astype(table.dtype)

    return [found(i) for i in ids]


@op("ref_by_trainer_id", ins=("X*", "TrainerId"), outs=("Out",), grad=False)
def ref_by_trainer_id(values: list[Array], trainer_id: Array) -> Array:
    """Return the value, of several of equal shape, that belongs to the trainer."""
    return jnp.stack(values)[trainer_id.reshape(())]


@_wire("checkpoint_notify", reaches=Reach("network", ("epmap", "dir")))
def checkpoint_notify(*, epmap: Strings = (), dir: String = "", lookup_table: String = "", trainer_id: int = 0) -> None:
    """Ask the servers in `epmap` to save their rows of a table to `dir`/table."""


# PSLib and BoxPS, which these belong to, were never published: Fluid's open build gives whatever is in memory.
_pulled = functools.partial(
    op,
    host=True,
    grad=False,
    reaches=Reach("network"),
    absent=(
        "their servers were never published; fluid.layers.nn._pull_sparse, _pull_sparse_v2 and "
        "_pull_box_sparse look up rows of jfluid's parameter servers in programs that are built here"
    ),
)


@_pulled("pull_sparse", ins=("Ids*", "W*"), outs=("Out*",))
def pull_sparse(
    ids: list[Array],
    w: list[Array],
    *,
    EmbeddingDim: int = 11,
    TableId: int = 0,
    AccessorClass: str = "",
    CtrLabelName: str = "",
    PaddingId: int = 0,
    ScaleSparseGrad: bool = True,
    InputNames: Strings = (),
    is_distributed: bool = True,
) -> None:
    """Look up rows of a PSLib table by ids [..., 1], or of any shape in `pull_sparse_v2`."""


_pulled("pull_sparse_v2", ins=("Ids*", "W*"), outs=("Out*",))(pull_sparse)


@_pulled("pull_box_sparse", ins=("Ids*",), outs=("Out*",))
def pull_box_sparse(ids: list[Array], *, size: int = 1) -> None:
    """Look up rows of a BoxPS table by ids [..., 1]."""


@_pulled("push_dense", ins=("Ids*",))
def push_dense(ids: list[Array], *, TableId: int = -1, ScaleDataNorm: float = -1.0, InputNames: Strings = ()) -> None:
    """Send gradients of dense parameters to PSLib's servers."""


@op("lookup_sparse_table", ins=("W", "Ids"), outs=("Out",), grad=False, sparse=True)
def lookup_sparse_table(
    table: Array | SelectedRows,
    ids: Array,
    *,
    padding_idx: Long = -1,
    auto_grown_table: bool = True,
    is_test: bool = False,
) -> Array:
    """Return a table's rows by id; zeros for an id that has none, and for `padding_idx`.

    Fluid's server adds a row for a new id where `auto_grown_table` is set and `is_test` is not:
    tables that grow are those of the parameter servers here.
    """
    wanted = ids.reshape(-1)
    if isinstance(table, SelectedRows):
        order = jnp.argsort(table.rows)
        rows = table.rows[order]
        at = jnp.clip(jnp.searchsorted(rows, wanted), 0, max(rows.size - 1, 0))
        found, values = rows[at] == wanted, table.values[order[at]]
    else:
        found = (wanted >= 0) & (wanted < table.shape[0])
        values = jnp.take(table, wanted, axis=0, mode="clip")
    found &= wanted != padding_idx
    return jnp.where(found.reshape(-1, *[1] * (values.ndim - 1)), values, 0).astype(values.dtype)


# Of programs that train nothing (jfluid.distributed).
_asks = functools.partial(
    op,
    host=True,
    grad=False,
    absent=(
        "they ask parameter servers, in the global block of programs that train nothing; recv_save in "
        "programs of its own"
    ),
)


@_asks("prefetch", ins=("X*",), outs=("Out*",), reaches=_AT_EPMAP)
def prefetch(ids: Array, *, epmap: Strings = (_LOCAL,), trainer_id: int = 0) -> None:
    """Look up rows of the only table that all servers in `epmap` hold, with the width of Out: the operator names none.

    Each id may be in any X: here hashes of ids say which server has a row, and not the place of X.
    """


@_asks("recv_save", reaches=Reach("network", ("endpoints", "file_path")))
def recv_save(
    *,
    shape: Longs,
    slice_shapes: Strings,
    slice_varnames: Strings,
    remote_varnames: Strings,
    endpoints: Strings,
    file_path: String,
    dtype: Int = 5,
    overwrite: bool = True,
    trainer_id: int = 0,
) -> None:
    """Gather the slices (consecutive rows) of a variable from servers and write it to one file."""


@op(
    "fl_listen_and_serv",
    ins=("X*",),
    host=True,
    grad=False,
    reaches=_LISTENS,
    absent=(
        "it is of programs that Fluid's own DistributeTranspiler has divided for federated learning: "
        "divide the program here"
    ),
)
def fl_listen_and_serv(
    gradients: Array, *, endpoint: String = _LOCAL, Fanin: int = 1, sync_mode: bool = True, optimize_blocks: Blocks = ()
) -> None:
    """Serve trainers that send whole models, until all have left."""
