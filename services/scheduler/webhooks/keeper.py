"""Runs the matching and a queue for each webhook, as they come and go.

Invariant: every scheduler knows the webhooks, the leader alone reads and sends for them; a change of the lead repeats at
most what was under way.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from libs.bus.ports import Bus
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import UNREADABLE, PerdureError
from libs.contracts.ids import SHARDS
from libs.contracts.streams import hook_consumer, matching_consumer
from libs.contracts.subjects import HOOKS, webhook_of
from libs.contracts.webhooks import Webhook
from libs.policy.outbound import Outbound
from services.scheduler.leadership import Leadership
from services.scheduler.webhooks.delivery import AGAIN_S, REFUSED_S, Deliveries
from services.scheduler.webhooks.matching import Matching
from services.scheduler.webhooks.outbound import Sender

_log = get_logger("webhooks")


class Webhooks:
    """The webhooks of a deployment, as one scheduler serves them."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        outbound: Outbound,
        *,
        again_s: Sequence[float] = AGAIN_S,
        refused_s: Sequence[float] = REFUSED_S,
    ) -> None:
        self._bus, self._bucket = bus, bus.bucket("webhooks")
        self._sender = Sender(outbound)
        self._known: dict[str, Webhook] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._deliveries = Deliveries(
            self._sender, self._bucket, clock, self._known.get, again_s=again_s, refused_s=refused_s
        )
        queue, subjects = bus.queue, bus.subjects
        self._life = Matching(queue, subjects, clock, lambda: self._of(everything=False))
        self._all = Matching(queue, subjects, clock, lambda: self._of(everything=True))

    async def run(self, leadership: Leadership) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as group, self._bucket.watch(HOOKS) as changes:
                async for key, value in changes:
                    if value is None:
                        await self._forget(webhook_of(key))
                    else:
                        self._learn(value, leadership, group)
                    self._match(leadership, group)
        finally:
            await self._sender.close()

    def _of(self, *, everything: bool) -> list[Webhook]:
        return [one for one in self._known.values() if one.everything == everything]

    def _learn(self, value: bytes, leadership: Leadership, group: asyncio.TaskGroup) -> None:
        try:
            webhook = msgspec.json.decode(value, type=Webhook)
        except UNREADABLE as error:
            _log.warning("webhook.not_understood", message=str(error))
            return
        self._known[webhook.webhook_id] = webhook
        if webhook.webhook_id not in self._serving:
            spec = hook_consumer(self._bus.subjects, webhook.webhook_id)
            self._serving[webhook.webhook_id] = group.create_task(
                self._bus.queue.consume(
                    spec, self._deliveries.handle, concurrency=1, ready=leadership.acquired
                )
            )

    def _match(self, leadership: Leadership, group: asyncio.TaskGroup) -> None:
        """Read the log for as long as anybody wants to hear of it; all of it only if somebody needs that."""
        for everything, matching in ((False, self._life), (True, self._all)):
            for shard in range(SHARDS):
                spec = matching_consumer(self._bus.subjects, shard, everything=everything)
                name = f"{spec.stream}.{spec.name}"
                running = self._serving.get(name)
                wanted = bool(self._of(everything=everything))
                if wanted and running is None:
                    self._serving[name] = group.create_task(
                        self._bus.queue.consume(
                            spec, matching.handle, concurrency=1, ready=leadership.acquired
                        )
                    )
                elif not wanted and running is not None:
                    self._serving.pop(name).cancel()

    async def _forget(self, webhook_id: str) -> None:
        if self._known.pop(webhook_id, None) is None:
            return
        self._serving.pop(webhook_id).cancel()
        try:
            await self._bus.queue.remove_consumer(hook_consumer(self._bus.subjects, webhook_id))
        except PerdureError as error:
            # What is left of it goes with its time.
            _log.info("webhook.left", webhook_id=webhook_id, message=error.message)
