"""Gives Perdure a task over the bus, as any service may: `python examples/publish_task.py "GOAL" [KEY]`.

The acknowledgement means that the task will run, or that `<p>.rejected.<tenant>` will say why not. With a key the same task
may be published again and again; it runs once.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import nats

PREFIX = "perdure"
TENANT = "local"
# Written by `perdure up`: where its server is, and how to get in.
ACCESS = Path(os.environ.get("NATS_JSON", ".perdure/nats.json"))


async def main(goal: str, key: str | None) -> None:
    access = json.loads(ACCESS.read_text())
    connection = await nats.connect(access["url"], user=access["user"], password=access["password"])
    # The body is that of `POST /api/tasks`; see task.json.
    task = {"goal": goal, "metadata": {"source": "example"}}
    acknowledged = await connection.jetstream().publish(
        f"{PREFIX}.tasks.{TENANT}",
        json.dumps(task).encode(),
        headers={"Idempotency-Key": key} if key else None,
    )
    print(f"stored as {acknowledged.stream} {acknowledged.seq}")
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
