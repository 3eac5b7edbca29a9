"""The HTTP application of `jfluid serve`:

GET  /            what the model takes and gives
GET  /health      200 when it answers
GET  /metrics     for Prometheus
POST /predict     {"inputs": {"x": [[1.0, 2.0]]}} -> {"outputs": {"y": [[0.5]]}}, or .npz both ways
"""

import asyncio
import io
import json
import time
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jfluid import errors
from jfluid.exports.model import LoadedModel
from jfluid.serving.batching import Batcher, TooManyRequests, rows_are_independent

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError as error:
    raise ImportError(
        "models are served with Starlette and Uvicorn: pip install 'jfluid[serve]'"
    ) from error

NPZ = "application/x-npz"
_NAN = {
    "nan": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
}  # as JSON, which has no such numbers, has them


class BadRequest(errors.JFluidError):
    """A request is not what the model takes; `status` is that of the answer."""

    def __init__(self, text: str, status: int = 400):
        super().__init__(text)
        self.status = status


class Service:
    """A model, what batches its requests, and what is counted."""

    def __init__(self, model: LoadedModel, largest: int, delay: float, most_bytes: int):
        """Compile the model for one row, and start the thread that runs it.

        Raises UnsupportedError for sequences of different lengths.
        """
        ragged = [var.name for var in model.feeds if var.lod_level]
        if ragged:
            raise errors.UnsupportedError(
                f"serve: {', '.join(ragged)} are sequences of different lengths (LoD), which a request has "
                "no form for; build the model from padded rows"
            )
        self.model, self.most_bytes = model, most_bytes
        by_rows = bool(model.feeds) and all(v.shape and v.shape[0] == -1 for v in model.feeds)
        self.batched = by_rows and rows_are_independent(
            model.run, model.sample(2), 2, model.fetches
        )
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "jfluid_requests", "requests by status", ["status"], registry=self.registry
        )
        self.seconds = Histogram(
            "jfluid_request_seconds", "time of a request", registry=self.registry
        )
        sizes = Histogram(
            "jfluid_batch_rows",
            "rows of the batches that ran",
            buckets=[1 << i for i in range(11)],
            registry=self.registry,
        )
        self.batcher = Batcher(
            model.run,
            largest if self.batched else 1,
            delay if self.batched else 0.0,
            observe=sizes.observe,
        )

    async def predict(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what the model gives for a feed."""
        rows = len(next(iter(feed.values()))) if self.batched else 1
        if self.batched and (not rows or any(len(value) != rows for value in feed.values())):
            raise BadRequest("all inputs have to have the same number of rows, at least one")
        if self.batched:
            found = await asyncio.wrap_future(self.batcher.submit(feed, rows))
        else:
            found = await asyncio.to_thread(self.model.run, feed)
        return {var.name: value for var, value in zip(self.model.fetches, found, strict=True)}

    def described(self) -> dict[str, Any]:
        """Return what the model takes and gives."""
        return {
            kind: [
                {"name": v.name, "dtype": str(v.np_dtype), "shape": list(v.shape)}
                for v in variables
            ]
            for kind, variables in (("inputs", self.model.feeds), ("outputs", self.model.fetches))
        } | {"batched": self.batched}

    def feed_of(self, found: Any) -> dict[str, np.ndarray]:
        """Return the inputs as arrays of the model's dtypes. Raises BadRequest."""
        names = [var.name for var in self.model.feeds]
        if not isinstance(found, Mapping) or set(found) != set(names):
            given = ", ".join(map(str, found)) if isinstance(found, Mapping) else "something else"
            raise BadRequest(f"expected the inputs {', '.join(names)}, found {given or 'none'}")
        return {var.name: _array(var, found[var.name]) for var in self.model.feeds}


def _array(var: Any, value: Any) -> np.ndarray:
    dtype = np.dtype(var.np_dtype)
    try:
        array = np.asarray(value)
        if array.dtype.kind not in ("iufb" if dtype.kind == "f" else "iub") and array.size:
            raise ValueError(f"found elements of {array.dtype}")
        array = array.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"{var.name}: expected numbers of {dtype}: {error}") from None
    fits = array.ndim == len(var.shape) and all(
        size in (-1, n) for size, n in zip(var.shape, array.shape)
    )
    if not fits:
        raise BadRequest(
            f"{var.name}: expected the shape {list(var.shape)}, found {list(array.shape)}"
        )
    return array


def application(service: Service) -> Starlette:
    """Return the application; it ends the service's thread when it is shut down."""

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

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.batcher.close)

    routes = [
        Route("/", describe),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/predict", predict, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def server(service: Service) -> uvicorn.Server:
    """Return what serves the application; `run(sockets=[...])` runs it until the process is told to
    end.
    """
    return uvicorn.Server(
        uvicorn.Config(application(service), log_level="warning", timeout_graceful_shutdown=10)
    )


async def _answer(service: Service, request: Request) -> Response:
    """The answer to a request, or what is wrong with it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        body = await _body(request, service.most_bytes)
        inputs = _of_npz(body, service.most_bytes) if kind == NPZ else _of_json(body)
        outputs = await service.predict(service.feed_of(inputs))
    except BadRequest as error:
        return JSONResponse({"error": str(error)}, error.status)
    except (TooManyRequests, errors.OutOfMemoryError) as error:
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:  # of the model; the server goes on
        return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)
    if NPZ in (kind, request.headers.get("accept")):
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **outputs)
        return Response(file.getvalue(), media_type=NPZ)
    return JSONResponse({"outputs": {name: _plain(value) for name, value in outputs.items()}})


async def _body(request: Request, most: int) -> bytes:
    """The body of a request, read no further than it may be."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise BadRequest(f"a request may have {most} bytes", 413)
        parts.append(part)
    return b"".join(parts)


def _of_json(body: bytes) -> Any:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"expected JSON, or {NPZ}: {error}") from None
    if not isinstance(found, dict) or "inputs" not in found:
        raise BadRequest('expected {"inputs": {name: rows}}')
    return found["inputs"]


def _of_npz(body: bytes, most: int) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            if sum(item.file_size for item in archive.infolist()) > most:
                raise BadRequest(f"a request may have {most} bytes, unpacked too", 413)
        with np.load(io.BytesIO(body), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise BadRequest(f"expected an .npz of arrays: {error}") from None


def _plain(value: np.ndarray) -> Any:
    """An array as lists; numbers that JSON does not have as text."""
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        return [_plain(row) for row in value] if value.ndim else str(float(value))
    return value.tolist()
