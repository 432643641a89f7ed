"""The API in one table: every method and path, what it takes and gives, and how it may fail.

Invariant: routes, `Allow` headers and OpenAPI are all made from this table, so they cannot disagree.
"""

from typing import Literal, NamedTuple

from pydantic import BaseModel

from libs.contracts import http, views
from libs.contracts.exchange import WireView
from libs.contracts.run import RunStatus
from libs.projection.rows import LIMIT_DEFAULT, LIMIT_MAX
from services.gateway.deadletters import LETTERS_LIMIT_DEFAULT, LETTERS_LIMIT_MAX
from services.gateway.runs import EVENTS_LIMIT_DEFAULT, EVENTS_LIMIT_MAX

Schema = dict[str, object]


Audience = Literal["tenants", "operators", "everybody"]


class Parameter(NamedTuple):
    name: str
    place: str
    schema: Schema
    description: str
    required: bool = False


class Operation(NamedTuple):
    """One method of one path. `name` finds its handler; `gives` is `None` for a stream and for a 204 alone.

    `audience`: who may call it once there are secrets. A tenant sees its own runs, an operator what is everybody's.
    """

    name: str
    method: str
    path: str
    summary: str
    gives: type[BaseModel] | None
    success: tuple[int, ...] = (200,)
    takes: type[http.Request] | None = None
    parameters: tuple[Parameter, ...] = ()
    failures: tuple[int, ...] = ()
    audience: Audience = "tenants"


def _integer(least: int, most: int | None = None, default: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "minimum": least}
    if most is not None:
        schema["maximum"] = most
    if default is not None:
        schema["default"] = default
    return schema


def _flag(name: str, description: str, *, default: bool) -> Parameter:
    return Parameter(name, "query", {"type": "boolean", "default": default}, description)


_RUN = Parameter("run_id", "path", {"type": "string"}, "The run's id.", required=True)
_TASK = Parameter("task_id", "path", {"type": "string"}, "The task's id.", required=True)
_KEY = Parameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": http.IDEMPOTENCY_KEY_CHARS_MAX},
    "A retry with the same key and body gets the first answer again; with another body 409.",
)
_AFTER = Parameter("after_sequence", "query", _integer(0, default=0), "Only events behind this sequence.")
_RESUME = Parameter(
    "Last-Event-ID",
    "header",
    _integer(0),
    "The same as after_sequence, as browsers send it; it wins over every query parameter.",
)
_STATUSES: Schema = {
    "type": "array",
    "items": {"type": "string", "enum": [status.value for status in RunStatus]},
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "create_task",
        "POST",
        "/api/tasks",
        "Create a task and its run; start it with auto_start.",
        views.TaskCreated,
        success=(201, 200),
        takes=http.TaskCreate,
        parameters=(_KEY,),
        failures=(409, 410, 413, 415, 422, 429, 503),
    ),
    Operation(
        "show_task",
        "GET",
        "/api/tasks/{task_id}",
        "A task with its runs.",
        views.TaskView,
        parameters=(_TASK,),
        failures=(404, 503),
    ),
    Operation(
        "list_runs",
        "GET",
        "/api/runs",
        "Runs, newest first.",
        views.RunList,
        parameters=(
            Parameter("status", "query", _STATUSES, "Only runs in one of these states, separated by commas."),
            Parameter("task_id", "query", {"type": "string"}, "Only runs of this task."),
            Parameter("project_id", "query", {"type": "string"}, "Only runs of this project."),
            Parameter("q", "query", {"type": "string"}, "Only runs whose goal contains this text."),
            Parameter("limit", "query", _integer(1, LIMIT_MAX, LIMIT_DEFAULT), "The length of a page."),
            Parameter("cursor", "query", {"type": "string"}, "next_cursor of the page before."),
        ),
        failures=(400, 422),
    ),
    Operation(
        "show_run",
        "GET",
        "/api/runs/{run_id}",
        "A run as its log tells it now.",
        views.RunView,
        parameters=(_RUN,),
        failures=(404, 503),
    ),
    Operation(
        "start_run",
        "POST",
        "/api/runs/{run_id}/start",
        "Start a PENDING run.",
        views.CommandAccepted,
        success=(202,),
        takes=http.Nothing,
        parameters=(_RUN,),
        failures=(404, 409, 413, 415, 422, 429, 503),
    ),
    Operation(
        "cancel_run",
        "POST",
        "/api/runs/{run_id}/cancel",
        "Cancel a run; cancelling again changes nothing.",
        views.CommandAccepted,
        success=(202,),
        takes=http.Nothing,
        parameters=(_RUN,),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "reply_to_run",
        "POST",
        "/api/runs/{run_id}/reply",
        "Answer the pending question; exactly one of concurrent replies wins.",
        views.CommandAccepted,
        success=(202,),
        takes=http.Reply,
        parameters=(_RUN, _KEY),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "approve_call",
        "POST",
        "/api/runs/{run_id}/approve",
        "Approve or reject the call that the run waits to make; exactly one of concurrent decisions wins.",
        views.CommandAccepted,
        success=(202,),
        takes=http.Approval,
        parameters=(_RUN, _KEY),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "reconcile_call",
        "POST",
        "/api/runs/{run_id}/reconcile",
        "Say what became of a call whose outcome nobody knows: accept, retry or fail.",
        views.CommandAccepted,
        success=(202,),
        takes=http.Reconciliation,
        parameters=(_RUN, _KEY),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "message_run",
        "POST",
        "/api/runs/{run_id}/message",
        "Send a steering message; it reaches the model with its next turn.",
        views.CommandAccepted,
        success=(202,),
        takes=http.SteeringMessage,
        parameters=(_RUN, _KEY),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "pause_run",
        "POST",
        "/api/runs/{run_id}/pause",
        "Pause a run once none of its calls is running; pausing again changes nothing.",
        views.CommandAccepted,
        success=(202,),
        takes=http.Nothing,
        parameters=(_RUN,),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "resume_run",
        "POST",
        "/api/runs/{run_id}/resume",
        "Go on with a paused run, or take back a pause that was asked for.",
        views.CommandAccepted,
        success=(202,),
        takes=http.Nothing,
        parameters=(_RUN,),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "delete_run",
        "DELETE",
        "/api/runs/{run_id}",
        "Delete an ended run with all that it left; its Idempotency-Key answers 410 for 90 days.",
        None,
        success=(204,),
        parameters=(_RUN,),
        failures=(404, 409, 413, 415, 422, 503),
    ),
    Operation(
        "list_questions",
        "GET",
        "/api/runs/{run_id}/questions",
        "All questions of a run with their answers, newest first.",
        views.QuestionList,
        parameters=(_RUN,),
        failures=(404, 503),
    ),
    Operation(
        "list_events",
        "GET",
        "/api/runs/{run_id}/events",
        "Events of a run, oldest first.",
        views.EventsPage,
        parameters=(
            _RUN,
            _AFTER,
            Parameter(
                "limit", "query", _integer(1, EVENTS_LIMIT_MAX, EVENTS_LIMIT_DEFAULT), "The length of a page."
            ),
        ),
        failures=(400, 404, 422, 503),
    ),
    Operation(
        "show_event",
        "GET",
        "/api/runs/{run_id}/events/{sequence}",
        "One event with all of its text, however long.",
        views.EventView,
        parameters=(
            _RUN,
            Parameter("sequence", "path", _integer(1), "The event's sequence.", required=True),
        ),
        failures=(404, 503),
    ),
    Operation(
        "show_recording",
        "GET",
        "/api/runs/{run_id}/wire/{sequence}",
        "What went over the wire in the model call that an event ended, where executors record it.",
        WireView,
        parameters=(
            _RUN,
            Parameter("sequence", "path", _integer(1), "The event's sequence.", required=True),
        ),
        failures=(404, 503),
    ),
    Operation(
        "stream_run",
        "GET",
        "/api/runs/{run_id}/stream",
        "Server-sent events: what is stored, then what comes.",
        None,
        success=(200, 204),
        parameters=(
            _RUN,
            _AFTER,
            _RESUME,
            _flag("replay", "false: only what comes from now on.", default=True),
            _flag("deltas", "false: without transient model.delta events.", default=True),
            _flag("follow_suspended", "true: stay while the run waits for a person.", default=False),
        ),
        failures=(400, 404, 422, 503),
    ),
    Operation(
        "list_dead_letters",
        "GET",
        "/api/dead-letters",
        "Messages that nobody could handle, with the reason, newest first. For operators.",
        views.DeadLetterList,
        parameters=(
            Parameter(
                "kind", "query", {"type": "string"}, "Only one kind: run, work, tasks, tools, rejected, ..."
            ),
            Parameter(
                "limit",
                "query",
                _integer(1, LETTERS_LIMIT_MAX, LETTERS_LIMIT_DEFAULT),
                "The length of a page.",
            ),
            Parameter("cursor", "query", {"type": "string"}, "next_cursor of the page before."),
        ),
        failures=(400, 422, 503),
        audience="operators",
    ),
    Operation(
        "replay_dead_letter",
        "POST",
        "/api/dead-letters/{letter_id}/replay",
        "Send a dead letter's message again to where it came from, and remove the letter. For operators.",
        views.DeadLetterReplayed,
        success=(202,),
        takes=http.Nothing,
        parameters=(Parameter("letter_id", "path", {"type": "string"}, "The letter's id.", required=True),),
        failures=(404, 409, 413, 415, 422, 503),
        audience="operators",
    ),
    Operation(
        "health",
        "GET",
        "/api/health",
        "What this deployment is made of.",
        views.HealthView,
        audience="everybody",
    ),
    Operation(
        "ready",
        "GET",
        "/api/health/ready",
        "Whether the bus and the log are usable.",
        views.ReadyView,
        failures=(503,),
        audience="everybody",
    ),
)
