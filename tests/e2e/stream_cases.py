"""Section A of the field's cases: how chat completions are streamed.

Invariant: as in `field_case.py`. What concerns time alone (29 apart) is tested with a clock in `tests/service`.
"""

from __future__ import annotations

import gzip

import msgspec

from services.executor.ingress.finish import NUDGES_MAX
from tests.e2e.field_case import LAST, Case, called, sent, text, tries, wired
from tests.e2e.stage import says
from tests.fakes.wire import DONE, call, choice, chunk, data, fin, tc, usage

HI, STOP = chunk(content="hi"), fin("stop")
END = STOP + usage(10, 5) + DONE
X, Y, Z = '{"text":"x"}', '{"text":"y"}', '{"text":"z"}'
EMPTY: dict[str, object] = {}
RAN_X = ((True, "x"),)
RAN_XY = ((True, "x"), (True, "y"))
HEAD = b"HTTP/1.1 200 OK\r\n"
SSE = b"content-type: text/event-stream\r\n"


def finish_with(counts: object) -> bytes:
    """A finish chunk that also carries `usage`."""
    return data({"choices": [{"index": 0, "delta": EMPTY, "finish_reason": "stop"}], "usage": counts})


def counting(content: str, completion: int) -> bytes:
    counts = {"prompt_tokens": 10, "completion_tokens": completion}
    return data({"choices": [{"index": 0, "delta": {"content": content}}], "usage": counts})


def said(
    number: str, must: str, *stream: bytes, answer: str = "hi", used: tuple[int, int] | None = (10, 5)
) -> Case:
    """One request whose stream is the answer."""
    return Case(number, must, [sent(*stream)], answer=answer, used=used, requests=1)


def ran(
    number: str,
    must: str,
    *fragments: bytes,
    results: tuple[tuple[bool, str], ...],
    reason: str = "tool_calls",
) -> Case:
    """A turn of calls, and the end."""
    return Case(
        number, must, [called(*fragments, reason=reason), LAST], results=results, used=(30, 7), requests=2
    )


def echo(index: int | None, ident: str | None, args: object) -> bytes:
    return tc(index, ident, "echo", args)


def thinks(
    number: str, must: str, *, rules: tuple[str, ...], refused: int, sees: str = "", never: str = ""
) -> Case:
    return Case(
        number,
        must,
        [called(chunk(reasoning_content="think"), echo(0, "a", X)), LAST],
        results=RAN_X,
        rules=rules,
        refused=refused,
        sees=(sees,) if sees else (),
        never=(never,) if never else (),
    )


WHOLE = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
}
SIGNED = chunk(tool_calls=[{**call(0, "a", "echo", X), "extra_content": {"vendor": {"signature": "s1"}}}])
THOUGHT = sent(chunk(reasoning_content="hm") + END)
DETAILS = {
    "prompt_tokens_details": {"cached_tokens": 900, "cache_write_tokens": 60},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
BYTES = chunk(content="日本🎉").replace(b"\n", b"\r\n") + END

STREAM_CASES = (
    said("1a", "usage behind the last choice counts once", HI, END),
    said("1b", "usage before the first choice counts once", usage(10, 5), HI, STOP, DONE),
    said("1c", "usage between choices counts once", HI, usage(10, 5), STOP, DONE),
    said("2a", "null usage on the finish chunk hides nothing", HI, finish_with(None), usage(10, 5), DONE),
    said("2b", "empty usage on the finish chunk hides nothing", HI, finish_with(EMPTY), usage(10, 5), DONE),
    said("4", "cumulative usage is not summed", counting("h", 1), counting("i", 5), counting("", 9), STOP, DONE, used=(10, 9)),
    Case("5a", "usage is asked for, with its details", [sent(HI, STOP, usage(1_000, 5, **DETAILS), DONE)], answer="hi",
        used=(1_000, 5), sees=('"include_usage":true',)),
    said("5b", "null details of usage are none", HI, STOP, usage(10, 5, prompt_tokens_details=None), DONE),
    Case("5c", "an endpoint that refuses stream_options is asked without", [sent(HI, STOP, DONE)], answer="hi",
        rules=("no_stream_options",), refused=1, requests=2),
    ran("7a", "calls without an index are calls", chunk(tool_calls=[call(ident="c1", name="echo", args=X)]), results=RAN_X),
    ran("7b", "fragments without index and id belong to the call that streams", chunk(tool_calls=[call(ident="c", name="echo", args='{"te')]),
        chunk(tool_calls=[call(args='xt":"x"}')]), results=RAN_X),
    ran("8", "two calls on one index are two", echo(0, "call_a", X), echo(0, "call_b", Y), results=RAN_XY),
    ran("10", "interleaved calls are put together", echo(0, "a", '{"text":'), echo(1, "b", '{"text":'), tc(0, None, None, '"x"}'),
        tc(1, None, None, '"y"}'), results=RAN_XY),
    ran("11", "an index twice in a chunk is one call", chunk(tool_calls=[call(0, "a", "echo", ""), call(0, args=X)]), results=RAN_X),
    ran("13a", "calls with empty ids are all carried out", echo(0, "", X), echo(1, "", Y), results=RAN_XY),
    ran("13b", "calls with null ids are all carried out", chunk(tool_calls=[{**call(0, None, "echo", X), "id": None}]),
        chunk(tool_calls=[{**call(1, None, "echo", Y), "id": None}]), results=RAN_XY),
    ran("14", "calls with the same id are all carried out", echo(0, "call_1", X), echo(1, "call_1", Y), results=RAN_XY),
    ran("16", "snapshots are not deltas", chunk(tool_calls=[call(0, "a", "echo", X)]),
        chunk(tool_calls=[call(0, "a", "echo", X), call(1, "b", "echo", Y)]),
        chunk(tool_calls=[call(0, "a", "echo", X), call(1, "b", "echo", Y), call(2, "c", "echo", Z)]),
        results=(*RAN_XY, (True, "z"))),
    said("17a", "a choice before the first is passed over", choice(index=1, delta={"content": "no"}), HI, END),
    said("17b", "a second choice in a chunk is passed over",
        data({"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "hi"}}]}), END),
    thinks("19a", "reasoning that is wanted back is sent back", rules=("reasoning_required",), refused=1, sees='"reasoning_content":"think"'),
    thinks("19b", "reasoning that is refused is not sent", rules=("reasoning_refused",), refused=0, never="reasoning_content"),
    Case("19c", "what the endpoint hung on a call goes back with it", [called(SIGNED), LAST], results=RAN_X, rules=("signed_calls",),
        sees=('"signature":"s1"',), requests=2),
    Case("19d", "but not to an endpoint that refuses it", [called(SIGNED), LAST], results=RAN_X, rules=("no_extra_content",),
        refused=1, requests=3),
    Case("20a", "a turn of reasoning alone is nudged", [tries(THOUGHT, says("Done."))], requests=2, sees=("had no answer",)),
    Case("20b", "reasoning alone, again and again, fails the run", [THOUGHT], error="EMPTY_RESPONSE", requests=NUDGES_MAX + 1),
    Case("20c", "thinking between tags is reasoning too", [tries(sent(chunk(content="<think>hm</think>") + END), says("Done."))],
        requests=2, never=("<think>",)),
    Case("22", "finish reason tool_calls without calls is an answer", [sent(HI, fin("tool_calls"), usage(10, 5), DONE)], answer="hi",
        used=(10, 5), requests=1),
    ran("23", "finish reason stop with calls runs them", echo(0, "a", X), results=RAN_X, reason="stop"),
    ran("24", "calls cut at the output limit are not carried out", echo(0, "a", '{"text":"import os\\nos.rem'), reason="length",
        results=((False, "end in the middle"),)),
    Case("25", "a cut that claims to be whole is none, and is not replayed", [called(echo(0, "a", '{"text":"import os\\nos.rem')), LAST],
        results=((False, "end in the middle"),), never=("os.rem",), used=(30, 7)),
    Case("26a", "the output limit without content is an error of its own", [sent(chunk(content=None), fin("length"), usage(10, 5), DONE)],
        error="MAX_TOKENS", used=(10, 5), requests=1),
    Case("26b", "the output limit with empty content too", [sent(chunk(content=""), fin("length"), usage(10, 5), DONE)],
        error="MAX_TOKENS", used=(10, 5), requests=1),
    said("28a", "the end marker ends a turn of text", chunk(content="Hello"), DONE, answer="Hello", used=None),
    Case("28b", "the end marker in the middle of a call does not", [tries(sent(echo(0, "a", '{"te'), DONE), says("Done."))], requests=2),
    Case("28c", "nor before the arguments of a call", [tries(sent(echo(0, "a", None), DONE), says("Done."))], requests=2),
    Case("29", "a turn is over at its end marker though the socket stays open", [sent(text("hi"), end="hang")], answer="hi",
        used=(10, 5), requests=1),
    said("32", "comments are no content", b": OPENROUTER PROCESSING\n\n:\n", HI, b":\n\n", END),
    said("34a", "CRLF ends lines", (HI + END).replace(b"\n", b"\r\n")),
    said("34b", "CR ends lines", (HI + END).replace(b"\n", b"\r")),
    said("34c", "no space behind the colon is needed", (HI + END).replace(b"data: ", b"data:")),
    said("34d", "a byte order mark is passed over", b"\xef\xbb\xbf" + HI + END),
    said("35", "single bytes in single segments are the same turn", *(bytes([one]) for one in BYTES), answer="日本🎉"),
    Case("37a", "a page with status 200 is an error", [sent(b"<html>Sign in</html>", headers={"content-type": "text/html"})],
        error="MODEL_ERROR", requests=1),
    Case("37b", "an error with status 200 is an error", [sent(b'{"error":{"message":"invalid_api_key"}}', headers={"content-type": "application/json"})],
        error="MODEL_ERROR", requests=1),
    said("37c", "a whole completion is taken though a stream was asked for", msgspec.json.encode(WHOLE)),
    Case("37d", "without a content type it is a stream, and is asked for once", [sent(HI, END, headers={"content-type": ""})],
        answer="hi", used=(10, 5), requests=1),
    Case("37e", "a body until the connection closes is read to its end", [wired(b"HTTP/1.0 200 OK\r\n" + SSE + b"\r\n", HI, END)],
        answer="hi", used=(10, 5), requests=1),
    Case("37f", "a body of known length is read", [wired(HEAD + SSE + b"content-length: %d\r\n\r\n" % len(text("hi")) + text("hi"), end="complete")],
        answer="hi", used=(10, 5), requests=1),
    Case("37g", "a packed body is unpacked",
        [wired(HEAD + SSE + b"content-encoding: gzip\r\nconnection: close\r\n\r\n", gzip.compress(text("hi")))],
        answer="hi", used=(10, 5), requests=1),
    Case("37h", "what is not packed as it says is tried again", [tries(
        wired(HEAD + SSE + b"content-encoding: gzip\r\nconnection: close\r\n\r\n" + text("hi")), says("Done."))], requests=2),
    Case("37i", "an empty body is tried again", [tries(wired(HEAD + SSE + b"content-length: 0\r\n\r\n"), says("Done."))], requests=2),
    Case("37j", "what is no HTTP is tried again", [tries(wired(b"SSH-2.0-OpenSSH\r\n"), says("Done."))], requests=2),
    said("38a", "null, empty and absent content is none", chunk(content=None), chunk(content=""), chunk(role="assistant"), HI, END),
    said("38b", "content in parts is text", chunk(content=[{"type": "text", "text": "h"}, {"type": "text", "text": ""}]), chunk(content=["i"]), END),
    Case("38c", "empty parts alone are an empty turn, asked for again", [tries(sent(chunk(content=[{"type": "text", "text": ""}]) + END), says("Done."))],
        requests=2),
    ran("38d", "null content beside calls goes back as a strict endpoint takes it", chunk(content=None), echo(0, "a", X), results=RAN_X),
    Case("41a", "calls that were not offered are not carried out: the text counts", [called(HI, echo(0, "a", X))], answer="hi",
        task={"tools": []}, requests=1),
    Case("41b", "calls that were not offered, without text, are nudged", [tries(called(echo(0, "a", X)), says("Done."))], task={"tools": []},
        requests=2),
    Case("41c", "calls that were not offered, again and again, end the run", [called(echo(0, "a", X))] * 9, task={"tools": []},
        error="EMPTY_RESPONSE", requests=NUDGES_MAX + 1),
)  # fmt: skip
