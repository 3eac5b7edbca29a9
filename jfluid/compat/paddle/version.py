"""`paddle.version`: the release of the emulated interface, and the version of jfluid."""

from jfluid.installation import FLUID_VERSION, VERSION

full_version = FLUID_VERSION
major, minor, patch = FLUID_VERSION.split(".")
rc = "0"
istaged = True
commit = f"jfluid {VERSION}"  # of Fluid's own it would be a hash
with_mkl = "OFF"


def show() -> None:
    """Print both versions."""
    print(f"Fluid {full_version}, by {commit}")


def mkl() -> str:
    """Return "OFF": XLA does not use MKL."""
    return with_mkl
