"""Optimizers with a weight decay that is no part of the gradient."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jfluid import optimizer
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program, name_scope, program_guard
from jfluid.ir.variable import Parameter, Variable
from jfluid.layers.creation import assign
from jfluid.optimizer.base import ParamGrad

__all__ = ["DecoupledWeightDecay", "extend_with_decoupled_weight_decay"]


class DecoupledWeightDecay:
    """Stands before an optimizer among the bases of a class; see `extend_with_decoupled_weight_decay`."""

    def __init__(
        self,
        coeff: float | Variable = 0.0,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        **kwargs: Any,
    ):
        if not isinstance(coeff, float | Variable):
            raise TypeError(f"weight_decay: expected a float or a Variable, found {type(coeff).__name__}")
        self._coeff, self._chosen = coeff, apply_decay_param_fun
        self._params_name: set[str] = set()
        super().__init__(**kwargs)

    def _decayed(self, pairs: Sequence[ParamGrad]) -> list[tuple[Parameter, Variable, Variable]]:
        """Append weight times coefficient for each parameter that decays."""
        if self._coeff == 0.0 and isinstance(self._coeff, float):
            return []
        found = []
        for param, grad in pairs:
            if grad is None or (self._chosen is not None and not self._chosen(param.name)):
                continue
            if isinstance(self._coeff, Variable) and self._coeff.dtype != param.dtype:
                raise TypeError(
                    f"weight_decay: expected a Variable of {param.dtype.name}, as {param.name} is, "
                    f"found {self._coeff.dtype.name}"
                )
            with self._role(param, grad):
                found.append((param, grad, param * self._coeff))
            self._params_name.add(param.name)
        return found

    @staticmethod
    def _role(param: Parameter, grad: Variable) -> Any:
        return param.block.program._optimized_guard([param, grad])

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """Append gradients, the decay and the updates; for arguments and result see `Optimizer.minimize`."""
        base: Any = super()
        pairs = base.backward(loss, startup_program, parameter_list, no_grad_set)
        with program_guard(loss.block.program, startup_program), name_scope("weight decay"):
            for param, grad, part in self._decayed(pairs):
                with self._role(param, grad):
                    assign(param - part, param)
        return base.apply_optimize(loss, startup_program, pairs), pairs

    def __str__(self) -> str:
        return f"Weight Decay, params: {','.join(sorted(self._params_name))}"


def extend_with_decoupled_weight_decay(base_optimizer: type[Any]) -> type[Any]:
    """Return a subclass of an optimizer that decays parameters apart from the gradient.

    `minimize` also subtracts `weight_decay` times the old value from each parameter (Loshchilov and Hutter, "Decoupled
    Weight Decay Regularization", 2019).

        AdamW = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.Adam)
        AdamW(weight_decay=0.01, learning_rate=0.001).minimize(loss)

    Its arguments are `weight_decay` (a float or a Variable), `apply_decay_param_fun` (tells by a
    parameter's name whether it decays) and, by name, those of the optimizer.

    Raises TypeError for what is no class of an optimizer.
    """
    if not (isinstance(base_optimizer, type) and issubclass(base_optimizer, optimizer.Optimizer)):
        raise TypeError(f"base_optimizer: expected a class of optimizers, found {base_optimizer!r}")

    def construct(
        self: Any,
        weight_decay: float | Variable,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        **kwargs: Any,
    ) -> None:
        DecoupledWeightDecay.__init__(self, weight_decay, apply_decay_param_fun, **kwargs)

    bases = DecoupledWeightDecay, base_optimizer
    return type("OptimizerWithDecoupledWeightDecay", bases, {"__init__": construct})
