"""The load: scripted runs of every kind, each carried by a client that answers what the run asks.

Invariant: the client does what a careful client does, and no more: it repeats what it does not know the outcome of
under the same key, through any gateway, and believes only what it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from libs.client import GatewayUnreachable, PerdureClient
from libs.contracts.errors import InternalError, InvalidState, PerdureError, Unavailable
from libs.contracts.http import Reconciliation, TaskCreate
from libs.contracts.views import EventView, RunView
from tests.e2e.stage import Script, call, calls, says

EDITS, COUNTS, ECHOES = 5, 3, 10
# One request; a gateway that is frozen must not hold a client for longer.
REQUEST_S = 20.0
# Between two tries through the next gateway.
AGAIN_S = 0.2
# Between two looks for runs that wait for a person and have no client.
ATTEND_S = 1.0

SCRIPT: Script = {
    "[echo]": [
        *(calls(call("echo", text=f"turn {n}"), delay_s=0.3) for n in range(ECHOES)),
        says("I echoed."),
    ],
    "[edit]": [
        *(
            calls(call("write_file", path=f"{n}.txt", content=f"text {n}\n"), call("list_files"), delay_s=0.3)
            for n in range(EDITS)
        ),
        calls(call("run_tests")),
        says("I wrote `0.txt` and the others."),
    ],
    "[count]": [
        *(calls(call("count", counter=f"c{n}", seconds=1.5), delay_s=0.3) for n in range(COUNTS)),
        says("I counted."),
    ],
    "[ask]": [
        calls(call("echo", text="first"), delay_s=0.3),
        calls(call("ask_user", question="left or right?"), delay_s=0.3),
        says("Thank you.", delay_s=0.3),
    ],
    "[delegate]": [
        calls(call("delegate", goal="[echo] for another"), call("delegate", goal="[count] for another")),
        says("They did it."),
    ],
}


class Carried(NamedTuple):
    """A run as its client saw it. `events` are the sequences that the streams delivered, in their order."""

    run_id: str
    marker: str
    workspace: str
    events: list[int]
    answers: dict[str, str]


class Load:
    """Keeps a number of runs going through several gateways. `accepted` are all that a gateway said yes to."""

    def __init__(self, urls: Sequence[str], workspaces: Path, random: Random) -> None:
        self._clients = [PerdureClient(url, timeout_s=REQUEST_S) for url in urls]
        self._workspaces, self._random = workspaces, random
        self._numbers = count()
        self._turn = count()
        self.accepted: dict[str, Carried] = {}
        self.children: dict[str, Carried] = {}
        self.refused: list[str] = []
        self.open = 0

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def keep(self, runs: int, stop: asyncio.Event) -> None:
        """Have `runs` runs going until `stop`, then see the last of them end."""
        attending = asyncio.create_task(self._attend_children())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(runs):
                    group.create_task(self._carry_on(stop))
        finally:
            attending.cancel()

    async def _attend_children(self) -> None:
        """Answer for the runs that no client of ours made: their parents wait for them."""
        while True:
            await asyncio.sleep(ATTEND_S)
            try:
                page = await self._client().runs(status="RECONCILIATION_REQUIRED", limit=100)
                for found in page.runs:
                    if found.run_id not in self.accepted:
                        await self._attend(await self._client().run(found.run_id))
            except (GatewayUnreachable, Unavailable, InternalError) as error:
                await self._pause(error)

    async def _attend(self, child: RunView) -> None:
        pending = child.pending_reconciliation
        if pending is not None:
            run = self.children.setdefault(child.run_id, Carried(child.run_id, "", "", [], {}))
            await self._reconcile(run, pending.call_id, pending.sequence or 0)

    async def _carry_on(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.open += 1
            await self._carry(next(self._numbers))
            self.open -= 1

    async def _carry(self, number: int) -> None:
        marker = list(SCRIPT)[number % len(SCRIPT)]
        workspace = f"w{number}" if marker == "[edit]" else ""
        if workspace:
            folder = self._workspaces / workspace
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "run_tests.sh").write_text("exit 0\n")
        run = await self._accepted(f"{marker} {number}", f"chaos-{number}", workspace, marker)
        while True:
            last = await self._watched(run)
            match last.type:
                case "run.completed" | "run.failed" | "run.cancelled":
                    return
                case "input.requested":
                    await self._reply(run, last)
                case "reconciliation.required":
                    await self._reconcile(run, str(last.payload["call_id"]), last.sequence)
                case _:
                    await asyncio.sleep(AGAIN_S)

    async def _accepted(self, goal: str, key: str, workspace: str, marker: str) -> Carried:
        fields: Mapping[str, object] = {"goal": goal, "auto_start": True} | (
            {"workspace": workspace} if workspace else {}
        )
        task = TaskCreate.model_validate(fields)
        while True:
            try:
                created = await self._client().create_task(task, idempotency_key=key)
            except (GatewayUnreachable, Unavailable, InternalError) as error:
                await self._pause(error)
                continue
            run = Carried(created.run_id, marker, workspace or created.run_id, [], {})
            self.accepted[created.run_id] = run
            return run

    async def _watched(self, run: Carried) -> EventView:
        """The newest event once the stream has nothing more to say; streams that break go on elsewhere."""
        last: EventView | None = None
        while True:
            try:
                seen = run.events[-1] if run.events else 0
                async for event in self._client().stream(run.run_id, after_sequence=seen, deltas=False):
                    run.events.append(event.sequence)
                    last = event
                if last is not None:
                    return last
                # The stream had nothing more than what an earlier one told.
                return await self._client().event(run.run_id, run.events[-1])
            except (GatewayUnreachable, Unavailable, InternalError) as error:
                await self._pause(error)

    async def _reply(self, run: Carried, asked: EventView) -> None:
        question = str(asked.payload["question_id"])
        try:
            await self._client().reply(
                run.run_id, "left", question_id=question, idempotency_key=f"reply-{asked.sequence}"
            )
        except (GatewayUnreachable, Unavailable, InternalError) as error:
            await self._pause(error)
        except InvalidState:
            # It was answered by the request whose answer was lost.
            return

    async def _reconcile(self, run: Carried, call_id: str, sequence: int) -> None:
        key = f"{call_id}.{sequence}"
        decision = run.answers.setdefault(key, self._random.choice(("accept", "retry")))
        body = Reconciliation.model_validate(
            {"call_id": call_id, "decision": decision}
            | ({"observation": "it is there"} if decision == "accept" else {})
        )
        try:
            await self._client().reconcile(run.run_id, body, idempotency_key=f"reconcile-{sequence}")
        except (GatewayUnreachable, Unavailable, InternalError) as error:
            await self._pause(error)
        except InvalidState:
            return

    def _client(self) -> PerdureClient:
        return self._clients[next(self._turn) % len(self._clients)]

    async def _pause(self, error: PerdureError) -> None:
        self.refused.append(error.code)
        await asyncio.sleep(AGAIN_S)
