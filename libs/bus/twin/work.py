"""Work-queue streams in memory: deduplication, pulls, redelivery, dead letters.

Invariant: a message is gone only once it was acked; whatever was delivered and not acked in time comes again, with its
count of deliveries.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from libs.bus.counts import Backlog
from libs.bus.ports import Delivery
from libs.bus.twin.link import Link, Timers
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.envelope import MESSAGE_ID
from libs.contracts.errors import StorageFull
from libs.contracts.streams import ConsumerSpec, StreamSpec

# The servers look so much later for what was given back "at once"; what was ready then goes before it.
AGAIN_S_MIN = 0.01


class _Message(NamedTuple):
    subject: str
    headers: dict[str, str]
    body: bytes
    at: str


class _Pull(NamedTuple):
    """A process that waits for one message; `None` tells it that the consumer is gone."""

    link: Link
    taken: asyncio.Future[Delivery | None]


class StreamStore:
    """One stream."""

    def __init__(self, spec: StreamSpec, timers: Timers, clock: Clock) -> None:
        self.spec, self.timers, self._clock = spec, timers, clock
        self.created = rfc3339(clock.now())
        self.messages: dict[int, _Message] = {}
        self._sequence = 0
        self._ids: dict[str, float] = {}
        self._consumers: dict[str, _Consumer] = {}

    def publish(self, subject: str, headers: dict[str, str], body: bytes, message_id: str) -> None:
        """Store a message. Raises `StorageFull`."""
        now = self.timers.now()
        if self._ids.get(message_id, now) > now:
            return
        most = self.spec.messages_max
        if most is not None and len(self.messages) >= most:
            if self.spec.discard == "new":
                raise StorageFull(f"{self.spec.name} holds {most} messages", retry_after_s=30)
            del self.messages[next(iter(self.messages))]
        self._ids[message_id] = now + self.spec.duplicate_window_s
        self._sequence += 1
        self.messages[self._sequence] = _Message(
            subject, headers | {MESSAGE_ID: message_id}, body, rfc3339(self._clock.now())
        )
        for consumer in self._consumers.values():
            consumer.offer(self._sequence, subject)

    def consumer(self, spec: ConsumerSpec) -> "_Consumer":
        """The consumer, made if it is missing."""
        found = self._consumers.get(spec.name)
        if found is None:
            found = self._consumers[spec.name] = _Consumer(self, spec)
            for sequence, message in self.messages.items():
                found.offer(sequence, message.subject)
        return found

    def remove(self, spec: ConsumerSpec) -> None:
        """Remove a consumer and what waits for it."""
        found = self._consumers.pop(spec.name, None)
        if found is not None:
            found.close()
        waiting = [
            number
            for number, message in self.messages.items()
            if matches(spec.filter_subject, message.subject)
        ]
        for number in waiting:
            del self.messages[number]

    def backlogs(self) -> list[Backlog]:
        return [consumer.backlog() for consumer in self._consumers.values()]

    def lose_all(self) -> None:
        """Somebody deleted the stream under load; whoever uses it makes it again."""
        self.messages.clear()
        self._ids.clear()
        former, self._consumers = self._consumers, {}
        for consumer in former.values():
            consumer.close()

    def disconnect(self, link: Link) -> None:
        for consumer in self._consumers.values():
            consumer.disconnect(link)


class _Consumer:
    """A durable pull consumer with explicit acks."""

    def __init__(self, stream: StreamStore, spec: ConsumerSpec) -> None:
        self._stream, self._spec = stream, spec
        self._ready: deque[int] = deque()
        self._pending: dict[int, asyncio.Handle] = {}
        self._delivered: dict[int, int] = {}
        self._pulls: deque[_Pull] = deque()

    def offer(self, sequence: int, subject: str) -> None:
        """A message was stored."""
        if matches(self._spec.filter_subject, subject):
            self._ready.append(sequence)
            self._dispatch()

    def pull(self, link: Link, taken: asyncio.Future[Delivery | None]) -> None:
        self._pulls.append(_Pull(link, taken))
        self._dispatch()

    def answer(self, sequence: int, *, again_after_s: float | None) -> None:
        """An ack (`None`), or a wish to have the message again."""
        waiting = self._pending.pop(sequence, None)
        if waiting is not None:
            waiting.cancel()
        if again_after_s is None:
            self._stream.messages.pop(sequence, None)
            self._delivered.pop(sequence, None)
            # There may be room for another one that is unanswered.
            self._dispatch()
        elif waiting is not None:
            again_s = max(again_after_s, AGAIN_S_MIN)
            self._pending[sequence] = self._stream.timers.at(again_s, lambda: self._again(sequence))

    def backlog(self) -> Backlog:
        again = sum(self._delivered.get(sequence, 0) > 1 for sequence in self._pending)
        stream = self._stream.spec.name
        return Backlog(stream, self._spec.name, len(self._ready), len(self._pending), again)

    def keep(self, sequence: int) -> None:
        """Its handler is still at it: its time to be acked begins anew."""
        waiting = self._pending.get(sequence)
        if waiting is not None:
            waiting.cancel()
            self._pending[sequence] = self._stream.timers.at(
                self._spec.ack_wait_s, lambda: self._again(sequence)
            )

    def close(self) -> None:
        for waiting in self._pending.values():
            waiting.cancel()
        for pull in self._pulls:
            if not pull.taken.done():
                pull.taken.set_result(None)

    def disconnect(self, link: Link) -> None:
        self._pulls = deque(pull for pull in self._pulls if pull.link is not link)

    def _again(self, sequence: int) -> None:
        self._pending.pop(sequence, None)
        if sequence in self._stream.messages:
            self._ready.appendleft(sequence)
            self._dispatch()

    def _dispatch(self) -> None:
        while self._ready and self._pulls and len(self._pending) < self._spec.ack_pending_max:
            if self._pulls[0].taken.done():
                self._pulls.popleft()
                continue
            sequence = self._ready.popleft()
            message = self._stream.messages.get(sequence)
            if message is not None:
                self._deliver(sequence, message, self._pulls.popleft())

    def _deliver(self, sequence: int, message: _Message, pull: _Pull) -> None:
        count = self._delivered[sequence] = self._delivered.get(sequence, 0) + 1
        self._pending[sequence] = self._stream.timers.at(self._spec.ack_wait_s, lambda: self._again(sequence))
        delay_s = pull.link.delivery_s("delivery", message.subject)
        if delay_s is None:
            # The process goes on asking; the message comes again once its time to be acked is over.
            self._pulls.append(pull)
            return
        delivery = Delivery(
            message.subject, message.headers, message.body, sequence, count, self._stream.created
        )

        def arrive() -> None:
            if pull.link.closed:
                return
            if pull.taken.done():
                # Given up on this side while it was on its way: others may have it at once.
                self.answer(sequence, again_after_s=0.0)
            else:
                pull.taken.set_result(delivery)

        self._stream.timers.at(delay_s, arrive)


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a filter with `*` and `>`."""
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


Find = Callable[[str], StreamStore]
