"""A saved inference model as a layer of dygraph mode."""

from typing import Any

import numpy as np

from jfluid import errors
from jfluid.dygraph.base import enabled, real_variable
from jfluid.dygraph.dygraph_to_static.partial_program import PartialProgramLayer
from jfluid.dygraph.layers import Layer
from jfluid.dygraph.varbase import VarBase
from jfluid.executor import Executor
from jfluid.files.saved_model import state_of
from jfluid.initializer import NumpyArrayInitializer
from jfluid.io import load_inference_model
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.param_attr import ParamAttr
from jfluid.places import CPUPlace
from jfluid.scope import Scope, global_scope, scope_guard

__all__ = ["StaticModelRunner"]


class StaticModelRunner(Layer):
    """Layer of a model that `save_inference_model` saved, here or in real Fluid, for further training.

    The parameters are the layer's, named "NAME@LOADED".

    Args:
        model_dir: the model's folder.
        model_filename: file of the program in the folder; `__model__` when None.
        params_filename: file of all parameters; None for a file for each parameter.

    `train` sets dropout and batch norm to training, `eval` to the form in which the model was saved.

    Raises DygraphError outside of dygraph mode, FileFormatError for missing or damaged files, UntrustedOperatorError
    for a model with operators that act, UnsupportedError for operators that run on the host.
    """

    def __init__(
        self,
        model_dir: str,
        model_filename: str | None = None,
        params_filename: str | None = None,
    ):
        super().__init__()
        if not enabled():
            raise errors.DygraphError("StaticModelRunner: make it within fluid.dygraph.guard()")
        with scope_guard(Scope()):
            program, feeds, fetches = load_inference_model(
                model_dir, Executor(CPUPlace()), model_filename, params_filename
            )
            program.refuse_acting()
            state = {v.name: np.array(_value_of(v.name)) for v in state_of(program)}
        training = _for_training(program)
        written = {n for op in training.global_block().ops for n in op.output_arg_names}
        held = {name: self._parameter(name, state[name], name in written) for name in state}
        self._feeds = list(feeds)
        self._forms = {
            train: PartialProgramLayer(
                form,
                [form.global_block().var(n) for n in feeds],
                [form.global_block().var(v.name) for v in fetches],
                held,
            )
            for train, form in ((True, training), (False, program))
        }

    def _parameter(self, name: str, value: np.ndarray, written: bool) -> Any:
        """Hold a parameter of the model; one that its operators write is not trained."""
        made = self.create_parameter(
            list(value.shape),
            ParamAttr(name=f"{name}@LOADED", initializer=NumpyArrayInitializer(value)),
            str(value.dtype),
        )
        assert made is not None  # its ParamAttr is no False
        made.stop_gradient = written or value.dtype.kind != "f"
        return self.add_parameter(made.name, made)

    def forward(self, *args: Any) -> Any:
        """Return the model's output, or a list of several, for its inputs in order: variables or NumPy arrays.

        Raises TypeError for a wrong number of inputs.
        """
        if len(args) != len(self._feeds):
            raise TypeError(
                f"{self._full_name}: expected {len(self._feeds)} inputs ({', '.join(self._feeds)}), found {len(args)}"
            )
        inputs: list[VarBase] = [a if isinstance(a, Variable) else real_variable(a) for a in args]  # type: ignore[misc]
        found = self._forms[self.training](inputs)
        return found[0] if len(found) == 1 else found


def _value_of(name: str) -> Any:
    found = global_scope().find_var(name)
    assert found is not None  # it was loaded
    return found.get_tensor()


def _for_training(program: Program) -> Program:
    """Return a copy of a program with operators in training form."""
    twin = program.clone()
    for block in twin.blocks:
        for op in block.ops:
            if op.has_attr("is_test"):
                op.attrs["is_test"] = False
    return twin
