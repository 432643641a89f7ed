"""The arguments of `perdure runs`: one action a command on runs.

Invariant: nothing but the standard library is imported here, so that help is instant.
"""

import argparse
from typing import Protocol

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
# Commands on a run that take nothing else.
_PLAIN_COMMANDS = {
    "cancel": "cancel a run",
    "pause": "pause a run once none of its calls is running",
    "resume": "go on with a paused run",
    "delete": "delete an ended run with all that it left",
}
_EXPORT = (
    "--wire needs executors that ran with PERDURE_RECORD_WIRE=true. Credentials are masked, the run's own content is "
    "there: read a recording before you pass it on. `python -m deploy.dev.model_server --replay FILE` answers like it."
)
_TAIL_CODES = (
    "exit codes: those of `perdure run` (0 completed, 1 failed, 2 usage, 3 a person is needed, 130 cancelled, 141 "
    "nobody reads the output), 0 when the run is paused. Ending this command never ends the run."
)


def positive(text: str) -> int:
    """A number of at least 1, as an argument."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


Action = argparse.ArgumentParser


def add_actions(runs: argparse.ArgumentParser) -> None:
    """All that can be done with runs."""
    actions = runs.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, told: str, epilog: str | None = None) -> Action:
        command = actions.add_parser(name, help=told, epilog=epilog)
        command.set_defaults(module="runs")
        command.add_argument("--json", action="store_true", help="as JSON")
        return command

    def of_a_run(name: str, told: str, epilog: str | None = None) -> Action:
        command = action(name, told, epilog)
        command.add_argument("run_id", metavar="RUN", help="the run's id, as `perdure runs list` shows it")
        return command

    listing = action("list", "runs, newest first")
    listing.add_argument("--status", choices=STATUSES, metavar="STATUS", help=", ".join(STATUSES))
    listing.add_argument("--limit", type=positive, default=20, metavar="N", help="at most this many (20)")
    listing.add_argument("--cursor", help="continue where an earlier list ended")
    _add_looking(of_a_run)
    for name, told in _PLAIN_COMMANDS.items():
        of_a_run(name, told)
    _add_deciding(of_a_run)
    _add_copying(of_a_run)


class _OfARun(Protocol):
    def __call__(self, name: str, told: str, epilog: str | None = None) -> Action: ...


def _add_looking(action: _OfARun) -> None:
    """What shows a run."""
    action("show", "one run as it stands")
    events = action("events", "the recorded events of a run")
    events.add_argument(
        "--after", type=int, default=0, metavar="SEQUENCE", help="only what follows this sequence"
    )
    action("questions", "what a run has asked, and the answers")
    tail = action("tail", "follow a run until it ends or waits for a person", _TAIL_CODES)
    tail.add_argument(
        "--after", type=int, metavar="SEQUENCE", help="start behind this sequence (from the beginning)"
    )
    export = action("export", "a run as JSON lines: its events, or its traffic with the model", _EXPORT)
    export.add_argument("--wire", action="store_true", help="what went over the wire instead of the events")
    export.add_argument("-o", "--output", metavar="FILE", help="into this file instead of standard output")


def _add_deciding(action: _OfARun) -> None:
    """What a person says to a run."""
    reply = action("reply", "answer the question that a run waits on")
    reply.add_argument("answer", metavar="ANSWER")
    reply.add_argument("--question", metavar="ID", help="refuse unless this is the question it waits on")
    approve = action("approve", "approve or reject the call that a run waits to make")
    reconcile = action("reconcile", "say what became of a call whose outcome nobody knows")
    for command in (approve, reconcile):
        command.add_argument("call_id", metavar="CALL", help="the call, as `perdure runs show` names it")
    approve.add_argument("--reject", action="store_true", help="reject it; the model is told")
    approve.add_argument(
        "--reason", default="", metavar="TEXT", help="why; reaches the model when it is rejected"
    )
    reconcile.add_argument("decision", choices=("accept", "retry", "fail"), metavar="accept|retry|fail")
    reconcile.add_argument("--observation", metavar="TEXT", help="what is there now; accept needs it")
    message = action("message", "steer a run: the text reaches the model with its next turn")
    message.add_argument("text", metavar="TEXT")


def _add_copying(action: _OfARun) -> None:
    """What makes a run of a run."""
    fork = action("fork", "a new run that goes on from an event of this one")
    fork.add_argument(
        "--after", type=positive, required=True, metavar="SEQUENCE", help="the last event that both share"
    )
    fork.add_argument("--goal", metavar="TEXT", help="another goal for the new run")
    retry = action("retry", "a new run of the task of one that has ended")
    retry.add_argument(
        "--from",
        dest="origin",
        choices=("start", "last_checkpoint"),
        default="start",
        metavar="start|last_checkpoint",
        help="the whole task (start), or from where its workspace was kept last",
    )
