"""The arguments of `perdure schedule …`."""

import argparse

from deploy.cli.run_arguments import positive

_CREATE = "With --file the other arguments replace what the file says. docs/schedules.md tells which times an expression names."


def add_actions(schedule: argparse.ArgumentParser) -> None:
    """Add the actions with their arguments."""
    actions = schedule.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="have a task done at its times", epilog=_CREATE)
    create.add_argument("cron", metavar="CRON", nargs="?", help="as an example '30 2 * * 1-5', or @daily")
    create.add_argument("goal", metavar="GOAL", nargs="?", help="what is to be done")
    create.add_argument("--name", metavar="NAME", help="its name (the beginning of the goal)")
    create.add_argument("--timezone", metavar="ZONE", help="as an example Europe/Berlin (UTC)")
    create.add_argument(
        "--overlap",
        choices=("skip", "queue", "allow"),
        help="what becomes of a time while an earlier run goes on (skip)",
    )
    create.add_argument(
        "--workspace", metavar="NAME", help="the workspace of its runs (one of each run's own)"
    )
    create.add_argument(
        "--file", metavar="FILE", help="a JSON body as the API takes it; - reads it from standard input"
    )
    listing = actions.add_parser("list", help="schedules, newest first")
    listing.add_argument("--limit", type=positive, default=20, metavar="N", help="at most this many (20)")
    listing.add_argument("--cursor", help="continue where an earlier list ended")
    told = {
        "show": "its times, its last run and its counts",
        "pause": "no time of it comes until it is resumed",
        "resume": "its times count from now on",
        "fire": "have it done now",
        "delete": "its runs go on",
    }
    known = [actions.add_parser(name, help=what) for name, what in told.items()]
    for command in known:
        command.add_argument(
            "schedule_id", metavar="SCHEDULE", help="its id, as `perdure schedule list` shows it"
        )
    for command in (create, listing, *known):
        command.set_defaults(module="schedule")
        command.add_argument("--json", action="store_true", help="as JSON")
