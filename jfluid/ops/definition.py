"""The definition of one operator: its slots, its attributes, its function."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from jfluid.ir.codec import COMMON_ATTRS
from jfluid.ir.reach import Reach
from jfluid.ir.types import VarType

# Attributes that every operator may have. They choose a kernel of Fluid; XLA chooses kernels itself. The attributes
# stay in the program, so that a program is saved as it was read.
HINT_ATTRS = {
    "use_cudnn": "BOOLEAN",
    "use_mkldnn": "BOOLEAN",
    "use_quantizer": "BOOLEAN",
    "is_ref_by_other": "BOOLEAN",
    "mkldnn_data_type": "STRING",
    "workspace_size_MB": "INT",
    "exhaustive_search": "BOOLEAN",
    "use_addto": "BOOLEAN",
    "force_fp32_output": "BOOLEAN",
    "x_data_format": "STRING",
    "y_data_format": "STRING",
    "cudnn_deterministic": "BOOLEAN",
    "min_row_size_to_use_multithread": "LONG",
    "force_cpu": "BOOLEAN",
    "fuse_with_relu_grad": "BOOLEAN",
    # Set on every operator by `Program.clone(for_test=True)`. Operators that behave differently in test form declare
    # the attribute.
    "is_test": "BOOLEAN",
    # Notes of passes of `fluid.contrib.slim.quantization`, for later passes and for inference engines.
    "quantization_type": "STRING",
    "skip_quant": "BOOLEAN",
    "activation_bits": "INT",
    "out_threshold": "FLOAT",
    # Quantization scales and the parameters of fusions: read only by kernels that the next table
    # refuses.
    "Scale_in": "FLOAT",
    "Scale_in_eltwise": "FLOAT",
    "Scale_x": "FLOAT",
    "Scale_y": "FLOAT",
    "Scale_out": "FLOAT",
    "Scale_weights": "FLOATS",
    "scale_x": "FLOAT",
    "scale_y": "FLOATS",
    "scale_out": "FLOAT",
    "fuse_alpha": "FLOAT",
    "fuse_beta": "FLOAT",
    "fuse_brelu_threshold": "FLOAT",
}
# A fused kernel of a rewritten inference program computes more than its operator: only "off" is
# accepted.
FUSED_ATTRS: dict[str, tuple[str, Any]] = {
    "fuse_with_relu": ("BOOLEAN", False),
    "fuse_relu": ("BOOLEAN", False),
    "fuse_brelu": ("BOOLEAN", False),
    "fuse_relu_before_depthwise_conv": ("BOOLEAN", False),
    "fuse_residual_connection": ("BOOLEAN", False),
    "fuse_activation": ("STRING", ""),
    "Fused_Act": ("STRING", ""),
}
REQUIRED = inspect.Parameter.empty
# Attributes and inputs by slot -> "map", "mask", "sequence" or None.
RowRule = Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]


@dataclass(frozen=True)
class Slot:
    """Declaration of an input or output slot of an operator."""

    name: str
    many: bool = False
    optional: bool = False
    intermediate: bool = False

    @classmethod
    def parse(cls, spec: str) -> "Slot":
        name = spec.rstrip("*?~")
        marks = spec[len(name) :]
        return cls(name, "*" in marks, "?" in marks, "~" in marks)


@dataclass(frozen=True)
class Attr:
    """Declaration of an attribute: its Fluid type name and its default, or `REQUIRED`."""

    name: str
    kind: str
    default: Any


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of an operator's definition.

    Attributes:
        grad: True if `append_backward` goes through the operator.
        nograd: input slots that never get a gradient.
        unsaved: output slots that are not inputs of the gradient operator (Fluid's kernels would change
            their behaviour).
        inplace: output slot -> input slot of the same shape and dtype, usually the same variable.
        rng: True if the function takes `key`, a JAX random key that differs by step and operator.
        draws: distribution in `jfluid.ops.batched_random` for an operator that draws random numbers.
            Without inputs, the operator gets the numbers as a `Drawn` in place of its key.
        fold: True if the operator is evaluated while tracing when all inputs are known (shapes computed by
            operators).
        host: True if the operator runs between XLA segments, on NumPy arrays. A function with a
            keyword-only `ctx` gets an object with the operator (`.op`), the Scope (`.scope`) and the
            Executor's place (`.place`).
        rows: why padding rows are harmless: "map", "mask", "sequence", a function, or None (see
            `jfluid.ops.ragged_dispatch`). Operators with `examples` are "map" by default.
        row_outs: output slots of a "mask" operator that have the rows of its inputs.
        counts: True if a "sequence" operator takes a padded number of sequences, and dense inputs with as many rows.
        sparse: True if the operator takes `SelectedRows` where gradients may be sparse; without it
            `SelectedRows` are refused.
        carries: output slots that the function also gets as inputs, after the declared inputs (a tensor
            array that is written).
        host_when: function of an operator: True if this operator runs on the host although its type
            usually does not.
        types: function of an operator that returns the kinds (`VarType`) of outputs other than dense
            tensors, by slot.
        collective: True if the operator computes with the values of all replicas. Processes that train
            together run it as one.
        sums: output slots that hold the sum over replicas already, although they are gradients.
        fused: type of an operator that does the work of several operators of this type, each of which
            overwrites its input.
        convolves: True if the operator computes with windows of images: a step on CPUs then holds images
            with channels last (see `jfluid.compile.rewrites.image_layout`).
        entire: True if the operator is an update whose result depends on the whole tensor (a norm of
            it), so that parts of the tensor cannot be updated separately.
        examples: input slots with independent examples along the first dimension; all examples share
            the remaining inputs. Outputs have the examples along the first dimension, too. Outputs of a
            gradient operator may be sums over examples. Replicas then run the operator once. Or a
            function `(attributes, inputs by slot) -> bool`, where inputs are `Ragged` if replicas have
            rows of their own.
        declared_wrong: input slots with values of shapes that differ from the declarations of Fluid's layers.
        refuses: rules (`jfluid.ops.refusals.RefusalRule`) of input values that are refused before a step runs.
        reaches: effects of the operator outside of its computation, or None. Loaded programs with such
            operators are refused. A host operator, and an operator without a function, must declare it.
        absent: why this release cannot run the operator; it stands in programs that are made, printed and
            saved.
    """

    grad: bool = True
    nograd: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()
    inplace: Mapping[str, str] = field(default_factory=dict)
    rng: bool = False
    draws: str = ""
    fold: bool = False
    host: bool = False
    rows: str | RowRule | None = None
    row_outs: tuple[str, ...] = ()
    counts: bool = False
    sparse: bool = False
    carries: tuple[str, ...] = ()
    host_when: Callable[[Any], bool] | None = None
    types: Callable[[Any], Mapping[str, VarType]] | None = None
    collective: bool = False
    sums: tuple[str, ...] = ()
    fused: str = ""
    convolves: bool = False
    entire: bool = False
    examples: tuple[str, ...] | Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = ()
    declared_wrong: tuple[str, ...] = ()
    refuses: tuple[Any, ...] = ()
    reaches: Reach | None = None
    absent: str = ""

    def options(self) -> dict[str, Any]:
        """Return the options by name."""
        return {f.name: getattr(self, f.name) for f in fields(Options)}


@dataclass(frozen=True, kw_only=True)
class Declaration(Options):
    """Arguments of `registry.op`: the options, and the slots in order, as text (see `Slot.parse`)."""

    ins: tuple[str, ...] = ()
    outs: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpDef(Options):
    """Definition of an operator. It is the only place of facts about an operator.

    Attributes:
        fn: the pure function; None for an operator that the lowering treats by its structure (feed,
            fetch, blocks).
        forward: for a gradient that is derived by `jax.vjp`, the operator that it belongs to.
        wants_ctx, wants_rows: whether the function has a parameter `ctx`, or `rows`.
        wants_replicas: True if the function has a parameter `replicas`: the number of replicas with rows in
            X, in order. Each replica has separate values in the slots of `inplace`, [replicas, ...],
            and in the outputs that are not in `row_outs`.
        wants_shared: True if the function has a parameter `shared`: True if the outputs are the same variables
            as the inputs that `inplace` names.
    """

    type: str
    fn: Callable[..., Any] | None
    ins: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    forward: "OpDef | None" = None
    wants_ctx: bool = False
    wants_rows: bool = False
    wants_replicas: bool = False
    wants_shared: bool = False

    def is_shared(self, op: Any) -> bool:
        """Return True if all outputs of operator `op` are the inputs that `inplace` names."""
        return all(op.output(o) == op.input(i) for o, i in self.inplace.items())

    @property
    def function(self) -> Callable[..., Any]:
        """The function. Raises TypeError for an operator that has none."""
        if self.fn is None:
            raise TypeError(f"operator {self.type} has no function: the lowering treats it by structure")
        return self.fn

    def on_host(self, op: Any) -> bool:
        """Return True if operator `op`, of this definition, runs on the host."""
        return self.host or (self.host_when is not None and self.host_when(op))

    @property
    def reads(self) -> tuple[Slot, ...]:
        """The slots of the function's positional parameters."""
        return self.ins + tuple(Slot(c, optional=True) for c in self.carries)

    def attr_kind(self, name: str) -> str | None:
        """Return the Fluid type of attribute `name`; None when the operator has no such attribute."""
        if name in self.attrs:
            return self.attrs[name].kind
        return COMMON_ATTRS.get(name) or HINT_ATTRS.get(name) or FUSED_ATTRS.get(name, (None,))[0]
