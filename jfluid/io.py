"""Saving and loading, readers and loaders: Fluid's `fluid.io`."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from jfluid import errors
from jfluid.distributed import checkpoint
from jfluid.distributed.lookup_tables import load_with_tables
from jfluid.feeding.indexed import BatchSampler, Dataset, default_collate_fn
from jfluid.feeding.loader import DataLoader
from jfluid.feeding.py_reader import PyReader
from jfluid.feeding.reader import (
    ComposeNotAligned,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)
from jfluid.files import inference_model, variables
from jfluid.files.inference_model import load_inference_model
from jfluid.files.program_state import load, load_program_state, save, set_program_state
from jfluid.files.variables import (
    get_program_parameter,
    get_program_persistable_vars,
    is_parameter,
    is_persistable,
    load_vars,
    program_of,
    save_params,
    save_vars,
    works_with_servers,
)
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable

__all__ = [
    "BatchSampler",
    "ComposeNotAligned",
    "DataLoader",
    "Dataset",
    "PyReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "default_collate_fn",
    "firstn",
    "get_program_parameter",
    "get_program_persistable_vars",
    "is_parameter",
    "is_persistable",
    "load",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "map_readers",
    "multiprocess_reader",
    "save",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_program_state",
    "shuffle",
    "xmap_readers",
]


def save_persistables(
    executor: Any, dirname: str, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Save all variables that outlive a run (parameters, running statistics, optimizer state), as `save_vars` does.

    For a trainer's program (see DistributeTranspiler) this is
    `jfluid.distributed.checkpoint.save_persistables`, which gets the servers' values;
    then a single file for all variables raises UnsupportedError.
    """
    program = program_of(main_program)
    if not works_with_servers(program):
        variables.save_persistables(executor, dirname, program, filename)
        return
    if filename is not None:
        raise errors.UnsupportedError(
            "save_persistables: variables on parameter servers are saved as one file each; omit filename"
        )
    checkpoint.save_persistables(executor, dirname, program)


def load_params(executor: Any, dirname: str, main_program: Program | None = None, filename: str | None = None) -> None:
    """Load parameters like `load_vars`, and rows of distributed tables like `load_persistables`."""
    _load(executor, dirname, program_of(main_program), is_parameter, filename)


def load_persistables(
    executor: Any, dirname: str, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Load all variables that outlive a run (parameters, running statistics, optimizer state), as `load_vars` does.

    If `dirname` has a folder of a variable's name, the variable is a distributed table with rows that parameter
    servers saved: it becomes an ordinary table of its declared height. Optimizer state of the rows is not
    loaded, and a program that trains the table misses its file.

    Raises UnsupportedError for a trainer's program: parameter servers hold its variables.
    """
    program = program_of(main_program)
    if works_with_servers(program):
        raise errors.UnsupportedError(
            "load_persistables: parameter servers hold this program's variables; load the variables "
            "on the servers before serving starts: fleet.init_server(model_dir)"
        )
    _load(executor, dirname, program, is_persistable, filename)


def _load(
    executor: Any, dirname: str, program: Program, predicate: Callable[[Variable], bool], filename: str | None
) -> None:
    if filename is not None:
        load_vars(executor, dirname, program, predicate=predicate, filename=filename)
    else:
        wanted = [v for v in program.list_vars() if predicate(v)]
        load_with_tables(os.fspath(dirname), program, wanted)


def save_inference_model(
    dirname: str,
    feeded_var_names: Sequence[str] | str,
    target_vars: Sequence[Variable] | Variable,
    executor: Any,
    main_program: Program | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Save the part of a program that computes the targets from the feeds, and its parameters.

    For arguments, result and errors see `jfluid.files.inference_model.save_inference_model`.
    For a trainer's program (see DistributeTranspiler) this is
    `jfluid.distributed.checkpoint.save_inference_model`, which gets the servers' values; then
    names of files raise UnsupportedError.
    """
    program = program_of(main_program)
    if not works_with_servers(program):
        return inference_model.save_inference_model(
            dirname,
            feeded_var_names,
            target_vars,
            executor,
            program,
            model_filename,
            params_filename,
            export_for_deployment,
            program_only,
        )
    if (model_filename, params_filename) != (None, None):
        raise errors.UnsupportedError(
            "save_inference_model: of a program that works with parameter servers the model is "
            "saved as __model__ and a file for each variable; leave model_filename and "
            "params_filename out"
        )
    return checkpoint.save_inference_model(
        executor, dirname, feeded_var_names, target_vars, program, export_for_deployment, program_only=program_only
    )
