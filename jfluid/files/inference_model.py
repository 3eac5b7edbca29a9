"""Inference models: a pruned program (`__model__`) beside its parameters."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jfluid import errors
from jfluid.files.file_sets import Files, check_local, read_whole, saving
from jfluid.files.saved_model import columns, read_program
from jfluid.files.storage import MODEL, paths_to_write
from jfluid.files.tensor_format import Stored
from jfluid.files.variables import (
    chosen,
    get_program_persistable_vars,
    is_persistable,
    program_of,
    read_vars,
    write_persistables,
    write_scope,
)
from jfluid.ir import unique_name
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.transpiler.parameter_server import remote_look_ups

# Readers hand out batches in training; a model for inference is fed.
_READER_OPS = ("read", "create_py_reader", "create_double_buffer_reader")


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

    Args:
        dirname: the folder, which is made if need be.
        feeded_var_names: names of the variables that will be fed.
        target_vars: the variables to compute; none is needed where the whole program is saved.
        executor: an Executor; parameters come from the global scope.
        main_program: the default main program when None; it stays as it is.
        model_filename: `__model__` when None.
        params_filename: one file for all parameters; a file each when None.
        export_for_deployment: False saves the whole program, so that training can continue, as
            `<model_filename>.main_program`.
        program_only: leave the parameters out.

    Returns:
        The names of the targets in the saved program.

    Raises:
        ProgramError: a feed or a target is no variable of the program.
        UninitializedError: a parameter has no value.
        FileFormatError: a parameter's name leads out of the folder, or is that of the model's file;
            or params_filename is.
        OSError: the disk does not take the files. All of them are saved, or none is.
    """
    model_file, model, names = model_to_save(
        feeded_var_names, target_vars, program_of(main_program), model_filename, export_for_deployment
    )
    params = None if params_filename is None else os.path.basename(params_filename)
    if params == model_file:
        raise errors.FileFormatError(
            f"{os.fspath(dirname)}: params_filename: {params} is the name of the program's file; choose a different "
            "name"
        )
    if not program_only and params is None:
        names_of_files = [v.name for v in get_program_persistable_vars(model)]
        paths_to_write(dirname, names_of_files, [model_file])
    with saving(dirname) as files:
        with files.open(model_file) as file:
            file.write(model.serialize_to_string())
        if not program_only:
            write_persistables(files, model, params)
    return names


def model_to_save(
    feeded_var_names: Sequence[str] | str,
    target_vars: Sequence[Variable] | Variable,
    program: Program,
    model_filename: str | None,
    export_for_deployment: bool,
) -> tuple[str, Program, list[str]]:
    """Return the name of a model's file, the program that it holds, and the names of the targets.

    Arguments and errors are the arguments and errors of `save_inference_model`.
    """
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names or ())
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    if not all(isinstance(f, str) for f in feeds):
        raise TypeError(f"feeded_var_names: expected names, found {feeded_var_names!r}")
    needed = export_for_deployment or targets
    if needed and not (targets and all(isinstance(t, Variable) for t in targets)):
        raise TypeError(f"target_vars: expected one Variable or more, found {target_vars!r}")
    block = program.global_block()
    for name in [*feeds, *(t.name for t in targets)]:
        if not block.has_var(name):
            raise errors.ProgramError(
                f"save_inference_model: the program has no variable {name}" + errors.close_to(name, block.vars)
            )
    file = os.path.basename(model_filename or MODEL)
    model, names = _inference_program(program, feeds, targets) if targets else (program, [])
    return (file, model, names) if export_for_deployment else (f"{file}.main_program", program, names)


def _inference_program(program: Program, feeds: list[str], targets: list[Variable]) -> tuple[Program, list[str]]:
    """Return a copy in test form that computes the targets, each under a separate name, from the feeds."""
    model = program._copy()
    block = model.global_block()
    block.ops = [op for op in block.ops if op.type not in ("feed", "fetch", *_READER_OPS)]
    outputs = []
    for i, target in enumerate(targets):
        name = unique_name.generate(f"save_infer_model/scale_{i}.tmp")
        while block.has_var(name):  # a program that was read may hold the name already
            name = unique_name.generate(f"save_infer_model/scale_{i}.tmp")
        out = block.create_var(name=name, shape=target.shape, dtype=target.dtype, lod_level=target.lod_level)
        block.append_op(
            "scale", {"X": block.vars[target.name]}, {"Out": out}, {"scale": 1.0, "bias": 0.0, "bias_after_scale": True}
        )
        outputs.append(name)
    model = model._prune_with_input(feeds, outputs)._inference_optimize()
    block = model.global_block()
    holder = block.create_var(name="feed", type=VarType.FEED_MINIBATCH, persistable=True)
    for i, name in reversed(list(enumerate(feeds))):
        block.prepend_op("feed", {"X": holder}, {"Out": block.vars[name]}, {"col": i})
    holder = block.create_var(name="fetch", type=VarType.FETCH_LIST, persistable=True)
    for i, name in enumerate(outputs):
        block.append_op("fetch", {"X": block.vars[name]}, {"Out": holder}, {"col": i})
    return model, outputs


def load_inference_model(
    dirname: str,
    executor: Any,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: Sequence[str] | None = None,
    allow: Iterable[str] = (),
) -> list[Any]:
    """Load a model that `save_inference_model`, or Fluid, saved.

    Args:
        dirname: the model's folder.
        executor: an Executor; parameters go to the global scope.
        model_filename: `__model__` when None.
        params_filename: the file that holds all parameters; None where there is a file each.
        pserver_endpoints: "host:port" of the parameter servers that are to look up rows of the
            model's tables, in the job's order; None where the model has them itself. Look-ups of
            embeddings with `is_sparse` or `is_distributed` then ask these servers for the rows as
            they are at each run, as no trainer; the model's files of these tables are not read, and
            need not be there.
        allow: types of the model's operators that may act when it runs: on files, networks,
            processes, Python or the terminal. A run of a model with others of that kind raises
            UntrustedOperatorError: it may come from anybody.

    Returns:
        [the Program, the names to feed, the Variables to fetch].

    Raises:
        FileFormatError: a file, which is named (and the variable), is missing, truncated, oversized,
            damaged, or of a different shape than the program declares.
        ProgramError: a name in `allow` is of no operator that acts; or `pserver_endpoints` are given,
            and nothing of the model asks servers, or they are not as many as the model names.
        UnsupportedError: it trains, or an operator other than a look-up would have to ask servers.

    A run of a program that asks servers raises ServerError where one does not answer, or has no such
    table.
    """

    def ask(program: Program) -> None:
        if pserver_endpoints:
            remote_look_ups.ask(program, pserver_endpoints)

    program, feeds, fetches = load_asking(dirname, ask, model_filename, params_filename, allow)
    return [program, feeds, fetches]


def load_asking(
    dirname: str,
    ask: Callable[[Program], None],
    model_filename: str | None = None,
    params_filename: str | None = None,
    allow: Iterable[str] = (),
) -> tuple[Program, list[str], list[Variable]]:
    """Load a model as `load_inference_model` does; `ask` gives look-ups their servers before parameters are read."""
    dirname = os.fspath(dirname)
    check_local(dirname)
    if not os.path.isdir(dirname):
        raise errors.FileFormatError(f"{dirname}: there is no such folder")

    def read(files: Files) -> tuple[Program, list[tuple[str, Stored]]]:
        program = read_program(files.path(os.path.basename(model_filename or MODEL)), allow)
        for name in (n for names in columns(program) for n in names):
            if not program.global_block().has_var(name):
                raise errors.FileFormatError(
                    f"{dirname}: the program feeds or fetches {name}, but declares no such variable"
                )
        ask(program)
        # One file for all holds the tables, too.
        remote = remote_look_ups.tables_of(program) if params_filename is None else set()
        found = [v for v in program.list_vars() if is_persistable(v) and v.name not in remote]
        params = None if params_filename is None else os.path.basename(params_filename)
        return program, read_vars(files, chosen(program, found), params)

    program, values = read_whole(dirname, read)
    write_scope(values)
    feeds, fetches = columns(program)
    return program, feeds, [program.global_block().vars[name] for name in fetches]
