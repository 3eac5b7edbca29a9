"""The HTTP application of `jfluid dashboard`.

GET  /                       the page
GET  /data                   the state of all runs
GET  /events?since=N         the changes since update N, as server-sent events
GET  /log?run=0&name=...     the end of a log, or with &search=... the lines that hold a text
GET  /export                 the page as one file
GET  /table?run=0            all numbers of a run (CSV)
GET  /metrics                the newest numbers, for Prometheus
POST /profile?run=0&steps=10 have the next steps of all trainers profiled
GET  /profile?run=0&name=... the trace of a profile
"""

import asyncio
import hmac
import os
import re
import socket
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jfluid.dashboard import exports, logs
from jfluid.dashboard.address import Access
from jfluid.dashboard.metrics import registry
from jfluid.dashboard.runs import Run, Runs
from jfluid.record import profiles
from jfluid.security import private_files

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import (
        FileResponse,
        HTMLResponse,
        JSONResponse,
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from jfluid.security import http_connections
except ModuleNotFoundError as error:
    raise ImportError("the dashboard is served with Starlette and Uvicorn: pip install 'jfluid[serve]'") from error

_SECONDS_BETWEEN_EVENTS = 0.5
_SECONDS_BETWEEN_SIGNS = 15.0  # by which a connection that is gone is found
# a browser has six connections, and sends the cookies of all sites of this machine
_MOST_CONNECTIONS, _HEAD_BYTES = 200, 64 << 10
_SECONDS_OF_PROFILE = 60.0
_PROFILE = re.compile(r"profile-\w{1,32}\.json\.gz", re.ASCII)
_OWN_HEADER = "x-jfluid-dashboard"
_HEADERS = {
    "content-security-policy": "",  # the page's, once it is read
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class _Guarded:
    """Middleware that refuses requests without the key.

    A page without a key answers requests only if their Host header names this machine, which protects it from DNS
    rebinding by pages of foreign sites.
    """

    def __init__(self, application: ASGIApp, access: Access | None, cookie: str):
        self._application, self._access, self._cookie = application, access, cookie
        self._headers = [(name.encode(), (value or exports.policy()).encode()) for name, value in _HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._application(scope, receive, send)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        refused = self._refused(Request(scope))
        await (refused or self._application)(scope, receive, answer)

    def _refused(self, request: Request) -> Response | None:
        if self._access is None:
            return (
                None
                if _is_this_machine(request.headers.get("host", ""))
                else PlainTextResponse("this page is shown at http://localhost and http://127.0.0.1 only", 403)
            )
        key = self._access.key
        given = parse_qs(request.url.query).get("key", [""])[0]
        if _same(given, key):
            response = RedirectResponse("/", 303)  # so that the key does not stay in the address
            response.set_cookie(self._cookie, key, httponly=True, samesite="lax")
            return response
        if _same(request.cookies.get(self._cookie, ""), key):
            return None
        bearer = f"Bearer {self._access.metrics_token}"
        if request.url.path == "/metrics" and _same(request.headers.get("authorization", ""), bearer):
            return None
        return PlainTextResponse(
            "the link to this page ends with ?key=...; open the whole of it\n"
            "(/metrics takes `Authorization: Bearer TOKEN`: python -m jfluid.security metrics-token)",
            401,
        )


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _is_this_machine(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.lower() in ("localhost", "127.0.0.1", "[::1]")


def application(runs: Runs, access: Access | None, port: int) -> ASGIApp:
    """Return the application.

    Args:
        access: what is asked for; None where only this machine can connect.
    """
    numbers = registry(runs)

    def page(request: Request) -> Response:
        return HTMLResponse(exports.page())

    def data(request: Request) -> Response:
        return Response(runs.everything(), media_type="application/json")

    def events(request: Request) -> Response:
        since = request.query_params.get("since", "")
        start = int(since) if since.isdecimal() and len(since) < 16 else 0
        return StreamingResponse(_events(runs, start), media_type="text/event-stream")

    def log(request: Request) -> Response:
        return _log(runs, request)

    def export(request: Request) -> Response:
        return HTMLResponse(exports.offline(runs), headers=_saved("run.html"))

    def table(request: Request) -> Response:
        run = _of(runs, request.query_params.get("run", "0"))
        if run is None:
            return PlainTextResponse("there is no such run", 404)
        return StreamingResponse(exports.table(run), media_type="text/csv", headers=_saved("run.csv"))

    def metrics(request: Request) -> Response:
        return Response(generate_latest(numbers), media_type=CONTENT_TYPE_LATEST)

    def profile(request: Request) -> Response:
        run = _of(runs, request.query_params.get("run", "0"))
        if run is None:
            return PlainTextResponse("there is no such run", 404)
        if request.method == "POST":
            return _begun(run, request)
        name = request.query_params.get("name", "")
        path = run.folder / name
        if not _PROFILE.fullmatch(name) or not private_files.is_plain(path):
            return PlainTextResponse("there is no such profile", 404)
        return FileResponse(path, media_type="application/gzip", filename=name)

    paths = {
        "/": page,
        "/data": data,
        "/events": events,
        "/log": log,
        "/export": export,
        "/table": table,
        "/metrics": metrics,
    }
    routes = [Route(path, answer) for path, answer in paths.items()]
    routes.append(Route("/profile", profile, methods=["GET", "POST"]))
    return _Guarded(Starlette(routes=routes), access, f"jfluid-dashboard-{port}")


def _log(runs: Runs, request: Request) -> Response:
    """Return the names of a run's logs, the end of one log, or its lines with a text."""
    wanted = request.query_params
    run = _of(runs, wanted.get("run", "0"))
    if run is None:
        return PlainTextResponse("there is no such run", 404)
    name, text = wanted.get("name"), wanted.get("search", "")
    if name is None:
        return JSONResponse({"names": logs.names(run.folder)})
    try:
        found = logs.search(run.folder, name, text) if text else logs.tail(run.folder, name)
    except ValueError as error:
        return PlainTextResponse(str(error), 404)
    except OSError as error:
        return PlainTextResponse(f"{name}: {error.strerror}", 404)
    return PlainTextResponse(found)


def _begun(run: Run, request: Request) -> Response:
    """Ask the processes of a run that goes on for a profile."""
    if request.headers.get(_OWN_HEADER) != "1":  # which a page of another site cannot send
        return PlainTextResponse(f"the header {_OWN_HEADER}: 1 is missing", 403)
    wanted = request.query_params.get("steps", "")
    steps = int(wanted) if wanted.isdecimal() and len(wanted) < 6 else 0
    if not 0 < steps <= profiles.MOST_STEPS:
        return PlainTextResponse(f"steps: expected 1 to {profiles.MOST_STEPS}, found {wanted[:20]!r}", 400)
    if not run.is_live:
        return PlainTextResponse("the job has ended, or no launcher has started it", 409)
    before = profiles.read_request(run.place)
    if before is not None and not profiles.file_of(run.place, before.id).exists():
        age = time.time() - os.stat(run.place / profiles.REQUEST).st_mtime
        if age < _SECONDS_OF_PROFILE:
            return PlainTextResponse("another profile is being taken; it appears on the timeline", 409)
    try:
        profiles.write_request(run.place, profiles.ProfileRequest(profiles.fresh_id(), None, steps))
    except OSError as error:
        return PlainTextResponse(f"the request cannot be written: {error.strerror}", 500)
    return PlainTextResponse(f"the next {steps} steps are profiled; the trace appears on the timeline", 202)


def _saved(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def _of(runs: Runs, number: str) -> Any:
    place = int(number) if number.isdecimal() and len(number) < 9 else -1
    return runs.runs[place] if 0 <= place < len(runs.runs) else None


async def _events(runs: Runs, since: int) -> AsyncIterator[str]:
    quiet = 0.0
    runs.listeners += 1
    try:
        while True:
            quiet += _SECONDS_BETWEEN_EVENTS
            if since != runs.sequence:
                latest = runs.sequence
                for text in runs.updates(since):
                    yield f"data: {text}\n\n"
                since, quiet = latest, 0.0
            elif quiet >= _SECONDS_BETWEEN_SIGNS:
                yield ": still here\n\n"
                quiet = 0.0
            await asyncio.sleep(_SECONDS_BETWEEN_EVENTS)
    finally:
        runs.listeners -= 1


def server(runs: Runs, listening: socket.socket, access: Access | None) -> uvicorn.Server:
    """Return the server of the page; `run(sockets=[...])` runs it until the process is told to end."""
    return http_connections.HttpServer(
        http_connections.configured(
            application(runs, access, listening.getsockname()[1]),
            _MOST_CONNECTIONS,
            head_bytes=_HEAD_BYTES,
            half_closed=False,  # a page that is gone has closed its stream of events
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
