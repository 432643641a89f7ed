"""The client of the gateway: one method per endpoint, and a stream that resumes by itself.

Invariant: `stream` gives every event of a run exactly once and in order, whatever happens to the connection; it ends
when the run ended or waits for a person.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Literal
from urllib.parse import quote

import httpx

from libs.client.problems import problem
from libs.client.schedules import ScheduleCalls
from libs.client.sse import EventParser
from libs.client.wire import TIMEOUT_S, Wire, part
from libs.contracts.artifacts import ArtifactList, DiffView
from libs.contracts.errors import ConfigurationError, InternalError, PerdureError, Unavailable
from libs.contracts.exchange import WireView
from libs.contracts.forks import Fork, Retry
from libs.contracts.healthviews import HealthView
from libs.contracts.http import (
    Approval,
    PolicyQuestion,
    Reconciliation,
    Reply,
    SteeringMessage,
    TaskCreate,
    read_body,
)
from libs.contracts.ids import new_idempotency_key
from libs.contracts.policyviews import DecisionView
from libs.contracts.project_events import ProjectCancelled, ProjectCompleted
from libs.contracts.projecthttp import ProjectCreate, ProjectResume
from libs.contracts.projectviews import (
    FeatureList,
    ProjectCommandAccepted,
    ProjectCreated,
    ProjectList,
    ProjectView,
)
from libs.contracts.run import TERMINAL
from libs.contracts.views import (
    CommandAccepted,
    DeadLetterList,
    DeadLetterReplayed,
    EventsPage,
    EventView,
    QuestionList,
    RunList,
    RunMade,
    RunView,
    TaskCreated,
    TaskView,
)

# The gateway pings at least every 15 s: three missed pings are a dead connection.
SILENCE_S = 45.0
# Reconnects wait 0.2 s and double up to 5 s; twenty of them in a row without an answer are a minute and a half.
RECONNECT_S, RECONNECT_S_MAX, RECONNECTS_MAX = 0.2, 5.0, 20

NO_CONTENT = 204

_TERMINAL_TYPES = frozenset(f"run.{status.lower()}" for status in TERMINAL) | {
    ProjectCompleted.type,
    ProjectCancelled.type,
}
ProjectCommand = Literal["pause", "resume", "cancel"]
FeatureCommand = Literal["skip", "retry"]

# Told once an outage, before the first new attempt.
Reconnecting = Callable[[PerdureError], None]


class PerdureClient(Wire):
    """An async client; use it as a context manager. Failures are raised as `PerdureError`.

    Reads, and commands with an idempotency key, are repeated while the gateway is away for a moment. `reply`, `approve`,
    `reconcile` and `message` have a key of their own if none is given; give one to what creates something.
    """

    @property
    def schedules(self) -> ScheduleCalls:
        """What can be asked about schedules."""
        return ScheduleCalls(self)

    async def create_task(self, task: TaskCreate, *, idempotency_key: str | None = None) -> TaskCreated:
        return await self.post("/api/tasks", TaskCreated, task, idempotency_key)

    async def task(self, task_id: str) -> TaskView:
        return await self.get(f"/api/tasks/{part(task_id)}", TaskView)

    async def run(self, run_id: str) -> RunView:
        return await self.get(f"/api/runs/{part(run_id)}", RunView)

    async def runs(
        self,
        *,
        status: str | None = None,
        task_id: str | None = None,
        q: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> RunList:
        """One page, newest first; ask again with its `next_cursor` until that is null."""
        query = {"status": status, "task_id": task_id, "q": q, "limit": limit, "cursor": cursor}
        return await self.get("/api/runs", RunList, query)

    async def start(self, run_id: str) -> CommandAccepted:
        return await self.post(f"/api/runs/{part(run_id)}/start", CommandAccepted)

    async def cancel(self, run_id: str) -> CommandAccepted:
        return await self.post(f"/api/runs/{part(run_id)}/cancel", CommandAccepted)

    async def pause(self, run_id: str) -> CommandAccepted:
        return await self.post(f"/api/runs/{part(run_id)}/pause", CommandAccepted)

    async def resume(self, run_id: str) -> CommandAccepted:
        return await self.post(f"/api/runs/{part(run_id)}/resume", CommandAccepted)

    async def fork(self, run_id: str, fork: Fork, *, idempotency_key: str | None = None) -> RunMade:
        """A new run that goes on from an event of this one."""
        return await self.post(f"/api/runs/{part(run_id)}/fork", RunMade, fork, idempotency_key)

    async def retry(
        self, run_id: str, retry: Retry | None = None, *, idempotency_key: str | None = None
    ) -> RunMade:
        """A new run of the task of one that has ended."""
        path = f"/api/runs/{part(run_id)}/retry"
        return await self.post(path, RunMade, retry or Retry(), idempotency_key)

    async def delete(self, run_id: str) -> None:
        """Delete an ended run with all that it left."""
        await self.send("DELETE", f"/api/runs/{part(run_id)}")

    async def reply(
        self,
        run_id: str,
        answer: str,
        *,
        question_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> CommandAccepted:
        body = read_body(Reply, {"answer": answer, "question_id": question_id})
        return await self.post(
            f"/api/runs/{part(run_id)}/reply", CommandAccepted, body, idempotency_key or new_idempotency_key()
        )

    async def approve(
        self, run_id: str, decision: Approval, *, idempotency_key: str | None = None
    ) -> CommandAccepted:
        """Approve or reject the call that the run waits to make."""
        path = f"/api/runs/{part(run_id)}/approve"
        return await self.post(path, CommandAccepted, decision, idempotency_key or new_idempotency_key())

    async def reconcile(
        self, run_id: str, decision: Reconciliation, *, idempotency_key: str | None = None
    ) -> CommandAccepted:
        """Say what became of the call whose outcome nobody knows."""
        path = f"/api/runs/{part(run_id)}/reconcile"
        return await self.post(path, CommandAccepted, decision, idempotency_key or new_idempotency_key())

    async def message(self, run_id: str, text: str, *, idempotency_key: str | None = None) -> CommandAccepted:
        body = read_body(SteeringMessage, {"text": text})
        return await self.post(
            f"/api/runs/{part(run_id)}/message",
            CommandAccepted,
            body,
            idempotency_key or new_idempotency_key(),
        )

    async def questions(self, run_id: str) -> QuestionList:
        return await self.get(f"/api/runs/{part(run_id)}/questions", QuestionList)

    async def events(self, run_id: str, *, after_sequence: int = 0, limit: int | None = None) -> EventsPage:
        query = {"after_sequence": after_sequence, "limit": limit}
        return await self.get(f"/api/runs/{part(run_id)}/events", EventsPage, query)

    async def event(self, run_id: str, sequence: int) -> EventView:
        """One event with its whole payload, however long."""
        return await self.get(f"/api/runs/{part(run_id)}/events/{sequence}", EventView)

    async def wire(self, run_id: str, sequence: int) -> WireView:
        """The recording of the model call that an event ended."""
        return await self.get(f"/api/runs/{part(run_id)}/wire/{sequence}", WireView)

    async def artifacts(
        self, run_id: str, *, limit: int | None = None, cursor: str | None = None
    ) -> ArtifactList:
        """One page of the files of the run's workspace."""
        query = {"limit": limit, "cursor": cursor}
        return await self.get(f"/api/runs/{part(run_id)}/artifacts", ArtifactList, query)

    async def artifact(self, run_id: str, path: str | bytes) -> bytes:
        """The bytes of one file, all of them in memory."""
        return await self.send("GET", f"/api/runs/{part(run_id)}/artifacts/{quote(path, safe='/')}")

    async def diff(self, run_id: str, *, path: str | None = None) -> DiffView:
        """What changed in the run's workspace since the run began."""
        return await self.get(f"/api/runs/{part(run_id)}/diff", DiffView, {"path": path})

    async def dead_letters(
        self, *, kind: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> DeadLetterList:
        """One page, newest first. In secure mode the token is the operators' key."""
        query = {"kind": kind, "limit": limit, "cursor": cursor}
        return await self.get("/api/dead-letters", DeadLetterList, query)

    async def replay_dead_letter(self, letter_id: str) -> DeadLetterReplayed:
        """Send a dead letter's message again to where it came from."""
        return await self.post(f"/api/dead-letters/{part(letter_id)}/replay", DeadLetterReplayed)

    async def explain_policy(self, question: PolicyQuestion) -> DecisionView:
        """What the policy would decide about a call."""
        return await self.post("/api/policy/explain", DecisionView, question)

    async def create_project(
        self, project: ProjectCreate, *, idempotency_key: str | None = None
    ) -> ProjectCreated:
        return await self.post("/api/projects", ProjectCreated, project, idempotency_key)

    async def projects(
        self, *, status: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> ProjectList:
        """One page, newest first."""
        query = {"status": status, "limit": limit, "cursor": cursor}
        return await self.get("/api/projects", ProjectList, query)

    async def project(self, project_id: str) -> ProjectView:
        """The progress card. `stream` follows a project's own events by its id."""
        return await self.get(f"/api/projects/{part(project_id)}", ProjectView)

    async def features(self, project_id: str) -> FeatureList:
        return await self.get(f"/api/projects/{part(project_id)}/features", FeatureList)

    async def command_project(
        self, project_id: str, command: ProjectCommand, body: ProjectResume | None = None
    ) -> ProjectCommandAccepted:
        """Pause, resume (with other limits, if some are given) or cancel a project."""
        path = f"/api/projects/{part(project_id)}/{command}"
        return await self.post(path, ProjectCommandAccepted, body)

    async def command_feature(
        self, project_id: str, feature_id: str, command: FeatureCommand
    ) -> ProjectCommandAccepted:
        """Skip or retry a feature."""
        path = f"/api/projects/{part(project_id)}/features/{part(feature_id)}/{command}"
        return await self.post(path, ProjectCommandAccepted)

    async def health(self) -> HealthView:
        return await self.get("/api/health", HealthView)

    async def ready(self) -> bool:
        """Whether the gateway can use its bus and log. An unreachable gateway is not ready."""
        try:
            return (await self._http.get("/api/health/ready")).is_success
        except httpx.TransportError:
            return False

    async def stream(
        self,
        run_id: str,
        *,
        after_sequence: int = 0,
        deltas: bool = True,
        follow_suspended: bool = False,
        reconnecting: Reconnecting | None = None,
    ) -> AsyncGenerator[EventView]:
        """Every event of a run, or of a project, after `after_sequence`, then live ones, with reconnects in between.

        Ends after a terminal event, and, without `follow_suspended`, once the run waits for a person. A gateway that
        this client has never reached is not waited for.
        """
        seen, failures, retry_ms = after_sequence, 0, None
        while True:
            query = {"deltas": _flag(deltas), "follow_suspended": _flag(follow_suspended)}
            parser, idle = EventParser(), True
            try:
                async with aclosing(self._connect(run_id, query, seen, parser)) as events:
                    async for event in events:
                        if event is None:
                            return
                        failures, idle = 0, False
                        if 0 < event.sequence <= seen:
                            continue
                        seen = max(seen, event.sequence)
                        yield event
                        if event.type in _TERMINAL_TYPES:
                            return
                if not idle:
                    continue  # A clean end after news: the gateway says at once whether something is left.
            except ConfigurationError:
                raise  # Somebody has to change something first: asking again does not help.
            except (Unavailable, InternalError, httpx.TransportError, ValueError) as error:
                failures += 1
                if failures >= RECONNECTS_MAX or not self._was_there:
                    raise self._lost(error) from error
                if reconnecting is not None and failures == 1:
                    reconnecting(self._lost(error))
            retry_ms = parser.retry_ms if parser.retry_ms is not None else retry_ms
            base_s = retry_ms / 1000 if retry_ms is not None else RECONNECT_S
            await self._sleep(min(base_s * 2 ** max(0, failures - 1), RECONNECT_S_MAX))

    async def _connect(
        self, run_id: str, query: Mapping[str, str], seen: int, parser: EventParser
    ) -> AsyncGenerator[EventView | None]:
        """The events of one connection; `None` says that the gateway has nothing left for this client."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(seen)}
        timeout = httpx.Timeout(TIMEOUT_S, read=SILENCE_S)
        kind = "projects" if run_id.startswith("project_") else "runs"
        path = f"/api/{kind}/{part(run_id)}/stream"
        async with self._http.stream(
            "GET", path, params=dict(query), headers=headers, timeout=timeout
        ) as response:
            self._was_there = True
            if response.status_code == NO_CONTENT:
                yield None
                return
            if response.is_error:
                raise problem(
                    response.status_code, await response.aread(), response.headers.get("Retry-After")
                )
            async for chunk in response.aiter_bytes():
                for event in parser.feed(chunk):
                    yield EventView.model_validate_json(event.data)


def _flag(value: bool) -> str:
    return "true" if value else "false"
