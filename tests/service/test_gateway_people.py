"""What people decide, over HTTP: approvals bound to one call, reconciliation, pausing; each exactly once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from deploy.dev.nats_server import NatsServer
from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.checks import Verdict
from libs.contracts.tools import Semantics
from tests.fakes.bus import bus_settings
from tests.service.gateway_served import DEADLINE_S, Owner, created, gateway, http_client, registered

# Right-to-left override, zero-width space, a tab, a no-break space: each shows as something else, or as nothing.
SLY = "rm -rf /srv/\u202ekcab\u200b\tx\u00a0y"
HASH = "4" * 64


async def types(client: httpx.AsyncClient, run_id: str) -> list[str]:
    page = (await client.get(f"/api/runs/{run_id}/events?limit=1000")).json()
    return [event["type"] for event in page["events"]]


async def asking(client: httpx.AsyncClient, bus: Bus, call_id: str = "call_1_0") -> Owner:
    """A run that waits for the approval of a call."""
    owner = await Owner.of(bus, await created(client))
    await owner.write(
        e.RunReleased(reason="suspended", waiting_for="input"),
        e.InputRequested(
            question_id=f"approval_{call_id}",
            kind="approval",
            question="May run_command be called with these arguments?",
            call_id=call_id,
            options=["approve", "reject"],
            tool="run_command",
            arguments={"command": SLY},
            approval_hash=HASH,
        ),
    )
    return owner


async def unsure(client: httpx.AsyncClient, bus: Bus) -> Owner:
    """A run of which nobody knows whether its call took effect."""
    owner = await Owner.of(bus, await created(client))
    call = "call_1_0"
    await owner.write(
        e.ToolRequested(
            call_id=call,
            name="run_command",
            arguments={"command": SLY},
            semantics=Semantics.NON_IDEMPOTENT,
            idempotency_key="k",
        )
    )
    seen = "2026-11-29T12:00:00.000Z"
    await owner.write(
        e.ToolUncertain(call_id=call, attempt=1, reason="the host died", host="h", boot="b", last_seen=seen),
        e.RunReleased(reason="suspended", waiting_for="reconciliation"),
        e.ReconciliationRequired(
            call_id=call,
            name="run_command",
            arguments={"command": SLY},
            attempt=1,
            host="h",
            boot="b",
            last_seen=seen,
        ),
    )
    return owner


async def test_an_approval_is_shown_exactly_and_its_answer_carries_the_same_hash(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await asking(client, bus)
    path = f"/api/runs/{owner.run_id}"
    shown = (await client.get(path)).json()
    (question,) = (await client.get(f"{path}/questions")).json()["questions"]
    assert shown["pending_question"] == question
    assert shown["activity"] == "waits for a person to approve run_command"
    assert (question["kind"], question["tool"], question["approval_hash"]) == (
        "approval",
        "run_command",
        HASH,
    )
    assert question["arguments"] == {"command": SLY}
    assert question["arguments_shown"] == ('{"command": "rm -rf /srv/\\u202ekcab\\u200b\\tx\\u00a0y"}')
    assert json.loads(question["arguments_shown"]) == question["arguments"]
    response = await client.post(f"{path}/approve", json={"call_id": "call_1_0", "decision": "approve"})
    assert (response.status_code, response.json()) == (202, {"run_id": owner.run_id, "status": "QUEUED"})
    event = (await client.get(f"{path}/events/{shown['last_sequence'] + 1}")).json()
    assert event["type"] == "input.received"
    assert event["payload"]["kind"] == "approval"
    assert (event["payload"]["decision"], event["payload"]["approval_hash"]) == ("approve", HASH)
    (question,) = (await client.get(f"{path}/questions")).json()["questions"]
    assert (question["decision"], question["answered_by"]) == ("approve", "local")


async def test_a_rejection_carries_its_reason(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await asking(client, bus)
    body = {"call_id": "call_1_0", "decision": "reject", "reason": "Not on this machine."}
    assert (await client.post(f"/api/runs/{owner.run_id}/approve", json=body)).status_code == 202
    (question,) = (await client.get(f"/api/runs/{owner.run_id}/questions")).json()["questions"]
    assert (question["decision"], question["answer"]) == ("reject", "Not on this machine.")


async def test_an_approval_that_nobody_asked_for_is_refused(client: httpx.AsyncClient, bus: Bus) -> None:
    yes = {"call_id": "call_1_0", "decision": "approve"}
    owner = await Owner.of(bus, await created(client))
    path = f"/api/runs/{owner.run_id}/approve"
    assert (await client.post(path, json=yes)).json()["error_code"] == "INVALID_STATE"
    await owner.ask()
    wrong_kind = await client.post(path, json=yes)
    assert (wrong_kind.status_code, "reply" in wrong_kind.json()["message"]) == (409, True)
    asked = await asking(client, bus, "call_2_0")
    path = f"/api/runs/{asked.run_id}/approve"
    wrong_call = await client.post(path, json=yes)
    assert (wrong_call.status_code, "call_2_0" in wrong_call.json()["message"]) == (409, True)
    for bad in (
        {"call_id": "call_2_0"},
        {"call_id": "call_2_0", "decision": "maybe"},
        {"call_id": "", "decision": "approve"},
        {"call_id": "call_2_0", "decision": "approve", "force": True},
    ):
        response = await client.post(path, json=bad)
        assert (response.status_code, response.json()["error_code"]) == (422, "VALIDATION_ERROR")
    assert "input.received" not in await types(client, asked.run_id)


async def test_of_concurrent_decisions_through_two_gateways_one_wins_and_a_late_one_is_refused(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    settings = bus_settings(nats_node.address, prefix=bus.subjects.prefix)
    async with (
        connect(settings, SystemClock()) as other_bus,
        gateway(bus, tmp_path) as first,
        gateway(other_bus, tmp_path, replica="gateway-2") as second,
        http_client(first) as a,
        http_client(second) as b,
    ):
        owner = await asking(a, bus)
        path = f"/api/runs/{owner.run_id}/approve"
        bodies = [
            {"call_id": "call_1_0", "decision": decision}
            for _ in range(5)
            for decision in ("approve", "reject")
        ]
        posts = [client.post(path, json=body) for body in bodies for client in (a, b)]
        async with asyncio.timeout(DEADLINE_S):
            answers = await asyncio.gather(*posts)
        assert sorted(answer.status_code for answer in answers) == [202] + [409] * 19
        assert (await types(b, owner.run_id)).count("input.received") == 1
        await owner.refresh()
        await owner.claim()
        assert (await a.post(path, json=bodies[0])).status_code == 409


async def test_a_client_s_own_retry_of_a_decision_gets_the_first_answer_again(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    mine = {"Idempotency-Key": "mine"}
    asked, open_call = await asking(client, bus), await unsure(client, bus)
    for run_id, command, body, other in (
        (asked.run_id, "approve", {"decision": "approve"}, {"decision": "reject"}),
        (open_call.run_id, "reconcile", {"decision": "retry"}, {"decision": "fail"}),
    ):
        path, call = f"/api/runs/{run_id}/{command}", {"call_id": "call_1_0"}
        first = await client.post(path, json=call | body, headers=mine)
        again = await client.post(path, json=call | body, headers=mine)
        assert (first.status_code, again.status_code, first.text) == (202, 202, again.text)
        refused = await client.post(path, json=call | other, headers=mine)
        assert (refused.status_code, refused.json()["error_code"]) == (409, "IDEMPOTENCY_CONFLICT")
        late = await client.post(path, json=call | body)
        assert (late.status_code, late.json()["error_code"]) == (409, "INVALID_STATE")


async def test_what_nobody_knows_is_shown_whole_and_resolved_once(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await unsure(client, bus)
    path = f"/api/runs/{owner.run_id}"
    shown = (await client.get(path)).json()
    assert shown["status"] == "RECONCILIATION_REQUIRED"
    assert shown["pending_reconciliation"] == {
        "call_id": "call_1_0",
        "name": "run_command",
        "arguments": {"command": SLY},
        "arguments_shown": '{"command": "rm -rf /srv/\\u202ekcab\\u200b\\tx\\u00a0y"}',
        "attempt": 1,
        "host": "h",
        "boot": "b",
        "last_seen": "2026-11-29T12:00:00.000Z",
        "sequence": shown["last_sequence"],
    }
    for observation in (None, "", " \n"):
        body = {"call_id": "call_1_0", "decision": "accept", "observation": observation}
        response = await client.post(f"{path}/reconcile", json=body)
        assert (response.status_code, response.json()["details"][0]["field"]) == (422, "observation")
    wrong = await client.post(f"{path}/reconcile", json={"call_id": "call_9_0", "decision": "retry"})
    assert (wrong.status_code, wrong.json()["error_code"]) == (409, "INVALID_STATE")
    body = {"call_id": "call_1_0", "decision": "accept", "observation": "It is gone."}
    posts = [client.post(f"{path}/reconcile", json=body) for _ in range(10)]
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*posts)
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 9
    shown = (await client.get(path)).json()
    assert (shown["status"], shown["pending_reconciliation"]) == ("QUEUED", None)
    assert (await types(client, owner.run_id)).count("reconciliation.resolved") == 1


async def test_a_run_with_nothing_to_reconcile_refuses_it(client: httpx.AsyncClient, bus: Bus) -> None:
    retry = {"call_id": "call_1_0", "decision": "retry"}
    owner = await unsure(client, bus)
    assert (await client.post(f"/api/runs/{owner.run_id}/cancel")).status_code == 202
    for run_id in (owner.run_id, await created(client)):
        response = await client.post(f"/api/runs/{run_id}/reconcile", json=retry)
        assert (response.status_code, response.json()["error_code"]) == (409, "INVALID_STATE")
    assert (await client.get(f"/api/runs/{owner.run_id}")).json()["pending_reconciliation"] is None


async def test_a_queued_run_pauses_at_once_and_resumes(client: httpx.AsyncClient) -> None:
    run_id = await created(client)
    path = f"/api/runs/{run_id}"
    assert (await client.post(f"{path}/pause")).status_code == 409
    assert (await client.post(f"{path}/resume")).status_code == 409
    await client.post(f"{path}/start")
    for _ in range(2):
        paused = await client.post(f"{path}/pause")
        assert (paused.status_code, paused.json()["status"]) == (202, "PAUSED")
    assert (await types(client, run_id)).count("run.pause_requested") == 1
    listed = (await client.get("/api/runs?status=PAUSED")).json()["runs"]
    assert [run["run_id"] for run in listed] == [run_id]
    resumed = await client.post(f"{path}/resume")
    assert (resumed.status_code, resumed.json()["status"]) == (202, "QUEUED")
    again = await client.post(f"{path}/resume")
    assert (again.status_code, again.json()["error_code"]) == (409, "INVALID_STATE")


async def test_the_owner_of_a_run_is_asked_to_pause_and_the_wish_can_be_taken_back(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await Owner.of(bus, await created(client))
    path = f"/api/runs/{owner.run_id}"
    for _ in range(2):
        paused = await client.post(f"{path}/pause")
        assert (paused.status_code, paused.json()["status"]) == (202, "RUNNING")
    assert (await types(client, owner.run_id)).count("run.pause_requested") == 1
    assert (await client.get(path)).json()["activity"] == "is being paused"
    assert (await client.post(f"{path}/resume")).json()["status"] == "RUNNING"
    assert (await client.post(f"{path}/resume")).status_code == 409
    await owner.refresh()
    await owner.complete()
    for command in ("pause", "resume"):
        response = await client.post(f"{path}/{command}")
        assert (response.status_code, response.json()["error_code"]) == (409, "INVALID_STATE")


async def test_a_waiting_run_that_was_told_to_pause_can_be_told_not_to(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await asking(client, bus)
    path = f"/api/runs/{owner.run_id}"
    assert (await client.post(f"{path}/pause")).json()["status"] == "WAITING_FOR_INPUT"
    assert (await client.post(f"{path}/resume")).status_code == 202
    assert (await client.post(f"{path}/resume")).status_code == 409
    yes = {"call_id": "call_1_0", "decision": "approve"}
    assert (await client.post(f"{path}/approve", json=yes)).status_code == 202


async def test_commands_on_unknown_runs_are_not_found(client: httpx.AsyncClient) -> None:
    bodies: dict[str, dict[str, str]] = {
        "approve": {"call_id": "c", "decision": "approve"},
        "reconcile": {"call_id": "c", "decision": "fail"},
        "pause": {},
        "resume": {},
    }
    for command, body in bodies.items():
        response = await client.post(f"/api/runs/run_0_00000000000000000000000000/{command}", json=body)
        assert (response.status_code, response.json()["error_code"]) == (404, "NOT_FOUND")
    for command in ("pause", "resume"):
        run_id = await created(client)
        response = await client.post(f"/api/runs/{run_id}/{command}", json={"force": True})
        assert response.status_code == 422


async def test_a_run_that_is_being_verified_is_listed_as_such(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    async with registered(bus, "executor", "executor-1"):
        await owner.write(e.VerificationRequested(round=1, checks=[], idempotency_key="k"))
        await listed(client, "VERIFYING", owner.run_id)
        await owner.write(e.VerificationCompleted(round=1, status=Verdict.FAILED, checks=[]))
        await listed(client, "RUNNING", owner.run_id)


async def listed(client: httpx.AsyncClient, status: str, run_id: str) -> None:
    """Until the list says so: it follows what others append."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            page = (await client.get(f"/api/runs?status={status}")).json()
            if [run["run_id"] for run in page["runs"]] == [run_id]:
                return
            await asyncio.sleep(0.02)
