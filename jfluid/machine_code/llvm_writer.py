"""Writer of LLVM functions: loops, arrays, variables, and calls of C functions.

The module compiles the functions for this processor, and loads the machine code.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from jfluid.machine_code import processor

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
FLOAT, POINTER, VOID = ir.FloatType(), ir.PointerType(), ir.VoidType()
_OF_C: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "malloc": (POINTER, (I64,)),
    "free": (VOID, (POINTER,)),
    "memset": (POINTER, (POINTER, I32, I64)),
    "memcpy": (POINTER, (POINTER, POINTER, I64)),
    "pthread_key_create": (I32, (POINTER, POINTER)),
    "pthread_getspecific": (POINTER, (I64,)),
    "pthread_setspecific": (I32, (I64, POINTER)),
    "sched_yield": (I32, ()),
}


def identity() -> tuple[Any, ...]:
    """Return the cache key of the compiler: versions of llvmlite and LLVM, and the target."""
    return llvmlite.__version__, llvm.llvm_version_info, *processor.target()


def load(machine_code: bytes, names: Sequence[str]) -> list[int]:
    """Return the addresses of functions of an object file, which stays loaded."""
    engine = _engine(machine_code)
    return [engine.get_function_address(name) for name in names]


@functools.cache
def _engine(machine_code: bytes) -> Any:
    """Return an MCJIT engine with the object file loaded.

    Each object file has an engine: adding a second file to a finalized engine crashes.
    """
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target())
    engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
    engine.finalize_object()
    return engine


def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = processor.target()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=2, reloc="pic", jit=True
    )


@functools.cache
def constants(vector: Any, *numbers: float) -> Any:
    """Return a vector of constants. The result is cached: formatting the numbers is slow."""
    return ir.Constant(vector, numbers)


@functools.cache
def _written(vector: Any, text: str) -> Any:
    """Return a vector constant with an LLVM keyword as its text; llvmlite would format every number."""
    found = ir.FormattedConstant(vector.element, text)
    found.type = vector
    return found


class Module:
    """LLVM module under construction."""

    def __init__(self) -> None:
        self.module = ir.Module()

    def find(self, name: str) -> Any:
        """Return the function or global of a name, or None."""
        return self.module.globals.get(name)

    def declare(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        """Return the function of a name, declared if missing. It may be a C function or an LLVM intrinsic."""
        return self.find(name) or ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def machine_code(self) -> bytes:
        """Return an object file."""
        parsed, target = llvm.parse_assembly(str(self.module)), _target()
        # Loops are written as they should run: LLVM's usual passes take twenty times as long, for the
        # same speed.
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(parsed, llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options()))
        return target.emit_object(parsed)  # type: ignore[no-any-return]


class Function:
    """LLVM function under construction.

    Args:
        arguments: names and types.

    Attributes:
        v: the arguments by name.
        b: IR builder at the current end of the function.
        slots: IR builder of the entry block, for stack slots.
    """

    def __init__(self, module: Module, name: str, result: Any, **arguments: Any):
        kind = ir.FunctionType(result, list(arguments.values()))
        self.module, self.function = module, ir.Function(module.module, kind, name)
        self._entry = self.function.append_basic_block("entry")
        self.slots = ir.IRBuilder(self._entry)
        self._start = self.function.append_basic_block("start")
        self.b = ir.IRBuilder(self._start)
        self.v = dict(zip(arguments, self.function.args))

    def end(self, value: Any = None) -> Any:
        """Write the function's return, and return the function."""
        self.b.ret_void() if value is None else self.b.ret(value)
        self.slots.branch(self._start)
        return self.function

    def variable(self, kind: Any, value: Any) -> Any:
        """Allocate a stack slot with an initial value. LLVM promotes the slot to a register."""
        place = self.slots.alloca(kind)
        self.b.store(value, place)
        return place

    def load(self, place: Any, kind: Any) -> Any:
        """Load the value at a pointer; vectors are aligned as their elements."""
        return self.b.load(place, typ=kind, align=8 if kind in (POINTER, I64) else 4)

    def at(self, base: Any, *numbers: Any, kind: Any = FLOAT) -> Any:
        """Return a pointer to an element of an array; the index is the sum of `numbers`."""
        return self.b.gep(base, [self.sum(*numbers)], source_etype=kind)

    def field(self, base: Any, offset: int, kind: Any = POINTER) -> Any:
        """Load the value at `pointer + offset` bytes."""
        return self.load(self.at(base, I64(offset), kind=ir.IntType(8)), kind)

    def opaque(self, value: Any) -> Any:
        """Hide the origin of a value from LLVM's optimizer, so that the value keeps a register."""
        kind = ir.FunctionType(value.type, [value.type])
        return self.b.asm(kind, "", "=r,0", [value], False)

    def sum(self, first: Any, *others: Any) -> Any:
        return functools.reduce(self.b.add, others, first)

    def product(self, first: Any, *others: Any) -> Any:
        return functools.reduce(self.b.mul, others, first)

    def least(self, one: Any, other: Any) -> Any:
        return self.b.select(self.b.icmp_signed("<", one, other), one, other)

    def greatest(self, one: Any, other: Any) -> Any:
        return self.b.select(self.b.icmp_signed(">", one, other), one, other)

    def spread(self, number: Any, vector: Any) -> Any:
        """Broadcast a number to all lanes of a vector."""
        nothing = _written(vector, "undef")
        first = self.b.insert_element(nothing, number, I32(0))
        everywhere = constants(ir.VectorType(I32, vector.count), *[0] * vector.count)
        return self.b.shuffle_vector(first, nothing, everywhere)

    def lanes(self, vector: Any, count: Any) -> Any:
        """Return the mask of the first `count` lanes of a vector."""
        every = constants(ir.VectorType(I64, vector.count), *range(vector.count))
        return self.b.icmp_signed("<", every, self.spread(count, every.type))

    def load_lanes(self, place: Any, vector: Any, lanes: Any, others: float = 0.0) -> Any:
        """Load the masked lanes of a vector. Lanes without the mask need no memory.

        Args:
            others: the value of lanes without the mask.
        """
        load = self.module.declare(
            f"llvm.masked.load.v{vector.count}f32.p0", vector, [POINTER, I32, lanes.type, vector]
        )
        rest = constants(vector, *[others] * vector.count)
        return self.call(load, place, I32(4), lanes, rest)

    def store_lanes(self, value: Any, place: Any, lanes: Any) -> None:
        """Store the masked lanes of a vector."""
        kinds = [value.type, POINTER, I32, lanes.type]
        store = self.module.declare(f"llvm.masked.store.v{value.type.count}f32.p0", VOID, kinds)
        self.call(store, value, place, I32(4), lanes)

    def prefetch(self, place: Any) -> None:
        """Prefetch the line at a pointer to the L2 cache; an invalid address does nothing."""
        kinds = [POINTER, I32, I32, I32]
        self.call(self.module.declare("llvm.prefetch.p0", VOID, kinds), place, I32(0), I32(2), I32(1))

    def call(self, function: Any, *arguments: Any) -> Any:
        return self.b.call(function, arguments)

    def c(self, name: str, *arguments: Any) -> Any:
        """Call a C function."""
        return self.call(self.module.declare(name, *_OF_C[name]), *arguments)

    @contextlib.contextmanager
    def loop(self, end: Any, start: Any = None) -> Iterator[Any]:
        """Loop from `start`, or 0, to before `end`; yield the index."""
        at = self.variable(I64, I64(0) if start is None else start)
        with self.repeat() as leave:
            i = self.load(at, I64)
            leave(self.b.icmp_signed(">=", i, end))
            yield i
            self.b.store(self.b.add(i, I64(1)), at)

    @contextlib.contextmanager
    def repeat(self) -> Iterator[Callable[[Any], None]]:
        """Loop without an end; yield a function that leaves the loop on a condition."""
        head, after = self.b.append_basic_block("head"), self.b.append_basic_block("after")
        self.b.branch(head)
        self.b.position_at_end(head)

        def leave(condition: Any) -> None:
            body = self.b.append_basic_block("body")
            self.b.cbranch(condition, after, body)
            self.b.position_at_end(body)

        yield leave
        self.b.branch(head)
        self.b.position_at_end(after)
