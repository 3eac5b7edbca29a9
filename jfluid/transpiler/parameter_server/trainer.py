"""The trainers' program: it sends gradients and receives parameters; servers do the updates."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.transpiler.parameter_server.placement import ParameterPlacement, UpdatedPiece
from jfluid.transpiler.parameter_server.updates import ParameterUpdate, Updates, read_updates

CONTROL = "__control_var@"


def rewrite(program: Program, placement: ParameterPlacement) -> None:
    """Turn the program that `placement` was made for into the trainers' one, in place."""
    updates = read_updates(program.global_block())
    sent = send_gradients(program, placement)
    drop_updates(program, updates)
    answer_look_ups(program, updates, placement)
    receive_parameters(program, placement, sent)


def control(block: Block) -> Variable:
    """Return a variable without a value, which orders two operators."""
    number = sum(name.startswith(CONTROL) for name in block.vars)
    return block.create_var(name=f"{CONTROL}{number}")


def state(updates: Updates) -> set[str]:
    """Return names that only updates use: the optimizer's state, learning rates, temporary values."""
    named = {n for u in updates.all for op in u.ops for n in op.input_arg_names + op.output_arg_names}
    return named - {u.param.name for u in updates.all} - {u.grad.name for u in updates.all}


def drop_updates(program: Program, updates: Updates) -> None:
    """Remove the operators that the servers run, and variables that no other operator names."""
    block = program.global_block()
    moved = {id(op) for op in updates.moved}
    block.ops = [op for op in block.ops if id(op) not in moved]
    used = {n for b in program.blocks for op in b.ops for n in op.input_arg_names + op.output_arg_names}
    for name in state(updates) - used:
        if name in block.vars:
            block.remove_var(name)
    program._touch()
    program.verify("DistributeTranspiler, updates taken away")


def answer_look_ups(program: Program, updates: Updates, placement: ParameterPlacement) -> None:
    """Look rows up at the servers: one operator asks for all ids of a table that are known at the same time."""
    block = program.global_block()
    for update in updates.all:

        def kind(op: Operator) -> tuple[str, int]:
            return op.type, op.attr("padding_idx")

        for (version, padding), alike in groupby(sorted(update.look_ups, key=kind), kind):
            for group in _at_once(block, list(alike)):
                _answer(block, group, placement, placement.held[update.param.name], version, padding)
    program.verify("DistributeTranspiler, look-ups")


def _at_once(block: Block, look_ups: list[Operator]) -> Iterator[list[Operator]]:
    """All look-ups together when all ids are there before the first row is used, else one by one."""
    ids = {n for op in look_ups for n in op.input("Ids")}
    rows = {n for op in look_ups for n in op.output("Out")}
    known = _last_writer(block, ids)
    used = min((i for i, op in enumerate(block.ops) if rows & set(op.input_arg_names)), default=len(block.ops))
    yield from [look_ups] if known < used else [[op] for op in look_ups]


def _last_writer(block: Block, names: set[str]) -> int:
    """Return the position of the last operator that writes any of `names`; -1 when none does."""
    return max((i for i, op in enumerate(block.ops) if names & set(op.output_arg_names)), default=-1)


def _answer(
    block: Block,
    look_ups: list[Operator],
    placement: ParameterPlacement,
    held: Sequence[UpdatedPiece],
    version: str,
    padding: int,
) -> None:
    ids = [n for op in look_ups for n in op.input("Ids")]
    rows = [n for op in look_ups for n in op.output("Out")]
    gone = {id(op) for op in look_ups}
    table = held[0].update.param
    block.ops = [op for op in block.ops if id(op) not in gone]
    at = _last_writer(block, set(ids)) + 1
    block.insert_op(
        at,
        "distributed_lookup_table",
        {"Ids": ids, "W": table},
        {"Outputs": rows},
        {
            "table_names": [h.param for h in held],
            "endpoints": placement.endpoints_of(held),
            "height_sections": _sections(held),
            "lookup_table_version": version,
            "dtype": int(table.dtype),
            "padding_idx": padding,
            "trainer_id": placement.trainer_id,
            "op_role": OpRole.Forward,
        },
    )


def _sections(held: Sequence[UpdatedPiece]) -> list[int]:
    """Return the number of rows of each piece; none for a distributed table with rows by id."""
    return [] if held[0].update.distributed else [h.piece.rows for h in held]


def send_gradients(program: Program, placement: ParameterPlacement) -> dict[str, Variable]:
    """Send each gradient as soon as it is there; the control variable of each parameter's sending."""
    block = program.global_block()
    sent = {name: control(block) for name in placement.sending}
    for name in placement.sending:
        _send(block, placement, placement.held[name], sent[name])
    if placement.counter is not None:
        sent[placement.counter.output("Out")[0]] = _send_count(block, placement)
    program.verify("DistributeTranspiler, gradients sent")
    return sent


def _send(block: Block, placement: ParameterPlacement, held: Sequence[UpdatedPiece], done: Variable) -> None:
    update, names = held[0].update, [placement.sent(h, placement.trainer_id) for h in held]
    attrs = {"epmap": placement.endpoints_of(held), "trainer_id": placement.trainer_id, "op_role": OpRole.RPC}
    given = [update.grad.name]
    if placement.config.runtime_split_send_recv:
        attrs |= {"sections": _sections(held), "send_varnames": names}
    elif len(held) > 1 or update.distributed:
        _split(block, update, held, names)
        given = names
    elif names != given:
        block.rename_var(update.grad.name, names[0])
        given = names
    block.insert_op(
        _last_writer(block, set(given)) + 1,
        "send",
        {"X": given},
        {"Out": done},
        attrs | {"op_role_var": [update.param.name, given[0]]},
    )


def _send_count(block: Block, placement: ParameterPlacement) -> Variable:
    """Tell all servers of one more step: their schedules go by the steps of all trainers."""
    name, done = placement.counts()[placement.trainer_id], control(block)
    block.create_var(name=name, shape=[1], dtype="int64", persistable=True)
    block.append_op(
        "send",
        {"X": name},
        {"Out": done},
        {
            "epmap": placement.endpoints,
            "trainer_id": placement.trainer_id,
            "merge_add": True,
            "use_send_handler": False,
            "send_varnames": [name] if placement.config.runtime_split_send_recv else [],
            "op_role": OpRole.RPC,
            "op_role_var": [name, name],
        },
    )
    return done


def _split(block: Block, update: ParameterUpdate, held: Sequence[UpdatedPiece], names: list[str]) -> None:
    """Cut a gradient into the pieces that go to different servers."""
    grad = update.grad
    for h, name in zip(held, names, strict=True):
        block.create_var(name=name, shape=h.piece.shape, dtype=grad.dtype, type=grad.type)
    rows = [h.piece.rows for h in held]
    type_, slot, attrs = (
        ("split_ids", "Ids", {})
        if update.distributed
        else ("split_selected_rows", "X", {"height_sections": rows})
        if update.sparse
        else ("split_byref", "X", {"sections": rows})
    )
    block.insert_op(
        _last_writer(block, {grad.name}) + 1,
        type_,
        {slot: grad.name},
        {"Out": names},
        {**attrs, "op_role": OpRole.Dist},
    )


def receive_parameters(program: Program, placement: ParameterPlacement, sent: dict[str, Variable]) -> None:
    """Wait for the servers as the strategy has it, and get the parameters of the next step."""
    block = program.global_block()
    config = placement.config
    after = dict(sent)
    common = {"endpoints": placement.endpoints, "trainer_id": placement.trainer_id, "op_role": OpRole.RPC}
    if placement.sync or (config.half_async and config.runtime_split_send_recv):
        barrier = control(block)
        block.append_op(
            "send_barrier", {"X": list(sent.values())}, {"Out": barrier}, {**common, "half_async": not placement.sync}
        )
        if placement.sync:
            after = dict.fromkeys(after, barrier)
    received = [
        n
        for name, held in placement.held.items()
        if not held[0].update.remote
        for n in receive(block, placement, held, after[name], config.runtime_split_send_recv)
    ]
    if placement.sync:
        block.append_op("fetch_barrier", {"X": barrier}, {"Out": received}, common)
    if not config.runtime_split_send_recv:
        join(block, placement, OpRole.Dist)
    program.verify("DistributeTranspiler, parameters received")


def receive(
    block: Block, placement: ParameterPlacement, held: Sequence[UpdatedPiece], after: Variable | None, whole: bool
) -> list[str]:
    """Get one parameter, `whole` or in its pieces; the names that are written."""
    param, names = held[0].update.param, [h.param for h in held]
    if not whole and len(held) > 1:
        for h in held:
            block.create_var(name=h.param, shape=h.piece.shape, dtype=param.dtype, type=VarType.LOD_TENSOR)
    written = [param.name] if whole else names
    attrs = {
        "epmap": placement.endpoints_of(held),
        "trainer_id": placement.trainer_id,
        "op_role": OpRole.RPC,
        "op_role_var": [param.name, held[0].update.grad.name],
    }
    block.append_op(
        "recv",
        {"X": after} if after is not None else {},
        {"Out": written},
        attrs | ({"recv_varnames": names} if whole else {}),
    )
    return written


def receive_all(block: Block, placement: ParameterPlacement, parameters: Iterable[Sequence[UpdatedPiece]]) -> None:
    """Receive the initial values of parameters, wait for all, and join the pieces."""
    for held in parameters:
        receive(block, placement, held, None, whole=False)
    attributes = {"endpoints": placement.endpoints, "trainer_id": placement.trainer_id, "op_role": OpRole.RPC}
    block.append_op("fetch_barrier", {}, {"Out": control(block)}, attributes)
    join(block, placement, OpRole.Forward)


def join(block: Block, placement: ParameterPlacement, role: int) -> None:
    """Put the pieces of each parameter that was received in pieces together."""
    for name, held in placement.held.items():
        # a distributed table: servers have rows of the table under the table's name
        whole = held[0].param == name
        if block.find_var_recursive(held[0].param) is not None and len(held) > 1 and not whole:
            block.append_op("concat", {"X": [h.param for h in held]}, {"Out": name}, {"axis": 0, "op_role": role})
