"""Signs of life of one run: how long it has shown none.

Invariant: only what came from outside counts: bytes of the model, and calls whose other side is known to live. Every
activity but a model call knows that by itself, within seconds, from the journal and the leases, and has its own bound; so
a tool that takes hours is no silence. Before the first sign the beginning counts.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

from libs.contracts.clock import Clock
from services.executor.egress.request import Post
from services.executor.endpoint.faults import Refused


class Pulse:
    """The signs of life of one run in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = clock.monotonic()
        self._vouching = 0

    def beat(self) -> None:
        self._at = max(self._at, self._clock.monotonic())

    def rest(self, seconds: float) -> None:
        """It waits on purpose from now on: so much of what follows is no silence."""
        self._at += seconds

    @contextmanager
    def vouched(self) -> Generator[None]:
        """While the context lasts something goes on that finds out by itself whether it still lives."""
        self._vouching += 1
        try:
            yield
        finally:
            self._vouching -= 1
            self.beat()

    @property
    def silent_s(self) -> float:
        return 0.0 if self._vouching else max(0.0, self._clock.monotonic() - self._at)

    def heard(self, tap: Callable[[Post], Post]) -> Callable[[Post], Post]:
        """`tap`, and every answer of the model is a sign of life."""

        def listening(post: Post) -> Post:
            tapped = tap(post)

            @asynccontextmanager
            async def heard(body: bytes) -> AsyncGenerator[AsyncIterator[bytes]]:
                try:
                    async with tapped(body) as pieces:
                        self.beat()
                        yield self._counted(pieces)
                except Refused:
                    self.beat()
                    raise

            return heard

        return listening

    async def _counted(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            self.beat()
            yield piece
