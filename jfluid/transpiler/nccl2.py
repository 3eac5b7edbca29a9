"""Mode "nccl2": trainers connect when the startup program runs; the engine then spans the devices of all."""

from jfluid import errors
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.transpiler.config import DistributeTranspilerConfig


def transpile(
    config: DistributeTranspilerConfig, program: Program, startup: Program, trainer_id: int, endpoints: list[str]
) -> None:
    """Append `gen_nccl_id` to the startup program and note the trainers on the program.

    Raises ProgramError.
    """
    inner = config.hierarchical_allreduce_inter_nranks
    if config.use_hierarchical_allreduce and inner <= 1:
        inner = sum(e.rpartition(":")[0] == endpoints[trainer_id].rpartition(":")[0] for e in endpoints)
    if config.use_hierarchical_allreduce and (inner < 2 or len(endpoints) <= inner or len(endpoints) % inner):
        raise errors.ProgramError(
            "hierarchical_allreduce_inter_nranks: expected the number of trainers of a host, at least 2, of which all "
            "trainers ({len(endpoints)}) are a multiple; found {inner}"
        )
    program._trainers_endpoints = list(endpoints)
    block = startup.global_block()
    names = ["NCCLID", *(f"NCCLID_{i}" for i in range(1, config.nccl_comm_num))]
    if config.use_hierarchical_allreduce:
        names += [f"Hierarchical_{part}_NCCLID_{i}" for i in range(config.nccl_comm_num) for part in ("inter", "exter")]
    ids = [block.create_var(name=name, persistable=True, type=VarType.RAW) for name in names]
    block.append_op(
        "gen_nccl_id",
        {},
        {"NCCLID": ids[0]},
        {
            "trainers": endpoints,
            "trainer_id": trainer_id,
            "nccl_comm_num": config.nccl_comm_num,
            "use_hierarchical_allreduce": config.use_hierarchical_allreduce,
            "hierarchical_allreduce_inter_nranks": inner,
        },
    )
