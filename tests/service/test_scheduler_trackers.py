"""Issues of trackers as sources, over HTTP against stand-ins that answer as the trackers' documentation says."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.responses import Response

from deploy.dev.nats_server import NatsServer
from libs.bus.creation import Creation
from libs.bus.ports import Bus, LogKey
from libs.contracts.errors import ConfigurationError
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits
from services.scheduler.endings import Endings
from services.scheduler.settings import SchedulerSettings
from services.scheduler.sources.configuration import parse_sources
from services.scheduler.sources.intake import Intake, sources_of
from services.scheduler.sources.wish import Source, SourceAway
from tests.fakes.search_servers import served
from tests.fakes.trackers import LABEL, SECRET, FakeGitHub, FakeLinear, Fields, Tracker, rate_limited
from tests.fakes.waiting import until
from tests.service.gateway_served import registered
from tests.service.scheduler_peers import CLOCK, Deployment, Executor, executor, runs_of, scheduler

both = pytest.mark.parametrize("made", [FakeGitHub, FakeLinear])


def source_of(tracker: Tracker, url: str, folder: Path, label: str = LABEL) -> Source:
    """The source of a tracker, as its operator configures it."""
    spec, key = {**tracker.spec(url), "workspace": "shop", "label": label}, SECRET
    if spec["kind"] == "github":
        file, key = folder / "token", ""
        file.write_text(f"{SECRET}\n")
        spec["token_file"] = str(file)
    (source,) = sources_of(list(parse_sources(json.dumps({"issues": spec})).items()), CLOCK, linear_key=key)
    return source


class Place:
    """A tracker whose issues become runs when a test wants it to, a scheduler, and an executor that claims them."""

    def __init__(self, deployment: Deployment, tracker: Tracker, intake: Intake, source: Source) -> None:
        self.deployment, self.tracker, self.intake, self.source = deployment, tracker, intake, source
        self.peer: Executor
        self.going: Callable[[], list[str]]
        self.labelled: Callable[[str], Source]

    async def look(self) -> None:
        await self.intake.look(self.source)

    async def claimed(self, count: int) -> dict[int, RunState]:
        """The runs by the numbers of their issues, once so many are claimed and the scheduler knows of them."""
        await until(lambda: len(self.peer.held) == count == len(self.going()), f"{count} issues are claimed")
        states = (folded.state for folded in self.peer.held.values())
        return {self.tracker.number_of(state.task.metadata["issue"]): state for state in states}

    async def ended_by(self, run: RunState) -> str | None:
        return (await self.deployment.state(LogKey("local", run.run_id))).cancel_requested_by


@asynccontextmanager
async def place_with(
    tracker: Tracker, nats_node: NatsServer, bus: Bus, folder: Path
) -> AsyncGenerator[Place]:
    deployment = Deployment(nats_node, bus)
    async with (
        served(tracker.app) as url,
        registered(bus, "scheduler", "scheduler-1") as liveness,
        scheduler(deployment) as process,
        executor(deployment) as peer,
    ):
        runs, rows = runs_of(bus), process.scheduler.rows
        source = source_of(tracker, url, folder)
        creation = Creation(runs, CLOCK, shards=1, limits=Limits())
        endings = Endings(runs, liveness)
        intake = Intake([source], runs, bus.log, creation, endings, CLOCK, rows.wished_by)
        place = Place(deployment, tracker, intake, source)
        place.peer, place.going = peer, lambda: rows.wished_by("issues")
        place.labelled = lambda label: source_of(tracker, url, folder, label)
        yield place


@both
async def test_a_labelled_issue_is_one_run_that_ends_with_it_or_with_its_label(
    made: Callable[[], Tracker], nats_node: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    tracker = made()
    async with place_with(tracker, nats_node, bus, tmp_path) as place:
        tracker.put(1, title="Mend the basket", text="It loses goods.")
        for number in range(2, 7):
            tracker.put(number)
        tracker.unlabel(5)
        tracker.end(6)
        for _ in range(3):
            await place.look()
        runs = await place.claimed(4)
        assert sorted(runs) == [1, 2, 3, 4]
        assert runs[1].task.goal == "Mend the basket\n\nIt loses goods."
        assert (runs[1].workspace, runs[1].task.metadata["url"][:8]) == ("shop", "https://")
        assert len({ticket.run_id for ticket in place.peer.tickets}) == 4
        await place.intake.look(place.labelled("purdure"))
        for run in runs.values():
            assert await place.ended_by(run) is None, "another label in the configuration takes none off"
        tracker.end(1)
        tracker.unlabel(2)
        tracker.put(3, text="It says more now.")
        await place.look()
        ended = [await place.ended_by(runs[number]) for number in range(1, 5)]
        assert ended == ["source:issues", "source:issues", None, None]


@both
async def test_a_tracker_that_fails_changes_nothing(
    made: Callable[[], Tracker], nats_node: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    tracker = made()
    async with place_with(tracker, nats_node, bus, tmp_path) as place:
        tracker.put(1)
        await place.look()
        runs = await place.claimed(1)
        now = int(CLOCK.now().timestamp())
        waits: list[int | None] = []
        for broken in (
            Response(status_code=500),
            Response(status_code=403, headers={"X-RateLimit-Reset": str(now + 600)}),
            Response(status_code=429, headers={"Retry-After": "7"}),
            rate_limited((now + 600) * 1000),
            Response('{"data": null, "errors": [{"message": "no"}]}', media_type="application/json"),
            Response("[{", media_type="application/json"),
            Response('{"message": "moved"}', media_type="application/json"),
            Response(status_code=302, headers={"Location": "http://127.0.0.1:1/"}),
        ):
            tracker.broken = broken
            with pytest.raises(SourceAway) as away:
                await place.look()
            assert SECRET not in away.value.message
            waits.append(away.value.retry_after_s)
        assert waits[2] == 7
        assert all(590 <= (wait or 0) <= 602 for wait in (waits[1], waits[3])), "as long as the limit lasts"
        assert waits[0] is waits[-1] is None
        tracker.broken = None
        await place.look()
        assert await place.ended_by(runs[1]) is None


@both
async def test_an_issue_that_cannot_be_read_is_in_nobodys_way(
    made: Callable[[], Tracker], nats_node: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    tracker = made()
    async with place_with(tracker, nats_node, bus, tmp_path) as place:
        tracker.put(1, title=7)  # pyright: ignore[reportArgumentType] that is what is wrong with it
        tracker.put(2, title=" ", text="")
        tracker.put(3)
        await place.look()
        assert list(await place.claimed(1)) == [3]
        tracker.put(3, wrong={"state": None})
        await place.look()
        assert await place.ended_by((await place.claimed(1))[3]) is None


async def test_what_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    github, linear = FakeGitHub(), FakeLinear()
    for number in range(1, 131):
        github.put(number)
        linear.put(number)
    async with served(github.app) as github_url, served(linear.app) as linear_url:
        source = source_of(github, github_url, tmp_path)
        wanted = await source.look((), afresh=False)
        assert (github.asked, len(wanted)) == (2, 130), "two pages"
        assert await source.look((), afresh=False) == wanted
        assert (github.asked, github.unchanged) == (4, 2)

        moved = {f"acme/shop#{number}" for number in range(1_000, 1_130)}
        looks = [await source.look(moved, afresh=False) for _ in range(2)]
        assert [sum(wish.key in moved for wish in look) for look in looks] == [100, 100]
        assert moved <= {wish.key for look in looks for wish in look}, (
            "none is hidden by those that come first"
        )

        source = source_of(linear, linear_url, tmp_path)
        wanted = await source.look((), afresh=False)
        assert (linear.asked, linear.sent, len({wish.key for wish in wanted})) == (2, 130, 130)
        linear.put(7, title="Another title")
        changed = await source.look((), afresh=False)
        assert linear.sent <= 133, "what changed, and what changed just before"
        assert "Another title" in [wish.task.goal.splitlines()[0] for wish in changed if wish.task]
        assert len(await source.look((), afresh=True)) == 130, "what was not seen to is looked at again"
        standing = await source.look([wish.key for wish in wanted], afresh=False)
        assert not any(wish.over for wish in standing)


WAYS: tuple[Fields, ...] = (
    {},
    {"state": {"type": "triage"}},
    {"state": {"type": "canceled"}},
    {"state": {"type": "duplicate"}},
    {"archivedAt": "2026-01-01T00:00:00.000Z"},
    {"trashed": True},
    {"labels": []},
    {"team": "OPS"},
)


async def test_linear_tells_every_way_in_which_an_issue_is_over(tmp_path: Path) -> None:
    tracker = FakeLinear()
    for number, said in enumerate(WAYS):
        tracker.put(number, wrong=said)
    keys = [issue["id"] for issue in tracker.issues.values()]
    unknown = "00000000-0000-4000-8000-999999999999"
    async with served(tracker.app) as url:
        source = source_of(tracker, url, tmp_path)
        found = {wish.key: wish for wish in await source.look([*keys, unknown, "acme/shop#1"], afresh=True)}
    over = [number for number, key in enumerate(keys) if key in found and found[key].over]
    assert over == [2, 3, 4, 5, 6]
    assert found[keys[0]].task is not None
    assert not found[unknown].over, "what is not there says nothing"
    assert "acme/shop#1" not in found


@pytest.mark.parametrize("host", ["me:pass@host", "host/?key=pass", "host/#pass", "", "host:pass"])
@pytest.mark.parametrize("said", [{"kind": "linear"}, {"kind": "github", "repository": "acme/shop"}])
def test_an_address_that_no_log_should_have_is_refused_and_not_repeated(said: Fields, host: str) -> None:
    with pytest.raises(ValueError, match=r"issues\.\w+\.url: ") as refused:
        parse_sources(json.dumps({"issues": {**said, "url": f"https://{host}"}}))
    assert "me:" not in str(refused.value)
    assert "key=" not in str(refused.value)


def test_a_key_of_linear_comes_from_the_environment_and_a_missing_one_is_named() -> None:
    spec = json.dumps({"issues": {"kind": "linear"}})
    with pytest.raises(ConfigurationError, match="issues needs a key: set LINEAR_API_KEY"):
        SchedulerSettings.load("scheduler", {"PERDURE_SOURCES": spec})
    settings = SchedulerSettings.load("scheduler", {"PERDURE_SOURCES": spec, "LINEAR_API_KEY": SECRET})
    assert settings.linear_key == SECRET
    assert SECRET not in repr(settings)
    assert SECRET.encode() in settings.secrets, "so that no log has it"
