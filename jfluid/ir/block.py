"""Blocks: lists of operators and the variables that the operators name."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from jfluid import errors
from jfluid.ir import codec, schema, unique_name
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.descs import BlockDesc
from jfluid.ir.operator import Operator
from jfluid.ir.variable import EMPTY_NAME, Parameter, Variable

if TYPE_CHECKING:
    from jfluid.ir.program import Program


class Block:
    """List of operators and their variables; a name that is not declared here is looked up in the parent."""

    def __init__(self, program: "Program", idx: int, parent_idx: int = -1, forward_block_idx: int = -1):
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.forward_block_idx = forward_block_idx
        self.vars: dict[str, Variable] = {}
        self.ops: list[Operator] = []

    @property
    def desc(self) -> BlockDesc:
        """The block as Fluid describes it: `block.desc.op_size()`."""
        return BlockDesc(self)

    @property
    def parent(self) -> "Block | None":
        return self.program.blocks[self.parent_idx] if self.parent_idx >= 0 else None

    # Variables
    def var(self, name: str) -> Variable:
        """Return the variable `name` of this block, or raise ValueError."""
        if not isinstance(name, str):
            raise TypeError(f"the name of a variable is a string, found {type(name).__name__}")
        if name not in self.vars:
            raise errors.ProgramError(f"block {self.idx} has no variable {name}" + errors.close_to(name, self.vars))
        return self.vars[name]

    def has_var(self, name: str) -> bool:
        return name in self.vars

    def find_var_recursive(self, name: str) -> Variable | None:
        """Return the variable `name` of this block or of the nearest enclosing one; None when there is none."""
        block: Block | None = self
        while block is not None:
            if name in block.vars:
                return block.vars[name]
            block = block.parent
        return None

    def var_recursive(self, name: str) -> Variable:
        """Return the variable `name` of this block or an enclosing block, or raise ProgramError."""
        found = self.find_var_recursive(name)
        if found is None:
            raise errors.ProgramError(f"neither block {self.idx} nor an enclosing one has a variable {name}")
        return found

    _find_var_recursive, _var_recursive = find_var_recursive, var_recursive

    def create_var(self, *args: Any, **kwargs: Any) -> Variable:
        """Declare a variable, or return the existing variable of that name; for the arguments see Variable."""
        if kwargs.get("name") in self.vars:
            return self.vars[kwargs["name"]]
        var = Variable(self, *args, **kwargs)
        self.vars[var.name] = var
        self.program._touch()
        return var

    def temporary(self, prefix: str) -> Variable:
        """Declare a variable; the operator that writes it will set its shape and dtype.

        Its name begins with a prefix.
        """
        return self.create_var(name=unique_name.generate(f"{prefix}.tmp"))

    def append_new(
        self, type: str, inputs: Mapping[str, Any], outs: tuple[str, ...], attrs: Mapping[str, Any] | None, prefix: str
    ) -> tuple[Variable, ...]:
        """Append an operator that writes a new variable in each slot of `outs`, and return these variables.

        See `append_op` and `temporary`.
        """
        made = {slot: self.temporary(prefix) for slot in outs}
        self.append_op(type, inputs, made, attrs)
        return tuple(made.values())

    def create_parameter(self, *args: Any, **kwargs: Any) -> Parameter:
        """Declare a Parameter in the global block and apply its `initializer`; for the arguments see Parameter."""
        block = self.program.global_block()
        initializer = kwargs.pop("initializer", None)
        param = Parameter(block, *args, **kwargs)
        known = block.vars.get(param.name)
        if known is not None:
            if known.shape != param.shape or known.dtype != param.dtype:
                raise errors.ProgramError(
                    f"parameter {param.name} exists with shape {list(known.shape)} and dtype {known.dtype.name}; "
                    f"it cannot be shared with shape {list(param.shape)} and dtype {param.dtype.name}"
                )
            if initializer is not None and any(param.name in op.output_arg_names for op in block.ops):
                # a plain variable in a startup program that was read from a file
                return cast(Parameter, known)
        block.vars[param.name] = param
        if initializer is not None:
            initializer(param, block)
        self.program._touch()
        return param

    def all_parameters(self) -> list[Parameter]:
        return list(self.iter_parameters())

    def iter_parameters(self) -> Iterator[Parameter]:
        return (v for v in self.vars.values() if isinstance(v, Parameter))

    def rename_var(self, name: str, new_name: str) -> Variable:
        """Rename a variable and every use of it in this block."""
        var = self.var(name)
        del self.vars[name]
        var.name = new_name
        self.vars[new_name] = var
        for op in self.ops:
            op.rename_input(name, new_name)
            op.rename_output(name, new_name)
        return var

    _rename_var = rename_var

    def remove_var(self, name: str) -> None:
        del self.vars[name]
        self.program._touch()

    _remove_var = remove_var

    # Operators
    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        """Append an operator, and infer the output shapes and dtypes.

        Args:
            type: the operator's type.
            inputs: for each slot a Variable or name, or a list of these.
            outputs: for each slot a Variable or name, or a list of these.
            attrs: attributes; missing attributes have their defaults.
            stop_gradient: True if no gradient flows to the outputs.

        Raises:
            UnsupportedOpError: there is no operator of that type.
            ProgramError: a slot or an attribute is unknown, missing or of a wrong type, or a
                variable is not declared.
            ShapeError: the shapes of the inputs do not match.
        """
        return self.insert_op(len(self.ops), type, inputs, outputs, attrs, stop_gradient)

    def prepend_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Insert an operator at the front of the block; for arguments and errors see `append_op`."""
        return self.insert_op(0, type, inputs, outputs, attrs)

    def insert_op(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        """Put an operator before the one at `index`.

        For the other arguments and errors see `append_op`.
        """
        op = Operator(self, type, inputs, outputs, attrs)
        self.program._stamp(op)
        schema.current().check(op)
        for name in op.input_arg_names:
            if name != EMPTY_NAME and self.find_var_recursive(name) is None:
                raise errors.ProgramError(f"operator {type} reads {name}, which no block declares\n  {op.callsite}")
        for name in op.output_arg_names:
            if name != EMPTY_NAME and self.find_var_recursive(name) is None:
                self.create_var(name=name)
        schema.current().infer(op)
        for name in op.output_arg_names:
            if name != EMPTY_NAME:
                var = self.var_recursive(name)
                var.op = op
                if stop_gradient:
                    var.stop_gradient = True
        self.program.streams.add(op)
        self.ops.insert(index, op)
        self.program._touch()
        return op

    def adopt_op(self, op: Operator) -> Operator:
        """Append an operator of a file or a second program, unchanged and unchecked."""
        op.block = self
        self.ops.append(op)
        self.program._touch()
        return op

    def remove_op(self, index: int) -> None:
        del self.ops[index]
        self.program._touch()

    def remove_ops(self, start: int, end: int) -> None:
        """Remove the operators from `start` up to `end`, without `end`."""
        del self.ops[start:end]
        self.program._touch()

    _prepend_op, _remove_op = prepend_op, remove_op

    def _insert_op(self, index: int, *args: Any, **kwargs: Any) -> Operator:
        return self.insert_op(index, *args, **kwargs)

    def clone_variable(self, var: Variable, force_persistable: bool = True) -> Variable:
        """Declare a copy of `var` in this block; it is persistable unless `force_persistable` is False."""
        twin = self.create_var(
            name=var.name,
            shape=var._shape,
            dtype=var._dtype,
            type=var.type,
            lod_level=var.lod_level,
            persistable=True if force_persistable else var.persistable,
            is_data=var.is_data,
            need_check_feed=var.need_check_feed,
        )
        return twin

    _clone_variable = clone_variable

    def _sync_with_cpp(self) -> None:
        """No effect: `block.desc` describes this block itself, so both always agree."""

    def to_string(self, throw_on_error: bool, with_details: bool = False) -> str:
        """Return the block in Fluid's text format of program files.

        `with_details` adds attributes of variables that files do not store.
        """
        message = codec.text_of(self.to_message(), throw_on_error, with_details)
        if not with_details:
            return message
        parts = [("vars", v.to_string(throw_on_error, True)) for v in self.vars.values()]
        parts += [("ops", op.to_string(throw_on_error)) for op in self.ops]
        body = "".join(f"  {name} {{\n{textwrap.indent(text, '    ')}  }}\n" for name, text in parts)
        return f"blocks {{\n  idx: {self.idx}\n  parent_idx: {self.parent_idx}\n{body}}}"

    def to_message(self) -> pb.BlockDesc:
        """Return the block in Fluid's format of program files.

        Raises AttributeTypeError for an attribute that the format cannot express.
        """
        return codec.block_message(
            self.idx,
            codec.BlockRecord(self.parent_idx, self.forward_block_idx),
            [v.to_message() for v in self.vars.values()],
            [op.to_message() for op in self.ops],
        )

    def __str__(self) -> str:
        return self.to_string(False)

    def __repr__(self) -> str:
        return f"<Block {self.idx}: {len(self.ops)} operators, {len(self.vars)} variables>"

    # Checks and cuts
    def verify(self, what: str) -> None:
        """Check the operators of this block, and their variables; see `Program.verify`."""
        if self.idx and not 0 <= self.parent_idx < self.idx:
            raise errors.ProgramError(f"{what}: block {self.idx} has no parent block {self.parent_idx}")
        for i, op in enumerate(self.ops):
            try:
                schema.current().check(op)
                for name in op.input_arg_names + op.output_arg_names:
                    if name != EMPTY_NAME and self.find_var_recursive(name) is None:
                        raise errors.ProgramError(f"it names {name}, which no block declares")
            except errors.ProgramError as e:
                raise errors.ProgramError(f"{self._where(what, op, i)}: {e}") from e

    def verify_order(self, what: str) -> None:
        """Check that writes of variables precede reads.

        Persistable and fed variables, and variables that the block does not write, are exempt.
        """
        last_write = {name: i for i, op in enumerate(self.ops) for name in op.output_arg_names}
        written: set[str] = set()
        for i, op in enumerate(self.ops):
            for name in op.input_arg_names:
                if name not in written and last_write.get(name, -1) > i:
                    var = self.find_var_recursive(name)
                    if var is not None and not var.persistable and not var.is_data:
                        raise errors.ProgramError(
                            f"{self._where(what, op, i)} reads {name} before an operator writes it"
                        )
            written.update(op.output_arg_names)

    def _where(self, what: str, op: Operator, position: int) -> str:
        return f"{what}: operator {op.type} (block {self.idx}, position {position}, {op.callsite or 'no source line'})"

    def needed(self, targets: Iterable[Variable | str | Operator], feeds: set[str]) -> tuple[list[int], set[str]]:
        """Return (indices of operators that compute the targets from the feeds, names of target variables).

        Raises ProgramError for a target that the block does not contain.
        """
        wanted: set[str] = set()
        wanted_ops: set[int] = set()
        for target in targets:
            if isinstance(target, Operator):
                wanted_ops.add(target.idx)
                continue
            name = target.name if isinstance(target, Variable) else target
            if self.find_var_recursive(name) is None:
                raise errors.ProgramError(
                    f"prune: the program has no variable {name}" + errors.close_to(name, self.vars)
                )
            wanted.add(name)
        keep: list[int] = []
        reads = wanted - feeds
        for i in range(len(self.ops) - 1, -1, -1):
            if i in wanted_ops or writes_of(self.ops[i]) & reads:
                keep.append(i)
                reads |= reads_of(self.ops[i]) - feeds
        return keep[::-1], wanted


Outer = tuple[set[str], set[str]]


def outer_names(block: Block, known: dict[Block, Outer] | None = None) -> Outer:
    """Return the names of outer variables that a block and its nested blocks read, and write.

    Args:
        block: the block.
        known: results for other blocks; each block is analysed once.
    """
    known = {} if known is None else known
    if block in known:
        return known[block]
    known[block] = set(), set()  # for one that lies in itself, which `nesting.check` refuses
    reads: set[str] = set()
    writes: set[str] = set()
    for op in block.ops:
        inner = [outer_names(b, known) for b in op.sub_blocks()]
        reads.update(op.input_arg_names, kept(op, known), *(r for r, _ in inner))
        writes.update(op.output_arg_names, *(w for _, w in inner))
    own = {EMPTY_NAME, *block.vars}
    known[block] = reads - own, writes - own
    return known[block]


def kept(op: Operator, known: dict[Block, Outer] | None = None) -> set[str]:
    """Return the names that the operator's blocks write and that keep their values if no block runs.

    These are persistable variables, and for a condition inside a block the outer variables.
    """
    blocks = op.sub_blocks()
    if not blocks:
        return set()
    found = [op.block.find_var_recursive(n) for b in blocks for n in outer_names(b, known)[1]]
    condition = op.type.startswith("conditional_block")
    return {v.name for v in found if v is not None and (v.persistable or (condition and v.block is not op.block))}


def reads_of(op: Operator) -> set[str]:
    """Return the names that the operator and its blocks read, including conditional writes."""
    known: dict[Block, Outer] = {}
    inner = (outer_names(b, known)[0] for b in op.sub_blocks())
    return set(op.input_arg_names).union(kept(op, known), *inner) - {EMPTY_NAME}


def writes_of(op: Operator) -> set[str]:
    """Return the names that the operator and its blocks write."""
    return set(op.output_arg_names).union(*(outer_names(b)[1] for b in op.sub_blocks())) - {EMPTY_NAME}
