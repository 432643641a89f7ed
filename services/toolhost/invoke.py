"""What this host does with a call that has passed the protocol: check it, find its workspace, run the tool.

Invariant: a tool sees only arguments of its schema, allowed by the policy, in a workspace that this host holds; and a
change of a file that an earlier attempt has made is found, not made again.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import msgspec

from libs.bus.journal import Journal, key_of
from libs.bus.ports import Blobs, Log
from libs.chassis.effects import Effect, Prepared, failed, refused
from libs.contracts.evidence import (
    BrowserQuestion,
    CommandQuestion,
    DiffQuestion,
    FilesQuestion,
    HttpQuestion,
    SnapshotQuestion,
)
from libs.contracts.tools import (
    VERIFY_BROWSER,
    VERIFY_COMMAND,
    VERIFY_DIFF,
    VERIFY_FILES,
    VERIFY_HTTP,
    VERIFY_SNAPSHOT,
    WORKSPACE_ATTACH,
    WORKSPACE_SNAPSHOT,
    JournalState,
    Refusal,
    Semantics,
    ToolCall,
    ToolResult,
)
from libs.contracts.workspaces import WORKSPACE_LEAVE
from libs.policy.reach import paths_of_call
from libs.policy.redaction import Redaction
from libs.policy.rules import Verb
from services.toolhost import errands
from services.toolhost.approvals import is_approved
from services.toolhost.attach import Attached, Workspaces
from services.toolhost.errors import ToolFailure
from services.toolhost.evidence import Evidence, Running
from services.toolhost.knowledge.backends import Knowledge
from services.toolhost.output import shown
from services.toolhost.pathlocks import PathLocks
from services.toolhost.processes import Processes
from services.toolhost.registry import Registry
from services.toolhost.sandbox import Sandbox
from services.toolhost.tools import Outcome, ToolContext, get_git_diff
from services.toolhost.tools.catalog import Tool, perform
from services.toolhost.tools.catalog import failed as failure_of
from services.toolhost.tools.files import Plan, apply, done_before, is_applied

# Attempts are claims of a dying host or run; nobody makes more than a few.
_ATTEMPTS_MAX = 20


# What a verifier asks for that needs a checkout.
_IN_CHECKOUTS: dict[str, type[CommandQuestion | HttpQuestion | BrowserQuestion]] = {
    VERIFY_COMMAND: CommandQuestion,
    VERIFY_HTTP: HttpQuestion,
    VERIFY_BROWSER: BrowserQuestion,
}


class HostParts(NamedTuple):
    """What invocations work with. `nowhere` stands in for the workspace of tools that need none."""

    log: Log
    journal: Journal
    registry: Registry
    workspaces: Workspaces
    evidence: Evidence
    processes: Processes
    sandbox: Sandbox
    tests_command: tuple[str, ...]
    nowhere: Attached
    ripgrep: str | None
    knowledge: Knowledge
    redaction: Redaction
    objects: Blobs


class Invocations:
    """The tool host's side of `libs/chassis/hosting.py`."""

    def __init__(self, parts: HostParts) -> None:
        self._parts = parts
        self._locks = PathLocks()

    async def answer(self, call: ToolCall, stop: asyncio.Event) -> ToolResult:
        """A READ_ONLY call."""
        if call.name == WORKSPACE_ATTACH:
            return await self._parts.workspaces.attach(call)
        if call.name == WORKSPACE_SNAPSHOT:
            return await self._parts.workspaces.keep(call)
        if call.name == VERIFY_FILES:
            return await self._files(call)
        if call.name == VERIFY_DIFF:
            return await self._diff(call)
        tool = self._parts.registry.find(call)
        if tool is None:
            return refused(call, Refusal.UNKNOWN_TOOL)
        if tool.spec.semantics is not Semantics.READ_ONLY:
            return refused(call, Refusal.MALFORMED, f"{call.name} has effects: send it over the work queue")
        checked = await self._checked(call, tool)
        if isinstance(checked, ToolResult):
            return checked
        context = self._context(call, checked.attached, stop, hidden=checked.hidden)
        return self._result(call, await perform(tool, context, call.arguments))

    @asynccontextmanager
    async def effect(self, call: ToolCall) -> AsyncGenerator[Prepared]:
        """A call with an effect. While the context lasts, nobody else plans a change of the same file."""
        async with AsyncExitStack() as stack:
            yield await self._prepared(call, stack)

    async def _prepared(self, call: ToolCall, stack: AsyncExitStack) -> Prepared:
        if call.name == VERIFY_SNAPSHOT or call.name in _IN_CHECKOUTS:
            return self._for_verifier(call)
        if call.name in errands.ERRANDS:
            return self._errand(call)
        tool = self._parts.registry.find(call)
        if tool is None:
            return refused(call, Refusal.UNKNOWN_TOOL, f"this host has no tool {call.name}")
        if tool.plan is not None:
            paths = paths_of_call(call.name, call.arguments)
            await stack.enter_async_context(self._locks.holding(call.workspace_id, paths))
        checked = await self._checked(call, tool)
        if isinstance(checked, ToolResult):
            return checked
        attached = checked.attached
        if tool.plan is not None:
            return await self._change(call, tool, attached)

        async def run(stop: asyncio.Event) -> ToolResult:
            try:
                return self._result(
                    call, await perform(tool, self._context(call, attached, stop), call.arguments)
                )
            finally:
                attached.record.forget_command(key_of(call))
                attached.guard.room.forget()

        return Effect(run, before={}, after={})

    async def _change(self, call: ToolCall, tool: Tool, attached: Attached) -> Prepared:
        """A change of files: planned now, so that the journal holds its digests before it happens."""
        assert tool.plan is not None
        done = await self._done_before(call, attached)
        if done is not None:
            return self._result(call, done)
        try:
            plan = await tool.plan(self._context(call, attached, asyncio.Event()), call.arguments)
        except ToolFailure as failure:
            return self._result(call, failure_of(failure))

        async def write(stop: asyncio.Event) -> ToolResult:
            del stop  # A change takes milliseconds and is whole or not at all.
            return self._result(call, await asyncio.to_thread(_applied, attached, plan))

        return Effect(write, before=plan.before, after=plan.after)

    async def _done_before(self, call: ToolCall, attached: Attached) -> Outcome | None:
        """The outcome of an earlier attempt that changed the files and did not live to say so."""
        for attempt in range(call.attempt - 1, max(0, call.attempt - 1 - _ATTEMPTS_MAX), -1):
            found = await self._parts.journal.read(call.run_id, call.call_id, attempt)
            if found is None or found.entry.state is not JournalState.STARTED:
                continue
            before, after = found.entry.before, found.entry.after
            # A change that leaves all bytes alone (a permission) cannot be seen in them: it is planned again.
            if before != after and await asyncio.to_thread(is_applied, attached.guard, after):
                return done_before(before, after)
        return None

    async def _checked(self, call: ToolCall, tool: Tool) -> "_Checked | ToolResult":
        """The call's workspace once schema and policy let it pass."""
        attached = self._parts.workspaces.find(call) if tool.spec.needs_workspace else self._parts.nowhere
        if attached is None:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        registry = self._parts.registry
        problem = registry.problem(call)
        if problem is not None:
            return failed(call, f"INVALID_ARGUMENTS: {problem}", {"error_code": "INVALID_ARGUMENTS"})
        decision = registry.decision(call)
        if decision.verb is Verb.DENY:
            return failed(call, f"DENIED: {decision.reason}", {"error_code": "DENIED"})
        if decision.verb is Verb.ASK and not await is_approved(self._parts.log, call):
            told = f"NOT_APPROVED: {decision.reason}; nobody has approved this call"
            if call.approval_sequence is None:
                # Its owner would have asked if it had to: it decides by another policy.
                told += ", and this tool host's policy is stricter than what the run goes by: the operator has to see to it"
            return failed(call, told, {"error_code": "NOT_APPROVED"})
        return _Checked(attached, registry.hides(call, approved=decision.verb is Verb.ASK))

    def _context(
        self,
        call: ToolCall,
        attached: Attached,
        stop: asyncio.Event,
        *,
        hidden: Callable[[str], bool] | None = None,
    ) -> ToolContext:
        key = key_of(call)

        async def note(group: int, start: int) -> None:
            attached.record.note_command(key, group, start)

        return ToolContext(
            # The marker of its processes: unlike the call's id it is unique on the machine.
            call_id=key,
            tenant=call.tenant,
            knowledge=self._parts.knowledge,
            objects=self._parts.objects,
            guard=attached.guard,
            repository=attached.repository,
            undo=attached.undo,
            seen=call.seen,
            redaction=self._parts.redaction,
            hidden=hidden,
            ripgrep=self._parts.ripgrep,
            processes=self._parts.processes,
            sandbox=self._parts.sandbox,
            baseline_commit=attached.baselines.get(call.run_id),
            run_tests_command=self._parts.tests_command,
            output_chars_max=call.output_chars_max,
            timeout_s=call.timeout_s,
            on_started=note,
            stop=stop,
        )

    def _errand(self, call: ToolCall) -> Prepared:
        """A step of a run that asks no model: of the runtime itself, so neither schema nor policy is asked."""
        attached = self._parts.workspaces.find(call)
        if attached is None:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        if call.name == WORKSPACE_LEAVE:
            self._parts.workspaces.leaving.add(attached.place.directory)

        async def run(stop: asyncio.Event) -> ToolResult:
            try:
                context = self._context(call, attached, stop)
                return self._result(call, await errands.perform(call.name, context, call.arguments))
            finally:
                attached.record.forget_command(key_of(call))
                attached.guard.room.forget()

        return Effect(run, before={}, after={})

    def _result(self, call: ToolCall, outcome: Outcome) -> ToolResult:
        return _result(call, outcome, self._parts.redaction)

    # --- For verifiers --------------------------------------------------------------------------------------------

    def _for_verifier(self, call: ToolCall) -> Prepared:
        attached = self._parts.workspaces.find(call)
        if attached is None:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        try:
            if call.name == VERIFY_SNAPSHOT:
                question = msgspec.convert(call.arguments, SnapshotQuestion)
                return Effect(_Snapshot(self._parts, call, attached, question), before={}, after={})
            asked = msgspec.convert(call.arguments, _IN_CHECKOUTS[call.name])
            return Effect(_InCheckout(self._parts, call, attached, asked), before={}, after={})
        except msgspec.ValidationError as error:
            return refused(call, Refusal.UNKNOWN_TOOL, f"{call.name}: {error}")

    async def _files(self, call: ToolCall) -> ToolResult:
        attached = self._parts.workspaces.find(call)
        if attached is None:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        try:
            question = msgspec.convert(call.arguments, FilesQuestion)
        except msgspec.ValidationError as error:
            return refused(call, Refusal.MALFORMED, str(error))
        return _facts(call, await self._parts.evidence.files(attached, question))

    async def _diff(self, call: ToolCall) -> ToolResult:
        attached = self._parts.workspaces.find(call)
        if attached is None:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        # A model reads it, so it sees what the run's own model may look at.
        looks = msgspec.structs.replace(call, name=get_git_diff.SPEC.name)
        hidden = self._parts.registry.hides(looks, approved=False)
        try:
            question = msgspec.convert(call.arguments, DiffQuestion)
            return _facts(call, await self._parts.evidence.diff(attached, question, hidden))
        except msgspec.ValidationError as error:
            return refused(call, Refusal.MALFORMED, str(error))
        except ToolFailure as failure:
            return _result(call, failure_of(failure), self._parts.redaction)


class _Checked(NamedTuple):
    """A call that may be carried out: in which workspace, and which files a look at many passes over."""

    attached: Attached
    hidden: Callable[[str], bool] | None


class _Snapshot(NamedTuple):
    parts: HostParts
    call: ToolCall
    attached: Attached
    question: SnapshotQuestion

    async def __call__(self, stop: asyncio.Event) -> ToolResult:
        del stop  # A snapshot only adds objects; it is left to finish.
        try:
            return _facts(self.call, await self.parts.evidence.snapshot(self.attached, self.question))
        except ToolFailure as failure:
            return _result(self.call, failure_of(failure), self.parts.redaction)


class _InCheckout(NamedTuple):
    parts: HostParts
    call: ToolCall
    attached: Attached
    question: CommandQuestion | HttpQuestion | BrowserQuestion

    async def __call__(self, stop: asyncio.Event) -> ToolResult:
        key, record = key_of(self.call), self.attached.record

        async def note(group: int, start: int) -> None:
            record.note_command(key, group, start)

        run = Running(key, note, stop)
        try:
            match self.question:
                case CommandQuestion() as command:
                    answer, output = await self.parts.evidence.command(self.attached, command, run)
                case HttpQuestion() | BrowserQuestion() as request:
                    answer, output = await self.parts.evidence.served(self.attached, request, run)
            return _facts(self.call, answer, shown(output, self.call.output_chars_max, self.parts.redaction))
        except ToolFailure as failure:
            return _result(self.call, failure_of(failure), self.parts.redaction)
        finally:
            record.forget_command(key)


def _applied(attached: Attached, plan: Plan) -> Outcome:
    try:
        return apply(attached.guard, plan, attached.undo)
    except ToolFailure as failure:
        return failure_of(failure)


def _result(call: ToolCall, outcome: Outcome, redaction: Redaction) -> ToolResult:
    return ToolResult(
        call_id=call.call_id,
        attempt=call.attempt,
        ok=outcome.ok,
        output=shown(outcome.output, call.output_chars_max, redaction),
        metadata=outcome.metadata,
    )


def _facts(call: ToolCall, answer: msgspec.Struct, output: str = "") -> ToolResult:
    return ToolResult(
        call_id=call.call_id,
        attempt=call.attempt,
        ok=True,
        output=output,
        metadata=msgspec.to_builtins(answer),
    )
