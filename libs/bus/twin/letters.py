"""Dead letters of the twin.

Invariant: as on the servers: a letter is removed only after its message has been stored again.
"""

from libs.bus.ports import DeadLetter, Letters
from libs.bus.twin.link import Link
from libs.bus.twin.queue import ORIGIN, REASON
from libs.bus.twin.work import Find, StreamStore
from libs.contracts.clock import Clock
from libs.contracts.errors import InvalidState, NotFound
from libs.contracts.subjects import Subjects


class TwinDeadLetters:
    """`DeadLetters` of one process."""

    def __init__(self, link: Link, subjects: Subjects, find: Find, clock: Clock) -> None:
        self._link, self._subjects, self._find, self._clock = link, subjects, find, clock

    async def newest(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        kind: str | None = None,
        tenant: str | None = None,
    ) -> Letters:
        return await self._link.call("letters", kind or "", lambda: self._newest(before, limit, kind, tenant))

    async def get(self, sequence: int) -> DeadLetter:
        return await self._link.call("letter", str(sequence), lambda: self._get(sequence))

    async def replay(self, sequence: int) -> DeadLetter:
        return await self._link.call("letter.replay", str(sequence), lambda: self._replay(sequence))

    @property
    def _stream(self) -> StreamStore:
        return self._find(self._subjects.dead("any"))

    def _newest(self, before: int | None, limit: int, kind: str | None, tenant: str | None) -> Letters:
        wanted = (
            self._letter(sequence)
            for sequence in reversed(self._stream.messages)
            if before is None or sequence < before
        )
        found = [letter for letter in wanted if self._is_of(letter, kind, tenant)]
        return Letters(found[:limit], found[limit - 1].sequence if len(found) > limit else None)

    def _is_of(self, letter: DeadLetter, kind: str | None, tenant: str | None) -> bool:
        if tenant is not None:
            return letter.subject == self._subjects.rejected(tenant)
        return kind is None or letter.kind == kind

    def _get(self, sequence: int) -> DeadLetter:
        if sequence not in self._stream.messages:
            raise NotFound(f"there is no dead letter {sequence}")
        return self._letter(sequence)

    def _replay(self, sequence: int) -> DeadLetter:
        letter = self._get(sequence)
        if not letter.origin.startswith(f"{self._subjects.prefix}."):
            raise InvalidState(
                f"dead letter {sequence} does not say where it came from; publish its body by hand"
            )
        again = self._clock.entropy(12).hex()
        self._find(letter.origin).publish(letter.origin, letter.headers, letter.body, again)
        del self._stream.messages[sequence]
        return letter

    def _letter(self, sequence: int) -> DeadLetter:
        message = self._stream.messages[sequence]
        kind = message.subject.removeprefix(f"{self._subjects.prefix}.").split(".")
        return DeadLetter(
            sequence=sequence,
            kind=kind[-1] if kind[0] == "dead" else kind[0],
            subject=message.subject,
            origin=message.headers.get(ORIGIN, "").partition(" ")[0],
            reason=message.headers.get(REASON, ""),
            at=message.at,
            headers={
                name: value
                for name, value in message.headers.items()
                if not name.startswith("Nats-") and name not in (REASON, ORIGIN)
            },
            body=message.body,
        )
