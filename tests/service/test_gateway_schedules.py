"""Schedules over HTTP: made once for each key, refused by field, shown, changed, fired by hand, deleted."""

from __future__ import annotations

import httpx

from libs.bus.ports import Bus
from libs.bus.runs import schedules_of
from libs.chassis.clock import SystemClock
from libs.contracts.schedule_events import ScheduleFired, ScheduleSkipped
from tests.service.gateway_served import registered

SOON = "2126-01-01T00:00:00.000Z"

REFUSED: list[tuple[dict[str, object], str]] = [
    ({"surprise": 1}, "surprise"),
    ({"cron": "60 * * * *"}, "cron"),
    ({"cron": "0 0 30 2 *"}, "cron"),
    ({"timezone": "Mars/Olympus"}, "IANA"),
    ({"overlap": "sometimes"}, "overlap"),
    ({"task": {"goal": " "}}, "task.goal"),
    ({"task": {"goal": "x", "surprise": 1}}, "task.surprise"),
    ({"task": {"goal": "x", "limits": {"max_iterations": 100_000}}}, "above the deployment's"),
    ({"name": ""}, "name"),
]


def body(**more: object) -> dict[str, object]:
    return {"name": "nightly", "cron": "30 2 * * *", "task": {"goal": "Tidy up."}, **more}


async def made(client: httpx.AsyncClient, **more: object) -> str:
    response = await client.post("/api/schedules", json=body(**more))
    assert response.status_code == 201, response.text
    return str(response.json()["schedule_id"])


async def test_a_schedule_is_made_once_for_each_key(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "one"}
    first = await client.post("/api/schedules", json=body(), headers=key)
    again = await client.post("/api/schedules", json=body(overlap="skip"), headers=key)
    other = await client.post("/api/schedules", json=body(name="another"), headers=key)
    assert [first.status_code, again.status_code, other.status_code] == [201, 200, 409]
    assert first.json() == again.json()
    schedule_id = first.json()["schedule_id"]
    assert first.headers["Location"] == f"/api/schedules/{schedule_id}"
    assert (await client.delete(f"/api/schedules/{schedule_id}")).status_code == 204
    gone = await client.post("/api/schedules", json=body(), headers=key)
    assert (gone.status_code, gone.json()["error_code"]) == (410, "RUN_DELETED")


async def test_what_cannot_be_meant_is_refused_by_name(client: httpx.AsyncClient) -> None:
    for fields, named in REFUSED:
        answer = await client.post("/api/schedules", json=body(**fields))
        assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR"), fields
        assert named in answer.text


async def test_a_schedule_is_shown_with_its_task_and_listed_newest_first(client: httpx.AsyncClient) -> None:
    ids = [await made(client, name=name, timezone="Europe/Berlin") for name in ("a", "b", "c")]
    shown = (await client.get(f"/api/schedules/{ids[0]}")).json()
    assert shown["task"] == {"goal": "Tidy up."}
    assert (shown["status"], shown["enabled"], shown["fires"], shown["last_fire"]) == (
        "ACTIVE",
        True,
        0,
        None,
    )
    assert shown["next_fire_at"][14:19] == "30:00"
    page = (await client.get("/api/schedules", params={"limit": 2})).json()
    rest = (await client.get("/api/schedules", params={"cursor": page["next_cursor"]})).json()
    listed = [*page["schedules"], *rest["schedules"]]
    assert [schedule["name"] for schedule in listed] == ["c", "b", "a"]
    assert all(listed[-1][name] == shown[name] for name in listed[-1])


async def test_what_is_named_is_changed_and_the_rest_stays(client: httpx.AsyncClient) -> None:
    schedule_id = await made(client)
    path = f"/api/schedules/{schedule_id}"
    before = (await client.get(path)).json()
    renamed = (await client.patch(path, json={"name": "other", "task": {"goal": "More."}})).json()
    assert (renamed["name"], renamed["cron"], renamed["task"]) == ("other", "30 2 * * *", {"goal": "More."})
    assert renamed["next_fire_at"] == before["next_fire_at"]
    paused = (await client.patch(path, json={"enabled": False})).json()
    assert (paused["status"], paused["next_fire_at"]) == ("PAUSED", None)
    listed = (await client.get("/api/schedules", params={"status": "PAUSED"})).json()["schedules"]
    assert [(known["name"], known["enabled"]) for known in listed] == [("other", False)]
    moved = (await client.patch(path, json={"enabled": True, "cron": "15 2 * * *"})).json()
    assert moved["next_fire_at"][14:19] == "15:00"
    same = (await client.patch(path, json={"cron": "15 2 * * *"})).json()
    assert same["last_sequence"] == moved["last_sequence"]
    assert (await client.patch(path, json={"cron": "x"})).status_code == 422
    assert (await client.patch(path, json={"id": "x"})).status_code == 422


async def test_what_the_scheduler_decided_is_shown(client: httpx.AsyncClient, bus: Bus) -> None:
    schedule_id = await made(client)
    schedules = schedules_of(bus, SystemClock())
    folded = await schedules.load("local", schedule_id)
    folded = await schedules.commit(
        folded, [ScheduleFired(due_at=SOON, run_id="run_1", missed=3, next_at=SOON)]
    )
    await schedules.commit(folded, [ScheduleSkipped(due_at=SOON, reason="r", next_at=SOON)])
    shown = (await client.get(f"/api/schedules/{schedule_id}")).json()
    assert shown["last_fire"]["run_id"] == "run_1"
    await made(client, name="newer")
    listed = (await client.get("/api/schedules")).json()["schedules"][1]
    counts = {"fires": 1, "missed": 3, "skipped": 1, "last_run_id": "run_1", "next_fire_at": SOON}
    assert all(listed[name] == shown[name] == value for name, value in counts.items())


async def test_a_fire_by_hand_has_one_run_for_each_key(client: httpx.AsyncClient, bus: Bus) -> None:
    schedule_id = await made(client, enabled=False, task={"goal": "Tidy up.", "priority": "high"})
    path = f"/api/schedules/{schedule_id}/fire"
    async with registered(bus, "executor", "executor-1"):
        refused = await client.post(path)
        assert (refused.status_code, refused.json()["error_code"]) == (503, "CONFIGURATION_ERROR")
    async with registered(bus, "executor", "executor-2", model=True):
        key = {"Idempotency-Key": "now"}
        answers = [await client.post(path, headers=headers) for headers in (key, key, {})]
    assert [answer.status_code for answer in answers] == [202] * 3
    first, again, other = [answer.json()["run_id"] for answer in answers]
    assert first == again != other
    run = (await client.get(f"/api/runs/{first}")).json()
    assert (run["goal"], run["status"]) == ("Tidy up.", "QUEUED")
    assert (await client.get(f"/api/schedules/{schedule_id}")).json()["status"] == "HOLDING"


async def test_what_is_not_there_is_not_found(client: httpx.AsyncClient) -> None:
    schedule_id = await made(client)
    path = f"/api/schedules/{schedule_id}"
    assert (await client.delete(path)).status_code == 204
    assert (await client.get("/api/schedules")).json()["schedules"] == []
    for unknown in (path, "/api/schedules/schedule_0_" + "0" * 26, "/api/schedules/run_0_" + "0" * 26):
        for method, url in (
            *(("GET", unknown), ("PATCH", unknown), ("DELETE", unknown)),
            ("POST", f"{unknown}/fire"),
        ):
            answer = await client.request(method, url, json={} if method == "PATCH" else None)
            assert (answer.status_code, answer.json()["error_code"]) == (404, "NOT_FOUND"), (method, url)
