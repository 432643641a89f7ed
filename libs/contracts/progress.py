"""What a project shows of itself in files: `progress.md` and `features.json`. Pure.

Invariant: made from the fold alone, so a file that somebody changed is made again as it was, and both say the same as the
API. Bounded: what is long is cut and says so.
"""

import json

import msgspec

from libs.contracts.items import item_id
from libs.contracts.project import Feature, ProjectState
from libs.contracts.projects import FeatureStatus, Handoff

PROGRESS_FILE = "progress.md"
FEATURES_FILE = "features.json"

# Features that the text lists; all of them stand in the other file, and in the API.
LISTED_MAX = 200
_MARKS = {
    FeatureStatus.COMMITTED: "[x]",
    FeatureStatus.VERIFIED: "[v]",
    FeatureStatus.IN_PROGRESS: "[>]",
    FeatureStatus.PENDING: "[ ]",
    FeatureStatus.SKIPPED: "[-]",
    FeatureStatus.BLOCKED: "[!]",
}
_HEADINGS = {
    "done": "Done",
    "in_progress": "In progress",
    "next": "Next",
    "decisions": "Decisions",
    "pitfalls": "Pitfalls",
    "how_to_verify": "How to verify",
}


def progress_text(state: ProjectState, handoff: Handoff | None = None) -> str:
    """Where the project stands, as Markdown; with `handoff` in place of the one in the log, if it is newer."""
    if state.items is not None:
        return _items_text(state)
    done, total = state.count(FeatureStatus.COMMITTED), len(state.features)
    lines = [
        f"# {state.spec.name}",
        "",
        f"{done} of {total} features are committed; phase {state.phase.value}, {state.sessions} sessions.",
        "This file is written by the runtime; changes to it do not last.",
        "",
        "## Features",
        "",
        *[_line(feature) for feature in list(state.features.values())[:LISTED_MAX]],
    ]
    if total > LISTED_MAX:
        lines.append(f"- and {total - LISTED_MAX} more, see {FEATURES_FILE}")
    return "\n".join([*lines, "", handoff_text(handoff or state.handoff)]).rstrip() + "\n"


def _items_text(state: ProjectState) -> str:
    assert state.items is not None
    counted = ", ".join(f"{state.count(status)} {status.value}" for status in FeatureStatus)
    failed = [
        f"- [!] {item_id(index)}: {one.error}" for index, one in list(state.items.failed.items())[:LISTED_MAX]
    ]
    lines = [f"# {state.spec.name}", "", f"{state.items.done} of {state.total} items are done: {counted}."]
    return "\n".join([*lines, *(["", "## Given up", "", *failed] if failed else [])]) + "\n"


def handoff_text(handoff: Handoff) -> str:
    """A handoff as Markdown; empty when it says nothing."""
    parts: list[str] = []
    for name, heading in _HEADINGS.items():
        items: list[str] = getattr(handoff, name)
        if items:
            parts.append("\n".join([f"## {heading}", "", *[f"- {item}" for item in items]]))
    return "\n\n".join(parts)


def features_text(state: ProjectState) -> str:
    """The list of features as JSON: status and proof beside each other, never one for the other."""
    listed = [
        {
            **msgspec.to_builtins(feature.spec),
            "status": feature.state.value,
            "verified": feature.state in (FeatureStatus.VERIFIED, FeatureStatus.COMMITTED),
        }
        for feature in state.features.values()
    ]
    return json.dumps({"features": listed}, indent=1, ensure_ascii=False) + "\n"


def _line(feature: Feature) -> str:
    commit = (
        f" ({feature.commit[:12]})" if feature.commit and feature.state is FeatureStatus.COMMITTED else ""
    )
    error = (
        feature.last_error.partition("\n")[0][:160] if feature.state is not FeatureStatus.COMMITTED else ""
    )
    return (
        f"- {_MARKS[feature.state]} {feature.id}: {feature.spec.title}{commit}{f': {error}' if error else ''}"
    )
