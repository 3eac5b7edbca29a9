"""Programs: blocks of operators, and the two programs that layers append to by default."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jfluid import errors
from jfluid.ir import codec, nesting, reach, schema
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.block import Block
from jfluid.ir.descs import ProgramDesc
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.pipeline import PipelineOptions
from jfluid.ir.streams import Streams
from jfluid.ir.svg import MOST_DRAWN, block_to_svg
from jfluid.ir.variable import EMPTY_NAME, Parameter, Variable, grad_name

# Attributes that say where an operator came from, and change nothing. (Roles do: data parallelism
# goes by them.)
_DESCRIPTIVE = frozenset({"op_callstack", "op_namescope", "op_device"})

_RELEASE = 1_008_005  # version in programs made here: Fluid 1.8.5


class Program:
    """Fluid program: blocks of operators; block 0 is the global block.

    Attributes:
        eager: True if its operators run as they are appended, as in dygraph mode.
        turned: True if it is the result of converting a function of dygraph mode.
        records: True if gradients can flow through operators that are appended: in dygraph mode not
            within `no_grad`, nor after `Layer.eval`.
    """

    eager = False
    turned = False
    records = True

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block(self, 0)]
        self.current_block_idx = 0
        self._seed = _default_seed
        self._streams: Streams | None = Streams()  # None: not counted yet, of a loaded program
        self._version = 0
        self._fingerprint: tuple[int, str] | None = None
        self._harmless = -1  # the version in which no operator was refused
        self.op_role = OpRole.Forward
        self.op_role_var: list[str] = []
        self.name_scopes = _NameScopes()
        self.device = ""
        self.release: int | None = _RELEASE  # the Fluid release that the program's file names
        # of the processes that train together, if DistributeTranspiler said so
        self._trainers_endpoints: list[str] = []
        self._pipeline_opt: PipelineOptions | None = None
        # of a program that DistributeTranspiler made: how it was divided between processes
        self.division: Any = None
        self.op_compatibility = b""  # the file's versions of operators, kept as read

    # Structure
    def global_block(self) -> Block:
        """Return block 0."""
        return self.blocks[0]

    def block(self, index: int) -> Block:
        """Return the block at `index`. Raises ProgramError when there is none."""
        if not -len(self.blocks) <= index < len(self.blocks):
            raise errors.ProgramError(f"the program has {len(self.blocks)} blocks, none at {index}")
        return self.blocks[index]

    def current_block(self) -> Block:
        """Return the block that layers append to."""
        return self.blocks[self.current_block_idx]

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def create_block(self, parent_idx: int | None = None) -> Block:
        """Add a block inside the current block (or inside `parent_idx`) and make it current."""
        parent = self.current_block_idx if parent_idx is None else parent_idx
        block = Block(self, len(self.blocks), parent)
        nesting.check_depth(block)
        self.blocks.append(block)
        self.current_block_idx = block.idx
        self._touch()
        return block

    def rollback(self) -> None:
        """Return to the enclosing block."""
        self.current_block_idx = self.current_block().parent_idx

    _create_block, _rollback = create_block, rollback

    def list_vars(self) -> Iterator[Variable]:
        """Yield all variables of all blocks."""
        return (v for b in self.blocks for v in list(b.vars.values()))

    def all_parameters(self) -> list[Parameter]:
        """Return the parameters of the global block."""
        return [p for b in self.blocks for p in b.all_parameters()]

    # Randomness
    @property
    def random_seed(self) -> int:
        """Seed of all random operators without a seed attribute; 0 draws a fresh seed for each Executor.

        It takes effect with the next run. A `clone` keeps the seed of the time of cloning.
        """
        return self._seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise errors.ProgramError(f"random_seed: expected an integer, found {seed!r}")
        self._seed = seed

    @property
    def streams(self) -> Streams:
        """Numbers of the random operators' streams; of a loaded program, counted from its operators."""
        if self._streams is None:
            self._streams = Streams(op for b in self.blocks for op in b.ops)
        return self._streams

    def global_seed(self, seed: int = 0) -> None:
        """Set the seed of this program, and the initial seed of later programs."""
        global _default_seed
        _default_seed = seed
        self.random_seed = seed

    # Identity
    def _touch(self) -> None:
        """Record a change, which invalidates the fingerprint."""
        self._version += 1

    @property
    def fingerprint(self) -> str:
        """Digest of the program's computation, without its seed; equal for equal programs, in all processes."""
        if self._fingerprint is None or self._fingerprint[0] != self._version:
            digest = hashlib.sha256()
            for block in self.blocks:
                digest.update(repr((block.idx, block.parent_idx)).encode())
                for v in block.vars.values():
                    digest.update(repr((v.name, v._shape, v._dtype, v.persistable, v.lod_level, int(v.type))).encode())
                for op in block.ops:
                    attrs = sorted((k, named(a)) for k, a in op.attrs.items() if k not in _DESCRIPTIVE)
                    digest.update(repr((op.type, op.inputs, op.outputs, attrs)).encode())
            if self._streams is not None:
                ops = (op for b in self.blocks for op in b.ops)
                digest.update(repr(self._streams.deviations(ops)).encode())
            self._fingerprint = (self._version, digest.hexdigest())
        return self._fingerprint[1]

    @property
    def identity(self) -> tuple[Any, ...]:
        """Key for values that depend on this program, such as programs derived from it.

        It references `division`, so that no other object can have the same id.
        """
        return self.fingerprint, self._seed, self.division

    def _stamp(self, op: Operator) -> None:
        """Give a new operator the current role, name scope and device."""
        op.attrs.setdefault("op_role", self.op_role)
        if self.op_role_var:
            op.attrs.setdefault("op_role_var", tuple(self.op_role_var))
        if self.name_scopes.path != "/":
            op.attrs.setdefault("op_namescope", self.name_scopes.path)
        if self.device:
            op.attrs.setdefault("op_device", self.device)

    @contextlib.contextmanager
    def role_guard(self, role: int, role_var: Iterable[Variable | str] = ()) -> Iterator[None]:
        """Return a context that gives appended operators `role` and the names in `role_var`."""
        before = self.op_role, self.op_role_var
        self.op_role = role
        self.op_role_var = [v.name if isinstance(v, Variable) else v for v in role_var]
        try:
            yield
        finally:
            self.op_role, self.op_role_var = before

    def _optimized_guard(self, param_and_grads: Iterable[Variable | str]) -> contextlib.AbstractContextManager[None]:
        return self.role_guard(OpRole.Optimize, param_and_grads)

    def _lr_schedule_guard(self, is_with_opt: bool = False) -> contextlib.AbstractContextManager[None]:
        return self.role_guard(OpRole.LRSched | (OpRole.Optimize if is_with_opt else 0))

    def _backward_role_guard(self) -> contextlib.AbstractContextManager[None]:
        return self.role_guard(OpRole.Backward)

    # Copies
    def clone(self, for_test: bool = False) -> "Program":
        """Return a copy of the program.

        Args:
            for_test: leave out backward, optimizer and learning-rate operators, and the exchange
                with parameter servers (except looking up rows), and give operators that behave
                differently in training (dropout, batch_norm) their test form.
        """
        twin = self._copy()
        if for_test:
            drop = OpRole.Backward | OpRole.Optimize | OpRole.LRSched | OpRole.RPC | OpRole.Dist
            for block in twin.blocks:
                block.ops = [op for op in block.ops if not op.attrs.get("op_role", 0) & drop]
            twin._drop_unused_vars()
            twin._pipeline_opt = None
            twin._set_is_test()
            twin.verify("clone(for_test=True)")
        return twin

    def _copy(self) -> "Program":
        twin = Program()
        twin._seed = self._seed
        twin._streams = None if self._streams is None else self._streams.copy()
        twin.release, twin.op_compatibility = self.release, self.op_compatibility
        twin._trainers_endpoints, twin.division = list(self._trainers_endpoints), self.division
        twin._pipeline_opt = self._pipeline_opt
        twin.blocks = [Block(twin, b.idx, b.parent_idx, b.forward_block_idx) for b in self.blocks]
        for old, new in zip(self.blocks, twin.blocks):
            for var in old.vars.values():
                var.clone_into(new)
            for op in old.ops:
                copy = op.clone_into(new)
                for name, value in copy.attrs.items():
                    if isinstance(value, Block):
                        copy.attrs[name] = twin.blocks[value.idx]
                    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Block):
                        copy.attrs[name] = type(value)(twin.blocks[b.idx] for b in value)
                new.ops.append(copy)
                for name in copy.output_arg_names:
                    written = new.find_var_recursive(name)
                    if written is not None:
                        written.op = copy
        twin.current_block_idx = 0
        twin._touch()
        return twin

    def _drop_unused_vars(self) -> None:
        """Remove variables that no operator names, gradients above all; parameters and data stay."""
        used = {n for b in self.blocks for op in b.ops for n in op.input_arg_names + op.output_arg_names}
        for block in self.blocks:
            block.vars = {n: v for n, v in block.vars.items() if n in used or v.is_data}
        self._touch()

    def _set_is_test(self) -> None:
        for block in self.blocks:
            for op in block.ops:
                if op.has_attr("is_test"):
                    op.attrs["is_test"] = True
        self._touch()

    def _prune(self, targets: Iterable[Variable | str | Operator]) -> "Program":
        """Return a copy that computes the targets from the parameters, and nothing else.

        Raises ProgramError for a target that the global block does not know.
        """
        return self._prune_with_input((), targets)

    def _prune_with_input(
        self, feeded_var_names: Iterable[str], targets: Iterable[Variable | str | Operator]
    ) -> "Program":
        """Return a copy that computes the targets from the parameters and the feeds, and nothing else.

        For errors see `_prune`.
        """
        feeds = set(feeded_var_names)
        keep, wanted = self.global_block().needed(targets, feeds)
        twin = self._copy()
        block = twin.global_block()
        block.ops = [block.ops[i] for i in keep]
        twin._drop_unused_blocks()
        used = (
            {n for b in twin.blocks for op in b.ops for n in op.input_arg_names + op.output_arg_names} | wanted | feeds
        )
        for b in twin.blocks:
            b.vars = {n: v for n, v in b.vars.items() if n in used}
        twin._touch()
        return twin.verify("prune")

    def _copy_data_info_from(
        self, other: "Program", pruned_origin_block_id_map: Mapping[int, int] | None = None
    ) -> None:
        """Copy the feed properties of variables (fed, checked, without gradient) from `other`.

        Args:
            other: the other program.
            pruned_origin_block_id_map: for each block, the index of its block in the other program; the same index
                by default.

        Raises TypeError for a value that is no Program, ProgramError for a missing variable.
        """
        if not isinstance(other, Program):
            raise TypeError(f"_copy_data_info_from: expected a Program, found {type(other).__name__}")
        from_block = pruned_origin_block_id_map or {}
        for at, block in enumerate(self.blocks):
            there = other.blocks[from_block.get(at, at)]
            for name, var in block.vars.items():
                of = there.var(name)
                var.is_data = var.is_data or of.is_data
                var.need_check_feed = var.need_check_feed or of.need_check_feed
                var.stop_gradient = var.stop_gradient or of.stop_gradient
        self._touch()

    def _drop_unused_blocks(self) -> None:
        """Empty the blocks that no operator names any more; the indices of all other blocks stay."""
        live, stack = {0}, [self.global_block()]
        while stack:
            for op in stack.pop().ops:
                for sub in op.sub_blocks():
                    if sub.idx not in live:
                        live.add(sub.idx)
                        stack.append(sub)
        for block in self.blocks:
            if block.idx not in live:
                block.ops, block.vars = [], {}
        del self.blocks[max(live) + 1 :]

    def _inference_optimize(self, prune_read_op: bool = True) -> "Program":
        """Return a copy in test form."""
        twin = self._copy()
        twin._set_is_test()
        return twin

    # Checks
    def verify(self, what: str = "program") -> "Program":
        """Check that the program is well formed, and return it.

        Every slot and attribute must be known to its operator, every name declared, and every
        variable that is neither persistable nor fed written before it is read. Blocks must lie in
        each other without circles, and not too deep.

        Args:
            what: names the rewrite in errors.

        Raises ProgramError, naming the operator, its position and the line that made it.
        """
        nesting.check(self, what)
        for block in self.blocks:
            block.verify(what)
        self.global_block().verify_order(what)
        return self

    def refuse_acting(self) -> None:
        """Raise UntrustedOperatorError if a loaded operator would act outside of the computation.

        Operators that the caller allowed are exempt. Every way to run a program calls this first.
        """
        if self._harmless != self._version:
            reach.refuse(self.blocks, schema.current().reach)
            self._harmless = self._version

    # Texts and bytes
    def _sync_with_cpp(self) -> None:
        """No effect: `program.desc` describes this program itself, so both always agree."""

    def to_string(self, throw_on_error: bool, with_details: bool = False) -> str:
        """Return the program in Fluid's text format; `with_details` adds data that files do not store.

        `throw_on_error` has no effect: messages are always complete here.
        """
        message = codec.text_of(self.to_message(), throw_on_error, with_details)
        return "\n".join(b.to_string(throw_on_error, True) for b in self.blocks) if with_details else message

    def __str__(self) -> str:
        return self.to_string(False)

    def __repr__(self) -> str:
        operators = sum(len(block.ops) for block in self.blocks)
        return f"<Program: {operators} operators in {len(self.blocks)} block(s)>"

    def _repr_svg_(self) -> str:
        """Draw the global block in a notebook; more than 200 operators are folded by name scope."""
        return block_to_svg(self.global_block(), MOST_DRAWN)

    def to_message(self) -> pb.ProgramDesc:
        """Return the program in Fluid's format of program files.

        Raises AttributeTypeError for an attribute that the format cannot express.
        """
        return codec.program_message((b.to_message() for b in self.blocks), self.op_compatibility, self.release)

    def serialize_to_string(self) -> bytes:
        """Return the program as a serialized ProgramDesc, Fluid's own format."""
        return self.to_message().SerializeToString()

    @staticmethod
    def parse_from_string(binary_str: bytes, allow: Iterable[str] = ()) -> "Program":
        """Return the program of a serialized ProgramDesc.

        Args:
            binary_str: the ProgramDesc.
            allow: types of operators that may act when the program runs: on files, networks,
                processes, Python or the terminal. Others of that kind are refused then
                (UntrustedOperatorError): the bytes may come from anybody.

        Raises FileFormatError when the bytes are none, contradict themselves, or stand for far more
        than their size; ProgramError for a name in `allow` of no operator that acts.
        """
        allowed = _allowed(allow)
        program = Program()
        with codec.reading(binary_str) as file:
            program.blocks = [Block(program, i, *record) for i, record in enumerate(file.blocks)]
            for block in program.blocks:
                for record in file.variables(block.idx):
                    if record.name in block.vars:
                        raise errors.FileFormatError(
                            f"block {block.idx} of the program declares variable {record.name} twice"
                        )
                    block.vars[record.name] = Variable.from_record(block, record)
            for block in program.blocks:
                for operator in file.operators(block.idx):
                    may_act = operator.type in allowed
                    op = block.adopt_op(Operator.from_record(block, operator, may_act))
                    for var in filter(None, map(block.find_var_recursive, op.output_arg_names)):
                        var.op = op
                        var.is_data = var.is_data or op.type == "feed"
            program.release, program.op_compatibility = file.release, file.op_compatibility
            program._streams = None
        try:
            nesting.check(program, "these bytes are no Fluid program")
        except errors.ProgramError as e:
            raise errors.FileFormatError(str(e)) from e
        program._touch()
        return program

    @property
    def desc(self) -> ProgramDesc:
        """The program as Fluid describes it: `program.desc.serialize_to_string()`."""
        return ProgramDesc(self)


def _allowed(names: Iterable[str]) -> frozenset[str]:
    """Return the operator types that a caller allows to act.

    Raises the errors of `check_allowed`.
    """
    given = names if isinstance(names, str) else tuple(names)
    if given == ():
        return frozenset()  # no definitions of operators are needed, nor loaded
    known = schema.current()
    return reach.check_allowed(given, known.reach, known.acting)


def named(value: Any) -> Any:
    """Return an attribute's value, with blocks as their numbers, and arrays in full."""
    if isinstance(value, Block):
        return f"block {value.idx}"
    if isinstance(value, (list, tuple)):
        return [named(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


class _NameScopes:
    """Stack of `name_scope` prefixes, with a number after the second and later uses of a prefix."""

    def __init__(self) -> None:
        self.path = "/"
        self._uses: dict[str, int] = {}

    @contextlib.contextmanager
    def enter(self, prefix: str) -> Iterator[None]:
        before, full = self.path, f"{self.path}{prefix}"
        count = self._uses[full] = self._uses.get(full, -1) + 1
        self.path = f"{full}_{count}/" if count else f"{full}/"
        try:
            yield
        finally:
            self.path = before


ProgramDesc.new_program = Program
_default_seed = 0
_main_program = Program()
_startup_program = Program()


def default_main_program() -> Program:
    """Return the program that layers append to."""
    return _main_program


def default_startup_program() -> Program:
    """Return the program that initializes parameters."""
    return _startup_program


def switch_main_program(program: Program) -> Program:
    """Set the default main program to `program`, and return the replaced program."""
    global _main_program
    old, _main_program = _main_program, program
    return old


def switch_startup_program(program: Program) -> Program:
    """Set the default startup program to `program`, and return the replaced program."""
    global _startup_program
    old, _startup_program = _startup_program, program
    return old


@contextlib.contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Return a context with the given programs as defaults.

    Raises TypeError for an argument that is not a Program.
    """
    for name, program in (("main_program", main_program), ("startup_program", startup_program)):
        if not isinstance(program, Program) and not (program is None and name == "startup_program"):
            raise TypeError(f"{name}: expected a Program, found {type(program).__name__}")
    old_main = switch_main_program(main_program)
    old_startup = switch_startup_program(startup_program) if startup_program is not None else None
    try:
        yield
    finally:
        switch_main_program(old_main)
        if old_startup is not None:
            switch_startup_program(old_startup)


@contextlib.contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Return a context that gives operators the scope's path, for drawings and profiles.

    Names of variables stay.

    Raises ProgramError when the prefix is empty.
    """
    if not prefix:
        raise errors.ProgramError("name_scope: the prefix must not be empty")
    with default_main_program().name_scopes.enter(prefix):
        yield


@contextlib.contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Return a context that gives operators a device attribute ("cpu", "gpu", "gpu:0").

    It stays in the program without effect: XLA runs a whole program on the Executor's device.
    Raises ProgramError for other devices.
    """
    kind = (device or "cpu").split(":")[0]
    if kind not in ("cpu", "gpu"):
        raise errors.ProgramError(f'device_guard: expected "cpu", "gpu" or "gpu:N", found {device!r}')
    program = default_main_program()
    before, program.device = program.device, device or ""
    try:
        yield
    finally:
        program.device = before


__all__ = [
    "EMPTY_NAME",
    "Program",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "grad_name",
    "name_scope",
    "program_guard",
    "switch_main_program",
    "switch_startup_program",
]
