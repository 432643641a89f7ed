"""The `perdure` command: what can be asked for, and which file does it.

Invariant: nothing but the standard library is imported before the command is known, so that help is instant; each
command group is one file with `async` functions that return the exit code (`outcome.py`).
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from deploy.cli import knowledge_arguments, run_arguments, schedule_arguments
from deploy.cli.run_arguments import positive

SERVICES = ("gateway", "scheduler", "executor", "toolhost", "verifier")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Parse, carry out, exit."""
    args = parser().parse_args(argv)
    try:
        if args.command == "serve":
            # The same process becomes the service, so that signals reach it and its pid is the one that was started.
            os.execv(sys.executable, [sys.executable, "-m", f"services.{args.service}"])
        module = importlib.import_module(f"deploy.cli.{args.module}")
        sys.exit(module.main(args))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Standard output is closed, so that the interpreter does not try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # For those whose exit code is a run's outcome 0 would say that it completed: 128 + SIGPIPE, as a shell tells it.
        sys.exit(_UNREAD if args.command == "run" or getattr(args, "action", None) == "tail" else 0)


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    root = argparse.ArgumentParser(
        prog="perdure",
        description="Durable agent runs: five services over NATS JetStream.",
        epilog="PERDURE_URL (else PERDURE_HOST and PERDURE_PORT, else http://127.0.0.1:8000) and PERDURE_TOKEN say where "
        "the server is and who asks; they are read from the environment and from .env here. docs/configuration.md "
        "lists all settings.",
    )
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _up(commands.add_parser("up", help="run everything on this machine", description=_UP))
    serve = commands.add_parser("serve", help="run one service against NATS_URL")
    serve.add_argument("service", choices=SERVICES, metavar="SERVICE", help=", ".join(SERVICES))
    _run(commands.add_parser("run", help="submit a goal and watch it", description=_RUN, epilog=_RUN_CODES))
    run_arguments.add_actions(
        commands.add_parser("runs", help="list, show, follow, answer, pause, cancel and delete runs")
    )
    _project(commands.add_parser("project", help="long-horizon projects: create, list, show, steer"))
    schedule_arguments.add_actions(
        commands.add_parser("schedule", help="tasks at their times: create, list, show, pause, fire, delete")
    )
    _dead(commands.add_parser("dead", help="messages that nobody could handle, for operators"))
    _log(commands.add_parser("log", help="export, import, verify and replay logs, for operators"))
    knowledge_arguments.add_actions(
        commands.add_parser("knowledge", help="index and search the documents of search_knowledge")
    )
    _doctor(commands.add_parser("doctor", help="examine the bus of this deployment", description=_DOCTOR))
    _check_model(
        commands.add_parser("check-model", help="examine the model's endpoint", description=_CHECK_MODEL)
    )
    completion = commands.add_parser(
        "completion", help="a script that completes commands in your shell", description=_COMPLETION
    )
    # Beside the names of `completion.py`, which is not imported before it is asked for.
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(module="completion", root=root)
    return root


_COMPLETION = "In bash and zsh: source <(perdure completion bash). In fish: perdure completion fish | source."
_UP = (
    "Starts an embedded NATS server (unless --nats-url) and the five services, restarts what dies, and prints "
    "`ready http://HOST:PORT` when all are healthy. Ctrl-C or SIGTERM drains; a second one kills."
)
_RUN = (
    "Submits a goal, shows what the agent does, and asks on the terminal when it asks. With --json: one event a "
    "line as it happens, and the run as the last line."
)
_DOCTOR = (
    "Looks at the server (NATS_URL, else the one of the data folder): connection, version, durability, limits, streams, "
    "clocks; then has two claimants fight for one throw-away log, and a stale writer try to write. Exits 1 on a failure."
)
_CHECK_MODEL = (
    "Asks the configured model (OPENAI_API_KEY, OPENAI_BASE_URL, MODEL_ID) for a text and for a tool call, as a run would: "
    "Connection, Text completion, Streaming, Function calling, Tool round trip. A few short requests. Exits 1 on a failure."
)
_UNREAD = 141
_RUN_CODES = (
    "exit codes: 0 completed, 1 failed, 2 usage, 3 a person is needed, 130 cancelled, 141 nobody reads the output. "
    "Ctrl-C cancels the run; when the command ends in another way (SIGTERM, a closed pipe), the run goes on, and "
    "`perdure runs tail RUN` follows it."
)
_PROJECT = (
    "With --file the other arguments replace what the file says. docs/projects.md tells what happens then."
)
_PROJECT_CODES = (
    "exit codes with --watch: 0 completed, 3 blocked, 130 cancelled. Ending this command never ends it."
)


class _Version(argparse.Action):
    """The version is looked up only when it is asked for: help stays instant."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        version = importlib.import_module("importlib.metadata").version("perdure")
        sys.stdout.write(f"perdure {version}\n")
        parser.exit()


class _Goal(argparse.Action):
    """One argument; several are a goal that lost its quotes."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        *_: object,
        **__: object,
    ) -> None:
        words = [values or ""] if isinstance(values, str | None) else [str(word) for word in values]
        if len(words) > 1:
            parser.error(
                f"GOAL is one argument; quote the goal: perdure run {chr(34)}{' '.join(words)}{chr(34)}"
            )
        namespace.goal = words[0]


def _up(command: argparse.ArgumentParser) -> None:
    command.set_defaults(module="up")
    command.add_argument("--host", help="address of the gateway (PERDURE_HOST, 127.0.0.1)")
    command.add_argument("--port", type=int, help="port of the gateway, 0 for any (PERDURE_PORT, 8000)")
    command.add_argument("--data", metavar="DIR", help="data folder (PERDURE_DATA, .perdure)")
    command.add_argument("--nats-url", metavar="URL", help="use this server instead of starting one")
    command.add_argument("--json", action="store_true", help="log as JSON lines on a terminal too")


def _run(command: argparse.ArgumentParser) -> None:
    command.usage = "perdure run [-h] [--workspace DIR] [--accept CMD] [--data DIR] [--json] GOAL"
    command.set_defaults(module="run")
    command.add_argument(
        "goal",
        metavar="GOAL",
        nargs="+",
        action=_Goal,
        help="what the agent should achieve; - reads it from standard input",
    )
    command.add_argument(
        "--workspace",
        metavar="DIR",
        help="a directory of this machine, which the agent then edits in place, or a workspace's name (new: empty)",
    )
    command.add_argument(
        "--accept",
        metavar="CMD",
        action="append",
        default=[],
        help="a command that must succeed in a clean checkout of the result; may be repeated. Plain words are run as "
        "they are; with shell syntax (any of |&;<>()$`*?[]~#!, a new line, or NAME=value in front) it is run by sh -c",
    )
    command.add_argument("--data", metavar="DIR", help="data folder of `perdure up` (PERDURE_DATA, .perdure)")
    command.add_argument("--json", action="store_true", help="events and the run as JSON lines")


def _project(project: argparse.ArgumentParser) -> None:
    actions = project.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="start a project", epilog=_PROJECT)
    create.add_argument("brief", metavar="BRIEF", nargs="?", help="what is to be built")
    create.add_argument("--name", metavar="NAME", help="its name (the beginning of the brief)")
    create.add_argument(
        "--file", metavar="FILE", help="a JSON body as the API takes it; - reads it from standard input"
    )
    create.add_argument(
        "--verify",
        metavar="CMD",
        action="append",
        default=[],
        help="a command that must always succeed; may be repeated",
    )
    create.add_argument("--init", metavar="CMD", help="the command that sets the environment up")
    create.add_argument(
        "--seed", metavar="DIR", help="a folder of this machine that the workspace begins from"
    )
    create.add_argument(
        "--items", metavar="FILE", help="items, one a line, instead of features; - reads standard input"
    )
    create.add_argument("--glob", metavar="PATTERN", help="the files below this folder that match, as items")
    create.add_argument("--each", metavar="GOAL", help="what is to be done with {item}")
    create.add_argument(
        "--in", metavar="NAME", dest="within", help="the workspace that all items are done in"
    )
    create.add_argument("--concurrency", type=positive, metavar="N", help="features or items at once (1)")
    listing = actions.add_parser("list", help="projects, newest first")
    listing.add_argument("--limit", type=positive, default=20, metavar="N", help="at most this many (20)")
    listing.add_argument("--cursor", help="continue where an earlier list ended")
    show = actions.add_parser("show", help="the progress card", epilog=_PROJECT_CODES)
    show.add_argument("--watch", action="store_true", help="follow until it ends or is blocked")
    told = {"pause": "come to a rest", "resume": "go on after a pause or a block", "cancel": "end it"}
    steering = [actions.add_parser(name, help=what) for name, what in told.items()]
    steering[1].add_argument(
        "--limits", metavar="JSON", help="the caps in force from now on, as the API takes them"
    )
    for command in (show, *steering):
        command.add_argument(
            "project_id", metavar="PROJECT", help="its id, as `perdure project list` shows it"
        )
    for command in (create, listing, show, *steering):
        command.set_defaults(module="project")
        command.add_argument("--json", action="store_true", help="as JSON")


def _dead(dead: argparse.ArgumentParser) -> None:
    actions = dead.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="dead letters, newest first")
    listing.add_argument(
        "--kind", metavar="KIND", help="only one kind: run, work, tasks, tools, rejected, ..."
    )
    listing.add_argument("--limit", type=positive, default=20, metavar="N", help="at most this many (20)")
    listing.add_argument("--cursor", help="continue where an earlier list ended")
    replay = actions.add_parser("replay", help="send the message again to where it came from")
    replay.add_argument("letter_id", metavar="ID")
    for command in (listing, replay):
        command.set_defaults(module="dead")
        command.add_argument("--json", action="store_true", help="as JSON")


def _log(log: argparse.ArgumentParser) -> None:
    actions = log.add_subparsers(dest="action", metavar="ACTION", required=True)
    export = actions.add_parser("export", help="runs as JSON lines, with all that their events name")
    export.add_argument("-o", "--output", metavar="FILE", help="into this file instead of standard output")
    bring_in = actions.add_parser(
        "import", help="the runs of an export that are not there yet; live ones paused"
    )
    bring_in.add_argument("file", metavar="FILE", help="the export; - reads standard input")
    verify = actions.add_parser("verify", help="check that every run's log folds and is gapless")
    for command in (export, verify):
        command.add_argument("runs", metavar="RUN", nargs="*", help="only these runs (all)")
    replay = actions.add_parser("replay", help="publish the events of a run to a subject of your own")
    replay.add_argument("runs", metavar="RUN", nargs=1)
    replay.add_argument("--to", required=True, metavar="SUBJECT", help="where to; none that Perdure consumes")
    replay.add_argument(
        "--after", type=int, default=0, metavar="SEQUENCE", help="only what follows this sequence"
    )
    replay.add_argument("--up-to", type=positive, metavar="SEQUENCE", help="and nothing behind this one")
    for command in (export, bring_in, verify, replay):
        command.set_defaults(module="log")
        command.add_argument(
            "--data", metavar="DIR", help="data folder of `perdure up` (PERDURE_DATA, .perdure)"
        )
        command.add_argument(
            "--nats-url", metavar="URL", help="the server, instead of NATS_URL and the data folder"
        )
        command.add_argument("--json", action="store_true", help="as JSON")


def _doctor(command: argparse.ArgumentParser) -> None:
    command.set_defaults(module="doctor")
    command.add_argument("--data", metavar="DIR", help="data folder of `perdure up` (PERDURE_DATA, .perdure)")
    command.add_argument(
        "--nats-url", metavar="URL", help="the server, instead of NATS_URL and the data folder"
    )
    command.add_argument("--json", action="store_true", help="the findings as one JSON object")


def _check_model(command: argparse.ArgumentParser) -> None:
    command.set_defaults(module="check_model")
    command.add_argument("--model", metavar="ID", help="another model of the same endpoint (MODEL_ID)")
    command.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="S", help="how long each answer may take (60)"
    )
    command.add_argument("--json", action="store_true", help="the findings as one JSON object")


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError("must be above 0 and at most 3600")
    return number


if __name__ == "__main__":
    main()
