"""Startup programs: servers make the parameters, and trainers receive the values."""

from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.program import Program
from jfluid.transpiler.parameter_server import trainer
from jfluid.transpiler.parameter_server.placement import ParameterPlacement
from jfluid.transpiler.parameter_server.server import ServerVariable, backups, copy_op, variables_on


def of_trainer(startup: Program, placement: ParameterPlacement) -> None:
    """Rewrite the startup program of a trainer in place: it gets the parameters from the servers."""
    block = startup.global_block()
    remote = [u.param for u in placement.updates.all if u.remote]
    gone = trainer.state(placement.updates) | {p.name for p in remote}
    block.ops = [op for op in block.ops if not op.output_arg_names or not set(op.output_arg_names) <= gone]
    for name in trainer.state(placement.updates) & set(block.vars):
        block.remove_var(name)
    step = placement.counter.attr("step") if placement.counter is not None else 0.0
    _start_counts(block, placement, [step] * placement.trainers)
    trainer.receive_all(block, placement, [h for h in placement.held.values() if not h[0].update.remote])
    for param in remote:
        block.append_op("fake_init", {}, {"Out": param.name}, {"shape": param.shape, "op_role": OpRole.Forward})
    startup.verify("DistributeTranspiler, startup program of a trainer")


def of_server(startup: Program, server: Program, placement: ParameterPlacement, endpoint: str) -> Program:
    """Return the startup program of the server at `endpoint`, made from the original startup program.

    Random operators keep the stream numbers of the original program: a whole parameter starts from the values of
    a local run.
    """
    program = Program()
    program.random_seed = startup.random_seed
    program._streams = startup.streams.copy()
    block, there = program.global_block(), server.global_block().vars
    found = {
        name: [v for v in given if v.piece.name in there] for name, given in variables_on(placement, endpoint).items()
    }
    for var in there.values():
        block.clone_variable(var, force_persistable=False)
    ops = startup.global_block().ops
    needed = _needed(ops, {name for name, given in found.items() if given})
    for op in ops:
        if id(op) in needed:
            _initialize(block, op, startup.global_block(), found)
    if placement.counter is not None:
        # The schedule sums the counts: their sum starts at the value of the original program's count.
        _start_counts(block, placement, [_start(ops, placement.counter), *[0.0] * (placement.trainers - 1)])
    if placement.config.enable_dc_asgd:
        for held in placement.at(endpoint):
            for name in backups(placement, held):
                block.append_op("assign", {"X": held.param}, {"Out": name}, {"op_role": OpRole.Forward})
    return program.verify(f"DistributeTranspiler, startup program of server {endpoint}")


def _start(ops: list[Operator], counter: Operator) -> float:
    """Return the value that the startup program gives to a count."""
    return next(float(op.attr("value")) for op in ops if set(op.output_arg_names) & set(counter.output("Out")))


def _start_counts(block: Block, placement: ParameterPlacement, values: list[float]) -> None:
    for name, value in zip(placement.counts(), values):
        var = block.create_var(name=name, shape=[1], dtype="int64", persistable=True)
        block.prepend_op(
            "fill_constant",
            {},
            {"Out": var},
            {"shape": [1], "dtype": int(var.dtype), "value": value, "force_cpu": True, "op_role": OpRole.Forward},
        )


def _needed(ops: list[Operator], names: set[str]) -> set[int]:
    """Return the operators (by id) that make `names`."""
    wanted, found = set(names), set()
    for op in reversed(ops):
        if wanted & set(op.output_arg_names):
            found.add(id(op))
            wanted |= set(op.input_arg_names)
    return found


def _initialize(block: Block, op: Operator, source: Block, found: dict[str, list[ServerVariable]]) -> None:
    """Copy an initializer for each variable on the server that it makes."""
    outputs = op.output_arg_names
    targets = found.get(outputs[0], []) if len(outputs) == 1 else []
    if not any(v.cut for v in targets) and all(v.piece.name == outputs[0] for v in targets):
        _declare(block, op, source)
        copy_op(op, block, {})
    elif _fills(op):
        for target in targets:
            _fill(block, op, target)
    else:
        _declare(block, op, source)
        copy_op(op, block, {})
        for target in targets:
            _cut(block, outputs[0], target)


def _declare(block: Block, op: Operator, source: Block) -> None:
    for name in op.input_arg_names + op.output_arg_names:
        if name not in block.vars:
            block.clone_variable(source.var_recursive(name), force_persistable=False).persistable = False


def _fills(op: Operator) -> bool:
    """Return True if an initializer can make any shape: it has a shape, and neither inputs nor explicit values."""
    return "shape" in op.attrs and not op.input_arg_names and not any(a.endswith("_values") for a in op.attrs)


def _fill(block: Block, op: Operator, target: ServerVariable) -> None:
    block.program.streams.add_piece(op, target.piece.name, target.of.index if target.of is not None else 0)
    twin = copy_op(op, block, {op.output_arg_names[0]: target.piece.name})
    twin.set_attr("shape", target.piece.shape)
    if twin.attrs.get("seed") and target.of is not None:
        twin.set_attr("seed", twin.attrs["seed"] + target.of.index)


def _cut(block: Block, whole: str, target: ServerVariable) -> None:
    """Take a piece's rows from the initial value of the whole parameter."""
    if not target.cut:
        block.append_op("assign", {"X": whole}, {"Out": target.piece.name}, {"op_role": OpRole.Forward})
        return
    block.append_op(
        "slice",
        {"Input": whole},
        {"Out": target.piece.name},
        {
            "axes": [0],
            "starts": [target.piece.first],
            "ends": [target.piece.first + target.piece.rows],
            "op_role": OpRole.Forward,
        },
    )
