"""`perdure dead …`: what nobody could handle, for operators.

Invariant: with `--json` standard output is exactly what the API answered; what a message holds is shown harmless.
"""

import argparse
import asyncio

from deploy.cli.gateway import connected
from deploy.cli.outcome import Exit, failed, refused
from deploy.cli.terminal import Screen, one_line, printable
from libs.client import PerdureClient
from libs.contracts.errors import ConfigurationError, PerdureError
from libs.contracts.views import DeadLetterView


def main(args: argparse.Namespace) -> Exit:
    """Carry out the command."""
    try:
        client = connected(operator=True)
    except ConfigurationError as error:
        return refused(error.message)
    try:
        return asyncio.run(carry_out(client, args))
    except PerdureError as error:
        return failed(error, token="PERDURE_OPERATOR_KEY")


async def carry_out(client: PerdureClient, args: argparse.Namespace) -> Exit:
    """The command over a client, which it closes. Raises what the server refuses."""
    screen = Screen()
    async with client:
        if args.action == "replay":
            replayed = await client.replay_dead_letter(args.letter_id)
            text = f"{replayed.id} was sent again to {printable(replayed.subject)}"
            screen.line(replayed.model_dump_json() if args.json else text)
            return Exit.DONE
        page = await client.dead_letters(kind=args.kind, limit=args.limit, cursor=args.cursor)
    if args.json:
        screen.line(page.model_dump_json())
        return Exit.DONE
    for letter in page.dead_letters:
        _show(screen, letter)
    if not page.dead_letters:
        screen.line("no dead letters here")
    if page.next_cursor:
        screen.aside(f"more: --cursor {page.next_cursor}")
    return Exit.DONE


def _show(screen: Screen, letter: DeadLetterView) -> None:
    about = letter.run_id or letter.tenant or ""
    head = f"{letter.id:>6}  {letter.at[:19]}  {printable(letter.kind):<10} {printable(about)}"
    screen.line(head.rstrip())
    screen.line(screen.paint(f"        {one_line(letter.reason, 300)}", "warn"))
    screen.line(screen.paint(f"        {one_line(letter.body, max(20, screen.width - 8))}", "dim"))
