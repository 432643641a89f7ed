"""What people see of events, progress and logs: few words, and nothing that steers their terminal."""

from __future__ import annotations

import io
import json
import threading

import pytest

from deploy.cli.eventlines import describe, show_checks, show_event
from deploy.cli.outcome import failed, in_commands
from deploy.cli.progress import Progress
from deploy.cli.terminal import Screen, one_line, printable
from deploy.dev.child import restart_delay_s
from deploy.dev.mergedlog import LINES_WAITING_MAX, MergedLog, json_line, readable_line
from libs.contracts.errors import Unauthorized
from libs.contracts.views import EventView


def event(kind: str, sequence: int = 1, **payload: object) -> EventView:
    return EventView(
        sequence=sequence, type=kind, run_id="run_0_x", at="2026-01-01T00:00:00.000Z", payload=payload
    )


def test_control_and_hidden_characters_are_shown_escaped() -> None:
    assert printable("a\x1b[2Kb\u200b\u202ec\r") == "a\\x1b[2Kb\\u200b\\u202ec\\x0d"
    assert printable("ä 日本\n\t") == "ä 日本\n\t"


def test_a_long_text_is_cut_to_one_line_with_an_ellipsis() -> None:
    assert one_line("one\n  two\tthree", 9) == "one two …"
    assert one_line("short", 9) == "short"


def test_an_event_is_one_plain_line_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    show_event(
        Screen(stream), event("tool.requested", 7, name="read_file", arguments={"path": "a\n\x1b[31m.py"})
    )
    assert stream.getvalue() == "   7  tool.requested         read_file path=a \\x1b[31m.py\n"


@pytest.mark.parametrize(
    "kind,payload,words",
    [
        ("run.failed", {"error": {"error_code": "TIMEOUT", "message": "too slow"}}, "TIMEOUT: too slow"),
        ("input.requested", {"question": "Go?", "options": ["yes", "no"]}, "Go? [yes | no]"),
        (
            "workspace.snapshotted",
            {"commit": "9b9b7fa48d186e528310", "changed": 4, "saved": {"snapshot": "f451"}, "problem": None},
            "kept as 9b9b7fa48d18, 4 changed",
        ),
        (
            "workspace.snapshotted",
            {"commit": "", "changed": 0, "problem": "no room"},
            "not kept: no room",
        ),
        ("tool.completed", {"ok": False, "output": "no such file"}, "failed: no such file"),
        ("tool.completed", {"ok": True, "output": "a\nb\n"}, "a (+1 lines)"),
        ("tool.completed", {"ok": False, "output": "x\nOK\n", "metadata": {"exit_code": 1}}, "exit 1: OK"),
        (
            "tool.requested",
            {"name": "f", "arguments": {"content": "long text", "path": "a"}},
            "f path=a, content=long text",
        ),
        ("verification.completed", {"status": "UNVERIFIED", "checks": []}, "UNVERIFIED (nothing to check)"),
        ("run.released", {"reason": "suspended", "waiting_for": "input"}, "suspended, waiting for input"),
        ("something.new", {"a": 1}, '{"a": 1}'),
        (
            "session.started",
            {"session": 3, "feature_id": "cart", "attempt": 2, "reverify": ["goods"]},
            "session 3: cart, attempt 2; proves goods again first",
        ),
        ("session.started", {"session": 1, "kind": "initialize", "attempt": 1}, "session 1: initialize"),
        (
            "session.ended",
            {"session": 3, "outcome": "failed", "reason": "red", "retry_at": "2026-01-01T10:20:30.000Z"},
            "session 3 failed: red; the next one begins at 10:20:30",
        ),
        (
            "session.stalled",
            {"silent_s": 9.4, "limit_s": 8.0},
            "no sign of life for 9 s, at most 8 s are allowed: it is ended",
        ),
        ("session.stalled", {}, "{}"),
        (
            "feature.state_changed",
            {"feature_id": "cart", "before": "verified", "state": "committed", "reason": "by git"},
            "cart: verified → committed, by git",
        ),
        ("project.blocked", {"cap": "tokens", "reason": "used up"}, "tokens: used up"),
        ("run.created", {"task": "not an object"}, ""),
    ],
)
def test_an_event_of_any_kind_and_shape_has_words(kind: str, payload: dict[str, object], words: str) -> None:
    assert describe(kind, payload).text == words


def test_a_verdict_is_shown_with_the_evidence_of_each_check() -> None:
    stream = io.StringIO()
    check = {
        "kind": "tests",
        "subject": "python3 -m unittest",
        "status": "passed",
        "exit_code": 0,
        "output_tail": "OK",
    }
    show_checks(Screen(stream), {"status": "PASSED", "checks": [check]})
    assert stream.getvalue().splitlines() == [
        "verification PASSED",
        "  tests python3 -m unittest: passed, exit 0",
        "    OK",
    ]


def test_progress_counts_tokens_and_says_what_the_run_does() -> None:
    progress = Progress()
    progress.see(event("model.requested", iteration=2))
    usage = {"input_tokens": 1000, "output_tokens": 50, "cost_usd": 0.25}
    progress.see(event("model.completed", usage=usage, tool_calls=[{"name": "run_tests"}]))
    assert progress.line(3.0) == "running run_tests · iteration 2 · 1,050 tokens · $0.2500 · 3.0 s"


def test_a_cost_that_is_unknown_once_stays_unknown() -> None:
    progress = Progress()
    for cost in (0.5, None, 0.5):
        progress.see(event("model.completed", usage={"cost_usd": cost}))
    assert "cost unknown" in progress.totals(1.0)


def test_no_cost_is_told_before_there_is_one() -> None:
    progress = Progress()
    progress.see(event("run.claimed"))
    assert progress.line(1.0) == "starting · iteration 0 · 1.0 s"


def test_a_remark_is_no_part_of_what_a_pipe_reads(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    Screen(stream).aside("more: --cursor c")
    assert (stream.getvalue(), capsys.readouterr().err) == ("", "more: --cursor c\n")


def test_what_the_server_says_of_its_api_is_told_as_a_command() -> None:
    said = "run run_1 is COMPLETED; GET /api/runs/run_1/questions shows what was asked"
    assert in_commands(said) == "run run_1 is COMPLETED; `perdure runs questions run_1` shows what was asked"


def test_a_wrong_token_is_told_with_the_variable_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    failed(Unauthorized("no"))
    assert "set PERDURE_TOKEN" in capsys.readouterr().err


def test_a_later_attempt_replaces_what_the_earlier_one_streamed() -> None:
    progress = Progress()
    for attempt, content in ((1, "abc"), (2, "ab"), (2, "cdef")):
        progress.see(event("model.delta", 0, attempt=attempt, content=content))
    assert progress.activity == "writing: abcdef"


def test_json_log_lines_pass_and_others_are_wrapped() -> None:
    line = '{"event": "run.claimed", "service": "executor"}'
    assert json_line("executor", line + "\n") == line
    wrapped = json_line("nats", "plain \x1b text")
    assert wrapped is not None
    assert json.loads(wrapped)["text"] == "plain \x1b text"
    assert json_line("nats", "  ") is None


def test_a_readable_log_line_names_service_event_and_fields() -> None:
    line = json.dumps(
        {"at": "2026-01-01T10:11:12.000", "level": "info", "event": "run.claimed", "run_id": "r\x1b1"}
    )
    assert readable_line("executor", line) == "10:11:12 \x1b[32mexecutor \x1b[0m run.claimed run_id=r\ufffd1"


def test_lines_that_nobody_reads_are_dropped_and_counted() -> None:
    stuck = StuckStream()
    log = MergedLog(stuck, readable=False)
    for number in range(LINES_WAITING_MAX + 10):
        log.line("gateway", f'{{"number": {number}}}')
    stuck.release()
    log.close()
    log.line("gateway", "{}")
    assert stuck.getvalue().count("\n") <= LINES_WAITING_MAX + 2


class StuckStream(io.StringIO):
    """A stream whose reader has stopped reading until `release`."""

    def __init__(self) -> None:
        super().__init__()
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def write(self, text: str, /) -> int:
        self._released.wait(10)
        return super().write(text)


def test_the_first_restart_is_immediate_and_later_ones_back_off_to_ten_seconds() -> None:
    assert [restart_delay_s(deaths) for deaths in (1, 2, 3, 4, 7, 2000)] == [0.0, 0.5, 1.0, 2.0, 10.0, 10.0]


def test_of_the_server_only_warnings_and_errors_are_logged() -> None:
    stream = io.StringIO()
    log = MergedLog(stream, readable=False)
    log.line("nats", "[7] 2026/01/31 10:11:12.123456 [INF] Server is ready")
    log.line("nats", "[7] 2026/01/31 10:11:12.123456 [WRN] Slow disk")
    log.close()
    [line] = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert (line["level"], line["at"], line["text"]) == ("warning", "2026-01-31T10:11:12.123456", "Slow disk")
