"""Profiles of models: what an operator says, what a 400 teaches, and how a request is written for each."""

import msgspec
import pytest

from deploy.dev.model_rules import ALWAYS, SentRequest, broken_rule
from libs.contracts.errors import ConfigurationError
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.transcript import AssistantItem, ToolItem
from libs.contracts.values import ModelToolCall
from services.executor.egress.body import body, names_of, output_tokens
from services.executor.egress.history import History
from services.executor.egress.profile import (
    LEARNED_MAX,
    LearnedProfiles,
    Profile,
    learned,
    parse_profiles,
    profile_of,
)
from services.executor.egress.request import ModelRequest
from services.executor.ingress.names import wire_name
from services.executor.settings import ExecutorSettings
from tests.fakes.histories import created

TOOLS = b'[{"function":{"name":"read_file","parameters":{"type":"object"}},"type":"function"}]'
LONG = "mcp_" + "server.with.dots_" * 6


def taught(profile: Profile, words: str, status: int = 400) -> Profile | None:
    found = learned(profile, status, f'{{"error":{{"message":"{words}"}}}}')
    return found.profile if found is not None else None


@pytest.mark.parametrize(
    "words, before, after",
    [
        ("Unrecognized request argument supplied: stream_options", {}, {"include_usage": False}),
        ("The reasoning_content in the thinking mode must be passed back to the API.", {}, {"reasoning": "reasoning_content"}),
        ("messages.2.reasoning_content: property is unsupported", {"reasoning": "reasoning_content"}, {"reasoning": ""}),
        ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", {}, {"output_key": "max_completion_tokens"}),
        ("Unrecognized request argument supplied: max_completion_tokens", {"output_key": "max_completion_tokens"}, {"output_key": "max_tokens"}),
        ("max_tokens is too large: 128000. This model supports at most 16384 completion tokens", {"output_tokens_max": 128_000}, {"output_tokens_max": 16_384}),
        ("Range of max_tokens should be [1, 8192]", {"output_tokens_max": 9_000}, {"output_tokens_max": 8_192}),
        ("Unknown field max_tokens", {"output_tokens_max": 9_000}, {"output_key": ""}),
        ("Unknown name extra_content", {}, {"extra_content": False}),
        ("Function call is missing a thought_signature", {"extra_content": False}, {"extra_content": True}),
        ("temperature is not supported with this model", {"body": {"temperature": 0, "seed": 1}}, {"body": {"seed": 1}}),
        ("System role not supported", {}, {"system_role": False}),
        ("This model does not support system messages", {}, {"system_role": False}),
        ("messages.1.content: none is not an allowed value, a valid string is required", {}, {"null_content": False}),
        ("Invalid 'tools[0].function.name': string does not match pattern", {}, {"plain_names": True}),
        ("Tool call id was call_1_0 but must be a-z, A-Z, 0-9, with a length of 9.", {}, {"long_ids": False}),
        ("Unexpected role 'user' after role 'tool'", {}, {"user_after_tool": False}),
        ("The tool name 'search' is reserved", {}, {"plain_names": True}),
    ],
)  # fmt: skip
def test_a_refusal_teaches_the_one_thing_that_it_names(
    words: str, before: dict[str, object], after: dict[str, object]
) -> None:
    profile = msgspec.convert(before, Profile)
    assert taught(profile, words) == msgspec.structs.replace(profile, **after)


@pytest.mark.parametrize("words", ["bad model", "invalid request", "no such deployment", "content policy"])
def test_a_refusal_that_names_nothing_of_ours_teaches_nothing(words: str) -> None:
    assert taught(Profile(), words) is None


def test_a_refused_request_teaches_a_thing_once_in_a_call() -> None:
    assert taught(Profile(), "stream_options", status=500) is None
    assert taught(Profile(include_usage=False), "stream_options") is None
    words = "reasoning_content"
    first = learned(Profile(), 400, words)
    assert first is not None
    assert learned(first.profile, 400, words, frozenset({first.about})) is None


def test_what_an_operator_says_is_checked_and_the_star_stands_for_the_rest() -> None:
    said = '{"a": {"text_calls": true}, "*": {"include_usage": false}}'
    profiles = ExecutorSettings.load("executor", {"PERDURE_MODEL_PROFILES": said}).model_profiles
    assert profile_of(profiles, "a") == Profile(text_calls=True)
    assert profile_of(profiles, "b") == Profile(include_usage=False)
    assert profile_of({}, "b") == Profile()


@pytest.mark.parametrize(
    "said",
    [
        "no json",
        '{"a": 1}',
        '{"a": {"unknown": 1}}',
        '{"a": {"output_tokens_max": 0}}',
        '{"a": {"body": {"messages": []}}}',
        '{"a": {"aliases": {"x": "z", "y": "z"}}}',
        '{"a": {"reasoning": "thoughts"}}',
    ],
)
def test_a_profile_that_cannot_be_meant_is_refused_by_name(said: str) -> None:
    with pytest.raises(ConfigurationError, match="PERDURE_MODEL_PROFILES"):
        ExecutorSettings.load("executor", {"PERDURE_MODEL_PROFILES": said})
    with pytest.raises(ValueError, match="profiles by model"):
        parse_profiles(said)


# --- The request ------------------------------------------------------------------------------------------------


def request(tools: bytes | None = TOOLS, **changes: object) -> ModelRequest:
    call = ModelToolCall(
        call_id="call_1_0", name="read_file", arguments={"path": "a"}, extra_content={"google": {"sign": "x"}}
    )
    turn = AssistantItem(iteration=1, content="", calls=[call], finish_reason="stop", reasoning="hm")
    result = ToolItem(call_id="call_1_0", name="read_file", ok=True, output="text of a")
    state = msgspec.structs.replace(created(Limits(), TaskSpec(goal="Mend it.")), transcript=(turn, result))

    def render(profile: Profile) -> list[bytes]:
        return History("Rules.").outbound(state, profile).fragments

    made = ModelRequest(
        iteration=1, render=render, estimated_tokens=1_000, tools=tools, schemas={"read_file": {}}
    )
    return msgspec.structs.replace(made, **changes)


def sent(profile: Profile, tools: bytes | None = TOOLS) -> dict[str, object]:
    raw = body("m", request(tools), profile)
    assert broken_rule(msgspec.json.decode(raw, type=SentRequest), ALWAYS) is None
    return msgspec.json.decode(raw, type=dict[str, object])


def turn_in(found: dict[str, object]) -> dict[str, object]:
    return msgspec.convert(found["messages"], list[dict[str, object]])[2]


def test_a_plain_request_holds_what_everybody_takes() -> None:
    found = sent(Profile())
    assert sorted(found) == ["messages", "model", "stream", "stream_options", "tools"]
    assert turn_in(found)["content"] is None
    assert "reasoning_content" not in turn_in(found)


def test_each_flag_changes_how_a_request_is_written() -> None:
    assert "stream_options" not in sent(Profile(include_usage=False))
    assert turn_in(sent(Profile(reasoning="reasoning_content")))["reasoning_content"] == "hm"
    assert turn_in(sent(Profile(reasoning="reasoning")))["reasoning"] == "hm"
    assert turn_in(sent(Profile(null_content=False)))["content"] == ""
    assert b"google" in body("m", request(), Profile())
    assert b"google" not in body("m", request(), Profile(extra_content=False))
    assert sent(Profile(body={"temperature": 0}))["temperature"] == 0
    assert sent(Profile(output_tokens_max=5_000))["max_tokens"] == 5_000
    limited = sent(Profile(output_tokens_max=5_000, output_key="max_completion_tokens"))
    assert limited["max_completion_tokens"] == 5_000
    assert "max_tokens" not in limited
    assert "max_tokens" not in sent(Profile(output_tokens_max=5_000, output_key=""))


def test_an_output_limit_leaves_room_for_the_input() -> None:
    whole = Profile(output_tokens_max=128_000)
    assert output_tokens(request(context_tokens=128_000), whole) == 128_000 - 1_150
    # A request that fills what it may: the answer still has the room that the window keeps free for it.
    assert output_tokens(request(context_tokens=1_000), whole) == 250
    assert output_tokens(request(output_tokens_max=100), whole) == 100
    assert output_tokens(request(), Profile()) is None


def test_names_go_out_and_come_back_under_an_alias() -> None:
    profile = Profile(aliases={"read_file": "open"})
    raw = body("m", request(), profile)
    assert b'"read_file"' not in raw
    assert raw.count(b'"name":"open"') == 2
    assert names_of({"read_file": {}}, profile) == {"open": "read_file"}
    plain = wire_name("read-File.x", {}, plain=True)
    assert plain.startswith("t_read_file_x_")
    assert len(plain) <= 32
    assert wire_name(LONG, {}) == wire_name(LONG, {})
    assert len(wire_name(LONG, {})) <= 64


@pytest.mark.parametrize("tools, profile", [(None, Profile()), (TOOLS, Profile(tools=False))])
def test_without_tools_on_offer_former_calls_are_told_in_words(tools: bytes | None, profile: Profile) -> None:
    found = sent(profile, tools)
    assert "tools" not in found
    roles = [message["role"] for message in msgspec.convert(found["messages"], list[dict[str, object]])]
    assert roles == ["system", "user", "assistant", "user"]
    raw = body("m", request(tools), profile)
    assert b"I called read_file" in raw
    assert b"text of a" in raw
    assert b"tool_call" not in raw


def test_without_a_system_role_the_rules_stand_before_the_goal() -> None:
    messages = msgspec.convert(sent(Profile(system_role=False))["messages"], list[dict[str, object]])
    assert messages[0] == {"role": "user", "content": "Rules.\n\nMend it."}


def test_of_too_many_models_the_one_that_taught_longest_ago_is_forgotten() -> None:
    known, taught = LearnedProfiles(), Profile(include_usage=False)
    for number in range(LEARNED_MAX):
        known.keep(f"m{number}", taught)
    known.keep("m0", taught)
    known.keep("another", taught)
    assert (known.find("m1"), known.find("m0"), known.find("another")) == (None, taught, taught)
