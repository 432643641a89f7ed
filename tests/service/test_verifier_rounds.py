"""A verification round, from the owner's call to the verdict, through a real verifier and a real tool host."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from libs.bus.ports import Bus
from libs.contracts.checks import (
    BrowserCheck,
    BrowserStep,
    Check,
    CheckStatus,
    CommandCheck,
    DiffCheck,
    FileCheck,
    HttpCheck,
    JsonSchemaCheck,
    TestsCheck,
    Verdict,
    Verification,
    VerifyArguments,
)
from libs.contracts.tools import VERIFY, Refusal, ToolCall, ToolResult
from tests.e2e.stage import living
from tests.fakes.waiting import eventually
from tests.service.hosting_owner import Owner, declare_dead, owned_run, toolhost, verifier

# The "test suite" of the project: its test file says what calc.txt must hold.
TESTS = json.dumps(
    [
        "bash",
        "-c",
        'test "$(cat calc.txt)" = "$(cat tests/test_calc.txt)" || { echo "calc is wrong"; exit 1; }',
    ]
)


class Site:
    """A project with a wrong calc.txt, a test that says so, and a run that holds it attached."""

    def __init__(self, owner: Owner, host: str, folder: Path) -> None:
        self.owner, self.host, self.folder = owner, host, folder
        self._round = 0

    async def write(self, path: str, content: str) -> None:
        call = self.owner.call(
            "write_file", {"path": path, "content": content}, f"call_1_{path}_{self._round}"
        )
        assert (await self.owner.effect(self.host, call)).ok

    def call(
        self,
        answer: str,
        checks: Sequence[Check],
        *,
        host: str | None = None,
        last: bool = False,
        by_default: bool = True,
    ) -> ToolCall:
        self._round += 1
        arguments = VerifyArguments(
            round=self._round,
            checks=list(checks),
            answer=answer,
            host=self.host if host is None else host,
            baseline=self.owner.baseline,
            last=last,
            by_default=by_default,
        )
        return self.owner.call(VERIFY, msgspec.to_builtins(arguments), f"verify-{self._round}")

    async def send(self, call: ToolCall) -> ToolResult:
        await self.owner.send(self.owner.bus.subjects.tool_any(VERIFY), call)
        return await self.owner.result(call)

    async def verify(
        self, answer: str, checks: Sequence[Check] = (), *, last: bool = False, by_default: bool = True
    ) -> tuple[Verification, str]:
        result = await self.send(self.call(answer, checks, last=last, by_default=by_default))
        assert result.ok, result
        return msgspec.convert(result.metadata["verification"], Verification), result.output


@pytest.fixture
async def site(bus: Bus, tmp_path: Path) -> AsyncIterator[Site]:
    folder = tmp_path / "project"
    (folder / "tests").mkdir(parents=True)
    (folder / "calc.txt").write_text("3\n")
    (folder / "tests" / "test_calc.txt").write_text("4\n")
    async with toolhost(bus, tmp_path, tests=TESTS, sandbox="auto") as host, verifier(bus):
        owner = await owned_run(bus)
        await owner.attach(host)
        yield Site(owner, host, folder)


async def test_an_answer_without_work_is_unverified(site: Site) -> None:
    verification, feedback = await site.verify("The answer is 42.")
    assert (verification.status, verification.checks, feedback) == (Verdict.UNVERIFIED, [], "")
    assert verification.commit is not None


async def test_the_projects_tests_decide_when_the_task_names_no_checks(site: Site) -> None:
    await site.write("calc.txt", "5\n")
    verification, _ = await site.verify("The tests of what comes later are written.", by_default=False)
    assert verification.status is Verdict.UNVERIFIED
    verification, feedback = await site.verify("I updated the value in calc.txt.")
    assert verification.status is Verdict.FAILED
    assert "calc is wrong" in feedback
    await site.write("calc.txt", "4\n")
    verification, feedback = await site.verify("I updated the value in calc.txt.")
    assert verification.status is Verdict.PASSED
    assert feedback == ""
    tests = verification.checks[0]
    assert (tests.kind, tests.exit_code, tests.digests["commit"]) == ("tests", 0, verification.commit)
    assert verification.checks[1].kind == "claims"
    assert verification.checks[1].digests["calc.txt"]


async def test_a_claim_that_the_disk_contradicts_fails(site: Site) -> None:
    verification, feedback = await site.verify("I created `notes.txt` with the result.")
    assert verification.status is Verdict.FAILED
    assert "notes.txt does not exist" in feedback
    verification, feedback = await site.verify("I updated calc.txt.", last=True)
    assert verification.status is Verdict.FAILED
    assert "calc.txt was not changed" in feedback
    assert "last one" in feedback


async def test_a_test_that_was_changed_to_pass_fails_as_tampering(site: Site) -> None:
    await site.write("tests/test_calc.txt", "3\n")
    verification, feedback = await site.verify("Done.", [TestsCheck()])
    assert [check.status for check in verification.checks] == [CheckStatus.PASSED, CheckStatus.FAILED]
    assert verification.status is Verdict.FAILED
    assert "tests/test_calc.txt (modified)" in feedback
    allowed, _ = await site.verify("Done.", [TestsCheck(), DiffCheck(must_touch=["tests/**"])])
    assert allowed.status is Verdict.PASSED


async def test_a_changed_test_is_not_hidden_by_thousands_of_other_changes(site: Site) -> None:
    await site.write("tests/test_calc.txt", "3\n")
    for folder in ("a", "tests/a"):
        (site.folder / folder).mkdir()
        for number in range(1_300):
            (site.folder / folder / f"{number:0220}").touch()
    (site.folder / "z.lock").touch()
    verification, feedback = await site.verify("Done.", [TestsCheck(), DiffCheck(must_not_touch=["*.lock"])])
    assert [check.kind for check in verification.checks if check.status is CheckStatus.FAILED] == [
        "diff",
        "protected",
    ]
    assert "tests/test_calc.txt (modified)" in feedback


async def test_a_new_test_may_be_added(site: Site) -> None:
    await site.write("calc.txt", "4\n")
    await site.write("tests/test_more.txt", "x\n")
    verification, _ = await site.verify("Done.", [TestsCheck()])
    assert verification.status is Verdict.PASSED


async def test_checks_run_in_a_clean_checkout_and_never_change_the_workspace(site: Site) -> None:
    checks: list[Check] = [
        CommandCheck(argv=["bash", "-c", "echo 9 > calc.txt && cat calc.txt"], expect_output="^9$"),
        CommandCheck(argv=["cat", "calc.txt"], expect_output="^3$"),
        CommandCheck(argv=["false"], expect_exit=1),
        FileCheck(path="calc.txt", contains=r"^\d$"),
        FileCheck(path="missing.txt", exists=False),
    ]
    verification, _ = await site.verify("Done.", checks)
    assert [check.status for check in verification.checks] == [CheckStatus.PASSED] * 5
    assert verification.status is Verdict.PASSED
    assert (site.folder / "calc.txt").read_text() == "3\n"


async def test_each_red_check_is_reported_with_its_evidence(site: Site) -> None:
    checks: list[Check] = [
        CommandCheck(argv=["bash", "-c", "echo so it is; exit 7"]),
        CommandCheck(argv=["sleep", "1000"], timeout_s=0.3),
        CommandCheck(argv=["no-such-program-here"]),
        CommandCheck(argv=["echo", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"], expect_output="(a+)+$b"),
        FileCheck(path="calc.txt", contains="("),
        FileCheck(path="../calc.txt"),
        DiffCheck(must_touch=["src/**"]),
    ]
    verification, feedback = await site.verify("Done.", checks)
    assert [check.status for check in verification.checks] == [CheckStatus.FAILED] * 7
    assert verification.checks[0].exit_code == 7
    assert "so it is" in verification.checks[0].output_tail
    assert "did not end within 0.3 s" in verification.checks[1].reason
    assert "7 of 7 checks failed" in feedback


PEOPLE: dict[str, object] = {
    "type": "array",
    "items": {"$ref": "#/$defs/person"},
    "$defs": {"person": {"type": "object", "required": ["name"], "properties": {"age": {"type": "integer"}}}},
}


async def test_a_file_is_held_against_a_schema_and_nothing_in_it_can_hold_the_host(site: Site) -> None:
    await site.write("people.json", '[{"name": "Ada", "age": 36}, {"name": "Bob"}]')
    verification, _ = await site.verify("Done.", [JsonSchemaCheck(path="people.json", schema=PEOPLE)])
    assert verification.status is Verdict.PASSED, verification
    (result,) = verification.checks
    assert (result.kind, result.subject, sorted(result.digests)) == (
        "json_schema",
        "people.json",
        ["after", "schema"],
    )
    await site.write("people.json", '[{"name": "Ada", "age": "old"}, {"age": 1}]')
    await site.write("slow.json", json.dumps("a" * 40))
    await site.write("broken.json", '{"a": NaN}')
    schemas: list[tuple[str, dict[str, object], str]] = [
        ("people.json", PEOPLE, "does not fit the schema in 2 places; first: $[0].age: 'old' is not of type"),
        ("missing.json", PEOPLE, "does not exist"),
        ("broken.json", PEOPLE, "is no JSON: NaN is no number"),
        ("slow.json", {"pattern": "^(a+)+$b"}, "takes too long"),
        ("slow.json", {"$ref": "http://127.0.0.1:1/schema"}, "the schema refers to what it does not hold"),
        ("slow.json", {"$ref": "#"}, "is nested too deeply"),
        ("slow.json", {"type": "strin"}, "the schema is none: $.type"),
    ]
    checks: list[Check] = [JsonSchemaCheck(path=path, schema=schema) for path, schema, _ in schemas]
    verification, feedback = await site.verify("Done.", checks)
    assert [check.status for check in verification.checks] == [CheckStatus.FAILED] * len(checks)
    for check, (_, _, reason) in zip(verification.checks, schemas, strict=True):
        assert reason in check.reason
    assert "$[1]: 'name' is a required property" in feedback


SERVE = ["python3", "-B", "-m", "http.server", "8123", "--bind", "127.0.0.1"]
CALC = "http://127.0.0.1:8123/calc.txt"
# Its children leave its group and its session, and one of them never reads its mail.
MUTE = "import socket, time; held = socket.create_server(('127.0.0.1', 8123)); time.sleep(8123.5)"
STUBBORN = "trap '' TERM; setsid sleep 8123.5 & python3 -B -m http.server 8123 --bind 127.0.0.1; sleep 8123.5"


async def test_the_workspaces_own_server_is_asked_and_ends_with_the_check(site: Site) -> None:
    await site.write("calc.txt", "4\n")
    checks: list[Check] = [
        HttpCheck(start=SERVE, url=CALC, expect_body="^4$"),
        HttpCheck(start=["sh", "-c", STUBBORN], url="http://localhost:8123/nothing", expect_status=404),
    ]
    verification, _ = await site.verify("Done.", checks)
    assert verification.status is Verdict.PASSED, verification
    first = verification.checks[0]
    assert (first.kind, first.reason) == ("http", "answered 200, as expected")
    assert first.subject == f"GET {CALC} of {' '.join(SERVE)}"
    assert "HTTP 200\n4\n\nthe server said:" in first.output_tail
    assert first.digests == {"commit": verification.commit, "body": hashlib.sha256(b"4\n").hexdigest()}
    assert not living("http.server\0008123") + living("sleep\0008123.5")


async def test_a_server_that_does_not_answer_as_wanted_fails_with_what_it_said(site: Site) -> None:
    checks: list[Check] = [
        HttpCheck(start=SERVE, url="http://127.0.0.1:8123/nothing"),
        HttpCheck(start=SERVE, url=CALC, expect_body="^5$"),
        HttpCheck(start=SERVE, url=CALC, expect_body="(a+)+$b("),
        HttpCheck(start=["sh", "-c", "echo no database; exit 3"], url=CALC, timeout_s=1.0),
        HttpCheck(start=["sleep", "8123.5"], url=CALC, timeout_s=1.0),
        HttpCheck(start=["python3", "-c", MUTE], url=CALC, timeout_s=1.0),
        HttpCheck(start=["no-such-program-here"], url=CALC, timeout_s=1.0),
    ]
    verification, feedback = await site.verify("Done.", checks)
    assert [check.status for check in verification.checks] == [CheckStatus.FAILED] * 7
    assert [check.reason[:45] for check in verification.checks] == [
        "answered 404, expected 200",
        "the body does not match '^5$'",
        "the pattern '(a+)+$b(' is not a regular expre",
        "the server ended with 3 before it answered",
        "it did not answer in time: ConnectionRefusedE",
        "it took the question and did not answer in ti",
        "the server could not be started: No such file",
    ]
    assert "7 of 7 checks failed" in feedback
    assert "no database" in feedback
    assert not living("http.server\0008123") + living("sleep\0008123.5")


# A page that shows what was typed, and counts in its title.
PAGE = """<h1>Lunch</h1><input name="place"><ul></ul><button onclick="
  const item = document.createElement('li'); item.textContent = document.querySelector('input').value;
  document.querySelector('ul').append(item)">Propose</button>"""
BROWSE = "http://127.0.0.1:8123/page.html"
HAS_BROWSER = importlib.util.find_spec("playwright") is not None and shutil.which("chromium") is not None


def proposes(place: str, expected: str) -> BrowserCheck:
    steps = [
        BrowserStep(expect="h1", text="^Lunch$"),
        BrowserStep(fill="input[name=place]", text=place),
        BrowserStep(click="text=Propose"),
        BrowserStep(expect="li", text=expected),
    ]
    return BrowserCheck(start=SERVE, url=BROWSE, steps=steps)


@pytest.mark.skipif(not HAS_BROWSER, reason="needs perdure[browser] and chromium")
async def test_steps_in_a_browser_go_as_they_should_or_say_which_did_not(site: Site) -> None:
    await site.write("page.html", PAGE)
    verification, _ = await site.verify("Done.", [proposes("Noodle bar", "Noodle bar")])
    assert verification.status is Verdict.PASSED, verification
    assert verification.checks[0].reason == "4 steps went as expected"
    verification, feedback = await site.verify("Done.", [proposes("Noodle bar", "Grill")])
    assert verification.status is Verdict.FAILED
    assert "step 4 (expect li, text Grill) failed" in feedback
    assert "Noodle bar" in feedback, "what the page read"
    assert not living("http.server\0008123")


@pytest.mark.skipif(HAS_BROWSER, reason="only where no browser is")
async def test_without_a_browser_its_check_fails_and_says_how_to_get_one(site: Site) -> None:
    await site.write("page.html", PAGE)
    verification, feedback = await site.verify("Done.", [proposes("Noodle bar", "Noodle bar")])
    assert verification.status is Verdict.FAILED
    assert "pip install 'perdure[browser]', apt-get install chromium" in feedback


async def test_checks_that_do_not_apply_never_make_a_run_pass(bus: Bus, tmp_path: Path) -> None:
    async with toolhost(bus, tmp_path) as host, verifier(bus):
        owner = await owned_run(bus)
        await owner.attach(host)
        site = Site(owner, host, tmp_path / "project")
        verification, feedback = await site.verify("All tests pass.", [TestsCheck(), DiffCheck()])
        assert verification.status is Verdict.UNVERIFIED
        assert [check.status for check in verification.checks] == [CheckStatus.NOT_APPLICABLE] * 2
        assert feedback == ""


async def test_a_folder_without_tests_is_not_proved_by_running_none(bus: Bus, tmp_path: Path) -> None:
    tests = json.dumps([sys.executable, "-m", "unittest"])
    async with toolhost(bus, tmp_path, tests=tests) as host, verifier(bus):
        owner = await owned_run(bus)
        await owner.attach(host)
        site = Site(owner, host, tmp_path / "project")
        await site.write("hello.txt", "hello\n")
        verification, _ = await site.verify("Hello.")
        assert (verification.status, verification.checks[0].status) == (
            Verdict.UNVERIFIED,
            CheckStatus.NOT_APPLICABLE,
        )
        verification, feedback = await site.verify("Hello.", [TestsCheck()])
        assert verification.status is Verdict.FAILED
        assert "found no test to run" in feedback


async def test_a_run_without_a_workspace_cannot_have_written_anything(bus: Bus) -> None:
    async with verifier(bus):
        site = Site(await owned_run(bus), "", Path())
        verification, _ = await site.verify("It is 42.")
        assert verification.status is Verdict.UNVERIFIED
        verification, _ = await site.verify("I wrote out.txt.")
        assert verification.status is Verdict.FAILED
        refused = await site.send(site.call("Done.", [FileCheck(path="a")]))
        assert refused.refused == Refusal.HOST_GONE


async def test_a_dead_host_gives_no_verdict(site: Site) -> None:
    await declare_dead(site.owner.bus, "bgone")
    result = await site.send(site.call("Done.", [TestsCheck()], host="bgone"))
    assert result.refused == Refusal.HOST_GONE
    assert "verification" not in result.metadata


async def test_a_stale_owner_gets_no_verdict(site: Site) -> None:
    stale = site.call("Done.", [])
    await site.owner.claim("bsecond")
    await site.owner.send(site.owner.bus.subjects.tool_any(VERIFY), stale)
    verification, _ = await site.verify("Done.")
    assert verification.status is Verdict.UNVERIFIED
    assert await site.owner.entry(stale) is None


async def test_a_cancelled_run_ends_its_round_and_what_the_round_runs(site: Site) -> None:
    call = site.call("Done.", [CommandCheck(argv=["sleep", "1000"])])
    await site.owner.send(site.owner.bus.subjects.tool_any(VERIFY), call)
    sub = msgspec.structs.replace(call, call_id=f"{call.call_id}-0")

    async def it_runs() -> bool:
        return await site.owner.entry(sub) is not None

    await eventually(it_runs, "it runs")
    await site.owner.cancel(site.host)
    ended = await site.owner.result(sub)
    assert ended.refused == Refusal.STOPPED
    # A check that was cut off says nothing about the workspace, so the round has no verdict.
    assert (await site.owner.result(call)).refused == Refusal.HOST_GONE
