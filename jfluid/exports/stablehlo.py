"""Models as StableHLO, and in the format of jax.export, with batches of any size."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from jfluid import errors
from jfluid.exports.model import LoadedModel, check_exportable, compare
from jfluid.exports.padded import arguments, as_arguments, as_sequences, check_levels, packed, unpacked
from jfluid.exports.sequences import Sequences, Value
from jfluid.interop import to_jax
from jfluid.ops.ragged import Ragged

try:
    import flatbuffers  # noqa: F401  which jax.export writes with
except ModuleNotFoundError as error:
    raise ImportError("models are exported with flatbuffers: pip install 'jfluid[export]'") from error

_PLATFORMS = ("cpu", "cuda")
_FRAMES = "jax_traceback_in_locations_limit"


def exported(
    model: LoadedModel, platforms: Sequence[str] = _PLATFORMS, longest: int | None = None, batch: int | None = None
) -> export.Exported:
    """Return the model as a jax.export function from feeds to a tuple of fetches; parameters are constants.

    The first dimension of feeds that is not fixed is the symbol `batch`, or the number `batch`, the same for all;
    other dimensions that are not fixed are `d1`, `d2` and so on. Ids are int64, so calls of models with ids need JAX's
    64-bit mode (`with jax.enable_x64(True)`).

    A feed of sequences is two arguments: rows `[batch, longest, ...]` and int32 lengths `[batch]`. A fetch of
    sequences is two results of these forms.

    Raises UnsupportedError for sequences without `longest`, operators of the host, random numbers, and where an
    operator needs to know a size that is not fixed; OutOfMemoryError for feeds of more than 1 GiB.
    """
    check_exportable(model, "export")
    check_levels(model, longest)
    model.check_sizes(batch or 1, longest or 1)
    with jax.enable_x64(True):
        apply, params = to_jax(model.program, model.feeds, model.fetches, model.scope)

        def function(*given: Any) -> tuple[Any, ...]:
            values = iter(given)
            feeds = [
                packed(next(values), next(values), longest) if var.lod_level and longest is not None else next(values)
                for var in model.feeds
            ]
            # The key is there for dropout, which takes one and draws nothing in a model.
            found = apply(params, *feeds, key=jax.random.key(0))
            results: list[Any] = []
            for var, value in zip(model.fetches, found, strict=True):
                results += unpacked(value, var.name) if isinstance(value, Ragged) else [value]
            return tuple(results)

        frames = jax.config.values[_FRAMES]
        try:
            jax.config.update(_FRAMES, 0)  # no paths of this machine
            return export.export(jax.jit(function), platforms=list(platforms))(*_arguments(model, longest, batch))
        except Exception as error:
            if "symbolic" not in str(error).lower() and "dynamic" not in str(error).lower():
                raise
            first = str(error).strip().splitlines()[0]
            raise errors.UnsupportedError(
                f"export: an operator needs to know a size that is not fixed ({first}); --batch N fixes the batch"
            ) from error
        finally:
            jax.config.update(_FRAMES, frames)


def _arguments(model: LoadedModel, longest: int | None, batch: int | None) -> list[jax.ShapeDtypeStruct]:
    """Return shapes and element types of the arguments, with symbols for sizes that are not fixed."""
    names, count = [], 0
    given = arguments(model.feeds, longest)
    for _, shape, _ in given:
        sizes = []
        for i, size in enumerate(shape):
            if size < 0 and i:
                count += 1
            sizes.append(str(size) if size >= 0 else f"d{count}" if i else str(batch or "batch"))
        names.append(", ".join(sizes))
    scope = export.SymbolicScope()
    return [
        jax.ShapeDtypeStruct(export.symbolic_shape(sizes, scope=scope), dtype)
        for (_, _, dtype), sizes in zip(given, names, strict=True)
    ]


def to_jax_artifact(model: LoadedModel, longest: int | None = None, batch: int | None = None) -> tuple[bytes, float]:
    """Return (bytes for `jax.export.deserialize`, the largest difference found).

    Raises as `exported` and `compare` do.
    """
    data = bytes(exported(model, longest=longest, batch=batch).serialize())
    return data, _compared(model, data, longest, batch)


def to_stablehlo(model: LoadedModel, longest: int | None = None, batch: int | None = None) -> tuple[bytes, float]:
    """Return (portable bytecode of StableHLO, the largest difference found), for the CPU's or any other compiler.

    Raises as `exported` and `compare` do.
    """
    found = exported(model, _PLATFORMS[:1], longest, batch)
    return bytes(found.mlir_module_serialized), _compared(model, bytes(found.serialize()), longest, batch)


def _compared(model: LoadedModel, data: bytes, longest: int | None, batch: int | None) -> float:
    """Return the largest difference of an exported model, read back. Raises as `compare` does."""

    def run(feed: dict[str, Value]) -> list[Value]:
        given = as_arguments(feed, longest)
        with jax.enable_x64(True):
            found: export.Exported = export.deserialize(bytearray(data))
            results = iter([np.asarray(v) for v in found.call(*given.values())])
        return [as_sequences(next(results), next(results)) if ragged else next(results) for ragged in of_sequences]

    of_sequences = [isinstance(value, Sequences) for value in model.run(model.sample(2))]
    return compare(model, run, (batch,) if batch else (2, 3), longest=longest or 1)
