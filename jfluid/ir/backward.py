"""Gradients as operators: `append_backward` and `gradients`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from jfluid import errors
from jfluid.ir import recompute, schema, unique_name
from jfluid.ir.block import Block, reads_of, writes_of
from jfluid.ir.descs import OpDesc
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.types import is_float
from jfluid.ir.variable import EMPTY_NAME, GRAD_SUFFIX, Parameter, Variable, grad_name

__all__ = ["append_backward", "gradients"]

Callback = Callable[..., Any]  # called as callback(block=..., context=...)


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Parameter | str] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
    callbacks: Sequence[Callback] | None = None,
    checkpoints: Sequence[Variable | str] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Append the operators that compute the gradient of `loss`.

    Args:
        loss: a Variable of one element.
        parameter_list: parameters (or their names) to differentiate with respect to; all trainable
            ones when None.
        no_grad_set: variables (or their names) that gradients do not flow through.
        callbacks: called as `callback(block=..., context={gradient name: variable name})` after
            each gradient operator.
        checkpoints: variables to keep; values between two checkpoints are recomputed in the
            backward pass.

    Returns:
        A list of (parameter, gradient) for the parameters that the loss depends on. It is empty
        for a program without trainable parameters, whose fed variables may have gradients.

    Raises ProgramError when the loss has more than one element, or a parameter is unknown.
    """
    if not isinstance(loss, Variable):
        raise TypeError(f"loss: expected a Variable, found {type(loss).__name__}")
    _refuse_eagerly(loss, "append_backward", "loss.backward()")
    size = 1
    for d in loss.shape:
        size *= d
    if size != 1:
        raise errors.ProgramError(
            f"loss {loss.name}: expected one element, found shape {list(loss.shape)}; "
            "reduce it first, for example with layers.mean"
        )
    block = loss.block
    program = block.program
    params = _parameters(program.global_block(), parameter_list)
    if loss.op is not None:
        loss.op.attrs["op_role"] = loss.op.attrs.get("op_role", 0) | OpRole.Loss
    builder = _Builder(block, _stopped(program, no_grad_set), callbacks)
    with program.role_guard(OpRole.Backward):
        seed = builder.new_grad_var(loss)
        op = block.append_op(
            "fill_constant",
            outputs={"Out": seed},
            attrs={"shape": loss.shape or (1,), "value": 1.0, "dtype": int(loss.dtype)},
        )
        op.attrs["op_role"] = OpRole.Backward | OpRole.Loss
        builder.run(_path(block, [loss.name], None), {loss.name: seed}, checkpoints or ())
        result = []
        for param in params:
            grad = builder.finish(param.name)
            if grad is not None:
                result.append((param, block.var_recursive(grad)))
        builder.finish_all()
    _mark_roles(block, result)
    program.verify("append_backward")
    return result


def _refuse_eagerly(variable: Variable, what: str, instead: str) -> None:
    if variable.block.program.eager:
        raise errors.DygraphError(f"{what} appends the gradients of programs: in dygraph mode call {instead}")


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
) -> list[Variable | None]:
    """Append the operators that compute the gradients of `targets` with respect to `inputs`.

    Args:
        targets: variables to differentiate; several are summed.
        inputs: variables to differentiate with respect to.
        target_gradients: for each target its output gradient; ones when None.
        no_grad_set: variables (or their names) that gradients do not flow through.

    Returns:
        The gradient of each input, None where the targets do not depend on it.

    Raises ProgramError when the lists differ in length, or a gradient has a different shape than its
    target.
    """
    targets, inputs = _as_list(targets), _as_list(inputs)
    seeds = _as_list(target_gradients) if target_gradients is not None else [None] * len(targets)
    if len(seeds) != len(targets):
        raise errors.ProgramError(f"gradients: {len(targets)} targets, but {len(seeds)} target_gradients")
    _refuse_eagerly(targets[0], "gradients", "fluid.dygraph.grad(targets, inputs)")
    block = targets[0].block
    program = block.program
    stopped = _stopped(program, no_grad_set) - {v.name for v in inputs}
    builder = _Builder(block, stopped, None)
    with program.role_guard(OpRole.Backward):
        start = {}
        path = _path(block, [t.name for t in targets], [v.name for v in inputs])
        for target, seed in zip(targets, seeds):
            if seed is None:
                grad = builder.new_grad_var(target)
                if -1 in target.shape:
                    block.append_op(
                        "fill_any_like", {"X": target}, {"Out": grad}, {"value": 1.0, "dtype": int(target.dtype)}
                    )
                else:
                    block.append_op(
                        "fill_constant",
                        outputs={"Out": grad},
                        attrs={"shape": target.shape or (1,), "value": 1.0, "dtype": int(target.dtype)},
                    )
                start[target.name] = grad
            elif tuple(seed.shape) != tuple(target.shape):
                raise errors.ProgramError(
                    f"gradients: the gradient of {target.name} has shape {list(seed.shape)}, "
                    f"expected {list(target.shape)}"
                )
            else:
                start[target.name] = seed.name
        builder.keep = {v.name for v in inputs}
        builder.run(path, start)
        found = [builder.finish(v.name) for v in inputs]
    return [None if n is None else block.var_recursive(n) for n in found]


calc_gradient = gradients


def get_grad_op_desc(
    op_desc: OpDesc, no_grad_set: Iterable[str], grad_sub_block_list: Sequence[Any] = ()
) -> tuple[list[OpDesc], dict[str, str]]:
    """Describe the operator that computes an operator's gradient, without appending it.

    Args:
        op_desc: `Operator.desc` of the forward operator.
        no_grad_set: names of gradients that are not wanted.
        grad_sub_block_list: must be empty: the gradient of an operator with blocks inside needs no
            blocks here.

    Returns:
        A list with the description, empty where the operator has no gradient; and the variable of
        each gradient, by the gradient's name.
    """
    if grad_sub_block_list:
        raise errors.UnsupportedError(
            "get_grad_op_desc: grad_sub_block_list must be empty; append_backward makes the gradients of operators "
            "with blocks inside"
        )
    op = Operator(op_desc.block(), op_desc.type(), op_desc.inputs(), op_desc.outputs(), callsite=False)
    op.claimed = op_desc._op.claimed
    slots = schema.current().gradient_inputs(op)
    if slots is None:
        return [], {}
    unwanted = set(no_grad_set)
    known_in, known_out = schema.current().grad_slots(op)
    given = op.inputs | op.outputs
    inputs = {s: names for s, names in given.items() if s in known_in} | {
        s + GRAD_SUFFIX: [grad_name(n) for n in names] for s, names in op.outputs.items() if s + GRAD_SUFFIX in known_in
    }
    outputs = {
        s + GRAD_SUFFIX: [EMPTY_NAME if grad_name(n) in unwanted else grad_name(n) for n in given[s]]
        for s in slots
        if s in given and s + GRAD_SUFFIX in known_out
    }
    attrs = {n: op_desc.attr(n) for n in op_desc.attr_names() if op_desc.has_attr(n)}
    grad_op = Operator(op.block, op.type + "_grad", inputs, outputs, attrs, callsite=False)
    grad_op.claimed = op.claimed
    of = {grad_name(n): n for names in given.values() for n in names}
    named = set(grad_op.input_arg_names + grad_op.output_arg_names)
    return [OpDesc(grad_op)], {g: n for g, n in of.items() if g in named}


def _append_grad_suffix_(name: str) -> str:
    """Return the usual name of a variable's gradient, under the name that Fluid's optimizers call."""
    return grad_name(name)


class _Builder:
    """Builder of gradient operators, from the last forward operator to the first.

    `pending` has, for each variable, the names that its gradient has been written to so far; when
    an operator needs the gradient, several of them are summed.
    """

    def __init__(self, block: Block, stopped: set[str], callbacks: Sequence[Callback] | None):
        self.block = block
        self.stopped = stopped
        self.callbacks = callbacks or ()
        self.pending: dict[str, list[str]] = {}
        self.first_writer: dict[str, int] = {}
        self.grad_to_var: dict[str, str] = {}
        self.canonical: dict[str, str] = {}
        self.keep: set[str] = set()
        self.done: dict[str, str | None] = {}

    def new_grad_var(self, var: Variable) -> str:
        """Declare the gradient of `var`, with a unique name if an earlier backward pass took the usual name."""
        name = grad_name(var.name)
        if self.block.has_var(name):
            name = unique_name.generate(name)
        self.canonical[var.name] = name
        self.declare(name, var)
        return name

    def declare(self, name: str, var: Variable) -> None:
        grad = self.block.create_var(
            name=name, shape=var._shape, dtype=var.dtype, type=var.type, lod_level=var.lod_level
        )
        grad.stop_gradient = False
        self.grad_to_var[name] = var.name

    def run(self, path: list[Operator], start: dict[str, str], checkpoints: Sequence[Variable | str] = ()) -> None:
        """Append the gradient operators of `path`, given the gradients of the targets."""
        for name, grad in start.items():
            self.pending.setdefault(name, []).append(grad)
            self.canonical.setdefault(name, grad)
        parts = recompute.segments(self.block, path, checkpoints) if checkpoints else []
        for op in reversed(path[sum(len(p.ops) for p in parts) :]):
            self.step(op, {})
        for part in reversed(parts):
            recompute.replay(self.block, part, self.finish)
            for op in reversed(part.ops):
                self.step(op, part.renamed)

    def step(self, op: Operator, renamed: dict[str, str]) -> None:
        """Append the gradient operator of `op`; `renamed` maps its variables to recomputed ones."""
        slots = schema.current().gradient_inputs(op)
        if slots is None:
            self.forget(op)
            return
        read = {s: names for s in slots if (names := op.inputs.get(s, op.outputs.get(s)))}
        # A variable that is both an input and the former value of an output counts once.
        inner = {n for s, names in read.items() if s in op.inputs for n in names}
        wanted = {s: [self.wants(n) and (s in op.inputs or n not in inner) for n in names] for s, names in read.items()}
        known_in, known_out = schema.current().grad_slots(op)
        trained = {s: op.inputs[s] for s in known_out & op.inputs.keys()}  # by the gradient itself
        trains = trained and not all(n in self.stopped for names in read.values() for n in names)
        if not any(any(w) for w in wanted.values()) and not trains:
            self.forget(op)
            return
        grads_out = {
            s: [self.finish(n) if self.floating(n) else None for n in names] for s, names in op.outputs.items()
        }
        self.forget(op)
        if not any(g for names in grads_out.values() for g in names):
            return
        inputs = {
            s: [renamed.get(n, n) for n in names] for s, names in (op.inputs | op.outputs).items() if s in known_in
        }
        inputs |= {
            s + GRAD_SUFFIX: [g or EMPTY_NAME for g in names]
            for s, names in grads_out.items()
            if any(names) and s + GRAD_SUFFIX in known_in
        }
        outputs = dict(trained)
        for s, flags in wanted.items():
            if any(flags) and s + GRAD_SUFFIX in known_out:
                outputs[s + GRAD_SUFFIX] = [self.add(n) if w else EMPTY_NAME for n, w in zip(read[s], flags)]
        self.rename_first(read, outputs)
        grad_op = Operator(
            self.block,
            op.type + "_grad",
            inputs,
            outputs,
            {k: v for k, v in op.attrs.items() if k not in ("op_role", "op_role_var") and not isinstance(v, Block)},
            callsite=False,
        )
        grad_op.claimed = op.claimed
        self.block.program._stamp(grad_op)
        self.block.adopt_op(grad_op)
        schema.current().set_types(grad_op)
        for name in grad_op.output_arg_names:
            if name != EMPTY_NAME:
                self.block.var_recursive(name).op = grad_op
        for callback in self.callbacks:
            callback(block=self.block, context=self.grad_to_var)

    def rename_first(self, read: dict[str, list[str]], outputs: dict[str, list[str]]) -> None:
        """Rename the first contribution to a gradient for an operator that reads a variable twice.

        The renaming takes place at the second contribution.
        """
        for slot, names in read.items():
            given = outputs.get(slot + GRAD_SUFFIX, [])
            for i, (name, grad) in enumerate(zip(names, given)):
                pending = self.pending.get(name, [])
                here = self.first_writer.get(name) == len(self.block.ops)
                if here and len(pending) > 1 and grad == self.canonical[name]:
                    given[i] = pending[0]

    def floating(self, name: str) -> bool:
        var = self.block.find_var_recursive(name)
        return var is not None and is_float(var.dtype)

    def wants(self, name: str) -> bool:
        return name not in self.stopped and name != EMPTY_NAME and self.floating(name)

    def add(self, name: str) -> str:
        """Return a name for one more contribution to the gradient of `name`."""
        var = self.block.var_recursive(name)
        names = self.pending.setdefault(name, [])
        if not names:
            grad = self.canonical.get(name) or self.new_grad_var(var)
            self.first_writer[name] = len(self.block.ops)
            names.append(grad)
            return grad
        base = self.canonical[name]
        if names == [base]:
            first = f"{base}@RENAME@block{self.block.idx}@0"
            self.declare(first, var)
            self.block.var(first).type = self.block.var(base).type
            start = self.first_writer.get(name, len(self.block.ops))
            for i, op in enumerate(self.block.ops[start:]):
                # what the first writer reads under this name is the gradient of a later value of
                # the variable
                if i:
                    op.rename_input(base, first)
                op.rename_output(base, first)
            names[0] = first
        names.append(f"{base}@RENAME@block{self.block.idx}@{len(names)}")
        self.declare(names[-1], var)
        return names[-1]

    def finish(self, name: str) -> str | None:
        """Return the name of the whole gradient of `name` so far, after summing; None when there is none."""
        if name in self.done:
            return self.done[name]
        names = self.pending.get(name)
        if not names:
            return None
        if len(names) > 1:
            base = self.canonical[name]
            self.block.append_op("sum", {"X": names}, {"Out": base})
            self.pending[name] = [base]
        return self.pending[name][0]

    def finish_all(self) -> None:
        """Sum the contributions to gradients that no operator reads, such as gradients of fed variables."""
        for name, grads in list(self.pending.items()):
            if len(grads) > 1:
                self.finish(name)

    def forget(self, op: Operator) -> None:
        """Reset the gradients of variables that `op` writes: before it, these variables had different values."""
        for name in op.output_arg_names:
            grads = self.pending.pop(name, None)
            if name in self.keep and grads and name not in self.done:
                self.done[name] = grads[0]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _parameters(block: Block, parameter_list: Sequence[Parameter | str] | None) -> list[Parameter]:
    if parameter_list is None:
        return [p for p in block.program.all_parameters() if p.trainable]
    found = []
    for p in parameter_list:
        name = p if isinstance(p, str) else p.name
        var = block.find_var_recursive(name)
        if var is None:
            raise errors.ProgramError(f"append_backward: no parameter {name}" + errors.close_to(name, block.vars))
        found.append(cast(Parameter, var))  # or any other variable whose gradient is wanted
    return found


def _stopped(program: Any, no_grad_set: Iterable[Variable | str] | None) -> set[str]:
    names = {v.name for v in program.list_vars() if v.stop_gradient}
    names |= {p.name for p in program.all_parameters() if not p.trainable}
    for v in no_grad_set or ():
        if not isinstance(v, (str, Variable)):
            raise TypeError(f"no_grad_set: expected Variables or names, found {type(v).__name__}")
        names.add((v if isinstance(v, str) else v.name).removesuffix(GRAD_SUFFIX))
    return names


def _path(block: Block, targets: list[str], inputs: list[str] | None) -> list[Operator]:
    """Return the operators between `inputs` (when None, everything) and `targets`, in order."""
    reached: set[int] | None = None
    if inputs is not None:
        names, reached = set(inputs), set()
        for i, op in enumerate(block.ops):
            if reads_of(op) & names:
                reached.add(i)
                names |= writes_of(op)
    needed, path = set(targets), []
    for i in range(len(block.ops) - 1, -1, -1):
        op = block.ops[i]
        if op.attrs.get("op_role", 0) & OpRole.Optimize:
            # an update made for an earlier loss: the gradient is taken at the updated parameter
            continue
        if writes_of(op) & needed:
            needed |= reads_of(op)
            if reached is None or i in reached:
                path.append(op)
    return path[::-1]


def _mark_roles(block: Block, params_grads: list[tuple[Parameter, Variable]]) -> None:
    """Mark the operator that finishes each gradient with its parameter, as transpilers expect."""
    for param, grad in params_grads:
        for op in reversed(block.ops):
            if grad.name in op.output_arg_names:
                op.attrs["op_role_var"] = tuple(op.attrs.get("op_role_var", ())) + (param.name, grad.name)
                break
    block.program._touch()
