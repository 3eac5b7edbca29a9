"""Plans: a block cut into XLA segments, and host operators between the segments."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jfluid import errors
from jfluid.compile.lowering.expansion import make_room
from jfluid.ir import nesting
from jfluid.ir.block import Block, kept, outer_names, reads_of, writes_of
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.streams import first_output
from jfluid.ir.types import VarType
from jfluid.ir.variable import EMPTY_NAME, Variable
from jfluid.ops import registry, schema
from jfluid.ops.definition import OpDef

_NORMALISE = frozenset(("batch_norm", "sync_batch_norm", "inplace_abn"))

Item = tuple[int, Operator, OpDef]


@dataclass
class Segment:
    """Operators that run together: one XLA program, or one host operator.

    Attributes:
        reads: inputs of the operators, in order of first use.
        gives: outputs that later segments, fetches or the Scope need.
        collective: True if an operator computes with the values of all replicas.
        exact: True if it is compiled for each shape.
    """

    ops: list[tuple[int, Operator, OpDef]]
    host: bool
    reads: list[str] = field(default_factory=list)
    gives: list[str] = field(default_factory=list)
    collective: bool = False
    exact: bool = False


@dataclass
class Plan:
    """Block cut into segments.

    Attributes:
        state: names that are read before a write and not fed: the Scope must have them.
        updated: persistable names that the run writes.
        rng: True if an operator draws random numbers.
    """

    block: Block
    segments: list[Segment]
    feeds: list[str]
    fetches: list[str]
    state: list[str]
    updated: list[str]
    rng: bool

    @property
    def starts_anew(self) -> bool:
        """True if the program reads nothing, as a startup program does."""
        return not self.state and not self.feeds


def unsupported(program: Program) -> None:
    """Raise UnsupportedOpError with all operators of the program that are not registered.

    Raises UnsupportedError for registered operators that cannot run in this release.
    """
    missing: dict[str, str] = {}
    absent: dict[str, str] = {}
    for block in program.blocks:
        for i, op in enumerate(block.ops):
            definition = registry.find(op.type)
            if definition is None and op.type not in missing:
                missing[op.type] = f"{op.type}: block {block.idx}, position {i}" + (
                    f", {op.callsite}" if op.callsite else ""
                )
            elif definition is not None and definition.absent:
                absent[op.type] = definition.absent
    if missing:
        raise errors.UnsupportedOpError(*missing, where=missing.values())
    for why in dict.fromkeys(absent.values()):
        raise errors.UnsupportedError(f"operators {', '.join(t for t in absent if absent[t] == why)}: {why}")


def live_ops(block: Block) -> list[tuple[int, Operator, OpDef]]:
    """Operators with their positions and definitions, without the feed and fetch operators of a saved model."""
    return [(i, op, registry.get(op.type)) for i, op in enumerate(block.ops) if op.type not in ("feed", "fetch")]


def plan(program: Program, feeds: Sequence[str], fetches: Sequence[str]) -> Plan:
    """Split the global block of `program`; see Plan.

    Raises UnsupportedOpError for operators that are not registered, UntrustedOperatorError for
    operators of a read program that would act, and FetchError for a fetch that nothing computes.
    """
    make_room(nesting.check(program))
    program.refuse_acting()
    unsupported(program)
    for inner in program.blocks:
        for op in inner.ops:
            schema.check_given(op, registry.get(op.type))
    block = program.global_block()
    found = _cut(block, list(feeds), list(fetches), in_loop=False)
    _check_fetches(
        block,
        fetches,
        {n for s in found.segments for _, op, _ in s.ops for n in writes_of(op)},
        feeds,
    )
    return found


def plan_block(block: Block, needed: Sequence[str]) -> Plan:
    """Split a block that the host runs repeatedly: its inputs are given, and its `needed` outputs are kept."""
    return _cut(block, [], list(needed), in_loop=True)


def keeps_rows(var: Variable | None) -> bool:
    """Return True for a variable whose SelectedRows stay in the Scope: users and files put them there."""
    return var is not None and var.type == VarType.SELECTED_ROWS and var.persistable


def on_kept_rows(op: Operator, derived: set[str]) -> bool:
    """Return True if the operator meets SelectedRows of the Scope, or rows in `derived`, which follow from them.

    Adds the rows that the operator gives to `derived`.
    """
    names = op.input_arg_names + op.output_arg_names
    if derived.isdisjoint(names) and not any(keeps_rows(op.block.find_var_recursive(n)) for n in names):
        return False
    made = [op.block.find_var_recursive(n) for n in op.output_arg_names]
    derived.update(v.name for v in made if v is not None and v.type == VarType.SELECTED_ROWS and not v.persistable)
    return True


def _cut(block: Block, feeds: list[str], fetches: list[str], in_loop: bool) -> Plan:
    segments: list[Segment] = []
    rows = set[str]()
    for item in live_ops(block):
        host = item[2].on_host(item[1]) or _runs_on_host(item[1]) or (in_loop and _handles_array(item[1]))
        host = on_kept_rows(item[1], rows) or host
        if host or not segments or segments[-1].host:
            segments.append(Segment([], host))
        segments[-1].ops.append(item)
    return joined(block, segments, feeds, fetches)


def joined(block: Block, segments: list[Segment], feeds: list[str], fetches: list[str]) -> Plan:
    """Return the plan of segments that have operators only: add the names that each segment reads and gives."""
    for segment in segments:
        segment.collective = any(_is_collective(op, found) for _, op, found in segment.ops)
    written: set[str] = set()
    changed: set[str] = set()
    state: dict[str, None] = {}
    for segment in segments:
        inside, reads = set[str](), dict[str, None]()
        for _, op, definition in segment.ops:
            for name in (
                _structure_reads(op, inside | written)
                if op.sub_blocks()
                else op.input_arg_names + _kept_outputs(op, definition)
            ):
                if name in inside or name == EMPTY_NAME or name in reads:
                    continue
                if keeps_rows(block.find_var_recursive(name)):
                    continue
                if op.type.endswith("_grad") and block.find_var_recursive(name) is None:
                    continue
                reads[name] = None
                if name not in written and name not in feeds:
                    state[name] = None
            inside |= writes_of(op)
            changed |= writes_of(op) - _left_as_they_are(op)
        segment.reads = list(reads)
        written |= inside
    for name in fetches:
        if name not in written and name not in feeds:
            state[name] = None
    found = ((n, block.find_var_recursive(n)) for n in sorted(changed))
    updated = [n for n, v in found if v is not None and v.persistable and not keeps_rows(v)]
    needed = set(fetches) | set(updated)
    for segment in reversed(segments):
        writes = {n for _, op, _ in segment.ops for n in writes_of(op)}
        segment.gives = sorted(writes & needed)
        needed = (needed - writes) | set(segment.reads) | set(updated)
        # Writing to an array reads it, too: its other elements stay.
        needed |= {
            n
            for n in segment.gives
            if (v := block.find_var_recursive(n)) is not None and v.type == VarType.LOD_TENSOR_ARRAY
        }
    rng = any(d.rng for b in block.program.blocks for _, _, d in live_ops(b))
    return Plan(block, segments, feeds, fetches, list(state), updated, rng)


def _left_as_they_are(op: Operator) -> set[str]:
    """Return the statistics that a normalization operator reads and returns unchanged.

    Steps that run concurrently on one scope would overwrite each other's statistics.
    """
    renews = op.attrs.get("trainable_statistics") or not op.attrs.get("is_test")
    if op.type not in _NORMALISE or (renews and not op.attrs.get("use_global_stats")):
        return set()
    pairs = (("Mean", "MeanOut"), ("Variance", "VarianceOut"))
    return {n for given, out in pairs for n in op.output(out) if n in op.input(given)}


def _kept_outputs(op: Operator, definition: OpDef) -> list[str]:
    """Return the persistable outputs that the operator also reads: their values before the step."""
    names = [n for slot in definition.carries for n in op.output(slot)]
    found = [op.block.find_var_recursive(n) for n in names]
    return [v.name for v in found if v is not None and v.persistable and v.type == VarType.LOD_TENSOR]


def before(items: Sequence[Item], position: int, names: set[str]) -> list[Item]:
    """Return the operators that compute the values of variables before an operator's position."""
    wanted, found = set(names), []
    for item in reversed([i for i in items if i[0] < position]):
        _, op, definition = item
        written = writes_of(op) & wanted
        if not written:
            continue
        found.append(item)
        if not op.sub_blocks() and not definition.carries:
            wanted -= written  # their earlier values are overwritten
        wanted |= (reads_of(op) | set(op.input_arg_names)) - {EMPTY_NAME}
    return found[::-1]


def with_host_loop(plan: Plan, at: int, position: int) -> Plan | None:
    """Return the plan with a loop or condition of segment `at` run by the host, between two segments.

    The first segment has only the operators that the loop needs, so that other loops stay together with their
    gradients. Returns None for any other operator, for a loop that gradients are taken through, and if the order of
    operators that overwrite the same value would change.
    """
    ops = plan.segments[at].ops
    item = next(item for item in ops if item[0] == position)
    op = item[1]
    differentiated = {o.attrs.get("sub_block") for s in plan.segments for _, o, _ in s.ops if "_grad" in o.type}
    if op.type not in ("while", "conditional_block") or op.attrs["sub_block"] in differentiated:
        return None
    first = before(ops, position, reads_of(op))
    rest = [other for other in ops if other not in first and other is not item]
    if not _may_follow([other for other in rest if other[0] < position], [*first, item]):
        return None
    segments = [Segment(s.ops, s.host, exact=s.exact) for s in plan.segments]
    parts = (Segment(first, False), Segment([item], True), Segment(rest, False))
    segments[at : at + 1] = [part for part in parts if part.ops]
    return joined(plan.block, segments, plan.feeds, plan.fetches)


def with_exact_operator(plan: Plan, at: int, position: int) -> Plan:
    """Return the plan with an operator of segment `at` in a segment of its own, which keeps exact shapes."""
    ops = plan.segments[at].ops
    number = next(i for i, item in enumerate(ops) if item[0] == position)
    segments = [Segment(s.ops, s.host, exact=s.exact) for s in plan.segments]
    own = Segment([ops[number]], False, exact=True)
    parts = (Segment(ops[:number], False), own, Segment(ops[number + 1 :], False))
    segments[at : at + 1] = [part for part in parts if part.ops]
    return joined(plan.block, segments, plan.feeds, plan.fetches)


def _may_follow(items: list[Item], others: list[Item]) -> bool:
    """Return True if operators may be moved behind other operators that come later."""
    return not any(
        writes_of(op) & (reads_of(other) | writes_of(other)) or reads_of(op) & writes_of(other)
        for position, op, _ in items
        for at, other, _ in others
        if position < at
    )


def _is_collective(op: Operator, definition: OpDef) -> bool:
    """Return True if the operator, or an operator in its blocks, computes with the values of all replicas."""
    return definition.collective or any(
        _is_collective(inner, registry.get(inner.type)) for b in op.sub_blocks() for inner in b.ops
    )


def _runs_on_host(op: Operator) -> bool:
    """Return True if the host runs the operator's block.

    The block then contains host operators. Or it writes an array that is concatenated, needs no gradient, and has a
    length that is known at run time only.
    """
    others = op.block.ops if op.type == "while" else ()
    joined = {n for o in others if o.type == "tensor_array_to_tensor" for n in o.input_arg_names}
    if joined & set(op.output("Out")) and not any(o.type == "while_grad" for o in others):
        return True
    return any(
        registry.get(inner.type).on_host(inner) or _runs_on_host(inner) for b in op.sub_blocks() for inner in b.ops
    )


def _handles_array(op: Operator) -> bool:
    """Return True if the operator reads or writes arrays, which grow with the iterations of a loop on the host."""
    found = [op.block.find_var_recursive(n) for n in op.input_arg_names + op.output_arg_names]
    return any(v is not None and v.type == VarType.LOD_TENSOR_ARRAY for v in found)


def _structure_reads(op: Operator, written: set[str]) -> list[str]:
    """Return the inputs with values of an operator with blocks.

    Arrays may be empty at first, and some names are only written.
    """
    read = set[str]().union(*(outer_names(b)[0] for b in op.sub_blocks())) | kept(op)
    found = []
    for name in sorted(reads_of(op)):
        var = op.block.find_var_recursive(name)
        if name in written or var is None or var.persistable or (name in read and var.type != VarType.LOD_TENSOR_ARRAY):
            found.append(name)
    return found


def _check_fetches(block: Block, fetches: Sequence[str], written: set[str], feeds: Sequence[str]) -> None:
    for name in fetches:
        var = block.find_var_recursive(name)
        if keeps_rows(var):
            raise errors.FetchError(
                f"fetch {name}: its SelectedRows stay in the scope: fetch layers.get_tensor_from_selected_rows of the "
                f'variable, or read scope.find_var("{name}").get_selected_rows()'
            )
        if name not in written and name not in feeds and (var is None or not var.persistable):
            known = written | set(feeds)
            what = "the program computes no such variable" if var is None else "no operator of the program writes it"
            raise errors.FetchError(f"fetch {name}: {what}" + errors.close_to(name, known))


def op_uid(op: Operator) -> int:
    """Return the number of the operator's random stream, by its number in the program (`jfluid.ir.streams`)."""
    return op.block.program.streams.uid(op.type, first_output(op))


def twin_uid(op: Operator, forward: OpDef) -> int:
    """Return `op_uid` of the forward operator that gradient operator `op` belongs to."""
    for slot in forward.outs:
        names = op.inputs.get(slot.name) or [n.removesuffix("@GRAD") for n in op.inputs.get(slot.name + "@GRAD", ())]
        if names:
            return op.block.program.streams.uid(forward.type, names[0])
    return 0
