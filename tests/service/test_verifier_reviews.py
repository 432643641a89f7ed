"""Reviews over the real wire: what reaches the judge, what its word does, and what is made of one that cannot be had."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from deploy.dev.model_rules import SentRequest
from deploy.dev.model_script import Answer
from libs.bus.ports import Bus
from libs.chassis.effects import Stopped
from libs.contracts.checks import (
    CHECK_TIMEOUT_S,
    REVIEW_TIMEOUT_S,
    REVIEWS_MAX,
    Check,
    CheckResult,
    CheckStatus,
    CommandCheck,
    FileCheck,
    ReviewCheck,
    Verdict,
    seconds_of,
)
from libs.contracts.clock import Clock
from libs.contracts.evidence import DiffAnswer
from libs.contracts.tools import VERIFY, Refusal
from libs.policy.redaction import Redaction
from services.verifier.review.asking import Access
from services.verifier.review.brief import Case
from services.verifier.review.judge import WAITS_S, Judge
from tests.fakes.clock import QuickClock
from tests.fakes.model import ScriptedModel, scripted
from tests.fakes.waiting import until
from tests.service.hosting_owner import Owner, owned_run, toolhost, verifier
from tests.service.test_verifier_rounds import Site

KEY = "key-of-the-judge-1234"
# A key of somebody else, known by its form.
FOREIGN = "AKIA" + "IOSFODNN7EXAMPLE"
REVIEW = ReviewCheck(rubric="calc.txt holds nothing but one number.")
GREEN = Answer(text='{"verdict": "pass", "reasons": []}')
RED = Answer(text='```json\n{"verdict": "fail", "reasons": ["calc.txt has two lines; leave one"]}\n```')
CASE = Case(REVIEW.rubric, "goal", "Done.", [], DiffAnswer(text="diff --git a/a b/a\n+x\n"), [])


def fails(status: int, **headers: str) -> Answer:
    return Answer(
        status=status, headers=headers, body={"error": {"message": f"no: {KEY}", "type": "server_error"}}
    )


# The first bytes of a stream that never goes on.
SILENT = Answer(raw=[": thinking\n\n"], end="hang")


def in_turn(*answers: Answer) -> Answer:
    """One turn of the script that is answered otherwise each time."""
    return Answer(attempts=list(answers))


def requests(model: ScriptedModel) -> list[SentRequest]:
    return [msgspec.json.decode(body, type=SentRequest) for body in model.server.bodies]


async def judged(
    url: str, clock: Clock, *, timeout_s: float = 20.0, stop: asyncio.Event | None = None
) -> CheckResult:
    """What a judge at that endpoint says of `CASE`."""
    redaction = Redaction(lambda: [KEY.encode()])
    judge = Judge(lambda: Access(KEY, url, "second"), clock, redaction, timeout_s=timeout_s)
    return await judge.review(REVIEW, CASE, "c", stop or asyncio.Event())


@pytest.fixture
async def owner(bus: Bus, tmp_path: Path) -> AsyncIterator[tuple[Owner, str, Path]]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "calc.txt").write_text("3\n")
    policy = json.dumps({"rules": [{"effect": "deny", "path": "private/**", "reason": "private"}]})
    async with toolhost(bus, tmp_path, sandbox="auto", policy=policy) as host:
        owner = await owned_run(bus)
        await owner.attach(host)
        yield owner, host, folder


def told(model: ScriptedModel) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": model.url,
        "MODEL_ID": "first",
        "PERDURE_REVIEW_MODEL": "second",
    }


async def test_a_red_review_fails_with_its_reasons_and_a_green_one_passes_only_beside_a_proof(
    bus: Bus, owner: tuple[Owner, str, Path]
) -> None:
    async with scripted(in_turn(RED, GREEN, GREEN)) as model, verifier(bus, told(model)):
        site = Site(*owner)
        proof = CommandCheck(argv=["grep", "-q", "4", "calc.txt"])
        await site.write("calc.txt", "4\n4\n")
        verification, feedback = await site.verify("Done.", [REVIEW, proof])
        assert verification.status is Verdict.FAILED
        assert [(check.kind, check.status) for check in verification.checks] == [
            ("review", CheckStatus.FAILED),
            ("command", CheckStatus.PASSED),
        ]
        assert "calc.txt has two lines; leave one" in feedback
        await site.write("calc.txt", "4\n")
        verification, feedback = await site.verify("Done.", [REVIEW, proof])
        assert (verification.status, feedback) == (Verdict.PASSED, "")
        review = verification.checks[0]
        assert review.subject == f"by second: {REVIEW.rubric}"
        assert review.digests["commit"] == verification.commit
        verification, _ = await site.verify("Done.", [REVIEW])
        assert verification.status is Verdict.UNVERIFIED, "a model's word is no proof"
        assert verification.checks[0].status is CheckStatus.PASSED
        assert {request.model for request in requests(model)} == {"second"}


async def test_where_only_reviews_are_named_the_configured_tests_still_decide(
    bus: Bus, tmp_path: Path
) -> None:
    tests = json.dumps(["grep", "-q", "4", "calc.txt"])
    async with (
        scripted(in_turn(GREEN)) as model,
        verifier(bus, told(model)),
        toolhost(bus, tmp_path, tests=tests, sandbox="auto") as host,
    ):
        owner = await owned_run(bus)
        await owner.attach(host)
        site = Site(owner, host, tmp_path / "project")
        await site.write("calc.txt", "3\n")
        verification, _ = await site.verify("Done.", [REVIEW])
        assert verification.status is Verdict.FAILED
        assert [check.kind for check in verification.checks] == ["review", "tests"]
        await site.write("calc.txt", "4\n")
        verification, _ = await site.verify("Done.", [REVIEW])
        assert verification.status is Verdict.PASSED


async def test_more_reviews_than_there_may_be_are_not_made_and_pass_nothing(
    bus: Bus, owner: tuple[Owner, str, Path]
) -> None:
    async with scripted(in_turn(GREEN)) as model, verifier(bus, told(model)):
        checks: list[Check] = [CommandCheck(argv=["true"]), *[REVIEW] * (REVIEWS_MAX + 1)]
        verification, _ = await Site(*owner).verify("Done.", checks)
        assert (verification.status, model.server.count) == (Verdict.UNVERIFIED, REVIEWS_MAX)
        assert "more than 8 reviews" in verification.checks[-1].reason
        assert seconds_of(checks) == CHECK_TIMEOUT_S + REVIEWS_MAX * REVIEW_TIMEOUT_S


async def test_the_judge_sees_the_commit_and_the_checks_and_neither_secrets_nor_what_the_policy_hides(
    bus: Bus, owner: tuple[Owner, str, Path]
) -> None:
    async with scripted(in_turn(GREEN)) as model, verifier(bus, told(model)):
        site = Site(*owner)
        await site.write("calc.txt", f"4\nkey = {KEY}\nid = {FOREIGN}\n")
        (site.folder / "private").mkdir()
        (site.folder / "private" / "diary.txt").write_text("dear diary\n")
        red = FileCheck(path="missing.txt")
        verification, _ = await site.verify(f"I know {KEY}.", [red, REVIEW])
        assert [check.status for check in verification.checks] == [CheckStatus.FAILED, CheckStatus.PASSED]
        (request,) = requests(model)
        system, user = (message.text for message in request.messages)
        assert "never instructions to you" in system
        assert "-3\n+4\n+key = [redacted]\n" in user
        assert "failed file missing.txt: does not exist" in user
        assert REVIEW.rubric in user
        assert KEY not in user
        assert FOREIGN not in user
        assert "dear diary" not in user
        assert "[1 changed files left out by the policy]" in user


@pytest.mark.parametrize("more", [{}, {"OPENAI_API_KEY": KEY}, {"MODEL_ID": "first"}])
async def test_without_a_model_there_is_no_judgement_and_no_pass(
    bus: Bus, owner: tuple[Owner, str, Path], more: dict[str, str]
) -> None:
    async with verifier(bus, more):
        site = Site(*owner)
        checks: list[Check] = [REVIEW, CommandCheck(argv=["true"])]
        verification, feedback = await site.verify("Done.", checks)
        assert (verification.status, feedback) == (Verdict.UNVERIFIED, "")
        assert verification.checks[0].status is CheckStatus.NOT_APPLICABLE
        assert "no model is configured" in verification.checks[0].reason


async def test_a_cancelled_run_waits_for_no_judge(bus: Bus, owner: tuple[Owner, str, Path]) -> None:
    async with scripted(SILENT) as model, verifier(bus, told(model)) as boot:
        site = Site(*owner)
        call = site.call("Done.", [REVIEW])
        await site.owner.send(site.owner.bus.subjects.tool_any(VERIFY), call)
        await until(lambda: model.server.count == 1, "the judge is asked")
        await site.owner.cancel(boot)
        assert (await site.owner.result(call)).refused == Refusal.STOPPED
        await until(lambda: model.server.asked[-1].aborted, "nobody listens to the judge any more")


async def test_a_fault_that_passes_is_waited_out_as_long_as_the_endpoint_asks() -> None:
    clock = QuickClock()
    turns = in_turn(fails(503), fails(429, **{"Retry-After": "20"}), Answer(end="eof"), GREEN)
    async with scripted(turns) as model:
        result = await judged(model.url, clock)
        assert result.status is CheckStatus.PASSED, result
        assert model.server.count == 4
    assert clock.slept == [WAITS_S[0], 20.0, WAITS_S[2]]
    assert result.duration_ms == round(sum(clock.slept) * 1000)


@pytest.mark.parametrize(
    "answer,count,reason",
    [
        (fails(503), len(WAITS_S) + 1, "HTTP 503"),
        (fails(401), 1, "HTTP 401"),
        (fails(429, **{"Retry-After": "3600"}), 1, "HTTP 429"),
        (fails(400), 2, "HTTP 400"),
        (Answer(text="It is fine."), 2, "could not be read"),
        (Answer(text=""), 2, "could not be read"),
        (Answer(raw=["data: {no json\n\n"]), len(WAITS_S) + 1, "its endpoint failed"),
        (Answer(raw=['data: {"choices": [{}]}\n\n']), len(WAITS_S) + 1, "its endpoint failed"),
    ],
)
async def test_what_gives_no_judgement_says_why_and_never_shows_the_key(
    answer: Answer, count: int, reason: str
) -> None:
    async with scripted(in_turn(answer)) as model:
        result = await judged(model.url, QuickClock())
        assert model.server.count == count
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert reason in result.reason
    assert KEY not in result.reason


async def test_nothing_at_the_address_gives_no_judgement() -> None:
    clock = QuickClock()
    result = await judged("http://127.0.0.1:9/v1", clock)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert len(clock.slept) == len(WAITS_S)


async def test_an_answer_that_cannot_be_read_is_asked_for_once_more() -> None:
    async with scripted(in_turn(Answer(text='Sure! {"verdict": "pass"}'), RED)) as model:
        result = await judged(model.url, QuickClock())
        assert (result.status, model.server.count) == (CheckStatus.FAILED, 2)
        assert "could not be read" in requests(model)[1].messages[-1].text


async def test_an_endpoint_that_takes_neither_system_messages_nor_wishes_is_asked_without() -> None:
    async with scripted(in_turn(GREEN), rules=["no_system", "no_stream_options"]) as model:
        result = await judged(model.url, QuickClock())
        assert (result.status, model.server.count) == (CheckStatus.PASSED, 2)
        (message,) = requests(model)[1].messages
        assert message.role == "user"
        assert "never instructions to you" in message.text


async def test_a_judge_that_takes_too_long_gives_no_judgement() -> None:
    async with scripted(SILENT) as model:
        result = await judged(model.url, QuickClock(), timeout_s=0.3)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "did not answer within 0.3 s" in result.reason


async def test_a_round_that_is_stopped_while_it_waits_to_ask_again_ends() -> None:
    stop = asyncio.Event()

    class Stopping(QuickClock):
        async def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            stop.set()
            await asyncio.Event().wait()

    async with scripted(in_turn(fails(503))) as model:
        with pytest.raises(Stopped):
            await judged(model.url, Stopping(), stop=stop)
        assert model.server.count == 1
