"""Issues of a tracker as a source, over HTTP against a stand-in that answers as the tracker's documentation says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.dev.nats_server import NatsServer
from libs.bus.creation import Creation
from libs.bus.ports import Bus, LogKey
from libs.contracts.run import RunStatus
from libs.contracts.tasks import Limits
from services.scheduler.endings import Endings
from services.scheduler.sources.configuration import GitHubSource, parse_sources
from services.scheduler.sources.github import GitHub
from services.scheduler.sources.intake import Intake
from services.scheduler.sources.wish import SourceAway
from tests.fakes.search_servers import served
from tests.fakes.waiting import until
from tests.service.gateway_served import registered
from tests.service.scheduler_peers import CLOCK, Deployment, executor, runs_of, scheduler

TOKEN = "a-token-of-the-tracker"


class Tracker:
    """A repository's issues: filtered, paged and tagged; only with the token."""

    def __init__(self) -> None:
        self.issues: list[dict[str, Any]] = []
        self.asked = 0
        self.unchanged = 0
        self.broken: Response | None = None
        self.app = Starlette(routes=[Route("/repos/acme/shop/issues", self._list)])

    def put(self, number: int, **more: object) -> None:
        issue = {"number": number, "title": f"Issue {number}", "body": "As it says.", "state": "open"}
        url = {
            "html_url": f"https://github.example/acme/shop/issues/{number}",
            "labels": [{"name": "perdure"}],
        }
        self.issues = [one for one in self.issues if one["number"] != number]
        self.issues.insert(0, {**issue, **url, **more})

    async def _list(self, request: Request) -> Response:
        self.asked += 1
        if self.broken is not None:
            return self.broken
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Response(status_code=401)
        query = request.query_params
        found = [
            one
            for one in self.issues
            if one["state"] == query["state"]
            and query["labels"] in [label["name"] for label in one["labels"]]
        ]
        size, page = int(query["per_page"]), int(query["page"])
        body = json.dumps(found[size * (page - 1) : size * page]).encode()
        tag = f'W/"{hashlib.sha256(body).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            self.unchanged += 1
            return Response(status_code=304, headers={"ETag": tag})
        return Response(body, media_type="application/json", headers={"ETag": tag})


class Place:
    """A tracker, the source of it, and an intake that looks when a test wants it to."""

    def __init__(self, deployment: Deployment, tracker: Tracker, source: GitHub, intake: Intake) -> None:
        self.deployment, self.tracker, self.source, self.intake = deployment, tracker, source, intake

    async def look(self) -> None:
        await self.intake.look(self.source)


@pytest.fixture
async def place(nats_node: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Place]:
    token, tracker, deployment = tmp_path / "token", Tracker(), Deployment(nats_node, bus)
    token.write_text(f"{TOKEN}\n")
    async with served(tracker.app) as url, registered(bus, "scheduler", "scheduler-1") as liveness:
        spec = {"kind": "github", "repository": "acme/shop", "token_file": str(token), "url": url}
        known = parse_sources(json.dumps({"issues": {**spec, "workspace": "shop"}}))["issues"]
        assert isinstance(known, GitHubSource)
        source = GitHub("issues", known)
        runs = runs_of(bus)
        creation = Creation(runs, CLOCK, shards=1, limits=Limits())
        endings = Endings(runs, liveness)
        yield Place(deployment, tracker, source, Intake([source], runs, bus.log, creation, endings, CLOCK))


async def test_a_labelled_issue_is_one_run_and_a_closed_one_ends_it(place: Place) -> None:
    tracker = place.tracker
    tracker.put(1, title="Mend the basket", body="It loses goods.")
    tracker.put(2)
    tracker.put(3, labels=[])
    tracker.put(4, pull_request={"url": "x"})
    tracker.put(5, state="closed")
    async with scheduler(place.deployment), executor(place.deployment) as peer:
        for _ in range(3):
            await place.look()
        await until(lambda: len(peer.held) == 2, "two issues are claimed")
        states = {folded.state.task.metadata["issue"]: folded.state for folded in peer.held.values()}
        assert states["1"].task.goal == "Mend the basket\n\nIt loses goods."
        assert states["1"].workspace == "shop"
        assert len({ticket.run_id for ticket in peer.tickets}) == 2
        tracker.put(1, title="Mend the basket", state="closed")
        await place.look()
        closed = await place.deployment.state(LogKey("local", states["1"].run_id))
        assert closed.cancel_requested_by == "source:issues"
        other = await place.deployment.state(LogKey("local", states["2"].run_id))
        assert (other.status, other.cancel_requested_by) == (RunStatus.RUNNING, None)


async def test_what_has_not_changed_is_not_sent_again(place: Place) -> None:
    for number in range(1, 131):
        place.tracker.put(number)
    wanted = await place.source.look()
    assert (place.tracker.asked, len(wanted)) == (3, 130), "two pages of open issues, one of closed ones"
    assert await place.source.look() == wanted
    assert (place.tracker.asked, place.tracker.unchanged) == (6, 3)


async def test_a_tracker_that_fails_changes_nothing(place: Place) -> None:
    tracker = place.tracker
    tracker.put(1)
    async with scheduler(place.deployment), executor(place.deployment) as peer:
        await place.look()
        await until(lambda: len(peer.held) == 1, "it is claimed")
        for broken in (
            Response(status_code=500),
            Response(status_code=403, headers={"X-RateLimit-Reset": "1800000000"}),
            Response("[{", media_type="application/json"),
            Response('{"message": "moved"}', media_type="application/json"),
            Response(status_code=302, headers={"Location": "http://127.0.0.1:1/"}),
        ):
            tracker.broken = broken
            with pytest.raises(SourceAway) as away:
                await place.look()
            assert TOKEN not in away.value.message
        tracker.broken = None
        await place.look()
        (run_id,) = peer.held
        state = await place.deployment.state(LogKey("local", run_id))
        assert (state.status, state.cancel_requested_by) == (RunStatus.RUNNING, None)


async def test_an_issue_that_cannot_be_read_is_in_nobodys_way(place: Place) -> None:
    place.tracker.put(1, title=7)
    place.tracker.put(2, title=" ", body=None)
    place.tracker.put(3)
    async with scheduler(place.deployment), executor(place.deployment) as peer:
        await place.look()
        await until(lambda: len(peer.held) == 1, "the third is claimed")
        assert next(iter(peer.held.values())).state.task.metadata["issue"] == "3"
