"""What must be true whatever happened, read from the log, the counted effects and the workspaces.

Invariant: nothing here trusts a service; what a run was is what its records say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

from libs.bus.ports import LogKey
from libs.contracts import events as e
from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import Event, Record, decode_events
from libs.contracts.evolve import fold
from tests.chaos.faults import Fault
from tests.chaos.load import EDITS, Carried

_ENDS = (e.RunCompleted, e.RunFailed, e.RunCancelled)
# What only an owner says.
_OWNERS = (
    e.ModelRequested,
    e.ModelCompleted,
    e.ToolRequested,
    e.ToolUncertain,
    e.WorkspaceAttached,
    e.VerificationRequested,
    e.VerificationCompleted,
    e.RunReleased,
    e.RunCompleted,
)
KINDS = ("lost", "stuck", "duplicated", "gap", "interleaved", "stream", "files", "defect")


class Finding(NamedTuple):
    """Something that must not be."""

    kind: str
    run_id: str
    what: str


class TakeOver(NamedTuple):
    """A claim, and how long after the fault it came that cost the former owner the run."""

    seconds: float
    run_id: str
    epoch: int


class Observed(NamedTuple):
    """All there is to judge."""

    accepted: Mapping[str, Carried]
    logs: Mapping[LogKey, Sequence[Record]]
    effects: Sequence[str]
    workspaces: Path
    open: int
    reconciled: int


def findings(seen: Observed) -> list[Finding]:
    """Everything that does not hold."""
    return [*_missing(seen), *(finding for key in seen.logs for finding in _judged(seen, key))]


def take_overs(logs: Iterable[Sequence[Record]], faults: Sequence[Fault]) -> dict[str, list[TakeOver]]:
    """Every claim that followed a fault of the run's owner, by the kind of fault."""
    found: dict[str, list[TakeOver]] = {}
    for records in logs:
        owner, since = "", None
        for event in (event for record in records for event in decode_events(record)):
            if isinstance(event.body, e.RunReleased):
                owner = ""
            if not isinstance(event.body, e.RunClaimed):
                continue
            at = parse_rfc3339(event.at)
            fault = _last_fault(faults, owner, since, at)
            if fault is not None:
                late_s = (at - fault.at).total_seconds()
                found.setdefault(fault.kind, []).append(TakeOver(late_s, event.run_id, event.body.epoch))
            owner, since = event.body.owner, at
    return found


def table(found: Sequence[Finding], seen: Observed, faults: Sequence[Fault]) -> str:
    """The result for people."""
    lines = [f"{'faults':<16}{len(faults):>6}"]
    lines += [f"  {kind:<14}{times:>6}" for kind, times in sorted(Counter(f.kind for f in faults).items())]
    lines.append(f"{'accepted runs':<16}{len(seen.accepted):>6}")
    ends = Counter(_status(seen, run_id) for run_id in seen.accepted)
    lines += [f"  {status:<14}{times:>6}" for status, times in sorted(ends.items())]
    lines.append(f"{'claims':<16}{sum(_claims(records) for records in seen.logs.values()):>6}")
    lines.append(f"{'effects':<16}{len(seen.effects):>6}")
    lines.append(f"{'reconciled':<16}{seen.reconciled:>6}")
    for kind, taken in sorted(take_overs(seen.logs.values(), faults).items()):
        middle, last = median(one.seconds for one in taken), max(taken)
        lines.append(
            f"take-over after {kind}: {len(taken)} times, median {middle:.1f} s, longest {last.seconds:.1f} s "
            f"({last.run_id}, epoch {last.epoch})"
        )
    counted = Counter(finding.kind for finding in found)
    lines += [f"{kind:<16}{counted[kind]:>6}" for kind in KINDS]
    lines += [f"  {finding.kind} {finding.run_id}: {finding.what}" for finding in found]
    return "\n".join(lines)


def _missing(seen: Observed) -> Iterator[Finding]:
    logged = {key.log_id for key in seen.logs}
    yield from (Finding("lost", run, "accepted and not in the log") for run in seen.accepted.keys() - logged)
    if seen.open:
        yield Finding("stuck", "-", f"{seen.open} clients still wait")


def _judged(seen: Observed, key: LogKey) -> Iterator[Finding]:
    records = seen.logs[key]
    events = [event for record in records for event in decode_events(record)]
    yield from (Finding(kind, key.log_id, what) for kind, what in _log(records, events))
    yield from (Finding("duplicated", key.log_id, what) for what in _effects(seen.effects, events))
    run = seen.accepted.get(key.log_id)
    if run is None:
        return
    if run.events != list(range(1, len(events) + 1)):
        yield Finding("stream", key.log_id, f"its client saw {run.events} of {len(events)} events")
    if run.marker == "[edit]":
        yield from (Finding("files", key.log_id, what) for what in _files(seen.workspaces / run.workspace))


def _log(records: Sequence[Record], events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    """The log of one run: numbered without a gap, written by its owners alone, ended once, and well."""
    if [event.sequence for event in events] != list(range(1, len(events) + 1)):
        yield "gap", f"its events are numbered {[event.sequence for event in events]}"
    previous, owner = 0, ""
    for record in records:
        if record.header.previous != previous:
            yield (
                "gap",
                f"record {record.header.stream_sequence} names {record.header.previous}, not {previous}",
            )
        previous = record.header.stream_sequence
        for event in decode_events(record):
            if isinstance(event.body, e.RunClaimed):
                owner = event.body.boot
            elif isinstance(event.body, _OWNERS) and record.header.boot != owner:
                yield (
                    "interleaved",
                    f"{record.header.boot} wrote event {event.sequence}, {owner} owned the run",
                )
    ends = [event for event in events if isinstance(event.body, _ENDS)]
    if not ends:
        state = fold(None, events)
        yield "stuck", f"it is {state.status if state is not None else 'nothing'}"
    elif ends != events[-1:]:
        yield "gap", f"it ended {len(ends)} times, or wrote behind its end"
    elif not isinstance(ends[0].body, e.RunCompleted):
        yield "lost", f"it ended with {ends[0].body!r}"


def _effects(effects: Sequence[str], events: Sequence[Event]) -> Iterator[str]:
    """Each counted effect once, and once more for each time that a person said retry."""
    allowed = Counter[str]()
    for event in events:
        match event.body:
            case e.ToolRequested(call_id=call, name="count", attempt=1):
                allowed[call] += 1
            case e.ReconciliationResolved(call_id=call, decision="retry"):
                allowed[call] += 1
            case _:
                pass
    run_id = events[0].run_id
    happened = Counter(line.split()[1] for line in effects if line.startswith(f"{run_id} "))
    for call, times in happened.items():
        if times > allowed[call]:
            yield f"{call} took effect {times} times, {allowed[call]} were allowed"


def _files(workspace: Path) -> Iterator[str]:
    for number in range(EDITS):
        path = workspace / f"{number}.txt"
        if not path.is_file() or path.read_text() != f"text {number}\n":
            yield f"{path.name} is not what was written"


def _claims(records: Sequence[Record]) -> int:
    return sum(isinstance(event.body, e.RunClaimed) for record in records for event in decode_events(record))


def _status(seen: Observed, run_id: str) -> str:
    records = next((records for key, records in seen.logs.items() if key.log_id == run_id), None)
    return records[-1].header.state if records else "MISSING"


def _last_fault(faults: Sequence[Fault], owner: str, since: datetime | None, at: datetime) -> Fault | None:
    """The fault that cost the owner the run: the last that its process did not survive."""
    if not owner or since is None:
        return None
    victim = owner.removesuffix("-1")
    deadly = [
        fault
        for fault in faults
        if fault.victim == victim and since <= fault.at <= at and fault.kind in ("kill", "freeze-long")
    ]
    return deadly[-1] if deadly else None
