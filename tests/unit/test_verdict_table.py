"""The verdict, and how each kind of check is judged from facts."""

import msgspec
import pytest

from libs.contracts.checks import (
    Check,
    CheckResult,
    CheckStatus,
    CommandCheck,
    DiffCheck,
    FileCheck,
    JsonSchemaCheck,
    TestsCheck,
    Verdict,
)
from libs.contracts.evidence import Change, CommandAnswer, FileAnswer, SnapshotAnswer
from services.verifier.claims import Claim
from services.verifier.judgement import (
    claims_result,
    command_result,
    diff_result,
    file_result,
    none_to_run,
    schema_result,
    tampering_result,
)
from services.verifier.verdict import FEEDBACK_CHARS_MAX, feedback, verdict

GREEN, RED, GREY = CheckStatus.PASSED, CheckStatus.FAILED, CheckStatus.NOT_APPLICABLE


def result(status: CheckStatus, *, reason: str = "", output: str = "") -> CheckResult:
    return CheckResult(kind="command", subject="true", status=status, reason=reason, output_tail=output)


def snapshot(*changed: Change, baseline: str | None = "b", folders: tuple[str, ...] = ()) -> SnapshotAnswer:
    return SnapshotAnswer(
        commit="c",
        baseline=baseline,
        changed=list(changed),
        tests_command=[],
        protected_folders=list(folders),
        unkept=["node_modules"],
    )


def added(path: str) -> Change:
    return Change(path=path, kind="added")


def modified(path: str) -> Change:
    return Change(path=path, kind="modified")


def deleted(path: str) -> Change:
    return Change(path=path, kind="deleted")


@pytest.mark.parametrize(
    "statuses,expected",
    [
        ([], Verdict.UNVERIFIED),
        ([GREY], Verdict.UNVERIFIED),
        ([GREY, GREY], Verdict.UNVERIFIED),
        ([GREEN], Verdict.PASSED),
        ([GREEN, GREY], Verdict.PASSED),
        ([GREEN, RED], Verdict.FAILED),
        ([RED, GREY], Verdict.FAILED),
        ([GREEN, GREEN], Verdict.PASSED),
    ],
)
def test_the_verdict_follows_from_the_statuses(statuses: list[CheckStatus], expected: Verdict) -> None:
    assert verdict([result(status) for status in statuses]) is expected


@pytest.mark.parametrize(
    "check,answer,status",
    [
        (CommandCheck(argv=["x"]), CommandAnswer(argv=["x"], exit_code=0), GREEN),
        (CommandCheck(argv=["x"]), CommandAnswer(argv=["x"], exit_code=1), RED),
        (CommandCheck(argv=["x"], expect_exit=3), CommandAnswer(argv=["x"], exit_code=3), GREEN),
        (CommandCheck(argv=["x"], expect_exit=3), CommandAnswer(argv=["x"], exit_code=0), RED),
        (CommandCheck(argv=["x"]), CommandAnswer(argv=["x"], signal=9), RED),
        (CommandCheck(argv=["x"]), CommandAnswer(argv=["x"], timed_out=True), RED),
        (CommandCheck(argv=["x"]), CommandAnswer(argv=["x"], problem="no such program"), RED),
        (CommandCheck(argv=["x"], expect_output="ok"), CommandAnswer(argv=["x"], exit_code=0), RED),
        (
            CommandCheck(argv=["x"], expect_output="ok"),
            CommandAnswer(argv=["x"], exit_code=0, matched=True),
            GREEN,
        ),
        (
            CommandCheck(argv=["x"], expect_output="ok"),
            CommandAnswer(argv=["x"], exit_code=0, matched=False),
            RED,
        ),
        (TestsCheck(), CommandAnswer(argv=["pytest"], exit_code=0), GREEN),
        (TestsCheck(), CommandAnswer(argv=["pytest"], exit_code=5), RED),
        (TestsCheck(), CommandAnswer(argv=[]), GREY),
    ],
)
def test_a_command_is_judged_by_how_it_ended(
    check: CommandCheck | TestsCheck, answer: CommandAnswer, status: CheckStatus
) -> None:
    assert command_result(check, answer, "said", commit="c").status is status


def test_a_command_leaves_its_evidence() -> None:
    answer = CommandAnswer(argv=["pytest", "-q", "a b"], exit_code=1, duration_ms=12)
    evidence = command_result(TestsCheck(), answer, "x" * 10_000 + "the end", commit="c1")
    assert evidence.subject == "pytest -q 'a b'"
    assert (evidence.exit_code, evidence.duration_ms, evidence.digests["commit"]) == (1, 12, "c1")
    assert evidence.output_tail.endswith("the end")
    assert len(evidence.output_tail) < 4_100


@pytest.mark.parametrize(
    "check,before,after,matched,status",
    [
        (FileCheck(path="a"), None, "d1", None, GREEN),
        (FileCheck(path="a"), None, None, None, RED),
        (FileCheck(path="a", exists=False), "d1", None, None, GREEN),
        (FileCheck(path="a", exists=False), "d1", "d1", None, RED),
        (FileCheck(path="a", contains="x"), None, "d1", True, GREEN),
        (FileCheck(path="a", contains="x"), None, "d1", False, RED),
        (FileCheck(path="a", contains="x"), None, "d1", None, RED),
        (FileCheck(path="a", sha256="D1"), None, "d1", None, GREEN),
        (FileCheck(path="a", sha256="d2"), None, "d1", None, RED),
    ],
)
def test_a_file_is_judged_by_what_the_commit_holds(
    check: FileCheck, before: str | None, after: str | None, matched: bool | None, status: CheckStatus
) -> None:
    fact = FileAnswer(path="a", before=before, after=after, matched=matched)
    assert file_result(check, fact).status is status


@pytest.mark.parametrize(
    "after,faults,problem,status",
    [
        ("d1", [], "", GREEN),
        ("d1", ["$.a: 1 is not of type 'string'"], "", RED),
        ("d1", None, "is no JSON: x", RED),
        ("d1", None, "", RED),
        (None, None, "", RED),
    ],
)
def test_a_document_is_green_only_when_it_was_held_against_the_schema_and_fits(
    after: str | None, faults: list[str] | None, problem: str, status: CheckStatus
) -> None:
    fact = FileAnswer(path="a", before=None, after=after, faults=faults, problem=problem)
    result = schema_result(JsonSchemaCheck(path="a", schema={"type": "object"}), fact)
    assert (result.status, bool(result.digests["schema"])) == (status, True)


@pytest.mark.parametrize(
    "check,changed,status",
    [
        (DiffCheck(must_touch=["src/**"]), [modified("src/a.py")], GREEN),
        (DiffCheck(must_touch=["src/**"]), [modified("other.py")], RED),
        (DiffCheck(must_touch=["src/**", "*.md"]), [modified("src/a.py")], RED),
        (DiffCheck(must_not_touch=["*.lock"]), [modified("src/a.py")], GREEN),
        (DiffCheck(must_not_touch=["*.lock"]), [deleted("deep/x.lock")], RED),
        (DiffCheck(), [modified("a")], GREY),
    ],
)
def test_a_diff_is_judged_by_the_changed_paths(
    check: DiffCheck, changed: list[Change], status: CheckStatus
) -> None:
    assert diff_result(check, snapshot(*changed)).status is status


def test_a_diff_without_a_baseline_is_not_applicable() -> None:
    assert diff_result(DiffCheck(must_touch=["a"]), snapshot(baseline=None)).status is GREY


@pytest.mark.parametrize(
    "change,folders,checks,tampered",
    [
        (modified("tests/test_a.py"), ("tests",), [], True),
        (deleted("tests/test_a.py"), ("tests",), [], True),
        (deleted("pkg/thing_test.go"), ("pkg",), [], True),
        (modified("conftest.py"), ("",), [], True),
        (modified("src/widget.test.ts"), ("src",), [], True),
        (added("tests/test_new.py"), ("tests",), [], False),
        (added("conftest.py"), ("tests",), [], True),
        (added("pytest.ini"), (), [], False),
        (added("tests/new/conftest.py"), ("tests",), [], False),
        (added("tests/conftest.py"), ("tests/unit",), [], True),
        (modified("src/calc.py"), ("tests",), [], False),
        (modified("src/contest.py"), ("tests",), [], False),
        (modified("tests/test_a.py"), ("tests",), [DiffCheck(must_touch=["tests/**"])], False),
        (modified("tests/test_a.py"), ("tests",), [DiffCheck(must_touch=["src/**"])], True),
    ],
)
def test_tampering_with_tests(
    change: Change, folders: tuple[str, ...], checks: list[Check], tampered: bool
) -> None:
    found = tampering_result(snapshot(change, folders=folders), [TestsCheck(), *checks])
    assert (found is not None) is tampered
    assert found is None or (found.status is RED and change.path in found.reason)


@pytest.mark.parametrize(
    "others,expected",
    [
        ([], Verdict.UNVERIFIED),
        ([GREY], Verdict.UNVERIFIED),
        ([GREEN], Verdict.PASSED),
        ([RED], Verdict.FAILED),
    ],
)
def test_what_an_answer_says_of_itself_proves_nothing(others: list[CheckStatus], expected: Verdict) -> None:
    said = claims_result([Claim("a.py", "I wrote a.py.")], snapshot(added("a.py")), {})
    assert said is not None
    assert said.status is GREEN
    assert verdict([*map(result, others), said]) is expected


def test_changes_that_nobody_was_told_of_are_no_reason_to_pass() -> None:
    cut = msgspec.structs.replace(snapshot(added("a")), left_out=7)
    tampering = tampering_result(cut, [TestsCheck()])
    assert tampering is not None
    assert (tampering.status, "7 more paths" in tampering.reason) == (RED, True)
    assert diff_result(DiffCheck(must_not_touch=["b/**"]), cut).status is RED
    assert diff_result(DiffCheck(must_touch=["a"]), cut).status is GREEN
    fact = FileAnswer(path="z.md", before="old", after="new")
    held = claims_result([Claim("z.md", "I wrote z.md.")], cut, {"z.md": fact})
    assert held is not None
    assert held.status is GREEN


@pytest.mark.parametrize(
    "path,changed,facts,status",
    [
        ("a.py", [added("a.py")], {}, GREEN),
        ("a.py", [modified("src/a.py")], {}, GREEN),
        ("src/a.py", [modified("pkg/src/a.py")], {}, GREEN),
        ("a.py", [modified("src/ba.py")], {}, RED),
        ("a.py", [], {}, RED),
        ("a.py", [], {"a.py": "same"}, RED),
        ("a.py", [deleted("a.py")], {}, RED),
        ("node_modules/x/a.js", [], {}, None),
    ],
)
def test_a_claim_holds_only_for_a_file_that_changed(
    path: str, changed: list[Change], facts: dict[str, str], status: CheckStatus | None
) -> None:
    known = {name: FileAnswer(path=name, before=digest, after=digest) for name, digest in facts.items()}
    found = claims_result([Claim(path, "I wrote it.")], snapshot(*changed), known)
    assert (found.status if found else None) is status


def test_no_claim_and_no_baseline_are_nothing_to_judge() -> None:
    assert claims_result([], snapshot(), {}) is None
    assert claims_result([Claim("a.py", "")], snapshot(baseline=None), {}) is None


def test_the_model_reads_which_checks_failed_and_why() -> None:
    results = [result(GREEN), result(RED, reason="exit code 1, expected 0", output="AssertionError: 2 != 3")]
    text = feedback(results, round_number=2, last=False)
    assert "round 2" in text
    assert "1 of 2 checks failed" in text
    assert "exit code 1, expected 0" in text
    assert "AssertionError: 2 != 3" in text
    assert "last one" not in text
    assert "last one" in feedback(results, round_number=2, last=True)


def test_the_model_hears_nothing_when_nothing_failed() -> None:
    assert feedback([result(GREEN)], round_number=1, last=False) == ""
    assert feedback([], round_number=1, last=True) == ""


def test_feedback_is_bounded_whatever_the_checks_said() -> None:
    results = [result(RED, reason="r", output="x" * 50_000) for _ in range(40)]
    assert len(feedback(results, round_number=1, last=True)) < FEEDBACK_CHARS_MAX + 10_000


@pytest.mark.parametrize(
    "exit_code, output, ran",
    [
        (0, "\n-----\nRan 0 tests in 0.000s\n\nOK\n", False),
        (5, "\n-----\nRan 0 tests in 0.000s\n\nNO TESTS RAN\n", False),
        (5, "\nno tests ran in 0.01s\n", False),
        (5, "===== no tests ran in 0.01s =====\n", False),
        (0, "Ran 0 tests in 0.000s\n\nOK\nRan 3 tests in 0.1s\n\nOK\n", True),
        (0, "Ran 0 tests in 0.000s\n\nOK\n12 passed in 0.1s\n", True),
        (0, "Ran 10 tests in 0.000s\n\nOK\n", True),
        (1, "Ran 0 tests in 0.000s\n\nFAILED (errors=1)\n", True),
        (0, "", True),
    ],
)
def test_tests_that_do_not_exist_never_pass_and_fail_nobody_who_did_not_ask_for_them(
    exit_code: int, output: str, *, ran: bool
) -> None:
    found = command_result(TestsCheck(), CommandAnswer(argv=["t"], exit_code=exit_code), output, commit="c")
    if ran:
        assert found.status is (GREEN if exit_code == 0 else RED)
        assert none_to_run(found) == found
    else:
        assert (found.status, none_to_run(found).status) == (RED, GREY)
        assert found.reason == "the command found no test to run"
    own = CommandCheck(argv=["t"], expect_exit=exit_code)
    assert (
        command_result(own, CommandAnswer(argv=["t"], exit_code=exit_code), output, commit="c").status
        is GREEN
    )
