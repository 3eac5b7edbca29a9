"""`ProgramTranslator`: functions of dygraph mode made into Programs, once for each kind of arguments."""

import contextlib
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from jfluid import errors, io
from jfluid.compile.runtime.executables import most_bytes
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.dygraph.base import enabled, real_variable
from jfluid.dygraph.dygraph_to_static import runtime, source
from jfluid.dygraph.dygraph_to_static.capturing import CapturingProgram
from jfluid.dygraph.dygraph_to_static.partial_program import (
    NotOneOperator,
    PartialProgramLayer,
    Unknown,
)
from jfluid.dygraph.dygraph_to_static.same_programs import same_but_sizes
from jfluid.dygraph.dygraph_to_static.structures import is_container, leaves, mapped
from jfluid.dygraph.layers import Layer
from jfluid.dygraph.varbase import VarBase, tracer
from jfluid.executor import Executor
from jfluid.input import data
from jfluid.ir import unique_name
from jfluid.ir.program import Program, default_main_program, program_guard
from jfluid.ir.variable import Variable
from jfluid.places import CPUPlace
from jfluid.scope import Scope, scope_guard

__all__ = ["ProgramTranslator", "convert_function_with_cache"]


_MOST = 256  # Programs, as many as steps of imperative mode
_BYTES = 10 << 10  # of Python objects for each operator


class DygraphToStaticWarning(UserWarning):
    """A function that should run as a Program runs operator by operator."""


def original_of(function: Any) -> Any:
    """Return the user's function inside the wrapper of `declarative`."""
    if isinstance(function, types.MethodType):
        inner = getattr(function.__func__, runtime.ORIGINAL, None)
        return function if inner is None else types.MethodType(inner, function.__self__)
    return getattr(function, runtime.ORIGINAL, function)


def convert_function_with_cache(dygraph_func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that builds operators where `dygraph_func` computes, for use under `program_guard`.

    Raises UnsupportedError where its source cannot be read.
    """
    function = original_of(dygraph_func)
    if isinstance(function, types.MethodType):
        inner: Any = function.__func__
        return types.MethodType(source.converted(inner, runtime), function.__self__)
    if isinstance(function, types.FunctionType):
        return source.converted(function, runtime)
    if callable(function):
        return runtime.call(function)  # type: ignore[no-any-return]
    raise TypeError(f"expected a function, found {type(function).__name__}")


@dataclass
class ConcreteProgram:
    """Program of a function for arguments of a kind.

    Attributes:
        main_program, startup_program: the programs; the second initializes nothing.
        inputs: variables of the tensors among the arguments.
        outputs: tensors of the result.
        result: the function's result, with an index into `outputs` for each tensor.
        layer: runs the Program in dygraph mode; None if operators must run one by one.
        why: reason for a missing layer.
        bytes: approximate size of its Python objects.
    """

    main_program: CapturingProgram
    startup_program: Program
    inputs: list[Variable]
    outputs: list[Any]
    result: Any
    layer: PartialProgramLayer | None
    why: str = ""

    @property
    def bytes(self) -> int:
        return _BYTES * sum(len(block.ops) for block in self.main_program.blocks)

    def does_as(self, other: "ConcreteProgram") -> bool:
        """Return True if a program computes the same for arguments of different sizes."""
        ours, theirs = self.main_program, other.main_program
        return (
            [v.name for v in self.inputs] == [v.name for v in other.inputs]
            and [v.name for v in self.outputs] == [v.name for v in other.outputs]
            and ours.captured.keys() == theirs.captured.keys()
            and all(v is theirs.captured[name] for name, v in ours.captured.items())
            and same_but_sizes(ours, theirs)
        )

    def add_layer(self) -> None:
        """Create the layer that runs the Program in dygraph mode, or store the reason for none."""
        main = self.main_program
        try:
            self.layer = PartialProgramLayer(main, self.inputs, self.outputs, main.captured)
        except NotOneOperator as error:
            self.why = str(error)


@dataclass(frozen=True)
class _Output:
    index: int


class _Same:
    """An object in a cache key, compared by identity and held by a weak reference if possible."""

    __slots__ = ("_find", "_number")

    def __init__(self, value: Any, gone: Callable[[Any], None]):
        self._number = id(value)
        try:
            self._find: Callable[[], Any] = weakref.ref(value, gone)
        except TypeError:
            self._find = lambda: value

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, _Same):
            return self is other
        value = self._find()
        return value is not None and value is other._find()

    def has_gone(self) -> bool:
        return self._find() is None


class ProgramCache:
    """LRU cache of Programs by function and kinds of arguments.

    An entry is dropped together with the function, layer or object in its key. A dropped Program is made again on the
    next call. Gradients still flow through results of a dropped Program.
    """

    def __init__(self) -> None:
        self._programs = LruCache[ConcreteProgram](_MOST, lambda found: found.bytes, most_bytes)
        self._objects: dict[Any, list[_Same]] = {}  # by keys of programs
        self._last: ConcreteProgram | None = None
        self._gone = False  # whether an object of a key has

    def __len__(self) -> int:
        self._drop_gone()
        return len(self._programs)

    def last(self) -> ConcreteProgram:
        """Return the program that was used last. Raises ProgramError where there is none."""
        if self._last is None:
            raise errors.ProgramError("no function was made into a Program yet: call one that is declared first")
        return self._last

    def get(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ConcreteProgram:
        """Return the program of a function for such arguments, made now if need be."""
        self._drop_gone()
        same: list[_Same] = []
        parts = (self._kind(part, same) for part in (function, args, kwargs))
        key = (*parts, _mode())
        found = self._programs.get(key)
        if found is None:
            found = _made(function, args, kwargs)
            self._give_layer(found)
            self._objects[key] = same
        self._last = self._programs.get_or_make(key, lambda: found)
        for dropped in self._objects.keys() - self._programs.keys():
            del self._objects[dropped]
        return found

    def _give_layer(self, program: ConcreteProgram) -> None:
        """Give a program its layer.

        Programs that differ in sizes alone share a layer, so that steps of all sizes are one stream of shapes.
        """
        alike = next((p for p in reversed(self._programs.values()) if program.does_as(p)), None)
        if alike is None:
            program.add_layer()
        else:
            program.layer, program.why = alike.layer, alike.why

    def _kind(self, value: Any, same: list[_Same]) -> Any:
        """Return the part of an argument that a Program depends on.

        Args:
            value: the argument.
            same: gets the objects that are compared by identity.
        """

        def kind(part: Any) -> Any:
            return self._kind(part, same)

        if isinstance(value, (np.ndarray, VarBase)):
            return ("tensor", tuple(value.shape), str(value.dtype), _stopped(value))
        if isinstance(value, dict):
            return tuple((k, kind(v)) for k, v in value.items())
        if is_container(value):
            return (type(value), *map(kind, value))
        if isinstance(value, types.MethodType):
            return (kind(value.__func__), kind(value.__self__))
        if value is None or isinstance(value, (str, bytes, bool, int, float)):
            return (type(value), value)
        same.append(_Same(value, self._note_gone))
        if isinstance(value, Layer):
            return (same[-1], tuple(layer.training for layer in (value, *value.sublayers())))
        return same[-1]

    def _note_gone(self, _: Any) -> None:
        self._gone = True  # only a flag: the cache may be in use

    def _drop_gone(self) -> None:
        if not self._gone:
            return
        self._gone = False
        for key, objects in list(self._objects.items()):
            if any(same.has_gone() for same in objects):
                del self._objects[key]
                self._programs.pop(key, None)


def _stopped(value: Any) -> bool:
    return not isinstance(value, VarBase) or bool(value.stop_gradient)


def _mode() -> Any:
    program = default_main_program()
    return getattr(program, "tracer", None) is not None and tracer().records


@contextlib.contextmanager
def _building(program: Program, startup: Program) -> Iterator[None]:
    with program_guard(program, startup), unique_name.guard():
        yield


def _made(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ConcreteProgram:
    """Make a function into a Program."""
    main, startup = CapturingProgram(), Program()
    inputs: list[Variable] = []

    def enter(value: Any) -> Any:
        if not isinstance(value, (np.ndarray, VarBase)):
            return value
        name = f"feed_{len(inputs)}"
        dtype: Any = value.dtype if isinstance(value, VarBase) else value.dtype.name
        inputs.append(data(name, list(value.shape), dtype))
        inputs[-1].stop_gradient = _stopped(value)
        return inputs[-1]

    with _building(main, startup):
        given, named = mapped(enter, args), mapped(enter, kwargs)
        found = convert_function_with_cache(function)(*given, **named)
    if startup.global_block().ops:
        names = [p.name for p in startup.all_parameters()]
        raise errors.UnsupportedError(
            f"{getattr(function, '__qualname__', function)} makes parameters ({', '.join(names)}) at each call: "
            "create parameters in the __init__ of a fluid.dygraph.Layer"
        )
    outputs: list[Any] = []

    def leave(value: Any) -> Any:
        if isinstance(value, VarBase) or not isinstance(value, Variable):
            return value
        outputs.append(value)
        return _Output(len(outputs) - 1)

    result = mapped(leave, found)
    return ConcreteProgram(main, startup, inputs, outputs, result, None)


class ProgramTranslator:
    """Makes functions of dygraph mode into Programs.

    There is one: `ProgramTranslator()` always returns it.

    Conditions, loops, `break`, `continue`, `return`, `print`, `assert` and lists may depend on
    tensors. A function is made anew for other shapes, types, Python arguments and modes of a layer
    (`train`, `eval`); values that it takes from elsewhere are those of the first call. Programs that
    differ in sizes alone run as one operator: XLA compiles a few of their shapes (see `shape_streams`).
    """

    _instance: Optional["ProgramTranslator"] = None

    def __new__(cls) -> "ProgramTranslator":
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._reset()
        return cls._instance

    @classmethod
    def get_instance(cls) -> "ProgramTranslator":
        """Return the only ProgramTranslator."""
        return cls()

    @classmethod
    def reset(cls) -> None:
        """Forget all Programs, and enable it."""
        cls()._reset()

    def _reset(self) -> None:
        self.enable_declarative = True
        self._cache = ProgramCache()

    def enable(self, enable_declarative: bool) -> None:
        """Say whether declared functions run as Programs (True), or as plain Python."""
        if not isinstance(enable_declarative, bool):
            raise TypeError(f"enable: expected True or False, found {enable_declarative!r}")
        self.enable_declarative = enable_declarative

    def get_program_cache(self) -> ProgramCache:
        """Return the Programs that functions became."""
        return self._cache

    def get_output(self, dygraph_func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of a function, computed by its Program.

        Args:
            dygraph_func: a function or method, declared or not.
            args, kwargs: arguments of the function. NumPy arrays become tensors.

        Outside of dygraph mode the function appends operators to the default program and returns variables. If the
        Program cannot run as one operator (with `print` of a tensor, for example), operators run one by one, and a
        DygraphToStaticWarning says so.

        Raises TypeError for a value that is no function, UnsupportedError for a function without source, and the
        function's errors.
        """
        function = _checked(dygraph_func, "get_output")
        if not self.enable_declarative:
            return function(*args, **kwargs)
        if not enabled():
            return convert_function_with_cache(function)(*args, **kwargs)
        program = self._cache.get(function, args, kwargs)
        given = [v for part in (args, kwargs) for v in leaves(part)]
        tensors = [
            real_variable(v) if isinstance(v, np.ndarray) else v for v in given if isinstance(v, (np.ndarray, VarBase))
        ]
        if program.layer is not None:
            try:
                found = program.layer(tensors)
            except Unknown as error:
                program.layer, program.why = None, str(error)
            else:
                return mapped(lambda v: found[v.index] if isinstance(v, _Output) else v, program.result)
        name = getattr(function, "__qualname__", function)
        warnings.warn(
            f"{name} runs operator by operator in dygraph mode: {program.why}",
            DygraphToStaticWarning,
            stacklevel=3,
        )
        turned = iter(tensors)

        def eager(value: Any) -> Any:
            return next(turned) if isinstance(value, (np.ndarray, VarBase)) else value

        return function(*mapped(eager, args), **mapped(eager, kwargs))

    def get_func(self, dygraph_func: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that builds operators in the default program where `dygraph_func` computes.

        Errors are as for `get_output`.
        """
        function = _checked(dygraph_func, "get_func")
        return convert_function_with_cache(function) if self.enable_declarative else function

    def get_program(
        self, dygraph_func: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Program, Program, list[Variable], list[Any]] | Any:
        """Return (the Program that a function becomes, its startup program, its inputs, its outputs).

        Arguments and errors are those of `get_output`; where the translator is not enabled, it returns what
        the function returns.
        """
        function = _checked(dygraph_func, "get_program")
        if not self.enable_declarative:
            return function(*args, **kwargs)
        found = self._cache.get(function, args, kwargs)
        return found.main_program, found.startup_program, found.inputs, found.outputs

    def get_code(self, dygraph_func: Callable[..., Any]) -> str:
        """Return the text of Fluid's conversion of a function.

        jfluid runs a different conversion. Where Fluid's text is no Python or computes a different result, the text is
        that of jfluid's conversion: `_jf` is `jfluid.dygraph.dygraph_to_static.runtime`. Errors are as for
        `get_output`.
        """
        function = _checked(dygraph_func, "get_code")
        return source.code_text(getattr(function, "__func__", function))

    def save_inference_model(
        self,
        dirname: str,
        feed: Sequence[int] | None = None,
        fetch: Sequence[int] | None = None,
    ) -> None:
        """Save the Program that was used last, with its parameters, as an inference model.

        Args:
            dirname: the folder.
            feed, fetch: which of its inputs and outputs the model has, by their places; all when
                None.

        Raises ProgramError where no function was made into a Program yet, IndexError for a place
        that there is not.
        """
        last = self._cache.last()
        save_program(
            dirname,
            last.main_program,
            chosen(last.inputs, feed, "feed"),
            chosen(last.outputs, fetch, "fetch"),
            last.main_program.captured,
        )


def save_program(
    dirname: str,
    program: Program,
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    parameters: dict[str, VarBase],
) -> None:
    """Save a Program with eager variables as parameters as an inference model."""
    scope = Scope()
    for name, value in parameters.items():
        scope.var(name).get_tensor().set(value.numpy(), CPUPlace())
    with scope_guard(scope), program_guard(Program(), Program()):
        io.save_inference_model(dirname, [v.name for v in inputs], list(outputs), Executor(CPUPlace()), program)


def chosen(items: Sequence[Any], places: Sequence[int] | None, what: str) -> list[Any]:
    """Return the items at the places; all when None."""
    if places is None:
        return list(items)
    if not isinstance(places, (list, tuple)) or not all(isinstance(i, int) for i in places):
        raise TypeError(f"{what}: expected a list of places (integers), found {places!r}")
    wrong = [i for i in places if not 0 <= i < len(items)]
    if wrong:
        raise IndexError(f"{what}: there is nothing at {wrong[0]}; there are {len(items)}")
    return [items[i] for i in places]


def _checked(function: Any, what: str) -> Any:
    if not callable(function):
        raise TypeError(f"{what}: expected a function, found {type(function).__name__}")
    return original_of(function)
