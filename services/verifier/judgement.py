"""From the facts of a workspace's host to the result of each check. PURE.

Invariant: a check is green only by a fact that was observed in the round's commit; where there is no fact there is no
green.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from libs.contracts.checks import (
    BrowserCheck,
    Check,
    CheckResult,
    CheckStatus,
    CommandCheck,
    DiffCheck,
    FileCheck,
    HttpCheck,
    JsonSchemaCheck,
    TestsCheck,
)
from libs.contracts.evidence import (
    SCHEMA_FAULTS_MAX,
    Change,
    CommandAnswer,
    FileAnswer,
    HttpAnswer,
    SnapshotAnswer,
)
from libs.policy.globs import matches, matches_any
from services.verifier.claims import Claim
from services.verifier.verdict import CLAIMS, FEEDBACK_TAIL_CHARS, tail_of

# What unittest (exit 0 before Python 3.12, 5 since) and pytest (5) say when they found nothing to run, and what they say
# when they did: a command may run several suites.
_NO_TESTS = re.compile(r"^(?:Ran 0 tests in |=*\s*no tests ran in )", re.MULTILINE)
_SOME_TESTS = re.compile(
    r"^Ran [1-9]\d* tests? in |\b[1-9]\d* (?:passed|failed|skipped|errors?)\b", re.MULTILINE
)
_NO_TESTS_EXITS = (0, 5)
NO_TEST_RAN = "the command found no test to run"
# How many paths a reason names; the evidence is for reading.
_NAMED_MAX = 10
# Paths that decide what the tests say: tests themselves, and what configures or collects them.
PROTECTED_TESTS = (
    *("tests/**", "test/**", "**/tests/**", "**/test/**", "**/__tests__/**", "spec/**"),
    *("test_*.py", "*_test.py", "*_test.go", "*_test.rs", "*_spec.rb", "*Test.java", "*Tests.cs"),
    *("*.test.{js,jsx,ts,tsx,mjs,cjs}", "*.spec.{js,jsx,ts,tsx,mjs,cjs}"),
)
PROTECTED_CONFIGURATION = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "noxfile.py", ".coveragerc", "sitecustomize.py"),
    *("{jest,vitest,karma,playwright,cypress}.config.*", ".mocharc*", ".rspec", "phpunit.xml*"),
)
PROTECTED = (*PROTECTED_TESTS, *PROTECTED_CONFIGURATION)


def command_result(
    check: CommandCheck | TestsCheck, answer: CommandAnswer, output: str, *, commit: str
) -> CheckResult:
    """A command that ran, or could not. `tests` without a configured command is not applicable."""
    kind = "tests" if isinstance(check, TestsCheck) else "command"
    if not answer.argv:
        return CheckResult(
            kind=kind,
            subject="",
            status=CheckStatus.NOT_APPLICABLE,
            reason="no test command is configured",
        )
    reason = _why_red(check, answer)
    if isinstance(check, TestsCheck) and _ran_no_test(answer, output):
        reason = NO_TEST_RAN
    return CheckResult(
        kind=kind,
        subject=shlex.join(answer.argv),
        status=CheckStatus.FAILED if reason else CheckStatus.PASSED,
        reason=reason or f"exit code {answer.exit_code}, as expected",
        exit_code=answer.exit_code,
        output_tail=tail_of(output, FEEDBACK_TAIL_CHARS),
        digests={"commit": commit, "output": hashlib.sha256(output.encode("utf-8", "replace")).hexdigest()},
        duration_ms=answer.duration_ms,
    )


def none_to_run(result: CheckResult) -> CheckResult:
    """The result of tests that nobody asked for: where there are none, they say nothing about the work."""
    if result.reason != NO_TEST_RAN:
        return result
    return msgspec.structs.replace(result, status=CheckStatus.NOT_APPLICABLE)


def _ran_no_test(answer: CommandAnswer, output: str) -> bool:
    return (
        answer.exit_code in _NO_TESTS_EXITS
        and _NO_TESTS.search(output) is not None
        and _SOME_TESTS.search(output) is None
    )


def _why_red(check: CommandCheck | TestsCheck, answer: CommandAnswer) -> str:
    expected = check.expect_exit if isinstance(check, CommandCheck) else 0
    if answer.problem:
        return answer.problem
    if answer.timed_out:
        return f"did not end within {check.timeout_s:g} s"
    if answer.signal is not None:
        return f"ended by signal {answer.signal}"
    if answer.exit_code != expected:
        return f"exit code {answer.exit_code}, expected {expected}"
    if isinstance(check, CommandCheck) and check.expect_output is not None and answer.matched is not True:
        return f"the output does not match {check.expect_output!r}"
    return ""


def http_result(check: HttpCheck, answer: HttpAnswer, output: str, *, commit: str) -> CheckResult:
    """What the workspace's own server answered, or why it did not."""
    reason = answer.problem
    if not reason and answer.status != check.expect_status:
        reason = f"answered {answer.status}, expected {check.expect_status}"
    if not reason and check.expect_body is not None and answer.matched is not True:
        reason = f"the body does not match {check.expect_body!r}"
    return CheckResult(
        kind="http",
        subject=f"GET {check.url} of {shlex.join(check.start)}",
        status=CheckStatus.FAILED if reason else CheckStatus.PASSED,
        reason=reason or f"answered {answer.status}, as expected",
        output_tail=tail_of(output, FEEDBACK_TAIL_CHARS),
        digests={"commit": commit, **({"body": answer.sha256} if answer.sha256 else {})},
        duration_ms=answer.duration_ms,
    )


def browser_result(check: BrowserCheck, answer: HttpAnswer, output: str, *, commit: str) -> CheckResult:
    """How far a browser came on the workspace's page."""
    reason = answer.problem
    if not reason and answer.status is None:
        reason = "the page did not answer"
    of = f" of {shlex.join(check.start)}" if check.start else ""
    return CheckResult(
        kind="browser",
        subject=f"{check.url}{of}",
        status=CheckStatus.FAILED if reason else CheckStatus.PASSED,
        reason=reason or f"{len(check.steps)} steps went as expected",
        output_tail=tail_of(output, FEEDBACK_TAIL_CHARS),
        digests={"commit": commit},
        duration_ms=answer.duration_ms,
    )


def file_result(check: FileCheck, fact: FileAnswer) -> CheckResult:
    """A file in the round's commit."""
    reason = fact.problem
    if not reason and check.exists != (fact.after is not None):
        reason = "does not exist" if check.exists else "exists, and must not"
    if not reason and check.sha256 is not None and fact.after != check.sha256.lower():
        reason = f"has the digest {fact.after}, expected {check.sha256}"
    if not reason and check.contains is not None and fact.matched is not True:
        reason = f"does not match {check.contains!r}"
    digests = {name: digest for name, digest in (("before", fact.before), ("after", fact.after)) if digest}
    return CheckResult(
        kind="file",
        subject=check.path,
        status=CheckStatus.FAILED if reason else CheckStatus.PASSED,
        reason=reason or ("is as expected" if check.exists else "does not exist, as expected"),
        digests=digests,
    )


def schema_result(check: JsonSchemaCheck, fact: FileAnswer) -> CheckResult:
    """A file in the round's commit, held against a schema by its host."""
    reason = fact.problem
    if not reason and fact.after is None:
        reason = "does not exist"
    if not reason and fact.faults is None:
        reason = "was not held against the schema: its tool host is of an earlier version; upgrade it"
    if not reason and fact.faults:
        more = " or more" if len(fact.faults) >= SCHEMA_FAULTS_MAX else ""
        reason = f"does not fit the schema in {len(fact.faults)}{more} places; first: {fact.faults[0]}"
    schema = hashlib.sha256(msgspec.json.encode(check.schema, order="sorted")).hexdigest()
    digests = {name: digest for name, digest in (("before", fact.before), ("after", fact.after)) if digest}
    return CheckResult(
        kind="json_schema",
        subject=check.path,
        status=CheckStatus.FAILED if reason else CheckStatus.PASSED,
        reason=reason or "holds JSON that fits the schema",
        output_tail=tail_of("\n".join(fact.faults or ()), FEEDBACK_TAIL_CHARS),
        digests={**digests, "schema": schema},
    )


def diff_result(check: DiffCheck, snapshot: SnapshotAnswer) -> CheckResult:
    """What changed since the run began. Without a baseline, or without globs, there is nothing to compare."""
    subject = "; ".join(
        part
        for part in (
            f"must touch {', '.join(check.must_touch)}" if check.must_touch else "",
            f"must not touch {', '.join(check.must_not_touch)}" if check.must_not_touch else "",
        )
        if part
    )
    if snapshot.baseline is None or not subject:
        return CheckResult(
            kind="diff",
            subject=subject,
            status=CheckStatus.NOT_APPLICABLE,
            reason="there is nothing to compare",
        )
    paths = [change.path for change in snapshot.changed]
    untouched = [glob for glob in check.must_touch if not any(matches(path, glob) for path in paths)]
    forbidden = [path for path in paths if matches_any(path, check.must_not_touch)]
    reasons = [f"nothing that matches {', '.join(untouched)} was changed"] if untouched else []
    reasons += [f"changed {_named(forbidden)}"] if forbidden else []
    if check.must_not_touch and snapshot.left_out and not forbidden:
        reasons.append(_too_many(snapshot))
    return CheckResult(
        kind="diff",
        subject=subject,
        status=CheckStatus.FAILED if reasons else CheckStatus.PASSED,
        reason="; ".join(reasons) or f"{len(paths)} paths changed, as allowed",
        output_tail="\n".join(f"{change.kind} {change.path}" for change in snapshot.changed[:100]),
        digests={"baseline": snapshot.baseline, "commit": snapshot.commit},
    )


def tampering_result(snapshot: SnapshotAnswer, checks: Sequence[Check]) -> CheckResult | None:
    """Red when the run changed what its tests rest on; `None` when it did not. For rounds that run a command.

    New tests are welcome. New configuration counts when it lies above tests that were there before, because it decides
    about them. The task allows changes by naming them in `must_touch` of a diff check.
    """
    allowed = [glob for check in checks if isinstance(check, DiffCheck) for glob in check.must_touch]
    tampered = [
        change
        for change in snapshot.changed
        if _is_tampering(change, snapshot.protected_folders) and not matches_any(change.path, allowed)
    ]
    if not tampered and not snapshot.left_out:
        return None
    named = _named([f"{change.path} ({change.kind})" for change in tampered])
    if not tampered:
        named = _too_many(snapshot)
    return CheckResult(
        kind="protected",
        subject="tests and their configuration",
        status=CheckStatus.FAILED,
        reason=f"the run changed what it is verified by: {named}. Restore it as it was; new tests may be added",
        digests={"commit": snapshot.commit, **({"baseline": snapshot.baseline} if snapshot.baseline else {})},
    )


def _is_tampering(change: Change, protected_folders: Sequence[str]) -> bool:
    if change.kind != "added":
        return matches_any(change.path, PROTECTED)
    if not matches_any(change.path, PROTECTED_CONFIGURATION):
        return False
    folder = change.path.rpartition("/")[0]
    return any(_is_below(protected, folder) for protected in protected_folders)


def _too_many(snapshot: SnapshotAnswer) -> str:
    return f"{snapshot.left_out} more paths that count than can be looked at: change fewer of them in one run"


def _is_below(folder: str, above: str) -> bool:
    return not above or folder == above or folder.startswith(f"{above}/")


def claims_result(
    claims: Sequence[Claim], snapshot: SnapshotAnswer, facts: Mapping[str, FileAnswer]
) -> CheckResult | None:
    """What the answer says was written, against the commit; `None` when it says nothing that can be held against it.

    A claimed path holds when it, or a path that ends with it, exists and differs from the baseline. That a tool wrote it
    is no proof: what was written back as it had been is unchanged.
    """
    judged = [claim for claim in claims if not set(claim.path.split("/")) & set(snapshot.unkept)]
    if not judged or snapshot.baseline is None:
        return None
    changed = {change.path for change in snapshot.changed if change.kind != "deleted"}
    problems: list[str] = []
    digests: dict[str, str] = {"commit": snapshot.commit}
    for claim in judged:
        found = next((path for path in sorted(changed) if _is_meant(claim.path, path)), None)
        fact = facts.get(found or claim.path)
        if fact is not None and fact.after is not None:
            digests[fact.path] = fact.after
        if found is None and not _differs(fact):
            what = "was not changed" if fact is not None and fact.after is not None else "does not exist"
            problems.append(f"{claim.path} {what} (the answer says: {claim.sentence[:200]})")
    return CheckResult(
        kind=CLAIMS,
        subject=_named([claim.path for claim in judged]),
        status=CheckStatus.FAILED if problems else CheckStatus.PASSED,
        reason="; ".join(problems[:_NAMED_MAX]) or "what the answer says was written is there",
        digests=digests,
    )


def _differs(fact: FileAnswer | None) -> bool:
    """Whether the file itself is another than at the baseline, whatever the list of changes holds."""
    return fact is not None and fact.after not in (None, fact.before)


def _is_meant(claimed: str, path: str) -> bool:
    return path == claimed or path.endswith(f"/{claimed}")


def _named(paths: Sequence[str]) -> str:
    more = len(paths) - _NAMED_MAX
    return ", ".join(paths[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
