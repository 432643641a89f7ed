"""The verdict over the checks of a round, and what the model is told about it. PURE.

Invariant: PASSED needs at least one applicable check and all of them green; one red check is FAILED; nothing applicable
is UNVERIFIED, never PASSED. What the run says of itself, and what a model says of it, can only count against it; and a
review that was asked for and not made is missing from every PASSED, so there is none.
"""

from collections.abc import Sequence

from libs.contracts.checks import CheckResult, CheckStatus, Verdict

# The kind of the result that holds what an answer says against what is there.
CLAIMS = "claims"
# The kind of the results of reviews.
REVIEW = "review"
# What can fail a run and never pass one: words.
_NO_PROOF = (CLAIMS, REVIEW)
# What of a check's output the model reads: enough for a traceback, small beside its context.
FEEDBACK_TAIL_CHARS = 4000
# All outputs of one message together.
FEEDBACK_CHARS_MAX = 12_000


def verdict(results: Sequence[CheckResult]) -> Verdict:
    statuses = {result.status for result in results}
    if CheckStatus.FAILED in statuses:
        return Verdict.FAILED
    proved = any(result.status is CheckStatus.PASSED and result.kind not in _NO_PROOF for result in results)
    reviewed = all(result.status is CheckStatus.PASSED for result in results if result.kind == REVIEW)
    return Verdict.PASSED if proved and reviewed else Verdict.UNVERIFIED


def feedback(results: Sequence[CheckResult], *, round_number: int, last: bool) -> str:
    """What the model reads after a failed round; empty after any other. `last`: the next round is the last one."""
    if verdict(results) is not Verdict.FAILED:
        return ""
    failed = [result for result in results if result.status is CheckStatus.FAILED]
    applicable = [result for result in results if result.status is not CheckStatus.NOT_APPLICABLE]
    counted = f"{len(failed)} of {len(applicable)} checks failed"
    parts = [
        f"VERIFICATION FAILED (round {round_number}): {counted}. Mend what they show, then answer again."
    ]
    room = FEEDBACK_CHARS_MAX
    for number, result in enumerate(failed, 1):
        parts.append(f"{number}. {result.kind} {result.subject}: {result.reason}")
        tail = tail_of(result.output_tail.strip(), min(FEEDBACK_TAIL_CHARS, room))
        if tail:
            parts.append(f"the end of its output:\n{tail}")
            room -= len(tail)
    if last:
        parts.append("The next verification is the last one: if it fails, the run fails.")
    return "\n\n".join(parts)


def tail_of(text: str, chars_max: int) -> str:
    """The end of a text, with a mark when there was more."""
    if len(text) <= chars_max:
        return text
    return (
        f"[{len(text) - chars_max} characters left out] …{text[len(text) - chars_max :]}" if chars_max else ""
    )
