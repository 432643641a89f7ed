"""The tools that change the run and not the world: `ask_user`, `write_todos`, `delegate`, and those of sessions.

Invariant: they have no host, no journal and no effect beyond the run's own log, so recovery needs nothing for them.
"""

import msgspec

from libs.contracts.run import RunState
from libs.contracts.tools import RUN_TOOLS, ToolSpec
from libs.contracts.values import Todo
from services.executor.tools.session_tools import SESSION_TOOLS, offered_by_session

ASK_USER = ToolSpec(
    name="ask_user",
    description=(
        "Ask the person who gave you the task, and wait for the answer. Only when you cannot go on without it; "
        "never for permission to do what the task already asks."
    ),
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1, "maxLength": 4000},
            "options": {
                "type": "array",
                "items": {"type": "string", "maxLength": 200},
                "maxItems": 20,
                "description": "Answers to choose from, if there are any.",
            },
        },
        "required": ["question"],
        "additionalProperties": False,
    },
    semantics=RUN_TOOLS["ask_user"],
    needs_workspace=False,
)

WRITE_TODOS = ToolSpec(
    name="write_todos",
    description="Write down your whole plan, replacing the last one. At most one item is in progress at a time.",
    parameters={
        "type": "object",
        "properties": {
            "todos": {
                "type": "array",
                "maxItems": 100,
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {"type": "string", "minLength": 1, "maxLength": 500},
                        "status": {"enum": ["pending", "in_progress", "completed"]},
                    },
                    "required": ["content", "status"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["todos"],
        "additionalProperties": False,
    },
    semantics=RUN_TOOLS["write_todos"],
    needs_workspace=False,
)

DELEGATE = ToolSpec(
    name="delegate",
    description=(
        "Have another agent do a self-contained part of the work in the same workspace, and wait for its answer. It sees "
        "nothing but the goal, so say in it all that it has to know. Several calls in one turn run in parallel."
    ),
    parameters={
        "type": "object",
        "properties": {
            "goal": {"type": "string", "minLength": 1, "maxLength": 100_000},
            "tools": {
                "type": "array",
                "items": {"type": "string", "maxLength": 64},
                "maxItems": 100,
                "description": "The tools it may use; without this, all that you have.",
            },
        },
        "required": ["goal"],
        "additionalProperties": False,
    },
    semantics=RUN_TOOLS["delegate"],
    needs_workspace=False,
)

_FOR_ALL = {spec.name: spec for spec in (ASK_USER, WRITE_TODOS, DELEGATE)}
RUNTIME_TOOLS = {**_FOR_ALL, **SESSION_TOOLS}

_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


def write_todos(arguments: dict[str, object]) -> tuple[bool, str]:
    """Whether the plan is acceptable, and what the model reads: the plan rendered back, or what is wrong."""
    try:
        todos = msgspec.convert(arguments.get("todos"), list[Todo])
    except msgspec.ValidationError as error:
        return False, f"the plan was not written: {error}"
    active = sum(todo.status == "in_progress" for todo in todos)
    if active > 1:
        return False, f"the plan was not written: {active} items are in_progress, at most one may be"
    return True, "\n".join(f"{_MARKS[todo.status]} {todo.content}" for todo in todos) or "The plan is empty."


def offered_to(state: RunState) -> dict[str, ToolSpec]:
    """The runtime tools of a run: a child asks nobody, and nobody at the last level delegates."""
    depth = state.parent.depth if state.parent is not None else 0
    offered = {**_FOR_ALL, **offered_by_session(state)}
    if depth > 0:
        del offered[ASK_USER.name]
    if depth >= state.limits.max_depth:
        del offered[DELEGATE.name]
    return offered
