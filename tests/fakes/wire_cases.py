"""The streams of `field-cases` A and B that end in a turn, with the turn that each must give.

Invariant: a case is data; unit tests feed it to the normaliser, service tests send it over a socket.
"""

from typing import NamedTuple

from tests.fakes.wire import DONE, call, choice, chunk, data, fin, tc, usage

PATH_A, PATH_B = '{"path":"a"}', '{"path":"b"}'


class Wire(NamedTuple):
    """`calls` are (name, arguments), arguments `None` where they cannot be read; `counted` is (input, output)."""

    name: str
    stream: bytes
    content: str = ""
    calls: tuple[tuple[str, object], ...] = ()
    reasoning: str = ""
    finish_reason: str = "stop"
    counted: tuple[int, int] | None = None


EMPTY: dict[str, object] = {}
HI = chunk(content="hi")
STOP, TOOLS = fin("stop"), fin("tool_calls")
WHOLE = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
}
WHOLE_CALL = {
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": PATH_A}}
                ],
            }
        }
    ]
}


def frame(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return data({"choices": [{"index": 0, "delta": {"content": "x"}}], "usage": counts})


STREAMS = (
    Wire("usage-only chunk last", HI + STOP + usage(10, 5) + DONE, "hi", counted=(10, 5)),
    Wire("usage-only chunk first", usage(10, 5) + HI + STOP + DONE, "hi", counted=(10, 5)),
    Wire(
        "usage-only chunk between",
        HI + usage(10, 5) + chunk(content="!") + STOP + DONE,
        "hi!",
        counted=(10, 5),
    ),
    Wire(
        "null usage on the finish chunk",
        HI
        + data({"choices": [{"index": 0, "delta": EMPTY, "finish_reason": "stop"}], "usage": None})
        + usage(10, 5)
        + DONE,
        "hi",
        counted=(10, 5),
    ),
    Wire(
        "empty usage on the finish chunk",
        HI
        + data({"choices": [{"index": 0, "delta": EMPTY, "finish_reason": "stop"}], "usage": EMPTY})
        + usage(10, 5)
        + DONE,
        "hi",
        counted=(10, 5),
    ),
    Wire(
        "cumulative usage frames",
        frame(10, 1) + frame(10, 5) + frame(10, 9) + STOP + DONE,
        "xxx",
        counted=(10, 9),
    ),
    Wire(
        "null details of usage",
        HI + STOP + usage(10, 5, prompt_tokens_details=None, completion_tokens_details=None) + DONE,
        "hi",
        counted=(10, 5),
    ),
    Wire(
        "no index at all",
        chunk(tool_calls=[call(ident="c1", name="f", args='{"a":')])
        + chunk(tool_calls=[call(args="1}")])
        + TOOLS
        + DONE,
        calls=(("f", {"a": 1}),),
        finish_reason="tool_calls",
    ),
    Wire(
        "an index only after the first fragment",
        chunk(tool_calls=[call(ident="c1", name="f", args='{"a":')]) + tc(0, None, None, "1}") + TOOLS + DONE,
        calls=(("f", {"a": 1}),),
        finish_reason="tool_calls",
    ),
    Wire(
        "two calls share an index",
        tc(0, "call_a", "read_file", PATH_A) + tc(0, "call_b", "read_file", PATH_B) + TOOLS + DONE,
        calls=(("read_file", {"path": "a"}), ("read_file", {"path": "b"})),
        finish_reason="tool_calls",
    ),
    Wire(
        "two calls share an index and have no id",
        tc(0, "", "read_file", PATH_A) + tc(0, "", "read_file", PATH_B) + TOOLS + DONE,
        calls=(("read_file", {"path": "a"}), ("read_file", {"path": "b"})),
        finish_reason="tool_calls",
    ),
    Wire(
        "interleaved parallel calls",
        tc(0, "a", "f", '{"p":')
        + tc(1, "b", "g", '{"q":')
        + tc(0, None, None, "1}")
        + tc(1, None, None, "2}")
        + TOOLS
        + DONE,
        calls=(("f", {"p": 1}), ("g", {"q": 2})),
        finish_reason="tool_calls",
    ),
    Wire(
        "an index twice in one chunk",
        chunk(tool_calls=[call(0, "a", "f", ""), call(0, args="{}")]) + TOOLS + DONE,
        calls=(("f", {}),),
        finish_reason="tool_calls",
    ),
    Wire(
        "empty ids",
        tc(0, "", "f", '{"a":1}') + tc(1, "", "f", '{"a":2}') + TOOLS + DONE,
        calls=(("f", {"a": 1}), ("f", {"a": 2})),
        finish_reason="tool_calls",
    ),
    Wire(
        "neither ids nor indexes",
        chunk(tool_calls=[call(name="f", args='{"a":1}'), call(name="f", args='{"a":2}')]) + TOOLS + DONE,
        calls=(("f", {"a": 1}), ("f", {"a": 2})),
        finish_reason="tool_calls",
    ),
    Wire(
        "the same id twice",
        tc(0, "call_1", "f", '{"a":1}') + tc(1, "call_1", "g", '{"a":2}') + TOOLS + DONE,
        calls=(("f", {"a": 1}), ("g", {"a": 2})),
        finish_reason="tool_calls",
    ),
    Wire(
        "the same id twice without indexes",
        tc(None, "call_1", "f", '{"a":1}') + tc(None, "call_1", "g", '{"a":2}') + TOOLS + DONE,
        calls=(("f", {"a": 1}), ("g", {"a": 2})),
        finish_reason="tool_calls",
    ),
    Wire(
        "id and name on every fragment",
        tc(0, "c", "f", '{"a":') + tc(0, "c", "f", '{"a":') + tc(0, "c", "f", "1}}") + TOOLS + DONE,
        calls=(("f", {"a": {"a": 1}}),),
        finish_reason="tool_calls",
    ),
    Wire(
        "a new id on every fragment",
        tc(0, "c1", "f", '{"a":') + tc(0, "c2", None, "1") + tc(0, "c3", None, "}") + TOOLS + DONE,
        calls=(("f", {"a": 1}),),
        finish_reason="tool_calls",
    ),
    Wire(
        "snapshots of whole calls",
        chunk(tool_calls=[call(0, "a", "f", PATH_A)])
        + chunk(tool_calls=[call(0, "a", "f", PATH_A), call(1, "b", "f", PATH_B)])
        + chunk(tool_calls=[call(0, "a", "f", PATH_A), call(1, "b", "f", PATH_B), call(2, "c", "g", "{}")])
        + TOOLS
        + DONE,
        calls=(("f", {"path": "a"}), ("f", {"path": "b"}), ("g", {})),
        finish_reason="tool_calls",
    ),
    Wire(
        "snapshots without ids and indexes",
        chunk(tool_calls=[call(name="f", args=PATH_A)])
        + chunk(tool_calls=[call(name="f", args=PATH_A), call(name="f", args=PATH_B)])
        + TOOLS
        + DONE,
        calls=(("f", {"path": "a"}), ("f", {"path": "b"})),
        finish_reason="tool_calls",
    ),
    Wire(
        "growing snapshots of one call",
        tc(0, "a", "f", '{"p') + tc(0, "a", "f", '{"path":"a') + tc(0, "a", "f", PATH_A) + TOOLS + DONE,
        calls=(("f", {"path": "a"}),),
        finish_reason="tool_calls",
    ),
    Wire(
        "a stray choice before the first",
        choice(index=1, delta={"content": "no"}) + HI + STOP + DONE,
        "hi",
    ),
    Wire(
        "two choices in one chunk",
        data(
            {"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "hi"}}]}
        )
        + STOP
        + DONE,
        "hi",
    ),
    Wire("no index of the choice", choice(delta={"content": "hi"}) + STOP + DONE, "hi"),
    Wire("reasoning beside content", chunk(reasoning_content="hm") + HI + STOP + DONE, "hi", reasoning="hm"),
    Wire("reasoning under its other name", chunk(reasoning="hm") + HI + STOP + DONE, "hi", reasoning="hm"),
    Wire("finish reason tool_calls without calls", HI + TOOLS + DONE, "hi", finish_reason="tool_calls"),
    Wire("finish reason stop with calls", tc(0, "a", "f", "{}") + STOP + DONE, calls=(("f", {}),)),
    Wire(
        "cut arguments that claim to be whole",
        tc(0, "a", "f", '{"path":"a.py","content":"import os\\nos.rem') + TOOLS + usage(10, 5) + DONE,
        calls=(("f", None),),
        finish_reason="tool_calls",
        counted=(10, 5),
    ),
    Wire(
        "output limit without content",
        chunk(content=None) + fin("length") + usage(10, 5) + DONE,
        finish_reason="length",
        counted=(10, 5),
    ),
    Wire("end marker without finish reason", chunk(content="Hello") + DONE, "Hello", finish_reason=""),
    Wire("finish reason without end marker", HI + STOP, "hi"),
    Wire("end marker without its blank line", HI + STOP + b"data: [DONE]", "hi"),
    Wire("more behind the end marker", HI + STOP + DONE + chunk(content="no"), "hi"),
    Wire(
        "comments",
        b": OPENROUTER PROCESSING\n\n:\n" + HI + b":\n\n: ping\n" + chunk(content="!") + STOP + DONE,
        "hi!",
    ),
    Wire("other fields", b"event: message\nid: 1\nretry: 10\n" + HI + b"dataset: x\n" + STOP + DONE, "hi"),
    Wire("CRLF lines", (HI + STOP + usage(10, 5) + DONE).replace(b"\n", b"\r\n"), "hi", counted=(10, 5)),
    Wire("CR lines", (HI + STOP + DONE).replace(b"\n", b"\r"), "hi"),
    Wire("no space behind the colon", (HI + STOP + DONE).replace(b"data: ", b"data:"), "hi"),
    Wire("a byte order mark", b"\xef\xbb\xbf" + HI + STOP + DONE, "hi"),
    Wire("no blank lines between events", (HI + STOP + DONE).replace(b"\n\n", b"\n"), "hi"),
    Wire("other scripts and emoji", chunk(content="日本🎉") + STOP + DONE, "日本🎉"),
    Wire(
        "an emoji whose halves come in two chunks",
        b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83c"}}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{"content":"\\udf78b"}}]}\n\n' + STOP + DONE,
        "a🍸b",
    ),
    Wire(
        "half an emoji",
        b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n' + STOP + DONE,
        "a\N{REPLACEMENT CHARACTER}",
    ),
    Wire("a whole completion instead of a stream", data(WHOLE)[6:-2], "hi", counted=(10, 5)),
    Wire("a whole completion with a call", b"\n " + data(WHOLE_CALL)[6:], calls=(("f", {"path": "a"}),)),
    Wire(
        "content null, empty and absent",
        chunk(content=None) + chunk(content="") + chunk(role="assistant") + HI + STOP + DONE,
        "hi",
    ),
    Wire(
        "content in parts",
        chunk(content=[{"type": "text", "text": "h"}, {"type": "text", "text": ""}, {"type": "image"}, "i"])
        + STOP
        + DONE,
        "hi",
    ),
    Wire("only empty parts", chunk(content=[{"type": "text", "text": ""}]) + STOP + DONE),
    Wire(
        "empty arguments",
        tc(0, "a", "f", "") + tc(1, "b", "g", "  ") + tc(2, "c", "f") + TOOLS + DONE,
        calls=(("f", {}), ("g", {}), ("f", {})),
        finish_reason="tool_calls",
    ),
    Wire(
        "arguments as an object",
        tc(0, "a", "f", {"command": "ls"}) + TOOLS + DONE,
        calls=(("f", {"command": "ls"}),),
        finish_reason="tool_calls",
    ),
    Wire(
        "half an emoji in the arguments",
        tc(0, "a", "f", '{"text":"\\ud83d"}') + tc(1, "b", "f", '{"text":"\\ud83c\\udf78"}') + TOOLS + DONE,
        calls=(("f", {"text": "\N{REPLACEMENT CHARACTER}"}), ("f", {"text": "🍸"})),
        finish_reason="tool_calls",
    ),
    Wire(
        "an unquoted value",
        tc(0, "a", "f", '{"commands": find /w -type f | head -20}') + TOOLS + DONE,
        calls=(("f", None),),
        finish_reason="tool_calls",
    ),
    Wire(
        "a function call of the old kind",
        chunk(function_call={"name": "f", "arguments": '{"a":'})
        + chunk(function_call={"arguments": "1}"})
        + fin("function_call")
        + DONE,
        calls=(("f", {"a": 1}),),
        finish_reason="function_call",
    ),
    Wire(
        "a refusal",
        chunk(refusal="I can't ") + chunk(refusal="do that.") + STOP + DONE,
        "I can't do that.",
        finish_reason="refusal",
    ),
)
