"""The settings of a layer's parameters."""

from typing import Any, ClassVar

from jfluid.initializer import Initializer
from jfluid.regularizer import WeightDecayRegularizer

__all__ = ["ParamAttr", "WeightNormParamAttr"]


class ParamAttr:
    """Attributes of a parameter.

    Args:
        name: the parameter's name; made from the layer's when None. Layers that name the same
            parameter share it.
        initializer: of its values; the layer's own choice when None.
        learning_rate: a factor of the optimizer's learning rate.
        regularizer: weight decay of this parameter, instead of the optimizer's.
        trainable: True if it is trained.
        do_model_average: True if `ModelAverage` averages it.
        entry: which ids of a distributed table (`embedding(is_distributed=True)`) get a row on the
            parameter servers: a `CountEntry` or `ProbabilityEntry` of `jfluid.ps_server.specs`,
            None for all. Until then they read as zeros. Not in Fluid. Without servers it has no
            effect: the table is whole.
        max_rows, max_bytes: how many rows, and bytes, of a distributed table one parameter server
            may hold; None for any number. A step that needs more is refused with TooLargeError (see
            `jfluid.ps_server.specs.TableSpec`). Not in Fluid. Without servers they have no effect.
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        entry: Any = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ):
        if name == "":
            raise ValueError("ParamAttr: the name must not be empty")
        if entry is not None:
            from jfluid.ps_server import specs

            if not isinstance(entry, (specs.CountEntry, specs.ProbabilityEntry)):
                raise TypeError(
                    "ParamAttr: entry: expected a CountEntry or ProbabilityEntry of jfluid.ps_server.specs, found "
                    f"{type(entry).__name__}"
                )
        for what, bound in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            if bound is not None and (type(bound) is not int or bound < 1):
                raise TypeError(f"ParamAttr: {what}: expected a positive whole number or None, found {bound!r}")
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.do_model_average = do_model_average
        self.entry, self.max_rows, self.max_bytes = entry, max_rows, max_bytes

    def _set_default_initializer(self, initializer: Any) -> None:
        if self.initializer is None:
            self.initializer = initializer

    @staticmethod
    def _to_attr(arg: Any) -> "ParamAttr | list[Any] | bool":
        """Convert a user's argument to a ParamAttr.

        The argument is None, a name, an initializer, a regularizer, False (no parameter) or a list.
        """
        if arg is None or arg is True:
            return ParamAttr()
        if isinstance(arg, (list, tuple)):
            return [ParamAttr._to_attr(a) for a in arg]
        if isinstance(arg, ParamAttr) or arg is False:
            return arg
        if isinstance(arg, str):
            return ParamAttr(name=arg)
        if isinstance(arg, Initializer):
            return ParamAttr(initializer=arg)
        if isinstance(arg, WeightDecayRegularizer):
            return ParamAttr(regularizer=arg)
        raise TypeError(
            f"param_attr: expected a ParamAttr, a name, an initializer, a regularizer, a bool or None, "
            f"found {type(arg).__name__}"
        )

    def _to_kwargs(self, with_initializer: bool = False) -> dict[str, Any]:
        kwargs = {
            "name": self.name,
            "optimize_attr": {"learning_rate": self.learning_rate},
            "regularizer": self.regularizer,
            "trainable": self.trainable,
            "do_model_average": self.do_model_average,
            "entry": self.entry,
            "max_rows": self.max_rows,
            "max_bytes": self.max_bytes,
        }
        if with_initializer:
            kwargs["initializer"] = self.initializer
        return kwargs


class WeightNormParamAttr(ParamAttr):
    """Weight normalisation: w = g * v / |v| (Salimans & Kingma 2016, arXiv:1602.07868).

    Args:
        dim: the dimension that keeps a length of its own; None for one length in all.
        name, initializer, learning_rate, regularizer, trainable, do_model_average: as of `ParamAttr`.

    Attributes:
        params_with_weight_norm: of the class: the weights that were made so, of all programs.
    """

    params_with_weight_norm: ClassVar[list[Any]] = []

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = False,
    ):
        super().__init__(name, initializer, learning_rate, regularizer, trainable, do_model_average)
        self.dim = dim
