"""Buying a summary over a real connection: what is tried, what is installed, and that something always comes of it."""

from itertools import pairwise

import msgspec
import pytest

from deploy.dev.model_script import Answer, ScriptedCall
from libs.contracts.events import ContextCompacted
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits
from libs.contracts.values import Usage
from services.executor.egress.request import ModelRequest, unseen
from services.executor.endpoint.summary import summarised
from services.executor.ingress.turn import ModelTurn
from tests.fakes.model import Peer, talking
from tests.fakes.transcripts import result, run, said

MECHANICAL = ContextCompacted(
    strategy="sliding-window", tokens_before=9_000, tokens_after=4_000, dropped=40, summary="the former one"
)
TOO_LONG = Answer(status=400, body={"error": {"message": "no", "code": "context_length_exceeded"}})
GOOD = Answer(text="Done: much.", usage={"prompt_tokens": 100, "completion_tokens": 10})
EMPTY = Answer(text="", usage={"prompt_tokens": 100, "completion_tokens": 0})


def full(**limits: object) -> RunState:
    items = [
        item
        for turn in range(1, 30)
        for item in (said(turn, calls=1), result(turn, 0, f"word {turn} " * 300))
    ]
    bounds = msgspec.convert({"context_tokens": 10_000, **limits}, Limits)
    return run(*items, limits=bounds, summary="the former one")


async def bought(peer: Peer, *, tokens_after: int = 5_000) -> ContextCompacted:
    async def ask(fragments: list[bytes], tokens: int) -> ModelTurn:
        request = ModelRequest(iteration=1, render=lambda _: fragments, estimated_tokens=tokens)
        return await peer.model.complete(request, unseen)

    return await summarised(full(), MECHANICAL, ask, lambda _: tokens_after)


async def test_a_summary_is_one_call_without_tools_and_its_usage_is_counted() -> None:
    async with talking(GOOD) as peer:
        event = await bought(peer)
    assert (event.strategy, event.summary, event.tokens_after) == ("summarising", "Done: much.", 5_000)
    assert (event.usage.requests, event.usage.input_tokens, event.usage.output_tokens) == (1, 100, 10)
    [body] = peer.bodies
    assert "tools" not in body
    assert "the former one" in str(body["messages"])


@pytest.mark.parametrize(
    "empty",
    [
        EMPTY,
        Answer(text=" \n "),
        Answer(reasoning="hm"),
        Answer(calls=[ScriptedCall(name="run_command", arguments={"command": "rm"})]),
        Answer(text="no", finish_reason="content_filter"),
    ],
)
async def test_an_answer_without_a_summary_is_asked_for_again_and_then_done_without(empty: Answer) -> None:
    async with talking(Answer(attempts=[empty, GOOD])) as peer:
        event = await bought(peer)
        assert (event.summary, peer.server.count) == ("Done: much.", 2)
        assert event.usage.requests == 2
    async with talking(empty) as peer:
        event = await bought(peer)
    assert event == msgspec.structs.replace(MECHANICAL, usage=event.usage)
    assert 2 <= peer.server.count == event.usage.requests <= 3


async def test_a_summary_call_that_is_too_long_is_shortened_by_a_fifth_at_most_five_times() -> None:
    async with talking(Answer(attempts=[TOO_LONG, TOO_LONG, GOOD])) as peer:
        assert (await bought(peer)).summary == "Done: much."
    async with talking(TOO_LONG) as peer:
        assert await bought(peer) == MECHANICAL
    sizes = [asked.bytes for asked in peer.server.asked]
    assert len(sizes) == 6
    assert all(later < former for former, later in pairwise(sizes))
    assert sizes[-1] < 0.5 * sizes[0]


async def test_a_summary_that_makes_no_room_is_not_installed_but_paid_for() -> None:
    async with talking(GOOD) as peer:
        event = await bought(peer, tokens_after=8_200)
    assert (event.strategy, event.summary) == ("sliding-window", "the former one")
    assert event.usage.requests == 1


async def test_a_summary_that_is_too_long_is_clipped() -> None:
    async with talking(Answer(text="word " * 20_000)) as peer:
        event = await bought(peer)
    assert event.summary is not None
    assert len(event.summary) < 6_000


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_model_that_refuses_costs_the_summary_and_not_the_run(status: int) -> None:
    async with talking(Answer(status=status, body={"error": {"message": "no"}})) as peer:
        assert await bought(peer) == MECHANICAL
    assert peer.server.count == 1


async def test_an_endpoint_that_is_down_costs_the_summary_and_not_the_run() -> None:
    async with talking(Answer(status=503)) as peer:
        event = await bought(peer)
    assert event == msgspec.structs.replace(MECHANICAL, usage=Usage())
