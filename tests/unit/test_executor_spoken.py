"""Calls that a model writes as text, thinking that it writes as text, and tool names on the wire."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.values import Usage
from services.executor.ingress.names import WIRE_CHARS_MAX, meant, wire_name
from services.executor.ingress.spoken import has_calls, spoken, with_spoken_calls
from services.executor.ingress.thoughts import Thoughts
from services.executor.ingress.turn import ModelTurn

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "n": {"type": "integer"}},
}
OFFERED = {"bash": SCHEMA, "read": SCHEMA}
EMPTY: dict[str, object] = {}
LS = ("bash", {"command": "ls"})


def xml(text: str) -> str:
    """Tags as models write them; `{` and `}` stand for the angle brackets."""
    return text.replace("{", "<").replace("}", ">")


INVOKED = xml('{invoke name="bash"}{parameter name="command"}ls{/parameter}{/invoke}')


def turn(content: str) -> ModelTurn:
    return ModelTurn(content=content, reasoning="", calls=[], finish_reason="stop", usage=Usage())


def heard(content: str) -> ModelTurn:
    return with_spoken_calls(turn(content), 1, OFFERED, {})


@pytest.mark.parametrize(
    "text, before, calls",
    [
        ('<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>', "", [LS]),
        ('Look.\n<tool_call>\n{"name":"bash","arguments":{"command":"ls"}}\n</tool_call>', "Look.", [LS]),
        ('<tool_call>{"name":"bash","arguments":"{\\"command\\":\\"ls\\"}"}</tool_call>', "", [LS]),
        ('<tool_call>{"name":"bash","parameters":{"command":"ls"}}', "", [LS]),
        ("<function=bash><parameter=command>ls</parameter></function>", "", [LS]),
        (
            "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
            "",
            [LS],
        ),
        ('<function=bash>{"command":"ls"}</function>', "", [LS]),
        (INVOKED, "", [LS]),
        (xml("{function_calls}\n") + INVOKED + INVOKED, "", [LS, LS]),
        ("<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value></tool_call>", "", [LS]),
        (
            '[TOOL_CALLS][{"name":"bash","arguments":{"command":"ls"}},{"name":"read"}]',
            "",
            [LS, ("read", EMPTY)],
        ),
        ('[TOOL_CALLS]bash[ARGS]{"command":"ls"}[TOOL_CALLS]read[ARGS]{}', "", [LS, ("read", EMPTY)]),
        (
            (
                '<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{"command":"ls"}'
                "<|tool_call_end|><|tool_calls_section_end|>"
            ),
            "",
            [LS],
        ),
        ('```json\n{"name":"bash","arguments":{"command":"ls"}}\n```', "", [LS]),
        ('{"name":"bash","parameters":{"n":"3"}}', "", [("bash", {"n": 3})]),
    ],
    ids=range(15),
)
def test_a_call_in_the_text_is_read_in_every_form(
    text: str, before: str, calls: list[tuple[str, dict[str, object]]]
) -> None:
    assert has_calls(text)
    found = heard(text)
    assert [(call.name, call.arguments) for call in found.calls] == calls
    assert found.content == before
    assert [call.call_id for call in found.calls] == [f"call_1_{index}" for index in range(len(calls))]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name":"bash","arguments":{"command":"rm -r',
        "<function=bash><parameter=command>rm -r",
        "<function=bash><parameter=command>rm -r</function>",
        "<tool_call>bash<arg_key>command</arg_key><arg_value>rm -r</tool_call>",
        xml('{invoke name="bash"}{parameter name="command"}rm -r'),
        xml('{invoke name="bash"}rm -r{/invoke}'),
        '[TOOL_CALLS][{"name":"bash","arguments":{"command":"rm -r',
        "[TOOL_CALLS]bash[ARGS]{",
        '<|tool_call_begin|>bash<|tool_call_argument_begin|>{"command":"rm -r"}',
    ],
    ids=range(9),
)
def test_a_call_without_its_end_is_answered_and_never_run(text: str) -> None:
    calls = heard(text).calls
    assert [call.name for call in calls] == ["bash"]
    assert calls[0].arguments is None
    assert calls[0].problem


@pytest.mark.parametrize(
    "text",
    [
        "Use the `<tool_call>` tag.",
        "For example:\n```\n<tool_call>{}</tool_call>\n```\nDone.",
        '{"name": "Bob", "age": 3}',
        '{"name": "Bob"}',
        "The <function> tag and the invoke command.",
        "",
    ],
)
def test_an_answer_about_calls_is_an_answer(text: str) -> None:
    assert not has_calls(text)
    assert heard(text) == turn(text)


@pytest.mark.parametrize("text", ["<|python_tag|>x", "<|channel|>commentary to=functions.bash <|message|>{}"])
def test_a_form_that_nobody_can_read_is_still_no_answer(text: str) -> None:
    assert has_calls(text)
    assert not heard(text).calls


@given(
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", '{"name":"bash",', '"arguments":{}}', "bash"]
        )
        | st.text(max_size=4),
        max_size=12,
    ).map("".join)
)
def test_no_text_is_a_crash(text: str) -> None:
    assert isinstance(spoken(text), tuple)
    assert isinstance(heard(text), ModelTurn)


# --- Thinking ---------------------------------------------------------------------------------------------------

_PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think>", "\n", " ", "[THINK]", "[/THINK]"])
    | st.text(max_size=3),
    max_size=10,
)


@given(_PIECES)
def test_no_split_changes_what_is_said_and_what_is_thought(pieces: list[str]) -> None:
    def split(parts: list[str]) -> tuple[str, str]:
        thoughts = Thoughts()
        found = [thoughts.split(part) for part in parts] + [thoughts.close()]
        return "".join(said for said, _ in found), "".join(thought for _, thought in found)

    whole = "".join(pieces)
    assert split(pieces) == split([whole]) == split(list(whole))


# --- Names ------------------------------------------------------------------------------------------------------


@given(st.text(max_size=100), st.text(max_size=100))
def test_names_on_the_wire_are_legal_and_stay_apart(name: str, other: str) -> None:
    sent = wire_name(name, {})
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", sent)
    assert len(sent) <= WIRE_CHARS_MAX
    assert (sent == wire_name(other, {})) == (name == other)
    assert wire_name(sent, {}) == sent


@pytest.mark.parametrize(
    "said, tool",
    [
        ("read_file", "read_file"),
        ("functions.read_file", "read_file"),
        ("functions.read_file:3", "read_file"),
        ("default_api.read_file", "read_file"),
        ("read_file<|channel|>commentary", "read_file"),
        ("shell", "run_command"),
        ("functions.shell", "run_command"),
        ("functions.unknown", "functions.unknown"),
        ("run_command", "run_command"),
        ("ls", "ls"),
    ],
)
def test_a_model_means_the_tool_that_its_word_adorns(said: str, tool: str) -> None:
    assert meant(said, {"read_file", "run_command"}, {"shell": "run_command"}) == tool
