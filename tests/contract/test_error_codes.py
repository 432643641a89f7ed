"""Every status and every code that users can rely on is brought about by some test over real HTTP, which is named here.

Invariant: the lists are the contract's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from libs.contracts.errors import LogError, PatchUnreadable, PerdureError

TESTS = Path(__file__).resolve().parents[1]
_HTTP, _E2E = "service/test_gateway_", "e2e/test_"

# By code: its status, and a test that gets it in an envelope.
ANSWERS = {
    "BAD_REQUEST": (400, f"{_HTTP}problems.py", "test_what_is_no_http_has_the_envelope_too"),
    "INVALID_CURSOR": (
        400,
        f"{_HTTP}stream.py",
        "test_every_resume_of_a_finished_run_gives_exactly_the_rest",
    ),
    "UNAUTHORIZED": (401, f"{_HTTP}problems.py", "test_secure_mode_needs_a_secret_and_keeps_tenants_apart"),
    "NOT_FOUND": (404, f"{_HTTP}connections.py", "test_what_is_no_run_of_this_deployment_has_no_stream"),
    "METHOD_NOT_ALLOWED": (405, f"{_HTTP}problems.py", "test_every_kind_of_refusal_has_its_envelope"),
    "REQUEST_TIMEOUT": (
        408,
        f"{_HTTP}connections.py",
        "test_a_request_that_does_not_come_whole_is_told_so_and_holds_nothing",
    ),
    "INVALID_STATE": (409, f"{_HTTP}commands.py", "test_a_pending_run_starts_once"),
    "IDEMPOTENCY_CONFLICT": (
        409,
        f"{_HTTP}commands.py",
        "test_a_client_s_own_retry_of_a_reply_gets_the_first_answer_again",
    ),
    "RUN_DELETED": (410, f"{_HTTP}delete.py", "gone"),
    "PAYLOAD_TOO_LARGE": (413, f"{_HTTP}problems.py", "test_every_kind_of_refusal_has_its_envelope"),
    "UNSUPPORTED_MEDIA_TYPE": (415, f"{_HTTP}problems.py", "test_every_kind_of_refusal_has_its_envelope"),
    "VALIDATION_ERROR": (422, f"{_HTTP}problems.py", "test_every_kind_of_refusal_has_its_envelope"),
    "QUOTA_EXCEEDED": (
        429,
        f"{_HTTP}quotas.py",
        "test_a_tenant_that_has_used_up_its_day_starts_nothing_and_others_and_retries_are_served",
    ),
    "INTERNAL_ERROR": (500, f"{_HTTP}problems.py", "test_a_defect_is_an_envelope_and_the_gateway_goes_on"),
    "CONFIGURATION_ERROR": (503, f"{_HTTP}copies.py", "test_what_cannot_be_forked_is_refused_by_its_field"),
    "BUS_UNAVAILABLE": (
        503,
        f"{_HTTP}outage.py",
        "test_an_outage_of_the_bus_is_answered_with_503_and_ends_by_itself",
    ),
    "STORAGE_FULL": (
        503,
        f"{_E2E}disk_full.py",
        "test_a_full_disk_is_told_and_waited_out_and_with_room_everything_goes_on",
    ),
}
# What a run that failed says in `error`.
ENDS = {
    "MODEL_ERROR": (f"{_E2E}provider_faults.py", "test_83_statuses_of_our_own_mistakes_are_not"),
    "MODEL_REFUSED": (f"{_E2E}run_errors.py", "test_a_model_that_refuses_fails_the_run_with_its_words"),
    "EMPTY_RESPONSE": ("e2e/stream_cases.py", ""),
    "MAX_TOKENS": ("e2e/stream_cases.py", ""),
    "CONTEXT_EXHAUSTED": (
        f"{_E2E}context.py",
        "test_a_static_prompt_that_is_too_large_fails_before_the_model_is_asked",
    ),
    "MAX_ITERATIONS": (
        f"{_E2E}circles_and_limits.py",
        "test_children_share_their_parents_turns_and_time_and_their_use_ends_it",
    ),
    "BUDGET_EXCEEDED": (
        f"{_E2E}circles_and_limits.py",
        "test_children_share_their_parents_budget_and_their_use_ends_it",
    ),
    "TIMEOUT": (f"{_E2E}circles_and_limits.py", ""),
    "STUCK": (
        f"{_E2E}circles_and_limits.py",
        "test_58_a_circle_is_told_of_once_and_then_ends_the_run_naming_it",
    ),
    "INPUT_TIMEOUT": (f"{_E2E}policy.py", "test_133_that_nobody_answers_is_no_rejection"),
    "DEPENDENCY_FAILED": (
        f"{_E2E}run_errors.py",
        "test_a_task_that_names_a_tool_of_nobody_fails_before_the_model_is_asked",
    ),
    "RECONCILIATION_FAILED": (
        f"{_E2E}bus_for_others.py",
        "test_an_effect_whose_host_is_killed_in_it_is_a_persons_to_decide_and_never_repeated",
    ),
    "VERIFICATION_FAILED": (
        f"{_E2E}run.py",
        "test_a_claim_of_a_file_that_was_never_written_fails_the_verification",
    ),
    "WORKSPACE_ERROR": (
        f"{_E2E}run_errors.py",
        "test_a_workspace_that_cannot_be_one_fails_the_run_and_is_left_alone",
    ),
    "HOOK_FAILED": (
        f"{_E2E}projects.py",
        "test_hooks_run_around_sessions_and_one_that_must_pass_stops_its_session",
    ),
    "POISONED": (
        f"{_E2E}poison.py",
        "test_a_run_that_kills_its_executor_ends_poisoned_and_the_others_in_the_same_process_complete",
    ),
    "CANCELLED": (f"{_E2E}run.py", "test_a_cancel_in_the_middle_ends_the_run_and_everything_it_started"),
}
SUCCESSES = {
    200: (f"{_HTTP}tasks.py", "200"),
    201: (f"{_HTTP}tasks.py", "201"),
    202: (f"{_HTTP}commands.py", "202"),
    204: (f"{_HTTP}delete.py", "204"),
    304: (f"{_HTTP}commands.py", "304"),
}


@pytest.mark.parametrize("code", ANSWERS)
def test_each_code_of_an_envelope_is_brought_about(code: str) -> None:
    _, file, function = ANSWERS[code]
    assert f'"{code}"' in _function(file, function)


@pytest.mark.parametrize("code", ENDS)
def test_each_code_of_a_failed_run_is_brought_about(code: str) -> None:
    file, function = ENDS[code]
    assert code in (_function(file, function) if function else _text(file))


@pytest.mark.parametrize("status", SUCCESSES)
def test_each_status_of_a_success_is_brought_about(status: int) -> None:
    file, text = SUCCESSES[status]
    assert text in _text(file)


def test_the_tree_of_errors_has_no_other_codes_than_these() -> None:
    meeting_clients = {kind.code: kind.status for kind in _tree(PerdureError)}
    # A patch is read in a tool, whose result says so.
    del meeting_clients[PatchUnreadable.code]
    assert meeting_clients == {code: status for code, (status, _, _) in ANSWERS.items()}


def test_what_ends_a_run_is_made_by_the_product() -> None:
    product = [
        path for folder in ("libs", "services", "deploy") for path in (TESTS.parent / folder).rglob("*.py")
    ]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in product)
    for code in ENDS:
        assert f'"{code}"' in texts


def _tree(root: type[PerdureError]) -> Iterator[type[PerdureError]]:
    """The classes of the tree itself that a client may meet; what is between a writer and a log becomes one of them."""
    for kind in root.__subclasses__():
        if kind.__module__ == PerdureError.__module__ and not issubclass(kind, LogError):
            if "code" in kind.__dict__:
                yield kind
            yield from _tree(kind)


def _function(file: str, name: str) -> str:
    text = _text(file)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            # With what parametrises it.
            first = min((decorator.lineno for decorator in node.decorator_list), default=node.lineno)
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    pytest.fail(f"tests/{file} has no {name} any more; name another test that brings it about", pytrace=False)


@cache
def _text(file: str) -> str:
    return (TESTS / file).read_text(encoding="utf-8")
