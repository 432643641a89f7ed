"""Counts the requests of this gateway.

Invariant: a route is one of the API's paths or `other`, a method one of HTTP's or `other`, so the counts stay few
whatever is asked for.
"""

from bisect import bisect_left
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libs.contracts.clock import Clock

# Where an endpoint writes its path into the scope of a request (`routes.py`).
ROUTE = "perdure.route"
OTHER = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Upper bounds in seconds: from an answer of memory to the patience of an append.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0)


class Durations:
    """How long something took: how often up to each bound (the last: beyond all), and together."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum_s = 0.0

    def add(self, took_s: float) -> None:
        self.counts[bisect_left(BOUNDS, took_s)] += 1
        self.sum_s += took_s


class Traffic:
    """What was asked of this gateway since it began: by method, route and status, and by method and route."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.durations: dict[tuple[str, str], Durations] = {}

    def counting(self, app: ASGIApp) -> ASGIApp:
        """The application, its requests counted as their answers begin."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = self._clock.monotonic()

            async def send_counted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._count(scope, int(message["status"]), self._clock.monotonic() - began)
                await send(message)

            await app(scope, receive, send_counted)

        return counted

    def _count(self, scope: Scope, status: int, took_s: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        # Set by the endpoint that the request found (`routes.py`); without one it led nowhere.
        route = str(scope.get(ROUTE, OTHER))
        self.requests[method, route, str(status)] += 1
        self.durations.setdefault((method, route), Durations()).add(took_s)
