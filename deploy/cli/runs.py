"""`perdure runs …`: the REST API from a shell.

Invariant: with `--json` standard output is exactly what the API answered; without it, lines for people.
"""

import argparse
import asyncio

from deploy.cli.asking import approval_lines, reconciliation_lines
from deploy.cli.eventlines import show_checks, show_event, whole
from deploy.cli.export import export
from deploy.cli.gateway import connected
from deploy.cli.outcome import Exit, failed, of_status, refused
from deploy.cli.terminal import Screen, Tone, one_line, printable
from libs.client import PerdureClient
from libs.contracts.errors import ConfigurationError, PerdureError
from libs.contracts.forks import Fork, Retry
from libs.contracts.http import Approval, Reconciliation, read_body
from libs.contracts.views import CommandAccepted, QuestionList, RunMade, RunView

_TONES: dict[str, Tone] = {
    "COMPLETED": "good",
    "FAILED": "bad",
    "CANCELLED": "warn",
    "WAITING_FOR_INPUT": "warn",
    "RECONCILIATION_REQUIRED": "warn",
    "PAUSED": "warn",
}
# One page of events; more are asked for page by page.
_PAGE = 500


def main(args: argparse.Namespace) -> Exit:
    """Carry out the command."""
    try:
        client = connected()
    except ConfigurationError as error:
        return refused(error.message)
    try:
        return asyncio.run(carry_out(client, args))
    except PerdureError as error:
        return failed(error)


async def carry_out(client: PerdureClient, args: argparse.Namespace) -> Exit:
    """The command over a client, which it closes. Raises what the server refuses."""
    screen = Screen()
    async with client:
        match args.action:
            case "list":
                await _list(client, screen, args)
            case "show":
                _show(screen, await client.run(args.run_id), as_json=args.json)
            case "events":
                await _events(client, screen, args)
            case "questions":
                _questions(screen, await client.questions(args.run_id), as_json=args.json)
            case "export":
                return await export(client, screen, args)
            case "tail":
                return await _tail(client, screen, args)
            case "delete":
                await client.delete(args.run_id)
                if not args.json:
                    screen.line(f"{args.run_id} was deleted")
            case "fork" | "retry":
                made = await _made(client, args)
                screen.line(made.model_dump_json() if args.json else _told(made))
            case _:
                accepted = await _command(client, args)
                screen.line(
                    accepted.model_dump_json() if args.json else f"{accepted.run_id} {accepted.status}"
                )
    return Exit.DONE


async def _command(client: PerdureClient, args: argparse.Namespace) -> CommandAccepted:
    """The actions that change a run."""
    run_id: str = args.run_id
    match args.action:
        case "cancel":
            return await client.cancel(run_id)
        case "pause":
            return await client.pause(run_id)
        case "resume":
            return await client.resume(run_id)
        case "message":
            return await client.message(run_id, args.text)
        case "reply":
            return await client.reply(run_id, args.answer, question_id=args.question)
        case "approve":
            decision = "reject" if args.reject else "approve"
            given = {"call_id": args.call_id, "decision": decision, "reason": args.reason}
            return await client.approve(run_id, read_body(Approval, given))
        case "reconcile":
            given = {
                "call_id": args.call_id,
                "decision": args.decision,
                "observation": args.observation,
            }
            return await client.reconcile(run_id, read_body(Reconciliation, given))
        case other:
            raise AssertionError(f"the parser lets no action {other} through")


async def _made(client: PerdureClient, args: argparse.Namespace) -> RunMade:
    """The actions that make a run of a run."""
    if args.action == "fork":
        given = {"after_sequence": args.after, "goal": args.goal}
        return await client.fork(args.run_id, read_body(Fork, given))
    return await client.retry(args.run_id, read_body(Retry, {"from": args.origin}))


def _told(made: RunMade) -> str:
    if not made.after_sequence:
        return f"{made.run_id} {made.status}, from the start"
    kept = made.workspace_sequence
    files = "its workspace begins empty" if kept is None else f"its workspace is as it was after event {kept}"
    return f"{made.run_id} {made.status}, from event {made.after_sequence}; {files}"


async def _list(client: PerdureClient, screen: Screen, args: argparse.Namespace) -> None:
    page = await client.runs(status=args.status, limit=args.limit, cursor=args.cursor)
    if args.json:
        screen.line(page.model_dump_json())
        return
    for run in page.runs:
        head = f"{run.run_id}  {run.created_at[:19]}  "
        status = screen.paint(f"{run.status:<24}", _TONES.get(run.status, "plain"))
        screen.line(head + status + one_line(run.goal, max(20, screen.width - len(head) - 24)))
    if not page.runs:
        screen.line("no runs")
    if page.next_cursor:
        screen.aside(f"more: --cursor {page.next_cursor}")


def _show(screen: Screen, run: RunView, *, as_json: bool) -> None:
    if as_json:
        screen.line(run.model_dump_json())
        return
    usage = run.usage
    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    rows = {
        "goal": whole(run.goal),
        "status": f"{screen.paint(run.status, _TONES.get(run.status, 'plain'))}, {printable(run.activity)}",
        "workspace": printable(run.workspace),
        "created": run.created_at,
        "started": run.started_at or "",
        "finished": run.finished_at or "",
        "owner": f"{run.lease.owner or 'nobody'} (epoch {run.lease.epoch}, attempt {run.attempt})",
        "usage": f"{usage.requests} requests, {usage.input_tokens}+{usage.output_tokens} tokens, cost {cost}",
        "events": str(run.last_sequence),
        "question": "\n             ".join(_waited_for(run)),
        "error": f"{run.error.error_code}: {whole(run.error.message)}" if run.error else "",
        "answer": whole(run.answer or ""),
    }
    screen.line(run.run_id)
    for name, value in rows.items():
        if value:
            screen.line(f"  {name:<10} {value}")
    if run.verification is not None:
        show_checks(screen, run.verification)


def _waited_for(run: RunView) -> list[str]:
    """What a person has to say before the run goes on."""
    question, unsure = run.pending_question, run.pending_reconciliation
    if unsure is not None:
        return reconciliation_lines(unsure)
    if question is None:
        return []
    return approval_lines(question) if question.kind == "approval" else [whole(question.question)]


async def _events(client: PerdureClient, screen: Screen, args: argparse.Namespace) -> None:
    after = args.after
    while (page := await client.events(args.run_id, after_sequence=after, limit=_PAGE)).events:
        for event in page.events:
            if args.json:
                screen.line(event.model_dump_json(exclude_defaults=True))
            else:
                show_event(screen, event)
        after = page.next_after_sequence


def _questions(screen: Screen, asked: QuestionList, *, as_json: bool) -> None:
    if as_json:
        screen.line(asked.model_dump_json())
        return
    for question in asked.questions:
        screen.line(f"{question.question_id}  {question.asked_at[:19]}  {printable(question.kind)}")
        for line in whole(question.question).splitlines():
            screen.line(f"  {line}")
        if question.answered_at is None:
            screen.line(screen.paint("  not answered", "warn"))
            continue
        said = ": ".join(filter(None, (question.decision, question.answer)))
        screen.line(f"  {printable(question.answered_by or 'nobody')}: {whole(said)}")
    if not asked.questions:
        screen.line("it asked nothing")


async def _tail(client: PerdureClient, screen: Screen, args: argparse.Namespace) -> Exit:
    """Follow; the exit code is the run's outcome, as that of `perdure run`."""

    def reconnecting(error: PerdureError) -> None:
        screen.aside(f"perdure: {error.message}; reconnecting")

    async for event in client.stream(
        args.run_id, after_sequence=args.after or 0, deltas=False, reconnecting=reconnecting
    ):
        if args.json:
            screen.line(event.model_dump_json(exclude_defaults=True))
        else:
            show_event(screen, event)
    run = await client.run(args.run_id)
    return of_status(run.status) or Exit.DONE
