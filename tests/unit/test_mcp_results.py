"""A server's tools and answers as ours: all forms, with errors kept and secrets hidden (field case 182)."""

from __future__ import annotations

import base64
import json

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Tool

from libs.contracts.tools import Semantics
from libs.policy.redaction import MARK, Redaction
from libs.policy.risk import risk_of
from services.toolhost.mcp.configuration import McpServer, parse_servers
from services.toolhost.mcp.declarations import DESCRIPTION_CHARS_MAX, TOOLS_MAX, offered
from services.toolhost.mcp.ending import Ending, reason_of
from services.toolhost.mcp.results import NOTHING, Answer, answer_of, shown
from services.toolhost.output import shown as clipped

SECRET = "the-secret-word"
CHARS_MAX = 30_000
PIXEL = base64.b64encode(b"\x89PNG" + bytes(60)).decode()


def answer(*content: object, **fields: object) -> Answer:
    result = CallToolResult.model_validate({"content": content, **fields})
    return answer_of(result, [SECRET.encode()], CHARS_MAX)


def text(said: str) -> dict[str, object]:
    return {"type": "text", "text": said}


def test_several_texts_are_one_text() -> None:
    said = answer(text("first"), text("second"))
    assert said == Answer(
        True,
        "first\nsecond",
        {"parts": 2, "content": [{"type": "text", "chars": 5}, {"type": "text", "chars": 6}]},
    )


def test_pictures_and_sounds_are_named_with_kind_and_size() -> None:
    said = answer(
        {"type": "image", "data": PIXEL, "mimeType": "image/png"},
        {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
    )
    assert said.output == "[image: image/png, 64 bytes, not shown]\n[audio: audio/wav, 64 bytes, not shown]"
    assert said.metadata["content"] == [
        {"type": "image", "mime_type": "image/png", "bytes": 64},
        {"type": "audio", "mime_type": "audio/wav", "bytes": 64},
    ]


def test_resources_are_shown_or_named_and_links_say_where_they_lead() -> None:
    said = answer(
        {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "hello", "mimeType": "text/plain"}},
        {"type": "resource", "resource": {"uri": "file:///b.bin", "blob": PIXEL}},
        {"type": "resource_link", "uri": "https://example.com/c", "name": "c", "description": "a\nb"},
    )
    assert said.output.splitlines() == [
        "[resource file:///a.txt]",
        "hello",
        "[resource file:///b.bin: of an unknown kind, 64 bytes, not shown]",
        "[link to a resource: https://example.com/c (c, a b)]",
    ]


def test_structured_content_is_told_once_and_an_error_stays_one() -> None:
    structured = {"code": 7, "why": ["disk"]}
    failed = answer(text("it failed"), structuredContent=structured, isError=True)
    assert not failed.ok
    assert failed.output.startswith("it failed\n{")
    assert json.loads(failed.output.partition("\n")[2]) == structured
    assert failed.metadata["error_code"] == "MCP_TOOL_ERROR"
    assert failed.metadata["structured"] is True
    assert answer(text(json.dumps(structured)), structuredContent=structured).output == json.dumps(structured)
    assert answer(text("plain"), structuredContent={"result": "plain"}).output == "plain"
    assert json.loads(answer(structuredContent={"result": [1, 2]}).output) == {"result": [1, 2]}
    assert answer(text("1"), text("2"), structuredContent={"result": [1, 2]}).output.startswith("1\n2\n{")


def test_an_answer_without_content_says_so() -> None:
    assert answer().output == NOTHING
    assert answer(text("")).output == NOTHING
    empty = answer(isError=True)
    assert (empty.ok, empty.output) == (False, NOTHING)


def test_ten_megabytes_are_cut_in_the_middle_with_an_exact_count_and_no_secret_at_the_edges() -> None:
    long = f"{SECRET} begin " + "x" * 10_000_000 + f" end {SECRET}"
    said = answer(text(long))
    assert len(said.output) == len(long) - 2 * (len(SECRET) - len(MARK))
    told = clipped(said.output, CHARS_MAX, Redaction())
    assert told.startswith(f"{MARK} begin xxx")
    assert told.endswith(f"xxx end {MARK}")
    assert f"[{len(said.output) - CHARS_MAX} characters left out]" in told


def test_what_a_server_says_of_its_secrets_and_to_a_terminal_is_not_shown() -> None:
    said = answer(
        text(f"token={SECRET}\x1b[31m red\x07"),
        {"type": "resource_link", "uri": f"https://h/?k={SECRET}", "name": "n"},
    )
    assert SECRET not in said.output + json.dumps(said.metadata)
    assert said.output.startswith(f"token={MARK} red\n")
    assert shown(f"error: {SECRET}", [SECRET.encode()], 100) == f"error: {MARK}"


def test_a_reason_is_one_line_that_shows_no_secret() -> None:
    ending = Ending([SECRET.encode()])
    ending.tell(f"line one\nline two {SECRET}\u202e\x1b[0m")
    ending.tell("a later one")
    assert ending.reason == f"line one line two {MARK}"
    assert ending.over.is_set()
    assert len(ending.fit("x" * 10_000)) == 500
    nested = ExceptionGroup("outer", [ExceptionGroup("inner", [MCPError(code=-1, message="no")])])
    assert reason_of(nested) == "it refused: no (-1)"


# --- Tools ---


def server(**fields: object) -> McpServer:
    return parse_servers(json.dumps({"s": {"command": ["a"], **fields}}), {})[0]


def tool(name: str = "t", **fields: object) -> Tool:
    return Tool.model_validate({"name": name, "inputSchema": {"type": "object"}, **fields})


@pytest.mark.parametrize(
    "hints, trusted, expected",
    [
        (None, True, Semantics.NON_IDEMPOTENT),
        ({"readOnlyHint": True}, False, Semantics.NON_IDEMPOTENT),
        ({"readOnlyHint": True}, True, Semantics.READ_ONLY),
        ({"idempotentHint": True}, True, Semantics.IDEMPOTENT),
        ({"idempotentHint": False, "readOnlyHint": False}, True, Semantics.NON_IDEMPOTENT),
        ({"title": "T"}, True, Semantics.NON_IDEMPOTENT),
    ],
)
def test_a_hint_counts_only_where_the_operator_trusts_it(
    hints: object, trusted: bool, expected: Semantics
) -> None:
    declared = [tool(annotations=hints)]
    assert offered(server(trust_annotations=trusted), declared)[0].spec.semantics is expected


def test_descriptions_are_cleaned_cut_and_never_empty() -> None:
    declared = [
        tool("a", description="Reads.\u202e\x00 " + "x" * 10_000),
        tool("b", title="A title"),
        tool("c", annotations={"title": "Another"}),
        tool("d", description=" "),
    ]
    told = [one.spec.description for one in offered(server(), declared)]
    assert told[0].startswith("Reads. xxx")
    assert len(told[0]) == DESCRIPTION_CHARS_MAX
    assert told[1:3] == ["A title", "Another"]
    assert "does not describe it" in told[3]


def test_the_operator_says_which_tools_whose_they_are_and_how_long_they_may_take() -> None:
    chosen = offered(
        server(tools=["get_*", "put"], tenants=["acme"], call_timeout_s=7),
        [tool("get_a"), tool("put"), tool("put_b")],
    )
    assert [one.spec.name for one in chosen] == ["mcp_s_get_a", "mcp_s_put"]
    spec = chosen[0].spec
    assert (spec.tenants, spec.timeout_s, spec.needs_workspace) == (["acme"], 7, False)
    assert risk_of(spec) == "high"
    assert len(offered(server(), [tool(f"t{number}") for number in range(500)])) == TOOLS_MAX
