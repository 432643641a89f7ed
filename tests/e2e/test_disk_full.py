"""The disk of the bus is full: nothing that was accepted is lost, everybody waits, and room is all that is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from libs.chassis.clock import SystemClock
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.small_disk import NoSmallDisk, SmallDisk, small_disk
from tests.fakes.waiting import PATIENCE_S, eventually

RUNS = 4
# Three quarters of it are the server's; a start is worth while with a quarter of it.
DISK_MB = 64
SCRIPT = {
    "[work]": [
        *(calls(call("echo", text=f"turn {n}"), delay_s=0.2) for n in range(20)),
        says("Twelve turns."),
    ],
    "[echo]": [calls(call("echo", text="hi")), says("Echoed.")],
}


class Crowded(NamedTuple):
    """Everything, on a disk that can be filled up."""

    on: Stage
    disk: SmallDisk

    def lines(self, event: str) -> int:
        """How many lines of the merged log tell of an event."""
        return (self.on.data.parent / "perdure.log").read_text().count(f'"{event}"')


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[Crowded]:
    try:
        async with (
            small_disk(tmp_path / "data" / "nats" / "jetstream", DISK_MB) as disk,
            stage(tmp_path, SCRIPT) as on,
        ):
            yield Crowded(on, disk)
    except NoSmallDisk as error:
        pytest.skip(f"no disk can be mounted here, neither as root nor in a namespace of one's own: {error}")


async def test_a_full_disk_is_told_and_waited_out_and_with_room_everything_goes_on(crowded: Crowded) -> None:
    on, disk = crowded
    runs = [await on.submit("[work]") for _ in range(RUNS)]
    await on.until(runs[0], lambda run: run.iteration >= 3)
    services = {name: pid for name, pid in on.perdure.pids.items() if name != "nats"}
    clock = SystemClock()
    async with httpx.AsyncClient(base_url=on.perdure.url, timeout=PATIENCE_S) as http:
        disk.fill()
        unready = await _answered(http, "GET", "BUS_UNAVAILABLE")
        assert "make room" in unready.json()["message"]
        # A server that is started now finds no room at all, and says so from then on.
        on.perdure.kill("nats")
        refused = await _answered(http, "POST", "STORAGE_FULL")
        assert int(refused.headers["Retry-After"]) >= 1
        accepted = {run_id: await on.events(run_id) for run_id in runs}
        began_s, tries = clock.monotonic(), crowded.lines("session.append_unknown")
        await _answered(http, "GET", "BUS_UNAVAILABLE")
        waited_s, tries = clock.monotonic() - began_s, crowded.lines("session.append_unknown") - tries
        assert tries <= RUNS * (waited_s + 2), "a session tries again once a second, no more"
        disk.free()
        for run_id in runs:
            assert (await on.ended(run_id)).status == "COMPLETED"
            events = await on.events(run_id)
            assert events[: len(accepted[run_id])] == accepted[run_id]
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert (await http.get("/api/health/ready")).status_code == 200
    assert (await on.ended(await on.submit("[echo]"))).status == "COMPLETED"
    assert {name: pid for name, pid in on.perdure.pids.items() if name != "nats"} == services
    assert crowded.lines("disk.full") >= 1


async def _answered(http: httpx.AsyncClient, method: str, code: str) -> httpx.Response:
    """The first answer with an error code: of the probe, or of a task that is posted."""

    async def look() -> httpx.Response | None:
        if method == "GET":
            answer = await http.get("/api/health/ready")
        else:
            answer = await http.post("/api/tasks", json={"goal": "[echo] meanwhile", "auto_start": True})
        return answer if answer.status_code == 503 and answer.json()["error_code"] == code else None

    return await eventually(look, f"{code} of {method}")
