"""Feeds of a different dtype than `layers.data` declares: operators compute in the fed dtype, as in Fluid."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.ir import schema
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import EMPTY_NAME, Variable
from jfluid.lod_tensor import LoDTensor
from jfluid.ops import registry

_CASTS = ("cast", "cast_grad")


def fed_dtypes(program: Program, feed: Any) -> dict[str, VarType]:
    """Return the dtypes of feeds of numbers that differ from the dtypes of `layers.data`.

    Integers for declared integers are left out, and float16, for which Fluid has hardly a kernel on CPUs: these are
    converted.
    """
    known, found = program.global_block().vars, {}
    for key, value in feed.items() if isinstance(feed, Mapping) else ():
        name = key.name if isinstance(key, Variable) else key
        var = known.get(name)
        array = value.value if type(value) is LoDTensor else value
        if var is None or var.need_check_feed or var.persistable or not isinstance(array, np.ndarray | jax.Array):
            continue
        declared, fed = np.dtype(var.np_dtype), array.dtype
        numbers = fed.kind in "iuf" and declared.kind in "iuf" and "f" in (fed.kind, declared.kind)
        if fed != declared and numbers and fed != np.float16:
            found[name] = var_type(fed)
    return found


def computing_in(program: Program, dtypes: Mapping[str, VarType]) -> Program | None:
    """Return a copy of the program in which data have other dtypes, and what follows from the data, too.

    None if an operator would meet tensors of two dtypes that the program declares alike, as a parameter of float32
    and a feed of float64: no kernel of Fluid takes these.
    """
    twin = program.clone()
    declared = {id(v): v.dtype for block in twin.blocks for v in block.vars.values()}
    for name, dtype in dtypes.items():
        var = twin.global_block().var(name)
        var.set_shape_dtype(var.shape, dtype)
    changed = {id(twin.global_block().var(name)) for name in dtypes}
    for block in twin.blocks:
        for op in block.ops:
            if op.type not in ("feed", "fetch") and not _follows(op, declared, changed):
                return None
    return twin


def _follows(op: Operator, declared: Mapping[int, VarType], changed: set[int]) -> bool:
    """Give the operator's outputs the dtypes that follow from its inputs, and return True if the inputs agree."""
    ins, outs = (_variables(op, names) for names in (op.input_arg_names, op.output_arg_names))
    moved = [v for v in ins if id(v) in changed]
    if not moved:
        return not any(id(v) in changed for v in outs)
    definition = registry.find(op.type)
    if definition is None or definition.fn is None or definition.host:
        return False
    if op.type not in _CASTS and any(v.dtype != m.dtype for m in moved for v in ins if _alike(v, m, declared)):
        return False
    before = [(v, v.shape, v.dtype, v.lod_level, v.type) for v in outs]
    try:
        schema.current().infer(op)
    except (errors.JFluidError, TypeError, ValueError):
        return False
    kinds = {declared[id(m)]: m.dtype for m in moved}
    for var, shape, dtype, level, kind in before:
        found = var.dtype
        var.set_shape_dtype(shape, found)
        var.lod_level, var.type = level, kind
        if found != dtype:
            if var.persistable or found != kinds.get(declared[id(var)]):
                return False
            changed.add(id(var))
    return True


def _alike(first: Variable, second: Variable, declared: Mapping[int, VarType]) -> bool:
    """Return True if the program declares one dtype for both."""
    return declared[id(first)] == declared[id(second)]


def _variables(op: Operator, names: list[str]) -> list[Variable]:
    found = [op.block.find_var_recursive(n) for n in names if n != EMPTY_NAME]
    return [v for v in found if v is not None]
