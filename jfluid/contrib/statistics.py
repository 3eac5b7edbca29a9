"""Statistics of a program: memory of variables, frequency of operators, parameters and FLOPs of layers."""

from collections import Counter
from math import prod

from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType, np_dtype
from jfluid.ir.variable import EMPTY_NAME, Parameter

__all__ = ["memory_usage", "op_freq_statistic", "summary"]

_SPARE = 1.05, 1.1  # Fluid's estimate of what kernels need beside variables


def _check(program: Program, what: str) -> None:
    if not isinstance(program, Program):
        raise TypeError(f"{what}, program: expected a Program, found {type(program).__name__}")


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """Return Fluid's estimate of the memory of a program's values: (lower bound, upper bound, unit).

    The unit is "B", "KB" or "MB". XLA keeps fewer values at the same time.

    Raises TypeError for what is no Program; ValueError for a batch size below 1, and for a variable
    with several unknown dimensions.
    """
    _check(program, "memory_usage")
    if batch_size <= 0:
        raise ValueError(f"memory_usage, batch_size: expected 1 or more, found {batch_size}")
    block = program.global_block()
    names = dict.fromkeys(n for op in block.ops for n in op.output_arg_names if n != EMPTY_NAME)
    total = 0.0
    for var in (block.var(n) for n in names):
        if var.type != VarType.LOD_TENSOR:
            continue
        if sum(d < 0 for d in var.shape) > 1:
            raise ValueError(f"memory_usage: {var.name} has several unknown dimensions {var.shape}")
        total += prod(-d * batch_size if d < 0 else d for d in var.shape) * np_dtype(var.dtype).itemsize
    unit = "B"
    for larger in ("KB", "MB"):
        if total > 1024:
            total, unit = total / 1024, larger
    return total * _SPARE[0], total * _SPARE[1], unit


def op_freq_statistic(program: Program) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Count each operator of a program's global block, and each pair "a->b" of a producer and a consumer.

    Returns two lists of (name, number), the most frequent first.

    Raises TypeError for what is no Program.
    """
    _check(program, "op_freq_statistic")
    block = program.global_block()
    parameters = {n for n, v in block.vars.items() if isinstance(v, Parameter)}
    single: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    made_by: dict[str, str] = {}
    for op in block.ops:
        for name in op.input_arg_names:
            if name in made_by and name not in parameters:
                pairs[f"{made_by[name]}->{op.type}"] += 1
        if any(name not in parameters for name in op.output_arg_names):
            single[op.type] += 1
        made_by.update(dict.fromkeys(op.output_arg_names, op.type))
    return single.most_common(), pairs.most_common()


_ACTIVATIONS = ("sigmoid", "tanh", "relu", "leaky_relu", "prelu")
_COUNTED = ("conv2d", "depthwise_conv2d", "pool2d", "mul", "batch_norm", *_ACTIVATIONS)


def summary(main_prog: Program) -> None:
    """Print a table of the layers of a program's global block, as Fluid's `summary`.

    The layers are convolutions, pooling, products of fully connected layers, batch normalisation and activations.
    Columns are the shapes of an example, the parameters, and FLOPs: multiplications and additions both count. Biases
    are separate operators and do not count. Fluid's numbers differ: it divides grouped convolutions by the groups
    twice, counts multiplications alone in fully connected layers, and takes the batch size for -1.

    Raises TypeError for what is no Program.
    """
    _check(main_prog, "summary")
    rows: list[tuple[str, ...]] = []
    totals = [0, 0]
    for op in main_prog.global_block().ops:
        if op.type in _COUNTED:
            *shapes, parameters, operations = _counted(op)
            rows.append((str(len(rows)), op.type, *map(str, (*shapes, parameters, operations))))
            totals = [totals[0] + parameters, totals[1] + operations]
    titles = "No.", "TYPE", "INPUT", "OUTPUT", "PARAMs", "FLOPs"
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    border = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    shown = ["| " + " | ".join(map(str.rjust, line, widths)) + " |" for line in lines]
    print(border, shown[0], border, *shown[1:], border, sep="\n")
    print(f"Total PARAMs: {totals[0]} ({totals[0] / 1e6:.4f}M)")
    print(f"Total FLOPs: {totals[1]} ({totals[1] / 1e9:.2f}G)")
    print(f"Operators of other types than {', '.join(_COUNTED)} are not counted.")


def _counted(op: Operator) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    """(shape of an example that an operator reads, of one that it makes, parameters, operations)."""

    def shape(name: str) -> tuple[int, ...]:
        return tuple(op.block.var(name).shape)

    x, out = (
        shape(next(slots[name][0] for name in names if slots.get(name)))[1:]
        for slots, names in ((op.inputs, ("Input", "X")), (op.outputs, ("Output", "Out", "Y")))
    )
    kept = [n for n in op.input_arg_names if isinstance(op.block.var(n), Parameter)]
    if op.type == "batch_norm":
        kept = [n for n in kept if n in (*op.input("Scale"), *op.input("Bias"))]
    parameters = sum(prod(shape(n)) for n in kept)
    each = 1
    if op.type in ("conv2d", "depthwise_conv2d"):
        each = 2 * prod(shape(op.input("Filter")[0])[1:])
    elif op.type == "pool2d" and not op.attr("global_pooling"):
        each = prod(op.attr("ksize"))
    elif op.type == "pool2d":
        each = prod(x[1:])
    elif op.type == "mul":
        each = 2 * shape(op.input("Y")[0])[0]
    elif op.type == "batch_norm":
        each = 2
    return x, out, parameters, each * prod(out)
