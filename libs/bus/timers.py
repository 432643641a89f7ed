"""Durable timers: scheduled messages (ADR-51) that the server sends when they are due, whoever lives then.

Invariant: the only user of scheduled messages. There is one timer an event that a run waits on; setting it again
replaces it, one that is past due fires at once, and a fired one names the event it was set for. Timers are hints: all of
them may be lost, and are set again from the log.
"""

from datetime import datetime

import msgspec

from libs.bus.jetstream import NO_STREAM, JetStream, Refused
from libs.bus.ports import LogKey
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import MESSAGE_ID
from libs.contracts.subjects import Subjects
from libs.contracts.tasks import Timer

_SCHEDULE = "Nats-Schedule"
_TARGET = "Nats-Schedule-Target"
# A page of subjects that the leader lists at once.
_SUBJECTS_PAGE = 100_000


class _State(msgspec.Struct):
    subjects: dict[str, int] = {}


class _StreamInfo(msgspec.Struct):
    state: _State


class ServerTimers:
    """`Timers` over JetStream."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js, self._subjects = js, subjects
        self._stream = subjects.stream("timers")

    async def arm(self, key: LogKey, sequence: int, due_at: datetime) -> None:
        headers = {
            # Never an id that stood for this timer before: after a purge it would be acked and not stored.
            MESSAGE_ID: self._js.clock.entropy(12).hex(),
            _SCHEDULE: f"@at {rfc3339(due_at)}",
            _TARGET: self._subjects.fired(key.log_id, sequence),
        }
        body = _encode(Timer(tenant=key.tenant, run_id=key.log_id, sequence=sequence))
        try:
            await self._js.publish_patiently(self._subjects.timer(key.log_id, sequence), body, headers)
        except Refused as refused:
            raise refused.translated() from refused

    async def cancel(self, run_id: str, sequence: int) -> None:
        query = {"filter": self._subjects.timer(run_id, sequence)}
        try:
            await self._js.api_patiently(f"STREAM.PURGE.{self._stream}", query)
        except Refused as refused:
            if refused.number != NO_STREAM:
                raise refused.translated() from refused

    async def standing(self) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        offset = 0
        while True:
            query = {"subjects_filter": ">", "offset": offset}
            try:
                answer = await self._js.api_patiently(f"STREAM.INFO.{self._stream}", query)
            except Refused as refused:
                if refused.number != NO_STREAM:
                    raise refused.translated() from refused
                await self._js.repair()
                return set()
            subjects = msgspec.json.decode(answer, type=_StreamInfo).state.subjects
            found |= {place for place in map(self._subjects.parse_timer, subjects) if place is not None}
            offset += len(subjects)
            if len(subjects) < _SUBJECTS_PAGE:
                return found


_encode = msgspec.json.Encoder().encode
