"""The operations of the API that concern projects; `operations.py` puts them beside the others.

Invariant: as there: routes, `Allow` headers and OpenAPI are made from these.
"""

from libs.contracts import http, projecthttp, projectviews
from libs.contracts.projects import ProjectStatus
from libs.projection.rows import LIMIT_DEFAULT, LIMIT_MAX
from services.gateway.operation import AFTER, KEY, RESUME, Operation, Parameter, flag, integer

_PROJECT = Parameter("project_id", "path", {"type": "string"}, "The project's id.", required=True)
_FEATURE = Parameter("feature_id", "path", {"type": "string"}, "The feature's id.", required=True)
_STATUSES: dict[str, object] = {
    "type": "array",
    "items": {"type": "string", "enum": [status.value for status in ProjectStatus]},
}
_COMMAND_FAILURES = (404, 409, 408, 413, 415, 422, 503)


def _command(name: str, path: str, summary: str, *parameters: Parameter) -> Operation:
    return Operation(
        name,
        "POST",
        f"/api/projects/{{project_id}}/{path}",
        summary,
        projectviews.ProjectCommandAccepted,
        success=(202,),
        takes=http.Nothing,
        parameters=(_PROJECT, *parameters),
        failures=_COMMAND_FAILURES,
    )


PROJECT_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "create_project",
        "POST",
        "/api/projects",
        "Create a project; its first session begins at once.",
        projectviews.ProjectCreated,
        success=(201, 200),
        takes=projecthttp.ProjectCreate,
        parameters=(KEY,),
        failures=(409, 408, 413, 415, 422, 429, 503),
    ),
    Operation(
        "list_projects",
        "GET",
        "/api/projects",
        "Projects, newest first.",
        projectviews.ProjectList,
        parameters=(
            Parameter("status", "query", _STATUSES, "Only projects in one of these states, by commas."),
            Parameter("limit", "query", integer(1, LIMIT_MAX, LIMIT_DEFAULT), "The length of a page."),
            Parameter("cursor", "query", {"type": "string"}, "next_cursor of the page before."),
        ),
        failures=(400, 422, 503),
    ),
    Operation(
        "show_project",
        "GET",
        "/api/projects/{project_id}",
        "The progress card of a project, as its log and its runs tell it now.",
        projectviews.ProjectView,
        parameters=(_PROJECT,),
        failures=(404, 503),
    ),
    Operation(
        "list_features",
        "GET",
        "/api/projects/{project_id}/features",
        "All features with their states and evidence, in the order of the list.",
        projectviews.FeatureList,
        parameters=(_PROJECT,),
        failures=(404, 503),
    ),
    Operation(
        "stream_project",
        "GET",
        "/api/projects/{project_id}/stream",
        "Server-sent events of the project's own log: what is stored, then what comes.",
        None,
        success=(200, 204),
        parameters=(
            _PROJECT,
            AFTER,
            RESUME,
            flag("replay", "false: only what comes from now on.", default=True),
            flag("follow_suspended", "true: stay while the project is blocked.", default=False),
        ),
        failures=(400, 404, 422, 503),
    ),
    Operation(
        "show_progress",
        "GET",
        "/api/projects/{project_id}/progress.md",
        "Where the project stands, as Markdown.",
        None,
        media="text/markdown",
        parameters=(_PROJECT,),
        failures=(404, 503),
    ),
    _command("pause_project", "pause", "No session begins, and the run that goes on comes to a rest."),
    _command(
        "resume_project", "resume", "Go on after a pause or a block, with other caps if some are given."
    )._replace(takes=projecthttp.ProjectResume),
    _command("cancel_project", "cancel", "End the project and the run that goes on."),
    _command("skip_feature", "features/{feature_id}/skip", "Leave a feature out.", _FEATURE),
    _command("retry_feature", "features/{feature_id}/retry", "Work on a feature again.", _FEATURE),
)
