"""A process that holds a lease until it is told to end: `python -m tests.fakes.replica_process SETTINGS_JSON`.

It writes one line a fact: its boot id once it is registered, then `dead` when it learns that it was declared so.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from libs.bus.connection import BusSettings, connect
from libs.bus.liveness import Registration, register
from libs.chassis.clock import SystemClock


class Given(msgspec.Struct):
    """What the process is started with."""

    url: str
    user: str
    password: str
    prefix: str
    replica: str
    ttl_s: float


async def main(given: Given) -> None:
    settings = BusSettings(given.url, given.user, given.password, None, prefix=given.prefix, name="replica")
    died = asyncio.Event()
    registration = Registration("executor", given.replica, 4, True, given.ttl_s, {})
    clock = SystemClock()
    async with (
        connect(settings, clock) as bus,
        register(bus, clock, registration, on_death=died.set) as lease,
    ):
        sys.stdout.write(f"{lease.boot}\n")
        sys.stdout.flush()
        await died.wait()
        sys.stdout.write("dead\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Given)))
