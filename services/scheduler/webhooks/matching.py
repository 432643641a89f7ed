"""Which event is for which webhook.

Key of idempotency: the webhook, the run and the event's sequence; a record that is read twice is queued once, as far as
the queue remembers, and has the same message id at the receiver for ever.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta

import msgspec

from libs.bus.history import record_in
from libs.bus.ports import ACK, Delivery, Outcome, Queue
from libs.chassis.logs import get_logger
from libs.contracts.clipping import clipped
from libs.contracts.clock import Clock, parse_rfc3339
from libs.contracts.envelope import Record, raw_events
from libs.contracts.errors import UNREADABLE, UnreadableRecord
from libs.contracts.ids import is_id
from libs.contracts.run import COPYING, EXPERIMENT
from libs.contracts.streams import HOOKS_KEPT_S
from libs.contracts.subjects import Subjects
from libs.contracts.webhooks import CHARS_MAX, Webhook, WebhookDelivery, body_of

# How old a record is before it is looked at: a registration is known here milliseconds after its answer. It delays the
# first of several records and not those behind it.
SETTLED_S = 0.5

_log = get_logger("webhooks")


class _Head(msgspec.Struct, frozen=True):
    type: str
    at: str


_head = msgspec.json.Decoder(_Head)


class Matching:
    """Queues the events of records for the webhooks that `wanted` names."""

    def __init__(
        self, queue: Queue, subjects: Subjects, clock: Clock, wanted: Callable[[], Iterable[Webhook]]
    ) -> None:
        self._queue, self._subjects, self._clock, self._wanted = queue, subjects, clock, wanted

    async def handle(self, delivery: Delivery) -> Outcome:
        """One record of the log. Raises `Unavailable`: then it comes again, and nothing behind it before."""
        try:
            record = record_in(self._subjects, delivery)
            await self._settle(record)
            found = matches(record, list(self._wanted()), self._clock)
        except (UnreadableRecord, ValueError, *UNREADABLE) as error:
            _log.warning("webhook.unreadable", sequence=delivery.stream_sequence, message=str(error))
            return ACK
        for one in found:
            await self._queue.publish(
                self._subjects.hook(one.webhook_id), msgspec.json.encode(one), message_id=one.message_id
            )
        return ACK

    async def _settle(self, record: Record) -> None:
        """Wait until whoever registered just before this record was stored is known here too."""
        at = parse_rfc3339(_head.decode(raw_events(record)[-1][1]).at)
        left_s = SETTLED_S - (self._clock.now() - at).total_seconds()
        if 0 < left_s <= SETTLED_S:
            await self._clock.sleep(left_s)


def matches(record: Record, webhooks: Iterable[Webhook], clock: Clock) -> list[WebhookDelivery]:
    """The deliveries that a record means: of events since the webhook was made, and not of long ago."""
    mine = [one for one in webhooks if one.tenant == record.tenant]
    shown = is_id("run", record.log_id) or is_id("project", record.log_id)
    if not mine or not shown or record.header.state in (COPYING, EXPERIMENT):
        return []
    found: list[WebhookDelivery] = []
    for sequence, raw in raw_events(record):
        event = _head.decode(raw)
        at = parse_rfc3339(event.at)
        if clock.now() - at > timedelta(seconds=HOOKS_KEPT_S):
            continue
        found.extend(
            WebhookDelivery(
                webhook_id=webhook.webhook_id,
                tenant=webhook.tenant,
                run_id=record.log_id,
                sequence=sequence,
                body=body_of(event.type, event.at, clipped(raw, CHARS_MAX)),
            )
            for webhook in mine
            if event.type in webhook.events and at >= parse_rfc3339(webhook.created_at)
        )
    return found
