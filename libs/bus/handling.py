"""What becomes of a message in its handler's hands: the same for the server's queue and the twin's.

Invariant: whatever a handler does, its message is answered: handled, kept as dead, or delivered again after a while.
"""

import logging
from collections.abc import Awaitable, Callable

from libs.bus.ports import Delivery, Handler, Outcome
from libs.contracts.errors import PerdureError

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
