"""Look-ups that servers answer in programs that train nothing, such as loaded inference models.

A `lookup_table` with `remote_prefetch` and endpoints (`epmap`) asks these servers for rows of its W. So does
a `distributed_lookup_table`, and a `prefetch` for rows of the only table on the servers. `ask`
gives a loaded program its endpoints, and `resolved` finds the server of each row.
"""

from collections.abc import Collection, Mapping, Sequence

from jfluid import errors
from jfluid.ir import schema
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.transpiler.parameter_server.layout import LOOK_UP, TRAINERS_OPS, ParameterLayout
from jfluid.transpiler.parameter_server.updates import LOOK_UPS

PREFETCH = "prefetch"
# Operators with a W that may be on servers in Fluid.
_OTHERS = ("nce", "hierarchical_sigmoid")


def mark(program: Program, tables: Mapping[str, ParameterLayout]) -> None:
    """Mark the look-ups of a program with their servers' tables; without endpoints the program reads the scope."""
    for op in program.global_block().ops:
        if op.type in LOOK_UPS and op.input("W")[0] in tables:
            table = tables[op.input("W")[0]]
            op.attrs["remote_prefetch"] = True
            if not table.hashed:
                op.attrs["table_names"] = [piece.name for piece in table.pieces]
                op.attrs["height_sections"] = [piece.rows for piece in table.pieces]
    program._touch()


def marked(program: Program) -> set[str]:
    """Return the tables with rows that servers may be asked for: `ask` names the servers."""
    attrs = ("remote_prefetch", "is_distributed")
    return {
        op.input("W")[0]
        for op in program.global_block().ops
        if op.type == LOOK_UP or (op.type in LOOK_UPS and any(op.attrs.get(name) for name in attrs))
    }


def ask(program: Program, endpoints: Sequence[str], tables: Collection[str] | None = None) -> None:
    """Let the look-ups of a program ask these servers.

    As in Fluid, `epmap` of all operators of the program's global block that have it becomes `endpoints`; the servers
    of each `distributed_lookup_table` are replaced one by one. With `tables` only look-ups of these tables change.

    Raises:
        TypeError, ValueError: the endpoints are no texts, or one is there twice.
        UnsupportedError: the program trains, or an operator that cannot ask servers would have to.
        ProgramError: none of its look-ups is marked for servers; or there are more or fewer servers
            than its `distributed_lookup_table` operators name.
    """
    _check_endpoints(endpoints)
    block = program.global_block()
    training = sorted({op.type for op in block.ops} & (TRAINERS_OPS - {LOOK_UP}))
    if training:
        raise errors.UnsupportedError(
            f"load_inference_model: pserver_endpoints: the program has {', '.join(training)}, of a "
            "trainer's whole program; give save_inference_model the feeds and targets to keep"
        )
    for op in block.ops:
        if op.type in _OTHERS and op.attr("remote_prefetch"):
            raise errors.UnsupportedError(
                f"load_inference_model: pserver_endpoints: {op.type} cannot ask servers for rows of its "
                "table W; save the model with remote_prefetch off (is_sparse=False)"
            )
        if op.has_attr("epmap") and (tables is None or set(op.inputs.get("W", ())) <= set(tables)):
            op.attrs["epmap"] = list(endpoints)
            op.claim("epmap")
    _replace(program, endpoints)
    program._touch()
    if not (tables_of(program) or any(op.type == PREFETCH for op in block.ops)):
        raise errors.ProgramError(
            "load_inference_model: pserver_endpoints: none of the model's look-ups asks servers: that "
            "takes embeddings with is_sparse or is_distributed, or a model that save_inference_model "
            "of a trainer's program has saved; leave pserver_endpoints out to read its own tables"
        )


def _check_endpoints(endpoints: Sequence[str]) -> None:
    if isinstance(endpoints, str) or not all(isinstance(e, str) for e in endpoints):
        raise TypeError(f'pserver_endpoints: expected a list of "host:port", found {endpoints!r}')
    if len(set(endpoints)) != len(endpoints):
        raise ValueError(f"pserver_endpoints: a server is there twice: {', '.join(endpoints)}")


def _replace(program: Program, endpoints: Sequence[str]) -> None:
    """Replace the servers of `distributed_lookup_table` operators, position by position."""
    divided = [op for op in program.global_block().ops if op.type == LOOK_UP]
    before = named_by(divided)
    if divided and len(before) != len(endpoints):
        raise errors.ProgramError(
            f"pserver_endpoints: the model's tables are at {len(before)} servers ({', '.join(before)}): "
            f"expected one endpoint for each, in this order, found {len(endpoints)}"
        )
    now = dict(zip(before, endpoints))
    for op in divided:
        op.attrs["endpoints"] = [now[e] for e in op.attr("endpoints")]
        op.claim("endpoints")


def named_by(look_ups: Sequence[Operator]) -> list[str]:
    """Return the servers that `distributed_lookup_table` operators name.

    Tables with rows by hashes of ids are at all servers, in the job's order; further tables may be at some servers.
    """
    ordered = sorted(look_ups, key=lambda op: bool(op.attr("height_sections")))
    return list(dict.fromkeys(e for op in ordered for e in op.attr("endpoints")))


def is_remote(op: Operator) -> bool:
    """Return whether servers are asked for the rows of an operator's W."""
    if op.type in LOOK_UPS:
        reach = schema.current().reach(op.type)
        return reach is not None and reach.is_of(op.attrs)
    return op.type in (LOOK_UP, PREFETCH)


def tables_of(program: Program) -> set[str]:
    """Return the parameters that the program reads only by rows at servers.

    Raises ProgramError for a parameter that another operator reads whole.
    """
    found = {op.input("W")[0] for op in program.global_block().ops if is_remote(op) and op.type != PREFETCH}
    for block in program.blocks:
        for op in block.ops:
            read = found & set(op.input_arg_names)
            if read and not (is_remote(op) and block.idx == 0):
                raise errors.ProgramError(
                    f"{op.type} reads {min(read)} whole, of which other look-ups ask servers for rows: "
                    "leave its endpoints (epmap, pserver_endpoints) out, or give it a separate parameter"
                )
    return found


def servers_of(program: Program) -> list[str]:
    """Return the servers that the look-ups of a program ask, in the job's order.

    Raises ProgramError where these do not agree on it.
    """
    ops = [op for op in program.global_block().ops if is_remote(op)]
    found = [list(dict.fromkeys(op.attr("epmap"))) for op in ops if op.type != LOOK_UP]
    divided = named_by([op for op in ops if op.type == LOOK_UP])
    every = max([*found, divided], key=len)
    for some in (*found, divided):
        if some not in (every, []) and (some in found or not set(some) <= set(every)):
            raise errors.ProgramError(
                "look-ups of one program ask the same servers in the same order: found "
                f"{', '.join(every)} and {', '.join(some)}"
            )
    return every


def resolved(program: Program, widths: Mapping[str, Mapping[str, int]]) -> Program:
    """Return a copy of a program in which each look-up names the servers of the table's pieces.

    Args:
        program: a program with look-ups that ask servers.
        widths: for each server, in the job's order, the widths of its tables by name.

    Raises ServerError for a table that no server has, ProgramError for attributes without the place of
    rows.
    """
    twin = program._copy()
    block = twin.global_block()
    block.ops = [made for op in block.ops for made in _named(block, op, widths)]
    for i, op in enumerate(block.ops):
        if not is_remote(op):
            continue
        (name,) = op.input("W")
        table = block.var_recursive(name)
        if table.dtype != VarType.FP32:
            raise errors.UnsupportedError(
                f"table {name}: servers have rows of float32, and the program declares {table.np_dtype}"
            )
        if op.type == LOOK_UP:
            pieces = list(zip(op.attr("endpoints"), op.attr("table_names"), strict=False))
        else:
            pieces, sections = _pieces(op, name, table.shape[0], widths)
            made = block.append_op(
                LOOK_UP,
                {"Ids": op.input("Ids"), "W": name},
                {"Outputs": op.output("Out")},
                {
                    "table_names": [there for _, there in pieces],
                    "endpoints": [server for server, _ in pieces],
                    "height_sections": sections,
                    "lookup_table_version": op.type,
                    "dtype": int(table.dtype),
                    "padding_idx": op.attr("padding_idx"),
                    "trainer_id": op.attr("trainer_id"),
                },
            )
            block.ops.pop()
            block.ops[i] = made
        for server, there in pieces:
            _check(server, there, table.shape[1], widths)
    twin._touch()
    return twin


def _named(block: Block, prefetch: Operator, widths: Mapping[str, Mapping[str, int]]) -> list[Operator]:
    """Return the look-ups of the table that a `prefetch` means; other operators unchanged."""
    if prefetch.type != PREFETCH:
        return [prefetch]
    servers = list(dict.fromkeys(prefetch.attr("epmap")))
    made = []
    for ids, out in zip(prefetch.input("X"), prefetch.output("Out"), strict=True):
        shape = block.var_recursive(out).shape
        width = shape[-1] if shape else -1
        found = [
            name
            for name, there in widths[servers[0]].items()
            if all(widths[e].get(name) == there for e in servers) and width in (there, -1)
        ]
        if len(found) != 1:
            raise errors.ProgramError(
                f"{PREFETCH} names no table, and asks for rows of the only one that all its servers have"
                f"{f' with rows of {width} numbers' if width != -1 else ''}: found "
                f"{', '.join(sorted(found)) or 'none'}; a distributed_lookup_table names its table"
            )
        if not block.has_var(found[0]):
            block.create_var(name=found[0], shape=[-1, widths[servers[0]][found[0]]], dtype="float32", persistable=True)
        asked = block.var_recursive(ids).shape
        made.append(
            block.append_op(
                LOOK_UP,
                {"Ids": ids, "W": found[0]},
                {"Outputs": out},
                {
                    "table_names": [found[0]] * len(servers),
                    "endpoints": servers,
                    "trainer_id": prefetch.attr("trainer_id"),
                    "lookup_table_version": LOOK_UPS[not (len(asked) > 1 and asked[-1] == 1)],
                },
            )
        )
        block.ops.pop()
    return made


def _pieces(
    op: Operator, table: str, height: int, widths: Mapping[str, Mapping[str, int]]
) -> tuple[list[tuple[str, str]], list[int]]:
    """Return (server, name there) of each piece of a table, and the row count of each piece.

    There are no row counts if hashes of ids decide the server of a row.
    """
    servers = list(op.attr("epmap"))
    names, sections = list(op.attr("table_names")), list(op.attr("height_sections"))
    if sections:
        if len(names) != len(sections) or sum(sections) != height:
            raise errors.ProgramError(
                f"{op.type}: table {table}: expected a height for each of its {len(names)} table_names, "
                f"{height} rows in all, found height_sections {sections}"
            )
        return [(_holder(n, servers, widths), n) for n in names], sections
    if set(names) - {table}:
        raise errors.ProgramError(
            f"{op.type}: table {table}: table_names {names} need height_sections: how many rows each has"
        )
    holders = [e for e in servers if table in widths[e]]
    if len(holders) == 1 < len(servers):
        return [(holders[0], table)], [height]
    return [(e, table) for e in servers], []


def _holder(name: str, servers: Sequence[str], widths: Mapping[str, Mapping[str, int]]) -> str:
    """Return the server that has a table; the first if none has."""
    return next((e for e in servers if name in widths[e]), servers[0])


def _check(server: str, name: str, width: int, widths: Mapping[str, Mapping[str, int]]) -> None:
    there = widths[server]
    if name not in there:
        raise errors.ServerError(
            f"server {server} has no table {name!r}; it has: {', '.join(sorted(there)) or 'none'}"
            + errors.close_to(name, there)
        )
    if there[name] != width:
        raise errors.ServerError(
            f"table {name} of server {server} has rows of {there[name]} numbers, and the program expects {width}"
        )
