"""A version of a model that is served: its inputs, its batches, its warm-up."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np

from jfluid.exports.model import LoadedModel
from jfluid.exports.sequences import Value
from jfluid.serving.answers import DATATYPES
from jfluid.serving.batching import Batcher, rows_are_independent
from jfluid.serving.blocks import SMALL, Block, let_others_go_first
from jfluid.serving.json_inputs import PADDING, read_json
from jfluid.serving.json_tensors import Tensors, read_tensors
from jfluid.serving.metrics import ServingMetrics
from jfluid.serving.npz_inputs import Archive
from jfluid.serving.requests import NPZ, BadRequest, Input, RequestLimits, as_arrays, from_arrays
from jfluid.serving.room import Room
from jfluid.serving.turns import Pause, Turns, go_on

_WARM_UPS = 8  # batches of sequences of each size that run before the first request


class Resources:
    """Bounds, memory and threads that all models of a server share."""

    def __init__(self, limits: RequestLimits):
        self.limits, self.room, self.metrics = limits, Room(limits.held), ServingMetrics()
        # Large requests are parsed one after the other, so that a processor stays free.
        self.reader = ThreadPoolExecutor(1, "large requests", initializer=let_others_go_first)
        self.turns = Turns()
        any_input = Input("x", np.dtype("float32"), (-1,))
        read_json(bytearray(b'{"inputs": {"x": [1]}}' + PADDING), (any_input,), limits)  # compiles the reader

    def close(self) -> None:
        """End the thread."""
        self.reader.shutdown()


class ModelService:
    """A version of a model with its batcher.

    Attributes:
        model: the model.
        name, version: under which it is served.
        inputs: of a request.
        batched: True if requests run together.
        users: requests under way; the version is closed when a newer one has its place and this is 0.
    """

    def __init__(
        self,
        model: LoadedModel,
        largest: int,
        delay: float,
        resources: Resources,
        name: str = "model",
        version: str = "1",
        longest: int = 8,
    ):
        """Compile the model for all sizes of batches, and start its thread.

        Args:
            model: the model.
            largest: rows of a batch.
            delay: seconds that the first request of a batch waits for others.
            resources: shared with other models.
            name, version: under which it is served.
            longest: length of the sequences that warm-up batches have.
        """
        self.model, self.resources, self.name, self.version = model, resources, name, version
        self.users, self._retired = 0, False
        self.inputs = tuple(
            Input(v.name, np.dtype(v.np_dtype), tuple(v.shape), model.heights.get(v.name), v.lod_level)
            for v in model.feeds
        )
        by_rows = bool(model.feeds) and all(v.shape and v.shape[0] == -1 for v in model.feeds)
        self.batched = by_rows and rows_are_independent(model.run, model.sample(2), 2, model.fetches)
        if self.batched and all(min(v.shape[1:], default=1) >= 0 for v in model.feeds):
            self._warm_up(largest, longest)
        metrics = resources.metrics
        metrics.loaded.labels(name, version).set(1)
        self.batcher = Batcher(
            model.run,
            largest if self.batched else 0,
            delay if self.batched else 0.0,
            observe=metrics.rows.labels(name, version).observe,
            most_bytes=resources.limits.bytes,
            rest=resources.turns.rest,
        )

    def _warm_up(self, largest: int, longest: int) -> None:
        """Run batches of all sizes that a request can have, so that no request waits for the compiler.

        Programs of sequences are compiled for buckets of rows and lengths, too: several batches of each size run.
        """
        ragged = any(item.levels for item in self.inputs)
        for power in range(0 if ragged else 2, (largest - 1).bit_length() + 1):
            if self.model.sample_bytes(1 << power, longest) > self.resources.limits.bytes:
                return
            for seed in range(_WARM_UPS if ragged else 1):
                self.model.run(self.model.sample(1 << power, seed, longest))

    async def predict(self, feed: Mapping[str, Value]) -> dict[str, Value]:
        """Return the outputs of the model by name. Raises BadRequest."""
        rows = len(next(iter(feed.values()))) if self.batched else 1
        if self.batched and (not rows or any(len(value) != rows for value in feed.values())):
            raise BadRequest("all inputs have to have the same number of rows, at least one")
        limits = self.resources.limits
        if rows > limits.rows:
            raise BadRequest(f"a request may have {limits.rows} rows, found {rows}", 413)
        small = sum(value.nbytes for value in feed.values()) <= SMALL
        with self.resources.turns.small() if small else nullcontext():
            found = await asyncio.wrap_future(self.batcher.submit(feed, rows))
        return {var.name: value for var, value in zip(self.model.fetches, found, strict=True)}

    def described(self) -> dict[str, Any]:
        """Return the names, element types and shapes of inputs and outputs."""
        return {
            kind: [
                {"name": v.name, "dtype": str(v.np_dtype), "shape": list(v.shape)}
                | ({"lod_level": v.lod_level} if v.lod_level else {})
                for v in variables
            ]
            for kind, variables in (("inputs", self.model.feeds), ("outputs", self.model.fetches))
        } | {"batched": self.batched}

    def metadata(self, versions: list[str]) -> dict[str, Any]:
        """Return the metadata of the Open Inference Protocol."""
        outputs = [
            Input(v.name, np.dtype(v.np_dtype), tuple(v.shape or ()), levels=v.lod_level) for v in self.model.fetches
        ]
        return {"name": self.name, "versions": versions, "platform": "jfluid"} | {
            kind: [
                {"name": item.name, "datatype": DATATYPES[str(item.dtype)], "shape": list(item.shape)}
                for item in as_arrays(items)
            ]
            for kind, items in (("inputs", self.inputs), ("outputs", tuple(outputs)))
        }

    async def feed(self, body: Block, kind: str) -> dict[str, Value]:
        """Return the inputs of a request. Raises BadRequest."""
        limits = self.resources.limits
        if kind != NPZ:
            return await self._off_the_loop(len(body), lambda pause: read_json(body, self.inputs, limits, pause))
        archive = Archive(body, as_arrays(self.inputs), limits)
        return await self._off_the_loop(
            max(len(body), archive.bytes), lambda pause: from_arrays(self.inputs, archive.arrays(pause))
        )

    async def tensors(self, body: Block) -> tuple[Tensors, dict[str, Value]]:
        """Return a request of the Open Inference Protocol and its inputs. Raises BadRequest."""
        read: list[Tensors] = []

        def values(pause: Pause) -> dict[str, Value]:
            read.append(read_tensors(body, as_arrays(self.inputs), self.resources.limits, pause))
            return from_arrays(self.inputs, read[0].arrays)

        feed = await self._off_the_loop(len(body), values)
        known = [var.name for var in self.model.fetches]
        if unknown := [name for name in read[0].outputs if name not in known]:
            raise BadRequest(f"outputs: expected {', '.join(known)}, found {unknown[0]!r:.40}")
        return read[0], feed

    async def _off_the_loop(self, size: int, read: Any) -> dict[str, Value]:
        """Return the result of `read(pause)` with checked ids; large requests are read in a thread."""

        def checked(pause: Pause) -> dict[str, Value]:
            found: dict[str, Value] = read(pause)
            for item in self.inputs:
                item.check_ids(found[item.name])
            return found

        if size <= SMALL:
            return checked(go_on)
        resources = self.resources
        return await asyncio.get_running_loop().run_in_executor(resources.reader, checked, resources.turns.pauses())

    def __enter__(self) -> "ModelService":
        self.users += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.users -= 1
        self._close_if_unused()

    def retire(self) -> None:
        """Close the version as soon as no request uses it."""
        self._retired = True
        self.resources.metrics.loaded.labels(self.name, self.version).set(0)
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and not self.users:  # in a thread: the loop answers others meanwhile
            threading.Thread(target=self.close, name="retired version").start()

    def close(self) -> None:
        """Answer queued requests, then end the threads and connections of the version."""
        self.batcher.close()
        self.model.close()
