"""Functions and layers of dygraph mode as Programs: `declarative`, `TracedLayer`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from jfluid.compiler import CompiledProgram
from jfluid.dygraph.base import enabled
from jfluid.dygraph.dygraph_to_static.program_translator import (
    ProgramTranslator,
    chosen,
    save_program,
)
from jfluid.dygraph.dygraph_to_static.runtime import ORIGINAL
from jfluid.dygraph.dygraph_to_static.structures import leaves
from jfluid.dygraph.dygraph_to_static.tracing import Recording
from jfluid.dygraph.layers import Layer
from jfluid.dygraph.varbase import VarBase
from jfluid.errors import DygraphError
from jfluid.executor import Executor
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.places import CPUPlace
from jfluid.scope import Scope, scope_guard

__all__ = ["TracedLayer", "declarative", "dygraph_to_static_func"]

Function = TypeVar("Function", bound=Callable[..., Any])


def declarative(func: Function) -> Function:
    """Decorate a function or method that runs as one Program in dygraph mode.

    Gradients flow through the Program. See `ProgramTranslator`. Under `program_guard` the function appends operators
    to the default program.
    """

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        return ProgramTranslator().get_output(func, *args, **kwargs)

    setattr(run, ORIGINAL, func)
    return cast(Function, run)


def dygraph_to_static_func(func: Function) -> Function:
    """Decorate a function of dygraph mode for use under `program_guard`.

    There the function appends operators to the default program. In dygraph mode it runs as plain Python.
    """

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        translator = ProgramTranslator()
        if enabled() or not translator.enable_declarative:
            return func(*args, **kwargs)
        return translator.get_func(func)(*args, **kwargs)

    setattr(run, ORIGINAL, func)
    return cast(Function, run)


class TracedLayer:
    """A Program of the operators that a layer has called once. `TracedLayer.trace` makes it.

    Conditions and loops of Python are in it as they went then. It computes as for inference, by the
    layer's parameters as they are at each call.
    """

    def __init__(
        self,
        program: Program,
        parameters: dict[str, VarBase],
        feed_names: Sequence[str],
        fetch_names: Sequence[str],
    ):
        self._program, self._parameters = program, parameters
        self._feeds, self._fetches = list(feed_names), list(fetch_names)
        self._scope, self._executor = Scope(), Executor(CPUPlace())
        self._held: dict[str, Any] = {}
        self._test = program.clone(for_test=True)
        self._strategies: tuple[Any, Any] = (None, None)
        self._runs: Any = None

    @property
    def program(self) -> Program:
        """The Program with the recorded operators."""
        return self._program

    @staticmethod
    def trace(layer: Layer, inputs: Sequence[VarBase] | VarBase) -> tuple[Any, "TracedLayer"]:
        """Call a layer, and record its operators as a Program.

        Returns (the layer's result, a TracedLayer).

        Args:
            layer: the layer.
            inputs: arguments of the layer.

        Raises DygraphError outside of dygraph mode, TypeError for arguments of unsupported kinds.
        """
        if not enabled():
            raise DygraphError("TracedLayer.trace: call it within fluid.dygraph.guard()")
        if not isinstance(layer, Layer):
            raise TypeError(f"TracedLayer.trace: expected a Layer, found {type(layer).__name__}")
        given: list[Any] = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        for v in given:
            if not isinstance(v, VarBase):
                raise TypeError(f"TracedLayer.trace, inputs: expected VarBases, found {type(v).__name__}")
        with Recording(given) as recording:
            found = layer(*given)
        outputs = [v for v in leaves(found) if isinstance(v, VarBase)]
        program, fetches = recording.program(outputs)
        return found, TracedLayer(program, recording.parameters, [f"feed_{i}" for i in range(len(given))], fetches)

    def set_strategy(self, build_strategy: Any = None, exec_strategy: Any = None) -> None:
        """Set the strategies of the compiled program, before the first call.

        Raises DygraphError after it.
        """
        if self._runs is not None:
            raise DygraphError("TracedLayer.set_strategy: call it before the layer's first call")
        self._strategies = (build_strategy, exec_strategy)

    def __call__(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """Return the outputs as NumPy arrays, for a list of NumPy arrays or VarBases.

        Raises TypeError for a wrong argument, FeedError for arrays that do not fit.
        """
        if not isinstance(inputs, (list, tuple)):
            raise TypeError(f"TracedLayer: expected a list of inputs, found {type(inputs).__name__}")
        if len(inputs) != len(self._feeds):
            raise TypeError(f"TracedLayer: expected {len(self._feeds)} inputs, found {len(inputs)}")
        if self._runs is None:
            self._runs = self._test
            if any(s is not None for s in self._strategies):
                build, execution = self._strategies
                self._runs = CompiledProgram(self._test).with_data_parallel(
                    build_strategy=build, exec_strategy=execution, places=[CPUPlace()]
                )
        for name, value in self._parameters.items():
            if self._held.get(name) is not value.held:
                self._held[name] = value.held
                self._scope.var(name).get_tensor().set(value.numpy(), CPUPlace())
        feed = {n: v.numpy() if isinstance(v, VarBase) else v for n, v in zip(self._feeds, inputs)}
        with scope_guard(self._scope):
            return list(self._executor.run(self._runs, feed=feed, fetch_list=self._fetches))

    def save_inference_model(
        self, dirname: str, feed: Sequence[int] | None = None, fetch: Sequence[int] | None = None
    ) -> None:
        """Save the Program and its parameters as an inference model.

        Args:
            dirname: the folder.
            feed, fetch: which inputs and outputs the model has, by their places; all when None.

        Raises IndexError for a place that there is not.
        """
        block = self._program.global_block()
        feeds: list[Variable] = [block.var(n) for n in chosen(self._feeds, feed, "feed")]
        fetches = [block.var(n) for n in chosen(self._fetches, fetch, "fetch")]
        save_program(dirname, self._program, feeds, fetches, self._parameters)
