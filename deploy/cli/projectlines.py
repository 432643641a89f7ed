"""Events of a project as lines for people, in the manner of `eventlines.py`.

Invariant: pure; an event of a kind that this version does not know has no line here.
"""

from deploy.cli.payloads import Fields, Line, fields, items, text, texts
from deploy.cli.terminal import Tone

_STATES: dict[str, Tone] = {
    "in_progress": "dim",
    "verified": "good",
    "committed": "good",
    "pending": "warn",
    "skipped": "warn",
    "blocked": "bad",
}
_OUTCOMES: dict[str, Tone] = {"committed": "good", "initialized": "good", "proved": "good"}


def describe_project(kind: str, payload: Fields) -> Line | None:
    """The words of an event of a project's log."""

    def field(name: str) -> str:
        return text(payload.get(name))

    match kind:
        case "project.created":
            spec = fields(payload.get("spec"))
            return Line(f"{text(spec.get('name'))}: {text(spec.get('brief'))}", "bold")
        case "project.feature_list_set" | "project.feature_list_amended":
            listed = items(payload.get("features"))
            return Line(f"{len(listed)} features: {', '.join(text(feature.get('id')) for feature in listed)}")
        case "project.feature_list_rejected":
            return Line(f"not taken over: {'; '.join(texts(payload.get('problems')))}", "warn")
        case "project.phase_changed":
            return Line(f"{field('before')} → {field('phase')}", "dim")
        case "project.paused" | "project.resumed" | "project.cancel_requested" | "project.cancelled":
            return Line(f"by {field('by')}", "warn")
        case "project.blocked":
            return Line(f"{field('cap')}: {field('reason')}", "bad")
        case "project.completed":
            return Line(f"{field('committed')} features committed, {field('skipped')} skipped", "good")
        case "feature.state_changed":
            tone = _STATES.get(field("state"), "plain")
            return Line(
                f"{field('feature_id')}: {field('before')} → {field('state')}, {field('reason')}", tone
            )
        case _:
            return _session(kind, payload)


def _session(kind: str, payload: Fields) -> Line | None:
    def field(name: str) -> str:
        return text(payload.get(name))

    match kind:
        case "session.started":
            attempt = f", attempt {field('attempt')}" if payload.get("attempt") not in (None, 1) else ""
            proved = texts(payload.get("reverify"))
            first = f"; proves {', '.join(proved)} again first" if proved else ""
            what = field("feature_id") or field("kind")
            return Line(f"session {field('session')}: {what}{attempt}{first}", "bold")
        case "session.run_requested":
            return Line(f"session {field('session')}, {field('stage')}: {field('run_id')}", "dim")
        case "session.stalled":
            silent_s, limit_s = payload.get("silent_s"), payload.get("limit_s")
            return (
                Line(
                    f"no sign of life for {silent_s:.0f} s, at most {limit_s:g} s are allowed: it is ended",
                    "warn",
                )
                if (isinstance(silent_s, float) and isinstance(limit_s, float))
                else None
            )
        case "session.run_ended":
            error = fields(payload.get("error"))
            why = f", {text(error.get('error_code'))}: {text(error.get('message'))}" if error else ""
            return Line(
                f"session {field('session')}, {field('stage')}: {field('status')}{why}",
                "warn" if why else "dim",
            )
        case "session.ended":
            again = f"; the next one begins at {field('retry_at')[11:19]}" if payload.get("retry_at") else ""
            tone = _OUTCOMES.get(field("outcome"), "warn")
            return Line(f"session {field('session')} {field('outcome')}: {field('reason')}{again}", tone)
        case _:
            return None
