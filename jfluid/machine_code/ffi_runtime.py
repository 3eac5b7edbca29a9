"""FFI handlers that XLA calls in a step on a CPU, and that divide their work among XLA's threads.

A handler's arguments are arrays, and last the geometry in int32; it has one result or more. The first number
of the geometry is the number of chunks, the second the float32 of scratch memory of each thread.
Idle XLA threads claim chunks; the thread that finishes the last chunk continues the step. The caller computes no
chunk and waits for none: XLA has one thread more than there are processors, and the caller would take a processor
from a computing thread.

An XLA thread that has been idle for 30 us sleeps; waking takes 20 to 110 us, as long as a small GEMM. Idle
workers therefore spin: a worker without chunks waits until the call is done, and while one thread computes a call too
small to divide, a second thread waits for the next call. Idle workers spin for up to `_PATIENCE` cycles and call
sched_yield() in between. A worker yields once before it starts if other tasks of the call have not begun: it may
occupy the processor of the thread that schedules the tasks.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from llvmlite import ir

from jfluid.machine_code.llvm_writer import I1, I8, I32, I64, POINTER, VOID, Function, Module

# Offsets in bytes in the structures of XLA's interface for foreign functions, and its version.
VERSION = (0, 3)
_EXTENSION, _API, _CONTEXT, _ARGUMENTS, _RESULTS, _DATA = 8, 16, 24, 72, 112, 24
_FUTURE = 168
_CREATE_ERROR, _DESTROY_ERROR, _SCHEDULE, _NUM_THREADS = 48, 64, 136, 144
_CREATE_FUTURE, _SET_AVAILABLE, _SET_ERROR = 152, 160, 168
_TYPE, _METADATA, _MAJOR, _MINOR, _TRAITS = 8, 24, 24, 28, 32
_OF_METADATA = 1  # the type of the extension that asks what a function is
# What tasks know of a call, 8 bytes each; behind it the arrays. The last task that knows it frees it.
_HEADER = 64  # bytes before a thread's memory: how much there is, and what it holds of a call
_HOLDS = 8
_NEXT, _DONE, _CHUNKS, _USERS, _MEMORY, _NUMBERS, _INTERFACE, _READY, _AWAITED, _FAILED, _ARRAYS = range(11)
_NO_MEMORY = "machine code of jfluid: no memory for what a thread works with"
_EXHAUSTED = 8  # the number of such errors
# Numbers that the processor counts on by some 2 to 4 in a nanosecond: for so long a thread waits, and so long
# after work has been divided another thread is kept for what follows.
_PATIENCE, _LATELY = 200_000, 3_000_000


def define(module: Module, name: str, chunk: Any, given: int = 2, made: int = 1) -> None:
    """Write an FFI handler that may divide its work; the cycle counter that it needs exists only on x86.

    Args:
        chunk: the function of a chunk of the work; it takes the input and output arrays, the geometry, scratch memory
            and the chunk's number.
        given: number of input arrays without the geometry.
        made: number of results.
    """
    leave = module.find("leave") or _leave(module)
    work = _work(module, f"{name}_work", chunk, given + made)
    keep = module.find("keep_thread") or _keep_thread(module)
    _handler(module, name, work, _task(module, name, work, leave), leave, keep, given, made)


def chunk_of(name: str) -> str:
    """Return the name of the function that computes a chunk of an FFI handler's work."""
    return f"{name}_chunk"


def begin_chunk(module: Module, name: str, arrays: Iterable[str], geometry: Iterable[str]) -> Function:
    """Begin the function `chunk_of(name)`, which computes a chunk of the work.

    `v` has the arrays, "scratch" for scratch memory, the chunk's number and the call's geometry.

    Args:
        name: of the function for XLA.
        arrays: names of the input arrays, then of the output arrays.
        geometry: names of a call's numbers.
    """
    pointers = dict.fromkeys((*arrays, "geometry", "scratch"), POINTER)
    f = Function(module, chunk_of(name), VOID, **pointers, chunk=I64)
    for i, number in enumerate(geometry):
        f.v[number] = f.b.sext(f.load(f.at(f.v["geometry"], I64(i), kind=I32), I32), I64)
    return f


def _part(f: Function, call: Any, which: int) -> Any:
    return f.at(call, I64(which), kind=I64)


def _number(f: Function, numbers: Any, which: int) -> Any:
    return f.b.sext(f.load(f.at(numbers, I64(which), kind=I32), I32), I64)


def _leave(module: Module) -> Any:
    """Write the function that releases a task's reference to a call; the last reference frees the call."""
    f = Function(module, "leave", VOID, call=POINTER)
    f.function.linkage = "internal"  # each object file has its own
    before = f.b.atomic_rmw("sub", _part(f, f.v["call"], _USERS), I64(1), "acq_rel")
    with f.b.if_then(f.b.icmp_signed("==", before, I64(1))):
        f.c("free", f.v["call"])
    return f.end()


def _work(module: Module, name: str, chunk: Any, count: int) -> Any:
    """Write the loop that claims and computes chunks of a call; it returns True if it finished the last chunk.

    A task that finds no chunk reads no array: XLA may have reused the arrays' memory.
    """
    f = Function(module, name, I1, call=POINTER)
    call = f.v["call"]
    arrays = [f.load(_part(f, call, _ARRAYS + i), POINTER) for i in range(count)]
    numbers = f.load(_part(f, call, _NUMBERS), POINTER)
    chunks, size = (f.load(_part(f, call, i), I64) for i in (_CHUNKS, _MEMORY))
    memory, last = f.call(_own_memory(module), size), f.variable(I1, I1(0))
    # who has none takes chunks, too, but does not do them: all that wait for them go on, and the call fails
    none = _is_nothing(f, memory)
    with f.b.if_else(none) as (fails, works):
        with fails:
            f.b.atomic_rmw("add", _part(f, call, _FAILED), I64(1), "release")
        with works:
            f.b.store(I64(0), holds(f, memory))
    f.b.atomic_rmw("sub", _part(f, call, _AWAITED), I64(1), "monotonic")
    # who calls the others, or one of them, may wait for this processor
    with f.b.if_then(f.b.icmp_signed(">", _shared(f, _part(f, call, _AWAITED)), I64(0))):
        f.c("sched_yield")
    with f.repeat() as leave:
        i = f.b.atomic_rmw("add", _part(f, call, _NEXT), I64(1), "monotonic")
        leave(f.b.icmp_signed(">=", i, chunks))
        with f.b.if_then(f.b.not_(none)):
            f.call(chunk, *arrays, numbers, memory, i)
        before = f.b.atomic_rmw("add", _part(f, call, _DONE), I64(1), "acq_rel")
        with f.b.if_then(f.b.icmp_signed("==", f.sum(before, I64(1)), chunks)):
            f.b.store(I1(1), last)
    return f.end(f.b.load(last, typ=I1))


def _own_memory(module: Module) -> Any:
    """Write the function that returns the thread's scratch memory of at least `size` bytes, or null without memory.

    Each thread keeps its memory: a core would have to fetch the lines that another core has written.
    """
    found = module.find("own_memory")
    if found:
        return found
    key = ir.GlobalVariable(module.module, I64, "own_memory_key")
    key.linkage, key.initializer = "internal", I64(-1)
    _make_key(module, key)
    f = Function(module, "own_memory", POINTER, size=I64)
    f.function.linkage = "internal"
    size, held = f.v["size"], f.variable(POINTER, f.c("pthread_getspecific", f.load(key, I64)))
    old = f.load(held, POINTER)
    small = f.variable(I1, I1(1))
    with f.b.if_then(f.b.icmp_unsigned("!=", old, ir.Constant(POINTER, None))):
        f.b.store(f.b.icmp_signed("<", f.load(old, I64), size), small)
    with f.b.if_then(f.b.load(small, typ=I1)):
        new = f.c("malloc", f.sum(size, I64(_HEADER)))
        f.b.store(new, held)
        with f.b.if_then(f.b.not_(_is_nothing(f, new))):
            f.b.store(size, new)
            refused = f.c("pthread_setspecific", f.load(key, I64), new)
            with f.b.if_else(f.b.icmp_signed("!=", refused, I32(0))) as (fails, holds_it):
                with fails:
                    f.c("free", new)
                    f.b.store(ir.Constant(POINTER, None), held)
                with holds_it:
                    f.c("free", old)
    found = f.load(held, POINTER)
    place = f.at(found, I64(_HEADER), kind=I8)
    return f.end(f.b.select(_is_nothing(f, found), found, place))


def _is_nothing(f: Function, place: Any) -> Any:
    return f.b.icmp_unsigned("==", place, ir.Constant(POINTER, None))


def _no_memory(f: Function, api: Any) -> Any:
    """Create XLA's error for a call without scratch memory."""
    text = f.module.find("no_memory")
    if not text:
        value = ir.Constant(ir.ArrayType(I8, len(_NO_MEMORY) + 1), bytearray(f"{_NO_MEMORY}\0".encode()))
        text = ir.GlobalVariable(f.module.module, value.type, "no_memory")
        text.linkage, text.initializer, text.global_constant = "internal", value, True
    return _called(f, api, _CREATE_ERROR, text, I64(_EXHAUSTED))[0]


def holds(f: Function, memory: Any) -> Any:
    """Return a pointer to the tag of a thread's scratch memory.

    A kernel notes there which packed data, from 1, stays valid for further chunks of a call; 0 means none.
    """
    return f.at(memory, I64(_HOLDS - _HEADER), kind=I8)


def _make_key(module: Module, key: Any) -> None:
    """Write the function that creates the key of thread-local memory; it runs once, before a thread uses the key."""
    f = Function(module, "make_memory_key", VOID)
    f.function.linkage = "internal"
    with f.b.if_then(f.b.icmp_signed("==", f.load(key, I64), I64(-1))):
        made = f.variable(I64, I64(0))
        free = module.declare("free", VOID, [POINTER])
        refused = f.c("pthread_key_create", made, free)
        with f.b.if_then(f.b.icmp_signed("==", refused, I32(0))):
            f.b.store(f.b.load(made, typ=I64), key)
    f.end()


def _task(module: Module, name: str, work: Any, leave: Any) -> Any:
    """Write the task that an XLA thread runs for a call.

    The task with the last chunk makes the call's future ready: XLA continues the step in this task.
    """
    f = Function(module, f"{name}_task", VOID, call=POINTER)
    call = f.v["call"]
    last = f.call(work, call)
    with f.b.if_then(f.b.not_(last)):
        chunks = f.load(_part(f, call, _CHUNKS), I64)
        _wait(f, lambda: f.b.icmp_signed(">=", _shared(f, _part(f, call, _DONE)), chunks))
    api, future = (f.load(_part(f, call, i), POINTER) for i in (_INTERFACE, _READY))
    failed = _shared(f, _part(f, call, _FAILED))
    f.call(leave, call)
    with f.b.if_then(last):
        _ready(f, api, future, failed)
    return f.end()


def _ready(f: Function, api: Any, future: Any, failed: Any) -> None:
    """Make a call's future ready, or set its error."""
    with f.b.if_else(f.b.icmp_signed("==", failed, I64(0))) as (fine, wrong):
        with fine:
            _request(f, api, _SET_AVAILABLE, future)
        with wrong:
            _request(f, api, _SET_ERROR, future, _no_memory(f, api))


def _shared(f: Function, place: Any) -> Any:
    """Load a value that threads share, with acquire order."""
    return f.b.load_atomic(place, "acquire", 8, typ=I64)


def _counter(f: Function) -> Any:
    return f.call(f.module.declare("llvm.readcyclecounter", I64, []))


def _wait(f: Function, over: Callable[[], Any]) -> None:
    """Spin until a condition holds, for at most `_PATIENCE` cycles."""
    until = f.sum(_counter(f), I64(_PATIENCE))
    with f.repeat() as leave:
        leave(over())
        leave(f.b.icmp_signed(">", _counter(f), until))
        f.c("sched_yield")


def _last_divided(module: Module) -> Any:
    """Return the global with the cycle counter of the last call that was divided among threads."""
    found = module.find("last_divided")
    if not found:
        found = ir.GlobalVariable(module.module, I64, "last_divided")
        found.linkage, found.initializer = "internal", I64(-1 << 62)
    return found


def _keep_thread(module: Module) -> Any:
    """Write the task that spins until a call later than `after` is divided among threads."""
    f = Function(module, "keep_thread", VOID, after=POINTER)
    f.function.linkage = "internal"
    place, after = _last_divided(module), f.b.ptrtoint(f.v["after"], I64)
    _wait(f, lambda: f.b.icmp_signed("!=", _shared(f, place), after))
    return f.end()


class _Frame(NamedTuple):
    """XLA's call frame of an FFI handler."""

    place: Any
    api: Any
    context: Any
    arrays: list[Any]
    numbers: Any


def _begin(module: Module, name: str, given: int, made: int) -> tuple[Function, _Frame]:
    """Begin an FFI handler: read the arrays from the call frame.

    A query of the FFI version is answered at once.
    """
    f = Function(module, name, POINTER, frame=POINTER)
    b, frame, nothing = f.b, f.v["frame"], ir.Constant(POINTER, None)
    extension = f.field(frame, _EXTENSION)
    with b.if_then(b.icmp_unsigned("!=", extension, nothing)):
        with b.if_then(b.icmp_signed("==", f.field(extension, _TYPE, I32), I32(_OF_METADATA))):
            metadata = f.field(extension, _METADATA)
            if key := module.find("make_memory_key"):
                f.call(key)
            for offset, value in ((_MAJOR, VERSION[0]), (_MINOR, VERSION[1]), (_TRAITS, 0)):
                b.store(I32(value), f.at(metadata, I64(offset), kind=ir.IntType(8)))
            b.ret(nothing)
    api, context = f.field(frame, _API), f.field(frame, _CONTEXT)
    arguments, results = f.field(frame, _ARGUMENTS), f.field(frame, _RESULTS)
    *arrays, numbers = (f.field(f.field(arguments, 8 * i), _DATA) for i in range(given + 1))
    arrays += [f.field(f.field(results, 8 * i), _DATA) for i in range(made)]
    return f, _Frame(frame, api, context, arrays, numbers)


def _threads(f: Function, frame: _Frame) -> Any:
    """Load the number of XLA's threads."""
    threads = f.variable(I64, I64(1))
    _request(f, frame.api, _NUM_THREADS, frame.context, threads)
    return f.load(threads, I64)


def _handler(
    module: Module,
    name: str,
    work: Any,
    task: Any,
    leave_call: Any,
    keep_thread: Any,
    given: int,
    made: int,
) -> None:
    """Write the FFI handler that XLA calls; see `define`."""
    f, given_frame = _begin(module, name, given, made)
    frame, api, context, arrays, numbers = given_frame
    b, nothing = f.b, ir.Constant(POINTER, None)
    chunks = _number(f, numbers, 0)
    tasks = f.least(_threads(f, given_frame), chunks)
    call = f.c("malloc", I64(8 * (_ARRAYS + len(arrays))))
    with b.if_then(_is_nothing(f, call)):
        b.ret(_no_memory(f, api))
    memory = f.product(_number(f, numbers, 1), I64(4))
    values = (I64(0), I64(0), chunks, I64(1), memory, numbers, api, nothing, tasks, I64(0), *arrays)
    for i, value in enumerate(values):
        b.store(value, _part(f, call, i))
    others = f.variable(I64, I64(0))  # tasks that XLA has taken
    error = f.variable(POINTER, nothing)
    now, last = _counter(f), _shared(f, _last_divided(module))
    with b.if_else(b.icmp_signed(">", tasks, I64(1))) as (several, one):
        with several:
            b.store_atomic(now, _last_divided(module), "release", 8)
        with one, b.if_then(b.icmp_signed("<", b.sub(now, last), I64(_LATELY))):
            _request(f, api, _SCHEDULE, context, keep_thread, last)
    with b.if_then(b.icmp_signed(">", tasks, I64(1))):
        refused, future = _request(f, api, _CREATE_FUTURE, nothing)
        with b.if_then(b.not_(refused)):
            b.store(f.load(future, POINTER), _part(f, call, _READY))
            b.store(f.load(future, POINTER), f.at(frame, I64(_FUTURE), kind=ir.IntType(8)))
            with f.loop(tasks):
                b.atomic_rmw("add", _part(f, call, _USERS), I64(1), "monotonic")
                refused, _ = _request(f, api, _SCHEDULE, context, task, call)
                with b.if_else(refused) as (then, otherwise):
                    with then:
                        f.call(leave_call, call)
                    with otherwise:
                        b.store(f.sum(f.load(others, I64), I64(1)), others)
    with b.if_then(b.icmp_signed("==", f.load(others, I64), I64(0))):
        f.call(work, call)
        future = f.load(_part(f, call, _READY), POINTER)
        failed = _shared(f, _part(f, call, _FAILED))
        with b.if_else(_is_nothing(f, future)) as (at_once, later):
            with at_once, b.if_then(b.icmp_signed("!=", failed, I64(0))):
                b.store(_no_memory(f, api), error)
            with later:
                _ready(f, api, future, failed)
    f.call(leave_call, call)
    f.end(f.load(error, POINTER))


def _called(f: Function, api: Any, function: int, *arguments: Any) -> tuple[Any, Any]:
    """Call a function of XLA's FFI; return its error, and a pointer to the last argument's result."""
    size = 2 + len(arguments)
    request = f.slots.alloca(I64, size)
    for i, value in enumerate((I64(8 * size), I64(0), *arguments)):
        number = f.b.ptrtoint(value, I64) if value.type != I64 else value
        f.b.store(number, f.at(request, I64(i), kind=I64))
    kind = ir.FunctionType(POINTER, [request.type])
    address = f.field(api, function, I64)
    error = f.call(f.b.inttoptr(address, kind.as_pointer()), request)
    return error, f.at(request, I64(size - 1), kind=I64)


def _request(f: Function, api: Any, function: int, *arguments: Any) -> tuple[Any, Any]:
    """Call a function of XLA's FFI; return True if it failed, and a pointer to the last argument's result."""
    error, last = _called(f, api, function, *arguments)
    refused = f.b.not_(_is_nothing(f, error))
    with f.b.if_then(refused):
        _called(f, api, _DESTROY_ERROR, error)
    return refused, last
