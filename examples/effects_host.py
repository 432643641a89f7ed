"""A tool host with an effect that must not happen twice: `python examples/effects_host.py LEDGER`.

Whatever dies on the way, the owner of the run learns from the journal what became of a call: finished (adopted), never
begun (sent again), or begun by a boot that is dead (a person is asked). The numbers are those of docs/bus/README.md.
"""

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError, NotFoundError

PREFIX = "perdure"
ACCESS = Path(os.environ.get("NATS_JSON", ".perdure/nats.json"))
BOOT = f"b{secrets.token_hex(8)}"
ME = {"boot": BOOT, "replica": "ledger", "host": socket.gethostname()}
# How long this process may be silent before the others look into its death.
TTL_S = int(os.environ.get("LEASE_TTL_S", "10"))
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
OVER = ("COMPLETED", "FAILED", "CANCELLED", "DELETED")
TOOL = {
    "name": "post_entry",
    "description": "Posts an amount to an account. It cannot be taken back.",
    "parameters": {
        "type": "object",
        "properties": {
            "account": {"type": "string"},
            "cents": {"type": "integer"},
            "seconds": {"type": "number", "description": "How long the bank takes."},
        },
        "required": ["account", "cents"],
    },
    "semantics": "NON_IDEMPOTENT",
    "risk": "medium",
    "needs_workspace": False,
}

# A message, decoded.
Json = dict[str, Any]


class Host:
    """One boot. `calls` are those in hand, `started` those whose effect has begun here."""

    def __init__(self, connection: Client, ledger: Path) -> None:
        self.connection, self.streams, self.ledger = connection, connection.jetstream(), ledger
        self.calls: dict[str, tuple[Json, asyncio.Event]] = {}
        self.started: set[str] = set()
        self.closing: dict[str, tuple[int, float]] = {}
        self.confirmed_at = float("-inf")
        self.revision = 0

    async def put(self, bucket: str, key: str, value: Json, headers: dict[str, str]) -> int:
        subject = f"$KV.{PREFIX}-{bucket}.{key}"
        return (await self.streams.publish(subject, json.dumps(value).encode(), headers=headers)).seq

    # 1. A lease by compare-and-set, and the catalog. Confirmed is counted from before a renewal was sent.
    async def renew(self, *, dead: bool = False) -> None:
        sent_at = time.monotonic()
        lease = {**ME, "service": "ledger", "pid": os.getpid(), "process_start": 0, "slots": 0, "free": 0}
        fence = {EXPECTED: str(self.revision), "Nats-TTL": "168h" if dead else f"{TTL_S}s"}
        lease |= {"model_configured": False, "dead": dead}
        self.revision = await self.put("leases", f"replica.{BOOT}", lease, fence)
        self.confirmed_at = sent_at

    def confirmed(self) -> bool:
        return time.monotonic() - self.confirmed_at < TTL_S

    async def live(self) -> None:
        while True:
            try:
                await self.renew()
                await self.put("catalog", BOOT, {**ME, "tools": [TOOL]}, {"Nats-TTL": "15s"})
                for call, stop in list(self.calls.values()):
                    if (await self.tail(call))[0] in OVER:
                        stop.set()
            except (nats.errors.Error, OSError) as error:
                if is_conflict(error):
                    raise  # Somebody wrote this boot's death: this process ends, the next one is another boot.
            await asyncio.sleep(1)

    # 2. Whose calls are obeyed: those of the claim that the run's newest record names, by the leader's word.
    async def tail(self, call: Json) -> tuple[str, int]:
        shard = call["run_id"].split("_")[1]
        log = f"{PREFIX}.log.{shard}.{call['tenant']}.{call['run_id']}.>"
        try:
            newest = await self.streams.get_last_msg(f"{PREFIX}-log-{shard}", log)
        except NotFoundError:
            return "DELETED", 0
        headers = newest.headers or {}
        return headers["Perdure-State"], int(headers["Perdure-Epoch"])

    # 3. The control subject: does this boot live, and end what runs.
    async def control(self, message: Msg) -> None:
        asked, chosen = json.loads(message.data), set[str]()
        if asked["type"] == "cancel_calls":
            if asked.get("call_id") is None:
                self.closing[asked["run_id"]] = (asked["epoch"], time.monotonic() + 5)
            for key, (call, stop) in self.calls.items():
                named = asked.get("call_id") in (None, call["call_id"])
                if named and call["run_id"] == asked["run_id"] and call["epoch"] <= asked["epoch"]:
                    chosen.add(key)
                    stop.set()
            for _ in range(13):
                if not chosen & self.calls.keys():
                    break
                await asyncio.sleep(0.1)
        await message.respond(json.dumps({"boot": BOOT, "ended": len(chosen)}).encode())

    # 4. A call: fence, journal, ack, lease, effect, journal, notice; in this order.
    async def take(self, message: Msg) -> None:
        call = json.loads(message.data)
        key = f"{call['run_id']}.{re.sub('[^A-Za-z0-9_-]', '_', call['call_id'])}.{call['attempt']}"
        if datetime.now(UTC) > datetime.fromisoformat(call["not_after"]) or key in self.calls:
            return await message.ack()
        epoch, until = self.closing.get(call["run_id"], (-1, 0.0))
        if not self.confirmed() or (call["epoch"] <= epoch and time.monotonic() < until):
            return await message.nak(1)
        stop = asyncio.Event()
        self.calls[key] = (call, stop)
        try:
            state, current = await self.tail(call)
            if state not in ("RUNNING", "VERIFYING") or current != call["epoch"]:
                return await message.ack()
            entry = {**ME, "state": "started", "at": datetime.now(UTC).isoformat()}
            revision = await self.begin(key, entry)
            await message.ack()
            if revision is None:
                return None
            self.started.add(key)
            result = {"call_id": call["call_id"], "attempt": call["attempt"], "ok": False, "output": ""}
            result |= await self.perform(call, stop) if self.confirmed() else {"refused": "HOST_SUSPECT"}
            await self.finish(key, {**entry, "state": "finished", "result": result}, revision)
        finally:
            del self.calls[key]
        notice = {"type": "tool.notice", "state": "finished"}
        notice |= {name: call[name] for name in ("run_id", "call_id", "attempt")}
        live = f"{PREFIX}.live.{call['tenant']}.{call['run_id']}"
        return await self.connection.publish(live, json.dumps(notice).encode())

    async def begin(self, key: str, entry: Json) -> int | None:
        """Create the key. `None`: somebody has begun this attempt, and only the owner decides what that means."""
        while True:
            try:
                return await self.put("journal", key, entry, {EXPECTED: "0"})
            except (nats.errors.Error, OSError) as error:
                if not is_conflict(error):
                    await asyncio.sleep(1)  # It may have been stored: then the next try finds our own entry.
                    continue
            found = await self.streams.get_last_msg(f"KV_{PREFIX}-journal", f"$KV.{PREFIX}-journal.{key}")
            held = json.loads(found.data or b"{}")
            ours = held["boot"] == BOOT and held["state"] == "started" and key not in self.started
            return found.seq if ours else None

    async def finish(self, key: str, entry: Json, revision: int) -> None:
        while True:
            try:
                await self.put("journal", key, entry, {EXPECTED: str(revision)})
                return
            except (nats.errors.Error, OSError) as error:
                if is_conflict(error):
                    return  # An earlier try was stored.
            await asyncio.sleep(1)

    # 5. The tool itself.
    async def perform(self, call: Json, stop: asyncio.Event) -> Json:
        account, cents = call["arguments"]["account"], call["arguments"]["cents"]
        with self.ledger.open("a") as file:
            file.write(f"{call['run_id']} {call['call_id']} {account} {cents}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            await asyncio.wait_for(stop.wait(), call["arguments"].get("seconds", 0))
        except TimeoutError:
            return {"ok": True, "output": f"posted {cents} to {account}"}
        return {"refused": "STOPPED", "output": "ended while the bank was asked"}

    async def pull(self, tasks: asyncio.TaskGroup) -> None:
        consumer = ConsumerConfig(
            durable_name=f"host-{BOOT}",
            filter_subject=f"{PREFIX}.tool.host.{BOOT}",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=15,
            inactive_threshold=86400,
        )
        await self.streams.add_consumer(f"{PREFIX}-tools", consumer)
        queue = await self.streams.pull_subscribe_bind(f"host-{BOOT}", f"{PREFIX}-tools")
        while True:
            try:
                for message in await queue.fetch(10, timeout=5):
                    tasks.create_task(self.take(message))
            except TimeoutError:
                continue


def is_conflict(error: Exception) -> bool:
    return isinstance(error, APIError) and error.err_code in (10071, 10164)


async def main(ledger: Path) -> None:
    access = json.loads(ACCESS.read_text())
    connection = await nats.connect(
        access["url"], user=access["user"], password=access["password"], max_reconnect_attempts=-1
    )
    host, ended = Host(connection, ledger), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await connection.subscribe(f"{PREFIX}.ctl.{BOOT}", cb=host.control)
    async with asyncio.TaskGroup() as tasks:
        living, pulling = tasks.create_task(host.live()), tasks.create_task(host.pull(tasks))
        await ended.wait()
        pulling.cancel()
        for _ in range(60):
            # What runs may finish; then the lease says that this boot is dead, and nobody has to suspect it.
            if not host.calls:
                break
            await asyncio.sleep(0.1)
        living.cancel()
    await host.renew(dead=True)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
