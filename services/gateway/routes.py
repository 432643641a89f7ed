"""Requests find their operations, their tenant and their answer, or their refusal.

Invariant: a path answers every method: with its operation, or with 405 and what it does allow.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from libs.contracts.clock import Clock
from libs.contracts.errors import PerdureError
from services.gateway import openapi
from services.gateway.auth import OPERATOR, Keyring
from services.gateway.operation import Operation
from services.gateway.operations import OPERATIONS
from services.gateway.problems import NotAllowedHere, RequestIds, failed
from services.gateway.quotas import Quotas
from services.gateway.requests import Requests
from services.gateway.traffic import ROUTE, Traffic

Open = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, str], Awaitable[Response]]

METRICS_PATHS = {"/api/metrics": "metrics", "/api/metrics/view": "metrics_view"}
# The page loads nothing from anywhere but this gateway, whatever gets into it.
_DOCS_POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"

_tracer = trace.get_tracer(__name__)
_propagator = TraceContextTextMapPropagator()


def application(
    handlers: Mapping[str, Handler],
    opened: Mapping[str, Open],
    keyring: Keyring,
    clock: Clock,
    requests: Requests,
    traffic: Traffic,
    quotas: Quotas,
) -> ASGIApp:
    """The ASGI application: one handler for each operation of the table, by name."""
    by_path: dict[str, dict[str, Open]] = {}
    for operation in OPERATIONS:
        handler = opened.get(operation.name) or _known(handlers[operation.name], operation, keyring, quotas)
        by_path.setdefault(operation.path, {})[operation.method] = handler
    # Of these the description says nothing: their formats are of another world than JSON.
    for path, name in METRICS_PATHS.items():
        by_path[path] = {"GET": _for(keyring.operator, handlers[name], None)}
    by_path["/openapi.json"] = {"GET": _described()}
    by_path["/docs"] = {"GET": _documented()}
    # Of what there is below /api, also of what there is not, only those learn who have a secret.
    private = {operation.path for operation in OPERATIONS if operation.name not in opened} | set(
        METRICS_PATHS
    )
    routes = [
        Route(
            path.replace("{path}", "{path:path}"),
            _Methods(path, methods, requests, keyring if path in private else None),
        )
        for path, methods in by_path.items()
    ]
    routes.append(Route("/api/{rest:path}", _Nowhere(keyring)))
    handled = {PerdureError: failed, HTTPException: failed, Exception: failed}
    app = Starlette(routes=routes, exception_handlers=handled)
    app.router.redirect_slashes = False
    return RequestIds(traffic.counting(app), clock)


def _known(handler: Handler, operation: Operation, keyring: Keyring, quotas: Quotas) -> Open:
    """The handler for whoever the secret of the request proves: a tenant, an operator, or either of them."""
    provers = {"operators": keyring.operator, "both": keyring.anybody}
    limited = None if operation.audience == "operators" else quotas
    return _for(provers.get(operation.audience, keyring.tenant), handler, limited)


def _for(prove: Callable[[Mapping[str, str]], str], handler: Handler, quotas: Quotas | None) -> Open:
    """The handler for whom `prove` lets in; of tenants, as often as they may ask."""

    async def handle(request: Request) -> Response:
        who = prove(request.headers)
        if quotas is not None and who != OPERATOR:
            await quotas.count_request(request.scope, who)
        return await handler(request, who)

    return handle


class _Methods:
    """The methods of one path. As an object it is an endpoint that the framework hands every method to."""

    def __init__(
        self, path: str, methods: Mapping[str, Open], requests: Requests, keyring: Keyring | None
    ) -> None:
        self._path, self._methods, self._requests = path, dict(methods), requests
        self._keyring = keyring
        if "GET" in methods:
            self._methods["HEAD"] = methods["GET"]
        self._allow = ", ".join(sorted(self._methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = self._path
        request = Request(scope, receive, send)
        handler = self._methods.get(request.method)
        if handler is None:
            if self._keyring is not None:
                self._keyring.anybody(request.headers)
            raise NotAllowedHere(request.method, self._path, self._allow)
        with _tracer.start_as_current_span(
            f"{request.method} {self._path}",
            context=_propagator.extract(request.headers),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": request.method, "http.route": self._path},
        ):
            response = await self._requests.carry_out(handler(request))
        # A stream writes for hours; what took time for everybody else is over here.
        await response(scope, receive, send)


class _Nowhere:
    """What is not there, for those who may know."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._keyring.anybody(Request(scope, receive, send).headers)
        raise HTTPException(404)


def _described() -> Open:
    body = openapi.text().encode()

    async def describe(_: Request) -> Response:
        return Response(body, media_type="application/json")

    return describe


def _documented() -> Open:
    page = (Path(__file__).parent / "docs.html").read_text(encoding="utf-8")

    async def document(_: Request) -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": _DOCS_POLICY})

    return document
