"""Program of a parameter server: a block of operators for each parameter slice, run when its gradients arrive."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from jfluid import errors
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.transpiler.parameter_server.layout import Piece
from jfluid.transpiler.parameter_server.placement import ParameterPlacement, UpdatedPiece

# Values of listen_and_serv's attribute `distributed_mode`.
SYNC, ASYNC, HALF_ASYNC = 0, 1, 2
# other kinds (the scopes of a block that runs) are of one run only
_VALUES = (VarType.LOD_TENSOR, VarType.SELECTED_ROWS)


class ServerVariable(NamedTuple):
    """Counterpart on a server of a variable of the original program.

    Attributes:
        piece: its name and shape there, and which rows it has of the whole.
        of: the piece of a parameter whose rows it has, or None where it has no rows of one.
    """

    piece: Piece
    of: UpdatedPiece | None

    @property
    def cut(self) -> bool:
        """True if the variable has only some rows."""
        return self.of is not None and self.of.label != ""

    @property
    def distributed(self) -> bool:
        """True for a table that creates rows at the first look-up."""
        return self.of is not None and self.of.update.distributed


def variables_on(placement: ParameterPlacement, endpoint: str) -> dict[str, list[ServerVariable]]:
    """Return the variables on a server that outlive a round, by their names in the original program."""
    found: dict[str, list[ServerVariable]] = {}
    for held in placement.at(endpoint):
        for name in _own_state(held):
            found.setdefault(name, []).append(_variable(placement, held, name))
    updates = placement.updates
    shared = [n for h in placement.at(endpoint) for op in h.update.ops for n in op.input_arg_names]
    shared += [n for op in updates.schedule for n in op.input_arg_names + op.output_arg_names]
    block = updates.all[0].param.block
    for name in shared:
        var = block.find_var_recursive(name)
        if (
            name not in found
            and name not in _gradients(placement)
            and var is not None
            and not _is_temporary(placement, name)
        ):
            found[name] = [ServerVariable(Piece(name, placement.endpoints.index(endpoint), 0, tuple(var.shape)), None)]
    return found


def _gradients(placement: ParameterPlacement) -> set[str]:
    return {u.grad.name for u in placement.updates.all}


def _is_temporary(placement: ParameterPlacement, name: str) -> bool:
    """Return True if each update of a parameter computes the value anew."""
    return any(name in u.own and not u.param.block.var_recursive(name).persistable for u in placement.updates.all)


def _own_state(held: UpdatedPiece) -> list[str]:
    """Return the parameter and its optimizer state, in the program's order."""
    block, own = held.update.param.block, held.update.own
    names = [held.update.param.name] + [n for op in held.update.ops for n in op.output_arg_names if n in own]
    return [n for n in dict.fromkeys(names) if block.var_recursive(n).persistable]


def _suffix(placement: ParameterPlacement, held: UpdatedPiece) -> str:
    """Return the suffix that separates the states of several pieces of one parameter on the same server."""
    mates = [h for h in placement.held[held.update.param.name] if h.piece.server == held.piece.server]
    return held.label if len(mates) > 1 else ""


def _variable(placement: ParameterPlacement, held: UpdatedPiece, name: str) -> ServerVariable:
    param = held.update.param
    there = held.param if name == param.name else name + _suffix(placement, held)
    shape = tuple(param.block.var_recursive(name).shape)
    if shape == tuple(param.shape):
        return ServerVariable(replace(held.piece, name=there), held)
    return ServerVariable(Piece(there, held.piece.server, 0, shape), None)


def build(placement: ParameterPlacement, endpoint: str, seed: int) -> Program:
    """Return the program of the server at `endpoint`."""
    program = Program()
    program.random_seed = seed
    _declare(program.global_block(), placement, endpoint)
    schedule = _schedule(program, placement) if placement.updates.schedule else -1
    blocks = {held: _optimize(program, placement, held, max(schedule, 0)) for held in placement.at(endpoint)}
    program.current_block_idx = 0
    _listen(program.global_block(), placement, endpoint, schedule, blocks)
    return program.verify(f"DistributeTranspiler, server {endpoint}")


def _declare(block: Block, placement: ParameterPlacement, endpoint: str) -> None:
    """Declare persistable variables, and the arriving gradients."""
    origin = placement.updates.all[0].param.block
    for name, found in variables_on(placement, endpoint).items():
        for variable in found:
            var = origin.var_recursive(name)
            block.create_var(
                name=variable.piece.name,
                shape=variable.piece.shape,
                dtype=var.dtype,
                persistable=var.type in _VALUES,
                type=VarType.SELECTED_ROWS if variable.distributed else var.type,
            )
    for name in placement.counts():
        block.create_var(name=name, shape=[1], dtype="int64", persistable=True)
    for held in placement.at(endpoint):
        grad = held.update.grad
        like = {"shape": held.piece.shape, "dtype": grad.dtype, "type": grad.type}
        block.create_var(name=held.grad, persistable=True, **like)
        for trainer in range(placement.trainers if placement.sums else 0):
            block.create_var(name=placement.sent(held, trainer), **like)


def _schedule(program: Program, placement: ParameterPlacement) -> int:
    """Append the block that computes learning rates, once a round; return its position."""
    block = program.create_block(0)
    for op in placement.updates.schedule:
        if op is placement.counter:
            block.append_op("sum", {"X": placement.counts()}, {"Out": op.output("Out")}, {"op_role": OpRole.LRSched})
        else:
            copy_op(op, block, {})
    return block.idx


def copy_op(op: Operator, block: Block, names: Mapping[str, str]) -> Operator:
    """Append a copy of an operator, with other names for some variables; blocks inside it are copied too."""
    twin = op.clone_into(block)
    for slots in (twin.inputs, twin.outputs):
        for slot, given in slots.items():
            slots[slot] = [names.get(n, n) for n in given]
    block.adopt_op(twin)
    for attr, value in op.attrs.items():
        if isinstance(value, Block):
            twin.attrs[attr] = _copy_block(value, block, names)
    return twin


def _copy_block(source: Block, parent: Block, names: Mapping[str, str]) -> Block:
    block = parent.program.create_block(parent.idx)
    for var in source.vars.values():
        var.clone_into(block)
    for op in source.ops:
        copy_op(op, block, names)
    return block


def _optimize(program: Program, placement: ParameterPlacement, held: UpdatedPiece, parent: int) -> Block:
    """Append the block that updates one piece."""
    block = program.create_block(parent)
    if placement.sums:
        trainers = range(placement.trainers)
        block.append_op(
            "sum", {"X": [placement.sent(held, t) for t in trainers]}, {"Out": held.grad}, {"op_role": OpRole.Forward}
        )
        block.append_op(
            "scale",
            {"X": held.grad},
            {"Out": held.grad},
            {"scale": 1.0 / placement.trainers, "op_role": OpRole.Forward},
        )
    grad = _compensate(block, placement, held) if placement.config.enable_dc_asgd else held.grad
    names = {n: _variable(placement, held, n).piece.name for n in _own_state(held)} | {held.update.grad.name: grad}
    for op in held.update.ops:
        for name in op.output_arg_names:
            _declare_temporary(block, placement, held, name, names)
        copy_op(op, block, names)
    return block


def _declare_temporary(
    block: Block, placement: ParameterPlacement, held: UpdatedPiece, name: str, names: Mapping[str, str]
) -> None:
    """Declare a value that an update makes for itself."""
    if name in names or block.find_var_recursive(name) is not None:
        return
    origin: Variable = held.update.param.block.var_recursive(name)
    shape = _variable(placement, held, name).piece.shape
    block.create_var(name=name, shape=shape, dtype=origin.dtype, type=origin.type)


def backups(placement: ParameterPlacement, held: UpdatedPiece) -> list[str]:
    """Return the names of the values that each trainer got last."""
    return [f"{held.param}.trainer_{t}_bak" for t in range(placement.trainers)]


def _compensate(block: Block, placement: ParameterPlacement, held: UpdatedPiece) -> str:
    """Correct a late gradient g by g * g * (parameter - the trainer's parameter) (DC-ASGD); return its name."""
    if held.update.sparse:
        raise errors.UnsupportedError(
            f"enable_dc_asgd: the gradient of {held.update.param.name} has sparse rows, for which "
            "the compensation is not defined; use is_sparse=False or leave enable_dc_asgd out"
        )
    shape, dtype = held.piece.shape, held.update.param.dtype
    kept = [
        block.program.global_block().create_var(name=n, shape=shape, dtype=dtype, persistable=True)
        for n in backups(placement, held)
    ]
    trainer = block.create_var(name="@TRAINER_ID@", shape=[1], dtype="int64")
    local = block.create_var(name=f"{held.param}.local_bak", shape=shape, dtype=dtype)
    block.append_op("ref_by_trainer_id", {"X": kept, "TrainerId": trainer}, {"Out": local}, {"op_role": OpRole.Forward})

    def step(type_: str, x: str, y: str) -> str:
        number = sum(op.type.startswith("elementwise") for b in block.program.blocks for op in b.ops)
        out = block.create_var(name=f"tmp_dc_output_{number}", shape=shape, dtype=dtype)
        block.append_op(type_, {"X": x, "Y": y}, {"Out": out}, {"op_role": OpRole.Forward})
        return out.name

    moved = step("elementwise_sub", held.param, local.name)
    twice = step("elementwise_mul", step("elementwise_mul", moved, held.grad), held.grad)
    return step("elementwise_add", held.grad, twice)


def _listen(
    block: Block, placement: ParameterPlacement, endpoint: str, schedule: int, blocks: Mapping[UpdatedPiece, Block]
) -> None:
    trainers = range(placement.trainers if placement.sums else 1)
    config = placement.config
    mode = (
        SYNC
        if placement.sync or config.completely_not_async
        else ASYNC
        if config.runtime_split_send_recv
        else HALF_ASYNC
    )
    coming = sorted(blocks, key=lambda h: placement.sending.index(h.update.param.name))
    block.append_op(
        "listen_and_serv",
        {"X": [placement.sent(h, t) for h in coming for t in trainers]},
        {},
        {
            "endpoint": endpoint,
            "pserver_id": placement.endpoints.index(endpoint),
            "Fanin": placement.trainers,
            "distributed_mode": mode,
            "dc_asgd": config.enable_dc_asgd,
            "optimize_blocks": list(blocks.values()),
            "grad_to_block_id": [f"{h.grad}:{b.idx}" for h, b in blocks.items()],
            "sparse_grad_to_param": [f"{h.grad}:{h.param}" for h in blocks if h.update.sparse],
            "lr_decay_block_id": schedule,
            "op_role": OpRole.Forward,
        },
    )
