"""What a program holds, by numbers: the memory of its variables, how often operators occur."""

from collections import Counter
from math import prod

from jfluid.ir.program import Program
from jfluid.ir.types import VarType, np_dtype
from jfluid.ir.variable import EMPTY_NAME, Parameter

__all__ = ["memory_usage", "op_freq_statistic"]

_SPARE = 1.05, 1.1  # Fluid's estimate of what kernels need beside variables


def _check(program: Program, what: str) -> None:
    if not isinstance(program, Program):
        raise TypeError(f"{what}, program: expected a Program, found {type(program).__name__}")


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """Fluid's estimate of the memory of the values that a program's global block computes: (lower
    bound, upper bound, unit "B", "KB" or "MB"). XLA keeps fewer of them at the same time.

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
        total += (
            prod(-d * batch_size if d < 0 else d for d in var.shape) * np_dtype(var.dtype).itemsize
        )
    unit = "B"
    for larger in ("KB", "MB"):
        if total > 1024:
            total, unit = total / 1024, larger
    return total * _SPARE[0], total * _SPARE[1], unit


def op_freq_statistic(program: Program) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """How often each operator occurs in a program's global block, and each pair "a->b" of which b
    reads what a computes: two lists of (name, number), the most frequent first.

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
