"""Nested lists of numbers in JSON, read into arrays by functions that numba compiles.

They run without Python's lock and make no object for a number, so that a text of any kind costs a
few nanoseconds a byte, and others are served meanwhile. A text ends with a zero byte.
"""

import numpy as np
from numba import types

from jfluid.caches.compiled_kernels import kernel
from jfluid.dataset.text_bytes import byte, load

# What is wrong with a text; `read` returns one of these numbers, or FULL where `numbers` is.
(
    FULL,
    SYNTAX,
    DEEP,
    SHALLOW,
    LENGTH,
    MANY,
    NUMBER,
    WHOLE,
    RANGE,
    LONG,
) = range(1, 11)
LONGEST_NUMBER, LONGEST_TEXT = 1000, 4096  # bytes

# What `state` has, before the numbers of values of the lists that are open.
DEPTH, _EXPECTS, TAKEN, LISTS = range(4)
HEAD = 4
# Size of lists that may differ in length, and what stands before the depth in `lengths`.
RAGGED, DEPTHS = -2, 16
_VALUE, _FIRST, _AFTER = range(3)
_POWERS = 10.0 ** np.arange(23)
_EXACT = np.uint64(1) << np.uint64(53)
_TENTH, _LAST = np.uint64((1 << 63) // 10), np.uint64(8)
_OPEN, _CLOSE, _COMMA, _SPACE, _TAB, _NEWLINE, _RETURN, _MINUS, _PLUS, _DOT, _ZERO, _QUOTE = (
    np.uint8(ord(c)) for c in '[], \t\n\r-+.0"'
)
_BRACE, _END_BRACE = np.uint8(ord("{")), np.uint8(ord("}"))
_LOWER_E, _UPPER_E, _BACKSLASH, _CAPITAL_I = (np.uint8(ord(c)) for c in "eE\\I")
_TRUE, _FALSE = np.frombuffer(b"true\0", np.uint8), np.frombuffer(b"false\0", np.uint8)
_NAN, _INF = np.frombuffer(b"NaN\0", np.uint8), np.frombuffer(b"Infinity\0", np.uint8)
_NAN_TEXT, _INF_TEXT = np.frombuffer(b'"nan"\0', np.uint8), np.frombuffer(b'"inf"\0', np.uint8)
_BELOW_TEXT = np.frombuffer(b'"-inf"\0', np.uint8)
# C's, by which a number is the nearest one that there is.
_strtod = types.ExternalFunction("strtod", types.float64(types.int64, types.int64))


@kernel()
def space(at):
    """Return where the next word begins."""
    c = byte(at)
    while c == _SPACE or c == _NEWLINE or c == _RETURN or c == _TAB:
        at += 1
        c = byte(at)
    return at


@kernel()
def text_end(at, longest):
    """Return where the quote is that ends the text from address `at` on; 0 for none."""
    for place in range(at, at + longest):
        c = byte(place)
        if c < _SPACE:
            return 0
        if c == _QUOTE:
            behind = place
            while byte(behind - 1) == _BACKSLASH and behind > at:
                behind -= 1
            if (place - behind) % 2 == 0:
                return place
    return 0


@kernel()
def skip(at):
    """Return the address behind the JSON value at an address; 0 for a value that does not end."""
    depth = 0
    while True:
        at = space(at)
        c = byte(at)
        if c == 0:
            return 0
        if c == _QUOTE:
            at = text_end(at + 1, LONGEST_TEXT)
            if at == 0:
                return 0
        elif c == _OPEN or c == _BRACE:
            depth += 1
        elif c == _CLOSE or c == _END_BRACE:
            depth -= 1
            if depth < 0:
                return 0
        at += 1
        following = byte(space(at))
        if depth == 0 and (following == _COMMA or following == _CLOSE or following == _END_BRACE or following == 0):
            return at


@kernel()
def _is(at, word):
    """Return the length of the word if the text has it at that address, else 0."""
    size = 0
    while word[size] != 0:
        if byte(at + size) != word[size]:
            return 0
        size += 1
    return size


@kernel()
def _word(at, whole):
    """Parse true, false, NaN or Infinity; return (value, end, error code)."""
    size = _is(at, _TRUE)
    if size:
        return 1.0, at + size, 0
    size = _is(at, _FALSE)
    if size:
        return 0.0, at + size, 0
    if whole:
        return 0.0, at, NUMBER
    size = max(_is(at, _NAN), _is(at, _NAN_TEXT))
    if size:
        return np.nan, at + size, 0
    size = max(_is(at, _INF), _is(at, _INF_TEXT))
    if size:
        return np.inf, at + size, 0
    size = _is(at, _BELOW_TEXT)
    if not size and byte(at) == _MINUS:
        size = _is(at + 1, _INF)
        size += size > 0
    if size:
        return -np.inf, at + size, 0
    return 0.0, at, NUMBER


@kernel()
def _digits(at, mantissa, taken):
    """Parse digits at `at`; return (mantissa, number of digits, end). The mantissa takes 19 digits."""
    digit = np.uint8(byte(at) - _ZERO)
    while digit <= 9:
        if taken < 19:
            mantissa = mantissa * np.uint64(10) + np.uint64(digit)
            taken += mantissa > np.uint64(0)
        else:
            taken += 1
        at += 1
        digit = np.uint8(byte(at) - _ZERO)
    return mantissa, taken, at


@kernel()
def _integer(begin, least, most):
    """Parse an integer; return (value, end, error code)."""
    negative = byte(begin) == _MINUS
    at, value, fits = begin + negative, np.uint64(0), True
    first = at
    digit = np.uint8(byte(at) - _ZERO)
    while digit <= 9:
        if value > _TENTH or (value == _TENTH and digit > _LAST - (not negative)):
            fits = False
        value = value * np.uint64(10) + np.uint64(digit)
        at += 1
        digit = np.uint8(byte(at) - _ZERO)
    if at == first:
        return np.int64(0), at, NUMBER
    if byte(first) == _ZERO and at > first + 1:
        return np.int64(0), at, SYNTAX
    if byte(at) == _DOT or byte(at) == _LOWER_E or byte(at) == _UPPER_E:
        return np.int64(0), at, WHOLE
    found = np.int64(np.uint64(0) - value if negative else value)
    if not fits or found < least or found > most:
        return np.int64(0), at, RANGE
    return found, at, 0


@kernel()
def _decimal(begin, limit, ended):
    """Parse a JSON number into the nearest float64; return (value, end, error code)."""
    negative = byte(begin) == _MINUS
    first = begin + negative
    mantissa, taken, at = _digits(first, np.uint64(0), 0)
    if at == first:
        return 0.0, at, NUMBER
    if byte(first) == _ZERO and at > first + 1:
        return 0.0, at, SYNTAX
    power, point = 0, at
    if byte(at) == _DOT:
        mantissa, taken, at = _digits(at + 1, mantissa, taken)
        power = point + 1 - at
        if power == 0:
            return 0.0, at, SYNTAX
    if byte(at) == _LOWER_E or byte(at) == _UPPER_E:
        below = byte(at + 1) == _MINUS
        at += 2 if below or byte(at + 1) == _PLUS else 1
        exponent, _, end = _digits(at, np.uint64(0), 0)
        if end == at:
            return 0.0, at, SYNTAX
        few = min(np.int64(min(exponent, np.uint64(100000))), 100000)
        at, power = end, power + (-few if below else few)
    if at - begin > LONGEST_NUMBER:
        return 0.0, at, LONG
    if taken <= 19 and mantissa <= _EXACT and -22 <= power <= 22:
        value = np.float64(mantissa)
        value = value / _POWERS[-power] if power < 0 else value * _POWERS[power]
    else:
        value = _strtod(first, ended)
        if load(ended, np.int64(0)) != at:
            return 0.0, at, SYNTAX
    return (-value if negative else value), at, (RANGE if value >= limit else 0)


@kernel()
def _scalar(at, whole, least, most, limit, ended):
    """Parse a number, or a word for a number; return (decimal value, integer value, end, error code)."""
    c = byte(at)
    if (c != _MINUS and np.uint8(c - _ZERO) > 9) or byte(at + 1) == _CAPITAL_I:
        value, end, wrong = _word(at, whole)
        if whole and not wrong:
            return 0.0, np.int64(value), end, 0 if value <= most else RANGE
        return value, np.int64(0), end, wrong
    if whole:
        integer, end, wrong = _integer(at, least, most)
        return 0.0, integer, end, wrong
    value, end, wrong = _decimal(at, limit, ended)
    return value, np.int64(0), end, wrong


@kernel(inline="always")
def _closed(sizes, state, lengths):
    """Close the open list; return False if its length differs from its siblings' lengths."""
    depth = state[DEPTH] - 1
    count = state[HEAD + depth]
    if sizes[depth] == RAGGED:
        lengths[state[LISTS]] = count * DEPTHS + depth
        state[LISTS] += 1
        state[DEPTH] = depth
        return True
    if sizes[depth] < 0:
        sizes[depth] = count
    state[DEPTH] = depth
    return sizes[depth] == count


@kernel(inline="always")
def _counted(sizes, state):
    """Count a value of the open list; return False if the list is longer than its siblings."""
    depth = state[DEPTH] - 1
    state[_EXPECTS] = _AFTER
    if depth >= 0:
        state[HEAD + depth] += 1
        return sizes[depth] < 0 or state[HEAD + depth] <= sizes[depth]
    return True


@kernel()
def read(at, sizes, state, whole, least, most, limit, left, ended, numbers, integers, lengths):
    """Parse nested lists of numbers; return (end, count of numbers, error code).

    Args:
        at: the address.
        sizes: int64 [rank]: of the list at each depth, -1 for any; the sizes of the lists are put in. RAGGED for lists
            that differ in length.
        state: int64 [HEAD + rank], zeros at the beginning; the state from which a later call resumes.
        whole: True to parse integers from `least` to `most` into `integers`; False to parse decimal numbers below
            `limit` into `numbers`.
        left: largest count of numbers and lists.
        ended: the address of an int64, for C.
        numbers, integers: float64 and int64 [n], one memory.
        lengths: int64 [lists]: `length * DEPTHS + depth` of each RAGGED list, in the order in which the lists end.
    """
    rank, used = len(sizes), 0
    while True:
        at = space(at)
        c, expects = byte(at), state[_EXPECTS]
        if expects == _AFTER:
            if state[DEPTH] == 0:
                return at, used, 0
            if c == _COMMA:
                state[_EXPECTS] = _VALUE
            elif c != _CLOSE:
                return at, used, SYNTAX
            elif not _closed(sizes, state, lengths) or not _counted(sizes, state):
                return at, used, LENGTH
            at += 1
        elif c == _CLOSE and expects == _FIRST:
            if not _closed(sizes, state, lengths) or not _counted(sizes, state):
                return at, used, LENGTH
            at += 1
        elif c == _OPEN:
            if state[DEPTH] == rank:
                return at, used, DEEP
            state[HEAD + state[DEPTH]] = 0
            state[DEPTH] += 1
            state[_EXPECTS] = _FIRST
            state[TAKEN] += 1
            if state[TAKEN] > left:
                return at, used, MANY
            at += 1
        else:
            if used == len(numbers):
                return at, used, FULL
            decimal, integer, end, wrong = _scalar(at, whole, least, most, limit, ended)
            if wrong:
                return at, used, wrong
            if whole:
                integers[used] = integer
            else:
                numbers[used] = decimal
            if state[DEPTH] != rank:
                return at, used, SHALLOW
            state[TAKEN] += 1
            used += 1
            if state[TAKEN] > left:
                return at, used, MANY
            if not _counted(sizes, state):
                return at, used, LENGTH
            at = end
