"""What becomes of a message in its handler's hands: the same for the server's queue and the twin's.

Invariant: whatever a handler does, its message is answered: handled, kept as dead, or delivered again after a while.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from libs.bus.ports import Delivery, Handler, Outcome
from libs.contracts.clock import Clock
from libs.contracts.errors import BusUnavailable, PerdureError
from libs.contracts.streams import ConsumerSpec

# A message whose handler failed comes again after this long for each time that it came before, up to the maximum.
FAILED_DELAY_S = 0.5
FAILED_DELAY_S_MAX = 60.0

_log = logging.getLogger("perdure.bus")


async def handled(
    delivery: Delivery, handler: Handler, bury: Callable[[Delivery, str], Awaitable[None]], *, consumer: str
) -> Outcome:
    """The handler's outcome; `bury` keeps a dead message with its reason before it is answered for."""
    try:
        outcome = await handler(delivery)
        if outcome.kind == "dead":
            await bury(delivery, outcome.reason)
    except PerdureError as error:
        fields = {"consumer": consumer, "code": error.code, "error": error.message}
        _log.warning("bus.handler_failed", extra={"fields": fields})
    except Exception:  # noqa: BLE001 a defect in the handling of one message must not take the others' with it
        _log.exception("bus.handler_defect", extra={"fields": {"consumer": consumer}})
    else:
        return outcome
    return Outcome("nak", delay_s=min(FAILED_DELAY_S * delivery.delivered, FAILED_DELAY_S_MAX))


@asynccontextmanager
async def held(spec: ConsumerSpec, clock: Clock, keep: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """While the context lasts nobody else gets the message, for `spec.held_s` beyond its time at most: `keep` asks the
    server for that time again and again, which a process that is dead or frozen does not."""
    if not spec.held_s:
        yield
        return

    async def keep_on() -> None:
        pause_s = spec.ack_wait_s / 2
        for _ in range(int(spec.held_s / pause_s)):
            await clock.sleep(pause_s)
            try:
                await keep()
            except BusUnavailable as error:
                # Then somebody else gets it too, and the log decides between the two.
                _log.debug("bus.not_kept", extra={"fields": {"consumer": spec.name, "error": error.message}})

    keeping = asyncio.create_task(keep_on())
    try:
        yield
    finally:
        keeping.cancel()
