"""More streams that end in a turn: habits of single providers, fields of the wrong type, fields that are not there.

Invariant: as in `wire_cases.py`: a case is data, with the turn that it must give.
"""

import msgspec

from tests.fakes.wire import DONE, call, choice, chunk, data, tc, usage
from tests.fakes.wire_cases import EMPTY, HI, PATH_A, PATH_B, STOP, TOOLS, WHOLE, Wire


def every(finish_reason: str, *texts: str) -> bytes:
    """Chunks that each claim to be the last one."""
    return b"".join(choice(index=0, delta={"content": text}, finish_reason=finish_reason) for text in texts)


def raw(text: str) -> bytes:
    return b"data: " + text.encode() + b"\n\n"


def ran(name: str, stream: bytes, *calls: tuple[str, object]) -> Wire:
    """A stream that ends in calls."""
    return Wire(name, stream + TOOLS + DONE, calls=calls, finish_reason="tool_calls")


def say(
    name: str,
    stream: bytes,
    content: str = "hi",
    *,
    reasoning: str = "",
    counted: tuple[int, int] | None = None,
) -> Wire:
    """A stream that ends in text."""
    return Wire(name, stream + STOP + DONE, content, reasoning=reasoning, counted=counted)


FA, FB = ("f", {"path": "a"}), ("f", {"path": "b"})
ONE = {"index": 0, "delta": {"content": "hi"}}
EMPTY_ERROR = {"code": None, "message": ""}

ODDITIES = (
    # --- Frames that are no chunks, and chunks with nothing in them.
    say("pings as data", raw("ping") + HI + raw("[PING]") + raw("null") + raw('"keep-alive"') + raw("0")),
    say(
        "empty and null chunks", raw("{}") + raw("[]") + raw('{"choices":null}') + raw('{"choices":[]}') + HI
    ),
    say("null choices, null deltas", raw('{"choices":[null]}') + raw('{"choices":[{"delta":null}]}') + HI),
    say("choices as one object", data({"choices": ONE})),
    say("a list of chunks in one event", data([{"choices": [ONE]}, {"usage": None}])),
    say("an event inside of an event", raw("data: " + HI.decode()[6:].strip())),
    say("an empty error beside the content", data({"choices": [ONE], "error": EMPTY_ERROR})),
    say("a false error", data({"choices": [ONE], "error": False, "base_resp": {"status_code": 0}})),
    # --- Indexes and shapes of choices.
    say("the choice's index as a text", data({"choices": [{**ONE, "index": "0"}]})),
    say("the choice's index as a float", data({"choices": [{**ONE, "index": 0.0}]})),
    say(
        "the choice's index as null",
        data({"choices": [{**ONE, "index": None}, {"delta": {"content": "no"}}]}),
    ),
    say("a delta that is a text", data({"choices": [{"index": 0, "delta": "hi"}]})),
    say("content as one part", chunk(content={"type": "text", "text": "hi"})),
    say("content of a wrong type", chunk(content=5) + chunk(content=True) + chunk(content=EMPTY) + HI),
    say("text of the completions of old", data({"choices": [{"index": 0, "text": "hi"}]})),
    say(
        "messages that repeat what was said",
        data({"choices": [{"message": {"content": "h"}}]})
        + data({"choices": [{"message": {"content": "hi"}}]}),
    ),
    say(
        "a whole message beside the last delta",
        HI + data({"choices": [{"index": 0, "delta": EMPTY, "message": {"content": "hi"}}]}),
    ),
    # --- Finish reasons.
    Wire("a finish reason in every chunk", every("stop", "h", "i") + DONE, "hi"),
    Wire("text behind the finish reason", chunk(content="h") + STOP + chunk(content="i") + DONE, "hi"),
    Wire("a call behind the finish reason", STOP + tc(0, "a", "f", PATH_A) + DONE, calls=(FA,)),
    Wire(
        "empty and null words for no finish reason", every("", "h") + every("null", "i") + STOP + DONE, "hi"
    ),
    Wire(
        "finish reasons of wrong types",
        choice(delta={"content": "hi"}, finish_reason=["stop"]) + STOP + DONE,
        "hi",
    ),
    Wire(
        "half an emoji in the finish reason",
        HI + raw('{"choices":[{"finish_reason":"st\\ud83dop"}]}') + DONE,
        "hi",
        finish_reason="st\N{REPLACEMENT CHARACTER}op",
    ),
    # --- Thinking.
    say(
        "thinking between tags",
        chunk(content="<thi") + chunk(content="nk>hm</th") + chunk(content="ink>\n\n") + HI,
        reasoning="hm",
    ),
    say("thinking that never ends", chunk(content="<think>hm"), "", reasoning="hm"),
    say("an answer about tags", chunk(content="A <think> tag."), "A <think> tag."),
    say("an answer that begins like a tag", chunk(content="<thin") + chunk(content="g>"), "<thing>"),
    say(
        "thinking in a part",
        chunk(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]) + HI,
        reasoning="hm",
    ),
    say(
        "thinking in details",
        chunk(reasoning_details=[{"type": "reasoning.text", "text": "hm"}, None, 1]) + HI,
        reasoning="hm",
    ),
    say(
        "thinking under two names at once", chunk(reasoning="hm", reasoning_content="hm") + HI, reasoning="hm"
    ),
    # --- Usage.
    say(
        "usage in its other names",
        usage(0, 0, input_tokens=10, output_tokens=5, prompt_tokens=None) + HI,
        counted=(10, 5),
    ),
    say("usage as texts", usage(0, 0, prompt_tokens="10", completion_tokens="5") + HI, counted=(10, 5)),
    say("input counted first, output last", usage(10, 1) + HI + usage(0, 5), counted=(10, 5)),
    say(
        "usage in the vendor's corner",
        HI + data({"x_groq": {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}}),
        counted=(10, 5),
    ),
    say(
        "usage of wrong types",
        usage(10, 5)
        + HI
        + data({"choices": [], "usage": [1]})
        + data({"choices": [], "usage": {"prompt_tokens": -3, "completion_tokens": True}}),
        counted=(10, 5),
    ),
    # --- Fragments of calls.
    ran("null entries among the calls", chunk(tool_calls=[None, call(0, "a", "f", PATH_A), 5]), FA),
    ran("the calls as one object", chunk(tool_calls=call(0, "a", "f", PATH_A)), FA),
    ran(
        "the calls under their numbers",
        chunk(tool_calls={"0": call(0, "a", "f", PATH_A), "1": call(1, "b", "f", PATH_B)}),
        FA,
        FB,
    ),
    ran(
        "indexes as texts",
        chunk(tool_calls=[{**call(None, "a", "f", '{"path":'), "index": "0"}])
        + chunk(tool_calls=[{**call(None, "b", "f", PATH_B), "index": "1"}])
        + chunk(tool_calls=[{**call(args='"a"}'), "index": "0"}]),
        FA,
        FB,
    ),
    ran("indexes that begin at one", tc(1, "a", "f", PATH_A) + tc(2, "b", "f", PATH_B), FA, FB),
    ran(
        "ids as numbers",
        chunk(tool_calls=[{"index": 0, "id": 7, "function": {"name": "f", "arguments": PATH_A}}]),
        FA,
    ),
    ran(
        "name and arguments without a function",
        chunk(tool_calls=[{"index": 0, "id": "a", "name": "f", "arguments": PATH_A}]),
        FA,
    ),
    ran(
        "a function that is null",
        chunk(tool_calls=[{"index": 0, "id": "a", "function": None, "name": "f"}])
        + tc(0, None, None, PATH_A),
        FA,
    ),
    ran(
        "parameters for arguments",
        chunk(tool_calls=[{"index": 0, "function": {"name": "f", "parameters": {"path": "a"}}}]),
        FA,
    ),
    ran(
        "arguments as null",
        chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": None}}]),
        ("f", {}),
    ),
    ran("arguments as a list", tc(0, "a", "f", [1]), ("f", None)),
    ran(
        "arguments as a number and as false",
        tc(0, "a", "f", 3) + tc(1, "b", "f", False),
        ("f", None),
        ("f", None),
    ),
    ran(
        "a name that grows",
        tc(0, "a", "f_") + tc(0, "a", "f_o") + tc(0, "a", None, PATH_A),
        ("f_o", {"path": "a"}),
    ),
    ran(
        "a name in pieces",
        tc(0, "a", "f_") + tc(0, None, "o") + tc(0, None, None, PATH_A),
        ("f_o", {"path": "a"}),
    ),
    ran(
        "a ghost of a call at the end",
        tc(0, "a", "f", PATH_A)
        + chunk(tool_calls=[{"index": 1, "id": "", "function": {"name": "", "arguments": ""}}])
        + chunk(tool_calls=[{"index": 2, "id": "x", "type": "function", "function": EMPTY}]),
        FA,
    ),
    ran(
        "a call in both forms",
        chunk(tool_calls=[call(0, "a", "f", PATH_A)], function_call={"name": "f", "arguments": PATH_A}),
        FA,
    ),
    ran(
        "half an emoji in the name",
        raw(
            '{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f\\ud83d","arguments":"{}"}}]}}]}'
        ),
        ("f\N{REPLACEMENT CHARACTER}", {}),
    ),
    ran(
        "content null beside the calls",
        chunk(content=None, role="assistant", tool_calls=[call(0, "a", "f", PATH_A)]),
        FA,
    ),
    # --- Bodies that are no event stream.
    Wire(
        "one JSON a line",
        b'{"choices":[{"delta":{"content":"h"}}]}\n{"choices":[{"delta":{"content":"i"}}]}\n'
        b'{"choices":[{"delta":{},"finish_reason":"stop"}]}\n',
        "hi",
    ),
    Wire("a whole completion in a list", b"[" + msgspec.json.encode(WHOLE) + b"]", "hi", counted=(10, 5)),
    Wire(
        "a whole completion without a finish reason",
        b'\xef\xbb\xbf{"choices":[{"message":{"content":"hi"}}]}',
        "hi",
    ),
)
