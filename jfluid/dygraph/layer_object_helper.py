"""The helper of a `Layer`, by which layers of users append operators."""

from typing import Any

from jfluid import errors
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper

__all__ = ["LayerObjectHelper"]


class LayerObjectHelper(LayerHelper):
    """LayerHelper of a `Layer`: names, parameters and operators.

    The layer's attributes replace the arguments of a LayerHelper, so methods take these as parameters.

    Args:
        name: name of the layer, and prefix of its variables' names.
    """

    def __init__(self, name: str):
        super().__init__(name, name=name)

    def append_activation(
        self,
        input_var: Variable,
        act: str | None = None,
        use_cudnn: bool | None = None,
        use_mkl_dnn: bool | None = None,
    ) -> Variable:
        """Apply the activation of a name; return `input_var` itself without one.

        XLA chooses its own kernels, whatever `use_cudnn` and `use_mkl_dnn` say.
        """
        return self._activated(input_var, act)

    def input_dtype(self, inputs_in: Any) -> VarType:  # type: ignore[override]
        """Return the common dtype of variables. Raises ProgramError if dtypes differ."""
        inputs = [inputs_in] if isinstance(inputs_in, Variable) else list(inputs_in)
        dtypes = {v.dtype for v in inputs}
        if len(dtypes) != 1:
            raise errors.ProgramError(
                f"layer {self.name}: inputs of one dtype are needed, found {sorted(d.name for d in dtypes)}"
            )
        return dtypes.pop()

    def is_instance(self, param: Any, cls: Any) -> None:
        """Raise TypeError if an argument of the layer is no instance of `cls`."""
        if not isinstance(param, cls):
            raise TypeError(f"layer {self.name}: expected {cls}, found {type(param).__name__}")
