"""The operations of the API that concern schedules; `operations.py` puts them beside the others.

Invariant: as there: routes, `Allow` headers and OpenAPI are made from these.
"""

from libs.contracts import http, schedulehttp, scheduleviews
from libs.contracts.schedules import ScheduleStatus
from libs.projection.rows import LIMIT_DEFAULT, LIMIT_MAX
from services.gateway.operation import KEY, Operation, Parameter, integer

_SCHEDULE = Parameter("schedule_id", "path", {"type": "string"}, "The schedule's id.", required=True)
_STATUSES: dict[str, object] = {
    "type": "array",
    "items": {"type": "string", "enum": [status.value for status in ScheduleStatus]},
}

SCHEDULE_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "create_schedule",
        "POST",
        "/api/schedules",
        "Create a schedule: a task that is done at its times.",
        scheduleviews.ScheduleCreated,
        success=(201, 200),
        takes=schedulehttp.ScheduleCreate,
        parameters=(KEY,),
        failures=(409, 410, 408, 413, 415, 422, 503),
    ),
    Operation(
        "list_schedules",
        "GET",
        "/api/schedules",
        "Schedules, newest first.",
        scheduleviews.ScheduleList,
        parameters=(
            Parameter("status", "query", _STATUSES, "Only schedules in one of these states, by commas."),
            Parameter("limit", "query", integer(1, LIMIT_MAX, LIMIT_DEFAULT), "The length of a page."),
            Parameter("cursor", "query", {"type": "string"}, "next_cursor of the page before."),
        ),
        failures=(400, 422, 503),
    ),
    Operation(
        "show_schedule",
        "GET",
        "/api/schedules/{schedule_id}",
        "A schedule as its log tells it now.",
        scheduleviews.ScheduleView,
        parameters=(_SCHEDULE,),
        failures=(404, 503),
    ),
    Operation(
        "change_schedule",
        "PATCH",
        "/api/schedules/{schedule_id}",
        "Change what is named. Other times, or switching it on, count from now.",
        scheduleviews.ScheduleView,
        takes=schedulehttp.ScheduleChange,
        parameters=(_SCHEDULE,),
        failures=(404, 408, 413, 415, 422, 503),
    ),
    Operation(
        "delete_schedule",
        "DELETE",
        "/api/schedules/{schedule_id}",
        "Delete a schedule. Runs that it made go on.",
        None,
        success=(204,),
        parameters=(_SCHEDULE,),
        failures=(404, 408, 413, 415, 422, 503),
    ),
    Operation(
        "fire_schedule",
        "POST",
        "/api/schedules/{schedule_id}/fire",
        "Have it done now, whatever goes on and whether it is enabled or not.",
        scheduleviews.ScheduleFireAccepted,
        success=(202,),
        takes=http.Nothing,
        parameters=(_SCHEDULE, KEY),
        failures=(404, 409, 410, 408, 413, 415, 422, 429, 503),
    ),
)
