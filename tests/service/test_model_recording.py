"""Recordings of model calls: what they hold, and that a bad stream comes back byte by byte."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from deploy.dev.model_script import Answer
from deploy.dev.model_server import ModelServer, serve
from deploy.dev.wire_replay import replayed
from libs.bus.twin.network import QuietNetwork
from libs.bus.twin.server import TwinServer
from libs.contracts import events as e
from libs.contracts.exchange import Exchange
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.values import Usage
from services.executor.decision.decide import foresee
from services.executor.egress.request import ModelFailure
from services.executor.endpoint import recording as bounds
from services.executor.endpoint.completion import Patience
from services.executor.endpoint.deltas import LiveDeltas
from services.executor.endpoint.key import Key
from services.executor.endpoint.pulse import Pulse
from services.executor.endpoint.recording import Recorder, Recording
from services.executor.endpoint.talk import Talker
from services.executor.ingress.turn import ModelTurn
from tests.fakes.clock import START, QuickClock
from tests.fakes.histories import created
from tests.fakes.model import KEY, Peer, asked, connected, ignore, scripted, sent, talking
from tests.fakes.transcripts import result, run, said
from tests.fakes.wire import DONE, chunk, fin, usage
from tests.fakes.wire_cases import STREAMS, Wire

ENDED = e.ModelCompleted(
    iteration=1, content="", tool_calls=[], finish_reason="stop", usage=Usage(), latency_ms=1
)
HI = chunk(content="hi") + fin("stop") + usage(10, 5) + DONE

CLAIM = e.RunClaimed(owner="x", boot="b", epoch=1, attempt=1)
# A run whose next request does not fit, and which has its turns summarised.
CROWDED = run(
    *(item for n in range(1, 30) for item in (said(n, calls=1), result(n, 0, f"word {n} " * 300))),
    limits=Limits(context_tokens=10_000, context_strategy="summarising"),
)


class Tape:
    """A recorder on the twin's blobs, and what one call of it has kept."""

    def __init__(self, state: RunState | None = None) -> None:
        self.server = TwinServer(QuickClock())
        self.blobs = self.server.connect("test", QuietNetwork()).store("blobs")
        self.state = state or created(Limits(), TaskSpec(goal="x"))
        recorder = Recorder(self.blobs, QuickClock(), Key(KEY))
        self.recording: Recording = recorder.begin(self.state)

    async def lines(self) -> bytes:
        """The recording, as an export gives it."""
        event = await self.recording.noted(ENDED)
        if event.wire is None:
            return b""
        data = await self.blobs.get(f"{self.state.tenant}/{event.wire.blob}")
        assert data is not None
        assert event.wire.bytes == len(data)
        return data

    async def exchanges(self) -> list[Exchange]:
        return [Exchange.model_validate_json(line) for line in (await self.lines()).splitlines()]


async def outcome(peer: Peer, tape: Tape) -> ModelTurn | ModelFailure:
    try:
        return await peer.model.complete(asked(tap=tape.recording.tap), ignore)
    except ModelFailure as failure:
        return failure


async def again(recording: bytes, patience: Patience | None = None) -> ModelTurn | str:
    """What our client makes of the recorded responses, from a server that replays them."""
    async with serve(ModelServer(replayed(recording))) as url, connected(url, patience=patience) as model:
        try:
            return await model.complete(asked(), ignore)
        except ModelFailure as failure:
            return failure.error_code


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case.name)
async def test_a_recorded_stream_gives_the_same_turn_again(case: Wire) -> None:
    tape = Tape()
    async with talking(Answer(base64=sent(case.stream, 7)), patience=Patience(waits_s=())) as peer:
        first = await outcome(peer, tape)
    second = await again(await tape.lines(), Patience(waits_s=()))
    assert second == (first if isinstance(first, ModelTurn) else first.error_code)


async def test_a_fault_and_its_retry_are_recorded_and_come_again() -> None:
    tape = Tape()
    tries = [
        Answer(
            status=503, headers={"Retry-After": "1", "Set-Cookie": "x"}, body={"error": {"message": "busy"}}
        ),
        Answer(base64=sent(chunk(content="h")), end="reset"),
        Answer(base64=sent(HI)),
    ]
    async with talking(Answer(attempts=tries)) as peer:
        first = await outcome(peer, tape)
    kept = await tape.exchanges()
    assert [(one.number, one.status, one.end) for one in kept] == [
        (1, 503, "complete"),
        (2, 200, "lost"),
        (3, 200, kept[2].end),
    ]
    assert set(kept[0].headers) == {"content-type", "retry-after"}
    assert b"".join(kept[2].pieces) == HI
    assert await again(await tape.lines()) == first


async def test_pieces_that_are_no_text_by_themselves_are_kept_as_bytes() -> None:
    tape, stream = Tape(), chunk(content="é") + fin("stop") + DONE
    async with talking(Answer(base64=sent(stream, 1))) as peer:
        first = await outcome(peer, tape)
    [kept] = await tape.exchanges()
    assert b"".join(kept.pieces) == stream
    assert await again(await tape.lines()) == first


async def test_the_key_is_nowhere_in_a_recording() -> None:
    tape = Tape()
    echoed = f"Incorrect key {KEY}"
    tries = [Answer(status=503, body={"error": {"message": echoed}}), Answer(text=[echoed[:17], echoed[17:]])]
    async with talking(Answer(attempts=tries)) as peer:
        await outcome(peer, tape)
        assert KEY in peer.server.headers[0]["authorization"]
    kept = await tape.lines()
    assert KEY.encode() not in kept
    assert b"Incorrect" in kept
    assert "".join(part for one in await tape.exchanges() for part in one.text or []).count(KEY[:6]) == 0


async def test_a_key_that_stands_where_a_request_is_clipped_is_masked_before() -> None:
    tape, left = Tape(), 6

    @asynccontextmanager
    async def post(_: bytes) -> AsyncGenerator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncGenerator[bytes]:
            yield HI

        yield pieces()

    body = b"x" * (bounds.REQUEST_BYTES_MAX - left) + KEY.encode()
    async with tape.recording.tap(post)(body) as pieces:
        assert [piece async for piece in pieces] == [HI]
    [kept] = await tape.exchanges()
    assert kept.request.endswith("x" + "*" * left)


async def test_what_is_too_large_is_clipped_and_no_test() -> None:
    tape = Tape()
    text = ["x" * 400_000] * 3
    async with talking(Answer(text=text)) as peer:
        turn = await outcome(peer, tape)
        assert isinstance(turn, ModelTurn)
        assert turn.content == "".join(text)
    [kept] = await tape.exchanges()
    assert kept.clipped == ["response"]
    assert sum(map(len, kept.pieces)) <= bounds.RESPONSE_BYTES_MAX
    with pytest.raises(ValueError, match="clipped"):
        replayed(await tape.lines())


async def test_a_summary_is_recorded_with_the_tries_it_took() -> None:
    async with scripted(Answer(attempts=[Answer(text=""), Answer(text="Much was done.")])) as endpoint:
        bus = TwinServer(QuickClock()).connect("test", QuietNetwork())
        recorder = Recorder(bus.store("blobs"), QuickClock(), Key(KEY))
        async with connected(endpoint.url) as model:
            live = LiveDeltas(bus, QuickClock())
            talker = Talker(model, "first", QuickClock(), live, recorder=recorder)
            talk = talker.talk(CROWDED, {}, Pulse(QuickClock()))
            [event] = await talk.summarise(CROWDED, False, lambda _: None)
    assert isinstance(event, e.ContextCompacted)
    assert event.summary == "Much was done."
    assert event.wire is not None
    data = await bus.store("blobs").get(f"{CROWDED.tenant}/{event.wire.blob}")
    assert data is not None
    kept = [Exchange.model_validate_json(line) for line in data.splitlines()]
    assert [exchange.number for exchange in kept] == [1, 2]
    assert "Much was done." in "".join(kept[1].text or [])
    begun = created(Limits(), TaskSpec(goal="x"))
    claimed = foresee(begun, [e.RunStartRequested(by="test"), CLAIM], START)
    assert foresee(claimed, [event], START).recorded_bytes == event.wire.bytes


async def test_a_run_that_has_recorded_enough_records_no_more() -> None:
    full = msgspec.structs.replace(created(Limits(), TaskSpec(goal="x")), recorded_bytes=bounds.RUN_BYTES_MAX)
    tape = Tape(full)
    async with talking(Answer(text="hi")) as peer:
        assert isinstance(await outcome(peer, tape), ModelTurn)
    assert await tape.lines() == b""


async def test_a_call_keeps_a_bounded_number_of_requests() -> None:
    tape = Tape()
    async with talking(Answer(text="hi")) as peer:
        for _ in range(bounds.EXCHANGES_MAX + 2):
            await outcome(peer, tape)
    assert len(await tape.exchanges()) == bounds.EXCHANGES_MAX


def test_what_is_no_recording_is_refused_with_the_line() -> None:
    with pytest.raises(ValueError, match="no exchange in"):
        replayed(b"\n")
    with pytest.raises(ValueError, match="line 1 is no exchange"):
        replayed(b'{"format":"another"}')
