"""A message stays with whoever is at it."""

from __future__ import annotations

from functools import partial

import anyio

from libs.bus.ports import ACK, Bus, Delivery, Outcome
from libs.chassis.clock import SystemClock
from libs.contracts.streams import host_consumer


async def test_nobody_else_gets_a_message_while_a_living_process_is_at_it(bus: Bus) -> None:
    """For `held_s` at most; one that has no such time goes to another when its time to be acked is over."""
    kept = host_consumer(bus.subjects, "bheld")._replace(ack_wait_s=1.5, held_s=1.5)
    clock, began, taken = SystemClock(), 0.0, list[int]()

    async def slow(delivery: Delivery) -> Outcome:
        taken.append(delivery.delivered)
        await anyio.sleep_forever()
        return ACK

    async with anyio.create_task_group() as group:
        group.start_soon(partial(bus.queue.consume, kept, slow, concurrency=2))
        await bus.queue.publish(kept.filter_subject, b"slow")
        with anyio.fail_after(30):
            while len(taken) < 2:
                began = began or (clock.monotonic() if taken else 0.0)
                await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    assert taken == [1, 2]
    assert clock.monotonic() - began > 2.0  # 1.5 s, begun anew after 0.75 s and again after 1.5 s.
