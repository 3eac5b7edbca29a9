"""Bytes of text by their address, for parsers that numba compiles.

For an array that is passed to a function numba counts references atomically, which took six times
as long as the parsing. A text ends with a byte that ends every word, so that no function has to
check for the end within one.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from jfluid.caches.compiled_kernels import kernel


@intrinsic
def load(typing: Any, at: Any, zero: Any) -> Any:
    """Load the number of the type of `zero` from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], context.get_value_type(zero).as_pointer())
        return builder.load(pointer, align=1)

    return zero(types.int64, zero), generate


@kernel()
def byte(at):
    """Return the byte at an address."""
    return load(at, np.uint8(0))
