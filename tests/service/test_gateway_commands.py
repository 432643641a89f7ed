"""Commands over HTTP: exactly once, refused with the state and what to do, and never after the end."""

from __future__ import annotations

import asyncio

import httpx

from libs.bus.ports import Bus
from libs.contracts import events as e
from tests.service.gateway_served import DEADLINE_S, Owner, created

NOBODY = "run_0_00000000000000000000000000"


async def types(client: httpx.AsyncClient, run_id: str) -> list[str]:
    page = (await client.get(f"/api/runs/{run_id}/events")).json()
    return [event["type"] for event in page["events"]]


async def test_a_pending_run_starts_once(client: httpx.AsyncClient) -> None:
    run_id = await created(client)
    started = await client.post(f"/api/runs/{run_id}/start")
    assert (started.status_code, started.json()) == (202, {"run_id": run_id, "status": "QUEUED"})
    again = await client.post(f"/api/runs/{run_id}/start")
    assert (again.status_code, again.json()["error_code"]) == (409, "INVALID_STATE")
    assert "QUEUED" in again.json()["message"]


async def test_of_twenty_starts_at_once_one_counts(client: httpx.AsyncClient) -> None:
    run_id = await created(client)
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*(client.post(f"/api/runs/{run_id}/start") for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 19
    assert await types(client, run_id) == ["run.created", "run.start_requested"]


async def test_a_run_that_nobody_owns_is_cancelled_at_once_and_again(client: httpx.AsyncClient) -> None:
    run_id = await created(client, auto_start=True)
    for _ in range(2):
        response = await client.post(f"/api/runs/{run_id}/cancel")
        assert (response.status_code, response.json()["status"]) == (202, "CANCELLED")
    assert (await types(client, run_id))[-2:] == ["run.cancel_requested", "run.cancelled"]
    assert len(await types(client, run_id)) == 4


async def test_the_owner_of_a_running_run_is_asked_to_end_it(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    for _ in range(2):
        response = await client.post(f"/api/runs/{owner.run_id}/cancel")
        assert (response.status_code, response.json()["status"]) == (202, "RUNNING")
    assert (await types(client, owner.run_id)).count("run.cancel_requested") == 1
    shown = (await client.get(f"/api/runs/{owner.run_id}")).json()
    assert (shown["activity"], shown["lease"]) == ("is being cancelled", {"owner": "executor-1", "epoch": 1})


async def test_a_finished_run_cannot_be_cancelled(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.complete()
    response = await client.post(f"/api/runs/{owner.run_id}/cancel")
    assert (response.status_code, response.json()["error_code"]) == (409, "INVALID_STATE")
    assert "COMPLETED" in response.json()["message"]


async def test_exactly_one_of_concurrent_replies_wins(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.ask()
    shown = (await client.get(f"/api/runs/{owner.run_id}")).json()
    assert (shown["status"], shown["pending_question"]["question"]) == ("WAITING_FOR_INPUT", "Which one?")
    assert shown["lease"]["owner"] is None
    replies = [
        client.post(f"/api/runs/{owner.run_id}/reply", json={"answer": f"answer {n}"}) for n in range(20)
    ]
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*replies)
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 19
    winner = next(n for n, answer in enumerate(answers) if answer.status_code == 202)
    asked = (await client.get(f"/api/runs/{owner.run_id}/questions")).json()["questions"]
    assert [(one["question_id"], one["answer"]) for one in asked] == [("q1", f"answer {winner}")]
    assert (await types(client, owner.run_id)).count("input.received") == 1


async def test_a_client_s_own_retry_of_a_reply_gets_the_first_answer_again(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.ask()
    path, mine = f"/api/runs/{owner.run_id}/reply", {"Idempotency-Key": "mine"}
    first = await client.post(path, json={"answer": "a"}, headers=mine)
    await owner.refresh()
    await owner.claim()
    again = await client.post(path, json={"answer": "a"}, headers=mine)
    assert (first.status_code, again.status_code, first.text) == (202, 202, again.text)
    for headers, body, code in (
        (mine, {"answer": "b"}, "IDEMPOTENCY_CONFLICT"),
        ({"Idempotency-Key": "other"}, {"answer": "a"}, "INVALID_STATE"),
        ({}, {"answer": "a"}, "INVALID_STATE"),
    ):
        refused = await client.post(path, json=body, headers=headers)
        assert (refused.status_code, refused.json()["error_code"]) == (409, code)
    assert (await types(client, owner.run_id)).count("input.received") == 1


async def test_a_reply_names_the_pending_question_or_none(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    path = f"/api/runs/{owner.run_id}/reply"
    assert (await client.post(path, json={"answer": "a"})).status_code == 409
    await owner.ask("q7")
    wrong = await client.post(path, json={"answer": "a", "question_id": "q6"})
    assert (wrong.status_code, "q7" in wrong.json()["message"]) == (409, True)
    assert (await client.post(path, json={"answer": "", "question_id": "q7"})).status_code == 202


async def test_an_approval_is_not_answered_by_a_reply(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.write(
        e.RunReleased(reason="suspended", waiting_for="input"),
        e.InputRequested(
            question_id="q1",
            kind="approval",
            question="?",
            call_id="c",
            tool="run_command",
            approval_hash="h",
        ),
    )
    response = await client.post(f"/api/runs/{owner.run_id}/reply", json={"answer": "yes"})
    assert (response.status_code, "approve" in response.json()["message"]) == (409, True)


async def test_a_message_steers_a_live_run_once_for_each_key(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    path = f"/api/runs/{owner.run_id}/message"
    for _ in range(2):
        response = await client.post(path, json={"text": "Left."}, headers={"Idempotency-Key": "k"})
        assert response.status_code == 202
    assert (await types(client, owner.run_id)).count("message.received") == 1
    await owner.refresh()
    await owner.complete()
    assert (await client.post(path, json={"text": "Right."})).status_code == 409


async def test_messages_that_nobody_reads_are_bounded(client: httpx.AsyncClient, bus: Bus) -> None:
    run_id = await created(client)
    path = f"/api/runs/{run_id}/message"
    for _ in range(2):
        assert (await client.post(path, json={"text": "x" * 90_000})).status_code == 202
    refused = await client.post(path, json={"text": "x" * 90_000})
    assert (refused.status_code, refused.json()["error_code"]) == (409, "INVALID_STATE")
    assert "2 messages" in refused.json()["message"]
    assert (await client.post(path, json={"text": "short"})).status_code == 202
    # Once they are read there is room again.
    owner = await Owner.of(bus, run_id)
    await owner.turn(1)
    assert (await client.post(path, json={"text": "x" * 90_000})).status_code == 202


async def test_a_run_that_stands_still_is_not_sent_twice(client: httpx.AsyncClient) -> None:
    run_id = await created(client)
    for path in (f"/api/runs/{run_id}", f"/api/runs/{run_id}/events/1"):
        tag = (await client.get(path)).headers["ETag"]
        again = await client.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    tag = (await client.get(f"/api/runs/{run_id}")).headers["ETag"]
    assert (await client.post(f"/api/runs/{run_id}/start")).status_code == 202
    moved = await client.get(f"/api/runs/{run_id}", headers={"If-None-Match": tag})
    assert (moved.status_code, moved.json()["status"]) == (200, "QUEUED")


async def test_an_unknown_run_is_not_found(client: httpx.AsyncClient) -> None:
    bodies = {"reply": {"answer": "a"}, "message": {"text": "t"}}
    for run_id in (NOBODY, "run_7_00000000000000000000000000", "nonsense", "task_0_x", "%00"):
        for command in ("start", "cancel", "reply", "message"):
            response = await client.post(f"/api/runs/{run_id}/{command}", json=bodies.get(command, {}))
            assert (response.status_code, response.json()["error_code"]) == (404, "NOT_FOUND")


async def test_events_are_paged_by_sequence_and_given_whole_one_by_one(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    run_id = await created(client, limits={"max_event_payload_chars": 100})
    owner = await Owner.of(bus, run_id)
    await owner.turn(1, content="é" * 1000)
    for turn in range(2, 6):
        await owner.turn(turn)
    last = owner.folded.state.sequence
    seen: list[int] = []
    after = 0
    while True:
        query = {"after_sequence": after, "limit": 4}
        page = (await client.get(f"/api/runs/{run_id}/events", params=query)).json()
        if not page["events"]:
            break
        seen += [event["sequence"] for event in page["events"]]
        after = page["next_after_sequence"]
    assert seen == list(range(1, last + 1))
    clipped = (
        await client.get(f"/api/runs/{run_id}/events", params={"after_sequence": 4, "limit": 1})
    ).json()
    (event,) = clipped["events"]
    assert (event["type"], event["payload"]["content"]) == ("model.completed", "é" * 100)
    assert event["payload"]["truncated_fields"] == ["content"]
    whole = (await client.get(f"/api/runs/{run_id}/events/5")).json()
    assert whole["payload"]["content"] == "é" * 1000
    for bad in (last + 1, 0, "x", "-1"):
        assert (await client.get(f"/api/runs/{run_id}/events/{bad}")).status_code == 404
    for bad in (last + 1, "x", "-1", "1e3", "9" * 30):
        response = await client.get(f"/api/runs/{run_id}/events?after_sequence={bad}")
        assert (response.status_code, response.json()["error_code"]) == (400, "INVALID_CURSOR")
