"""Events as lines for people: what became true, in a few words.

Invariant: pure; an event of a kind or a shape that this version does not know still gets a line.
"""

from typing import cast

from deploy.cli.payloads import Fields, Line, fields, items, text
from deploy.cli.projectlines import describe_project
from deploy.cli.terminal import Screen, Tone, one_line, printable
from libs.contracts.views import EventView

# Enough for a question or an answer of some paragraphs; the whole text is in the run.
_TEXT_CHARS_MAX = 4_000
# The end of a test's output says how it went.
_EVIDENCE_LINES = 5


def show_event(screen: Screen, event: EventView) -> None:
    """Write one event: number, type, words."""
    line = describe(event.type, event.payload)
    head = f"{event.sequence:>4}  {printable(event.type):<22} "
    room = max(20, screen.width - len(head))
    screen.line(screen.paint(head, "dim") + screen.paint(one_line(line.text, room), line.tone))


def describe(kind: str, payload: Fields) -> Line:
    """The words of an event, possibly of several lines."""

    def field(name: str) -> str:
        return text(payload.get(name))

    match kind:
        case "run.created":
            return Line(text(fields(payload.get("task")).get("goal")), "bold")
        case "run.start_requested" | "run.cancel_requested" | "run.pause_requested" | "run.resume_requested":
            return Line(f"by {field('by')}", "dim")
        case "run.claimed":
            return Line(
                f"{field('owner')} took the run (epoch {field('epoch')}, attempt {field('attempt')})", "dim"
            )
        case "run.released":
            waiting = f", waiting for {field('waiting_for')}" if payload.get("waiting_for") else ""
            return Line(f"{field('reason')}{waiting}{_because(payload)}", "dim")
        case "run.completed":
            return Line(field("answer"), "good")
        case "run.failed":
            error = fields(payload.get("error"))
            return Line(f"{text(error.get('error_code'))}: {text(error.get('message'))}", "bad")
        case "run.cancelled":
            return Line(f"by {field('by')}", "warn")
        case "input.requested":
            options = [text(option) for option in cast("list[object]", payload.get("options") or [])]
            return Line(field("question") + (f" [{' | '.join(options)}]" if options else ""), "warn")
        case "input.received":
            return Line(field("decision") or field("answer"))
        case "message.received":
            return Line(f"{field('by')}: {field('text')}")
        case _:
            return _work(kind, payload)


def show_checks(screen: Screen, verification: Fields) -> None:
    """The verdict, and each check with its evidence."""
    status = text(verification.get("status")) or "none"
    tones: dict[str, Tone] = {"PASSED": "good", "FAILED": "bad"}
    screen.line(screen.paint(f"verification {status}", tones.get(status, "warn")))
    for check in items(verification.get("checks")):
        exit_code = check.get("exit_code")
        ended = f", exit {exit_code}" if exit_code is not None else ""
        took = f", {check['duration_ms']} ms" if check.get("duration_ms") else ""
        head = f"  {text(check.get('kind'))} {text(check.get('subject'))}: {text(check.get('status'))}{ended}{took}"
        screen.line(one_line(head, screen.width - 2) if screen.live else printable(head))
        evidence = f"{text(check.get('reason'))}\n{text(check.get('output_tail'))}".splitlines()
        for said in [line for line in evidence if line.strip()][-_EVIDENCE_LINES:]:
            screen.line(screen.paint(f"    {one_line(said, screen.width - 4)}", "dim"))


def whole(value: str) -> str:
    """A text of several lines, harmless and bounded."""
    shown = printable(value)
    return shown if len(shown) <= _TEXT_CHARS_MAX else shown[:_TEXT_CHARS_MAX] + "…"


def _work(kind: str, payload: Fields) -> Line:
    """The events between a claim and an end."""

    def field(name: str) -> str:
        return text(payload.get(name))

    match kind:
        case "model.requested":
            return Line(f"{field('model')}, {field('message_count')} messages", "dim")
        case "model.completed":
            names = ", ".join(text(call.get("name")) for call in items(payload.get("tool_calls")))
            usage = fields(payload.get("usage"))
            tokens = f"{text(usage.get('input_tokens'))}+{text(usage.get('output_tokens'))} tokens"
            said = " ".join(field("content").split()) or "(no text)"
            return Line(f"{'→ ' + names if names else said} ({tokens}, {field('latency_ms')} ms)")
        case "model.failed":
            return Line(f"attempt {field('attempt')}: {field('error_code')} {field('message')}", "warn")
        case "tool.requested":
            return Line(f"{field('name')} {_arguments(fields(payload.get('arguments')))}".rstrip())
        case "tool.completed":
            return _result(payload)
        case "tool.uncertain" | "reconciliation.required":
            return Line(
                f"nobody knows how {field('name') or field('call_id')} ended{_because(payload)}", "warn"
            )
        case "workspace.attached":
            return Line(f"held by {field('replica')}, baseline {field('baseline')[:12] or 'none'}", "dim")
        case "workspace.snapshotted":
            if problem := field("problem"):
                return Line(f"not kept: {problem}", "warn")
            return Line(f"kept as {field('commit')[:12]}, {field('changed')} changed", "dim")
        case "context.compacted":
            how = ", summarised" if field("summary") else ""
            return Line(f"{field('tokens_before')} → {field('tokens_after')} tokens{how}", "dim")
        case "verification.requested":
            checks = (
                ", ".join(text(check.get("kind")) for check in items(payload.get("checks"))) or "no checks"
            )
            return Line(f"round {field('round')}: {checks}", "dim")
        case "verification.completed":
            tones: dict[str, Tone] = {"PASSED": "good", "FAILED": "bad"}
            checks = ", ".join(
                f"{text(check.get('kind'))} {text(check.get('status'))}"
                for check in items(payload.get("checks"))
            )
            return Line(
                f"{field('status')} ({checks or 'nothing to check'})", tones.get(field("status"), "warn")
            )
        case _:
            return describe_project(kind, payload) or Line(text(payload))


def _arguments(arguments: Fields) -> str:
    """The arguments of a call, shortest first, so that a path stands before a file's content."""
    shown = sorted(((name, text(value)) for name, value in arguments.items()), key=lambda item: len(item[1]))
    return ", ".join(f"{name}={value or chr(34) * 2}" for name, value in shown)


def _result(payload: Fields) -> Line:
    """What a call brought: of a command how it ended and its last words, of anything else the first."""
    ok = payload.get("ok") is True
    said = [line for line in text(payload.get("output")).splitlines() if line.strip()]
    exit_code = fields(payload.get("metadata")).get("exit_code")
    if isinstance(exit_code, int):
        last = next((line for line in reversed(said) if not line.startswith("[exit code")), "(no output)")
        return Line(f"exit {exit_code}: {last}", "plain" if ok else "warn")
    rest = f" (+{len(said) - 1} lines)" if len(said) > 1 else ""
    first = said[0] if said else "(no output)"
    return Line(f"{'' if ok else 'failed: '}{first}{rest}", "plain" if ok else "warn")


def _because(payload: Fields) -> str:
    reason = text(payload.get("message")) or text(payload.get("reason") if "call_id" in payload else None)
    return f": {reason}" if reason else ""
