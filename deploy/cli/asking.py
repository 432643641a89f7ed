"""What a run needs from a person, asked on the terminal and given to the server.

Invariant: what is to be approved is shown whole and exact, every hidden character escaped, before anything is asked;
nothing is ever approved by default, and the end of the input leaves the run waiting.
"""

import sys
from collections.abc import Mapping, Sequence

from deploy.cli.eventlines import whole
from deploy.cli.outcome import in_commands
from deploy.cli.terminal import printable, read_line
from libs.client import PerdureClient
from libs.contracts.errors import InvalidState
from libs.contracts.http import Approval, Reconciliation
from libs.contracts.views import QuestionView, ReconciliationView, RunView
from libs.contracts.visible import visible_json

_DECISIONS: dict[str, str] = {
    **dict.fromkeys(("a", "approve", "y", "yes"), "approve"),
    **dict.fromkeys(("r", "reject", "n", "no"), "reject"),
}
_RESOLUTIONS: dict[str, str] = {name: name for name in ("accept", "retry", "fail")}


async def ask(client: PerdureClient, run: RunView) -> bool:
    """Ask for what the run waits for now; whether there was an answer, of this person or of a faster one."""
    question, unsure = run.pending_question, run.pending_reconciliation
    try:
        if unsure is not None:
            return await _reconcile(client, run.run_id, unsure)
        if question is not None and question.kind == "approval":
            return await _approve(client, run.run_id, question)
        return question is not None and await _reply(client, run.run_id, question)
    except InvalidState as error:
        # Somebody else was faster; the run goes on with that.
        _say(in_commands(error.message))
        return True


def approval_lines(question: QuestionView) -> list[str]:
    """What an approval is about, exactly."""
    head = f"{printable(question.tool or 'a tool')} would be called as {question.call_id} with exactly this:"
    return [head, *_argument_lines(question.arguments or {})]


def reconciliation_lines(unsure: ReconciliationView) -> list[str]:
    """What is not known, and who would have known it."""
    seen = f", last seen {unsure.last_seen}" if unsure.last_seen else ""
    head = f"nobody knows whether {printable(unsure.name)} ({unsure.call_id}, attempt {unsure.attempt}) took effect"
    host = (
        f"{printable(unsure.host)} ({unsure.boot}) had it{seen}" if unsure.host else "its host is not known"
    )
    return [f"{head}; {host}:", *_argument_lines(unsure.arguments)]


async def _reply(client: PerdureClient, run_id: str, question: QuestionView) -> bool:
    _say(f"\n{whole(question.question)}")
    for number, option in enumerate(question.options, 1):
        _say(f"  {number}. {printable(option)}")
    answer = await read_line("your answer> ")
    if answer is None:
        return False
    if answer.isdigit() and 0 < int(answer) <= len(question.options):
        answer = question.options[int(answer) - 1]
    await client.reply(run_id, answer, question_id=question.question_id)
    return True


async def _approve(client: PerdureClient, run_id: str, question: QuestionView) -> bool:
    _say("", *approval_lines(question))
    decision = await _choice("approve or reject> ", _DECISIONS)
    if decision is None:
        return False
    reason = ""
    if decision == "reject":
        reason = await read_line("reason, for the model (may be empty)> ") or ""
    given = {"call_id": question.call_id, "decision": decision, "reason": reason}
    await client.approve(run_id, Approval.model_validate(given))
    return True


async def _reconcile(client: PerdureClient, run_id: str, unsure: ReconciliationView) -> bool:
    _say("", *reconciliation_lines(unsure))
    _say(
        "accept: it did, what you observe becomes its result; retry: carry it out again; fail: give the run up"
    )
    decision = await _choice("accept, retry or fail> ", _RESOLUTIONS)
    if decision is None:
        return False
    observation = None
    while decision == "accept" and not observation:
        line = await read_line("what do you observe> ")
        if line is None:
            return False
        observation = line.strip()
    given = {"call_id": unsure.call_id, "decision": decision, "observation": observation}
    await client.reconcile(run_id, Reconciliation.model_validate(given))
    return True


async def _choice(prompt: str, choices: Mapping[str, str]) -> str | None:
    """One of the choices, asked for until it is one; `None` at the end of the input."""
    while (line := await read_line(prompt)) is not None:
        chosen = choices.get(line.strip().lower())
        if chosen is not None:
            return chosen
    return None


def _argument_lines(arguments: Mapping[str, object]) -> Sequence[str]:
    if not arguments:
        return ["  (no arguments)"]
    return [f"  {printable(name)} = {visible_json(value)}" for name, value in arguments.items()]


def _say(*lines: str) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
