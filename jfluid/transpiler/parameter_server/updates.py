"""Parameter updates of a program: the operators that move to the servers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from jfluid import errors
from jfluid.ir import schema
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable

LOOK_UPS = ("lookup_table", "lookup_table_v2")


@dataclass(eq=False)
class ParameterUpdate:
    """Update of one parameter.

    Attributes:
        param: the parameter.
        grad: what trainers send: its gradient, or what they made of it.
        ops: the operators that follow (clip, regularizer, optimizer), in order.
        look_ups: operators that read rows of the parameter, where nothing else reads it and its
            gradient is sparse rows: the servers answer those, and trainers never hold the
            parameter.
    """

    param: Variable
    grad: Variable
    ops: list[Operator] = field(default_factory=list)
    look_ups: list[Operator] = field(default_factory=list)

    @property
    def sparse(self) -> bool:
        """True if the gradient has sparse rows."""
        return self.grad.type == VarType.SELECTED_ROWS

    @property
    def remote(self) -> bool:
        """True if trainers look rows up at the servers, and never hold the parameter."""
        return bool(self.look_ups)

    @property
    def distributed(self) -> bool:
        """True if servers hold rows by the hash of the id, instead of a stretch of the table."""
        return self.remote and any(op.attr("is_distributed") for op in self.look_ups)

    @property
    def whole_only(self) -> bool:
        """True if the update depends on the whole parameter, so that it stays in one piece."""
        return any(schema.current().needs_whole(op.type) for op in self.ops)

    @property
    def own(self) -> set[str]:
        """Names that the update writes: the parameter, its state and temporary values."""
        return {n for op in self.ops for n in op.output_arg_names}


@dataclass
class Updates:
    """All updates of a program, and their common schedule.

    Attributes:
        all: one for each parameter, in the program's order.
        schedule: operators that compute learning rates.
        kept: operators of the role Optimize that see the gradients of several parameters (a clip by
            the global norm), and what they need: no server has all of those, so that they stay on
            the trainers.
    """

    all: list[ParameterUpdate]
    schedule: list[Operator]
    kept: list[Operator]

    @property
    def moved(self) -> list[Operator]:
        """The operators that leave the trainers' program."""
        return self.schedule + [op for u in self.all for op in u.ops]


def _role(op: Operator) -> int:
    return int(op.attrs.get("op_role", 0))


def read_updates(block: Block) -> Updates:
    """Return the updates of a program with this global block.

    Raises:
        ProgramError: the program updates no parameter.
        UnsupportedError: an operator of the role Optimize belongs to no parameter, or needs what no
            server can have.
    """
    optimizing = [op for op in block.ops if _role(op) == OpRole.Optimize]
    schedule = [op for op in block.ops if _role(op) & OpRole.LRSched]
    kept = _shared(optimizing)
    groups: dict[str, list[Operator]] = {}
    for op in optimizing:
        if not any(op is k for k in kept):
            groups.setdefault(_parameter_of(op, block), []).append(op)
    if not groups:
        raise errors.ProgramError(
            "DistributeTranspiler: the program updates no parameter; call the optimizer's minimize first"
        )
    found = [_update(block, name, ops, kept) for name, ops in groups.items()]
    for update in found:
        update.look_ups = _look_ups(block, update, schedule)
    return Updates(found, schedule, kept)


def _parameter_of(op: Operator, block: Block) -> str:
    """Return the parameter that an operator updates or helps to update."""
    names = op.input("Param") or list(op.attrs.get("op_role_var", ()))[:1]
    if not names or not isinstance(block.vars.get(names[0]), Parameter):
        raise errors.UnsupportedError(
            f"DistributeTranspiler: operator {op.type} ({op.callsite or 'no source line'}) has the "
            "role Optimize but belongs to no parameter, so that no server is to run it"
        )
    if op.sub_blocks():
        raise errors.UnsupportedError(
            f"DistributeTranspiler: operator {op.type}, of the update of {names[0]}, has a block; "
            "such updates run in one process only"
        )
    return names[0]


def _producers(ops: list[Operator]) -> list[set[int]]:
    """Return, for each operator, the positions of the operators that write its inputs."""
    last: dict[str, int] = {}
    found = []
    for i, op in enumerate(ops):
        found.append({last[n] for n in op.input_arg_names if n in last})
        last.update((n, i) for n in op.output_arg_names)
    return found


def _with_producers(start: Iterable[int], producers: list[set[int]]) -> set[int]:
    found: set[int] = set()
    waiting = list(start)
    while waiting:
        i = waiting.pop()
        if i not in found:
            found.add(i)
            waiting.extend(producers[i])
    return found


def _shared(optimizing: list[Operator]) -> list[Operator]:
    """Return operators that several parameters' updates need, operators that read the results, and all before both."""
    producers = _producers(optimizing)
    uses = Counter(
        i for j, op in enumerate(optimizing) if op.input("Param") for i in _with_producers(producers[j], producers)
    )
    shared = {i for i, count in uses.items() if count > 1}
    readers = {j for j in range(len(optimizing)) if producers[j] & shared}
    kept = _with_producers(shared | readers, producers)
    for i in sorted(kept):
        if optimizing[i].input("Param"):
            raise errors.UnsupportedError(
                f"DistributeTranspiler: the update of {optimizing[i].input('Param')[0]} "
                f"({optimizing[i].type}) reads a result of several parameters' updates, and "
                "no server has all of these"
            )
    return [op for i, op in enumerate(optimizing) if i in kept]


def _update(block: Block, name: str, ops: list[Operator], kept: list[Operator]) -> ParameterUpdate:
    """Return the update by `ops`; trainers send the one value that `ops` read from their computation."""
    mine, sent = set(), []
    on_trainers = {n for op in block.ops if _role(op) & OpRole.Backward for n in op.output_arg_names}
    on_trainers.update(n for op in kept for n in op.output_arg_names)
    for op in ops:
        sent += [n for n in op.input_arg_names if n in on_trainers and n not in mine and n not in sent]
        mine.update(op.output_arg_names)
    if len(sent) != 1:
        raise errors.UnsupportedError(
            f"DistributeTranspiler: the update of {name} reads {', '.join(sent) or 'no gradient'}; "
            "expected one gradient that trainers can send"
        )
    return ParameterUpdate(block.vars[name], block.var_recursive(sent[0]), ops)


def _look_ups(block: Block, update: ParameterUpdate, schedule: list[Operator]) -> list[Operator]:
    """Return the parameter's look-ups, if trainers need nothing but rows of the parameter."""
    name = update.param.name
    if not update.sparse:
        return []
    readers = [
        op
        for b in block.program.blocks
        for op in b.ops
        if name in op.input_arg_names and not any(op is u for u in (*update.ops, *schedule))
    ]
    forward = [op for op in readers if not _role(op) & OpRole.Backward]
    gradients = [op for op in readers if _role(op) & OpRole.Backward]
    answered = all(op.type in LOOK_UPS and op.block is block for op in forward) and all(
        op.type.removesuffix("_grad") in LOOK_UPS for op in gradients
    )
    return forward if answered else []
