"""`perdure knowledge index|search|status`: the documents that `search_knowledge` finds, from a shell.

Invariant: it works on the indexes themselves, whether Perdure runs or not, as the tool hosts with the same settings do;
text of documents is shown harmless.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from deploy.cli.outcome import Exit, failed, refused
from deploy.cli.terminal import Screen, one_line, printable
from deploy.cli.workspaces import tenant_of
from libs.chassis.clock import SystemClock
from libs.chassis.settings import read_environment
from libs.contracts.clock import rfc3339
from libs.contracts.errors import ConfigurationError, PerdureError
from libs.contracts.ids import is_token
from services.toolhost.knowledge import ledger as ledgers
from services.toolhost.knowledge.backends import Knowledge
from services.toolhost.knowledge.documents import Source, source_of
from services.toolhost.knowledge.indexing import Parts, Report, brought_in_line
from services.toolhost.knowledge.search import Answer
from services.toolhost.knowledge.standing import LegStanding, Standing, standing
from services.toolhost.settings import ToolhostSettings

LOCAL = "local"
_EXCERPT_CHARS = 240


def main(args: argparse.Namespace) -> Exit:
    """Carry out the command."""
    known = read_environment() | ({"PERDURE_DATA": args.data} if args.data else {})
    try:
        settings = ToolhostSettings.load("knowledge", known)
        tenant = _tenant(args.tenant, known)
        return asyncio.run(carry_out(Knowledge(settings.knowledge), tenant, args, Screen()))
    except ConfigurationError as error:
        return refused(error.message)
    except PerdureError as error:
        return failed(error)


async def carry_out(knowledge: Knowledge, tenant: str, args: argparse.Namespace, screen: Screen) -> Exit:
    """The command on the indexes, which it closes. Raises what they refuse."""
    try:
        match args.action:
            case "index":
                return await _index(knowledge, tenant, args, screen)
            case "search":
                _show_answer(
                    screen, await knowledge.search(tenant, args.query, args.limit), as_json=args.json
                )
                return Exit.DONE
            case _:
                ledger = ledgers.load(knowledge.settings.root, tenant)
                found = await standing(await knowledge.legs(), tenant, ledger)
                _show_standing(screen, found, as_json=args.json)
                return Exit.FAILED if found.problems else Exit.DONE
    finally:
        await knowledge.close()


# --- index ---


async def _index(knowledge: Knowledge, tenant: str, args: argparse.Namespace, screen: Screen) -> Exit:
    if args.name is not None and (not args.name.isprintable() or "/" in args.name or not args.name.strip()):
        return refused("--as takes a name: one word without a slash, the beginning of its documents' paths")
    sources = [source_of(path, args.name) for path in args.paths]
    sources += [Source(name, Path(), forgotten=True) for name in args.forget]
    if not sources:
        return refused("name the folders or files to index, or --forget NAME")
    reports: dict[str, Report] = {}
    with ledgers.exclusive(knowledge.settings.root):
        for source in sources:
            report = await _indexed(knowledge, tenant, source, screen, anew=args.anew and not reports)
            reports[source.name] = report
            if not args.json:
                _show_report(screen, source, report)
    if args.json:
        told = {name: msgspec.to_builtins(report) for name, report in reports.items()}
        screen.line(msgspec.json.encode({"tenant": tenant, "sources": told}).decode())
    return Exit.FAILED if any(report.problems for report in reports.values()) else Exit.DONE


async def _indexed(
    knowledge: Knowledge, tenant: str, source: Source, screen: Screen, *, anew: bool
) -> Report:
    """One source, with what the ledger says of it before and after."""
    root, clock = knowledge.settings.root, SystemClock()
    ledger = ledgers.load(root, tenant)
    if not source.forgotten:
        ledger.refuse_two_folders(source)
    legs = await knowledge.legs()
    former, ledger.begun_at = ledger.begun_at, rfc3339(clock.now())
    ledgers.save(root, tenant, ledger)

    def progress(what: str, done: int, total: int) -> None:
        screen.status(f"{printable(source.name)}: {what} of {done} of {total} files")

    try:
        parts = Parts(legs.lexical, legs.semantic, None if source.forgotten else legs.embedder)
        report = await brought_in_line(parts, tenant, source, progress, anew=anew)
    except PerdureError:
        ledger.begun_at = former
        ledgers.save(root, tenant, ledger)
        raise
    finally:
        screen.status("")
    if knowledge.settings.embed_model and legs.embedder is None:
        report.problems.append(legs.no_embedder)
    if source.forgotten:
        ledger.sources.pop(source.name, None)
    else:
        ledger.sources[source.name] = ledgers.Record(
            root=str(source.root),
            indexed_at=rfc3339(clock.now()),
            passed_over=report.passed_over,
            problems=report.problems,
        )
    ledger.begun_at = None
    ledgers.save(root, tenant, ledger)
    return report


def _show_report(screen: Screen, source: Source, report: Report) -> None:
    changed = f"{report.added} new, {report.moved} moved, {report.removed} removed"
    vectors = f", {report.embedded} embedded" if report.embedded else ""
    what = f"{report.documents} documents, {report.chunks} chunks ({changed}{vectors})"
    screen.line(f"{printable(source.name)}: {what}{_passed_over(report.passed_over)}")
    _show_problems(screen, report.problems)


# --- search and status ---


def _show_answer(screen: Screen, answer: Answer, *, as_json: bool) -> None:
    if as_json:
        screen.line(msgspec.json.encode(answer).decode())
        return
    for number, result in enumerate(answer.results, 1):
        chunk = result.chunk
        ranks = (("words", result.lexical_rank), ("meaning", result.semantic_rank))
        found = ", ".join(f"{leg} #{rank}" for leg, rank in ranks if rank is not None)
        place = f"{printable(chunk.path)}:{chunk.first_line}-{chunk.last_line}"
        screen.line(f"{number:>2}  {screen.paint(place, 'bold')}  {one_line(chunk.title, 100)}  ({found})")
        screen.line(screen.paint(f"    {one_line(chunk.text, _EXCERPT_CHARS)}", "dim"))
    if not answer.results:
        screen.line("nothing found")
    for note in answer.notes:
        screen.aside(f"note: {printable(note)}")


def _show_standing(screen: Screen, found: Standing, *, as_json: bool) -> None:
    if as_json:
        screen.line(msgspec.json.encode(found).decode())
        return
    made = (
        f", made with {found.semantic.model} ({found.semantic.dimension} numbers)"
        if found.semantic.model
        else ""
    )
    screen.line(f"tenant   {found.tenant}")
    screen.line(f"words    {_leg(found.lexical)}")
    screen.line(f"vectors  {_leg(found.semantic)}{printable(made)}")
    screen.line(
        f"model    {printable(found.embed_model or 'none: HYBRID_EMBED_MODEL is not set, or cannot be used')}"
    )
    screen.line(f"indexed  {found.indexed_at or 'never from here'}")
    for source in found.sources:
        root = f", {source.indexed_at}, {printable(source.root)}" if source.root is not None else ""
        counts = f"{source.documents} documents, {source.chunks} chunks"
        screen.line(f"  {printable(source.name)}: {counts}{root}{_passed_over(source.passed_over)}")
    _show_problems(screen, found.problems)


def _leg(leg: LegStanding) -> str:
    return f"{leg.backend}: {leg.chunks} chunks of {leg.documents} documents"


def _passed_over(reasons: Mapping[str, int]) -> str:
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"; passed over: {told}" if told else ""


def _show_problems(screen: Screen, problems: Sequence[str]) -> None:
    for problem in problems:
        screen.line(screen.paint(f"  problem: {printable(problem)}", "bad"))


def _tenant(given: str | None, known: Mapping[str, str]) -> str:
    """Whose documents. Raises `ConfigurationError`."""
    if given is not None:
        if not is_token(given):
            raise ConfigurationError(f"--tenant {given!r} must match [a-z0-9_-]{{1,64}}")
        return given
    if not known.get("RUNTIME_API_KEYS_JSON"):
        return LOCAL
    if not known.get("PERDURE_TOKEN"):
        raise ConfigurationError(
            "there are several tenants here: say whose documents these are with --tenant NAME"
        )
    return tenant_of(known)
