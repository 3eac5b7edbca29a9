"""Mode "collective": operators in the program itself all-reduce gradients, or parameters.

Each process runs its program with `Executor.run`, on one device, with a share of the data.
"""

from collections.abc import Sequence

from jfluid import errors
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.program import Program, default_main_program, default_startup_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable

__all__ = ["Collective", "GradAllReduce", "LocalSGD"]


class Collective:
    """Rewrites the programs of one process among several; subclasses say how the main program changes.

    Args:
        nrings: how many rings the operators take turns in.
    """

    mode = ""

    def __init__(self, nrings: int = 2):
        if isinstance(nrings, bool) or not isinstance(nrings, int) or nrings < 1:
            raise errors.ProgramError(f"nrings: expected a whole number above 0, found {nrings!r}")
        self.nrings = nrings

    def transpile(
        self,
        startup_program: Program | None,
        main_program: Program | None,
        rank: int,
        endpoints: Sequence[str] | str,
        current_endpoint: str,
        wait_port: bool = True,
    ) -> None:
        """Rewrite both programs in place.

        Args:
            startup_program, main_program: the default ones when None.
            rank: which of the processes this is.
            endpoints: of all processes, a list or "ip:port,ip:port".
            current_endpoint: this process's, `endpoints[rank]`.
            wait_port: without effect: processes always wait for each other when they start.

        Raises ProgramError when there is only one process, or the arguments contradict each other.
        """
        endpoints = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
        if len(endpoints) < 2:
            raise errors.ProgramError(
                f"{type(self).__name__}: expected at least two endpoints, found {endpoints}: one "
                "process runs the program as it is"
            )
        if not 0 <= rank < len(endpoints) or endpoints[rank] != current_endpoint:
            raise errors.ProgramError(
                f"{type(self).__name__}: expected the endpoint of process {rank} of {endpoints}, found "
                f"{current_endpoint!r}"
            )
        self.endpoints, self.current_endpoint = endpoints, current_endpoint
        self.rank, self.nranks = rank, len(endpoints)
        self.startup_program = startup_program if startup_program is not None else default_startup_program()
        self.main_program = main_program if main_program is not None else default_main_program()
        self.main_program._trainers_endpoints = endpoints
        self._transpile_startup_program()
        self._transpile_main_program()

    def _transpile_main_program(self) -> None:
        raise NotImplementedError(f"{type(self).__name__}: a subclass of Collective has to rewrite the main program")

    def _transpile_startup_program(self) -> None:
        """Let processes connect, and start from process 0's parameters."""
        block = self.startup_program.global_block()
        others = [e for e in self.endpoints if e != self.current_endpoint]
        for ring in range(self.nrings):
            nccl_id = block.create_var(name=unique_name.generate("nccl_id"), persistable=True, type=VarType.RAW)
            block.append_op(
                "c_gen_nccl_id",
                {},
                {"Out": nccl_id},
                {
                    "rank": self.rank,
                    "endpoint": self.current_endpoint,
                    "other_endpoints": others,
                    "op_role": OpRole.Forward,
                },
            )
            block.append_op(
                "c_comm_init",
                {"X": nccl_id},
                {},
                {"nranks": self.nranks, "rank": self.rank, "ring_id": ring, "op_role": OpRole.Forward},
            )
        parameters = self._shared(block)
        rings = _Turns(self.nrings)
        for param in parameters:
            _in_place(block, len(block.ops), "c_broadcast", param.name, OpRole.Forward, ring_id=rings.next(), root=0)
        if parameters:
            self._sync(block, len(block.ops), parameters[-1].name, OpRole.Forward)

    @staticmethod
    def _shared(block: Block) -> list[Parameter]:
        """Return the parameters that all processes hold."""
        return [p for p in block.iter_parameters() if not _is_divided(p)]

    def _sync(self, block: Block, index: int, name: str, role: int) -> None:
        for ring in range(self.nrings):
            _in_place(block, index + ring, "c_sync_comm_stream", name, role, ring_id=ring)


class _Turns:
    """Rings, one after the other."""

    def __init__(self, rings: int):
        self._rings, self._last = rings, -1

    def next(self) -> int:
        self._last = (self._last + 1) % self._rings
        return self._last


def _in_place(block: Block, index: int, type_: str, name: str, role: int, **attrs: object) -> Operator:
    """Insert an operator that overwrites its only input."""
    return block.insert_op(index, type_, {"X": name}, {"Out": name}, {**attrs, "op_role": role})


def _is_divided(param: Variable) -> bool:
    """Return True if each process holds a separate part of the parameter, so that nothing is all-reduced."""
    return bool(getattr(param, "is_distributed", False))


def _has_role(op: Operator, role: int) -> bool:
    return bool(op.attrs.get("op_role", 0) & role == role)


class GradAllReduce(Collective):
    """Rewriter that sums the gradients of all processes, each scaled to its share of the loss, before use."""

    mode = "grad_allreduce"

    def _transpile_main_program(self) -> None:
        block = self.main_program.global_block()
        for at in _backwards(block, OpRole.Backward | OpRole.Loss):
            _in_place(
                block, at + 1, "scale", block.ops[at].output_arg_names[0], OpRole.Backward, scale=1.0 / self.nranks
            )
        last, rings = "", _Turns(self.nrings)
        for at in _backwards(block, OpRole.Backward):
            if block.ops[at].input("nranks"):  # `dgc` sums over the processes by itself
                continue
            pairs = block.ops[at].attrs.get("op_role_var", ())
            gradients = [g for p, g in zip(pairs[::2], pairs[1::2]) if not _is_divided(block.var(p))]
            for i, grad in enumerate(gradients):
                _refuse_sparse(block, grad)
                if i == 0:
                    _in_place(block, at + 1, "c_sync_calc_stream", grad, OpRole.Backward)
                _in_place(block, at + 2, "c_allreduce_sum", grad, OpRole.Backward, ring_id=rings.next())
                last = grad
        first = next((i for i, op in enumerate(block.ops) if _has_role(op, OpRole.Optimize)), None)
        if last and first is not None:
            self._sync(block, first, last, OpRole.Backward)


def _backwards(block: Block, role: int) -> list[int]:
    """Positions of the operators of a role, the last one first: insertion after one moves no other."""
    return [i for i in reversed(range(len(block.ops))) if _has_role(block.ops[i], role)]


def _refuse_sparse(block: Block, grad: str) -> None:
    if block.var(grad).type == VarType.SELECTED_ROWS:
        raise errors.UnsupportedError(
            f"grad_allreduce: the gradient {grad} has sparse rows, which c_allreduce_sum does not "
            'take. Use mode "nccl2", or build the embedding with is_sparse=False'
        )


class LocalSGD(Collective):
    """Rewriter for local updates in each process; then the parameters become the mean of all processes'."""

    mode = "local_sgd"
    snapshot_key = "@SNAPSHOT"

    def snapshot_name(self, param_name: str) -> str:
        """Return the variable with the value of a parameter before the step."""
        return param_name + self.snapshot_key

    def _snapshot(self, block: Block, param: Variable) -> str:
        return block.create_var(
            name=self.snapshot_name(param.name),
            shape=param.shape,
            dtype=param.dtype,
            persistable=True,
            stop_gradient=True,
        ).name

    def _transpile_startup_program(self) -> None:
        super()._transpile_startup_program()
        block = self.startup_program.global_block()
        for param in self._shared(block):
            block.append_op(
                "assign", {"X": [param.name]}, {"Out": [self._snapshot(block, param)]}, {"op_role": OpRole.Forward}
            )

    def _transpile_main_program(self) -> None:
        block = self.main_program.global_block()
        role, rings = OpRole.Optimize, _Turns(self.nrings)
        moved: list[tuple[str, str]] = []
        for at in reversed(range(len(block.ops))):
            op = block.ops[at]
            if not {"Param", "Grad", "LearningRate"} <= set(op.inputs):
                continue
            param = block.var(op.input("Param")[0])
            if _is_divided(param):
                continue
            name, snapshot = param.name, self._snapshot(block, param)
            block.insert_op(
                at + 1, "elementwise_sub", {"X": [snapshot], "Y": [name]}, {"Out": [name]}, {"op_role": role}
            )
            _in_place(block, at + 2, "c_sync_calc_stream", name, role)
            _in_place(block, at + 3, "c_allreduce_sum", name, role, ring_id=rings.next())
            moved.append((name, snapshot))
        if moved:
            self._sync(block, len(block.ops), moved[-1][0], role)
        for name, snapshot in reversed(moved):
            _in_place(block, len(block.ops), "scale", name, role, scale=1.0 / self.nranks)
            block.append_op("elementwise_sub", {"X": [snapshot], "Y": [name]}, {"Out": [name]}, {"op_role": role})
            block.append_op("assign", {"X": [name]}, {"Out": [snapshot]}, {"op_role": role})


MODES: dict[str, type[Collective]] = {kind.mode: kind for kind in (GradAllReduce, LocalSGD)}
