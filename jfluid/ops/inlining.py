"""Value for `jax.jit(inline=...)` that inlines during tracing on every supported JAX."""

from typing import Any

import jax

# For `jax.jit(inline=...)`. From JAX 0.11 on True is later, where a step becomes MLIR: what rewrites a traced step
# would not look inside.
EARLY: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True
