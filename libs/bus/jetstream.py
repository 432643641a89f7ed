"""JetStream by its wire protocol: publish with an acknowledgement, leader reads, direct reads, the API.

Invariant: what a server's error means is decided here and nowhere else (`Refused.kind`); a read says in its name
whether the leader answers it. Requests are raw because the vendor's JetStream layer mishandles expired keys and
errors of unfinished publishes (docs/adr/0003), and costs twice the time.
"""

import base64
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

import msgspec
from nats.aio.msg import Msg

from libs.bus.link import Link
from libs.contracts.clock import Clock
from libs.contracts.errors import (
    UNREADABLE,
    BusUnavailable,
    InternalError,
    NobodyThere,
    PayloadTooLarge,
    PerdureError,
    StorageFull,
)

# One try of anything: longer than a slow disk, shorter than the shortest leader election (4 s).
TRY_S = 2.0
# How long a call goes on trying in all: the longest leader election takes 9 s.
PATIENCE_S = 15.0
# Pauses between tries: short at first (a race on three nodes is over in milliseconds), then out of the way.
_PAUSE_S = 0.02
_PAUSE_S_MAX = 1.0
# After each so many tries on which nobody listens the stream is looked for: one look may come just after another, which
# saw it still there.
REPAIR_TRIES = 3
# So long a read from a leader waits for a stream that is missing: longer than the pause between two looks.
MISSING_TRIES = 9
# One page of a direct read: bounded in messages by the reply's cost, in bytes by the reader's memory.
PAGE_MESSAGES = 256
PAGE_BYTES = 4 * 1024 * 1024
# The server refuses a multi-subject read that has more than 1,024 answers.
MULTI_SUBJECTS_MAX = 500

OPERATION = "KV-Operation"
_MARKER = "Nats-Marker-Reason"

Kind = Literal["conflict", "full", "too_large", "again", "missing", "defect"]

_CONFLICT = frozenset({10071, 10164})
# Store failures, account and server limits; a message count or size limit of the stream itself is 10077.
_FULL = frozenset({10002, 10023, 10028, 10047, 10077})
_TOO_LARGE = frozenset({10054, 10097})
# Not found: a message, a consumer, a stream.
NO_MESSAGE, NO_CONSUMER, NO_STREAM = 10037, 10014, 10059
# More replicas than servers: a 500 that no patience helps with.
_NEVER = frozenset({10074})
# Peers offline or not yet known: what a cluster says while one of its servers restarts.
_AGAIN = frozenset({10005})
_AGAIN_STATUS = frozenset({408, 409, 429, 500, 503})


# Somebody has to make room first. A server that was started on a full disk goes on refusing until it is started again.
FULL_S = 30
NO_ROOM = (
    "the bus has no room; free space on its disk or raise its limits, and start it again if it still refuses"
)


class Refused(PerdureError):
    """The server said no. Stays inside `libs/bus`: who gets one decides by `kind`, or lets `translated` decide."""

    def __init__(self, what: str, status: int, number: int, description: str) -> None:
        super().__init__(f"{what}: {description} ({number})")
        self.status_number, self.number, self.description = status, number, description

    @property
    def kind(self) -> Kind:
        if self.number in _CONFLICT:
            return "conflict"
        if self.number in _FULL:
            return "full"
        if self.number in _TOO_LARGE:
            return "too_large"
        if self.number in _AGAIN or (self.status_number in _AGAIN_STATUS and self.number not in _NEVER):
            return "again"
        return "missing" if self.status_number == 404 else "defect"

    def translated(self) -> PerdureError:
        """The error of the contract that says the same."""
        match self.kind:
            case "full":
                return StorageFull(f"{NO_ROOM}: {self.message}", retry_after_s=FULL_S)
            case "too_large":
                return PayloadTooLarge(self.message)
            case "again" | "missing":
                return BusUnavailable(self.message, retry_after_s=1)
            case "conflict" | "defect":
                return InternalError(self.message)


class Ack(NamedTuple):
    """A stored message: its sequence, and whether the server took it for one it had already."""

    sequence: int
    duplicate: bool


class Stored(NamedTuple):
    """A message of a stream as it was read; `at`, when the server stored it, where the leader answered."""

    subject: str
    sequence: int
    headers: dict[str, str]
    body: bytes
    at: str = ""


def is_gone(stored: Stored) -> bool:
    """Whether the newest message of a key says that there is no value: deleted, purged, or expired."""
    return _MARKER in stored.headers or stored.headers.get(OPERATION) in {"DEL", "PURGE"}


class Page(NamedTuple):
    """Part of a direct read. `up_to` is how far the replica that answered knew the stream (0: it did not say)."""

    messages: list[Stored]
    more: bool
    up_to: int


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


class _Answer(msgspec.Struct):
    error: _Error | None = None


class _Message(msgspec.Struct):
    subject: str
    seq: int
    hdrs: str = ""
    data: str = ""
    time: str = ""


class _Got(msgspec.Struct):
    message: _Message | None = None
    error: _Error | None = None


_ack_decoder = msgspec.json.Decoder(_Ack)
_answer_decoder = msgspec.json.Decoder(_Answer)
_got_decoder = msgspec.json.Decoder(_Got)
_encode = msgspec.json.Encoder().encode


class Patience:
    """The tries of one call: counts its time and pauses, a little longer and never in step with others."""

    def __init__(self, clock: Clock, total_s: float = PATIENCE_S) -> None:
        self._clock = clock
        self._end = clock.monotonic() + total_s
        self._pause_s = _PAUSE_S
        self.tries = 1

    @property
    def over(self) -> bool:
        return self._clock.monotonic() >= self._end

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - self._clock.monotonic())

    def try_s(self) -> float:
        """How long the next try may take."""
        return max(0.05, min(TRY_S, self._end - self._clock.monotonic()))

    async def pause(self) -> None:
        jitter = 0.5 + self._clock.entropy(1)[0] / 256
        await self._clock.sleep(min(self._pause_s * jitter, max(0.0, self._end - self._clock.monotonic())))
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
        self.tries += 1


class JetStream:
    """The streams as one process reaches them."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self.link = link
        self.clock = clock
        # Creates streams that somebody deleted under load; set by whoever knows them.
        self.repair: Callable[[], Awaitable[None]] = _nothing

    # --- Writing ---

    async def publish(
        self, subject: str, body: bytes, headers: dict[str, str], timeout_s: float = TRY_S
    ) -> Ack:
        """One try. Raises `Refused`, or `BusUnavailable`: then nobody knows whether it was stored."""
        message = await self.link.request(subject, body, timeout_s=timeout_s, headers=headers)
        try:
            ack = _ack_decoder.decode(message.data)
        except UNREADABLE as error:
            raise BusUnavailable(f"the answer on {subject} is no acknowledgement: {error}") from error
        if ack.error is not None:
            raise Refused(subject, ack.error.code, ack.error.err_code, ack.error.description)
        return Ack(ack.seq, ack.duplicate)

    async def publish_patiently(self, subject: str, body: bytes, headers: dict[str, str]) -> Ack:
        """Try until it is stored. Only for messages that may be stored twice or carry a `Nats-Msg-Id`.

        Raises what `Refused.translated` gives, and `Refused` of kind `conflict` as it is.
        """
        patience = Patience(self.clock)
        while True:
            try:
                return await self.publish(subject, body, headers, patience.try_s())
            except Refused as refused:
                if refused.kind == "conflict":
                    raise
                if refused.kind != "again" or patience.over:
                    raise refused.translated() from refused
            except NobodyThere:
                # An election, or there is no such stream any more.
                if patience.over:
                    raise
                if patience.tries % REPAIR_TRIES == 0:
                    await self.repair()
            except BusUnavailable:
                if patience.over:
                    raise
            await patience.pause()

    # --- The API ---

    async def api(self, name: str, body: object = None, *, timeout_s: float = TRY_S) -> bytes:
        """One call; the answer as JSON. Raises `Refused` or `BusUnavailable`."""
        payload = b"" if body is None else _encode(body)
        message = await self.link.request(f"$JS.API.{name}", payload, timeout_s=timeout_s)
        error = _answer_decoder.decode(message.data).error
        if error is not None:
            raise Refused(name, error.code, error.err_code, error.description)
        return message.data

    async def api_patiently(self, name: str, body: object = None) -> bytes:
        """Try while the server has no leader, is busy or out of reach. For calls that may be carried out twice."""
        patience = Patience(self.clock)
        while True:
            try:
                return await self.api(name, body, timeout_s=patience.try_s())
            except Refused as refused:
                if refused.kind != "again" or patience.over:
                    raise
            except BusUnavailable:
                if patience.over:
                    raise
            await patience.pause()

    # --- Reading from the leader: a negative answer is definite ---

    async def last(self, stream: str, subject_filter: str) -> Stored | None:
        """The newest message on the filter."""
        return await self._leader_get(stream, {"last_by_subj": subject_filter})

    async def next(self, stream: str, subject_filter: str, sequence: int) -> Stored | None:
        """The first message on the filter at `sequence` or behind."""
        return await self._leader_get(stream, {"seq": sequence, "next_by_subj": subject_filter})

    async def _leader_get(self, stream: str, query: dict[str, object]) -> Stored | None:
        patience = Patience(self.clock)
        payload = _encode(query)
        while True:
            try:
                answer = await self.link.request(
                    f"$JS.API.STREAM.MSG.GET.{stream}", payload, timeout_s=patience.try_s()
                )
            except BusUnavailable:
                if patience.over:
                    raise
                await patience.pause()
                continue
            got = _got_decoder.decode(answer.data)
            if got.message is not None:
                found = got.message
                headers = parse_headers(base64.b64decode(found.hdrs)) if found.hdrs else {}
                return Stored(found.subject, found.seq, headers, base64.b64decode(found.data), found.time)
            error = got.error or _Error()
            if error.err_code == NO_MESSAGE:
                return None
            refused = Refused(stream, error.code, error.err_code, error.description)
            if error.err_code == NO_STREAM and patience.tries < MISSING_TRIES:
                await self.repair()
            elif refused.kind != "again" or patience.over:
                raise refused.translated()
            await patience.pause()

    # --- Reading from any replica: may lag behind the leader ---

    async def page(
        self, stream: str, subject_filter: str, sequence: int, messages_max: int = PAGE_MESSAGES
    ) -> Page:
        """Messages on the filter from `sequence` on, in order, at most one page of them."""
        query: dict[str, object] = {
            "seq": sequence,
            "next_by_subj": subject_filter,
            "batch": messages_max,
            "max_bytes": PAGE_BYTES,
        }
        return await self._direct(stream, query)

    async def lasts(self, stream: str, subject_filters: list[str], sequence: int = 0) -> Page:
        """The newest message of every subject that matches, if it is at `sequence` or behind.

        At most 1,024 subjects may match. Raises `Refused` (413) when they do not fit.
        """
        query: dict[str, object] = {"multi_last": subject_filters, "batch": 1024, "max_bytes": PAGE_BYTES}
        if sequence:
            query["seq"] = sequence
        page = await self._direct(stream, query)
        found = page.messages
        while page.more:
            # The bytes ran out first; the rest lies behind, as of the same moment.
            query |= {"seq": found[-1].sequence + 1, "up_to_seq": page.up_to}
            page = await self._direct(stream, query)
            found += page.messages
        return Page(found, more=False, up_to=page.up_to)

    async def _direct(self, stream: str, query: dict[str, object]) -> Page:
        patience = Patience(self.clock)
        payload = _encode(query)
        while True:
            try:
                answers = await self.link.gather(
                    f"$JS.API.DIRECT.GET.{stream}",
                    payload,
                    timeout_s=max(TRY_S, patience.try_s()),
                    last=_ends,
                )
                return _page(stream, answers)
            except Refused as refused:
                if refused.kind != "again" or patience.over:
                    raise
            except NobodyThere:
                # No replica serves direct reads: the stream is gone, or its leader is being elected.
                if patience.over:
                    raise
            except BusUnavailable:
                if patience.over:
                    raise
            await patience.pause()


def parse_headers(raw: bytes) -> dict[str, str]:
    """Headers of a stored message, whose first line is `NATS/1.0`."""
    lines = raw.decode("utf-8", "replace").split("\r\n")
    return {name: value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}


async def _nothing() -> None:
    return


def _ends(message: Msg) -> bool:
    return message.headers is None or "Status" in message.headers


def _page(stream: str, answers: list[Msg]) -> Page:
    end = answers.pop()
    headers = end.headers or {}
    status = headers.get("Status", "")
    if status not in {"204", "404"}:
        raise Refused(
            stream, int(status) if status.isdigit() else 500, 0, headers.get("Description", "no end")
        )
    messages = [_stored(answer) for answer in answers]
    return Page(
        messages, int(headers.get("Nats-Num-Pending", 0)) > 0, int(headers.get("Nats-UpTo-Sequence", 0))
    )


def _stored(message: Msg) -> Stored:
    headers = message.headers or {}
    return Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, message.data)
