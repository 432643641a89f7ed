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

SERVICES = ("gateway", "scheduler", "executor", "toolhost", "verifier")
STATUSES = (
    "PENDING",
    "QUEUED",
    "RUNNING",
    "VERIFYING",
    "WAITING_FOR_INPUT",
    "WAITING_FOR_CHILD",
    "RECONCILIATION_REQUIRED",
    "PAUSED",
    "RETRYING",
    "COMPLETED",
    "FAILED",
    "CANCELLED",
)


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
    _runs(commands.add_parser("runs", help="list, show, follow, answer, pause, cancel and delete runs"))
    _dead(commands.add_parser("dead", help="messages that nobody could handle, for operators"))
    _doctor(commands.add_parser("doctor", help="examine the bus of this deployment", description=_DOCTOR))
    _check_model(
        commands.add_parser("check-model", help="examine the model's endpoint", description=_CHECK_MODEL)
    )
    return root


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
# Commands on a run that take nothing else.
_PLAIN_COMMANDS = {
    "cancel": "cancel a run",
    "pause": "pause a run once none of its calls is running",
    "resume": "go on with a paused run",
    "delete": "delete an ended run with all that it left",
}
_RUN_CODES = (
    "exit codes: 0 completed, 1 failed, 2 usage, 3 a person is needed, 130 cancelled, 141 nobody reads the output. "
    "Ctrl-C cancels the run; when the command ends in another way (SIGTERM, a closed pipe), the run goes on, and "
    "`perdure runs tail RUN` follows it."
)
_EXPORT = (
    "--wire needs executors that ran with PERDURE_RECORD_WIRE=true. Credentials are masked, the run's own content is "
    "there: read a recording before you pass it on. `python -m deploy.dev.model_server --replay FILE` answers like it."
)
_TAIL_CODES = (
    "exit codes: those of `perdure run` (0 completed, 1 failed, 2 usage, 3 a person is needed, 130 cancelled, 141 "
    "nobody reads the output), 0 when the run is paused. Ending this command never ends the run."
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


def _runs(runs: argparse.ArgumentParser) -> None:
    actions = runs.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="runs, newest first")
    listing.add_argument("--status", choices=STATUSES, metavar="STATUS", help=", ".join(STATUSES))
    listing.add_argument("--limit", type=_positive, default=20, metavar="N", help="at most this many (20)")
    listing.add_argument("--cursor", help="continue where an earlier list ended")
    show = actions.add_parser("show", help="one run as it stands")
    events = actions.add_parser("events", help="the recorded events of a run")
    events.add_argument(
        "--after", type=int, default=0, metavar="SEQUENCE", help="only what follows this sequence"
    )
    questions = actions.add_parser("questions", help="what a run has asked, and the answers")
    tail = actions.add_parser(
        "tail", help="follow a run until it ends or waits for a person", epilog=_TAIL_CODES
    )
    tail.add_argument(
        "--after", type=int, metavar="SEQUENCE", help="start behind this sequence (from the beginning)"
    )
    export = actions.add_parser(
        "export", help="a run as JSON lines: its events, or its traffic with the model", epilog=_EXPORT
    )
    export.add_argument("--wire", action="store_true", help="what went over the wire instead of the events")
    export.add_argument("-o", "--output", metavar="FILE", help="into this file instead of standard output")
    others = [actions.add_parser(name, help=told) for name, told in _PLAIN_COMMANDS.items()]
    reply = actions.add_parser("reply", help="answer the question that a run waits on")
    approve = actions.add_parser("approve", help="approve or reject the call that a run waits to make")
    reconcile = actions.add_parser("reconcile", help="say what became of a call whose outcome nobody knows")
    message = actions.add_parser("message", help="steer a run: the text reaches the model with its next turn")
    of_one_run = (show, events, questions, tail, export, *others, reply, approve, reconcile, message)
    for command in of_one_run:
        command.add_argument("run_id", metavar="RUN", help="the run's id, as `perdure runs list` shows it")
    reply.add_argument("answer", metavar="ANSWER")
    reply.add_argument("--question", metavar="ID", help="refuse unless this is the question it waits on")
    for command in (approve, reconcile):
        command.add_argument("call_id", metavar="CALL", help="the call, as `perdure runs show` names it")
    approve.add_argument("--reject", action="store_true", help="reject it; the model is told")
    approve.add_argument(
        "--reason", default="", metavar="TEXT", help="why; reaches the model when it is rejected"
    )
    reconcile.add_argument("decision", choices=("accept", "retry", "fail"), metavar="accept|retry|fail")
    reconcile.add_argument("--observation", metavar="TEXT", help="what is there now; accept needs it")
    message.add_argument("text", metavar="TEXT")
    for command in (listing, *of_one_run):
        command.set_defaults(module="runs")
        command.add_argument("--json", action="store_true", help="as JSON")


def _dead(dead: argparse.ArgumentParser) -> None:
    actions = dead.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="dead letters, newest first")
    listing.add_argument(
        "--kind", metavar="KIND", help="only one kind: run, work, tasks, tools, rejected, ..."
    )
    listing.add_argument("--limit", type=_positive, default=20, metavar="N", help="at most this many (20)")
    listing.add_argument("--cursor", help="continue where an earlier list ended")
    replay = actions.add_parser("replay", help="send the message again to where it came from")
    replay.add_argument("letter_id", metavar="ID")
    for command in (listing, replay):
        command.set_defaults(module="dead")
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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    main()
