"""Level of JAX's loggers in scripts that set the root logger's."""

import logging
import sys


def keep_to_warnings() -> None:
    """Have JAX log warnings alone, unless its level is set or the script has imported JAX by itself.

    A script that sets the root logger to DEBUG wants its own lines: JAX would write a line for each function that it
    traces. `logging.getLogger("jax").setLevel(...)` and JAX_LOGGING_LEVEL hold as ever.
    """
    log = logging.getLogger("jax")
    if "jax" not in sys.modules and log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)
