"""Parameters that are given as a direction and a length (Salimans & Kingma 2016)."""

import copy
from collections.abc import Sequence
from typing import Any

from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.variable import Variable
from jfluid.param_attr import WeightNormParamAttr


def _norm_except(helper: Any, x: Variable, dim: int | None, block: Block) -> Variable:
    """Return the 2-norm over all dimensions except `dim`; reduced dimensions keep size 1."""

    def temp() -> Variable:
        return block.create_var(name=unique_name.generate(f"{helper.name}.tmp"))

    squared, total, norm = temp(), temp(), temp()
    axes = [i for i in range(len(x.shape)) if i != dim]
    block.append_op("square", {"X": x}, {"Out": squared})
    block.append_op(
        "reduce_sum",
        {"X": squared},
        {"Out": total},
        {"dim": axes, "keep_dim": True, "reduce_all": dim is None and len(x.shape) == len(axes)},
    )
    block.append_op("sqrt", {"X": total}, {"Out": norm})
    return norm


def create_weight_normalized(helper: Any, attr: Any, shape: Sequence[int], dtype: Any) -> Variable:
    """Create the parameters `<name>_g` and `<name>_v`, and return the computed weight g * v / |v|.

    g is initialized with |v|.
    """
    dim = None if attr.dim is None else attr.dim % len(shape)
    lengths = [d if i == dim else 1 for i, d in enumerate(shape)]
    made = {}
    for suffix, dims in (("g", lengths), ("v", shape)):
        part = copy.deepcopy(attr)
        part.name = f"{attr.name}_{suffix}"
        kwargs = part._to_kwargs(with_initializer=suffix == "v")
        helper.startup_program.global_block().create_parameter(shape=dims, dtype=dtype, **kwargs)
        kwargs.pop("initializer", None)
        made[suffix] = helper.main_program.global_block().create_parameter(shape=dims, dtype=dtype, **kwargs)
    start = helper.startup_program.global_block()
    length = _norm_except(helper, start.var(f"{attr.name}_v"), dim, start)
    start.append_op("assign", {"X": length}, {"Out": start.var(f"{attr.name}_g")})

    block = helper.main_program.current_block()
    norm = _norm_except(helper, made["v"], dim, block)
    scale: Variable = helper.create_variable_for_type_inference()
    weight: Variable = helper.create_variable_for_type_inference()
    block.append_op("elementwise_div", {"X": made["g"], "Y": norm}, {"Out": scale})
    block.append_op("elementwise_mul", {"X": made["v"], "Y": scale}, {"Out": weight})
    WeightNormParamAttr.params_with_weight_norm.append(weight)
    return weight
