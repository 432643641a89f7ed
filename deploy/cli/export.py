"""`perdure runs export`: a run as JSON lines, its events or what went over the wire in its model calls.

Invariant: a line is exactly what the API gave, whole; a file is there only when all of it is.
"""

import argparse
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

from deploy.cli.outcome import Exit, refused
from deploy.cli.terminal import Screen
from libs.chassis.files import written_whole
from libs.client import PerdureClient

# One page of events; more are asked for page by page.
_PAGE = 500
# The events that end a model call.
_ENDS = frozenset({"model.completed", "model.failed", "context.compacted"})


async def export(client: PerdureClient, screen: Screen, args: argparse.Namespace) -> Exit:
    """Write the lines to the file, else to standard output."""
    lines = exchanges(client, args.run_id) if args.wire else events(client, args.run_id)
    target = Path(args.output) if args.output else None
    count = 0
    async with aclosing(lines) as found:
        if target is None:
            async for line in found:
                screen.line(line)
                count += 1
        else:
            try:
                count = await _written(found, target)
            except OSError as error:
                return refused(f"cannot write {target}: {error.strerror or error}; name another file")
    if args.wire and not count:
        screen.aside("nothing was recorded in this run; executors record with PERDURE_RECORD_WIRE=true")
        return Exit.FAILED
    if target is not None:
        told = {"run_id": args.run_id, "file": str(target), "lines": count}
        screen.line(json.dumps(told) if args.json else f"{count} lines in {target}")
    return Exit.DONE


async def _written(lines: AsyncIterator[str], target: Path) -> int:
    """How many lines the file holds."""
    count = 0
    with written_whole(target) as file:
        async for line in lines:
            file.write(f"{line}\n")
            count += 1
    return count


async def events(client: PerdureClient, run_id: str) -> AsyncGenerator[str]:
    """Every event, with all of its text."""
    after = 0
    while (page := await client.events(run_id, after_sequence=after, limit=_PAGE)).events:
        for event in page.events:
            whole = (
                await client.event(run_id, event.sequence) if "truncated_fields" in event.payload else event
            )
            yield whole.model_dump_json(exclude_defaults=True)
        after = page.next_after_sequence


async def exchanges(client: PerdureClient, run_id: str) -> AsyncGenerator[str]:
    """Every recorded exchange with the model, in order."""
    after = 0
    while (page := await client.events(run_id, after_sequence=after, limit=_PAGE)).events:
        for event in page.events:
            if event.type in _ENDS and event.payload.get("wire"):
                for exchange in (await client.wire(run_id, event.sequence)).exchanges:
                    yield exchange.model_dump_json(exclude_defaults=True)
        after = page.next_after_sequence
