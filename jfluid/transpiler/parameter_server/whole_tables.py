"""Distributed tables that must stay whole, because an update, strategy or initializer needs all rows."""

import warnings
from collections.abc import Sequence
from math import prod

from jfluid import errors
from jfluid.ir import schema
from jfluid.ir.program import Program
from jfluid.transpiler.config import DistributeTranspilerConfig
from jfluid.transpiler.parameter_server.placement import table_options
from jfluid.transpiler.parameter_server.updates import LOOK_UPS, ParameterUpdate, read_updates

# What a server draws a row by when it is first used.
ROW_INITIALIZERS = ("fill_constant", "gaussian_random", "truncated_gaussian_random", "uniform_random")
LARGEST = 64 << 30  # bytes of a table that one process may be asked to hold


def keep_whole(programs: Sequence[Program], startup: Program, config: DistributeTranspilerConfig) -> None:
    """Turn distributed tables that must stay whole into parameters with sparse gradients, with a warning.

    Their look-ups lose the attribute is_distributed.

    Args:
        programs: copies of one program, with look-ups and updates.
        startup: initializes its parameters.
        config: of the transpiler.

    Raises ProgramError for a distributed table with a dense gradient, and UnsupportedError for a table that is too
    large for one process, or has rules for its rows.
    """
    for op in programs[0].global_block().ops:
        if op.type in LOOK_UPS and op.attr("is_distributed") and not op.attr("is_sparse"):
            raise errors.ProgramError(
                f"embedding of table {op.input('W')[0]}: is_distributed sends the gradients of single rows to servers, "
                "and this table has a dense gradient; set is_sparse=True, too"
            )
    for update in read_updates(programs[0].global_block()).all:
        reason = _reason(update, startup, config) if update.distributed else ""
        if not reason:
            continue
        _check(update, reason)
        name = update.param.name
        warnings.warn(
            f"table {name} is not distributed: {reason}; it is an ordinary parameter with sparse gradients of "
            f"{update.param.shape[0]} rows, as with is_distributed=False",
            RuntimeWarning,
            stacklevel=4,
        )
        for program in programs:
            for op in (op for block in program.blocks for op in block.ops):
                if op.type.removesuffix("_grad") in LOOK_UPS and op.input("W") == [name]:
                    op.attrs["is_distributed"] = False
            program._touch()


def _reason(update: ParameterUpdate, startup: Program, config: DistributeTranspilerConfig) -> str:
    """Return why the table has to be whole; nothing where it may be distributed."""
    name = update.param.name
    if config.geo_sgd_mode:
        return "with geo_sgd_mode trainers update by themselves, and hold all of it"
    if update.whole_only:
        whole = [op.type for op in update.ops if schema.current().needs_whole(op.type)]
        return f"{', '.join(whole)} needs the whole of it"
    makers = [op.type for op in startup.global_block().ops if name in op.output_arg_names]
    others = [m for m in makers if m not in ROW_INITIALIZERS]
    return f"{others[0]} initializes all rows at once" if others else ""


def _check(update: ParameterUpdate, reason: str) -> None:
    param = update.param
    size = 4 * prod(param.shape)
    if options := list(table_options(param)):
        raise errors.UnsupportedError(
            f"table {param.name}: {reason}, and so it cannot be distributed; then {options[0]} has no meaning"
        )
    if size > LARGEST:
        raise errors.UnsupportedError(
            f"table {param.name}: {reason}, and so it cannot be distributed; with {param.shape[0]} rows it has "
            f"{size >> 30} GiB, more than the {LARGEST >> 30} GiB that one process may be asked to hold"
        )
