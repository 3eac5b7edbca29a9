"""Base class of optimizers: gradients, clips, penalties, learning rates and accumulators."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from jfluid import errors
from jfluid.clip import GradientClipBase, append_gradient_clip_ops, error_clip_callback
from jfluid.initializer import Constant
from jfluid.ir import unique_name
from jfluid.ir.backward import append_backward
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program, default_main_program, default_startup_program, name_scope, program_guard
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable
from jfluid.layers.helper import LayerHelper
from jfluid.optimizer.dygraph_mode import DygraphMode, is_schedule
from jfluid.record.phases import PHASES
from jfluid.regularizer import WeightDecayRegularizer, append_regularization_ops

ParamGrad = tuple[Parameter, Variable | None]


class Optimizer(DygraphMode):
    """Base class of optimizers, which append an update operator for each parameter.

    A subclass names its operator in `type`, its accumulators in `accumulators`, and gives the
    operator's attributes in `_attributes`. One that needs more overrides `_create_accumulators`,
    `_append_optimize_op` or `_finish_update`.

    Args:
        learning_rate: a number, or a variable with one element (such as a schedule of
            `fluid.layers`). In dygraph mode a number or a schedule of `fluid.dygraph`.
        parameter_list: parameters (or their names) to train, where `minimize` is not given any.
            Dygraph mode needs it, and the parameters themselves.
        regularization: the penalty of all parameters that have none of their own.
        grad_clip: the clip of all gradients; it goes before the penalty.
        name: put into the names of the accumulators.
    """

    type: str
    # accumulator name -> (input slot, output slot); both are None for one that only the optimizer
    # itself reads
    accumulators: ClassVar[Mapping[str, tuple[str, str | None]]] = {}

    def __init_subclass__(cls) -> None:
        """Set Fluid's attributes with names of accumulators, such as `_moment1_acc_str`, for old subclasses."""
        super().__init_subclass__()
        for name in vars(cls).get("accumulators", ()):
            setattr(cls, f"_{name.strip('_').removesuffix('_acc')}_acc_str", name)

    uses_learning_rate: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: float | Variable,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        if default_main_program().eager:
            self._check_eagerly(learning_rate, parameter_list)
        elif not isinstance(learning_rate, (float, Variable)):
            raise TypeError(
                f"{type(self).__name__}, learning_rate: expected a float or a Variable, "
                f"found {type(learning_rate).__name__}"
            )
        if parameter_list is not None and (
            isinstance(parameter_list, (str, Variable)) or not isinstance(parameter_list, Iterable)
        ):
            raise TypeError(
                f"{type(self).__name__}, parameter_list: expected a list of parameters, as "
                f"layer.parameters() gives, found {type(parameter_list).__name__}"
            )
        if regularization is not None and not callable(regularization):
            raise TypeError(
                f"{type(self).__name__}, regularization: expected a regularizer of fluid.regularizer, such as "
                f"L2Decay(0.0001), found {type(regularization).__name__}"
            )
        if grad_clip is not None and not isinstance(grad_clip, GradientClipBase):
            raise TypeError(
                f"{type(self).__name__}, grad_clip: expected a gradient clip of fluid.clip, "
                f"found {type(grad_clip).__name__}"
            )
        self.regularization = regularization
        self.helper: LayerHelper | None = None
        self._parameter_list = None if parameter_list is None else [*parameter_list]
        self._grad_clip = grad_clip
        self._name = name
        self._learning_rate = learning_rate
        self._learning_rate_map: dict[Program, Variable] = {}
        self._dtype: VarType | None = None
        self._accumulators: dict[str, dict[str, Variable]] = {}
        self._opti_name_list: list[str] = []

    # Minimizing
    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """Append gradients and updates to the loss's program.

        Args:
            loss: a variable with one element.
            startup_program: gets the first values of learning rate and accumulators; the default
                one when None.
            parameter_list: parameters (or their names) to train; all trainable ones by default.
            no_grad_set: variables (or their names) that gradients do not pass through.

        Returns:
            The update operators, and the pairs of parameter and gradient as `backward` returns
            them.
        """
        if not isinstance(loss, Variable):
            raise TypeError(f"loss: expected a Variable, found {type(loss).__name__}")
        if default_main_program().eager:
            params_grads = self._eager_gradients(parameter_list, no_grad_set)
            applied = self._apply_eagerly(params_grads)
            PHASES.step()
            return applied, params_grads
        params_grads = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_optimize(loss, startup_program, params_grads), params_grads

    def _apply_eagerly(self, params_grads: Sequence[ParamGrad]) -> list[Operator]:
        tracer = default_main_program().tracer  # type: ignore[attr-defined]
        records, tracer.records = tracer.records, False
        try:
            updates = self.apply_gradients(params_grads)
        finally:
            tracer.records = records
        # it runs when the next step begins: until then the script may clear gradients
        tracer.graph.step_ended = True
        return updates

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[ParamGrad]:
        """Append the gradient operators only; see `append_backward` for the arguments.

        In dygraph mode return the pairs of parameter and gradient that are there.
        """
        if default_main_program().eager:
            return self._eager_gradients(parameter_list, no_grad_set)
        return self._backward(loss, startup_program, parameter_list, no_grad_set, callbacks)

    def _backward(
        self,
        loss: Variable,
        startup_program: Program | None,
        parameter_list: Sequence[Parameter | str] | None,
        no_grad_set: Iterable[Variable | str] | None,
        callbacks: Sequence[Callable[..., Any]] | None,
        checkpoints: Sequence[Variable | str] | None = None,
    ) -> list[ParamGrad]:
        self._dtype = loss.dtype
        with program_guard(loss.block.program, startup_program):
            return [
                *append_backward(
                    loss,
                    parameter_list or self._parameter_list,
                    no_grad_set,
                    [error_clip_callback, *(callbacks or ())],
                    checkpoints,
                )
            ]

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[ParamGrad]
    ) -> list[Operator]:
        """`apply_gradients` within the loss's program and the given startup program."""
        if default_main_program().eager:
            return self._apply_eagerly(params_grads)
        with program_guard(loss.block.program, startup_program):
            return self.apply_gradients(params_grads)

    def apply_gradients(self, params_grads: Sequence[ParamGrad]) -> list[Operator]:
        """Append clips, penalties and updates to the default main program; returns the update operators.

        Raises ProgramError when this optimizer already updates one of the parameters and keeps
        accumulators for it.
        """
        params_grads = sorted(params_grads, key=lambda pair: pair[0].name)
        if self._grad_clip is not None:
            params_grads = self._grad_clip(params_grads)
        else:
            params_grads = append_gradient_clip_ops(params_grads)
        params_grads = append_regularization_ops(params_grads, self.regularization)
        return self._create_optimization_pass(params_grads)

    def _create_optimization_pass(self, params_grads: Sequence[ParamGrad]) -> list[Operator]:
        program = default_main_program()
        block = program.global_block()
        start = len(block.ops)
        if self.helper is None or not program.eager:
            self.helper = LayerHelper(type(self).__name__)
        present = [(p, g) for p, g in params_grads if g is not None and p.trainable]
        if self.accumulators:
            new = [p for p, _ in present if not (program.eager and self._has_accumulators(p))]
            self._create_accumulators(block, new)
        self._create_global_learning_rate()
        if program.eager:  # its operators have neither roles nor scopes
            eager_block: Any = block
            eager_block.append_updates(self.type, [self._update(pair) for pair in present])
        else:
            for pair in present:
                with program._optimized_guard(pair), name_scope("optimizer"):
                    self._append_optimize_op(block, pair)
        self._finish_update(block, params_grads)
        return block.ops[start:]

    # Hooks of subclasses
    def _attributes(self, param: Parameter) -> dict[str, Any]:
        """Return the attributes of the operator that updates `param`."""
        return {}

    def _first_value(self, accumulator: str) -> float:
        """Return the initial value of the accumulator's elements."""
        return 0.0

    def _accumulator_shape(self, accumulator: str, param: Parameter) -> Sequence[int] | None:
        """Return the shape of an accumulator; None for the parameter's shape."""
        return None

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for param in parameters:
            for name in self.accumulators:
                self._add_accumulator(
                    name, param, fill_value=self._first_value(name), shape=self._accumulator_shape(name, param)
                )

    def _has_accumulators(self, param: Parameter) -> bool:
        made = self._accumulators
        return all(param.name in made.get(self._accumulator_key(n), ()) for n in self.accumulators)

    def _extra_inputs(self) -> dict[str, Variable]:
        """Return inputs of the update operator beside parameter, gradient, learning rate and accumulators."""
        return {}

    def _append_optimize_op(self, block: Block, param_and_grad: ParamGrad) -> Operator:
        return block.append_op(self.type, *self._update(param_and_grad))

    def _update(self, param_and_grad: ParamGrad) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return inputs, outputs and attributes of the operator that updates a parameter."""
        param, grad = param_and_grad
        inputs: dict[str, Any] = {"Param": param, "Grad": grad, **self._extra_inputs()}
        outputs = {"ParamOut": param}
        if self.uses_learning_rate:
            inputs["LearningRate"] = self._create_param_lr(param_and_grad)
        for name, (read, written) in self.accumulators.items():
            inputs[read] = self._get_accumulator(name, param)
            if written is not None:
                outputs[written] = inputs[read]
        return inputs, outputs, self._attributes(param)

    def _finish_update(self, block: Block, params_grads: Sequence[ParamGrad]) -> None:
        """Append further operators after all updates."""

    # Learning rates
    def _create_global_learning_rate(self) -> None:
        program = default_main_program()
        if is_schedule(self._learning_rate):
            self._learning_rate_map[program] = self._learning_rate()
            return
        if self._global_learning_rate() is not None:
            return
        if isinstance(self._learning_rate, Variable):
            self._learning_rate_map[program] = self._learning_rate
            return
        self._learning_rate_map[program] = global_variable(
            unique_name.generate("learning_rate"), [1], self._dtype or VarType.FP32, self._learning_rate
        )

    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        """Return the learning rate's variable in a program (the default main program).

        Before `minimize` it is None, or the variable that was passed to the optimizer.
        """
        program = program or default_main_program()
        rate = self._learning_rate
        given = rate if isinstance(rate, Variable) and rate.block.program is program else None
        return self._learning_rate_map.get(program, given)

    def _create_param_lr(self, param_and_grad: ParamGrad) -> Variable:
        """Return the learning rate of a parameter: the global rate times the ParamAttr's factor."""
        factor = param_and_grad[0].optimize_attr["learning_rate"]
        if isinstance(factor, Variable):
            return factor
        rate = self._global_learning_rate()
        assert rate is not None  # it is made before the first update
        if factor == 1.0:
            return rate
        program = default_main_program()
        with program._lr_schedule_guard(is_with_opt=True), name_scope("scale_with_param_lr"):
            block = program.current_block()
            scaled = block.create_var(name=unique_name.generate("tmp"), shape=rate.shape, dtype=rate.dtype)
            block.append_op("scale", {"X": rate}, {"Out": scaled}, {"scale": float(factor)})
        return scaled

    # Accumulators
    def _accumulator_key(self, name: str) -> str:
        return name if self._name is None else f"{self._name}_{name}"

    def _add_accumulator(
        self,
        name: str,
        param: Parameter,
        dtype: Any = None,
        fill_value: float = 0.0,
        shape: Sequence[int] | None = None,
        type: VarType = VarType.LOD_TENSOR,
    ) -> Variable:
        """Create a persistable variable that belongs to `param`, filled in the startup program."""
        key = self._accumulator_key(name)
        known = self._accumulators.setdefault(key, {})
        if param.name in known:
            if default_main_program().eager:
                return known[param.name]
            raise errors.ProgramError(
                f"this optimizer already updates {param.name} (accumulator {name} exists): "
                "call minimize once, or create a second optimizer"
            )
        var = global_variable(
            unique_name.generate(f"{param.name}_{key}"),
            param.shape if shape is None else shape,
            dtype if dtype is not None else param.dtype,
            fill_value,
            type=type,
            belong_to_optimizer=True,
            stop_gradient=False,
        )
        self._opti_name_list.append(var.name)
        known[param.name] = var
        self._restore(var)
        return var

    def _get_accumulator(self, name: str, param: Parameter) -> Variable:
        """Return the accumulator of `param`, or raise ProgramError."""
        found = self._accumulators.get(self._accumulator_key(name), {}).get(param.name)
        if found is None:
            raise errors.ProgramError(f"{type(self).__name__} has no accumulator {name} for parameter {param.name}")
        return found

    def get_opti_var_name_list(self) -> list[str]:
        """Return names of all accumulators, in order of creation."""
        return self._opti_name_list


def global_variable(
    name: str, shape: Sequence[int], dtype: Any, value: float, *, stop_gradient: bool = True, **kwargs: Any
) -> Variable:
    """Return a persistable variable of the default main program, filled with `value` in the default startup program."""
    var = (
        default_main_program()
        .global_block()
        .create_var(name=name, shape=shape, dtype=dtype, persistable=True, stop_gradient=stop_gradient, **kwargs)
    )
    default_startup_program().global_block().create_var(
        name=name, shape=shape, dtype=dtype, type=var.type, persistable=True, initializer=Constant(value)
    )
    return var
