"""Projects over HTTP: made once for each key, refused by field, shown as their logs tell them, told what to do."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from libs.bus.ports import Bus
from libs.bus.runs import projects_of
from libs.chassis.clock import SystemClock
from libs.contracts import project_events as p
from tests.fakes.waiting import eventually
from tests.service.gateway_served import frames, gateway, http_client, registered, sequences

CHECK = {"kind": "command", "argv": ["true"]}


def feature(identifier: str, **more: object) -> dict[str, object]:
    return {"id": identifier, "title": f"do {identifier}", "acceptance": [CHECK], **more}


def body(**more: object) -> dict[str, object]:
    return {"name": "shop", "brief": "A small shop.", "features": [feature("a"), feature("b")], **more}


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"surprise": 1}, "surprise"),
    ({"features": [feature("a"), feature("a")]}, "listed twice"),
    ({"features": [feature("a", depends_on=["z"])]}, "not in the list"),
    ({"features": [feature("a", depends_on=["b"]), feature("b", depends_on=["a"])]}, "in a circle"),
    ({"features": [{**feature("a"), "acceptance": []}]}, "acceptance"),
    ({"features": [feature("../a")]}, "features.0.id"),
    ({"brief": " "}, "brief"),
    ({"concurrency": 17}, "concurrency"),
    ({"workspace": {"git_url": "ext::sh -c id"}}, "https://"),
    ({"workspace": {"git_url": "https://me:secret@host/shop.git"}}, "no user or password"),
    ({"workspace": {"seed_dir": "relative"}}, "absolute"),
    ({"max_attempts_per_feature": 0}, "max_attempts_per_feature"),
    ({"limits": {"session": {"max_iterations": 100_000}}}, "above the deployment's"),
    ({"hooks": {"before_run": []}}, "hooks.before_run"),
]


@pytest.fixture
async def executor(bus: Bus):
    """Somebody with a model: without one no project begins."""
    async with registered(bus, "executor", "executor-1", model=True) as liveness:
        yield liveness


async def made(client: httpx.AsyncClient, **more: object) -> str:
    response = await client.post("/api/projects", json=body(**more))
    assert response.status_code == 201, response.text
    return str(response.json()["project_id"])


@pytest.mark.usefixtures("executor")
async def test_a_project_is_made_once_for_each_key(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "one"}
    first = await client.post("/api/projects", json=body(), headers=key)
    again = await client.post("/api/projects", json=body(), headers=key)
    other = await client.post("/api/projects", json=body(name="another"), headers=key)
    assert [first.status_code, again.status_code, other.status_code] == [201, 200, 409]
    assert first.json() == again.json()
    assert first.json()["phase"] == "initialize"
    assert other.json()["error_code"] == "IDEMPOTENCY_CONFLICT"


async def test_without_a_model_nothing_is_made(client: httpx.AsyncClient, bus: Bus) -> None:
    async with registered(bus, "executor", "executor-1"):
        answer = await client.post("/api/projects", json=body())
    assert (answer.status_code, answer.json()["error_code"]) == (503, "CONFIGURATION_ERROR")
    assert (await client.get("/api/projects")).json() == {"projects": [], "next_cursor": None}


@pytest.mark.usefixtures("executor")
@pytest.mark.parametrize("fields, named", REFUSED)
async def test_what_cannot_be_meant_is_refused_by_name(
    client: httpx.AsyncClient, fields: dict[str, object], named: str
) -> None:
    answer = await client.post("/api/projects", json=body(**fields))
    assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")
    assert named in answer.text


async def test_a_folder_of_the_machine_is_for_a_trusted_user_only(bus: Bus, tmp_path: Path) -> None:
    keys = {"RUNTIME_API_KEYS_JSON": '{"acme": "a-secret-of-acme-0123456789"}'}
    async with (
        registered(bus, "executor", "executor-1", model=True),
        gateway(bus, tmp_path, environment=keys) as served,
        http_client(served) as client,
    ):
        client.headers["Authorization"] = "Bearer a-secret-of-acme-0123456789"
        refused = await client.post("/api/projects", json=body(workspace={"seed_dir": "/etc"}))
        assert refused.status_code == 422
        assert "workspace.seed_dir" in refused.text
        mine = await made(client)
        client.headers["Authorization"] = "Bearer nobody"
        assert (await client.get(f"/api/projects/{mine}")).status_code == 401


@pytest.mark.usefixtures("executor")
async def test_a_card_tells_all_that_the_log_holds(client: httpx.AsyncClient, bus: Bus) -> None:
    project_id = await made(client)
    projects = projects_of(bus, SystemClock())
    folded = await projects.load("local", project_id)
    listed = p.FeatureListSet(features=[*folded.state.spec.features])
    folded = await projects.commit(folded, [listed])
    card = (await client.get(f"/api/projects/{project_id}")).json()
    assert set(card) >= {
        *("phase", "status", "active", "features", "attempt", "last_error", "next_retry", "retries"),
        *("usage", "pace", "handoff", "workspace_commit", "blocked", "sessions"),
    }
    assert card["features"]["pending"] == card["features_total"] == 2
    features = (await client.get(f"/api/projects/{project_id}/features")).json()["features"]
    assert [(known["id"], known["status"], known["verified"]) for known in features] == [
        ("a", "pending", False),
        ("b", "pending", False),
    ]
    progress = await client.get(f"/api/projects/{project_id}/progress.md")
    assert progress.headers["content-type"].startswith("text/markdown")
    assert "- [ ] a: do a" in progress.text

    async def look() -> dict[str, object]:
        return (await client.get("/api/projects")).json()["projects"][0]

    row = await eventually(look, "the row", fits=lambda row: row["features_total"] == 2)
    assert (row["project_id"], row["status"], row["committed"]) == (project_id, "ACTIVE", 0)


@pytest.mark.usefixtures("executor")
async def test_commands_are_carried_out_once_and_refused_by_state(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    project_id = await made(client)
    projects = projects_of(bus, SystemClock())
    folded = await projects.load("local", project_id)
    spec = folded.state.spec.features
    await projects.commit(folded, [p.FeatureListSet(features=spec)])

    async def post(path: str, **json: object) -> tuple[int, str]:
        answer = await client.post(f"/api/projects/{project_id}/{path}", json=json)
        return answer.status_code, str(answer.json().get("status") or answer.json().get("error_code"))

    assert await post("pause") == (202, "PAUSED")
    assert await post("pause") == (202, "PAUSED")
    assert await post("features/a/skip") == (202, "PAUSED")
    assert await post("features/z/skip") == (404, "NOT_FOUND")
    assert await post("resume", limits={"max_sessions": 3}) == (202, "ACTIVE")
    assert await post("resume", limits={"max_sessions": 4}) == (409, "INVALID_STATE")
    assert await post("features/a/retry") == (202, "ACTIVE")
    assert await post("cancel") == (202, "ACTIVE")
    assert await post("cancel") == (202, "ACTIVE")
    assert await post("pause") == (409, "INVALID_STATE")
    state = (await projects.load("local", project_id)).state
    assert (state.limits.max_sessions, state.cancel_requested_by) == (3, "local")


@pytest.mark.usefixtures("executor")
async def test_the_stream_of_a_project_replays_and_ends_with_it(client: httpx.AsyncClient, bus: Bus) -> None:
    project_id = await made(client)
    projects = projects_of(bus, SystemClock())
    folded = await projects.load("local", project_id)
    await projects.commit(folded, [p.ProjectCancelRequested(by="me"), p.ProjectCancelled(by="me")])
    streamed = frames((await client.get(f"/api/projects/{project_id}/stream")).text)
    assert [frame.event for frame in streamed] == [
        "project.created",
        "project.cancel_requested",
        "project.cancelled",
    ]
    assert sequences(streamed) == [1, 2, 3]
    resumed = await client.get(f"/api/projects/{project_id}/stream", headers={"Last-Event-ID": "3"})
    assert resumed.status_code == 204
    beyond = await client.get(f"/api/projects/{project_id}/stream", headers={"Last-Event-ID": "9"})
    assert beyond.status_code == 400
    unknown = project_id[:-1] + ("0" if project_id[-1] != "0" else "1")
    assert (await client.get(f"/api/projects/{unknown}/stream")).status_code == 404
    assert (await client.get(f"/api/runs/{project_id}")).status_code == 404
