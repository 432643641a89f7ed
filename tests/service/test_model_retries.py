"""The one retry owner: what is tried again, how often, how long, and what everybody sees of it."""

import asyncio
from typing import Literal

import msgspec
import pytest

from deploy.dev.model_script import Answer
from libs.contracts.clock import rfc3339
from libs.contracts.errors import ConfigurationError
from services.executor.egress.profile import Profile
from services.executor.egress.request import ContextOverflow, ModelFailure, ModelRequest
from services.executor.endpoint.circuits import CALLS_MIN, FAILURES_MAX, OPEN_S
from services.executor.endpoint.completion import Patience
from services.executor.endpoint.key import Configured, Key
from services.executor.endpoint.prices import Price
from services.executor.ingress.turn import Delta
from tests.fakes.clock import START, QuickClock
from tests.fakes.model import KEY, Shown, asked, connected, ignore, scripted, sent, talking, until_aborted
from tests.fakes.wire import DONE, chunk, fin, tc, usage

DEADLINE_S = 10.0
OK = Answer(text="done")
ATTEMPTS = 1 + len(Patience().waits_s)


def refused(status: int, message: str = "no", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, headers=named, body={"error": {"message": message}})


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_a_passing_fault_is_tried_again_once(status: int) -> None:
    answer = Answer(attempts=[refused(status), OK])
    async with talking(answer) as peer:
        turn = await peer.model.complete(asked(), ignore)
        assert (turn.content, turn.attempt, peer.server.count) == ("done", 2, 2)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_our_own_mistake_is_asked_once_and_the_key_is_not_repeated(status: int) -> None:
    answer = refused(status, f"Incorrect key {KEY} provided")
    async with talking(answer) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(), ignore)
        assert peer.server.count == 1
        assert (failure.value.error_code, failure.value.transient) == ("MODEL_ERROR", False)
        assert f"HTTP {status}" in failure.value.message
        assert KEY not in failure.value.message


async def test_an_attempt_that_is_made_again_is_told_of_without_the_key() -> None:
    told: list[tuple[object, ...]] = []

    def heard(*retry: object) -> None:
        told.append(retry)

    answer = Answer(attempts=[refused(503, f"No upstream for {KEY}"), OK])
    async with talking(answer, clock=QuickClock()) as peer:
        await peer.model.complete(msgspec.structs.replace(asked(), on_retry=heard), ignore)
    assert len(told) == 1
    assert "No upstream" in str(told)
    assert KEY not in str(told)


@pytest.mark.parametrize("length", [590, 594, 598, 602, 606])
async def test_a_key_that_is_cut_at_the_end_of_a_message_is_not_shown_either(length: int) -> None:
    answer = refused(400, "x" * (length - len(KEY)) + KEY + " is wrong")
    async with talking(answer) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(), ignore)
    assert KEY[:4] not in failure.value.message


@pytest.mark.parametrize(
    "stream", [b"<html>" + b"x" * 180 + KEY.encode(), b'{"detail":"' + b"x" * 175 + KEY.encode() + b'"}']
)
async def test_a_key_that_is_cut_at_the_end_of_a_page_is_not_shown_either(stream: bytes) -> None:
    async with talking(Answer(base64=sent(stream))) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(), ignore)
    assert "xxx" in failure.value.message
    assert KEY[:4] not in failure.value.message


class Configuration:
    """How a key is configured while a process runs; counts how often somebody looks."""

    def __init__(self, *keys: str, fixed: bool = False) -> None:
        self.keys, self.fixed, self.looks = list(keys), fixed, 0

    def __call__(self) -> Configured | None:
        self.looks += 1
        if not self.keys:
            raise ConfigurationError("somebody is writing it")
        return Configured(self.keys.pop(0), self.fixed)


@pytest.mark.parametrize("read", [("second-key-of-it",), (KEY,), ()])
async def test_a_refused_key_is_read_again_and_tried_once_more(read: tuple[str, ...]) -> None:
    configuration, clock = Configuration(*read), QuickClock()
    answer = Answer(attempts=[refused(401), OK, refused(401), OK])
    async with talking(answer, clock=clock, key=Key(KEY, configuration)) as peer:
        turn = await peer.model.complete(asked(), ignore)
        assert (turn.content, turn.attempt, peer.server.count, configuration.looks) == ("done", 2, 2, 1)
        used = [headers["authorization"] for headers in peer.server.headers]
        assert used == [f"Bearer {KEY}", f"Bearer {(*read, KEY)[0]}"]
        # The next call has a look of its own.
        assert (await peer.model.complete(asked(), ignore)).attempt == 2
        assert configuration.looks == 2
    assert clock.slept == []


@pytest.mark.parametrize("fixed, advice", [(True, "environment"), (False, ".env")])
async def test_a_key_that_is_refused_again_is_final_for_all_models_and_the_error_says_what_to_do(
    fixed: bool, advice: str
) -> None:
    configuration = Configuration("second-key-of-it", "third-key-of-it", fixed=fixed)
    answer = refused(401, f"Incorrect keys {KEY} and second-key-of-it")
    async with talking(answer, fallbacks=("other",), key=Key(KEY, configuration)) as peer:
        with pytest.raises(ModelFailure, match=advice) as failure:
            await peer.model.complete(asked(), ignore)
        assert (peer.server.count, configuration.looks) == (3, 1)
        assert not failure.value.transient
        assert "OPENAI_API_KEY" in failure.value.message
        assert KEY not in failure.value.message
        assert "second-key" not in failure.value.message


async def test_a_quota_that_is_used_up_is_not_tried_again() -> None:
    answer = refused(429, "You exceeded your current quota")
    async with talking(answer) as peer:
        with pytest.raises(ModelFailure):
            await peer.model.complete(asked(), ignore)
        assert peer.server.count == 1


async def test_an_endpoint_that_stays_down_is_given_more_than_a_minute_and_a_bounded_number_of_requests() -> (
    None
):
    clock = QuickClock()
    async with talking(refused(503), clock=clock) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(attempt=3), ignore)
        assert peer.server.count == ATTEMPTS
    assert sum(clock.slept) >= 60
    assert clock.slept == sorted(clock.slept)
    assert failure.value.transient
    assert failure.value.attempt == 3 + ATTEMPTS - 1


async def test_a_tiny_retry_after_does_not_shorten_the_patience() -> None:
    clock = QuickClock()
    async with talking(refused(429, retry_after="0.1"), clock=clock) as peer:
        with pytest.raises(ModelFailure):
            await peer.model.complete(asked(), ignore)
    assert sum(clock.slept) >= 60


async def test_a_bearable_retry_after_is_waited_for() -> None:
    clock = QuickClock()
    answer = Answer(attempts=[refused(429, retry_after="20"), OK])
    async with talking(answer, clock=clock) as peer:
        await peer.model.complete(asked(), ignore)
    assert clock.slept == [20.0]


@pytest.mark.parametrize("headers", [{"retry_after": "11180"}, {"retry_after_ms": "11180000"}])
async def test_a_long_retry_after_parks_the_run_instead_of_sleeping(headers: dict[str, str]) -> None:
    clock = QuickClock()
    async with talking(refused(429, **headers), clock=clock) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(), ignore)
        assert peer.server.count == 1
    assert clock.slept == []
    assert failure.value.retry_at == "2026-11-29T15:06:20.000Z"
    assert failure.value.retry_at > rfc3339(START)


async def test_an_unbearable_retry_after_is_neither_waited_for_nor_shortened_but_fails_at_once() -> None:
    answer = refused(429, retry_after="864000")
    async with talking(answer) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(), ignore)
        assert peer.server.count == 1
    assert (failure.value.retry_at, failure.value.transient) == (None, False)


async def test_many_runs_on_an_endpoint_that_is_down_ask_it_a_few_times_and_then_one_by_one() -> None:
    clock, runs = QuickClock(), 30
    async with talking(refused(503, "down"), clock=clock) as peer:
        for _ in range(runs):
            with pytest.raises(ModelFailure, match="down") as failure:
                await peer.model.complete(asked(), ignore)
            assert failure.value.transient
        assert FAILURES_MAX <= peer.server.count < FAILURES_MAX + runs


async def test_a_model_whose_circuit_is_open_is_passed_over_for_its_fallback_until_it_answers_again() -> None:
    clock = QuickClock()
    down = [refused(503)] * ATTEMPTS
    answers = Answer(attempts=[*down, OK, *down, OK, refused(503), *[OK] * 4])
    async with talking(answers, clock=clock, fallbacks=("second",)) as peer:
        answered = [(await peer.model.complete(asked(), ignore)).model for _ in range(CALLS_MIN + 1)]
        assert answered == ["second"] * (CALLS_MIN + 1)
        await clock.sleep(OPEN_S)
        assert (await peer.model.complete(asked(), ignore)).model == "first"
        models = [request.model for request in peer.server.asked]
    tried = ["first"] * ATTEMPTS + ["second"]
    assert models == [*tried, *tried, "first", "second", "second", "first"]


@pytest.mark.parametrize(
    "broken",
    [
        Answer(base64=[], end="reset"),
        Answer(raw=[": hello\n\n"], end="reset"),
        Answer(base64=sent(chunk(content="abc")), end="reset"),
        Answer(base64=sent(chunk(content="abc")), end="eof"),
        Answer(base64=sent(chunk(content="abc"))),
        Answer(base64=sent(chunk(content="abc") + b"data: {broken\n\n" + fin("stop") + DONE)),
        Answer(base64=sent(tc(0, "a", "f", '{"path":') + DONE)),
        Answer(base64=sent(chunk(content="abc") + b'data: {"error":{"message":"overloaded"}}\n\n')),
    ],
    ids=["nothing", "comment", "reset", "cut body", "no end", "garbled", "call in flight", "error event"],
)
async def test_a_broken_stream_is_tried_again_under_a_higher_attempt(broken: Answer) -> None:
    shown = Shown({})
    whole = Answer(text=["abc", "def"])
    async with talking(Answer(attempts=[broken, whole])) as peer:
        turn = await peer.model.complete(asked(), shown)
        assert peer.server.count == 2
    assert (turn.content, turn.attempt) == ("abcdef", 2)
    assert shown.texts[2] == "abcdef"
    assert shown.texts.get(1, "abc") == "abc"


@pytest.mark.parametrize("end", ["reset", "eof"])
async def test_what_a_broken_stream_had_counted_is_spent_once_and_what_it_had_not_is_not_guessed(
    end: Literal["reset", "eof"],
) -> None:
    counting = [chunk(content="abc"), usage(10, 1), chunk(content="def"), usage(10, 4)]
    broken = Answer(base64=sent(b"".join(counting)), end=end, chunk_delay_s=0.01)
    silent = Answer(base64=sent(chunk(content="abc")), end=end, chunk_delay_s=0.01)
    whole = Answer(base64=sent(chunk(content="done") + fin("stop") + usage(10, 5) + DONE))
    prices = {"first": Price(input=1.0, output=1_000_000.0)}
    async with talking(Answer(attempts=[broken, silent, whole]), prices=prices) as peer:
        spent = (await peer.model.complete(asked(), ignore)).usage
    assert (spent.requests, spent.input_tokens, spent.output_tokens) == (2, 20, 9)
    assert spent.cost_usd == pytest.approx(9.00002)
    assert not spent.estimated


async def test_nobody_listening_is_a_passing_fault() -> None:
    async with scripted(OK) as endpoint:
        pass
    clock = QuickClock()
    async with asyncio.timeout(DEADLINE_S), connected(endpoint.url, clock=clock) as model:
        with pytest.raises(ModelFailure) as failure:
            await model.complete(asked(), ignore)
    assert failure.value.transient
    assert len(clock.slept) == ATTEMPTS - 1


@pytest.mark.parametrize("location", ["/v1/chat/completions", "ftp://127.0.0.1/"], ids=["circle", "no HTTP"])
async def test_a_redirect_that_leads_nowhere_is_followed_once_and_final(location: str) -> None:
    async with talking(refused(307, location=location)) as peer:
        with pytest.raises(ModelFailure, match=r"redirect|protocol") as failure:
            await peer.model.complete(asked(), ignore)
        assert (failure.value.error_code, failure.value.transient) == ("MODEL_ERROR", False)
        assert failure.value.attempt == 1


async def test_an_empty_turn_is_asked_for_again_a_few_times_and_its_tokens_count() -> None:
    empty = Answer(base64=sent(fin("stop") + usage(10, 0) + DONE))
    async with talking(Answer(attempts=[empty, OK])) as peer:
        turn = await peer.model.complete(asked(), ignore)
    assert (turn.content, turn.usage.requests) == ("done", 2)
    async with talking(empty) as peer:
        with pytest.raises(ModelFailure) as failure:
            await peer.model.complete(asked(), ignore)
        assert peer.server.count == Patience().empty_turns_max
    assert failure.value.error_code == "EMPTY_RESPONSE"
    assert failure.value.usage.input_tokens == 30


async def test_an_overflow_is_reported_at_once_and_never_repeated() -> None:
    for answer in (
        refused(400, "This model's maximum context length is 10 tokens"),
        refused(500, "context_length_exceeded"),
        Answer(base64=sent(b'data: {"error":{"code":"context_length_exceeded"}}\n\n')),
    ):
        async with talking(answer, fallbacks=("second",)) as peer:
            with pytest.raises(ContextOverflow):
                await peer.model.complete(asked(), ignore)
            assert peer.server.count == 1


async def test_fallback_models_are_tried_in_order_and_named() -> None:
    tries = [refused(503)] * ATTEMPTS + [refused(404), OK]
    prices = {"third": Price(input=1.0, output=1_000_000.0)}
    async with talking(Answer(attempts=tries), fallbacks=("second", "third"), prices=prices) as peer:
        turn = await peer.model.complete(asked(), ignore)
        models = [request.model for request in peer.server.asked]
    assert models == ["first"] * ATTEMPTS + ["second", "third"]
    assert (turn.model, turn.attempt) == ("third", ATTEMPTS + 2)
    assert turn.usage.cost_usd is not None
    assert turn.usage.cost_usd >= 1.0


async def test_a_tasks_own_model_comes_first() -> None:
    async with talking(OK) as peer:
        assert (await peer.model.complete(asked(model="wish"), ignore)).model == "wish"


async def test_an_endpoint_without_stream_options_is_learned_once() -> None:
    async with talking(OK, rules=["no_stream_options"]) as peer:
        turn = await peer.model.complete(asked(), ignore)
        assert (turn.attempt, peer.server.count) == (1, 2)
        await peer.model.complete(asked(), ignore)
        assert peer.server.count == 3
        assert not peer.model.profile().include_usage


async def test_an_endpoint_that_wants_the_reasoning_back_gets_it() -> None:
    call = b'"content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}'

    def render(profile: Profile) -> list[bytes]:
        reasoning = b'"reasoning_content":"",' if profile.reasoning else b""
        return [
            b'{"role":"user","content":"Hello."}',
            b'{"role":"assistant",' + reasoning + call,
            b'{"role":"tool","tool_call_id":"c","content":"x"}',
        ]

    async with talking(OK, OK, rules=["reasoning_required"]) as peer:
        request = ModelRequest(iteration=2, render=render, estimated_tokens=7)
        assert (await peer.model.complete(request, ignore)).content == "done"
        assert peer.server.count == 2
        assert peer.model.profile().reasoning


async def test_what_was_learned_and_does_not_help_is_not_kept() -> None:
    answer = refused(400, "stream_options, reasoning_content: both are wrong")
    async with talking(answer) as peer:
        with pytest.raises(ModelFailure):
            await peer.model.complete(asked(), ignore)
        assert peer.server.count <= 4


async def test_cancelling_while_it_waits_to_try_again_ends_the_call() -> None:
    waiting = asyncio.Event()

    class Patient(QuickClock):
        async def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            waiting.set()
            await asyncio.Event().wait()

    async with talking(refused(503), clock=Patient()) as peer:
        asking = asyncio.create_task(peer.model.complete(asked(), ignore))
        await waiting.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert peer.server.count == 1


async def test_a_failing_listener_ends_the_call_and_its_connection() -> None:
    class Gone(Exception):
        pass

    async def on_delta(attempt: int, delta: Delta) -> None:
        raise Gone(f"{attempt}{delta}")

    answer = Answer(text=["a"] * 500, chunk_delay_s=0.05)
    async with talking(answer) as peer:
        with pytest.raises(Gone):
            await peer.model.complete(asked(), on_delta)
        await until_aborted(peer)
