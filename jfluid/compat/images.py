"""Pillow, where it is installed."""

from types import ModuleType

from jfluid.errors import DependencyError


def pillow() -> ModuleType:
    """Return the module PIL.Image. Raises DependencyError."""
    try:
        from PIL import Image
    except ImportError:
        raise DependencyError("images of data sets", "Pillow", "datasets") from None
    return Image
