"""What becomes of a call that was sent: the recovery table of the design, section 5, as one pure function.

Invariant: a call without a trustworthy account of its effect is never repeated unless repeating it is harmless.

    journal                    READ_ONLY / IDEMPOTENT           NON_IDEMPOTENT
    finished                   adopt the result                 adopt the result
    stopped by its host        next attempt, same key           uncertain: a person decides
    nothing                    send again                       send again
    started by a live boot     wait, until overdue, then dead   the same
    started by a dead boot     next attempt, same key           uncertain: a person decides
"""

from typing import NamedTuple

from libs.contracts.tools import JournalEntry, JournalState, Refusal, Semantics, ToolResult

# A live host kills a call at its timeout; this long after it, whoever still has no result treats the host as dead.
OVERDUE_AFTER_TIMEOUT_S = 30.0


class Adopt(NamedTuple):
    result: ToolResult


class SendAgain(NamedTuple):
    pass


class Wait(NamedTuple):
    pass


class NextAttempt(NamedTuple):
    pass


class Uncertain(NamedTuple):
    entry: JournalEntry


Recovery = Adopt | SendAgain | Wait | NextAttempt | Uncertain


def recover(semantics: Semantics, entry: JournalEntry | None, *, host_dead: bool, overdue: bool) -> Recovery:
    """The table. `host_dead`: the boot that started the call is written dead; `overdue`: its time is long over."""
    if entry is None:
        return SendAgain()
    if entry.state is JournalState.FINISHED:
        assert entry.result is not None
        if entry.result.refused != Refusal.STOPPED:
            return Adopt(entry.result)
    elif not host_dead and not overdue:
        return Wait()
    return Uncertain(entry) if semantics is Semantics.NON_IDEMPOTENT else NextAttempt()
