"""What a process must not say is found in its variables, and taken out of results, events and log lines."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from libs.chassis.effects import Effect, Prepared
from libs.chassis.logs import Redacted as RedactedLines
from libs.chassis.redacted import Redacted
from libs.chassis.secrets import secrets_in
from libs.contracts import events as e
from libs.contracts.checks import CheckResult, CheckStatus, Verdict
from libs.contracts.tools import Semantics, ToolCall, ToolResult
from libs.contracts.values import ModelToolCall, ProjectInstructions, RunError, Usage
from libs.policy.redaction import MARK, Redaction
from services.executor.redacting import redacted
from services.executor.settings import ExecutorSettings

KEY = "key-4-this-deployment"
CHANCE = "a1B2c3D4e5F6g7H8"
REDACTION = Redaction(lambda: [KEY.encode()])


def test_secrets_are_found_by_the_names_of_variables_and_in_addresses() -> None:
    found = secrets_in(
        {
            "OPENAI_API_KEY": "model-key-1",
            "NATS_PASSWORD": "pass-a-word",
            "NATS_URL": "nats://user:p%40ss-word-7@a:1,nats://user:other-pass-8@b:1",
            "DATABASE_URL": "postgresql://me:database-9@host/db",
            "RUNTIME_API_KEYS_JSON": json.dumps(
                {"acme": "acme-secret-1234", "beta": ["b1-secret-1234", "b2-secret-1234"]}
            ),
            "AWS_SECRET_ACCESS_KEY": CHANCE,
            "GITHUB_TOKEN": f"ghp_{CHANCE}",
            "SOME_KEY": "production",
            "PERDURE_TOKEN": "not-needed",
            "LANGFUSE_PUBLIC_KEY": "pk",
            "PATH": "/usr/bin",
            "PERDURE_OPERATOR_KEY": "short",
        }
    )
    assert {secret.decode() for secret in found} == {
        "model-key-1", "p@ss-word-7", "p%40ss-word-7", "other-pass-8", "database-9", "acme-secret-1234",
        "b1-secret-1234", "b2-secret-1234", CHANCE, f"ghp_{CHANCE}",
    }  # fmt: skip


def test_a_broken_setting_hides_nothing_of_the_others() -> None:
    assert secrets_in(
        {"RUNTIME_API_KEYS_JSON": "{", "NATS_URL": "nats://[::1", "NATS_PASSWORD": "word-1-word"}
    ) == (b"word-1-word",)


def test_no_setting_shows_what_is_known() -> None:
    settings = ExecutorSettings.load("executor", {"OPENAI_API_KEY": KEY, "NATS_PASSWORD": "bus-1-password"})
    assert KEY not in repr(settings)
    assert "bus-1-password" not in repr(settings)
    assert settings.redaction.text(f"{KEY} bus-1-password") == f"{MARK} {MARK}"


CALL = ToolCall(
    tenant="local", run_id="run", call_id="call_1_0", attempt=1, epoch=1, name="t", arguments={}, semantics=Semantics.IDEMPOTENT,
    idempotency_key="k", not_after="", timeout_s=1.0, output_chars_max=100,
)  # fmt: skip
RESULT = ToolResult(
    call_id="call_1_0",
    attempt=1,
    ok=False,
    output=f"it failed with {KEY}",
    metadata={"path": KEY, "argv": [KEY], "deep": {"checks": [{"reason": f"x {KEY}"}]}, "exit_code": 1},
)
SHOWN = msgspec.structs.replace(
    RESULT,
    output=f"it failed with {MARK}",
    metadata={"path": KEY, "argv": [MARK], "deep": {"checks": [{"reason": f"x {MARK}"}]}, "exit_code": 1},
)


class _Service:
    """Says a secret whichever way it is asked. `at_once`: without an effect."""

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once

    async def answer(self, call: ToolCall, stop: asyncio.Event) -> ToolResult:
        del call, stop
        return RESULT

    @asynccontextmanager
    async def effect(self, call: ToolCall) -> AsyncGenerator[Prepared]:
        async def perform(stop: asyncio.Event) -> ToolResult:
            return await self.answer(call, stop)

        yield RESULT if self._at_once else Effect(perform, before={"a": "1"}, after={"a": "2"})


async def test_every_result_of_a_host_is_redacted_before_it_leaves_it() -> None:
    stop = asyncio.Event()
    assert await Redacted(_Service(), REDACTION).answer(CALL, stop) == SHOWN
    async with Redacted(_Service(at_once=True), REDACTION).effect(CALL) as known:
        assert known == SHOWN
    async with Redacted(_Service(), REDACTION).effect(CALL) as prepared:
        assert isinstance(prepared, Effect)
        assert (prepared.before, prepared.after) == ({"a": "1"}, {"a": "2"})
        assert await prepared.perform(stop) == SHOWN


OF_OTHERS: list[e.LogEvent] = [
    e.ToolCompleted(call_id="c", ok=True, output=KEY, duration_ms=1, metadata={"problem": KEY}),
    e.ToolUncertain(call_id="c", attempt=1, reason=KEY),
    e.ModelFailed(iteration=1, error_code="X", message=KEY, attempt=1),
    e.RunFailed(error=RunError(error_code="X", message=KEY), usage=Usage(), evidence=[KEY]),
    e.VerificationCompleted(
        round=1,
        status=Verdict.FAILED,
        checks=[
            CheckResult(kind="command", subject=KEY, status=CheckStatus.FAILED, reason=KEY, output_tail=KEY)
        ],
        feedback=KEY,
    ),
    e.WorkspaceAttached(
        workspace_id="ws",
        host="b",
        replica="r",
        lost=[KEY],
        instructions=ProjectInstructions(path="AGENTS.md", text=KEY),
    ),
]


@pytest.mark.parametrize("event", OF_OTHERS, ids=lambda event: type(event).__name__)
def test_what_others_said_is_recorded_without_secrets(event: e.LogEvent) -> None:
    shown = redacted(event, REDACTION)
    assert type(shown) is type(event)
    assert KEY not in msgspec.json.encode(shown).decode()
    assert msgspec.json.encode(shown).decode().count(MARK) == msgspec.json.encode(event).decode().count(KEY)
    assert redacted(shown, REDACTION) is shown


def test_what_the_model_wrote_stays_to_the_byte() -> None:
    call = ModelToolCall(call_id="c", name="write_file", arguments={"content": KEY})
    turn = e.ModelCompleted(
        iteration=1, content=KEY, tool_calls=[call], finish_reason="stop", usage=Usage(), latency_ms=1
    )
    assert redacted(turn, REDACTION) is turn


def test_log_lines_have_no_secret_whoever_writes_them() -> None:
    form = RedactedLines(logging.Formatter("%(message)s %(reason)s"), REDACTION)
    try:
        raise ValueError(f"cannot reach nats://u:{CHANCE}@h")
    except ValueError:
        record = logging.LogRecord("perdure", logging.ERROR, "", 1, "failed", None, sys.exc_info())
    record.reason = f"refused {KEY}"
    said = form.format(record)
    assert said.startswith(f"failed refused {MARK}\n")
    assert f"nats://u:{MARK}@h" in said
    assert CHANCE not in said
