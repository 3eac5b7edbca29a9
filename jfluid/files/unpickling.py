"""Reader of pickled arrays that runs no code of the pickle.

A pickle is a program for a stack machine: it may call any function, let one byte stand for a
container of any size, and nest without end. The machine here knows the instructions that arrays,
numbers, texts and containers need, and the few names that NumPy's pickles use, which stand for
functions of this module. It has a budget: whatever a pickle says, it takes memory for a few times
its own size at most, and time in proportion to it.
"""

import math
import re
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# What a pickle may take: bytes of memory for each byte of it; and what the smallest may.
_FACTOR, _LEAST = 9, 1 << 19
_MOST_DEPTH = 32  # of containers within containers
_MOST_DIMENSIONS = 64  # NumPy's own limit
_LONGEST_WHOLE = 16  # bytes of a whole number
_LONGEST_NAME = 64  # bytes of the name of a module or function
_DTYPE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
# also what a key may be: tuples of tuples of ... take for ever to hash
_ATOMS = (type(None), bool, int, float, str, bytes)
# Bytes of memory: a place on the stack, a small object, an entry of a dict (an OrderedDict has
# twice as much), an array, what is noted of a container that stands in several places.
_PLACE, _OBJECT, _ENTRY, _ARRAY, _NOTE = 18, 32, 60, 160, 200
_NOTHING = object()


class RefusedPickle(Exception):
    """Error of a damaged or too large pickle, or of content other than arrays and containers."""


def load(data: bytes) -> Any:
    """Return the content of a pickle of protocol 2 or above.

    It may have numbers, texts, bytes, arrays, and dicts, lists and tuples.

    Raises RefusedPickle, which says why.
    """
    try:
        machine = _Machine(data)
        return _Settled(len(data), machine.shared).of(machine.run())[0]
    except (UnicodeDecodeError, UnicodeEncodeError) as e:
        raise RefusedPickle(f"a damaged text: {e.reason}") from None


# ---- what names in a pickle stand for ------------------------------------------------------------


class _Function:
    """A function that a pickle may call.

    Attributes:
        keeps: whether what it returns keeps its arguments in memory.
    """

    __slots__ = ("call", "keeps")

    def __init__(self, call: "Callable[[_Machine, tuple[Any, ...]], Any]", keeps: bool = False):
        self.call, self.keeps = call, keeps


class _PendingDtype:
    """The dtype that a pickle describes, before it is checked."""

    __slots__ = ("dtype",)

    def __init__(self, text: str):
        if not _DTYPE.fullmatch(text):
            raise RefusedPickle(f"dtype {text[:40]!r} holds more than numbers")
        self.dtype = np.dtype(text)

    def build(self, state: Any) -> None:
        if type(state) is not tuple or len(state) < 5 or not all(type(part) in _ATOMS for part in state):
            raise RefusedPickle("a dtype with fields")
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|") or state[2:5] != (None, None, None):
            raise RefusedPickle("a dtype with fields")
        if order != "|":
            self.dtype = self.dtype.newbyteorder(order)  # type: ignore[arg-type]  # one of those above


class _PendingArray:
    """The array that a pickle describes; `value` once its state is known and consistent."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: np.ndarray | None = None

    def build(self, state: Any) -> None:
        if (
            type(state) is not tuple
            or len(state) != 5
            or type(state[1]) is not tuple
            or type(state[2]) is not _PendingDtype
        ):
            raise RefusedPickle("an array without shape and dtype")
        _, shape, pending, fortran, data = state
        data, dtype = _bytes_of(data), pending.dtype
        if len(shape) > _MOST_DIMENSIONS or not all(type(d) is int and 0 <= d < 1 << 48 for d in shape):
            raise RefusedPickle(f"an array of an impossible shape, of {len(shape)} dimensions")
        # NumPy multiplies all dimensions but zeros, too.
        if math.prod(d or 1 for d in shape) >= 1 << 56 or math.prod(shape) * dtype.itemsize != len(data):
            raise RefusedPickle(f"an array of {dtype}{list(shape)} does not have {len(data)} bytes")
        found = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype).reshape(
            shape, order="F" if fortran else "C"
        )
        # A copy in this machine's byte order; of bool, where any byte but 0 is true.
        self.value = found != 0 if dtype.kind == "b" else np.array(found, dtype.newbyteorder("="))


def _bytes_of(data: Any) -> bytes:
    if type(data) not in (bytes, str):
        raise RefusedPickle(f"numbers without bytes: found a {type(data).__name__}")
    return data.encode("latin1") if isinstance(data, str) else data


def _reconstruct(machine: "_Machine", arguments: tuple[Any, ...]) -> _PendingArray:
    if (
        len(arguments) != 3
        or arguments[0] is not _NDARRAY
        or arguments[1] != (0,)
        or type(arguments[2]) not in (bytes, str)
    ):
        raise RefusedPickle("an array that does not begin as one")
    return _PendingArray()


def _dtype(machine: "_Machine", arguments: tuple[Any, ...]) -> _PendingDtype:
    text = _bytes_of(arguments[0]).decode("latin1") if arguments else ""
    if len(arguments) > 3 or not all(type(a) in (bool, int) for a in arguments[1:]):
        raise RefusedPickle("a dtype of other arguments than text, align and copy")
    return _PendingDtype(text)


def _scalar(machine: "_Machine", arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2 or type(arguments[0]) is not _PendingDtype:
        raise RefusedPickle("a number without a dtype")
    dtype, data = arguments[0].dtype, _bytes_of(arguments[1])
    if len(data) != dtype.itemsize:
        raise RefusedPickle(f"a number of {dtype} does not have {len(data)} bytes")
    found = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype)[0]
    return np.bool_(found) if dtype.kind == "b" else found


def _encode(machine: "_Machine", arguments: tuple[Any, ...]) -> bytes:
    if not arguments or type(arguments[0]) is not str or arguments[1:] not in ((), ("latin1",), ("latin-1",)):
        raise RefusedPickle("bytes in an encoding other than latin1")
    return arguments[0].encode("latin1")


def _no_bytes(machine: "_Machine", arguments: tuple[Any, ...]) -> bytes:
    if arguments:
        raise RefusedPickle("bytes made by a function")
    return b""


def _ordered(machine: "_Machine", arguments: tuple[Any, ...]) -> OrderedDict[Any, Any]:
    found: OrderedDict[Any, Any] = OrderedDict()
    pairs = arguments[0] if len(arguments) == 1 else []
    if (
        len(arguments) > 1
        or type(pairs) not in (list, tuple)
        or any(type(pair) not in (list, tuple) or len(pair) != 2 for pair in pairs)
    ):
        raise RefusedPickle("an OrderedDict of items that are not pairs")
    machine.fill(found, [part for pair in pairs for part in pair])
    return found


def _no_call(machine: "_Machine", arguments: tuple[Any, ...]) -> Any:
    raise RefusedPickle("an array that is made without _reconstruct")


_NDARRAY = _Function(_no_call)
_NAMES = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Function(_dtype),
    ("_codecs", "encode"): _Function(_encode),
    ("__builtin__", "bytes"): _Function(_no_bytes),
    ("collections", "OrderedDict"): _Function(_ordered, keeps=True),
}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _NAMES |= {(_module, "_reconstruct"): _Function(_reconstruct), (_module, "scalar"): _Function(_scalar)}


# ---- the machine ---------------------------------------------------------------------------------


class _Machine:
    """Runs one pickle. Raises RefusedPickle.

    Each value on the stack has a cost, the bytes of memory that it takes; a value that is popped
    and not kept gives its cost back.
    """

    def __init__(self, data: bytes):
        self._data, self._at = memoryview(data), 0
        self._most = self._left = max(_FACTOR * len(data), _LEAST)
        self._stack: list[Any] = []
        self._costs: list[int] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._known = 0  # how many values were remembered so far
        self._used = bytearray()  # of each of them, whether it is asked for
        self.shared: set[int] = set()  # ids of the containers that were

    def run(self) -> Any:
        """Return the content of the pickle, with arrays as _PendingArray."""
        self._look_through()
        while (code := self._take(1)[0]) != _STOP:
            instruction = _INSTRUCTIONS[code]
            instruction.work(self, self._argument(instruction))
        if len(self._stack) != 1 or self._marks:
            raise RefusedPickle("it ends before it is complete")
        return self._stack[0]

    def _look_through(self) -> None:
        """Check instructions, lengths and numbers before any object is made; note memoized values that are never used.

        Most memoized values are not used.
        """
        while (code := self._take(1)[0]) != _STOP:
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise RefusedPickle(f"instruction {code:#04x} at offset {self._at - 1}, which arrays have no use for")
            argument = self._argument(instruction)
            if instruction.work is _Machine.put:
                self._remember(argument)
            elif instruction.work is _Machine.get:
                self._used.extend(bytes(max(self._known - len(self._used), 0)))
                if argument >= self._known:
                    raise RefusedPickle(f"it uses number {argument} before it is known")
                self._used[argument] = 1
        if self._at != len(self._data):
            raise RefusedPickle(f"oversized: {len(self._data) - self._at} bytes follow the pickle")
        self._at = self._known = 0

    def _remember(self, index: int | None) -> int:
        """Return the number of the next memoized value."""
        index = self._known if index is None else index
        if index > self._known + 1:  # picklers count from 0, or from 1
            raise RefusedPickle(f"it memoizes a value as number {index}, and {self._known} are known")
        self._known = max(self._known, index + 1)
        return index

    def spend(self, cost: int) -> None:
        """Take a cost from the budget. Raises RefusedPickle when it is used up."""
        self._left -= cost
        if self._left < 0:
            raise RefusedPickle(
                f"it would take more than {self._most} bytes of memory, and has {len(self._data)} itself: numbers "
                "in lists, and very many small arrays, are better saved as larger arrays"
            )

    # Bytes

    def _take(self, count: int) -> memoryview:
        begin = self._at
        if not 0 <= count <= len(self._data) - begin:
            raise RefusedPickle(f"truncated: {count} bytes at offset {begin}, {len(self._data) - begin} are left")
        self._at = begin + count
        return self._data[begin : self._at]

    def _argument(self, instruction: "_Instruction") -> Any:
        """Return the number, bytes or two lines after an instruction."""
        layout = instruction.layout
        if layout is None:
            return (self._line(), self._line()) if instruction.work is _Machine.name else instruction.argument
        number = layout.unpack(self._take(layout.size))[0]
        return self._take(number) if instruction.sized else number

    def _line(self) -> str:
        begin = bytes(self._data[self._at : self._at + _LONGEST_NAME])
        end = begin.find(b"\n")
        if end < 0:
            raise RefusedPickle(f"a name of more than {_LONGEST_NAME} bytes")
        self._at += end + 1
        return begin[:end].decode("latin1")

    # The stack

    def _push(self, value: Any, cost: int = 0) -> None:
        self.spend(cost + _PLACE)
        self._stack.append(value)
        self._costs.append(cost)

    def _push_object(self, value: Any) -> None:
        self._push(value, sys.getsizeof(value))

    def _pop(self, count: int) -> tuple[list[Any], int]:
        """Return the values on top and their cost, for a refund if the values are dropped."""
        begin = len(self._stack) - count
        if begin < (self._marks[-1] if self._marks else 0):
            raise RefusedPickle("it takes from an empty stack")
        values, cost = self._stack[begin:], sum(self._costs[begin:])
        del self._stack[begin:], self._costs[begin:]
        self._left += _PLACE * count
        return values, cost

    def _top(self, *kinds: type) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0) or type(self._stack[-1]) not in kinds:
            raise RefusedPickle(f"expected a {kinds[0].__name__.strip('_')} on the stack")
        return self._stack[-1]

    def _since_mark(self) -> int:
        """Return how many values lie above the last mark, which is removed."""
        if not self._marks:
            raise RefusedPickle("no mark on the stack")
        self._left += _PLACE
        return len(self._stack) - self._marks.pop()

    # Instructions, each with its argument

    def mark(self, _: None) -> None:
        self.spend(_PLACE)
        self._marks.append(len(self._stack))

    def constant(self, value: Any) -> None:
        self._push(value)

    def number(self, value: Any) -> None:
        self._push(value, 0 if isinstance(value, int) and 0 <= value < 256 else _OBJECT)

    def whole(self, data: memoryview) -> None:
        if len(data) > _LONGEST_WHOLE:
            raise RefusedPickle(f"a whole number of {len(data)} bytes")
        self._push_object(int.from_bytes(data, "little", signed=True))

    def text(self, data: memoryview) -> None:
        self._push_object(str(data, "utf-8", "surrogatepass"))

    def latin1(self, data: memoryview) -> None:
        self._push_object(str(data, "latin1"))

    def make_bytes(self, data: memoryview) -> None:
        self._push_object(bytes(data))

    def make_list(self, _: None) -> None:
        self._push([], 56 + _OBJECT)

    def make_dict(self, _: None) -> None:
        self._push({}, 64 + 2 * _ENTRY)

    def make_tuple(self, count: int | None) -> None:
        values, cost = self._pop(self._since_mark() if count is None else count)
        self._left += cost
        self._push(tuple(values), cost + 56 + 8 * len(values))

    def extend(self, count: int | None) -> None:
        values, _ = self._pop(self._since_mark() if count is None else count)
        self.spend(10 * len(values))
        self._top(list).extend(values)

    def set_items(self, count: int | None) -> None:
        values, _ = self._pop(self._since_mark() if count is None else count)
        self.fill(self._top(dict, OrderedDict), values)

    def fill(self, target: dict[Any, Any], values: list[Any]) -> None:
        """Add keys and values, in turn, to a dict."""
        if len(values) % 2:
            raise RefusedPickle("a key without a value")
        self.spend(_ENTRY * len(values) // (2 if type(target) is dict else 1))
        for i in range(0, len(values), 2):
            if type(values[i]) not in _ATOMS:
                raise RefusedPickle(f"a key that is a {type(values[i]).__name__}")
            target[values[i]] = values[i + 1]

    def put(self, index: int | None) -> None:
        index = self._remember(index)
        if not self._stack:
            raise RefusedPickle("it memoizes a value that is not there")
        if index < len(self._used) and self._used[index]:
            self.spend(self._costs[-1] + _PLACE * (index + 1 - len(self._memo)))
            self._memo += [_NOTHING] * (index + 1 - len(self._memo))
            self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        if index >= len(self._memo) or self._memo[index] is _NOTHING:
            raise RefusedPickle(f"it uses number {index} before it is known")
        value = self._memo[index]
        if type(value) in (dict, OrderedDict, list, tuple) and id(value) not in self.shared:
            self.spend(_NOTE)
            self.shared.add(id(value))
        self._push(value)

    def name(self, lines: tuple[str, str]) -> None:
        found = _NAMES.get(lines)
        if found is None:
            raise RefusedPickle(f"it names {'.'.join(lines)}, which a file of arrays has no use for; not loaded")
        self._push(found)

    def name_on_stack(self, _: None) -> None:
        values, cost = self._pop(2)
        if not all(type(value) is str and len(value) < _LONGEST_NAME for value in values):
            raise RefusedPickle(f"a name that is no text, or longer than {_LONGEST_NAME}")
        self._left += cost
        self.name((values[0], values[1]))

    def call(self, _: None) -> None:
        (function, arguments), cost = self._pop(2)
        if type(function) is not _Function or type(arguments) is not tuple:
            raise RefusedPickle("a call of a value that is no function")
        if type(made := function.call(self, arguments)) is _PendingArray:
            self._push(made, _ARRAY + _OBJECT)
        else:
            self._push_object(made)
        self._left += 0 if function.keeps else cost

    def build(self, _: None) -> None:
        (state,), cost = self._pop(1)
        target = self._top(_PendingArray, _PendingDtype)
        if type(target) is _PendingArray and type(state) is tuple and state and type(state[-1]) in (bytes, str):
            self.spend(len(state[-1]))
        target.build(state)
        self._left += cost

    def frame(self, _: int) -> None:
        """Ignore how far to read ahead: all bytes are here."""

    def protocol(self, version: int) -> None:
        if not 2 <= version <= 5:
            raise RefusedPickle(f"protocol {version}, expected one of 2 to 5")


class _Instruction(NamedTuple):
    """Instruction of a pickle: its handler, and its operand (a number of a layout, a byte count, or an argument)."""

    work: Callable[[_Machine, Any], None]
    layout: struct.Struct | None = None
    sized: bool = False
    argument: Any = None


_B, _H, _I32, _U32, _U64, _DOUBLE = (struct.Struct(layout) for layout in ("<B", "<H", "<i", "<I", "<Q", ">d"))
_STOP = ord(".")
_M, _I = _Machine, _Instruction
_INSTRUCTIONS = {
    ord(code): instruction
    for code, instruction in {
        "\x80": _I(_M.protocol, _B),
        "\x95": _I(_M.frame, _U64),
        "(": _I(_M.mark),
        "N": _I(_M.constant),
        "\x88": _I(_M.constant, argument=True),
        "\x89": _I(_M.constant, argument=False),
        ")": _I(_M.constant, argument=()),
        "K": _I(_M.number, _B),
        "M": _I(_M.number, _H),
        "J": _I(_M.number, _I32),
        "G": _I(_M.number, _DOUBLE),
        "\x8a": _I(_M.whole, _B, True),
        "\x8b": _I(_M.whole, _I32, True),
        "\x8c": _I(_M.text, _B, True),
        "X": _I(_M.text, _U32, True),
        "\x8d": _I(_M.text, _U64, True),
        "U": _I(_M.latin1, _B, True),
        "T": _I(_M.latin1, _I32, True),  # what Python 2 calls a str
        "C": _I(_M.make_bytes, _B, True),
        "B": _I(_M.make_bytes, _U32, True),
        "\x8e": _I(_M.make_bytes, _U64, True),
        "]": _I(_M.make_list),
        "}": _I(_M.make_dict),
        "t": _I(_M.make_tuple),
        "\x85": _I(_M.make_tuple, argument=1),
        "\x86": _I(_M.make_tuple, argument=2),
        "\x87": _I(_M.make_tuple, argument=3),
        "a": _I(_M.extend, argument=1),
        "e": _I(_M.extend),
        "s": _I(_M.set_items, argument=2),
        "u": _I(_M.set_items),
        "q": _I(_M.put, _B),
        "r": _I(_M.put, _U32),
        "\x94": _I(_M.put),
        "h": _I(_M.get, _B),
        "j": _I(_M.get, _U32),
        "c": _I(_M.name),
        "\x93": _I(_M.name_on_stack),
        "R": _I(_M.call),
        "b": _I(_M.build),
    }.items()
}


# ---- after the machine ---------------------------------------------------------------------------


class _Settled:
    """Replaces _PendingArrays by their arrays.

    A container may stand in several places, but not within itself. Where all of them together would
    have more values than the pickle has bytes, the pickle is one that multiplies (ten lists, each
    of which has the one before ten times), and is refused.
    """

    def __init__(self, most: int, shared: set[int]):
        self._most, self._shared = most, shared
        # shared containers by id: what they became, how many values they hold
        self._known: dict[int, tuple[Any, int]] = {}

    def of(self, value: Any, depth: int = 0) -> tuple[Any, int]:
        """Return (the value, how many values it holds)."""
        kind = type(value)
        if kind is _PendingArray:
            if value.value is None:
                raise RefusedPickle("an array without contents")
            return value.value, 1
        if kind is _PendingDtype or kind is _Function:
            raise RefusedPickle(f"expected arrays, found a {kind.__name__.strip('_')}")
        if kind not in (dict, OrderedDict, list, tuple):
            return value, 1
        known = self._known.get(id(value)) if id(value) in self._shared else None
        if known is None:
            if depth == _MOST_DEPTH:
                raise RefusedPickle(f"containers that are more than {_MOST_DEPTH} deep")
            known = self._container(value, depth)
            if id(value) in self._shared:
                self._known[id(value)] = known
        return known

    def _container(self, value: Any, depth: int) -> tuple[Any, int]:
        places = value if isinstance(value, dict) else range(len(value))
        found = list(value) if isinstance(value, tuple) else value
        total = 1
        for place in places:
            found[place], count = self.of(found[place], depth + 1)
            total += count
            if total > self._most:
                raise RefusedPickle(f"containers that hold more than {self._most} values")
        return (tuple(found) if isinstance(value, tuple) else found), total
