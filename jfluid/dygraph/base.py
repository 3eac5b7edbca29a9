"""Dygraph mode: `guard`, `to_variable`, `no_grad`, `grad`."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jfluid import errors, places, processes
from jfluid.dygraph.eager_program import EagerProgram
from jfluid.dygraph.lazy_values import constant
from jfluid.dygraph.varbase import VarBase, tracer
from jfluid.host import aligned_memory
from jfluid.ir import unique_name
from jfluid.ir.complex_variable import ComplexVariable
from jfluid.ir.program import (
    default_main_program,
    program_guard,
    switch_main_program,
    switch_startup_program,
)
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor

__all__ = [
    "disable_dygraph",
    "disable_imperative",
    "enable_dygraph",
    "enable_imperative",
    "enabled",
    "grad",
    "guard",
    "in_dygraph_mode",
    "no_grad",
    "to_variable",
]


def enabled() -> bool:
    """Return whether dygraph mode is on."""
    return default_main_program().eager


in_dygraph_mode = enabled


@contextlib.contextmanager
def guard(place: Any = None) -> Iterator[None]:
    """Return a context in which each call runs its operator.

    Args:
        place: device of the operators; the first GPU by default, or the CPU without GPUs.
    """
    program = _program(place)
    with program_guard(program, program), unique_name.guard():
        try:
            yield
        finally:
            program.tracer.graph.run()


_before: list[Any] = []  # program and names before enable_dygraph


def enable_dygraph(place: Any = None) -> None:
    """Switch dygraph mode on until `disable_dygraph`; arguments as of `guard`."""
    if enabled():
        return
    program = _program(place)
    _before.append(
        (
            switch_main_program(program),
            switch_startup_program(program),
            unique_name.switch(),
        )
    )


def disable_dygraph() -> None:
    """Switch dygraph mode off, if `enable_dygraph` has switched it on."""
    if not _before:
        return
    program = default_main_program()
    if isinstance(program, EagerProgram):
        program.tracer.graph.run()
    main, startup, names = _before.pop()
    switch_main_program(main)
    switch_startup_program(startup)
    unique_name.switch(names)


enable_imperative, disable_imperative = enable_dygraph, disable_dygraph


def _program(place: Any) -> EagerProgram:
    places.prepare_cpus(places.cpu_number())
    processes.join_job()
    return EagerProgram(places.place_to_run(place))


def to_variable(value: Any, name: str | None = None, zero_copy: bool | None = None) -> VarBase | ComplexVariable:
    """Return a variable with a copy of an array, to which no gradient flows until its `stop_gradient` is set to False.

    Args:
        value: a NumPy array or a LoDTensor without LoD; a VarBase is returned as it is, and so are the
            tensors of a declared function; an array that it makes stands in its Program. Of complex
            numbers it becomes a ComplexVariable, which `paddle.complex` computes with.
        name: name of the variable; names of complex parts end in ".real" and ".imag".
        zero_copy: has no effect: later changes of the array do not change the variable.

    Raises TypeError for an unsupported value, DygraphError outside of dygraph mode.
    """
    if isinstance(value, ComplexVariable):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        name = name or unique_name.generate("_generated_var")
        return ComplexVariable(real_variable(value.real, f"{name}.real"), real_variable(value.imag, f"{name}.imag"))
    return real_variable(value, name)


def real_variable(value: Any, name: str | None = None) -> VarBase:
    """Convert an array of real numbers to a variable; raises the errors of `to_variable`."""
    if getattr(default_main_program(), "captured", None) is not None:
        return in_program(value)  # type: ignore[no-any-return]
    tracer()  # raises DygraphError outside of dygraph mode
    if isinstance(value, VarBase):
        return value
    if isinstance(value, LoDTensor):
        if value.lod():
            raise errors.UnsupportedError("to_variable: eager variables have no LoD")
        value = np.array(value)
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"to_variable: expected a numpy.ndarray, a LoDTensor or a VarBase, found {type(value).__name__}"
        )
    return VarBase(constant(aligned_memory.copied(value)), name=name, stop_gradient=True)


def in_program(value: Any) -> Any:
    """Convert a value to a variable of the Program under construction.

    A tensor is a variable of the Program already. An array becomes an `assign`.
    """
    from jfluid.layers.creation import assign  # which imports this module

    return value if isinstance(value, Variable) else assign(value)


class _NoGrad(contextlib.ContextDecorator):
    """A context, and a decorator, within which no operator is recorded for gradients."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, bool]] = []

    def __enter__(self) -> None:
        program = default_main_program()
        if isinstance(program, EagerProgram):
            self._before.append((program.tracer, program.tracer.records))
            program.tracer.records = False
        else:
            self._before.append((None, False))

    def __exit__(self, *_: Any) -> None:
        found, records = self._before.pop()
        if found is not None:
            found.records = records


def no_grad(function: Callable[..., Any] | None = None) -> Any:
    """Return a context that records no operator for gradients.

    `@no_grad` and `@no_grad()` decorate a function with the context.
    """
    if function is None:
        return _NoGrad()

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _NoGrad():
            return function(*args, **kwargs)

    return run


def grad(
    outputs: VarBase | Sequence[VarBase],
    inputs: VarBase | Sequence[VarBase],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool = False,
    no_grad_vars: Any = None,
    backward_strategy: Any = None,
) -> list[VarBase | None]:
    """Return the gradients of `outputs` with respect to `inputs`, as variables.

    Args:
        grad_outputs: the gradient of each output; ones where it (or an entry) is None.
        retain_graph: keep the graph for a second pass; by default if `create_graph` is set.
        create_graph: let gradients flow through the gradients, too.
        only_inputs: must be True, as in Fluid.
        allow_unused: return None for an input that the outputs do not depend on, instead of
            raising.
        no_grad_vars: variables that no gradient passes through.
        backward_strategy: a `BackwardStrategy`; gradients are always summed in the same order.

    Raises:
        TypeError: an argument is no VarBase.
        ValueError: the lists have different lengths, or an input is not used.
        DygraphError: outside of dygraph mode, or where a part was released before.
    """
    outs, ins = _variables(outputs, "outputs"), _variables(inputs, "inputs")
    if not only_inputs:
        raise errors.UnsupportedError(
            "grad: only_inputs=False would add to the gradients of all other variables. Fluid 1.8 "
            "has only only_inputs=True: call backward() for these variables"
        )
    seeds: list[Any] = [None] * len(outs)
    if grad_outputs is not None:
        given = grad_outputs if isinstance(grad_outputs, (list, tuple)) else [grad_outputs]
        if len(given) != len(outs):
            raise ValueError(f"grad: grad_outputs has {len(given)} entries, but there are {len(outs)} outputs")
        for i, seed in enumerate(given):
            if seed is not None and not isinstance(seed, VarBase):
                raise TypeError(f"grad, grad_outputs: expected a VarBase or None, found {type(seed).__name__}")
            seeds[i] = seed
    stops = (
        []
        if no_grad_vars is None
        else _variables(list(no_grad_vars) if isinstance(no_grad_vars, set) else no_grad_vars, "no_grad_vars")
    )
    found: list[VarBase | None] = tracer().backward(
        outs,
        seeds,
        ins,
        create_graph if retain_graph is None else retain_graph,
        create_graph,
        stops,
    )
    for variable, gradient in zip(ins, found, strict=True):
        if gradient is None and not allow_unused:
            raise ValueError(
                f"grad: the outputs do not depend on {variable.name}, or its stop_gradient is True: "
                "allow_unused=True gives None for it"
            )
    return found


def _variables(given: Any, what: str) -> list[VarBase]:
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    for v in found:
        if not isinstance(v, VarBase):
            raise TypeError(f"grad, {what}: expected a VarBase, found {type(v).__name__}")
    return found
