"""The tools that only the agent of a project's session has: `write_handoff` and `write_features`.

Invariant: like all tools of the runtime they change the run and not the world. What they leave is read by the project
when the run has ended, and judged there once more; neither makes a feature verified or committed.
"""

import msgspec

from libs.contracts.errors import ValidationFailed
from libs.contracts.projecthttp import read_features
from libs.contracts.projects import HANDOFF_CHARS_MAX, HANDOFF_ITEMS_MAX, Handoff
from libs.contracts.run import RunState
from libs.contracts.sessions import WRITE_FEATURES, WRITE_HANDOFF, SessionKind, SessionRef
from libs.contracts.tools import Semantics, ToolSpec

# Problems that one answer names; the rest shows once these are mended.
_TOLD_MAX = 12

_ITEMS = {
    "type": "array",
    "maxItems": HANDOFF_ITEMS_MAX,
    "items": {"type": "string", "minLength": 1, "maxLength": HANDOFF_CHARS_MAX},
}

HANDOFF = ToolSpec(
    name=WRITE_HANDOFF,
    description=(
        "Leave word for the next session, which begins with nothing else of this one. Call it before you finish, and "
        "again when something changes: the last call counts. Say what is true in the workspace, not what was planned."
    ),
    parameters={
        "type": "object",
        "properties": {
            "done": {**_ITEMS, "description": "What works now."},
            "in_progress": {**_ITEMS, "description": "What is begun and not finished, and where it stands."},
            "next": {**_ITEMS, "description": "What to do next."},
            "decisions": {
                **_ITEMS,
                "description": "Decisions that later sessions must keep to, with the reason.",
            },
            "pitfalls": {
                **_ITEMS,
                "description": "What cost time or broke, so that nobody runs into it again.",
            },
            "how_to_verify": {**_ITEMS, "description": "How to see that it works."},
        },
        "required": ["done", "next"],
        "additionalProperties": False,
    },
    semantics=Semantics.IDEMPOTENT,
    needs_workspace=False,
)

FEATURES = ToolSpec(
    name=WRITE_FEATURES,
    description=(
        "Write the project's list of features, all of them in one call. Each has an id, a title, what proves it "
        "(`acceptance`: checks of kind command, http, browser, file, diff or tests), what it depends on (ids) and a priority (lower is "
        "sooner). Once the list is accepted features can only be added."
    ),
    parameters={
        "type": "object",
        "properties": {
            "features": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "title": {"type": "string"},
                        "description": {"type": "string"},
                        "acceptance": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "object"},
                            "description": (
                                'For example {"kind": "command", "argv": ["python3", "-m", "unittest", "test_cart"]} '
                                'or {"kind": "http", "start": ["python3", "shop.py"], "url": "http://127.0.0.1:8000/cart", '
                                '"expect_status": 200, "expect_body": "Your cart"} for the page of a server, or '
                                '{"kind": "file", "path": "cart.py", "contains": "def total"}.'
                            ),
                        },
                        "depends_on": {"type": "array", "items": {"type": "string"}},
                        "priority": {"type": "integer"},
                    },
                    "required": ["id", "title", "acceptance"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["features"],
        "additionalProperties": False,
    },
    semantics=Semantics.IDEMPOTENT,
    needs_workspace=False,
)

SESSION_TOOLS = {spec.name: spec for spec in (HANDOFF, FEATURES)}


def write_handoff(arguments: dict[str, object]) -> tuple[bool, str]:
    """Whether the handoff can be kept, and what the model reads."""
    try:
        msgspec.convert(arguments, Handoff)
    except msgspec.ValidationError as error:
        return False, f"the handoff was not kept: {error}"
    return True, "kept; the next session will read it"


def write_features(session: SessionRef | None, arguments: dict[str, object]) -> tuple[bool, str]:
    """Whether the list holds as a list, and what the model reads: what is wrong with it, to mend at once."""
    at_least = session.features_min if session is not None else 1
    try:
        specs, problems = read_features(arguments, at_least=at_least)
    except ValidationFailed as error:
        fields = [f"{detail['field']}: {detail['message']}" for detail in error.details or []]
        problems, specs = fields or [error.message], []
    if problems:
        return False, "\n".join(["the list was not taken over:", *problems[:_TOLD_MAX]])
    if session is not None and session.kind is SessionKind.INITIALIZE:
        return True, f"{len(specs)} features are noted; they become the project's list when this session ends"
    return True, f"{len(specs)} features are noted; those that are new are added when this session ends"


def offered_by_session(state: RunState) -> dict[str, ToolSpec]:
    """What the agent of a session has beside the other tools; nothing for other runs, and for its children."""
    session = state.task.session
    if session is None or session.kind is SessionKind.ITEM or state.parent is not None:
        return {}
    return dict(SESSION_TOOLS)
