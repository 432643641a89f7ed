"""One verification round: collect what the run asserts and did, ask the host for facts, judge them.

Invariant: the verdict is a function of facts about one commit; a round that could not get its facts gives no verdict.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, assert_never

import msgspec

from libs.bus.ports import Bus, Liveness
from libs.chassis.effects import Effect, Prepared, refused
from libs.chassis.logs import get_logger
from libs.contracts.checks import (
    REVIEWS_MAX,
    BrowserCheck,
    Check,
    CheckResult,
    CheckStatus,
    CommandCheck,
    DiffCheck,
    FileCheck,
    HttpCheck,
    JsonSchemaCheck,
    Proof,
    ReviewCheck,
    TestsCheck,
    Verification,
    VerifyArguments,
    proves_nothing,
)
from libs.contracts.clock import Clock
from libs.contracts.errors import Unavailable
from libs.contracts.evidence import (
    FILES_MAX,
    BrowserQuestion,
    CommandAnswer,
    CommandQuestion,
    DiffQuestion,
    FileAnswer,
    FileQuestion,
    FilesQuestion,
    HttpQuestion,
    SnapshotAnswer,
    SnapshotQuestion,
)
from libs.contracts.tools import VERIFY, Refusal, ToolCall, ToolResult
from services.verifier.claims import Claim, claims_in
from services.verifier.judgement import (
    PROTECTED,
    browser_result,
    claims_result,
    command_result,
    diff_result,
    file_result,
    http_result,
    none_to_run,
    schema_result,
    tampering_result,
)
from services.verifier.review.brief import Case
from services.verifier.review.judge import Judge
from services.verifier.review.judgement import unreviewed_result
from services.verifier.subcalls import HostFault, HostGone, Subcalls
from services.verifier.verdict import feedback, verdict

_NO_TESTS = CommandAnswer(argv=[])


class _Collected(NamedTuple):
    """What facts say. `results` has a place for each check, where reviews wait for the facts about everything else; `more`
    is what no check asked for. `snapshot`: `None` without a workspace that could be recorded."""

    results: list[CheckResult | ReviewCheck]
    more: list[CheckResult]
    snapshot: SnapshotAnswer | None = None

    @property
    def commit(self) -> str | None:
        return self.snapshot.commit if self.snapshot is not None else None


class Rounds:
    """The verifier's side of `libs/chassis/hosting.py`."""

    def __init__(self, bus: Bus, clock: Clock, judge: Judge) -> None:
        self._bus, self._clock, self._judge = bus, clock, judge
        self._liveness: Liveness | None = None
        self._log = get_logger("rounds")

    def begin(self, liveness: Liveness) -> None:
        """From now on this process has a boot."""
        self._liveness = liveness

    async def answer(self, call: ToolCall, stop: asyncio.Event) -> ToolResult:
        """There are no READ_ONLY calls here."""
        del stop
        return refused(call, Refusal.UNKNOWN_TOOL)

    @asynccontextmanager
    async def effect(self, call: ToolCall) -> AsyncGenerator[Prepared]:
        """A round. Idempotent by run, round and attempt."""
        try:
            arguments = msgspec.convert(call.arguments, VerifyArguments)
        except msgspec.ValidationError as error:
            yield refused(call, Refusal.UNKNOWN_TOOL, f"verify: {error}")
            return
        if call.name != VERIFY:
            yield refused(call, Refusal.UNKNOWN_TOOL, f"a verifier has no tool {call.name}")
            return

        async def perform(stop: asyncio.Event) -> ToolResult:
            return await self._round(call, arguments, stop)

        yield Effect(perform, before={}, after={})

    async def _round(self, call: ToolCall, arguments: VerifyArguments, stop: asyncio.Event) -> ToolResult:
        assert self._liveness is not None
        asked = Subcalls(self._bus, self._clock, self._liveness, call, arguments.host, stop)
        try:
            collected = await _collect(arguments, asked)
            results, commit = await self._reviewed(arguments, collected, asked, stop), collected.commit
        except (HostGone, Unavailable) as gone:
            # Without facts no verdict, and none that counts against the run: its owner asks for the next attempt.
            return refused(call, Refusal.HOST_GONE, gone.message)
        verification = Verification(
            status=verdict(results), round=arguments.round, checks=results, commit=commit
        )
        self._log.info(
            "round.judged",
            run_id=call.run_id,
            round=arguments.round,
            verdict=verification.status,
            checks=len(results),
        )
        return ToolResult(
            call_id=call.call_id,
            attempt=call.attempt,
            ok=True,
            output=feedback(results, round_number=arguments.round, last=arguments.last),
            metadata={"verification": msgspec.to_builtins(verification)},
        )

    async def _reviewed(
        self, arguments: VerifyArguments, collected: _Collected, asked: Subcalls, stop: asyncio.Event
    ) -> list[CheckResult]:
        """All results, the reviews among them at the places of their checks."""
        found = [one for one in collected.results if isinstance(one, CheckResult)]
        if len(found) == len(collected.results):
            return [*found, *collected.more]
        facts = [*found, *collected.more]
        assert collected.snapshot is not None
        review = await self._reviewer(arguments, collected.snapshot, facts, asked, stop)
        results: list[CheckResult] = []
        reviews = 0
        for one in collected.results:
            if isinstance(one, CheckResult):
                results.append(one)
                continue
            reviews += 1
            too_many = f"more than {REVIEWS_MAX} reviews in one verification; put their rubrics together"
            results.append(await review(one) if reviews <= REVIEWS_MAX else unreviewed_result(one, too_many))
        return [*results, *collected.more]

    async def _reviewer(
        self,
        arguments: VerifyArguments,
        snapshot: SnapshotAnswer,
        facts: Sequence[CheckResult],
        asked: Subcalls,
        stop: asyncio.Event,
    ) -> Callable[[ReviewCheck], Awaitable[CheckResult]]:
        """What reviews this round's commit."""
        commit = snapshot.commit
        try:
            if snapshot.baseline is None:
                raise HostFault("there is no baseline, so what the run changed is not known")
            diff = await asked.diff(DiffQuestion(commit=commit, baseline=snapshot.baseline))
        except HostFault as fault:
            why = fault.message

            async def unreviewed(check: ReviewCheck) -> CheckResult:
                return unreviewed_result(check, why, commit=commit)

            return unreviewed

        async def review(check: ReviewCheck) -> CheckResult:
            case = Case(check.rubric, arguments.goal, arguments.answer, snapshot.changed, diff, facts)
            return await self._judge.review(check, case, commit, stop)

        return review


async def _collect(arguments: VerifyArguments, asked: Subcalls) -> _Collected:
    """All results of the round that follow from facts."""
    claims = claims_in(arguments.answer)
    if not arguments.host:
        if arguments.checks:
            raise HostGone("the task's checks need the run's workspace, and it is not attached")
        return _Collected([], _without_workspace(claims))
    try:
        snapshot = await asked.snapshot(_question(arguments))
    except HostFault as fault:
        return _Collected([], [_unrecorded(fault)])
    checks = _with_default_tests(arguments, snapshot)
    facts = await _facts(asked, snapshot, checks, claims)
    results = [
        check if isinstance(check, ReviewCheck) else await _result(index, check, snapshot, facts, asked)
        for index, check in enumerate(checks)
    ]
    if checks is not arguments.checks:
        results = [none_to_run(one) if isinstance(one, CheckResult) else one for one in results]
    more: list[CheckResult] = []
    if any(isinstance(check, (CommandCheck, TestsCheck)) for check in checks):
        tampering = tampering_result(snapshot, checks)
        more += [tampering] if tampering is not None else []
    said = claims_result(claims, snapshot, {fact.path: fact for fact in facts.values()})
    more += [said] if said is not None else []
    return _Collected(results, more, snapshot)


def _question(arguments: VerifyArguments) -> SnapshotQuestion:
    diffs = [check for check in arguments.checks if isinstance(check, DiffCheck)]
    return SnapshotQuestion(
        baseline=arguments.baseline,
        protected=list(PROTECTED),
        forbidden=[glob for check in diffs for glob in check.must_not_touch],
        wanted=[glob for check in diffs for glob in check.must_touch],
    )


def _without_workspace(claims: Sequence[Claim]) -> list[CheckResult]:
    """A run without a workspace wrote nothing, so every claim to have written something is false."""
    nothing = SnapshotAnswer(
        commit="", baseline="", changed=[], tests_command=[], protected_folders=[], unkept=[]
    )
    said = claims_result(claims, nothing, {})
    return [said] if said is not None else []


def _unrecorded(fault: HostFault) -> CheckResult:
    """The workspace cannot be recorded as it is, and the reason (too many files, say) is for the model to mend."""
    return CheckResult(
        kind="snapshot", subject="the workspace", status=CheckStatus.FAILED, reason=fault.message
    )


def _with_default_tests(arguments: VerifyArguments, snapshot: SnapshotAnswer) -> list[Check]:
    """The task's checks; for a task that names none that could pass it, the configured tests beside them, if the run changed
    anything."""
    wanted = arguments.by_default and proves_nothing(arguments.checks)
    if wanted and snapshot.tests_command and snapshot.changed:
        return [*arguments.checks, TestsCheck()]
    return arguments.checks


async def _facts(
    asked: Subcalls,
    snapshot: SnapshotAnswer,
    checks: Sequence[Check],
    claims: Sequence[Claim],
) -> dict[tuple[str, str | None], FileAnswer]:
    """What is known of the files that checks and claims are about, by path and pattern."""
    wanted = [(check.path, check.contains) for check in checks if isinstance(check, FileCheck)]
    wanted += [(claim.path, None) for claim in claims]
    unique = list(dict.fromkeys(wanted))[:FILES_MAX]
    if not unique:
        return {}
    answer = await asked.files(
        FilesQuestion(
            commit=snapshot.commit,
            baseline=snapshot.baseline,
            files=[FileQuestion(path=path, contains=contains) for path, contains in unique],
        )
    )
    return dict(zip(unique, answer.files, strict=True))


async def _result(
    index: int,
    check: Proof,
    snapshot: SnapshotAnswer,
    facts: Mapping[tuple[str, str | None], FileAnswer],
    asked: Subcalls,
) -> CheckResult:
    match check:
        case CommandCheck() | TestsCheck():
            question = CommandQuestion(
                commit=snapshot.commit,
                argv=check.argv if isinstance(check, CommandCheck) else None,
                timeout_s=check.timeout_s,
                expect_output=check.expect_output if isinstance(check, CommandCheck) else None,
            )
            if isinstance(check, TestsCheck) and not snapshot.tests_command:
                return command_result(check, _NO_TESTS, "", commit=snapshot.commit)
            try:
                answer, output = await asked.command(index, question)
            except HostFault as fault:
                return _unrecorded(fault)
            return command_result(check, answer, output, commit=snapshot.commit)
        case HttpCheck() | BrowserCheck():
            return await _served(index, check, snapshot, asked)
        case FileCheck():
            fact = facts.get((check.path, check.contains))
            if fact is None:
                fact = FileAnswer(
                    path=check.path,
                    before=None,
                    after=None,
                    problem=f"more than {FILES_MAX} files to look at",
                )
            return file_result(check, fact)
        case DiffCheck():
            return diff_result(check, snapshot)
        case JsonSchemaCheck():
            # Each in a question of its own: it may take the host some seconds.
            wanted = FileQuestion(path=check.path, json_schema=check.schema)
            about = FilesQuestion(commit=snapshot.commit, baseline=snapshot.baseline, files=[wanted])
            return schema_result(check, (await asked.files(about, str(index))).files[0])
        case _:
            assert_never(check)


async def _served(
    index: int, check: HttpCheck | BrowserCheck, snapshot: SnapshotAnswer, asked: Subcalls
) -> CheckResult:
    """What the workspace's own server answers to a request, or shows in a browser."""
    commit = snapshot.commit
    try:
        match check:
            case HttpCheck():
                question = HttpQuestion(
                    commit=commit,
                    start=check.start,
                    url=check.url,
                    expect_status=check.expect_status,
                    timeout_s=check.timeout_s,
                    expect_body=check.expect_body,
                )
                return http_result(check, *await asked.http(index, question), commit=commit)
            case BrowserCheck():
                walk = BrowserQuestion(
                    commit=commit,
                    start=check.start,
                    url=check.url,
                    steps=check.steps,
                    timeout_s=check.timeout_s,
                )
                return browser_result(check, *await asked.browser(index, walk), commit=commit)
    except HostFault as fault:
        return _unrecorded(fault)
