"""Products of matrices on CPUs: for each shape the form that is fastest there."""

from jax import Array, lax

# Less is done sooner than threads wake up, unless it is what XLA's library does on one thread.
_FEWEST, _FEWEST_OF_WEIGHTS = 1 << 20, 3 << 18  # multiplications


def is_own(x: Array, y: Array, over: tuple[int, int]) -> bool:
    """Return whether a product of two matrices in single precision, summed over dimension `over[0]` of x and
    `over[1]` of y, is computed by machine code of our own.
    """
    fewest = _FEWEST_OF_WEIGHTS if over == (0, 0) else _FEWEST
    if x.size * y.shape[1 - over[1]] < fewest:
        return False
    from jfluid.machine_code import direct_product  # LLVM, which not all programs need

    return direct_product.suits(x, y, over)


def product(x: Array, y: Array, over: tuple[int, int]) -> Array:
    """Return such a product."""
    if is_own(x, y, over):
        from jfluid.machine_code import direct_product  # as above

        return direct_product.product(x, y, over)
    return lax.dot_general(x, y, (((over[0],), (over[1],)), ((), ())))
