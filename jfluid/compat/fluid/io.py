"""Names of `fluid.io`: values of parameters, feed and fetch operators, a scope to load programs in."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from jfluid.compat.fluid.executor import _fetch_var
from jfluid.files.variables import is_parameter, is_persistable
from jfluid.ir.block import Block
from jfluid.ir.program import Program, default_main_program, program_guard
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable
from jfluid.scope import Scope, scope_guard


def is_belong_to_optimizer(var: Variable) -> bool:
    """Return whether it is state that no parameter is: an optimizer's, a metric's, a schedule's."""
    return is_persistable(var) and not is_parameter(var)


def get_parameter_value(para: Variable, executor: Any) -> Any:
    """Return a parameter's value in the current scope, as an array.

    Raises TypeError for what is no parameter, UninitializedError where it has no value. The Executor is not
    needed.
    """
    if not isinstance(para, Parameter):
        raise TypeError(f"get_parameter_value: expected a Parameter, found {para!r:.80}")
    return _fetch_var(para.name)


def get_parameter_value_by_name(name: str, executor: Any, program: Program | None = None) -> Any:
    """Return the same of the parameter with this name in a program, by default the main program."""
    program = default_main_program() if program is None else program
    return get_parameter_value(program.global_block().var(name), executor)


def _clone_var_in_block_(block: Block, var: Variable) -> Variable:
    """Declare a persistable variable like `var` in a block."""
    return block.create_var(
        name=var.name,
        shape=var.shape,
        dtype=var.dtype,
        type=var.type,
        lod_level=var.lod_level,
        persistable=True,
    )


@contextlib.contextmanager
def _load_program_scope(
    main: Program | None = None, startup: Program | None = None, scope: Scope | None = None
) -> Iterator[None]:
    """Context manager with separate default programs and a separate scope."""
    with scope_guard(scope or Scope()), program_guard(main or Program(), startup or Program()):
        yield


def prepend_feed_ops(
    inference_program: Program, feed_target_names: Sequence[str], feed_holder_name: str = "feed"
) -> None:
    """Put an operator that feeds it before a program, for each of the variables."""
    if not feed_target_names:
        return
    block = inference_program.global_block()
    holder = block.create_var(name=feed_holder_name, type=VarType.FEED_MINIBATCH, persistable=True)
    for column, name in enumerate(feed_target_names):
        block.prepend_op("feed", {"X": holder}, {"Out": block.var(name)}, {"col": column})


def append_fetch_ops(
    inference_program: Program, fetch_target_names: Sequence[str], fetch_holder_name: str = "fetch"
) -> None:
    """Put an operator that fetches it behind a program, for each of the variables."""
    block = inference_program.global_block()
    holder = block.create_var(name=fetch_holder_name, type=VarType.FETCH_LIST, persistable=True)
    for column, name in enumerate(fetch_target_names):
        block.append_op("fetch", {"X": block.var(name)}, {"Out": holder}, {"col": column})
