"""A tool host whose only tool reads: `python examples/read_only_host.py`.

It answers by request and reply and keeps nothing. Whoever ends it loses a call that is repeated elsewhere.
"""

import asyncio
import json
import os
import secrets
import socket
from pathlib import Path

import nats
from nats.aio.msg import Msg

PREFIX = "perdure"
ACCESS = Path(os.environ.get("NATS_JSON", ".perdure/nats.json"))
BOOT = f"b{secrets.token_hex(8)}"
RATES = {"EUR": 1.0, "USD": 1.08, "JPY": 163.2}
TOOL = {
    "name": "exchange_rate",
    "description": "How much of a currency one euro buys.",
    "parameters": {
        "type": "object",
        "properties": {"currency": {"type": "string"}},
        "required": ["currency"],
    },
    "semantics": "READ_ONLY",
    "needs_workspace": False,
}
CATALOG = {"boot": BOOT, "replica": "rates", "host": socket.gethostname(), "tools": [TOOL]}
LEASE = {
    "boot": BOOT,
    "service": "rates",
    "replica": "rates",
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "process_start": 0,
    "slots": 0,
    "free": 0,
    "model_configured": False,
}


async def control(message: Msg) -> None:
    """Somebody asks whether this boot lives, or to end calls: there are none that could be ended."""
    await message.respond(json.dumps({"boot": BOOT}).encode())


async def call(message: Msg) -> None:
    asked = json.loads(message.data)
    rate = RATES.get(asked["arguments"]["currency"])
    result = {"ok": rate is not None, "output": str(rate or f"known: {', '.join(RATES)}")}
    result |= {"call_id": asked["call_id"], "attempt": asked["attempt"]}
    await message.respond(json.dumps(result).encode())


async def main() -> None:
    access = json.loads(ACCESS.read_text())
    connection = await nats.connect(access["url"], user=access["user"], password=access["password"])
    stream, revision = connection.jetstream(), 0
    await connection.subscribe(f"{PREFIX}.ctl.{BOOT}", cb=control)
    await connection.subscribe(f"{PREFIX}.call.host.{BOOT}", cb=call)
    while True:
        # By compare-and-set: if somebody wrote this boot's death meanwhile, this raises, and a new process is a new boot.
        fence = {"Nats-TTL": "10s", "Nats-Expected-Last-Subject-Sequence": str(revision)}
        lease, catalog = json.dumps(LEASE).encode(), json.dumps(CATALOG).encode()
        revision = (await stream.publish(f"$KV.{PREFIX}-leases.replica.{BOOT}", lease, headers=fence)).seq
        await stream.publish(f"$KV.{PREFIX}-catalog.{BOOT}", catalog, headers={"Nats-TTL": "15s"})
        await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main())
