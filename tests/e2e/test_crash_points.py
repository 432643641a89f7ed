"""A process dies at a point of its work, at every one in turn: the run ends as if nothing had happened."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.e2e.crashing import VICTIMS, Crashing, Point, crashing, selection

# A point costs about three seconds; `CRASH_POINTS=all` (make soak) takes every one, about ten minutes.
POINTS_IN_THE_SUITE = 12
EVERY = os.environ.get("CRASH_POINTS") == "all"


@pytest.fixture(scope="module")
async def ready(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Crashing, list[Point]]]:
    async with crashing(tmp_path_factory.mktemp("crash")) as on:
        points = await on.discover()
        yield on, points if EVERY else selection(points, POINTS_IN_THE_SUITE)


@pytest.mark.parametrize("service", VICTIMS)
async def test_a_service_that_dies_at_any_point_of_a_run_changes_nothing_of_its_outcome(
    ready: tuple[Crashing, list[Point]], service: str
) -> None:
    on, points = ready
    chosen = [point for point in points if point.service == service]
    assert chosen
    # A deployment that may be told to die says so.
    assert "PERDURE_TEST_CRASH" in (await on.on.client.health()).test_hooks
    failures: list[str] = []
    for point in chosen:
        try:
            await on.crash(point)
        except (AssertionError, TimeoutError) as error:
            failures.append(f"{point}: {error!r}")
    assert not failures, "\n\n".join(failures)
