"""Schedules over HTTP: one method per endpoint."""

from libs.client.wire import Wire, part
from libs.contracts.schedulehttp import ScheduleChange, ScheduleCreate
from libs.contracts.scheduleviews import ScheduleCreated, ScheduleFireAccepted, ScheduleList, ScheduleView


class ScheduleCalls:
    """What a client may ask about schedules."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def create(
        self, schedule: ScheduleCreate, *, idempotency_key: str | None = None
    ) -> ScheduleCreated:
        return await self._wire.post("/api/schedules", ScheduleCreated, schedule, idempotency_key)

    async def find(
        self, *, status: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> ScheduleList:
        """One page, newest first."""
        query = {"status": status, "limit": limit, "cursor": cursor}
        return await self._wire.get("/api/schedules", ScheduleList, query)

    async def show(self, schedule_id: str) -> ScheduleView:
        return await self._wire.get(f"/api/schedules/{part(schedule_id)}", ScheduleView)

    async def change(self, schedule_id: str, change: ScheduleChange) -> ScheduleView:
        """Change what is named; the rest stays."""
        path = f"/api/schedules/{part(schedule_id)}"
        return await self._wire.post(path, ScheduleView, change, method="PATCH")

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule. Its runs go on."""
        await self._wire.send("DELETE", f"/api/schedules/{part(schedule_id)}")

    async def fire(self, schedule_id: str, *, idempotency_key: str | None = None) -> ScheduleFireAccepted:
        """Have it done now."""
        path = f"/api/schedules/{part(schedule_id)}/fire"
        return await self._wire.post(path, ScheduleFireAccepted, idempotency_key=idempotency_key)
