"""Every stream of the field cases over a real socket, and the manners of connections."""

import asyncio
import contextlib
from typing import Literal

import httpx
import msgspec
import pytest

from deploy.dev.model_script import Answer, ScriptedCall
from deploy.dev.model_server import chunk as http_chunk
from services.executor.egress.request import ModelFailure
from services.executor.endpoint.completion import Patience
from services.executor.ingress.turn import Delta
from tests.fakes.model import asked, ignore, sent, talking, until_aborted
from tests.fakes.transcripts import TOOLS
from tests.fakes.wire import DONE, chunk, fin, usage
from tests.fakes.wire_cases import STREAMS, Wire
from tests.fakes.wire_oddities import ODDITIES

HI = chunk(content="hi") + fin("stop") + usage(10, 5)


def is_empty(case: Wire) -> bool:
    """Whether a stream ends in a turn without anything, which is asked for again (see the tests of retries)."""
    return not case.content and not case.calls and case.finish_reason != "length"


@pytest.mark.parametrize(
    "case", [case for case in (*STREAMS, *ODDITIES) if not is_empty(case)], ids=lambda case: case.name
)
async def test_each_stream_gives_its_one_turn_over_a_socket(case: Wire) -> None:
    async with talking(Answer(base64=sent(case.stream))) as peer:
        turn = await peer.model.complete(asked(), ignore)
        assert peer.server.count == 1
    assert turn.content == case.content
    assert turn.reasoning == case.reasoning
    assert tuple((call.name, call.arguments) for call in turn.calls) == case.calls
    assert turn.finish_reason == case.finish_reason


@pytest.mark.parametrize(
    "case",
    [case for case in STREAMS if case.name in {"other scripts and emoji", "CRLF lines", "a byte order mark"}],
)
async def test_single_bytes_in_single_segments_give_the_same_turn(case: Wire) -> None:
    async with talking(Answer(base64=sent(case.stream, 1))) as peer:
        assert (await peer.model.complete(asked(), ignore)).content == case.content


async def test_a_missing_content_type_is_read_as_a_stream_and_asked_once() -> None:
    answer = Answer(base64=sent(HI + DONE), headers={"content-type": ""})
    async with talking(answer) as peer:
        assert (await peer.model.complete(asked(), ignore)).content == "hi"
        assert peer.server.count == 1


@pytest.mark.parametrize(
    "body, content_type",
    [
        (b"<html>Sign in</html>", "text/html"),
        (b'{"error":{"message":"invalid_api_key"}}', "application/json"),
        (b'{"detail":"nothing here"}', "application/json"),
    ],
)
async def test_a_foreign_body_with_status_200_is_a_typed_error_and_not_asked_again(
    body: bytes, content_type: str
) -> None:
    answer = Answer(base64=sent(body), headers={"content-type": content_type})
    async with talking(answer) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(), ignore)
        assert failure.value.error_code == "MODEL_ERROR"
        assert not failure.value.transient
        assert peer.server.count == 1


async def test_a_turn_is_complete_at_its_end_marker_though_the_socket_stays_open() -> None:
    answer = Answer(base64=sent(HI + DONE), end="hang")
    async with talking(answer) as peer:
        assert (await peer.model.complete(asked(), ignore)).usage.output_tokens == 5
        await until_aborted(peer)


async def test_a_turn_is_complete_soon_after_its_finish_reason_though_nothing_more_comes() -> None:
    answer = Answer(base64=sent(chunk(content="hi") + fin("stop")), end="hang")
    patience = Patience(settle_s=0.05)
    async with talking(answer, patience=patience) as peer:
        turn = await peer.model.complete(asked(), ignore)
    assert (turn.content, turn.usage.estimated) == ("hi", True)


async def test_a_connection_lost_behind_the_finish_reason_loses_nothing() -> None:
    answer = Answer(base64=sent(HI), end="reset")
    async with talking(answer) as peer:
        assert (await peer.model.complete(asked(), ignore)).content == "hi"
        assert peer.server.count == 1


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("end", ["reset", "eof"])
async def test_what_comes_together_with_the_end_of_its_connection_is_read(
    end: Literal["reset", "eof"],
) -> None:
    answer = Answer(wire=sent(HEAD + http_chunk(HI)), end=end)
    async with talking(answer) as peer:
        assert (await peer.model.complete(asked(), ignore)).content == "hi"
        assert peer.server.count == 1


async def test_a_garbled_body_is_no_silence_and_what_stands_before_it_counts() -> None:
    garbled = http_chunk(chunk(content="hi") + usage(10, 5)) + b"HTTP/1.1 502 Bad Gateway\r\n\r\n"
    broken = Answer(wire=[*sent(HEAD), *sent(garbled)], chunk_delay_s=0.01, end="hang")
    async with talking(Answer(attempts=[broken, Answer(base64=sent(HI + DONE))])) as peer:
        turn = await peer.model.complete(asked(), ignore)
    assert (turn.content, turn.attempt, turn.usage.output_tokens) == ("hi", 2, 10)


async def test_headers_of_many_kilobytes_and_a_reason_in_another_script_are_read() -> None:
    head = "HTTP/1.1 200 Schön\r\nx-policy: {}\r\nconnection: close\r\n\r\n".format("x" * 50_000)
    async with talking(Answer(wire=sent(head.encode("latin-1") + HI + DONE), end="eof")) as peer:
        assert (await peer.model.complete(asked(), ignore)).content == "hi"


async def test_comments_keep_a_silent_stream_alive() -> None:
    pings = [":\n\n"] * 12
    answer = Answer(raw=[*pings, (HI + DONE).decode()], chunk_delay_s=0.1)
    async with talking(answer, idle_timeout_s=0.6) as peer:
        assert (await peer.model.complete(asked(), ignore)).content == "hi"
        assert peer.server.count == 1


@pytest.mark.parametrize("silent", [Answer(raw=[":\n\n"], end="hang"), Answer(text="late", delay_s=60)])
async def test_silence_is_ended_and_asked_again(silent: Answer) -> None:
    answer = Answer(attempts=[silent, Answer(text="back")])
    async with talking(answer, idle_timeout_s=0.3) as peer:
        turn = await peer.model.complete(asked(), ignore)
    assert (turn.content, turn.attempt) == ("back", 2)


BAD_LENGTH = b"HTTP/1.1 500 Oops\r\ncontent-length: 100\r\n\r\npart"
BAD_PACKING = b"HTTP/1.1 503 Busy\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\nplain"
BAD_CHUNK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
BAD_CHARSET = b"HTTP/1.1 500 Oops\r\ncontent-type: text/plain; charset=none\r\ncontent-length: 1\r\n\r\n\xff"
BAD_PLACE = b"HTTP/1.1 302 Found\r\nlocation: http://[\r\ncontent-length: 0\r\n\r\n"
LONG_HEADER = b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000 + b"\r\n\r\n"
CIRCLE = b"HTTP/1.1 307 Elsewhere\r\nlocation: /v1/chat/completions\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "wire",
    [BAD_LENGTH, BAD_PACKING, BAD_CHUNK, BAD_CHARSET, BAD_PLACE, LONG_HEADER, CIRCLE, b"", b"\r\n\r\n"],
    ids=range(9),
)
async def test_whatever_comes_instead_of_http_is_a_fault_and_no_crash(wire: bytes) -> None:
    broken = Answer(wire=sent(wire), end="eof")
    async with talking(Answer(attempts=[broken, Answer(text="back")])) as peer:
        with contextlib.suppress(ModelFailure):
            assert (await peer.model.complete(asked(), ignore)).content == "back"


async def test_an_error_whose_body_never_comes_is_not_waited_for_for_ever() -> None:
    silent = Answer(wire=sent(b"HTTP/1.1 500 Oops\r\ncontent-length: 100\r\n\r\n"), end="hang")
    async with talking(Answer(attempts=[silent, Answer(text="back")]), idle_timeout_s=0.3) as peer:
        assert (await peer.model.complete(asked(), ignore)).content == "back"


async def test_an_error_whose_body_never_ends_is_read_a_little() -> None:
    endless = Answer(
        wire=sent(b"HTTP/1.1 401 No\r\ncontent-type: text/plain\r\n\r\n" + b"no " * 400_000), end="hang"
    )
    async with talking(endless) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(), ignore)
    assert failure.value.message.startswith("HTTP 401")


async def test_turns_share_one_connection() -> None:
    async with talking(Answer(text="hi")) as peer:
        for _ in range(5):
            await peer.model.complete(asked(), ignore)
        assert peer.server.connections == 1


async def test_the_request_is_what_the_wire_wants() -> None:
    async with talking(Answer(text="hi")) as peer:
        await peer.model.complete(asked(output_tokens_max=5), ignore)
        assert peer.bodies == [
            {
                "model": "first",
                "stream": True,
                "messages": [{"role": "user", "content": "Hello."}],
                "tools": msgspec.json.decode(TOOLS),
                "stream_options": {"include_usage": True},
                "max_tokens": 5,
            }
        ]
        assert peer.server.headers[0]["authorization"].startswith("Bearer ")


async def test_deltas_arrive_while_the_model_still_speaks() -> None:
    first = asyncio.Event()

    async def on_delta(attempt: int, delta: Delta) -> None:
        assert (attempt, delta.content) == (1, "early")
        first.set()

    answer = Answer(base64=sent(chunk(content="early")), end="hang")
    async with talking(answer) as peer:
        asking = asyncio.create_task(peer.model.complete(asked(), on_delta))
        await first.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await until_aborted(peer)


@pytest.mark.parametrize(
    "answer", [Answer(text="late", delay_s=60), Answer(text=["a"] * 500, chunk_delay_s=0.05)]
)
async def test_cancelling_closes_the_connection_at_once(answer: Answer) -> None:
    async with talking(answer) as peer:
        asking = asyncio.create_task(peer.model.complete(asked(), ignore))
        while not peer.server.asked:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        await until_aborted(peer)


async def test_the_scripted_model_answers_without_streaming_and_tells_what_it_was_asked() -> None:
    call = ScriptedCall(name="echo", arguments={"text": "x"})
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
    async with (
        talking(Answer(text="hi", calls=[call])) as peer,
        httpx.AsyncClient(base_url=peer.url) as client,
    ):
        answer = (await client.post("/chat/completions", json=body)).json()
        assert answer["choices"][0]["message"]["content"] == "hi"
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert (await client.get("/models")).json()["data"][0]["id"] == "scripted"
        root = peer.url.removesuffix("/v1")
        remembered = (await client.get(f"{root}/requests")).json()["requests"]
        assert [(asked["turn"], asked["status"]) for asked in remembered] == [(0, 200)]
        assert (await client.get(f"{root}/requests/0")).json() == body
        assert (await client.delete(f"{root}/requests")).status_code == 204
        assert not peer.server.asked
