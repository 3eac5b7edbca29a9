"""Declarations of operators that the lowering handles by structure: slots and attributes, no function."""

from jfluid.ops.definition import REQUIRED
from jfluid.ops.registry import declare

declare("feed", ins=("X",), outs=("Out",), attrs={"col": ("INT", 0)}, reaches=None)
declare("fetch", ins=("X",), outs=("Out",), attrs={"col": ("INT", 0)}, reaches=None)
declare(
    "conditional_block",
    reaches=None,
    ins=("Cond*?", "Input*"),
    outs=("Out*", "Scope?"),
    grad=True,
    carries=("Out",),  # variables that the block does not write keep their values and gradients
    attrs={
        "sub_block": ("BLOCK", REQUIRED),
        "is_scalar_condition": ("BOOLEAN", False),
        "skip_eager_deletion_vars": ("STRINGS", ()),
    },
)
declare(  # where no gradient is wanted
    "conditional_block_infer",
    reaches=None,
    ins=("Cond*?", "Input*"),
    outs=("Out*", "Scope?"),
    attrs={
        "sub_block": ("BLOCK", REQUIRED),
        "is_scalar_condition": ("BOOLEAN", REQUIRED),
        "skip_eager_deletion_vars": ("STRINGS", REQUIRED),
    },
)
declare("select_output", ins=("X", "Mask"), outs=("Out*",), grad=True, nograd=("Mask",), reaches=None)
declare("delete_var", ins=("X*",), reaches=None)
declare(
    "run_program",
    reaches=None,
    ins=("X*", "Params*"),
    outs=("Out*", "OutScope?"),
    grad=True,
    attrs={
        "global_block": ("BLOCK", REQUIRED),
        "start_op_index": ("LONG", REQUIRED),
        "end_op_index": ("LONG", REQUIRED),
        "is_test": ("BOOLEAN", False),
    },
)
declare(
    "while",
    reaches=None,
    ins=("X*", "Condition*"),
    outs=("Out*", "StepScopes?"),
    grad=True,
    attrs={
        "sub_block": ("BLOCK", REQUIRED),
        "is_test": ("BOOLEAN", False),
        "skip_eager_deletion_vars": ("STRINGS", ()),
    },
)
declare(
    "recurrent",
    reaches=None,
    ins=("inputs*", "initial_states*", "parameters*"),
    outs=("outputs*", "step_scopes?"),
    grad=True,
    attrs={
        "sub_block": ("BLOCK", REQUIRED),
        "ex_states": ("STRINGS", ()),
        "states": ("STRINGS", ()),
        "has_states": ("BOOLEAN", False),
        "reverse": ("BOOLEAN", False),
        "is_train": ("BOOLEAN", True),
        "skip_eager_deletion_vars": ("STRINGS", ()),
    },
)
