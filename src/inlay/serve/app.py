"""The HTTP service: routes around an engine. `calls.py` runs a call, `bodies.py` defines what is sent.

Bodies of predictions are read and checked here rather than by the framework, so that a bad item does not fail its call,
and answers are written without being checked again. `/openapi.json` still describes them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from inlay.errors import InlayError
from inlay.library import card_text
from inlay.serve import bodies, calls, metrics
from inlay.serve.engine_types import Served
from inlay.serve.keys import Keys, Scope
from inlay.serve.limits import Limits, Parting, Refused, is_sending, not_ready, read_body
from inlay.serve.logs import Log
from inlay.serve.metrics import Metrics
from inlay.serve.middleware import ServiceMiddleware
from inlay.serve.openapi import KEYED, complete_openapi, failure_responses, request_body, text_response
from inlay.version import __version__

if TYPE_CHECKING:
    from inlay.serve.engine import Engine
    from inlay.serve.watch import Catalogue, Watcher

STATIC = Path(__file__).parent / "static"
_JSON = "application/json"
_LINES = "application/x-ndjson"
_SMALL = 64 << 10
"""Bytes of a body that is parsed in the event loop; a larger one would hold up other calls, and goes to a thread."""
_LOGGED = 20
"""Names of tasks in one line of the log."""
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


@dataclass
class Service:
    """Everything that the routes share."""

    engine: Engine
    catalogue: Catalogue
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)
    cors: tuple[str, ...] = ()
    """Origins whose pages may use it from a browser."""
    watcher: Watcher | None = None

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.engine)

    def enter(self, request: Request, *scopes: Scope) -> None:
        """Check a caller's key, and note its name for the log."""
        name = self.keys.check(request, *scopes)
        if name is not None:
            request.scope["note"]["key"] = name

    async def call(self, request: Request) -> calls.Call:
        """Read a call and hand its asks to the engine."""
        self.enter(request, "predict")
        if not self.engine.ready:
            raise not_ready()
        content = await read_body(request, self.limits, self.limits.body)
        if len(content) <= _SMALL:
            items, deadline_ms = bodies.parse(content, self.limits)
        else:
            items, deadline_ms = await asyncio.to_thread(bodies.parse, content, self.limits)
        seconds = min(self.limits.seconds, _deadline(request, deadline_ms))
        call = calls.plan(items, self.names, self.limits, seconds)
        unserved = {ask.task for ask in call.asks if "@" in ask.task and not self.engine.serves(ask.task)}
        if unserved:
            await asyncio.to_thread(self.catalogue.bring, unserved)
        note, names = request.scope["note"], list(dict.fromkeys(ask.task for ask in call.asks))
        note["items"], note["tasks"] = len(items), names[:_LOGGED] + (["..."] if len(names) > _LOGGED else [])
        if self.log.texts:
            note["texts"] = [ask.given for ask in call.asks]
        await calls.submit(self.engine, call)
        return call

    def report(self, call: calls.Call, request: Request) -> None:
        """Log unexpected errors of a call."""
        if call.bugs:
            self.log.failed(call.bugs[0], id=request.scope["note"]["id"], asks=len(call.bugs))

    def names(self) -> list[str]:
        """All tasks that are served, each in one version."""
        return [served.name for served in self.engine.tasks() if "@" not in served.name]


def build(service: Service, lifespan: Lifespan | None = None) -> FastAPI:
    """The application."""
    app = FastAPI(
        title="Inlay",
        version=__version__,
        description="Every task from one frozen base, in one batch.",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere; /docs is a page of our own
        redoc_url=None,
        lifespan=lifespan,
    )
    _predictions(app, service)
    _tasks(app, service)
    _states(app, service)
    refuse = functools.partial(_refuse, service.limits)
    app.add_exception_handler(InlayError, refuse)
    app.add_exception_handler(HTTPException, refuse)
    app.add_middleware(ServiceMiddleware, log=service.log, count=service.metrics.count)
    if service.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.cors),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-deadline-ms", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
        )
    _pages(app)
    complete_openapi(app, service.keys.open)
    return app


def _pages(app: FastAPI) -> None:
    """Every file by its own path: a folder at / would answer for every other path too, and hide wrong methods."""
    names = {f"/{file.name}": file for file in STATIC.iterdir() if file.is_file()}
    for path, file in {**names, "/": STATIC / "index.html", "/docs": STATIC / "docs.html"}.items():
        app.add_route(path, functools.partial(_file, file), methods=["GET"], include_in_schema=False)


async def _file(file: Path, _: Request) -> Response:
    return FileResponse(file)


def _predictions(app: FastAPI, service: Service) -> None:
    refusals = failure_responses(400, 401, 403, 408, 413, 415, 422, 429, 503, 504)
    asks = {**request_body("Body", "Alone"), **KEYED}

    @app.post("/v1/predict", response_model=bodies.Answers, responses=refusals, openapi_extra=asks)
    async def predict(request: Request) -> Response:
        """Answer a list of requests for any mix of tasks, in order. A bad one fails alone."""
        call = await service.call(request)
        await calls.finish(call, request)
        try:
            content = _answers(call) if call.is_small else await asyncio.to_thread(_answers, call)
            return Response(content, media_type=_JSON)
        finally:
            service.report(call, request)

    lines = text_response("Answers as they come.", _LINES)

    @app.post("/v1/predict/stream", response_class=Response, responses={**refusals, **lines}, openapi_extra=asks)
    async def predict_stream(request: Request) -> Response:
        """Like /v1/predict, but each answer is sent as soon as it is ready, as a line with the index of its request."""
        call = await service.call(request)
        return StreamingResponse(_as_lines(call, service, request), media_type=_LINES)


def _answers(call: calls.Call) -> bytes:
    """All answers, each written by itself: while json writes one, no other thread can run."""
    results = b",".join(bodies.dump(result) for result in call.results())
    return b'{"results":[' + results + b"]," + bodies.dump({"ms": call.ms, "batch": call.batch})[1:]


async def _as_lines(call: calls.Call, service: Service, request: Request) -> AsyncIterator[bytes]:
    async for place, result in calls.stream(call):
        task = {} if place.task is None else {"task": place.task}
        yield bodies.dump({"index": place.item, **task, "result": result}) + b"\n"
    service.report(call, request)
    yield bodies.dump({"done": True, "answers": len(call.places), "ms": call.ms, "batch": call.batch}) + b"\n"


def _tasks(app: FastAPI, service: Service) -> None:
    @app.get("/v1/tasks", response_model=bodies.TaskCards, responses=failure_responses(401, 403), openapi_extra=KEYED)
    async def tasks(request: Request) -> Response:
        """All tasks that are served."""
        service.enter(request, "predict", "manage")
        return Response(await asyncio.to_thread(_cards, service), media_type=_JSON)

    missing = failure_responses(401, 403, 404)

    @app.get("/v1/tasks/{name}", response_model=bodies.TaskCard, responses=missing, openapi_extra=KEYED)
    async def task(request: Request, name: str) -> Response:
        """One task; `name@version` and `name@alias` too, if they are served."""
        service.enter(request, "predict", "manage")
        if "@" in name and not service.engine.serves(name):
            await asyncio.to_thread(service.catalogue.bring, [name])
        return _json(card_of(service.engine.task(name)))

    refusals = failure_responses(400, 401, 403, 404, 408, 409, 413, 415, 422, 503)
    wanted = {**request_body("Wanted", required=False), **KEYED}

    @app.put("/v1/tasks/{name}", response_model=bodies.TaskCard, responses=refusals, openapi_extra=wanted)
    async def put_task(request: Request, name: str) -> Response:
        """Serve a version under a name, in one step; without a body, the newest."""
        service.enter(request, "manage")
        ref = (await _read_wanted(request, service.limits)).ref
        served = await asyncio.to_thread(service.catalogue.put, name, ref)
        request.scope["note"]["tasks"] = [served.ref]
        return _json(card_of(served))

    gone = failure_responses(401, 403, 404, 409, 503)

    @app.delete("/v1/tasks/{name}", response_model=bodies.State, responses=gone, openapi_extra=KEYED)
    async def delete_task(request: Request, name: str) -> Response:
        """Stop serving a task. The library keeps it."""
        service.enter(request, "manage")
        await asyncio.to_thread(service.catalogue.take, name)
        return _json({"status": "gone"})


def _states(app: FastAPI, service: Service) -> None:
    @app.get("/health", response_model=bodies.State, responses=failure_responses(503))
    async def health() -> Response:
        """Whether the process and its engine work. If the engine has failed, the process is about to end."""
        if service.engine.failed is not None:
            raise Refused(503, "failed", "the engine has failed, and the service is about to stop")
        return _json({"status": "alive"})

    @app.get("/ready", response_model=bodies.State, responses=failure_responses(503))
    async def ready() -> Response:
        """Whether it can answer requests: not while it starts, recovers from an error or shuts down."""
        if not service.engine.ready or service.engine.troubled:
            raise not_ready()
        return _json({"status": "ready"})

    page = {**failure_responses(401, 403), **text_response("Prometheus' text format.", "text/plain")}

    @app.get("/metrics", response_class=Response, responses=page, openapi_extra=KEYED)
    async def measured(request: Request) -> Response:
        """Metrics for Prometheus."""
        service.enter(request, "predict", "manage")
        return Response(await asyncio.to_thread(service.metrics.page), media_type=metrics.CONTENT_TYPE)


def _cards(service: Service) -> bytes:
    return b'{"tasks":[' + b",".join(bodies.dump(card_of(served)) for served in service.engine.tasks()) + b"]}"


def card_of(served: Served) -> dict[str, Any]:
    """What callers see of a task."""
    card = served.card
    return {
        "name": served.name,
        "version": served.version,
        "ref": served.ref,
        "kind": card_text.kind(card),
        "task": str(card.get("task") or ""),
        "does": card_text.does(card),
        "method": str(card.get("method") or ""),
        "labels": card_text.labels(card),
        "pairs": card_text.reads_pairs(card),
        "columns": dict(card_text.section(card, "columns")),
        "members": len(card.get("members") or ()),
        "parameters": dict(card_text.section(card, "parameters")),
        "metrics": card_text.metrics(card),
        "metric": str(card.get("metric") or ""),
        "base": str(card.get("base") or ""),
        "sha256": str(card.get("sha256") or ""),
        "state": served.state,
        "error": served.error,
    }


async def _read_wanted(request: Request, limits: Limits) -> bodies.Wanted:
    content = await read_body(request, limits, limits.management, json=False)
    try:
        return bodies.Wanted.model_validate_json(content) if content.strip() else bodies.Wanted()
    except ValidationError as error:
        raise bodies.refused(error) from None


def _deadline(request: Request, body_ms: float | None) -> float:
    """Seconds; the header counts if the body has no deadline."""
    header = request.headers.get("x-deadline-ms")
    if body_ms is None and header is None:
        return float("inf")
    try:
        seconds = (float(header or "") if body_ms is None else body_ms) / 1000
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise Refused(422, "invalid", f"X-Deadline-Ms: {str(header)[:50]!r} is not a number of milliseconds above 0")
    return seconds


async def _refuse(limits: Limits, request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _unrouted(request, error)
    if isinstance(error, Refused):
        content = bodies.dump(bodies.problem(error.kind, str(error)))
        if error.status != 408 and is_sending(request):
            return Parting(content, error.status, {**error.headers, "Connection": "close"}, _JSON, limits)
        return Response(content, error.status, error.headers, _JSON)
    status, kind, message = calls.describe(error)
    return _json(bodies.problem(kind, message), status)


def _unrouted(request: Request, error: HTTPException) -> Response:
    path, headers = request.url.path[:200], dict(error.headers or {})
    if error.status_code == 405:
        allowed = headers.get("Allow", "another method")
        return _json(bodies.problem("method", f"{request.method} {path} is not possible: use {allowed}"), 405, headers)
    if error.status_code == 404:
        return _json(bodies.problem("not_found", f"there is nothing at {path}: see /docs"), 404, headers)
    return _json(bodies.problem("http", str(error.detail)), error.status_code, headers)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(bodies.dump(value), status, headers, _JSON)
