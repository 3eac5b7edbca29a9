"""`paddle.batch` as a module; the package has the function of that name, too."""

from jfluid.feeding.reader import batch

__all__ = ["batch"]
