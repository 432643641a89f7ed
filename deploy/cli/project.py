"""`perdure project …`: long-horizon projects from a shell.

Invariant: with `--json` standard output is exactly what the API answered; without it, lines for people.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import cast

from deploy.cli.acceptance import argv_of
from deploy.cli.eventlines import show_event
from deploy.cli.gateway import with_client
from deploy.cli.outcome import Exit
from deploy.cli.terminal import Screen, Tone, one_line, printable
from libs.client import PerdureClient
from libs.contracts.bodies import NAME_CHARS_MAX
from libs.contracts.errors import PerdureError, ValidationFailed
from libs.contracts.http import parse_body, read_body
from libs.contracts.projecthttp import ProjectCreate, ProjectResume
from libs.contracts.projectviews import ProjectView

_TONES: dict[str, Tone] = {
    "COMPLETED": "good",
    "BLOCKED": "bad",
    "CANCELLED": "warn",
    "PAUSED": "warn",
}
_EXITS = {"COMPLETED": Exit.DONE, "BLOCKED": Exit.PERSON, "CANCELLED": Exit.INTERRUPTED}
# Of a brief that names no project, for its name.
_NAME_CHARS = 60


def main(args: argparse.Namespace) -> Exit:
    """Carry out the command."""
    return with_client(lambda client: carry_out(client, args))


async def carry_out(client: PerdureClient, args: argparse.Namespace) -> Exit:
    """The command over a client. Raises what the server refuses."""
    screen = Screen()
    match args.action:
        case "create":
            made = await client.create_project(_body(args))
            screen.line(made.model_dump_json() if args.json else f"{made.project_id} {made.status}")
        case "list":
            await _list(client, screen, args)
        case "show":
            return await _show(client, screen, args)
        case "pause" | "resume" | "cancel" as command:
            body = _resume(args) if command == "resume" else None
            accepted = await client.command_project(args.project_id, command, body)
            told = f"{accepted.project_id} {accepted.status}"
            screen.line(accepted.model_dump_json() if args.json else told)
        case other:
            raise AssertionError(f"the parser lets no action {other} through")
    return Exit.DONE


def _body(args: argparse.Namespace) -> ProjectCreate:
    """The body of a new project. Raises `ValidationFailed`, `ValueError` and `OSError`."""
    given: dict[str, object] = {}
    if args.file is not None:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
        loaded = json.loads(text)
        if not isinstance(loaded, dict):
            raise ValueError(f"{args.file} holds no JSON object")
        given = cast("dict[str, object]", loaded)
    if args.brief is not None:
        given["brief"] = args.brief
    if args.name is not None or "name" not in given:
        given["name"] = args.name or " ".join(str(given.get("brief", "")).split())[:_NAME_CHARS]
    if args.verify:
        given["verify"] = [{"kind": "command", "argv": argv_of(command)} for command in args.verify]
    if args.init is not None:
        given["init"] = argv_of(args.init)
    if args.items is not None or args.glob is not None or args.each is not None:
        given["map"] = _map(args, given.get("map"))
    if args.concurrency is not None:
        given["concurrency"] = args.concurrency
    if args.seed is not None:
        given["workspace"] = {"seed_dir": str(Path(args.seed).resolve())}
    return parse_body(ProjectCreate, json.dumps(given).encode())


def _map(args: argparse.Namespace, known: object) -> dict[str, object]:
    """The items and what is done with each. Raises `OSError`."""
    mapped = dict(cast("dict[str, object]", known)) if isinstance(known, dict) else {}
    if args.items is not None:
        text = sys.stdin.read() if args.items == "-" else Path(args.items).read_text(encoding="utf-8")
        mapped["items"] = [line.strip() for line in text.splitlines() if line.strip()]
    elif args.glob is not None:
        mapped["items"] = sorted(str(path) for path in Path().glob(args.glob) if path.is_file())
    if args.each is not None:
        mapped["goal"] = args.each
    if args.within is not None:
        mapped["workspace"] = args.within
    return mapped


def _resume(args: argparse.Namespace) -> ProjectResume:
    if args.limits is None:
        return ProjectResume()
    try:
        return read_body(ProjectResume, {"limits": json.loads(args.limits)})
    except json.JSONDecodeError as error:
        raise ValidationFailed(f"--limits is no JSON: {error}") from error


async def _list(client: PerdureClient, screen: Screen, args: argparse.Namespace) -> None:
    page = await client.projects(limit=args.limit, cursor=args.cursor)
    if args.json:
        screen.line(page.model_dump_json())
        return
    for project in page.projects:
        status = screen.paint(f"{project.status:<10}", _TONES.get(project.status, "plain"))
        done = f"{project.committed}/{project.features_total}"
        name = one_line(project.name, NAME_CHARS_MAX)
        screen.line(f"{project.project_id}  {project.created_at[:19]}  {status} {done:>9}  {name}")
    if not page.projects:
        screen.line("no projects")
    if page.next_cursor:
        screen.aside(f"more: --cursor {page.next_cursor}")


async def _show(client: PerdureClient, screen: Screen, args: argparse.Namespace) -> Exit:
    card = await client.project(args.project_id)
    if not args.watch:
        _card(screen, card, as_json=args.json)
        return Exit.DONE

    def reconnecting(error: PerdureError) -> None:
        screen.aside(f"perdure: {error.message}; reconnecting")

    async for event in client.stream(args.project_id, reconnecting=reconnecting):
        if args.json:
            screen.line(event.model_dump_json(exclude_defaults=True))
        else:
            show_event(screen, event)
            if screen.live:
                screen.status(_status(await client.project(args.project_id)))
    screen.status("")
    card = await client.project(args.project_id)
    _card(screen, card, as_json=args.json)
    return _EXITS.get(card.status, Exit.DONE)


def _status(card: ProjectView) -> str:
    """What it is at, on one line."""
    done = f"{card.features.get('committed', 0)}/{card.features_total}"
    active = "; ".join(f"{each.feature_id or each.kind}: {each.activity}" for each in card.active)
    return f"{card.phase} {done}, session {card.sessions}: {active or 'waits'}"


def _card(screen: Screen, card: ProjectView, *, as_json: bool) -> None:
    if as_json:
        screen.line(card.model_dump_json())
        return
    usage = card.usage
    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    counted = ", ".join(f"{count} {status}" for status, count in card.features.items() if count)
    retry = card.next_retry
    rows = {
        "name": one_line(card.name, NAME_CHARS_MAX),
        "status": f"{screen.paint(card.status, _TONES.get(card.status, 'plain'))}, {card.phase}",
        "features": counted or "no list yet",
        "sessions": str(card.sessions),
        "usage": f"{usage.input_tokens} in, {usage.output_tokens} out, {cost}",
        "eta": card.pace.eta or "",
        "commit": card.workspace_commit or "",
        "blocked": f"{card.blocked.cap}: {printable(card.blocked.reason)}" if card.blocked else "",
        "last error": one_line(card.last_error or "", screen.width),
        "next retry": f"{retry.at} (attempt {retry.attempt})" if retry else "",
    }
    for active in card.active:
        what = active.feature_id or active.kind
        rows[f"session {active.session}"] = f"{what}, attempt {active.attempt}: {printable(active.activity)}"
    screen.line(card.project_id)
    for name, value in rows.items():
        if value:
            screen.line(f"  {name:<10} {value}")
    for name, items in card.handoff.model_dump().items():
        for item in items:
            screen.line(f"  {name:<13} {one_line(str(item), screen.width)}")
