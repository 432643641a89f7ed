"""What one operation of the API is, and the parameters that several share.

Invariant: nothing here knows a handler; `operations.py` lists the operations, `app.py` wires them.
"""

from typing import Literal, NamedTuple

from pydantic import BaseModel

from libs.contracts import http
from libs.contracts.run import RunStatus

Schema = dict[str, object]


Audience = Literal["tenants", "operators", "both", "everybody"]


class Parameter(NamedTuple):
    name: str
    place: str
    schema: Schema
    description: str
    required: bool = False


class Operation(NamedTuple):
    """One method of one path. `name` finds its handler; what it `gives` is JSON, or bytes of a `media` type, or nothing.

    `audience`: who may call it once there are secrets. A tenant sees its own runs, an operator what is everybody's; what
    is for both is told who asks.
    """

    name: str
    method: str
    path: str
    summary: str
    gives: type[BaseModel] | None
    success: tuple[int, ...] = (200,)
    takes: type[http.Request] | None = None
    media: str | None = None
    parameters: tuple[Parameter, ...] = ()
    failures: tuple[int, ...] = ()
    audience: Audience = "tenants"


def integer(least: int, most: int | None = None, default: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "minimum": least}
    if most is not None:
        schema["maximum"] = most
    if default is not None:
        schema["default"] = default
    return schema


def flag(name: str, description: str, *, default: bool) -> Parameter:
    return Parameter(name, "query", {"type": "boolean", "default": default}, description)


RUN = Parameter("run_id", "path", {"type": "string"}, "The run's id.", required=True)
TASK = Parameter("task_id", "path", {"type": "string"}, "The task's id.", required=True)
KEY = Parameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": http.IDEMPOTENCY_KEY_CHARS_MAX},
    "A retry with the same key and body gets the first answer again; with another body 409.",
)
AFTER = Parameter("after_sequence", "query", integer(0, default=0), "Only events behind this sequence.")
RESUME = Parameter(
    "Last-Event-ID",
    "header",
    integer(0),
    "The same as after_sequence, as browsers send it; it wins over every query parameter.",
)
STATUSES: Schema = {
    "type": "array",
    "items": {"type": "string", "enum": [status.value for status in RunStatus]},
}
KNOWN = Parameter(
    "If-None-Match", "header", {"type": "string"}, "An `ETag` that is known: 304 while it still holds."
)
