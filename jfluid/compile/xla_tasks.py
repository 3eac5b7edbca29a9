"""Functions that XLA calls in a step on a CPU, and that divide their work among XLA's threads.

Their arguments are arrays, and last numbers in int32; they have one result or more. The first of the
numbers says how many chunks the work has, the second how many float32 of memory each thread needs for
itself. Chunks are taken by whoever is free: the caller waits for none that nobody has begun.
"""

from typing import Any

from llvmlite import ir

from jfluid.compile.llvm_writer import I32, I64, POINTER, VOID, Function, Module

# Offsets in bytes in the structures of XLA's interface for foreign functions, and its version.
_VERSION = (0, 3)
_EXTENSION, _API, _CONTEXT, _ARGUMENTS, _RESULTS, _DATA = 8, 16, 24, 72, 112, 24
_DESTROY_ERROR, _SCHEDULE, _NUM_THREADS = 64, 136, 144
_TYPE, _METADATA, _MAJOR, _MINOR, _TRAITS = 8, 24, 24, 28, 32
_OF_METADATA = 1  # the type of the extension that asks what a function is
# What tasks know of a call, 8 bytes each; behind it the arrays. The last task that knows it frees it.
_NEXT, _DONE, _CHUNKS, _USERS, _MEMORY, _NUMBERS, _ARRAYS = range(7)


def define(module: Module, name: str, chunk: Any, given: int = 2, made: int = 1) -> None:
    """Write down a function for XLA.

    Args:
        chunk: does a part of the work, for the arrays, those that it makes, numbers, memory and the
            chunk's number.
        given: how many arrays there are beside the numbers.
        made: how many results.
    """
    leave = module.find("leave") or _leave(module)
    work = _work(module, f"{name}_work", chunk, given + made)
    task = Function(module, f"{name}_task", VOID, call=POINTER)
    task.call(work, task.v["call"])
    task.call(leave, task.v["call"])
    _handler(module, name, work, task.end(), leave, given, made)


def _part(f: Function, call: Any, which: int) -> Any:
    return f.at(call, I64(which), kind=I64)


def _number(f: Function, numbers: Any, which: int) -> Any:
    return f.b.sext(f.load(f.at(numbers, I64(which), kind=I32), I32), I64)


def _leave(module: Module) -> Any:
    """Say that a task does not need a call any more."""
    f = Function(module, "leave", VOID, call=POINTER)
    f.function.linkage = "internal"  # each object file has its own
    before = f.b.atomic_rmw("sub", _part(f, f.v["call"], _USERS), I64(1), "acq_rel")
    with f.b.if_then(f.b.icmp_signed("==", before, I64(1))):
        f.c("free", f.v["call"])
    return f.end()


def _work(module: Module, name: str, chunk: Any, count: int) -> Any:
    """Do chunks of a call that nobody else does, until there is none. A task that begins when there is
    none reads no array: XLA may have given its memory to others.
    """
    f = Function(module, name, VOID, call=POINTER)
    call = f.v["call"]
    arrays = [f.load(_part(f, call, _ARRAYS + i), POINTER) for i in range(count)]
    numbers = f.load(_part(f, call, _NUMBERS), POINTER)
    chunks, size = (f.load(_part(f, call, i), I64) for i in (_CHUNKS, _MEMORY))
    memory = f.c("malloc", size)
    with f.repeat() as leave:
        i = f.b.atomic_rmw("add", _part(f, call, _NEXT), I64(1), "monotonic")
        leave(f.b.icmp_signed(">=", i, chunks))
        f.call(chunk, *arrays, numbers, memory, i)
        f.b.atomic_rmw("add", _part(f, call, _DONE), I64(1), "release")
    f.c("free", memory)
    return f.end()


def _handler(
    module: Module, name: str, work: Any, task: Any, leave_call: Any, given: int, made: int
) -> None:
    """What XLA calls with a frame, or to ask which version of its interface this is written for."""
    f = Function(module, name, POINTER, frame=POINTER)
    b, frame, nothing = f.b, f.v["frame"], ir.Constant(POINTER, None)
    extension = f.field(frame, _EXTENSION)
    with b.if_then(b.icmp_unsigned("!=", extension, nothing)):
        with b.if_then(b.icmp_signed("==", f.field(extension, _TYPE, I32), I32(_OF_METADATA))):
            metadata = f.field(extension, _METADATA)
            for offset, value in ((_MAJOR, _VERSION[0]), (_MINOR, _VERSION[1]), (_TRAITS, 0)):
                b.store(I32(value), f.at(metadata, I64(offset), kind=ir.IntType(8)))
            b.ret(nothing)
    api, context = f.field(frame, _API), f.field(frame, _CONTEXT)
    arguments, results = f.field(frame, _ARGUMENTS), f.field(frame, _RESULTS)
    *arrays, numbers = (f.field(f.field(arguments, 8 * i), _DATA) for i in range(given + 1))
    arrays += [f.field(f.field(results, 8 * i), _DATA) for i in range(made)]
    chunks = _number(f, numbers, 0)
    threads = f.variable(I64, I64(1))
    _request(f, api, _NUM_THREADS, context, threads)
    helpers = b.sub(f.least(f.load(threads, I64), chunks), I64(1))
    call = f.c("malloc", I64(8 * (_ARRAYS + len(arrays))))
    users, memory = f.sum(helpers, I64(1)), f.product(_number(f, numbers, 1), I64(4))
    for i, value in enumerate((I64(0), I64(0), chunks, users, memory, numbers, *arrays)):
        b.store(value, _part(f, call, i))
    with f.loop(helpers):
        refused = _request(f, api, _SCHEDULE, context, task, call)
        with b.if_then(refused):
            f.call(leave_call, call)
    f.call(work, call)
    with f.repeat() as leave:
        done = b.load_atomic(_part(f, call, _DONE), "acquire", 8, typ=I64)
        leave(b.icmp_signed(">=", done, chunks))
        f.c("sched_yield")
    f.call(leave_call, call)
    f.end(nothing)


def _request(f: Function, api: Any, function: int, *arguments: Any) -> Any:
    """Call one of XLA's functions; gives whether it refused."""

    def call(function: int, *arguments: Any) -> Any:
        size = 2 + len(arguments)
        request = f.slots.alloca(I64, size)
        for i, value in enumerate((I64(8 * size), I64(0), *arguments)):
            number = f.b.ptrtoint(value, I64) if value.type != I64 else value
            f.b.store(number, f.at(request, I64(i), kind=I64))
        kind = ir.FunctionType(POINTER, [request.type])
        address = f.field(api, function, I64)
        return f.call(f.b.inttoptr(address, kind.as_pointer()), request)

    error = call(function, *arguments)
    refused = f.b.icmp_unsigned("!=", error, ir.Constant(POINTER, None))
    with f.b.if_then(refused):
        call(_DESTROY_ERROR, error)
    return refused
