"""Steps of imperative mode whose arrays change shape: the same calls, with other sizes, share executables.

See `jfluid.compile.dynamic_shapes`, which does this for programs. A step belongs to a stream by its calls: those of
a loop whose batches have other lengths are the same, unless an attribute follows from a length.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid import flags
from jfluid.compile import trace
from jfluid.compile.dynamic_shapes.stream import ShapeStream
from jfluid.compile.executables import Executables
from jfluid.compile.lru_cache import LruCache
from jfluid.compile.numpy_steps.beside import device_of_interpreter
from jfluid.dygraph import released
from jfluid.dygraph.step import Kind, Record, Seeds, jitted, key_of, program
from jfluid.dygraph.values import in_order
from jfluid.ops.registry import is_local

FLAG = "FLAGS_dynamic_shapes"
_MOST = 32
_FEWEST = 4  # calls of a step that is worth it, unless one of them is a Program


class EagerSegment:
    """The calls of a step, as a stream sees them (see `stream.Segment`).

    Args:
        live: numbers of the results that somebody holds.
    """

    def __init__(
        self, records: Sequence[Record], leaves: int, live: Sequence[int], device: jax.Device
    ):
        self.items, self._drawing, self._constants = program(records)
        self.kept = [f"l{i}" for i in range(leaves)]
        self._live, self._device = [f"v{number}" for number in live], device

    def recorded(
        self,
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
        shapes: Mapping[int, tuple[int, ...]],
    ) -> Any:
        """See `stream.Segment.recorded`."""

        def run(env: dict[str, Any], seeds: Any) -> list[Any]:
            keys = {at: key_of(seeds[place]) for at, place in self._drawing}
            found = trace.recorded(self.items, env | self._constants, keys=keys)
            return [trace.dense(name, found.get(name)) for name in self._live]

        given = {
            name: jax.ShapeDtypeStruct(shapes.get(i, np.shape(value)), value.dtype)
            for i, (name, value) in enumerate(zip(self.kept, kept))
        }
        return trace.jaxpr_of(run, given, key)

    def padded(self, evaluate: Callable[[Mapping[str, Any], Any, Any], list[Any]]) -> Any:
        """See `stream.Segment.padded`."""
        on_cpu, live, items = self._device.platform == "cpu", self._live, self.items

        def run(donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
            *values, true = kept
            env = dict(zip([f"l{i}" for i in range(len(values))], values))

            def compute(given: dict[str, Any]) -> dict[str, Any]:
                arrays = {name: given[name] for name in sorted(given)}
                given.update(zip(live, evaluate(arrays, key, true)))
                return given

            found = trace.laid_out(compute, items, env, on_cpu, wanted=live)
            return tuple([found[name] for name in live]), ()

        interprets = device_of_interpreter(self._device)
        return Executables(lambda: jitted(run, self._device), interprets=interprets)


class EagerStreams:
    """Streams of the steps of one device."""

    def __init__(self, device: jax.Device):
        self._device = device
        self._streams = LruCache[tuple[EagerSegment, ShapeStream]](_MOST)

    def run(
        self,
        records: Sequence[Record],
        arrays: Sequence[Any],
        kinds: Sequence[Kind],
        live: Sequence[int],
        seeds: Seeds,
    ) -> list[Any] | None:
        """Return the results of a step at padded sizes; None for one that runs as it is.

        Args:
            kinds: of the arrays.
            live: numbers of the results.
        """
        if not flags.get(FLAG):
            return None
        if len(records) < _FEWEST and not any(is_local(r.call.definition.type) for r in records):
            return None
        if not all(aval.plain for aval, _ in kinds):
            return None
        outline = (
            tuple([(record.call.number, record.inputs) for record in records]),
            tuple([aval.dtype for aval, _ in kinds]),
            tuple(live),
            flags.get("FLAGS_cpu_kernels"),
        )
        _, stream = self._streams.get_or_make(
            outline, lambda: self._stream(records, len(arrays), live)
        )
        given = tuple([in_order(v, order) for v, (_, order) in zip(arrays, kinds)])
        found = stream.padded((), given, seeds[0] if seeds else None)
        if found is None:
            return None
        results, _ = found
        return [r if isinstance(r, jax.Array) else jax.device_put(r, self._device) for r in results]

    def forget_released(self) -> None:
        """Forget the streams of steps with operators that were released."""
        for key, (segment, _) in list(self._streams.items()):
            if any(released.is_released(definition) for _, _, definition in segment.items):
                del self._streams[key]

    def _stream(
        self, records: Sequence[Record], leaves: int, live: Sequence[int]
    ) -> tuple[EagerSegment, ShapeStream]:
        segment = EagerSegment(records, leaves, live, self._device)
        platform = "cpu" if self._device.platform == "cpu" else "gpu"
        return segment, ShapeStream(segment, None, (), platform)
