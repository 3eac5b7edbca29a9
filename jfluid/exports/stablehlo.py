"""Models as StableHLO, and in the format of jax.export, with batches of any size."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from jfluid import errors
from jfluid.exports.model import LoadedModel, check_exportable, compare
from jfluid.interop import to_jax

try:
    import flatbuffers  # noqa: F401  which jax.export writes with
except ModuleNotFoundError as error:
    raise ImportError("models are exported with flatbuffers: pip install 'jfluid[export]'") from error

_PLATFORMS = ("cpu", "cuda")
_FRAMES = "jax_traceback_in_locations_limit"


def exported(model: LoadedModel, platforms: Sequence[str] = _PLATFORMS) -> export.Exported:
    """Return the model as jax.export has it: a function of its feeds, in order, that gives a tuple
    of its fetches; parameters are constants of it.

    The first dimension of feeds that is not fixed is `batch`, the same for all; others that are
    not are `d1`, `d2` and so on. Ids are int64, so calls need JAX's 64-bit mode where there are
    some (`with jax.enable_x64(True)`).

    Raises UnsupportedError for sequences, operators of the host, random numbers, and where an
    operator needs to know a size that is not fixed.
    """
    check_exportable(model, "export")
    with jax.enable_x64(True):
        apply, params = to_jax(model.program, model.feeds, model.fetches, model.scope)

        def function(*feeds: Any) -> tuple[Any, ...]:
            # The key is there for dropout, which takes one and draws nothing in a model.
            return tuple(apply(params, *feeds, key=jax.random.key(0)))

        frames = jax.config.values[_FRAMES]
        try:
            jax.config.update(_FRAMES, 0)  # no paths of this machine
            return export.export(jax.jit(function), platforms=list(platforms))(*_arguments(model))
        except Exception as error:
            if "symbolic" not in str(error).lower() and "dynamic" not in str(error).lower():
                raise
            first = str(error).strip().splitlines()[0]
            raise errors.UnsupportedError(
                f"export: an operator needs to know a size that is not fixed ({first})"
            ) from error
        finally:
            jax.config.update(_FRAMES, frames)


def _arguments(model: LoadedModel) -> list[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of the feeds, with symbols for sizes that are not fixed."""
    names, count = [], 0
    for var in model.feeds:
        sizes = []
        for i, size in enumerate(var.shape):
            if size < 0 and i:
                count += 1
            sizes.append(str(size) if size >= 0 else f"d{count}" if i else "batch")
        names.append(", ".join(sizes))
    scope = export.SymbolicScope()
    return [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), np.dtype(var.np_dtype))
        for var, shape in zip(model.feeds, names)
    ]


def to_jax_artifact(model: LoadedModel) -> tuple[bytes, float]:
    """Return (bytes for `jax.export.deserialize`, the largest difference found).

    Raises as `exported` and `compare` do.
    """
    data = bytes(exported(model).serialize())
    return data, compare(model, lambda feed: _called(model, data, feed))


def to_stablehlo(model: LoadedModel) -> tuple[bytes, float]:
    """Return (portable bytecode of StableHLO, the largest difference found), for the CPU's or any other compiler.

    Raises as `exported` and `compare` do.
    """
    found = exported(model, _PLATFORMS[:1])
    data = bytes(found.serialize())
    return bytes(found.mlir_module_serialized), compare(model, lambda feed: _called(model, data, feed))


def _called(model: LoadedModel, data: bytes, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the bytes give for a feed, read back."""
    with jax.enable_x64(True):
        found: export.Exported = export.deserialize(bytearray(data))
        return [np.asarray(v) for v in found.call(*(feed[var.name] for var in model.feeds))]
