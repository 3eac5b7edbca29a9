"""Products of matrices on CPUs: for each shape the form that is fastest there."""

from jax import Array, lax

# Less is done sooner than threads wake up.
_FEWEST = 1 << 20  # multiplications


def over_rows(x: Array, y: Array) -> Array:
    """Return x.T @ y, of matrices in single precision with equally many rows."""
    if x.size * y.shape[1] >= _FEWEST:
        from jfluid.compile import direct_product  # LLVM, which not all programs need

        if direct_product.suits(x, y):
            return direct_product.over_rows(x, y)
    return lax.dot_general(x, y, (((0,), (0,)), ((), ())))
