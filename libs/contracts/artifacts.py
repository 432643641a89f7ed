"""What the API gives of the workspace of a run: its files and what changed."""

from libs.contracts.views import View


class Artifact(View):
    """A file or a link of the workspace. `href` downloads it; names that are no text are shown as far as they are."""

    path: str
    size_bytes: int
    link: bool
    href: str


class ArtifactList(View):
    """Files in the order of their names. `complete` is false when the workspace is too large to be walked to its end;
    folders that tools can make again (`node_modules`, `.venv`, ...) are left out."""

    run_id: str
    artifacts: list[Artifact]
    complete: bool
    next_cursor: str | None


class DiffView(View):
    """What the workspace has that it had not when the run began, as a unified diff; other runs in it count too.
    `truncated`: there is more, ask for a `path`."""

    run_id: str
    diff: str
    truncated: bool
