"""`perdure schedule …`: tasks at their times, from a shell.

Invariant: with `--json` standard output is exactly what the API answered; without it, lines for people.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import cast

from deploy.cli.gateway import with_client
from deploy.cli.outcome import Exit
from deploy.cli.terminal import Screen, one_line
from libs.client import PerdureClient
from libs.contracts.bodies import NAME_CHARS_MAX
from libs.contracts.http import parse_body
from libs.contracts.schedulehttp import ScheduleChange, ScheduleCreate
from libs.contracts.scheduleviews import ScheduleView

# Of a goal whose schedule has no name, for its name.
_NAME_CHARS = 60


def main(args: argparse.Namespace) -> Exit:
    """Carry out the command."""
    return with_client(lambda client: carry_out(client, args))


async def carry_out(client: PerdureClient, args: argparse.Namespace) -> Exit:
    """The command over a client. Raises what the server refuses."""
    screen = Screen()
    match args.action:
        case "create":
            made = await client.schedules.create(_body(args))
            told = f"{made.schedule_id} next {made.next_fire_at or 'never'}"
            screen.line(made.model_dump_json() if args.json else told)
        case "list":
            await _list(client, screen, args)
        case "show":
            _show(screen, await client.schedules.show(args.schedule_id), as_json=args.json)
        case "pause" | "resume" as command:
            change = ScheduleChange(enabled=command == "resume")
            changed = await client.schedules.change(args.schedule_id, change)
            told = f"{changed.schedule_id} {changed.status}"
            screen.line(changed.model_dump_json() if args.json else told)
        case "fire":
            fired = await client.schedules.fire(args.schedule_id)
            screen.line(fired.model_dump_json() if args.json else fired.run_id)
        case "delete":
            await client.schedules.delete(args.schedule_id)
        case other:
            raise AssertionError(f"the parser lets no action {other} through")
    return Exit.DONE


def _body(args: argparse.Namespace) -> ScheduleCreate:
    """The body of a new schedule. Raises `ValidationFailed`, `ValueError` and `OSError`."""
    given: dict[str, object] = {}
    if args.file is not None:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
        loaded = json.loads(text)
        if not isinstance(loaded, dict):
            raise ValueError(f"{args.file} holds no JSON object")
        given = cast("dict[str, object]", loaded)
    task = given.get("task", {})
    if not isinstance(task, dict):
        raise ValueError("'task' is no JSON object")
    for name, value in (("goal", args.goal), ("workspace", args.workspace)):
        if value is not None:
            task[name] = value
    given["task"] = cast("dict[str, object]", task)
    for name in ("cron", "timezone", "overlap", "name"):
        value = getattr(args, name)
        if value is not None:
            given[name] = value
    given.setdefault("name", " ".join(str(given["task"].get("goal", "")).split())[:_NAME_CHARS])
    return parse_body(ScheduleCreate, json.dumps(given).encode())


async def _list(client: PerdureClient, screen: Screen, args: argparse.Namespace) -> None:
    page = await client.schedules.find(limit=args.limit, cursor=args.cursor)
    if args.json:
        screen.line(page.model_dump_json())
        return
    for schedule in page.schedules:
        name = one_line(schedule.name, NAME_CHARS_MAX)
        due = (schedule.next_fire_at or "-")[:19]
        when = f"{schedule.cron} {schedule.timezone}"
        screen.line(f"{schedule.schedule_id}  {schedule.status:<8} {due:<19}  {when}  {name}")
    if not page.schedules:
        screen.line("no schedules")
    if page.next_cursor:
        screen.aside(f"more: --cursor {page.next_cursor}")


def _show(screen: Screen, schedule: ScheduleView, *, as_json: bool) -> None:
    if as_json:
        screen.line(schedule.model_dump_json())
        return
    last = schedule.last_fire
    rows = {
        "name": one_line(schedule.name, NAME_CHARS_MAX),
        "status": schedule.status,
        "times": f"{schedule.cron} {schedule.timezone}, overlap {schedule.overlap}",
        "next": schedule.next_fire_at or "",
        "last": f"{last.due_at} {last.run_id}" if last is not None else "",
        "waiting": ", ".join(schedule.waiting),
        "counts": f"{schedule.fires} fired, {schedule.missed} missed, {schedule.skipped} skipped",
        "last error": one_line(schedule.last_error or "", screen.width),
    }
    screen.line(schedule.schedule_id)
    for name, value in rows.items():
        if value:
            screen.line(f"  {name:<10} {value}")
