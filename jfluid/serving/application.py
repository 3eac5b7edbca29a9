"""The HTTP application of `jfluid serve`:

GET  /            what the model takes and gives
GET  /health      200 when it answers
GET  /metrics     for Prometheus
POST /predict     {"inputs": {"x": [[1.0, 2.0]]}} -> {"outputs": {"y": [[0.5]]}}, or .npz both ways
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jfluid import errors
from jfluid.exports.model import LoadedModel
from jfluid.serving.answers import NUMBERS, json_pieces, npz_file, parts
from jfluid.serving.batching import Batcher, rows_are_independent
from jfluid.serving.blocks import SMALL, Block, block, let_others_go_first
from jfluid.serving.json_inputs import PADDING, read_json
from jfluid.serving.npz_inputs import Archive
from jfluid.serving.requests import NPZ, BadRequest, Input, Limits, TooManyRequests, shown
from jfluid.serving.room import Room, Share

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ModuleNotFoundError as error:
    raise ImportError("models are served with Starlette and Uvicorn: pip install 'jfluid[serve]'") from error

_log = logging.getLogger("jfluid.serving")
_RATE = 16 << 10  # bytes a second at which a body has to come, after a while
# What a step raises for the values and shapes of a request; all else is the server's own.
_OF_VALUES = (errors.FeedError, errors.ProgramError, errors.OpError, errors.DataError)


class Service:
    """A model, what batches its requests, and what is counted."""

    def __init__(self, model: LoadedModel, largest: int, delay: float, limits: Limits):
        """Compile the model for all sizes of batches, and start the threads that run it and read large requests.

        Raises UnsupportedError for sequences of different lengths.
        """
        ragged = [var.name for var in model.feeds if var.lod_level]
        if ragged:
            raise errors.UnsupportedError(
                f"serve: {', '.join(ragged)} are sequences of different lengths (LoD), which a request has "
                "no form for; build the model from padded rows"
            )
        self.model, self.limits, self.room = model, limits, Room(limits.held)
        self.inputs = tuple(
            Input(v.name, np.dtype(v.np_dtype), tuple(v.shape), model.heights.get(v.name)) for v in model.feeds
        )
        by_rows = bool(model.feeds) and all(v.shape and v.shape[0] == -1 for v in model.feeds)
        self.batched = by_rows and rows_are_independent(model.run, model.sample(2), 2, model.fetches)
        any_input = Input("x", np.dtype("float32"), (-1,))
        read_json(bytearray(b'{"inputs": {"x": [1]}}' + PADDING), (any_input,), limits)  # compiles the reader
        if self.batched and all(min(v.shape[1:], default=1) >= 0 for v in model.feeds):
            for power in range(2, (largest - 1).bit_length() + 1):
                model.run(model.sample(1 << power))  # compiles it: later, others would wait
        self.registry = CollectorRegistry()
        self.requests = Counter("jfluid_requests", "requests by status", ["status"], registry=self.registry)
        self.seconds = Histogram("jfluid_request_seconds", "time of a request", registry=self.registry)
        sizes = Histogram(
            "jfluid_batch_rows",
            "rows of the batches that ran",
            buckets=[1 << i for i in range(11)],
            registry=self.registry,
        )
        self.batcher = Batcher(
            model.run,
            largest if self.batched else 0,
            delay if self.batched else 0.0,
            observe=sizes.observe,
            most_bytes=limits.bytes,
        )
        # Large requests are read one after the other: then others find a processor free.
        self.reader = ThreadPoolExecutor(1, "large requests", initializer=let_others_go_first)
        self.reading, self.writing = asyncio.Lock(), asyncio.Lock()

    async def predict(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what the model gives for a feed."""
        rows = len(next(iter(feed.values()))) if self.batched else 1
        if self.batched and (not rows or any(len(value) != rows for value in feed.values())):
            raise BadRequest("all inputs have to have the same number of rows, at least one")
        if rows > self.limits.rows:
            raise BadRequest(f"a request may have {self.limits.rows} rows, found {rows}", 413)
        found = await asyncio.wrap_future(self.batcher.submit(feed, rows))
        return {var.name: value for var, value in zip(self.model.fetches, found, strict=True)}

    def described(self) -> dict[str, Any]:
        """Return what the model takes and gives."""
        return {
            kind: [{"name": v.name, "dtype": str(v.np_dtype), "shape": list(v.shape)} for v in variables]
            for kind, variables in (("inputs", self.model.feeds), ("outputs", self.model.fetches))
        } | {"batched": self.batched}

    async def feed(self, body: Block, kind: str) -> dict[str, np.ndarray]:
        """Return the inputs of a request as arrays of the model's dtypes. Raises BadRequest."""
        size = len(body)
        if kind == NPZ:
            archive = Archive(body, self.inputs, self.limits)
            size, read = max(size, archive.bytes), archive.arrays
        else:

            def read() -> dict[str, np.ndarray]:
                return read_json(body, self.inputs, self.limits)

        def checked() -> dict[str, np.ndarray]:
            found = read()
            for item in self.inputs:
                item.check_ids(found[item.name])
            return found

        if size <= SMALL:
            return checked()
        return await asyncio.get_running_loop().run_in_executor(self.reader, checked)

    async def pieces(self, found: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces of an answer."""
        for piece in found:
            yield piece
            await _turn(self.writing)

    def close(self) -> None:
        """Answer what waits, and end the threads."""
        self.batcher.close()
        self.reader.shutdown()


def application(service: Service) -> Starlette:
    """Return the application; it ends the service's threads when it is shut down."""

    async def describe(request: Request) -> Response:
        return JSONResponse(service.described())

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    async def predict(request: Request) -> Response:
        began = time.perf_counter()
        response = await _answer(service, request)
        service.requests.labels(response.status_code).inc()
        service.seconds.observe(time.perf_counter() - began)
        return response

    async def refuse(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        where = f"{request.method} {request.url.path}"
        text = f"{shown(where)}: expected GET /, /health or /metrics, or POST /predict"
        return JSONResponse({"error": text}, status)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    routes = [
        Route("/", describe),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/predict", predict, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refuse})


def server(service: Service) -> uvicorn.Server:
    """Return what serves the application; `run(sockets=[...])` runs it until the process is told to end."""
    from jfluid.serving.connections import configured

    return uvicorn.Server(configured(application(service), service.limits))


class _Streamed(StreamingResponse):
    """An answer of many pieces, which holds memory until the last is sent, or the client is gone."""

    def __init__(self, service: Service, found: Iterator[bytes], kind: str, share: Share):
        super().__init__(service.pieces(found), media_type=kind)
        self._share = share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._share.set(0)


async def _answer(service: Service, request: Request) -> Response:
    """The answer to a request, or what is wrong with it."""
    share, response = service.room.share(), None
    try:
        response = await _predicted(service, request, share)
        return response
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:
        return _refusal(error)
    finally:
        if not isinstance(response, _Streamed):
            share.set(0)


def _refusal(error: Exception) -> Response:
    """An answer that says what is wrong: with the request, or, without any detail, here."""
    text, status = str(error), 400
    no_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text
    if isinstance(error, BadRequest):
        status = error.status
    elif isinstance(error, TooManyRequests):
        status = 503
    elif no_memory or not isinstance(error, _OF_VALUES):
        _log.error("a request failed", exc_info=error)
        text, status = "the server failed to answer; its log says why", 500
        if no_memory:
            text, status = "the server has no memory for this: ask later, or for fewer rows", 503
    return JSONResponse({"error": text}, status, {"Retry-After": "1"} if status == 503 else {})


async def _predicted(service: Service, request: Request, share: Share) -> Response:
    """The answer to a request that is right."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise BadRequest(f"expected no Content-Encoding, found {shown(encoding)}", 415)
    body = await _body(service, request, share)
    feed = await service.feed(body, kind)
    del body
    share.set(_bytes(feed))
    outputs = await service.predict(feed)
    del feed
    share.set(_bytes(outputs))
    if NPZ in (kind, request.headers.get("accept")):
        if _bytes(outputs) <= SMALL:
            return Response(bytes(npz_file(outputs)), media_type=NPZ)
        loop = asyncio.get_running_loop()
        file = await loop.run_in_executor(service.reader, npz_file, outputs)
        return _Streamed(service, parts(file), NPZ, share)
    text = json_pieces(outputs)
    if sum(value.size for value in outputs.values()) > NUMBERS:
        return _Streamed(service, text, "application/json", share)
    return Response(b"".join(text), media_type="application/json")


def _bytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(value.nbytes for value in arrays.values())


async def _turn(lock: asyncio.Lock) -> None:
    """Wait until the loop has gone round once more: of all large bodies one is read a little each
    time, and of all large answers one is made, and what others want is done between.
    """
    async with lock:
        await asyncio.sleep(0)


async def _body(service: Service, request: Request, share: Share) -> Block:
    """The body of a request and PADDING, read no further than it may be, nor for longer."""
    limits = service.limits
    declared = request.headers.get("content-length", "")
    most = int(declared[:20]) if declared.isdecimal() else limits.bytes
    too_large = BadRequest(f"a request may have {limits.bytes} bytes", 413)
    if most > limits.bytes:
        raise too_large
    body, size, until = block(most + len(PADDING)), 0, time.monotonic() + limits.seconds
    try:
        async with asyncio.timeout_at(until) as waiting:
            async for part in request.stream():
                if size + len(part) > most:
                    raise too_large
                share.set(size + len(part))
                body[size : size + len(part)] = part
                size += len(part)
                waiting.reschedule(until + size / _RATE)
                if size > SMALL:
                    await _turn(service.reading)
    except TimeoutError:
        raise BadRequest(
            f"the body came too slowly: expected it within {limits.seconds:g} s, or {_RATE} bytes a "
            f"second, found {size} bytes",
            408,
        ) from None
    if size == most:
        return body
    whole = block(size + len(PADDING))
    np.frombuffer(whole, np.uint8)[:] = np.frombuffer(body, np.uint8)[: len(whole)]
    return whole
