"""What goes over the wire in model calls, kept for later when the operator asks for it (`PERDURE_RECORD_WIRE`).

Invariant: a recording is bounded, holds neither the key nor a header that could, and is never the reason why a call
fails or waits for more than its storing. One blob a model call, a line an HTTP request (`libs/contracts/exchange.py`); the
event that ends the call names it.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import NamedTuple, TypeVar

import msgspec

from libs.bus.history import blob_name
from libs.bus.ports import Blobs
from libs.chassis.logs import get_logger
from libs.contracts import events as e
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.errors import Unavailable
from libs.contracts.exchange import Exchange, written
from libs.contracts.run import RunState
from libs.contracts.values import WireRecording
from libs.policy.masking import masked, masked_stream
from services.executor.egress.request import Post
from services.executor.endpoint.faults import Refused, Unreachable
from services.executor.endpoint.key import Key

# A request is one context window, a response one turn; what is larger is clipped, and says so. Together with the number
# of slots this bounds what recording takes of the memory.
REQUEST_BYTES_MAX = 512 * 1024
RESPONSE_BYTES_MAX = 1024 * 1024
# Requests of one model call: all retries on a few models. Later ones are not kept.
EXCHANGES_MAX = 40
CALL_BYTES_MAX = 4 * 1024 * 1024
RUN_BYTES_MAX = 64 * 1024 * 1024
# Of a refusal: what tells how it was judged.
_HEADERS = ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "x-request-id")

FORMAT = "perdure-wire/1"

_log = get_logger("recording")

E = TypeVar("E", e.ModelCompleted, e.ModelFailed, e.ContextCompacted)


class Recorder(NamedTuple):
    """Records the calls of all runs of a process. The secrets that `key` knows are masked wherever they stand."""

    blobs: Blobs
    clock: Clock
    key: Key

    def begin(self, state: RunState) -> "Recording":
        """The recording of the model call that a run is about to make."""
        return Recording(self, state)


class Recording:
    """One model call."""

    def __init__(self, recorder: Recorder, state: RunState) -> None:
        self._recorder, self._state = recorder, state
        self._room = _Room(min(CALL_BYTES_MAX, RUN_BYTES_MAX - state.recorded_bytes))
        self._heard: list[_Heard] = []

    def tap(self, post: Post) -> Post:
        """`post`, listened in on."""

        @asynccontextmanager
        async def tapped(body: bytes) -> AsyncGenerator[AsyncIterator[bytes]]:
            heard = self._begun(body)
            if heard is None:
                async with post(body) as pieces:
                    yield pieces
                return
            try:
                async with post(body) as pieces:
                    yield heard.listening(pieces)
            except Refused as refused:
                heard.refused = refused
                raise
            except Unreachable as error:
                heard.reason = str(error)
                raise

        return tapped

    async def noted(self, event: E) -> E:
        """Store what was heard; the event with the recording's name."""
        if not self._heard:
            return event
        lines = [
            self._exchange(number, heard).model_dump_json(exclude_defaults=True)
            for number, heard in enumerate(self._heard, 1)
        ]
        data = "".join(f"{line}\n" for line in lines).encode()
        digest = hashlib.sha256(data).hexdigest()
        try:
            await self._recorder.blobs.put(blob_name(self._state.tenant, digest), data)
        except Unavailable as error:
            _log.warning("recording.lost", run_id=self._state.run_id, reason=error.message)
            return event
        return msgspec.structs.replace(event, wire=WireRecording(blob=digest, bytes=len(data)))

    def _begun(self, body: bytes) -> "_Heard | None":
        if len(self._heard) >= EXCHANGES_MAX or not self._room.take(min(len(body), REQUEST_BYTES_MAX)):
            return None
        heard = _Heard(body, self._recorder.clock, self._room)
        self._heard.append(heard)
        return heard

    def _exchange(self, number: int, heard: "_Heard") -> Exchange:
        secrets, sizes = self._recorder.key.secrets, [len(piece) for piece in heard.pieces]
        stream = masked_stream(b"".join(heard.pieces), secrets)
        pieces = [stream[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
        clipped = ["request"] if len(heard.body) > REQUEST_BYTES_MAX else []
        clipped += ["response"] if heard.clipped else []
        refused = heard.refused
        known: Mapping[str, str] = refused.headers if refused is not None else {}
        fields: dict[str, object] = {
            "format": FORMAT,
            "run_id": self._state.run_id,
            "iteration": self._state.iteration,
            "number": number,
            "at": heard.at,
            "request": masked(heard.body, secrets)[:REQUEST_BYTES_MAX].decode("utf-8", "ignore"),
            "status": refused.status if refused is not None else heard.status,
            "headers": {name: known[name] for name in _HEADERS if name in known},
            "body": masked(refused.body.encode(), secrets).decode() if refused is not None else "",
            "at_ms": heard.at_ms,
            "end": "complete" if refused is not None else heard.end,
            "reason": masked(heard.reason.encode(), secrets).decode(),
            "clipped": clipped,
            **(written(pieces) if pieces else {}),
        }
        return Exchange.model_validate(fields)


class _Room:
    """What a model call may still keep."""

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> bool:
        """Whether this much still fits; it is used up then."""
        if size > self._left:
            return False
        self._left -= size
        return True


class _Heard:
    """One HTTP request while it goes on, and an iterator over its response that keeps what passes."""

    def __init__(self, body: bytes, clock: Clock, room: _Room) -> None:
        # A reference: the bytes are the request's own.
        self.body = body
        self.at = rfc3339(clock.now())
        self.pieces: list[bytes] = []
        self.at_ms: list[int] = []
        self.status = 0
        self.refused: Refused | None = None
        self.reason = ""
        self.clipped = False
        self._complete = False
        self._clock, self._began = clock, clock.monotonic()
        self._room, self._size = room, 0
        self._source: AsyncIterator[bytes] | None = None

    def listening(self, pieces: AsyncIterator[bytes]) -> "_Heard":
        self.status, self._source = 200, pieces
        return self

    @property
    def end(self) -> str:
        return "lost" if self.reason else "complete" if self._complete else "left"

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        assert self._source is not None
        try:
            piece = await anext(self._source)
        except StopAsyncIteration:
            self._complete = True
            raise
        except Unreachable as error:
            self.reason = str(error) or "lost"
            raise
        self._size += len(piece)
        if self._size > RESPONSE_BYTES_MAX or (not self.clipped and not self._room.take(len(piece))):
            self.clipped = True
        if not self.clipped:
            self.pieces.append(piece)
            self.at_ms.append(int((self._clock.monotonic() - self._began) * 1000))
        return piece
