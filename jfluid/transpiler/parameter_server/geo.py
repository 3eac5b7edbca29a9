"""GEO: trainers update alone, and exchange differences of parameters with the servers at an interval of steps."""

from collections.abc import Mapping

from jfluid.ir.block import Block
from jfluid.ir.operator import OpRole
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.transpiler.parameter_server import trainer
from jfluid.transpiler.parameter_server.placement import ParameterPlacement, UpdatedPiece

GEO = 3  # of listen_and_serv's attribute `distributed_mode`


def delta(held: UpdatedPiece) -> str:
    """Return the name of a piece's difference in messages."""
    return f"{held.param}.delta"


def exchanged(placement: ParameterPlacement) -> dict[str, dict[str, list[str]]]:
    """Return the exchange of a communicator: by parameter the pieces' names, rows and servers.

    It also says whether rows go by id.
    """
    return {
        name: {
            "var_names": [h.param for h in held],
            "sections": [str(h.piece.rows) for h in held],
            "epmap": placement.endpoints_of(held),
            "is_sparse": [str(held[0].update.remote)],
        }
        for name, held in placement.held.items()
    }


def rewrite(program: Program, placement: ParameterPlacement) -> None:
    """Note a step of training, in place: one operator reports the touched rows of tables to the communicator."""
    block = program.global_block()
    touched = [(n, u.param.name) for u in placement.updates.all for op in u.look_ups for n in op.input("Ids")]
    block.append_op(
        "send",
        {"X": [ids for ids, _ in touched]},
        {"Out": trainer.control(block)},
        {
            "send_varnames": [table for _, table in touched],
            "epmap": placement.endpoints,
            "trainer_id": placement.trainer_id,
            "op_role": OpRole.RPC,
        },
    )
    program.verify("DistributeTranspiler, GEO")


def startup(program: Program, placement: ParameterPlacement) -> None:
    """Rewrite the startup program of a trainer in place: all trainers begin with the servers' parameters."""
    block = program.global_block()
    trainer.receive_all(block, placement, placement.held.values())
    program.verify("DistributeTranspiler, startup program of a trainer")


def build(placement: ParameterPlacement, endpoint: str) -> Program:
    """Return the program of the server at `endpoint`: it adds the differences that it receives."""
    program = Program()
    block = program.global_block()
    blocks = {held: _add(program, block, held) for held in placement.at(endpoint)}
    program.current_block_idx = 0
    _listen(block, placement, endpoint, blocks)
    return program.verify(f"DistributeTranspiler, server {endpoint}")


def _add(program: Program, root: Block, held: UpdatedPiece) -> Block:
    like = {"shape": held.piece.shape, "dtype": held.update.param.dtype, "persistable": True}
    root.create_var(name=held.param, **like)
    root.create_var(name=delta(held), type=VarType.SELECTED_ROWS if held.update.remote else VarType.LOD_TENSOR, **like)
    block = program.create_block(0)
    block.append_op("sum", {"X": [held.param, delta(held)]}, {"Out": held.param}, {"op_role": OpRole.Forward})
    return block


def _listen(block: Block, placement: ParameterPlacement, endpoint: str, blocks: Mapping[UpdatedPiece, Block]) -> None:
    block.append_op(
        "listen_and_serv",
        {},
        {},
        {
            "endpoint": endpoint,
            "pserver_id": placement.endpoints.index(endpoint),
            "Fanin": placement.trainers,
            "distributed_mode": GEO,
            "optimize_blocks": list(blocks.values()),
            "grad_to_block_id": [f"{delta(h)}:{b.idx}" for h, b in blocks.items()],
            "sparse_grad_to_param": [f"{delta(h)}:{h.param}" for h in blocks if h.update.remote],
            "op_role": OpRole.Forward,
        },
    )
