"""HTTP application of `jfluid serve`.

GET  /                             inputs and outputs of the first model
GET  /models[/NAME]                names and versions; inputs and outputs
GET  /health                       200 when it answers
GET  /metrics                      for Prometheus
GET  /docs, /openapi.json          the description of all this
POST [/models/NAME[/versions/V]]/predict
                                   {"inputs": {"x": [[1.0, 2.0]]}} -> {"outputs": {"y": [[0.5]]}}, or .npz both ways
     /v2/...                       the Open Inference Protocol
"""

import asyncio
import json
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress

import numpy as np
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jfluid import errors, installation
from jfluid.exports.sequences import Value
from jfluid.serving import openapi
from jfluid.serving.answers import NUMBERS, json_pieces, npz_file, parts, tensor_pieces
from jfluid.serving.blocks import SMALL, Block, block
from jfluid.serving.json_inputs import PADDING
from jfluid.serving.models import Models
from jfluid.serving.requests import NPZ, BadRequest, TooManyRequests, shown, to_arrays
from jfluid.serving.room import Share
from jfluid.serving.service import ModelService, Resources

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ModuleNotFoundError as error:
    raise ImportError("models are served with Starlette and Uvicorn: pip install 'jfluid[serve]'") from error

_log = logging.getLogger("jfluid.serving")
_access = logging.getLogger("jfluid.serving").getChild("access")
_SECONDS_TO_DISCARD = 1.0
_RATE = 16 << 10  # bytes a second at which a body has to come, after a while
# What a step raises for the values and shapes of a request; all else is the server's own.
_OF_VALUES = (errors.FeedError, errors.ProgramError, errors.OpError, errors.DataError)
_EXPECTED = (
    "GET /, /models, /health, /metrics, /docs or /v2, or POST /predict, /models/NAME/predict or /v2/models/NAME/infer"
)


Handler = Callable[[Request], Awaitable[Response]]
Answer = Callable[[ModelService, Request, Share], Awaitable[Response]]


def application(models: Models, poll: float = 0.0) -> Starlette:
    """Return the application; it ends the models' threads when it is shut down.

    Args:
        models: that answer.
        poll: seconds between two checks for new versions; 0 for no checks. SIGHUP requests a check.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        where = f"{request.method} {request.url.path}"
        return _noted(
            request, time.perf_counter(), JSONResponse({"error": f"{shown(where)}: expected {_EXPECTED}"}, status)
        )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        polling = asyncio.create_task(_poll(models, poll)) if poll else None
        if threading.current_thread() is threading.main_thread():
            running: set[asyncio.Task[None]] = set()  # the loop keeps no reference
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: running.add(asyncio.create_task(models.reload())))
        yield
        if polling is not None:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling
        await asyncio.to_thread(models.close)

    routes = [
        *(Route(path, _noting(handler)) for path, handler in _descriptions(models).items()),
        *(
            Route(f"{path}/predict", _answering(models, _predicted), methods=["POST"])
            for path in ("", "/models/{name}", "/models/{name}/versions/{version}")
        ),
        *(
            Route(f"/v2/models/{{name}}{path}/infer", _answering(models, _inferred), methods=["POST"])
            for path in ("", "/versions/{version}")
        ),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refuse})


async def _poll(models: Models, seconds: float) -> None:
    """Look for new versions again and again."""
    while True:
        await asyncio.sleep(seconds)
        await models.reload()


def _descriptions(models: Models) -> dict[str, Handler]:
    """Return the handlers of GET by path."""

    def asked(request: Request) -> ModelService:
        return models.find(request.path_params.get("name"), request.path_params.get("version"))

    async def describe(request: Request) -> Response:
        service = asked(request)
        return JSONResponse(service.described() | {"name": service.name, "version": service.version})

    async def listed(request: Request) -> Response:
        return JSONResponse({"models": {name: models.versions(name) for name in models.names}})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(models.resources.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def api(request: Request) -> Response:
        return JSONResponse(openapi.description(models))

    async def docs(request: Request) -> Response:
        return HTMLResponse(openapi.page(models))

    async def server_metadata(request: Request) -> Response:
        return JSONResponse({"name": "jfluid", "version": installation.VERSION, "extensions": []})

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True, "ready": True})

    async def ready(request: Request) -> Response:
        service = asked(request)
        return JSONResponse({"name": service.name, "ready": True})

    async def metadata(request: Request) -> Response:
        service = asked(request)
        return JSONResponse(service.metadata(models.versions(service.name)))

    model = "/v2/models/{name}"
    return {
        "/": describe,
        "/models": listed,
        "/models/{name}": describe,
        "/models/{name}/versions/{version}": describe,
        "/health": health,
        "/metrics": metrics,
        "/openapi.json": api,
        "/docs": docs,
        "/v2": server_metadata,
        "/v2/health/live": live,
        "/v2/health/ready": live,
        model: metadata,
        f"{model}/versions/{{version}}": metadata,
        f"{model}/ready": ready,
        f"{model}/versions/{{version}}/ready": ready,
    }


def _noted(request: Request, began: float, response: Response) -> Response:
    """Write a line of the access log for a response."""
    if _access.isEnabledFor(logging.INFO):
        client = request.client.host if request.client else ""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": client,
            "method": request.method,
            "path": request.url.path[:256],
            "status": response.status_code,
            "ms": round(1000 * (time.perf_counter() - began), 3),
            "bytes": int(request.headers.get("content-length", "0")[:20] or 0),
        }
        _access.info(json.dumps(line))
    return response


def _noting(handler: Handler) -> Handler:
    """Return the handler of GET with named errors as answers, and a line of the access log."""

    async def handle(request: Request) -> Response:
        began = time.perf_counter()
        try:
            response = await handler(request)
        except BadRequest as error:
            response = _refusal(error)
        return _noted(request, began, response)

    return handle


def _answering(models: Models, answer: Answer) -> Handler:
    """Return the handler of requests that a model answers."""

    async def handle(request: Request) -> Response:
        began = time.perf_counter()
        try:
            service = models.find(request.path_params.get("name"), request.path_params.get("version"))
        except BadRequest as error:
            return _noted(request, began, _refusal(error))
        with service:
            response = await _answer(service, request, answer)
        metrics = models.resources.metrics
        metrics.requests.labels(service.name, service.version, response.status_code).inc()
        metrics.seconds.labels(service.name, service.version).observe(time.perf_counter() - began)
        return _noted(request, began, response)

    return handle


def server(models: Models, poll: float = 0.0) -> uvicorn.Server:
    """Return the uvicorn server of the application; `run(sockets=[...])` serves until the process is told to end."""
    from jfluid.security.http_connections import HttpServer, configured

    limits = models.resources.limits
    return HttpServer(configured(application(models, poll), limits.connections, limits.seconds))


class _Streamed(StreamingResponse):
    """An answer of many pieces, which holds memory until the last is sent, or the client is gone."""

    def __init__(self, resources: Resources, found: Iterator[bytes], kind: str, share: Share):
        super().__init__(_pieces(resources, found), media_type=kind)
        self._share = share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._share.set(0)


async def _pieces(resources: Resources, found: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of an answer and let the event loop run between two pieces."""
    while True:
        async with resources.turns.turn():
            piece = next(found, None)
        if piece is None:
            return
        yield piece


async def _answer(service: ModelService, request: Request, answer: Answer) -> Response:
    """Return the answer to a request, or the error of a wrong one."""
    share, response = service.resources.room.share(), None
    try:
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise BadRequest(f"expected no Content-Encoding, found {shown(encoding)}", 415)
        response = await answer(service, request, share)
        return response
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:
        return _refusal(error)
    finally:
        if not isinstance(response, _Streamed):
            share.set(0)


def _refusal(error: Exception) -> Response:
    """Return the error response: details of a wrong request, none of a fault of the server."""
    text, status = str(error), 400
    no_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text
    if isinstance(error, BadRequest):
        status = error.status
    elif isinstance(error, TooManyRequests):
        status = 503
    elif isinstance(error, errors.ServerError):
        _log.error("servers of tables: %s", error)
        text, status = "the servers of the model's tables do not answer; the log says which: ask again later", 503
    elif no_memory or not isinstance(error, _OF_VALUES):
        _log.error("a request failed", exc_info=error)
        text, status = "the server failed to answer; its log says why", 500
        if no_memory:
            text, status = "the server has no memory for this: ask later, or for fewer rows", 503
    return JSONResponse({"error": text}, status, {"Retry-After": "1"} if status == 503 else {})


async def _predicted(service: ModelService, request: Request, share: Share) -> Response:
    """Return the outputs for a request in the server's own forms."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    feed = await service.feed(await _body(service.resources, request, share), kind)
    share.set(_bytes(feed))
    outputs = await service.predict(feed)
    del feed
    share.set(_bytes(outputs))
    if NPZ not in (kind, request.headers.get("accept")):
        return _text(service, json_pieces(outputs), outputs, share)
    if _bytes(outputs) <= SMALL:
        return Response(bytes(npz_file(to_arrays(outputs))), media_type=NPZ)
    loop = asyncio.get_running_loop()
    file = await loop.run_in_executor(service.resources.reader, npz_file, to_arrays(outputs))
    return _Streamed(service.resources, parts(file), NPZ, share)


async def _inferred(service: ModelService, request: Request, share: Share) -> Response:
    """Return the outputs for a request of the Open Inference Protocol."""
    tensors, feed = await service.tensors(await _body(service.resources, request, share))
    share.set(_bytes(feed))
    outputs = await service.predict(feed)
    del feed
    share.set(_bytes(outputs))
    head = {"model_name": service.name, "model_version": service.version}
    if tensors.id is not None:
        head["id"] = tensors.id
    wanted = to_arrays({name: outputs[name] for name in tensors.outputs or outputs})
    return _text(service, tensor_pieces(head, wanted), wanted, share)


def _text(service: ModelService, pieces: Iterator[bytes], values: Mapping[str, Value], share: Share) -> Response:
    """Return an answer in JSON; a large one is made while it is sent."""
    if sum(value.size for value in values.values()) > NUMBERS:
        return _Streamed(service.resources, pieces, "application/json", share)
    return Response(b"".join(pieces), media_type="application/json")


def _bytes(arrays: Mapping[str, Value]) -> int:
    return sum(value.nbytes for value in arrays.values())


async def _discard(resources: Resources, request: Request) -> None:
    """Read a refused body for at most a second, since a client reads no answer while it sends."""
    if "expect" in request.headers:
        return  # the client asks before it sends
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS_TO_DISCARD):
            async for _ in request.stream():
                async with resources.turns.turn():
                    pass


async def _body(resources: Resources, request: Request, share: Share) -> Block:
    """Return the body of a request and PADDING, within the limits on bytes and seconds."""
    limits = resources.limits
    declared = request.headers.get("content-length", "")
    most = int(declared[:20]) if declared.isdecimal() else limits.bytes
    too_large = BadRequest(f"a request may have {limits.bytes} bytes", 413)
    if most > limits.bytes:
        await _discard(resources, request)
        raise too_large
    body, size, until = block(most + len(PADDING)), 0, time.monotonic() + limits.seconds
    try:
        async with asyncio.timeout_at(until) as waiting:
            async for part in request.stream():
                if size + len(part) > most:
                    raise too_large
                share.set(size + len(part))
                async with resources.turns.turn() if size > SMALL else nullcontext():
                    body[size : size + len(part)] = part
                size += len(part)
                waiting.reschedule(until + size / _RATE)
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
