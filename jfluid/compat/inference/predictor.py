"""Runs a saved model, in several threads by clones."""

import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfluid import compiler
from jfluid.compat.inference.config import AnalysisConfig, NativeConfig
from jfluid.compat.inference.tensors import Array, PaddleTensor, ZeroCopyTensor, kind_of
from jfluid.compile.runtime.fetches import Fetched
from jfluid.errors import FeedError, FetchError, FileFormatError, close_to
from jfluid.executor import Executor
from jfluid.files.inference_model import load_inference_model
from jfluid.ir.program import Program
from jfluid.lod_tensor import LoDTensor
from jfluid.places import CPUPlace, CUDAPlace
from jfluid.scope import Scope, scope_guard


@dataclass(frozen=True)
class _Model:
    """State that clones share.

    The lock guards compilation, and models with operators of the host as a whole.
    """

    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    executor: Executor
    scope: Scope
    lock: threading.Lock = field(default_factory=threading.Lock)


class AnalysisPredictor:
    """Model that is ready to run. Each thread needs a separate predictor: `clone()` makes it.

    Raises FileFormatError where the model's files are missing or damaged, PlaceError for a GPU that
    there is not, UntrustedOperatorError where an operator acts that the config does not allow.
    """

    Config = AnalysisConfig

    def __init__(self, config: AnalysisConfig | NativeConfig):
        native = config if isinstance(config, NativeConfig) else config.to_native_config()
        buffers = config.buffers() if isinstance(config, AnalysisConfig) else None
        self._share(_load(native, buffers), native.specify_input_name)

    def _share(self, model: _Model, by_name: bool) -> None:
        self._model, self._by_name = model, by_name
        self._scope = Scope(model.scope)
        self._inputs: dict[str, LoDTensor] = {}
        self._outputs: dict[str, LoDTensor] = {}

    def clone(self) -> "AnalysisPredictor":
        """Return a predictor of the same model for a further thread."""
        clone = AnalysisPredictor.__new__(AnalysisPredictor)
        clone._share(self._model, self._by_name)
        return clone

    def get_input_names(self) -> list[str]:
        return list(self._model.inputs)

    def get_output_names(self) -> list[str]:
        return list(self._model.outputs)

    def get_input_tensor_shape(self) -> dict[str, list[int]]:
        """Return the shape of each input; -1 is any size."""
        block = self._model.program.global_block()
        return {name: list(block.var(name).shape) for name in self._model.inputs}

    def get_serialized_program(self) -> bytes:
        """Return the program as bytes, in Fluid's format."""
        serialized: bytes = self._model.program.serialize_to_string()
        return serialized

    def get_input_tensor(self, name: str) -> ZeroCopyTensor:
        """Return the input `name`, to be set. Raises FeedError where there is none."""
        if name not in self._model.inputs:
            raise FeedError(f"the model has no input {name}" + close_to(name, self._model.inputs))
        return ZeroCopyTensor(name, self._inputs, is_input=True)

    def get_output_tensor(self, name: str) -> ZeroCopyTensor:
        """Return the output `name`, to be read after a run. Raises FetchError where there is none."""
        if name not in self._model.outputs:
            raise FetchError(f"the model has no output {name}" + close_to(name, self._model.outputs))
        return ZeroCopyTensor(name, self._outputs, is_input=False)

    def zero_copy_run(self) -> bool:
        """Run the model on the inputs set before, and return True. Raises the errors of `Executor.run`."""
        self._outputs.update(self._run(self._inputs))
        return True

    def run(self, inputs: Sequence[PaddleTensor]) -> list[PaddleTensor]:
        """Run the model; the outputs, in order.

        Args:
            inputs: in the order of `get_input_names()`, or with names, if the config says so (the
                only input of a model may go without).

        Raises FeedError where they are not as many as the model has or a name is wrong, FetchError
        for an output that no PaddleTensor can hold, and the errors of `Executor.run`.
        """
        names = self._model.inputs
        if len(inputs) != len(names):
            raise FeedError(f"run: expected {len(names)} inputs, {names}, found {len(inputs)}")
        # the only input needs no name: in Fluid a nameless tensor is the first one
        by_name = self._by_name and (len(names) > 1 or bool(inputs[0].name))
        fed = {tensor.name: tensor for tensor in inputs} if by_name else {}
        if by_name and set(fed) != set(names):
            raise FeedError(f"run: expected inputs with the names {names}, found {[*fed]}")
        given = fed or dict(zip(names, inputs, strict=True))
        found = self._run({n: LoDTensor(t.as_ndarray(), t.lod) for n, t in given.items()})
        return [_paddle_tensor(name, found[name]) for name in self._model.outputs]

    def _run(self, feed: Mapping[str, LoDTensor]) -> dict[str, LoDTensor]:
        model, engine = self._model, self._model.executor.engine
        with model.lock:
            prepared = engine.prepare(model.program, feed, list(model.outputs))
            if prepared.step.whole is None:
                values = engine.execute(prepared, self._scope)
        if prepared.step.whole is not None:
            values = engine.execute(prepared, self._scope)
        return dict(zip(model.outputs, map(_on_host, prepared.fetched(values)), strict=True))


def create_paddle_predictor(config: AnalysisConfig | NativeConfig) -> AnalysisPredictor:
    """Return the predictor of a config.

    Raises as AnalysisPredictor does; TypeError for what is no config.
    """
    if not isinstance(config, (AnalysisConfig, NativeConfig)):
        raise TypeError(f"create_paddle_predictor: expected an AnalysisConfig, found {type(config).__name__}")
    return AnalysisPredictor(config)


compiler.MODELS.update(dict.fromkeys((AnalysisConfig, NativeConfig), create_paddle_predictor))


def _load(config: NativeConfig, buffers: tuple[bytes, bytes] | None) -> _Model:
    executor = Executor(CUDAPlace(config.device) if config.use_gpu else CPUPlace())
    scope = Scope()
    with tempfile.TemporaryDirectory() as folder, scope_guard(scope):
        place = (config.model_dir, config.prog_file, config.param_file)
        if buffers is not None:
            for name, content in zip(("program", "parameters"), buffers, strict=True):
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(content)
            place = (folder, "program", "parameters")
        program, inputs, outputs = _read(executor, *place, config.allow)
    program.refuse_acting()
    return _Model(program, tuple(inputs), tuple(v.name for v in outputs), executor, scope)


def _read(executor: Executor, folder: str, program: str, parameters: str, allow: Sequence[str]) -> list[Any]:
    if not folder and not program:
        raise FileFormatError('create_paddle_predictor: the config names no model: AnalysisConfig("its folder")')
    if bool(program) != bool(parameters):
        raise FileFormatError(
            f"create_paddle_predictor: {program or parameters}: a config names the file with the program and that "
            "with the parameters, or the folder alone"
        )
    if not folder:
        folder = os.path.dirname(os.path.abspath(program))
        if os.path.dirname(os.path.abspath(parameters)) != folder:
            raise FileFormatError(f"create_paddle_predictor: {program} and {parameters} must lie in one folder")
    return load_inference_model(folder, executor, program or None, parameters or None, allow=allow)


def _on_host(value: Fetched) -> LoDTensor:
    """Return a fetched value as a tensor in the host's memory. Raises FetchError unless it is dense."""
    tensor = value.tensor()
    if not isinstance(tensor, LoDTensor):
        raise FetchError(
            f"{value.name}: the model's output is a {type(tensor).__name__}, which predictors do not "
            "return; use Executor.run"
        )
    return LoDTensor(np.asarray(tensor), tensor.lod())


def _paddle_tensor(name: str, tensor: LoDTensor) -> PaddleTensor:
    array: Array = np.asarray(tensor)
    try:
        kind_of(array, name)
    except FeedError:
        raise FetchError(
            f"{name}: a PaddleTensor holds float32, int64 or int32, and this output {array.dtype}; take it by "
            "get_output_tensor"
        ) from None
    return PaddleTensor(array, name, tensor.lod(), copy=False)
