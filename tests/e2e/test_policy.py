"""Who may do what, over all services: approvals bound to what was shown (127 to 137), a tenant that may only read, secrets
that nobody gets to see. Two tenants of a secure deployment; every run is one of `acme`'s unless it says otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from libs.client import PerdureClient
from libs.contracts.errors import InvalidState
from libs.contracts.http import Approval
from libs.contracts.views import EventView, RunView
from tests.e2e.stage import Script, Stage, call, calls, says, stage

ACME, GUEST, OPERATOR = (f"{name}-secret-0123456789" for name in ("acme", "guest", "operator"))
# Neither has a form that anybody knows.
MODEL_KEY, FOREIGN = "model-endpoint-key-4711", "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
PASSWORD = "hunter22hunter"
# In parts, so that this file holds nothing that looks like a secret itself.
PEM = "PRIVATE " + "KEY-----"
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
PLANTED = (MODEL_KEY, FOREIGN, TOKEN, PASSWORD, BODY, ACME, GUEST, OPERATOR)
SECRET_FILES = {
    ".env": f"OPENAI_API_KEY={FOREIGN}\nDB=postgres://me:{PASSWORD}@db/x\nGITHUB_TOKEN={TOKEN}\n",
    "notes.md": f"the operator has {OPERATOR}, we have {ACME}, they have {GUEST}; the model's is {MODEL_KEY}\n",
    "key.txt": f"-----BEGIN {PEM}\n{BODY}\n{BODY}\n-----END {PEM}\n",
    "run_tests.sh": "cat .env key.txt; echo 3 of 4; exit 1\n",
}
POLICY = {
    "rules": [
        {"effect": "allow", "tool": "run_command", "command": ["cat *", "head *"]},
        {"effect": "deny", "path": "closed/", "reason": "it is closed for models"},
    ],
    "tenants": {"guest": {"mode": "read-only"}},
}
SLY = "printf 'a\u200bb' > shown.txt\t\t\t# \u202etxet neddih"
PASSING = {"tests/check.txt": "4\n", "value.txt": "4\n", "run_tests.sh": "cmp tests/check.txt value.txt\n"}

SCRIPT: Script = {
    "[127]": [calls(call("run_command", command=SLY)), says("Done.")],
    "[128]": [
        calls({**call("run_command", command="touch one"), "id": "same"}),
        calls({**call("run_command", command="touch two"), "id": "same"}),
        says("Done."),
    ],
    "[130]": [
        calls(
            call("write_file", path="first.txt", content="1"),
            call("run_command", command="cp first.txt second.txt"),
            call("write_file", path="third.txt", content="3"),
        ),
        says("Done."),
    ],
    "[131]": [calls(call("run_command", command="touch live")), says("Understood.")],
    "[133]": [calls(call("run_command", command="touch never")), says("Never.")],
    "[134]": [says("All is done.")] * 9,
    "[136]": [
        calls(call("write_file", path="a.txt", content="1"), call("finish", summary="all is done"), text="Finished."),
        says("Now I am done."),
    ],
    "[137]": [calls(call("write_file", path="tests/check.txt", content="5\n")), *[says("The tests pass.")] * 3],
    "[closed]": [
        calls(call("read_file", path="closed/a"), call("run_command", command="cat closed/a"), call("list_files")),
        says("Closed."),
    ],
    "[reader]": [
        calls(
            call("write_file", path="a.txt", content="x"),
            call("edit_file", path="a.txt", old_str="as", new_str="xx"),
            call("apply_patch", patch="*** Begin Patch\n*** Delete File: a.txt\n*** End Patch"),
            call("run_tests"),
            call("run_command", command="cat a.txt; touch b.txt"),
            call("delegate", goal="[below] write something"),
        ),
        calls(call("read_file", path="a.txt"), call("write_todos", todos=[{"content": "x", "status": "pending"}])),
        says("I only read."),
    ],
    "[below]": [calls(call("write_file", path="c.txt", content="x")), says("I could not.")],
    "[secrets]": [
        calls(*(call("read_file", path=path) for path in (".env", "notes.md", "key.txt")), call("run_tests")),
        calls(
            call("read_file", path="key.txt", offset=3, max_lines=1),
            call("search_text", pattern="GITHUB|operator|MIIE"),
            call("run_command", command="cat .env key.txt; head -c 60 notes.md"),
            call("edit_file", path=".env", old_str="GITHUB_TOKEN=[redacted]", new_str="x"),
            call("write_file", path="copy", content="token = [redacted]"),
        ),
        calls(call("get_git_diff"), call("run_command", command="cat .env no-such-file")),
        *[says("I saw no secret.")] * 3,
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    if shutil.which("bwrap") is None:
        pytest.skip("the program bwrap is not installed, and no other sandbox is here")
    environment = {
        "RUNTIME_API_KEYS_JSON": json.dumps({"acme": ACME, "guest": GUEST}),
        "PERDURE_OPERATOR_KEY": OPERATOR,
        "PERDURE_POLICY": json.dumps(POLICY),
        "OPENAI_API_KEY": MODEL_KEY,
        # Requests with all that the model reads go into the blobs.
        "PERDURE_RECORD_WIRE": "true",
    }
    folder = tmp_path_factory.mktemp("policy")
    async with (
        stage(folder, SCRIPT, environment) as ready,
        PerdureClient(ready.perdure.url, token=ACME) as acme,
    ):
        yield ready._replace(client=acme)


async def begun(on: Stage, case: str, files: dict[str, str] | None = None, **fields: object) -> str:
    """A run of a case in a workspace of its own."""
    on.workspace(f"acme/{case}", {"run_tests.sh": "exit 0\n", **(files or {})})
    return await on.submit(f"[{case}] Go.", workspace=case, **fields)


async def asked(on: Stage, run_id: str, command: str) -> RunView:
    """The run once it asks about this command."""

    def fits(run: RunView) -> bool:
        question = run.pending_question
        return question is not None and question.arguments == {"command": command}

    return await on.until(run_id, fits)


async def decide(on: Stage, run_id: str, call_id: str, rejected_because: str = "") -> None:
    """Approve a call, or reject it with a reason."""
    decision = "reject" if rejected_because else "approve"
    await on.client.approve(run_id, Approval(call_id=call_id, decision=decision, reason=rejected_because))


def of_kind(events: list[EventView], kind: str) -> list[dict[str, object]]:
    return [event.payload for event in events if event.type == kind]


def last_results(on: Stage, case: str) -> list[str]:
    """What the model read of its calls, in the order in which it read them, from its last request."""
    body = [body for body in on.model.bodies if f"[{case}]".encode() in body][-1]
    messages = cast(list[dict[str, object]], json.loads(body)["messages"])
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


async def test_127_what_hides_in_a_command_is_shown_escaped_and_approved_to_the_byte(on: Stage) -> None:
    run_id = await begun(on, "127")
    question = (await asked(on, run_id, SLY)).pending_question
    assert question is not None
    shown = question.arguments_shown or ""
    assert all(escape in shown for escape in ("\\u200b", "\\u202e", "\\t\\t\\t"))
    assert shown.isprintable()
    assert json.loads(shown) == {"command": SLY}
    assert "characters that cannot be seen" in question.question
    await decide(on, run_id, question.call_id)
    assert (await on.ended(run_id)).status == "COMPLETED"
    (intent,) = of_kind(await on.events(run_id), "tool.requested")
    assert intent["arguments"] == {"command": SLY}
    assert intent["approval_hash"] == question.approval_hash
    assert (on.workspace("acme/127") / "shown.txt").read_text() == "a\u200bb"


async def test_128_an_approval_is_for_one_call_and_neither_for_its_id_nor_for_another_run(on: Stage) -> None:
    run_id = await begun(on, "128")
    first = (await asked(on, run_id, "touch one")).pending_question
    other_id = await on.submit("[128] Once more.", workspace="128")
    assert first is not None
    await decide(on, run_id, first.call_id)
    second = (await asked(on, run_id, "touch two")).pending_question
    assert second is not None
    assert second.approval_hash != first.approval_hash
    with pytest.raises(InvalidState, match=second.call_id):
        await decide(on, run_id, first.call_id)
    await decide(on, run_id, second.call_id, "one is enough")
    assert (await on.ended(run_id)).status == "COMPLETED"
    # The same tool with the same arguments, called by somebody else.
    other = await asked(on, other_id, "touch one")
    assert other.status == "WAITING_FOR_INPUT"
    await on.client.cancel(other_id)
    assert {path.name for path in on.workspace("acme/128").iterdir()} == {"run_tests.sh", "one"}


async def test_130_the_other_calls_of_a_turn_go_first_and_are_not_done_again(on: Stage) -> None:
    run_id = await begun(on, "130")
    waiting = await asked(on, run_id, "cp first.txt second.txt")
    root = on.workspace("acme/130")
    assert {path.name for path in root.iterdir()} == {"run_tests.sh", "first.txt", "third.txt"}
    before = {path.name: path.stat().st_mtime_ns for path in root.iterdir()}
    assert waiting.pending_question is not None
    await decide(on, run_id, waiting.pending_question.call_id)
    assert (await on.ended(run_id)).status == "COMPLETED"
    assert {name: (root / name).stat().st_mtime_ns for name in before} == before
    assert (root / "second.txt").read_text() == "1"
    requested = [str(intent["call_id"]) for intent in of_kind(await on.events(run_id), "tool.requested")]
    assert sorted(requested) == sorted(set(requested))
    results = last_results(on, "130")
    assert ["first.txt" in results[0], "exit code 0" in results[1], "third.txt" in results[2]] == [True] * 3


async def test_131_the_reason_of_a_rejection_is_what_the_model_reads(on: Stage) -> None:
    run_id = await begun(on, "131")
    question = (await asked(on, run_id, "touch live")).pending_question
    assert question is not None
    await decide(on, run_id, question.call_id, "use staging")
    assert (await on.ended(run_id)).answer == "Understood."
    (result,) = last_results(on, "131")
    assert result == "ERROR: run_command was not called, a person rejected it: use staging"
    assert of_kind(await on.events(run_id), "tool.requested") == []
    assert not (on.workspace("acme/131") / "live").exists()


async def test_133_that_nobody_answers_is_no_rejection(on: Stage) -> None:
    run_id = await begun(on, "133", limits={"input_timeout_s": 0.5})
    run = await on.ended(run_id)
    assert run.error is not None
    assert (run.status, run.error.error_code) == ("FAILED", "INPUT_TIMEOUT")
    events = await on.events(run_id)
    assert of_kind(events, "tool.completed") == []
    assert of_kind(events, "input.received") == []
    assert not (on.workspace("acme/133") / "never").exists()


async def test_134_a_gate_that_never_opens_is_asked_a_bounded_number_of_times(on: Stage) -> None:
    run_id = await begun(on, "134", acceptance=[{"kind": "command", "argv": ["false"]}])
    run = await on.ended(run_id)
    assert run.error is not None
    assert (run.status, run.error.error_code) == ("FAILED", "VERIFICATION_FAILED")
    rounds = of_kind(await on.events(run_id), "verification.requested")
    assert [one["round"] for one in rounds] == [1, 2, 3]
    bodies = [body.decode() for body in on.model.bodies if b"[134]" in body]
    announced = ["The next verification is the last one" in body for body in bodies]
    assert announced == [False, False, True]


async def test_136_a_turn_that_says_it_is_finished_beside_its_calls_is_not_until_the_gate_was_asked(
    on: Stage,
) -> None:
    check = {"kind": "file", "path": "a.txt", "contains": "1"}
    run_id = await begun(on, "136", acceptance=[check])
    run = await on.ended(run_id)
    assert (run.status, run.answer) == ("COMPLETED", "Now I am done.")
    kinds = [event.type for event in await on.events(run_id)]
    assert kinds.count("verification.requested") == 1
    assert kinds.index("verification.requested") > max(
        index for index, kind in enumerate(kinds) if kind == "tool.completed"
    )
    assert kinds[-2:] == ["verification.completed", "run.completed"]
    wrote, finish = last_results(on, "136")
    assert wrote.startswith("created a.txt")
    assert "no tool 'finish'" in finish


async def test_137_tests_that_the_model_changed_do_not_let_it_pass(on: Stage) -> None:
    run_id = await begun(on, "137", {**PASSING, "value.txt": "5\n"}, acceptance=[{"kind": "tests"}])
    run = await on.ended(run_id)
    assert run.error is not None
    assert (run.status, run.error.error_code) == ("FAILED", "VERIFICATION_FAILED")
    judged = of_kind(await on.events(run_id), "verification.completed")
    assert all("tests/check.txt" in json.dumps(verdict["checks"]) for verdict in judged)


async def test_what_a_rule_closes_is_closed_to_file_tools_and_commands_and_lists(on: Stage) -> None:
    run_id = await begun(on, "closed", {"closed/a": "inside", "open": ""})
    assert (await on.ended(run_id)).status == "COMPLETED"
    read, shell, listed = last_results(on, "closed")
    for refused in (read, shell):
        assert refused.endswith("the policy denies it: it is closed for models")
    assert "open" in listed
    assert "closed/a" not in listed
    headers = {"Authorization": f"Bearer {ACME}"}
    async with httpx.AsyncClient(headers=headers) as http:
        body = {"tool": "run_command", "arguments": {"command": "cat closed/a"}}
        explained = (await http.post(f"{on.perdure.url}/api/policy/explain", json=body)).json()
        health = (await http.get(f"{on.perdure.url}/api/health")).json()
    assert (explained["effect"], explained["rules"][0]["place"]) == ("deny", "rules[1]")
    assert health["policy_in_force"]["differing"] == []


async def test_a_tenant_that_may_only_read_changes_nothing_whatever_its_model_tries(on: Stage) -> None:
    root = on.workspace("guest/reader", {"a.txt": "as it was", "run_tests.sh": "touch ran\n"})
    async with PerdureClient(on.perdure.url, token=GUEST) as client:
        guest = on._replace(client=client)
        run_id = await guest.submit("[reader] Go.", workspace="reader")
        run = await guest.ended(run_id)
        events = await guest.events(run_id)
        children = [one for one in (await client.runs()).runs if one.run_id != run_id]
    assert (run.status, run.answer) == ("COMPLETED", "I only read.")
    results = {str(result["call_id"]): result for result in of_kind(events, "tool.completed")}
    assert [results[f"call_1_{index}"]["ok"] for index in range(6)] == [False] * 5 + [True]
    assert all("the policy is read-only" in str(results[f"call_1_{index}"]["output"]) for index in range(5))
    assert results["call_1_5"]["output"] == "I could not."
    assert "as it was" in str(results["call_2_0"]["output"])
    assert [child.status for child in children] == ["COMPLETED"]
    assert {path.name: path.read_text() for path in root.iterdir()} == {
        "a.txt": "as it was",
        "run_tests.sh": "touch ran\n",
    }


async def test_no_planted_secret_is_in_log_events_journal_blobs_prompts_or_the_logs_of_processes(
    on: Stage,
) -> None:
    run_id = await begun(on, "secrets", SECRET_FILES, acceptance=[{"kind": "tests"}])
    run = await on.ended(run_id)
    events = await on.events(run_id)
    results = [str(result["output"]) for result in of_kind(events, "tool.completed")]
    assert len(results) == 11
    told = "\n".join(results)
    assert told.count("[redacted]") > 20
    assert "OPENAI_API_KEY=[redacted]" in told
    assert "DB=postgres://me:[redacted]@db/x" in told
    assert "REDACTED_TEXT" in told
    assert "3 of 4" in told
    # The evidence of the verifier, which a failed run carries.
    assert run.verification is not None
    assert "3 of 4" in json.dumps(run.verification)
    whole = json.dumps([event.model_dump() for event in events]) + run.model_dump_json()
    found = [(secret, "events") for secret in PLANTED if secret in whole]
    found += [(secret, "prompt") for secret in PLANTED for body in on.model.bodies if secret in body.decode()]
    found += [
        (secret, str(path))
        for path in kept(on.data)
        for secret in PLANTED
        if secret.encode() in path.read_bytes()
    ]
    assert found == []
    searched = {path.parts[-3] for path in kept(on.data) if b"3 of 4" in path.read_bytes()}
    assert searched >= {"perdure-log-0", "KV_perdure-journal", "OBJ_perdure-blobs"}
    # Bytes in the workspace stay what they are.
    root = on.workspace("acme/secrets")
    assert {name: (root / name).read_text() for name in SECRET_FILES} == SECRET_FILES


def kept(data: Path) -> Iterator[Path]:
    """All files that the services and the server keep (streams, buckets, indexes, logs), but for the workspaces and their
    snapshots, which hold what the user put there."""
    for path in (*data.rglob("*"), data.parent / "perdure.log"):
        parts = path.relative_to(data.parent).parts
        if (
            path.is_file()
            and "workspaces" not in parts
            and not any(part.endswith("-workspaces") for part in parts)
        ):
            yield path
