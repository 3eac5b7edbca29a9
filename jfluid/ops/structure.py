"""Operators that the lowering treats by structure: their slots and attributes, without a function."""
from jfluid.ops.registry import REQUIRED, declare

declare("feed", ins=("X",), outs=("Out",), attrs={"col": ("INT", 0)})
declare("fetch", ins=("X",), outs=("Out",), attrs={"col": ("INT", 0)})
declare("conditional_block", ins=("Cond*?", "Input*"), outs=("Out*", "Scope?"),
        attrs={"sub_block": ("BLOCK", REQUIRED), "is_scalar_condition": ("BOOLEAN", False),
               "skip_eager_deletion_vars": ("STRINGS", ())})
