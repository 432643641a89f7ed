"""Faults of endpoints: the status matrix, the words of bodies, Retry-After in all its forms; prices and the prompt."""

import math
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.dev.model_rules import ALWAYS, SentRequest, broken_rule
from libs.contracts.errors import ConfigurationError
from libs.contracts.retryafter import retry_after_s
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.values import Usage
from services.executor.egress.toolset import toolset
from services.executor.endpoint.faults import Refused, judge_refusal, judge_wire
from services.executor.endpoint.prices import Price, load_prices, priced
from services.executor.ingress.turn import WireFault

DATES = st.builds(
    "{}, {} {} {} {}:{}:{} {}".format,
    st.sampled_from(["Sun", "Mon", "X", ""]),
    st.integers(-1, 32),
    st.sampled_from(["Nov", "Feb", "13", "x"]),
    st.sampled_from(["2026", "0", "99999", "-1", "70"]),
    *(st.integers(-1, 99),) * 3,
    st.sampled_from(["GMT", "+9999", "-0000", "+2400", "", "é"]),
)
NUMBERS = st.floats().map(str) | st.integers().map(str)
HEADERS = DATES | NUMBERS | st.text(max_size=30)
NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


def kind(status: int, body: str = "", **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return judge_refusal(Refused(status, named, body), NOW).kind


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 529])
def test_statuses_of_passing_trouble_are_tried_again(status: int) -> None:
    assert kind(status) == "transient"


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 422, 501, 505])
def test_statuses_of_our_own_mistakes_are_final(status: int) -> None:
    assert kind(status) == "final"


def test_the_server_may_say_itself_whether_to_try_again() -> None:
    assert kind(500, x_should_retry="false") == "final"
    assert kind(400, x_should_retry="true") == "transient"
    assert kind(500, x_should_retry="maybe") == "transient"


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize(
    "body",
    [
        '{"error":{"code":"context_length_exceeded","message":"This model\'s maximum context length is 8192 tokens."}}',
        '{"error":{"type":"exceed_context_size_error","message":"the request exceeds the available context size"}}',
        '{"error":{"message":"context window exceeds limit"}}',
        '{"error":{"message":"input length and `max_tokens` exceed context limit: 1 + 2 > 3"}}',
        '{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}',
        '{"error":{"message":"Please reduce the length of the messages."}}',
    ],
)
def test_an_overflow_is_told_by_its_words_under_any_status(status: int, body: str) -> None:
    assert kind(status, body) == "overflow"


def test_words_about_caches_and_rates_are_no_overflow() -> None:
    assert kind(400, "the prompt is below the minimum token count to start caching") == "final"
    assert (
        kind(429, "Request too large on tokens per min. Please reduce the length of the messages.")
        == "transient"
    )
    assert kind(413) == "overflow"


@pytest.mark.parametrize(
    "body", ["insufficient_quota", "You exceeded your current quota", "Insufficient Balance"]
)
def test_a_quota_that_is_used_up_is_final_even_as_429(body: str) -> None:
    assert kind(429, body) == "final"


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry-after": "1"}, 1.0),
        ({"retry-after": "11180"}, 11180.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Sun, 29 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "NaN"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "abc"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
    ids=str,
)
def test_retry_after_is_read_in_all_its_forms_or_ignored(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_s(headers, NOW) == seconds


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), HEADERS))
def test_whatever_a_retry_after_says_it_is_a_time_that_can_be_waited_for_or_nothing(
    headers: dict[str, str],
) -> None:
    seconds = retry_after_s(headers, NOW)
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))


@pytest.mark.parametrize(
    "fault, expected",
    [
        (WireFault(kind="cut", message="x"), "transient"),
        (WireFault(kind="garbled", message="x"), "transient"),
        (WireFault(kind="foreign", message="x"), "final"),
        (WireFault(kind="too_large", message="x"), "final"),
        (WireFault(kind="error", message="x", error={"message": "Overloaded"}), "transient"),
        (WireFault(kind="error", message="x", error={"message": "busy", "code": 429}), "transient"),
        (WireFault(kind="error", message="x", error={"message": "no", "code": "401"}), "final"),
        (WireFault(kind="error", message="x", error={"type": "invalid_request_error"}), "final"),
        (WireFault(kind="error", message="x", error={"code": "context_length_exceeded"}), "overflow"),
        (WireFault(kind="error", message="x", error={"code": "insufficient_quota"}), "final"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_faults_inside_a_success_are_judged_by_what_they_say(fault: WireFault, expected: str) -> None:
    assert judge_wire(fault).kind == expected


def test_the_message_of_a_fault_is_the_providers_own_and_short_and_says_what_the_operator_can_do() -> None:
    fault = judge_refusal(Refused(404, {}, '{"error":{"message":"no such model"}}'), NOW)
    assert fault.message == "HTTP 404: no such model; check MODEL_ID and OPENAI_BASE_URL"
    assert judge_refusal(Refused(422, {}, '{"error":{"message":"no"}}'), NOW).message == "HTTP 422: no"
    assert len(judge_refusal(Refused(500, {}, "x" * 10_000), NOW).message) < 1_000


def test_the_cost_of_an_unknown_model_is_unknown_and_tokens_still_count() -> None:
    usage = Usage(requests=1, input_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)
    prices = {"m": Price(input=1.0, cached=0.1, output=10.0)}
    assert priced(usage, "m", prices).cost_usd == pytest.approx(0.6 + 0.04 + 1.0)
    written = msgspec.structs.replace(usage, cache_write_tokens=100_000)
    assert priced(written, "m", prices).cost_usd == pytest.approx(0.6 + 0.04 + 1.0)
    dearer = {"m": Price(input=1.0, cached=0.1, cache_write=1.25, output=10.0)}
    assert priced(written, "m", dearer).cost_usd == pytest.approx(0.5 + 0.04 + 0.125 + 1.0)
    unknown = priced(usage, "other", prices)
    assert unknown.cost_usd is None
    assert unknown.input_tokens == usage.input_tokens
    assert Usage().plus(unknown).cost_usd is None


def test_a_bad_price_table_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    table = tmp_path / "prices.json"
    table.write_text('{"m": {"input": 1, "output": 2}}')
    assert load_prices(table) == {"m": Price(input=1.0, output=2.0)}
    assert load_prices(None) == {}
    table.write_text('{"m": {"inptu": 1}}')
    with pytest.raises(ConfigurationError, match="PERDURE_MODEL_PRICES"):
        load_prices(table)


def test_the_same_tools_give_the_same_bytes_in_any_order() -> None:
    specs = [
        ToolSpec(name=name, description="d", parameters={}, semantics=Semantics.READ_ONLY)
        for name in ("b", "a")
    ]
    offered = toolset(specs)
    assert offered.json == toolset(reversed(specs)).json
    assert offered.json is not None
    assert msgspec.json.decode(offered.json)[0]["function"]["name"] == "a"
    assert offered.estimated_tokens > 0
    assert toolset([]).json is None


@pytest.mark.parametrize(
    "parameters", [{}, {"properties": {}}, {"type": ["object"]}, {"type": "object"}, {"$defs": {}}]
)
def test_every_tool_is_offered_with_the_schema_of_an_object(parameters: dict[str, object]) -> None:
    spec = ToolSpec(name="odd.name", description="", parameters=parameters, semantics=Semantics.READ_ONLY)
    offered = toolset([spec]).json
    assert offered is not None
    sent = msgspec.json.decode(
        b'{"messages":[{"role":"user","content":"x"}],"tools":' + offered + b"}", type=SentRequest
    )
    assert broken_rule(sent, ALWAYS) is None
