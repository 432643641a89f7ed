"""One try of one delivery, and what follows from how it went.

Key of idempotency: the message's id, which a receiver sees again when a try is repeated. The queue gives one message of a
webhook at a time, so its count of deliveries is the number of tries.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec

from libs.bus.ports import ACK, Bucket, Delivery, Outcome, dead, nak
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.errors import UNREADABLE
from libs.contracts.subjects import webhook_state_key
from libs.contracts.webhooks import Webhook, WebhookDelivery, WebhookState, signed_headers
from services.scheduler.webhooks.outbound import Answer, Sender

# Seconds until the next try: a receiver that is down is waited for about 16 hours, and all its later events with it.
AGAIN_S: Sequence[float] = (5, 30, 120, 600, 1800, 3600, 7200, 14400, 28800)
# One that answers and refuses this event would hold up the others for nothing.
REFUSED_S: Sequence[float] = (5, 30, 120)
# Statuses of a refusal that pass.
_PASSING = frozenset({408, 409, 425, 429})
_GONE = 410

_log = get_logger("webhooks")


def pause_s(answer: Answer, tries: int, again_s: Sequence[float], refused_s: Sequence[float]) -> float | None:
    """How long to wait after so many tries; `None`: give up."""
    status = answer.status
    refuses = status is not None and 400 <= status < 500 and status not in _PASSING
    pauses = () if status == _GONE else refused_s if refuses else again_s
    return pauses[tries - 1] if tries <= len(pauses) else None


class Deliveries:
    """Tries the deliveries of the webhooks that `find` knows by id."""

    def __init__(
        self,
        sender: Sender,
        bucket: Bucket,
        clock: Clock,
        find: Callable[[str], Webhook | None],
        *,
        again_s: Sequence[float] = AGAIN_S,
        refused_s: Sequence[float] = REFUSED_S,
    ) -> None:
        self._sender, self._bucket, self._clock, self._find = sender, bucket, clock, find
        self._again_s, self._refused_s = again_s, refused_s

    async def handle(self, delivery: Delivery) -> Outcome:
        """One message of a webhook's queue."""
        try:
            message = msgspec.json.decode(delivery.body, type=WebhookDelivery)
        except UNREADABLE as error:
            return dead(f"this is no delivery of a webhook: {error}")
        webhook = self._find(message.webhook_id)
        if webhook is None:
            # Deleted meanwhile.
            return ACK
        state, body = await self._state(webhook.webhook_id), message.body.encode()
        now = self._clock.now()
        signed = signed_headers(webhook.secret, message.message_id, int(now.timestamp()), body)
        headers = {"content-type": "application/json", "user-agent": "perdure", **signed}
        answer = await self._sender.post(webhook.url, headers, body)
        ended = self._clock.now()
        told = msgspec.structs.replace(
            state, last_at=rfc3339(ended), last_status=answer.status, attempt=0, next_at=None, problem=None
        )
        if answer.taken:
            told = msgspec.structs.replace(told, delivered=state.delivered + 1)
            await self._note(webhook, told)
            return ACK
        problem = answer.problem or f"the receiver answered {answer.status}"
        pause = pause_s(answer, delivery.delivered, self._again_s, self._refused_s)
        if pause is None:
            told = msgspec.structs.replace(told, given_up=state.given_up + 1, problem=problem)
            await self._note(webhook, told)
            _log.warning(
                "webhook.given_up", webhook_id=webhook.webhook_id, run_id=message.run_id, reason=problem
            )
            return dead(
                f"webhook {webhook.webhook_id} did not take it in {delivery.delivered} tries: {problem}"
            )
        next_at = rfc3339(ended + timedelta(seconds=pause))
        told = msgspec.structs.replace(told, attempt=delivery.delivered, problem=problem, next_at=next_at)
        await self._note(webhook, told)
        return nak(pause)

    async def _state(self, webhook_id: str) -> WebhookState:
        # Read each time: another scheduler may have sent the last one.
        entry = await self._bucket.get(webhook_state_key(webhook_id))
        return msgspec.json.decode(entry.value, type=WebhookState) if entry is not None else WebhookState()

    async def _note(self, webhook: Webhook, state: WebhookState) -> None:
        if self._find(webhook.webhook_id) is not None:
            await self._bucket.put(webhook_state_key(webhook.webhook_id), msgspec.json.encode(state))
