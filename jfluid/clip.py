"""Clipping of parameters' gradients, and of variables' gradients in the backward pass (error clips)."""

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.block import Block
from jfluid.ir.program import Program, default_main_program, name_scope
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable
from jfluid.layers.helper import emit

__all__ = [
    "ErrorClipByValue",
    "GradientClipByGlobalNorm",
    "GradientClipByNorm",
    "GradientClipByValue",
    "set_gradient_clip",
]

ParamGrad = tuple[Parameter, Variable | None]
NeedClip = Callable[[Parameter], bool]


class BaseErrorClipAttr:
    """Base class of clips that apply to a variable's gradient as soon as it is computed."""

    def _append_clip_op(self, block: Block, grad_name: str) -> None:
        raise NotImplementedError


class ErrorClipByValue(BaseErrorClipAttr):
    """Error clip of all elements to [min, max], for `Variable.set_error_clip`.

    Args:
        max: the upper bound.
        min: the lower bound; -max when None.
    """

    def __init__(self, max: float, min: float | None = None):
        self.max, self.min = _bounds(max, min)

    def _append_clip_op(self, block: Block, grad_name: str) -> None:
        block.append_op("clip", {"X": grad_name}, {"Out": grad_name}, {"min": self.min, "max": self.max})

    def __str__(self) -> str:
        return f"ByValue, min={self.min:f}, max={self.max:f}"


def _bounds(high: float, low: float | None) -> tuple[float, float]:
    high = float(high)
    low = -high if low is None else float(low)
    if low > high:
        raise ValueError(f"clip by value: expected min <= max, found min={low}, max={high}")
    return high, low


def error_clip_callback(block: Block, context: Mapping[str, str]) -> None:
    """Clip the gradients that the last operator wrote, for variables with an error clip.

    It is a callback for `append_backward`.
    """
    for name in block.ops[-1].output_arg_names:
        var = block.find_var_recursive(context[name]) if name in context else None
        if var is None or (clip := var.error_clip) is None:
            continue
        if not isinstance(clip, BaseErrorClipAttr):
            raise TypeError(
                f"variable {var.name}, error_clip: expected an ErrorClipByValue, found {type(clip).__name__}"
            )
        clip._append_clip_op(block, name)


class GradientClipBase:
    """Base class of gradient clips: `clip(params_grads)` returns the pairs with clipped gradients.

    Parameters without a gradient are left out.

    Args:
        need_clip: predicate of a parameter: True if its gradient is clipped; all are when None.
    """

    def __init__(self, need_clip: NeedClip | None = None):
        if need_clip is not None and not callable(need_clip):
            raise TypeError(f"need_clip: expected a function of a parameter, found {type(need_clip).__name__}")
        self._need_clip_func = need_clip

    def __call__(self, params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
        with name_scope("gradient_clip"):
            return self._clip(params_grads)

    def _clip(self, params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
        """Append one operator for each gradient; clips that look at several override this."""
        params_grads = _present(params_grads)
        result = list(params_grads)
        for at, (param, grad) in self._wanted(params_grads):
            with param.block.program._optimized_guard([param, grad]):
                clipped = self._clip_one(grad)
            result[at] = (param, clipped)
        _note_clipped(params_grads, result)
        return result

    def _clip_one(self, grad: Variable) -> Variable:
        raise NotImplementedError

    def _wanted(self, params_grads: Sequence[ParamGrad]) -> Iterator[tuple[int, tuple[Parameter, Variable]]]:
        """Return the pairs to clip, with their positions."""
        for at, (param, grad) in enumerate(params_grads):
            if grad is not None and (self._need_clip_func is None or self._need_clip_func(param)):
                yield at, (param, grad)


def _present(params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
    """Return the pairs with a gradient."""
    return [(param, grad) for param, grad in params_grads if grad is not None]


def _note_clipped(before: Sequence[ParamGrad], after: Sequence[ParamGrad]) -> None:
    """Write the clipped gradient into the clipping operators' `op_role_var`, for transpilers."""
    renamed = {
        (p.name, g.name): (p.name, c.name)
        for (p, g), (_, c) in zip(before, after, strict=True)
        if g is not None and c is not None and c is not g
    }
    for block in {id(p.block): p.block for p, _ in before}.values():
        for op in block.ops:
            pair = tuple(op.attrs.get("op_role_var", ()))
            if pair in renamed and op.attrs.get("op_namescope", "").startswith("/gradient_clip"):
                op.attrs["op_role_var"] = renamed[pair]
        block.program._touch()


class GradientClipByValue(GradientClipBase):
    """Gradient clip of every element to [min, max].

    Args:
        max: the upper bound.
        min: the lower bound; -max when None.
        need_clip: a function of a parameter that returns whether its gradient is clipped; all are
            when None.
    """

    def __init__(self, max: float, min: float | None = None, need_clip: NeedClip | None = None):
        super().__init__(need_clip)
        self.max, self.min = _bounds(max, min)

    def _clip_one(self, grad: Variable) -> Variable:
        return emit("clip", {"X": grad}, {"min": self.min, "max": self.max})

    def __str__(self) -> str:
        return f"Gradient Clip By Value, min = {self.min:f}, max={self.max:f}"


class GradientClipByNorm(GradientClipBase):
    """Gradient clip of each gradient separately to an L2 norm of at most `clip_norm`.

    Args:
        clip_norm: the largest norm.
        need_clip: a function of a parameter that returns whether its gradient is clipped; all are
            when None.
    """

    def __init__(self, clip_norm: float, need_clip: NeedClip | None = None):
        super().__init__(need_clip)
        self.clip_norm = float(clip_norm)

    def _clip_one(self, grad: Variable) -> Variable:
        return emit("clip_by_norm", {"X": grad}, {"max_norm": self.clip_norm})

    def __str__(self) -> str:
        return f"Gradient Clip By Norm, clip_norm={self.clip_norm:f}"


class GradientClipByGlobalNorm(GradientClipBase):
    """Gradient clip by the global norm: all gradients times clip_norm / max(clip_norm, global L2 norm).

    Args:
        clip_norm: the largest norm.
        group_name: with `set_gradient_clip`, the group of parameters with a common norm.
        need_clip: predicate of a parameter: True if its gradient is clipped and counted; all are when None.
    """

    def __init__(self, clip_norm: float, group_name: str = "default_group", need_clip: NeedClip | None = None):
        super().__init__(need_clip)
        self.clip_norm = float(clip_norm)
        self.group_name = group_name

    def _clip(self, params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
        present = _present(params_grads)
        wanted = list(self._wanted(present))
        if not wanted:
            return list(params_grads)  # with all pairs, as in Fluid
        return self._scale_all(present, wanted, [grad for _, (_, grad) in wanted])

    def _scale_all(
        self, params_grads: Sequence[ParamGrad], wanted: list[Any], counted: list[Variable]
    ) -> list[ParamGrad]:
        """Scale the `wanted` gradients by the norm of the `counted` ones."""
        result = list(params_grads)
        if not counted:
            return result
        pair_of = {grad.name: (param, grad) for param, grad in params_grads if grad is not None}
        squares = []
        for grad in counted:
            with grad.block.program._optimized_guard(pair_of[grad.name]):
                squares.append(emit("reduce_sum", {"X": emit("square", {"X": _merged(grad)})}, {"reduce_all": True}))
        last = pair_of[counted[-1].name]
        with last[0].block.program._optimized_guard(last):
            norm = emit("sqrt", {"X": emit("sum", {"X": squares})})
            bound = emit(
                "fill_constant",
                {},
                {
                    "shape": norm.shape,
                    "dtype": int(norm.dtype),
                    "value": self.clip_norm,
                    "str_value": str(self.clip_norm),
                },
                stop_gradient=True,
            )
            larger = emit("elementwise_max", {"X": bound, "Y": norm})
            factor = emit("elementwise_div", {"X": bound, "Y": larger})
        for at, (param, grad) in wanted:
            with param.block.program._optimized_guard([param, grad]):
                result[at] = (param, emit("elementwise_mul", {"X": grad, "Y": factor}))
        _note_clipped(params_grads, result)
        return result

    def __str__(self) -> str:
        return f"Gradient Clip By GlobalNorm, global_norm={self.clip_norm:f}"


def set_gradient_clip(
    clip: GradientClipBase, param_list: Sequence[Parameter | str] | None = None, program: Program | None = None
) -> None:
    """Attach `clip` to parameters; an optimizer without `grad_clip` applies it in `minimize`.

    As in Fluid 1.8, nothing is clipped unless every parameter has a clip, `need_clip` has no effect, and the clip of
    the last parameter (by name) is applied to all if clips differ. Each case gives a warning. The optimizer's
    `grad_clip` argument has none of these traps.

    Args:
        clip: the clip.
        param_list: the parameters, or their names; all when None.
        program: the program of the parameters; the default main program when None.
    """
    if not isinstance(clip, GradientClipBase):
        raise TypeError(
            f"clip: expected a GradientClipByValue, GradientClipByNorm or GradientClipByGlobalNorm, "
            f"found {type(clip).__name__}"
        )
    if default_main_program().eager:
        raise errors.DygraphError("set_gradient_clip works on programs: in dygraph mode give the optimizer grad_clip=")
    block = (program or default_main_program()).global_block()
    for item in block.all_parameters() if param_list is None else param_list:
        param = block.var(item) if isinstance(item, str) else item
        if not isinstance(param, Parameter):
            raise TypeError(f"param_list: expected parameters or their names, found {param!r}")
        param.gradient_clip_attr = copy.copy(clip)


def append_gradient_clip_ops(params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
    """Apply the clips that `set_gradient_clip` attached; returns the pairs with clipped gradients."""
    pairs = _present(params_grads)
    clips = [p.gradient_clip_attr for p, _ in pairs]
    if not any(clips):
        return list(params_grads)
    if not all(clips):
        without = ", ".join(p.name for p, _ in pairs if p.gradient_clip_attr is None)
        warnings.warn(
            "set_gradient_clip: nothing is clipped, as in Fluid, because these parameters have no clip: "
            f"{without}. Give the optimizer grad_clip with need_clip instead.",
            stacklevel=2,
        )
        return list(params_grads)
    groups: dict[str, set[float]] = defaultdict(set)
    for clip in clips:
        if isinstance(clip, GradientClipByGlobalNorm):
            groups[clip.group_name].add(clip.clip_norm)
    for name, norms in groups.items():
        if len(norms) > 1:
            raise errors.ProgramError(f"gradient clip group {name}: expected one clip_norm, found {sorted(norms)}")
    last = copy.copy(clips[-1])
    if any(clip._need_clip_func is not None for clip in clips):
        warnings.warn(
            "set_gradient_clip: every gradient is clipped: Fluid ignores need_clip of this function. "
            "Give the optimizer grad_clip with need_clip instead.",
            stacklevel=2,
        )
        last._need_clip_func = None
    if len({(type(c), str(c), getattr(c, "group_name", None)) for c in clips}) > 1:
        warnings.warn(
            "set_gradient_clip: the parameters have different clips; as in Fluid, the clip of "
            f"{pairs[-1][0].name} ({last}) is applied to all.",
            stacklevel=2,
        )
    if not isinstance(last, GradientClipByGlobalNorm):
        clipped: list[ParamGrad] = last(params_grads)
        return clipped
    counted = [
        g
        for (_, g), c in zip(pairs, clips, strict=True)
        if g is not None and getattr(c, "group_name", None) == last.group_name
    ]
    with name_scope("gradient_clip"):
        return last._scale_all(pairs, list(enumerate(pairs)), counted)


def _merged(grad: Variable) -> Variable:
    """Return a gradient without duplicate sparse rows, so that its sum of squares is its squared norm."""
    if grad.type != VarType.SELECTED_ROWS:
        return grad
    return emit("get_tensor_from_selected_rows", {"X": emit("merge_selected_rows", {"X": grad})})


# Fluid's other names of these.
ClipByValue, ClipByNorm, ClipByGlobalNorm = (GradientClipByValue, GradientClipByNorm, GradientClipByGlobalNorm)
