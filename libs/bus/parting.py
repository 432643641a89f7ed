"""The last words of a process that ends: what the others learn from them at once and without them a little later.

Invariant: nobody who ends waits longer than this for a bus that is away; what is not said lapses by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable

from libs.contracts.errors import AppendConflict, Unavailable

# A tool host has three of them to say, in the 10 s that a service may take to stop.
LET_GO_S = 1.0

_log = logging.getLogger("perdure.bus")


async def let_go(what: str, saying: Awaitable[object]) -> None:
    """Wait until it is said, or somebody else has said something, or it has taken too long. `what` is for the log."""
    try:
        async with asyncio.timeout(LET_GO_S):
            await saying
    except (AppendConflict, Unavailable, TimeoutError) as error:
        _log.info("bus.left", extra={"fields": {"what": what, "error": repr(error)}})
