"""What a run did behind a snapshot is done again from its log, when its workspace was brought back on another machine.

Invariant: only changes of files are made again, by their recorded arguments, in the order of the log, and not where the
file is further on already; every other effect is named, because nobody knows what it did. Doing it twice is harmless.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec

from libs.bus.journal import Journal
from libs.bus.ports import Log, LogKey
from libs.chassis.logs import get_logger
from libs.contracts.envelope import Event, decode_events
from libs.contracts.events import ToolCompleted, ToolRequested, WorkspaceSnapshotted
from libs.contracts.tools import Semantics, ToolCall, ToolResult
from libs.contracts.workspaces import Saved
from services.toolhost.attach import Attached
from services.toolhost.errors import ToolFailure
from services.toolhost.processes import Processes
from services.toolhost.sandbox import Sandbox
from services.toolhost.tools import ToolContext
from services.toolhost.tools.catalog import TOOLS
from services.toolhost.tools.files import GONE, apply, sha256_of

# Of one call, for the model; the log has the whole.
_ARGUMENTS_CHARS_MAX = 200
# Named one by one; whoever did more has to look around anyway.
LOST_MAX = 20


class Done(NamedTuple):
    """A call with an effect that was carried out behind the snapshot. `before` and `after` are digests by path."""

    call_id: str
    attempt: int
    name: str
    arguments: dict[str, object]
    ok: bool
    before: dict[str, str]
    after: dict[str, str]


def done_behind(
    events: Sequence[Event], saved: Saved | None, run_id: str
) -> tuple[list[Done], list[ToolRequested]]:
    """What a run's log says was done behind the snapshot, in order; and the calls that it knows no outcome of."""
    since = saved.at_sequence if saved is not None and saved.run_id == run_id else 0
    requested: dict[str, ToolRequested] = {}
    done: list[Done] = []
    for event in events:
        match event.body:
            case ToolRequested(needs_workspace=True) as body if body.semantics is not Semantics.READ_ONLY:
                requested[body.call_id] = body
            case ToolCompleted(call_id=call_id) as body if call_id in requested:
                intent = requested.pop(call_id)
                if event.sequence > since:
                    done.append(_done(intent, body.ok, body.metadata))
            case WorkspaceSnapshotted(saved=Saved(run_id=by, at_sequence=kept)) if saved is not None:
                # Another run's snapshot is newer than this one: what this one holds, that one holds too.
                if saved.run_id != run_id and by == run_id:
                    since = kept
                    done = []
            case _:
                pass
    return done, list(requested.values())


def further_on(found: str, path: str, index: int, done: Sequence[Done]) -> bool:
    """Whether a file with this digest is at what call `index` made of it, or at what a later one made or began from."""
    if done[index].after.get(path) == found:
        return True
    return any(found in (later.after.get(path), later.before.get(path)) for later in done[index + 1 :])


class Again:
    """Does it; see the module."""

    def __init__(self, log: Log, journal: Journal, processes: Processes, sandbox: Sandbox) -> None:
        self._log, self._journal = log, journal
        self._processes, self._sandbox = processes, sandbox
        self._logger = get_logger("replay")

    async def run(self, call: ToolCall, attached: Attached, saved: Saved | None) -> list[str]:
        """The effects of the call's run that may be missing still, in words for the model."""
        records = await self._log.read(LogKey(call.tenant, call.run_id))
        events = [event for record in records for event in decode_events(record)]
        done, open_calls = done_behind(events, saved, call.run_id)
        done += await self._finished(call.run_id, open_calls)
        lost: list[str] = []
        again = 0
        for index, each in enumerate(done):
            tool = TOOLS.get(each.name)
            if tool is None or tool.plan is None:
                lost.append(_words(each))
            elif each.ok and not await asyncio.to_thread(_all_further_on, attached, index, done):
                problem = await self._repeat(call, attached, each)
                again += problem is None
                lost += [problem] if problem is not None else []
        self._logger.info("workspace.replayed", run_id=call.run_id, again=again, lost=len(lost))
        if len(lost) > LOST_MAX:
            lost = [f"{len(lost) - LOST_MAX} earlier ones", *lost[-LOST_MAX:]]
        return lost

    async def _finished(self, run_id: str, open_calls: Sequence[ToolRequested]) -> list[Done]:
        """Calls that a host finished and no owner has recorded yet: their results will be adopted."""
        found: list[Done] = []
        for intent in open_calls:
            entry = await self._journal.read(run_id, intent.call_id, intent.attempt)
            result: ToolResult | None = entry.entry.result if entry is not None else None
            if result is not None and result.refused is None:
                found.append(_done(intent, result.ok, result.metadata))
        return found

    async def _repeat(self, call: ToolCall, attached: Attached, each: Done) -> str | None:
        """Make the change again; what to tell the model if it cannot be made."""
        plan = TOOLS[each.name].plan
        assert plan is not None
        context = ToolContext(
            call_id=f"{call.run_id}.{each.call_id}.{each.attempt}",
            guard=attached.guard,
            repository=attached.repository,
            undo=attached.undo,
            processes=self._processes,
            sandbox=self._sandbox,
        )
        try:
            planned = await plan(context, each.arguments)
            await asyncio.to_thread(apply, attached.guard, planned, attached.undo)
        except ToolFailure as failure:
            return f"{_words(each)} ({failure.code})"
        return None


def _all_further_on(attached: Attached, index: int, done: Sequence[Done]) -> bool:
    after = done[index].after
    return bool(after) and all(
        further_on(sha256_of(attached.guard, path) or GONE, path, index, done) for path in after
    )


def _done(intent: ToolRequested, ok: bool, metadata: dict[str, object]) -> Done:
    several, path = metadata.get("files"), metadata.get("path")
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    if isinstance(several, dict):
        after = cast(dict[str, object], several)
        before = cast(dict[str, object], metadata.get("files_before") or {})
    elif isinstance(path, str):
        after, before = {path: metadata.get("sha256")}, {path: metadata.get("sha256_before")}
    return Done(
        call_id=intent.call_id,
        attempt=intent.attempt,
        name=intent.name,
        arguments=intent.arguments,
        ok=ok,
        before={name: str(digest or GONE) for name, digest in before.items()},
        after={name: str(digest or GONE) for name, digest in after.items()},
    )


def _words(done: Done) -> str:
    arguments = msgspec.json.encode(done.arguments).decode()
    if len(arguments) > _ARGUMENTS_CHARS_MAX:
        arguments = f"{arguments[:_ARGUMENTS_CHARS_MAX]}…"
    return f"{done.name} {arguments}"
