"""Products of matrices on CPUs: for each shape the form that is fastest there."""

from jax import Array, lax

_FEWEST = 1 << 18  # multiplications
_MOST_JOINED = 2


def is_own(x: Array, y: Array, over: tuple[int, int]) -> bool:
    """Return whether a product of two matrices in single precision, summed over dimension `over[0]` of x and
    `over[1]` of y, is computed in another way than by XLA's library.
    """
    return _is_joined(x, over) or is_machine_code(x, y, over)


def product(x: Array, y: Array, over: tuple[int, int]) -> Array:
    """Return such a product."""
    if _is_joined(x, over):
        return _joined(x, y, over)
    if is_machine_code(x, y, over):
        from jfluid.machine_code import direct_product  # LLVM, which not all programs need

        return direct_product.product(x, y, over)
    return lax.dot_general(x, y, (((over[0],), (over[1],)), ((), ())))


def is_machine_code(x: Array, y: Array, over: tuple[int, int]) -> bool:
    """Return whether machine code of our own computes such a product."""
    if _is_joined(x, over):
        return False
    if x.size * y.shape[1 - over[1]] < _FEWEST:
        return False
    from jfluid.machine_code import direct_product  # as above

    return direct_product.suits(x, y, over)


def _is_joined(x: Array, over: tuple[int, int]) -> bool:
    """Whether so few numbers are added up that XLA computes them in the loop that reads the result."""
    return 0 < x.shape[over[0]] <= _MOST_JOINED


def _joined(x: Array, y: Array, over: tuple[int, int]) -> Array:
    rows, columns = (lax.transpose(a, (axis, 1 - axis)) for a, axis in zip((x, y), over))
    out: Array = rows[0][:, None] * columns[0]
    for row, column in zip(rows[1:], columns[1:]):
        out = out + row[:, None] * column
    return out
