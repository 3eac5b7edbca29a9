"""Recomputation: forward operators run again in the backward pass to save memory (arXiv:1604.06174)."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jfluid import errors
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.streams import SUFFIX
from jfluid.ir.variable import EMPTY_NAME, Variable


@dataclass
class RecomputedSegment:
    """Operators between two checkpoints, and the names of their recomputed variables."""

    ops: list[Operator]
    renamed: dict[str, str] = field(default_factory=dict)


def segments(block: Block, path: Sequence[Operator], checkpoints: Sequence[Variable | str]) -> list[RecomputedSegment]:
    """Divide `path` at the operators that write `checkpoints`.

    Operators after the last checkpoint need no recomputing: their backward pass comes first. A
    checkpoint that the path does not compute has no effect, which a RuntimeWarning says where it is
    no input of the program. Raises ProgramError for a name that the program does not have.
    """
    names = {c if isinstance(c, str) else c.name for c in checkpoints}
    cuts, found = [], set()
    for i, op in enumerate(path):
        if hit := names & set(op.output_arg_names):
            cuts.append(i + 1)
            found |= hit
    for name in sorted(names - found):
        var = block.find_var_recursive(name)
        if var is None:
            raise errors.ProgramError(f"checkpoints: the program has no variable {name}")
        if not (var.is_data or var.persistable):  # fed and persistable variables are kept anyway
            warnings.warn(
                f"checkpoints: the loss does not depend on {name}, which has no effect", RuntimeWarning, stacklevel=2
            )
    parts = [RecomputedSegment(list(path[a:b])) for a, b in zip([0, *cuts], cuts)]
    for part in parts:
        kept = {n for n in names if part.ops and n in part.ops[-1].output_arg_names}
        written = {n for op in part.ops for n in op.output_arg_names} - kept - {EMPTY_NAME}
        read = {n for op in part.ops for n in op.input_arg_names} - written - {EMPTY_NAME}
        held = {n for n in read if not block.var_recursive(n).persistable}
        part.renamed = {n: n + SUFFIX for n in sorted(written | held)}
    return parts


def replay(block: Block, part: RecomputedSegment, finish: Callable[[str], str | None]) -> None:
    """Append the operators of `part` again, writing under their new names.

    They read through a barrier that also waits for the gradient that enters the segment: otherwise
    XLA would see that the values exist already, keep them, and save nothing.
    """
    written = {n for op in part.ops for n in op.output_arg_names}
    held = [n for n in part.renamed if n not in written]
    for name, new in part.renamed.items():
        twin = block.create_var(
            name=new, shape=block.var_recursive(name)._shape, dtype=block.var_recursive(name)._dtype
        )
        twin.stop_gradient = block.var_recursive(name).stop_gradient
    waits = [g for n in part.ops[-1].output_arg_names if n != EMPTY_NAME and (g := finish(n)) is not None]
    if held:
        block.append_op("recompute_barrier", {"X": held, "After": waits}, {"Out": [part.renamed[n] for n in held]})
    for op in part.ops[:-1] if _is_kept(part) else part.ops:
        copy = op.clone_into(block)
        copy.inputs = {s: [part.renamed.get(n, n) for n in names] for s, names in op.inputs.items()}
        copy.outputs = {s: [part.renamed.get(n, n) for n in names] for s, names in op.outputs.items()}
        copy.attrs["op_role"] = OpRole.Backward
        block.adopt_op(copy)


def _is_kept(part: RecomputedSegment) -> bool:
    """Return True if all outputs of the last operator are kept, so that it need not run again."""
    return not any(n in part.renamed for n in part.ops[-1].output_arg_names)
