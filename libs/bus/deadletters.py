"""Dead letters: what nobody could handle, listed for people and sent back to where it came from.

Invariant: a letter is removed only after its message has been stored again, under a fresh id; a crash in between leaves
both and loses neither.
"""

import msgspec

from libs.bus.consumer import ORIGIN, REASON
from libs.bus.jetstream import NO_STREAM, JetStream, Refused, Stored
from libs.bus.ports import DeadLetter, Letters
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.envelope import MESSAGE_ID
from libs.contracts.errors import InvalidState, NotFound
from libs.contracts.subjects import Subjects

# Sequences that are looked through at once: a letter may have 1 MiB, a page of a console shows fewer.
WINDOW = 64
# Windows of one listing: with a rare kind a listing may end before it is full; its cursor goes on from there.
WINDOWS_MAX = 32

_TIME = "Nats-Time-Stamp"
# What the server answers when a message that is to be deleted is gone already.
_GONE = frozenset({10037, 10043})


class _State(msgspec.Struct):
    first_seq: int = 0
    last_seq: int = 0


class _StreamInfo(msgspec.Struct):
    state: _State


class ServerDeadLetters:
    """`DeadLetters` over JetStream."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js, self._subjects = js, subjects
        self._stream = subjects.stream("dead")

    async def newest(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        kind: str | None = None,
        tenant: str | None = None,
    ) -> Letters:
        """Letters older than `before` (a sequence), newest first; all kinds, or one; of `rejected`, one tenant's.

        Read from any replica: the very newest may be missing for a moment.
        """
        state = await self._state()
        top = state.last_seq if before is None else min(before - 1, state.last_seq)
        subject = self._filter(kind, tenant)
        found: list[DeadLetter] = []
        for _ in range(WINDOWS_MAX):
            if top < state.first_seq or top < 1 or len(found) > limit:
                break
            bottom = max(state.first_seq, top - WINDOW + 1)
            found += reversed(await self._window(subject, bottom, top))
            top = bottom - 1
        if len(found) > limit:
            return Letters(found[:limit], found[limit - 1].sequence)
        return Letters(found, top + 1 if top >= max(1, state.first_seq) else None)

    async def get(self, sequence: int) -> DeadLetter:
        """One letter. Raises `NotFound`."""
        if sequence < 1:
            raise NotFound(f"there is no dead letter {sequence}")
        found = await self._window(">", sequence, sequence)
        if found:
            return found[0]
        # A replica may not have it yet; the leader's word is definite.
        stored = await self._js.next(self._stream, ">", sequence)
        if stored is None or stored.sequence != sequence:
            raise NotFound(f"there is no dead letter {sequence}")
        return self._letter(stored)

    async def replay(self, sequence: int) -> DeadLetter:
        """Send a letter's message to where it came from, then remove the letter.

        Raises `NotFound`, or `InvalidState` when it does not say where it came from.
        """
        letter = await self.get(sequence)
        if not letter.origin.startswith(f"{self._subjects.prefix}."):
            raise InvalidState(
                f"dead letter {sequence} does not say where it came from; publish its body by hand"
            )
        headers = letter.headers | {MESSAGE_ID: self._js.clock.entropy(12).hex()}
        try:
            await self._js.publish_patiently(letter.origin, letter.body, headers)
            await self._js.api_patiently(
                f"STREAM.MSG.DELETE.{self._stream}", {"seq": sequence, "no_erase": True}
            )
        except Refused as refused:
            if refused.number not in _GONE:
                raise refused.translated() from refused
        return letter

    async def _state(self) -> _State:
        try:
            info = await self._js.api_patiently(f"STREAM.INFO.{self._stream}")
        except Refused as refused:
            if refused.number != NO_STREAM:
                raise refused.translated() from refused
            await self._js.repair()
            return _State()
        return msgspec.json.decode(info, type=_StreamInfo).state

    async def _window(self, subject: str, bottom: int, top: int) -> list[DeadLetter]:
        """The letters on `subject` from `bottom` to `top`, oldest first."""
        found: list[DeadLetter] = []
        position = bottom
        while position <= top:
            try:
                page = await self._js.page(self._stream, subject, position, WINDOW)
            except Refused as refused:
                raise refused.translated() from refused
            found += [self._letter(stored) for stored in page.messages if stored.sequence <= top]
            if not page.messages or not page.more:
                break
            position = page.messages[-1].sequence + 1
        return found

    def _filter(self, kind: str | None, tenant: str | None) -> str:
        if kind == "rejected" or tenant is not None:
            return self._subjects.rejected(tenant or "*")
        return ">" if kind is None else self._subjects.dead(kind)

    def _letter(self, stored: Stored) -> DeadLetter:
        kind = stored.subject.removeprefix(f"{self._subjects.prefix}.").split(".")
        at = stored.headers.get(_TIME, "")
        return DeadLetter(
            sequence=stored.sequence,
            kind=kind[-1] if kind[0] == "dead" else kind[0],
            subject=stored.subject,
            origin=stored.headers.get(ORIGIN, "").partition(" ")[0],
            reason=stored.headers.get(REASON, ""),
            at=rfc3339(parse_rfc3339(at)) if at else "",
            headers={
                name: value
                for name, value in stored.headers.items()
                if not name.startswith("Nats-") and name not in (REASON, ORIGIN)
            },
            body=stored.body,
        )
